"""Pictures to features: files of any kind, upright and in three colours, through a pretrained network."""

from __future__ import annotations

import copy
import io
import json
import re
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float, Num, Shaped, UInt8
from numpy.typing import NDArray
from torch import Tensor, nn

from perdure.errors import InputError
from perdure.inputs.backbones import (
    INSTALL,
    PREPARATION,
    Precision,
    Running,
    Unreadable,
    find_files,
    identify,
    in_words,
    load_network,
    outline,
    threads,
)

if TYPE_CHECKING:
    from PIL.Image import Image


# -- from a file to pixels ------------------------------------------------------------------------------------------------


def open_picture(content: Path | bytes, name: object, *, upright: bool = True) -> Image:
    """A picture in red, green and blue.

    Grey pictures have three equal channels, those of 16 bits keep their upper 8; CMYK and palettes are converted; what is
    transparent lies on white, as on a page. With `upright` a camera's note on which side is up is followed.
    """
    try:
        from PIL import Image, ImageOps
    except ModuleNotFoundError:
        raise InputError(f"Reading pictures needs Pillow: {INSTALL['pictures']}.") from None
    try:
        with Image.open(io.BytesIO(content) if isinstance(content, bytes) else content) as opened:
            opened.load()
            return in_colours(ImageOps.exif_transpose(opened) if upright else opened)
    except Exception as error:  # what a decoder raises depends on how the file is broken
        raise Unreadable(
            f"{name} cannot be read as a picture ({in_words(error)}). Replace it or take it out, then start again."
        ) from error


def in_colours(picture: Image) -> Image:
    """Red, green and blue of a picture of any mode."""
    from PIL import Image

    if picture.mode == "F":
        raise Unreadable("its pixels are measurements and no colours")
    if picture.mode.startswith("I"):  # 16 bits; Pillow would cut off at 255 what is lighter than that
        picture = Image.fromarray((np.asarray(picture).clip(0, 65535) // 256).astype(np.uint8))
    if picture.has_transparency_data:
        seen = picture.convert("RGBA")
        picture = Image.alpha_composite(Image.new("RGBA", seen.size, "white"), seen)
    return picture.convert("RGB")


def resized(picture: Image, resize: int | tuple[int, int] | None, crop: tuple[int, int] | None, resample: int) -> Image:
    """Its short side, or height and width, brought to `resize`; then the middle of height and width `crop`."""
    from PIL import Image

    width, height = picture.size
    if isinstance(resize, int):
        size = (resize, int(resize * height / width)) if width <= height else (int(resize * width / height), resize)
        picture = picture.resize(size, Image.Resampling(resample))
    elif resize is not None:
        picture = picture.resize(resize[::-1], Image.Resampling(resample))
    if crop is not None:
        top, left = (picture.height - crop[0]) // 2, (picture.width - crop[1]) // 2
        picture = picture.crop((left, top, left + crop[1], top + crop[0]))
    return picture


@dataclass(frozen=True)
class Family:
    """What one of transformers' image processors does where its file says nothing."""

    resample: int
    int_is_short_side: bool
    """A size that is one number is the short side, else both sides."""
    crops: bool


FAMILIES: Mapping[str, Family] = {
    "Bit": Family(3, int_is_short_side=True, crops=True),
    "CLIP": Family(3, int_is_short_side=True, crops=True),
    "ConvNext": Family(3, int_is_short_side=True, crops=False),
    "ViT": Family(2, int_is_short_side=False, crops=False),
    "DINOv3ViT": Family(2, int_is_short_side=False, crops=False),
    "DeiT": Family(3, int_is_short_side=False, crops=True),
    "Beit": Family(3, int_is_short_side=False, crops=False),
    "Siglip": Family(3, int_is_short_side=True, crops=False),
}
"""By the name of the processor; ResNets, Swin, DINO and many others use one of these."""


@dataclass(frozen=True)
class Preprocessing:
    """What a network expects of its pictures."""

    resize: int | tuple[int, int] | None
    """Pixels that the short side is brought to, or height and width."""
    crop: tuple[int, int] | None
    """Height and width of what is then cut out of the middle."""
    resample: int
    """Pillow's number of the interpolation."""
    mean: tuple[float, float, float]
    """Of red, green and blue, if they go from 0 to 1."""
    std: tuple[float, float, float]
    """The same."""

    @classmethod
    def read(cls, backbone: Path) -> Preprocessing:
        """From the file that stands beside the network's weights."""
        file = next((backbone / name for name in PREPARATION["pictures"] if (backbone / name).is_file()), None)
        if file is None:
            raise InputError(f"{backbone} does not say what its network expects: it has no {PREPARATION['pictures'][0]}.")
        try:
            said = json.loads(file.read_text(encoding="utf-8"))
            said = said.get("image_processor", said)
            kind = str(said.get("image_processor_type") or said.get("feature_extractor_type"))
            family = FAMILIES.get(re.sub(r"(ImageProcessor(Fast|Pil)?|FeatureExtractor)$", "", kind))
            if family is None:
                raise ValueError(f"{kind} is none of those known: {', '.join(FAMILIES)}")
            resize, crop = _geometry(said, family, convnext=kind.startswith("ConvNext"))
            if said.get("do_rescale") is False:
                raise ValueError("it leaves out rescaling")
            whole = 255 * float(said.get("rescale_factor", 1 / 255))  # what 255 becomes
            normalises = said.get("do_normalize") is not False
            mean, std = (
                tuple(float(value) / whole for value in (said[name] if normalises else default))
                for name, default in (("image_mean", [0.0] * 3), ("image_std", [1.0] * 3))
            )
            if len(mean) != 3 or len(std) != 3 or min(std) <= 0:
                raise ValueError("mean and deviation must be three numbers each, deviations above zero")
            resample = said.get("resample")
            return cls(resize, crop, family.resample if resample is None else int(resample), mean, std)
        except (OSError, ValueError, KeyError, TypeError, ZeroDivisionError, AttributeError) as error:
            raise InputError(
                f"{file} does not say how to resize, crop and normalise a picture in a way that is known ({in_words(error)})."
            ) from error

    @property
    def size(self) -> tuple[int, int] | None:
        """Height and width of what comes out, if it is the same for every picture."""
        return self.crop if self.crop is not None else self.resize if isinstance(self.resize, tuple) else None

    def pixels(self, picture: Image) -> UInt8[np.ndarray, "height width 3"]:
        """What is shown of a picture, before colours are normalised."""
        return np.asarray(resized(picture, self.resize, self.crop, self.resample))


def _geometry(
    said: Mapping[str, Any], family: Family, *, convnext: bool
) -> tuple[int | tuple[int, int] | None, tuple[int, int] | None]:
    """What is resized to which size, and what is then cut out."""
    resize = None if said.get("do_resize") is False else _size(said["size"], short=family.int_is_short_side)
    if convnext:
        if not isinstance(resize, int):
            raise ValueError("a ConvNeXt needs the length of a short side")
        if resize >= 384:
            return (resize, resize), None
        return int(resize / float(said.get("crop_pct", 224 / 256))), (resize, resize)
    cuts = said.get("do_center_crop")
    if not (family.crops if cuts is None else cuts):
        if not isinstance(resize, tuple):
            raise ValueError("pictures would differ in size: it neither crops the centre nor names both sides")
        return resize, None
    crop = _size(said["crop_size"], short=False)
    assert isinstance(crop, tuple)
    fits = resize is not None and min(crop) > 0 and all(c <= r for c, r in zip(crop, _pair(resize), strict=True))
    if not fits:
        raise ValueError(f"a crop of {crop} does not fit into a size of {resize}")
    return resize, crop


def _size(said: Any, *, short: bool) -> int | tuple[int, int]:
    if isinstance(said, Mapping):
        return int(said["shortest_edge"]) if "shortest_edge" in said else (int(said["height"]), int(said["width"]))
    if isinstance(said, Sequence):
        height, width = said
        return int(height), int(width)
    return int(said) if short else _pair(int(said))


def _pair(size: int | tuple[int, int]) -> tuple[int, int]:
    return (size, size) if isinstance(size, int) else size


# -- from pixels to features ----------------------------------------------------------------------------------------------


class PretrainedNetwork(nn.Module):
    """From pixels, 0 to 1, which it normalises itself, to the pooled output of a pretrained network; it may be trained on.

    Batch norm always uses the running statistics it came with, while its scale and offset are trained like any other weight.
    By the statistics of a batch, support and query rows, which go through together while learning, would influence each other,
    and a query's answer would depend on who is asked with it.

    What is not trained is a buffer; copies share it.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, network: nn.Module, preprocessing: Preprocessing, finetune: str = "all") -> None:
        super().__init__()
        self.network = network
        self.preprocessing = preprocessing
        self.register_buffer("mean", torch.tensor(preprocessing.mean)[:, None, None])
        self.register_buffer("std", torch.tensor(preprocessing.std)[:, None, None])
        trained = {id(parameter) for parameter in _trained(network, finetune)}
        for module in self.modules():
            for name, parameter in list(module.named_parameters(recurse=False)):
                if id(parameter) not in trained:
                    delattr(module, name)
                    module.register_buffer(name, parameter.detach())
        self.train(self.training)

    def without_constants_in_saves(self) -> PretrainedNetwork:
        """The same; a save of it holds what is trained, and who loads it must know where the rest is."""
        for module in self.modules():
            for name, constant in list(module.named_buffers(recurse=False)):
                module.register_buffer(name, constant, persistent=False)
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> PretrainedNetwork:
        """Another to be trained on its own."""
        memo.update({id(constant): constant for constant in self.buffers()})
        copied = memo[id(self)] = type(self).__new__(type(self))
        copied.__dict__.update(copy.deepcopy(self.__dict__, memo))
        return copied

    def train(self, mode: bool = True) -> PretrainedNetwork:
        """As usual, but never batch norm."""
        super().train(mode)
        for module in self.modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm):
                module.eval()
        return self

    def forward(self, x: Float[Tensor, "n 3 height width"]) -> Float[Tensor, "n features"]:
        """The network's own pooled output; without one that of its class token, or the mean over places."""
        out = self.network(pixel_values=(x - self.mean) / self.std)
        pooled: Tensor | None = getattr(out, "pooler_output", None)
        if pooled is None:
            last: Tensor | None = getattr(out, "last_hidden_state", None)
            if last is None or last.ndim not in (3, 4):
                raise InputError(
                    f"{type(self.network).__name__} has no output to pool; give a network such as a ResNet or a ViT."
                )
            pooled = last[:, 0] if last.ndim == 3 else last.mean(dim=(2, 3))
        return pooled.flatten(1)


def _trained(network: nn.Module, finetune: str) -> list[nn.Parameter]:
    """All weights, none, or those from the first of the last so many blocks on, in the order in which the network lists them.

    The blocks are the members of its largest list of modules: the stages of a ResNet, the layers of a ViT.
    """
    weights = list(network.parameters())
    if finetune in ("all", "none"):
        return weights if finetune == "all" else []
    lists = [module for module in network.modules() if isinstance(module, nn.ModuleList)]
    blocks = max(lists, key=lambda blocks: sum(weight.numel() for weight in blocks.parameters()), default=nn.ModuleList())
    last = int(finetune.removeprefix("last "))
    if last > len(blocks):
        raise InputError(f'`finetune="{finetune}"` asks for more blocks than the {len(blocks)} of {type(network).__name__}.')
    first = next(blocks[-last].parameters())
    return weights[next(place for place, weight in enumerate(weights) if weight is first) :]


def pretrained(backbone: str | Path, finetune: str = "all") -> PretrainedNetwork:
    """A network by the name of its folder or on the Hugging Face hub; of CLIP and SigLIP the half that sees pictures."""
    folder = find_files(backbone, "pictures")
    preprocessing = Preprocessing.read(folder)
    return PretrainedNetwork(_that_sees(load_network(folder, "pictures")), preprocessing, finetune)


def _that_sees(network: nn.Module) -> nn.Module:
    half: nn.Module = getattr(network, "vision_model", network)
    return half


class PictureBackbone:
    """A pretrained network that turns pictures into features. It is loaded when the first picture needs it."""

    def __init__(
        self, name: str | Path, *, device: str = "auto", precision: Precision = "auto", batch: int | None = None
    ) -> None:
        self.name = str(name)
        self.folder = find_files(name, "pictures")
        self.preprocessing = Preprocessing.read(self.folder)
        self.running = Running.chosen(device, precision, batch, on_cpu=32, on_gpu=256)
        self.identity = identify(self.folder, "pictures")
        self._network: PretrainedNetwork | None = None

    @property
    def network(self) -> PretrainedNetwork:
        """Where it runs."""
        if self._network is None:
            network = pretrained(self.folder).eval().to(self.running.device)
            self._network = network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        return self._network

    def rows(self, pictures: Sequence[Any] | NDArray[Any]) -> UInt8[np.ndarray, "n 3 height width"]:
        """Pictures as a learner that trains this network takes them: resized and cropped, their colours as bytes.

        They are paths, contents of files, Pillow's pictures or arrays, like those that become features.
        """

        def seen(item: Any) -> UInt8[np.ndarray, "height width 3"]:
            return self.prepare(self.content(item) if isinstance(item, (str, Path, bytes)) else b"", item)

        assert self.preprocessing.size is not None
        rows = np.empty((len(pictures), 3, *self.preprocessing.size), np.uint8)
        with ThreadPoolExecutor(threads()) as pool:  # decoders let other threads run meanwhile
            for row, pixels in zip(rows, pool.map(seen, pictures), strict=True):
                row[...] = pixels.transpose(2, 0, 1)
        return rows

    def order(self, items: Sequence[Any]) -> Sequence[int]:
        """As they come."""
        return range(len(items))

    def content(self, item: Any) -> bytes:
        """Of a path the file's bytes; bytes are a file's; a picture of Pillow's or an array its pixels."""
        if isinstance(item, (str, Path)):
            try:
                return Path(item).read_bytes()
            except OSError as error:
                raise Unreadable(f"{item} cannot be read ({error.strerror}). Put it back or take it out.") from error
        if isinstance(item, bytes):
            return item
        pixels = np.ascontiguousarray(item)
        return b"\0".join(
            (str(getattr(item, "mode", "")).encode(), repr((pixels.shape, pixels.dtype.str)).encode(), pixels.tobytes())
        )

    def prepare(self, content: bytes, item: Any) -> UInt8[np.ndarray, "height width 3"]:
        """Resized and cropped."""
        if isinstance(item, (str, Path, bytes)):
            name = item if not isinstance(item, bytes) else f"a picture of {len(item)} bytes"
            return self.preprocessing.pixels(open_picture(content, name))
        return self.preprocessing.pixels(_as_picture(item))

    def encode(
        self, prepared: Sequence[UInt8[np.ndarray, "height width 3"]], *, exact: bool = False
    ) -> Float[Tensor, "n features"]:
        """Features, still where they were computed."""
        stacked = torch.from_numpy(np.stack(prepared))
        device = torch.device(self.running.device)
        if device.type == "cuda":
            stacked = stacked.pin_memory()  # so that it travels while the network works on the batch before
        with self.running.mixed(exact=exact):
            x = stacked.to(device, non_blocking=True).permute(0, 3, 1, 2).float() / 255
            features: Tensor = self.network(x)
            return features.float()


class FineTuned:
    """Makes a copy of a pretrained network for each environment, to be trained on its own.

    Saves hold none of what is not trained: it is in the network's folder, which a learner names and tells from others.
    """

    def __init__(self, name: str | Path, finetune: str, device: torch.device) -> None:
        self.pictures = PictureBackbone(name, device="cpu")
        if finetune not in ("all", "none") and (network := outline(self.pictures.folder)) is not None:
            _trained(_that_sees(network), finetune)  # refuses more blocks than there are
        self.finetune, self.device = finetune, device
        self._original: PretrainedNetwork | None = None

    def __call__(self) -> PretrainedNetwork:
        if self._original is None:
            original = pretrained(self.pictures.folder, self.finetune)
            self._original = original.without_constants_in_saves().to(self.device)
        return copy.deepcopy(self._original)

    @property
    def nbytes(self) -> int:
        """Of what copies begin from and share."""
        original = self._original
        return 0 if original is None else sum(tensor.nbytes for tensor in (*original.parameters(), *original.buffers()))

    def check(self, x: Shaped[np.ndarray, "n *picture"]) -> None:
        """Refuse what are no pictures."""
        if x.dtype != np.uint8 and not (x.min() >= 0 and x.max() <= 1):
            raise InputError("Pictures of fractions must go from 0 to 1; undo their normalisation, or give bytes (uint8).")
        self.fitted(x[:1])

    def fitted(self, x: Shaped[np.ndarray, "n *picture"]) -> Num[np.ndarray, "n 3 height width"]:
        """Pictures as the network wants them. Those that have its size already are taken as they are."""
        return x if x.shape[1:] == (3, *(self.pictures.preprocessing.size or ())) else self.pictures.rows(x)


def _as_picture(item: Any) -> Image:
    """Pillow's picture of what a data set holds in memory: such a picture, or an array with or without colours."""
    from PIL import Image

    if isinstance(item, Image.Image):
        return in_colours(item)
    pixels = np.asarray(item)
    shape = pixels.shape
    if pixels.ndim == 3 and shape[2] not in (1, 3) and (shape[0] in (1, 3) or (shape[0] == 4 and shape[2] != 4)):
        pixels = pixels.transpose(1, 2, 0)  # channels first, as torch has them
    if pixels.ndim == 3 and pixels.shape[2] == 1:
        pixels = pixels[..., 0]
    if pixels.ndim not in (2, 3) or 0 in shape or pixels.shape[2:] not in ((), (3,), (4,)):
        raise Unreadable(f"An array of shape {shape} is no picture; give height x width x 3, or 3 x height x width.")
    if pixels.dtype.kind == "f":
        if not (np.isfinite(pixels).all() and pixels.min() >= 0 and pixels.max() <= 1):
            raise Unreadable("A picture of fractions must go from 0 to 1; undo its normalisation, or give whole numbers to 255.")
        pixels = (255 * pixels).round().astype(np.uint8)
    try:
        return in_colours(Image.fromarray(np.ascontiguousarray(pixels)))
    except (TypeError, ValueError) as error:
        raise Unreadable(f"An array of shape {pixels.shape} and {pixels.dtype} is no picture ({in_words(error)}).") from error
