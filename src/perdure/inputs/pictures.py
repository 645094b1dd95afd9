"""Folders of pictures to files of features: the pooled output of a pretrained network, one row a picture."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from perdure.errors import InputError
from perdure.inputs.tables import replacing
from perdure.progress import Progress, interruptible, progress_bar
from perdure.scenarios.pictures import INSTALL, Picture, centre, find

CONFIG, PREPROCESSING = "config.json", "preprocessor_config.json"
AT_ONCE = 64
"""So many pictures pass through a network together where nothing is learned, whatever number is asked for."""


# -- the network ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Preprocessing:
    """What a network expects of its pictures."""

    short: int
    """Pixels that the short side is brought to."""
    crop: int
    """Pixels of the square that is cut out of the middle."""
    resample: int
    """Pillow's number of the interpolation."""
    mean: tuple[float, float, float]
    """Of red, green and blue, if they go from 0 to 1."""
    std: tuple[float, float, float]
    """The same."""

    @classmethod
    def read(cls, backbone: Path) -> Preprocessing:
        """From the file that stands beside the network's weights."""
        file = backbone / PREPROCESSING
        try:
            stored = json.loads(file.read_text(encoding="utf-8"))
            if not all(stored.get(f"do_{what}", True) for what in ("resize", "center_crop", "rescale", "normalize")):
                raise ValueError("it leaves out one of resize, center_crop, rescale and normalize")
            short, crop = int(stored["size"]["shortest_edge"]), stored["crop_size"]
            if crop["height"] != crop["width"] or not 0 < crop["width"] <= short:
                raise ValueError(f"a crop of {crop} does not fit into a short side of {short}")
            whole = 255 * float(stored["rescale_factor"])  # what 255 becomes
            mean, std = (tuple(float(value) / whole for value in stored[name]) for name in ("image_mean", "image_std"))
            if len(mean) != 3 or len(std) != 3 or min(std) <= 0:
                raise ValueError("mean and deviation must be three numbers each, deviations above zero")
            return cls(short, int(crop["width"]), int(stored["resample"]), mean, std)
        except (OSError, ValueError, KeyError, TypeError, ZeroDivisionError, AttributeError) as error:
            raise InputError(
                f"{file} does not say how to resize the short side, crop the centre and normalise ({_in_words(error)})."
            ) from error


class PretrainedNetwork(nn.Module):
    """From pixels, 0 to 1, which it normalises itself, to the pooled output of a pretrained network; it may be trained on.

    Batch norm always uses the running statistics it came with, while its scale and offset are trained like any other weight.
    By the statistics of a batch, support and query rows, which go through together while learning, would influence each other,
    and a query's answer would depend on who is asked with it.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, network: nn.Module, preprocessing: Preprocessing) -> None:
        super().__init__()
        self.network = network
        self.preprocessing = preprocessing
        self.register_buffer("mean", torch.tensor(preprocessing.mean)[:, None, None])
        self.register_buffer("std", torch.tensor(preprocessing.std)[:, None, None])
        self.train(self.training)

    def train(self, mode: bool = True) -> PretrainedNetwork:
        """As usual, but never batch norm."""
        super().train(mode)
        for module in self.modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm):
                module.eval()
        return self

    def forward(self, x: Float[Tensor, "n 3 height width"]) -> Float[Tensor, "n features"]:
        if torch.is_grad_enabled():
            return self._pooled(x)
        return torch.cat([self._pooled(part) for part in torch.split(x, AT_ONCE)])  # no row needs another, so spare memory

    def _pooled(self, x: Float[Tensor, "n 3 height width"]) -> Float[Tensor, "n features"]:
        pooled: Tensor | None = getattr(self.network(pixel_values=(x - self.mean) / self.std), "pooler_output", None)
        if pooled is None:
            raise InputError(f"{type(self.network).__name__} has no pooled output; give a network such as a ResNet.")
        return pooled.flatten(1)


def pretrained(backbone: Path) -> PretrainedNetwork:
    """The network in a local folder as Hugging Face saves it; only safetensors are read, and no code of the folder is run."""
    lacking = [name for name in (CONFIG, PREPROCESSING) if not (backbone / name).is_file()]
    if lacking or not any(backbone.glob("*.safetensors")):
        raise InputError(
            f"{backbone} is not the folder of a pretrained network: it has no {' and no '.join(lacking or ['*.safetensors'])}."
        )
    preprocessing = Preprocessing.read(backbone)
    try:
        from transformers import AutoModel
        from transformers.utils import logging
    except ModuleNotFoundError as error:
        raise InputError(f"Pretrained networks need transformers and Pillow ({error}): {INSTALL}.") from error
    had_bar = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()  # it would be drawn into files, too
    try:
        network, loaded = AutoModel.from_pretrained(
            backbone, local_files_only=True, use_safetensors=True, trust_remote_code=False, output_loading_info=True
        )
    except Exception as error:  # a damaged file shows in any of its many layers
        raise InputError(f"{backbone} holds no network that can be used: {_in_words(error)}.") from error
    finally:
        if had_bar:
            logging.enable_progress_bar()
    if loaded["missing_keys"]:  # transformers would leave them at random
        raise InputError(f"{backbone} lacks some of its network's weights, such as {min(loaded['missing_keys'])}.")
    return PretrainedNetwork(network.float(), preprocessing)


# -- from a folder to a file ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Extracted:
    """What a file of features holds."""

    out: Path
    pictures: int
    features: int
    domains: list[str]
    classes: list[str]
    left_out: list[Path]
    """Files in the folders that are no pictures by their suffix."""


def extract(
    folder: str | Path,
    out: str | Path,
    *,
    backbone: str | Path,
    batch: int = 32,
    device: str = "cpu",
    progress: Progress = None,
) -> Extracted:
    """Features of all pictures `<folder>/<domain>/[images/]<class>/<file>` by the network in the folder `backbone`.

    `out` is an NPZ file: `X` (float16), `y` into `class_names`, `domain` into `domain_names`, and `paths`. It appears once it is
    whole. What is computed before that is kept beside it, in `OUT.partial`: the same call goes on from there, also when pictures
    were added or taken out meanwhile.
    """
    folder, out, backbone = Path(folder), Path(out), Path(backbone)
    if batch < 1:
        raise InputError(f"`batch` must be at least 1 picture, got {batch}.")
    _check_new(out)
    found = find(folder)
    pictures = found.pictures
    domain_names, domain = np.unique([picture.domain for picture in pictures], return_inverse=True)
    class_names, y = np.unique([picture.label for picture in pictures], return_inverse=True)
    if len(domain_names) > np.iinfo(np.int8).max or len(class_names) > np.iinfo(np.int16).max:
        raise InputError(
            f"{folder} has {len(domain_names)} domains of {len(class_names)} classes; at most 127 of 32767 fit. "
            "Give the folder that holds DOMAIN/CLASS/FILE."
        )
    network = _on(device, pretrained(backbone)).eval()
    square = network.preprocessing.crop
    width = _features(network, np.zeros((1, 3, square, square), np.float32)).shape[1]

    with _computed(partial_file(out), backbone, width) as computed, interruptible() as interrupted:
        keys = [_key(picture) for picture in pictures]
        missing = [i for i, key in enumerate(keys) if key not in computed.rows]
        done = len(keys) - len(missing)
        with progress_bar(progress, "features", len(keys), done) as report, ThreadPoolExecutor() as pool:
            for first in range(0, len(missing), batch):
                some = missing[first : first + batch]
                squares = pool.map(lambda i: _square(pictures[i], network.preprocessing), some)
                features = _features(network, np.stack(list(squares))).astype(np.float16)
                if not np.isfinite(features).all():
                    bad = some[int((~np.isfinite(features).all(axis=1)).argmax())]
                    raise InputError(f"{pictures[bad].file} gets features that are no numbers; is {backbone} damaged?")
                computed.add([keys[i] for i in some], features)
                report(done + first + len(some))
                if interrupted():
                    raise KeyboardInterrupt
        with replacing(out) as file:
            np.savez_compressed(
                file,
                X=np.stack([computed.rows[key] for key in keys]),
                y=y.astype(np.int16),
                domain=domain.astype(np.int8),
                domain_names=domain_names,
                class_names=class_names,
                paths=np.array([picture.path for picture in pictures]),
            )
    partial_file(out).unlink()
    return Extracted(out, len(keys), width, domain_names.tolist(), class_names.tolist(), list(found.left_out))


def partial_file(out: Path) -> Path:
    """Where features are kept until all are there."""
    return out.with_name(f"{out.name}.partial")


def kept(out: Path) -> int:
    """How many pictures a stopped `extract` has done; 0 if there is none."""
    try:
        with open(partial_file(out), "rb") as file:
            header = json.loads(file.readline())
            return int((os.fstat(file.fileno()).st_size - file.tell()) // _record(header["features"]).itemsize)
    except (OSError, ValueError, KeyError, TypeError):
        return 0


class _Computed:
    """Features by picture, in memory and on disk: a line of JSON, then records of one length that are only ever appended."""

    def __init__(self, file: BinaryIO, features: int) -> None:
        self.rows: dict[bytes, np.ndarray] = {}
        self._file, self._record = file, _record(features)

    def read(self) -> None:
        """All whole records; what a kill left of another is cut off."""
        begin = self._file.tell()
        stored = self._file.read()
        whole = len(stored) // self._record.itemsize
        records = np.frombuffer(stored, self._record, count=whole)
        self.rows = {record["key"].tobytes(): record["row"] for record in records}
        self._file.seek(begin + whole * self._record.itemsize)
        self._file.truncate()

    def add(self, keys: Sequence[bytes], rows: Float[np.ndarray, "n features"]) -> None:
        """Keep them; they are on disk afterwards."""
        records = np.zeros(len(keys), self._record)
        records["key"], records["row"] = [np.void(key) for key in keys], rows
        self._file.write(records.tobytes())
        self._file.flush()
        os.fsync(self._file.fileno())
        self.rows |= dict(zip(keys, rows, strict=True))


@contextmanager
def _computed(path: Path, backbone: Path, features: int) -> Iterator[_Computed]:
    """What an earlier call has kept, if it used the same network; no other call may add to it meanwhile."""
    about = {"format": "perdure features of pictures, 1", "backbone": _digest(backbone), "features": features}
    header = json.dumps(about).encode() + b"\n"
    with open(path, "a+b") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BlockingIOError(errno.EWOULDBLOCK, "another process is writing it", str(path)) from None
        file.seek(0)
        first = file.readline()
        if not first.endswith(b"\n") and header.startswith(first):  # new, or killed while this line was written
            file.truncate(0)
            file.write(header)
            file.flush()
        elif first != header:
            raise InputError(
                f"{path} was begun with another network, or is something else. Remove it, or give another file to write."
            )
        computed = _Computed(file, features)
        computed.read()
        try:
            yield computed
        finally:
            if not computed.rows:
                path.unlink()


def _record(features: int) -> np.dtype[Any]:
    return np.dtype([("key", "V32"), ("row", "<f2", (features,))])


def _key(picture: Picture) -> bytes:
    """Tells a picture from others, and from one of another size that has its place."""
    return hashlib.sha256(f"{picture.path}\0{picture.file.stat().st_size}".encode()).digest()


def _digest(backbone: Path) -> str:
    digest = hashlib.sha256()
    for path in [backbone / CONFIG, backbone / PREPROCESSING, *sorted(backbone.glob("*.safetensors"))]:
        with open(path, "rb") as file:
            while piece := file.read(1 << 20):
                digest.update(piece)
    return digest.hexdigest()


def _square(picture: Picture, preprocessing: Preprocessing) -> Float[np.ndarray, "3 height width"]:
    seen = centre(picture.file, short=preprocessing.short, crop=preprocessing.crop, resample=preprocessing.resample)
    return seen.transpose(2, 0, 1).astype(np.float32) / 255


@torch.no_grad()
def _features(network: PretrainedNetwork, x: Float[np.ndarray, "n 3 height width"]) -> Float[np.ndarray, "n features"]:
    features: Tensor = network(torch.from_numpy(x).to(network.mean.device))
    return features.cpu().numpy()


def _on(device: str, network: PretrainedNetwork) -> PretrainedNetwork:
    try:
        return network.to(device)
    except (RuntimeError, AssertionError) as error:
        raise InputError(f"The device {device!r} cannot be used here: {str(error).splitlines()[0]}") from error


def _check_new(out: Path) -> None:
    if out.suffix != ".npz":
        raise InputError(f"Features are written to an .npz file, not to {out.name!r}.")
    if out.exists():
        raise InputError(f"{out} is there already; remove it, or give another file to write.")
    if not out.absolute().parent.is_dir():
        raise InputError(f"The folder of {out} does not exist; create it first.")


def _in_words(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
