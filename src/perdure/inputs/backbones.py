"""Pretrained networks by name: where their files are, what tells one from another, on what and how precisely they run."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from perdure.errors import InputError

Kind = Literal["pictures", "text"]
Precision = Literal["auto", "float32", "bfloat16", "float16"]

CONFIG = "config.json"
WEIGHTS = ("model.safetensors", "model.safetensors.index.json", "model-*-of-*.safetensors")
PREPARATION: Mapping[Kind, tuple[str, ...]] = {
    "pictures": ("preprocessor_config.json", "processor_config.json"),
    "text": (
        "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.txt", "vocab.json",
        "merges.txt", "sentence_bert_config.json", "tokenizer.model", "sentencepiece.bpe.model", "spiece.model",
    ),
}  # fmt: skip
"""The files that say what is done to an input before a network sees it."""
INSTALL: Mapping[Kind, str] = {"pictures": "pip install 'perdure[images]'", "text": "pip install 'perdure[text]'"}
REVISION = 1
"""Of what this package does between an input and its features; raised when features change, so that none are mixed."""


class Unreadable(InputError):
    """An input that cannot be shown to a network; whoever has many may leave it out."""


@dataclass(frozen=True)
class Identity:
    """What features depend on besides their input: two backbones with the same identity give the same features."""

    kind: Kind
    network: str
    """Digest of the architecture and the weights."""
    preparation: str
    """Digest of what is done to an input before the network sees it."""
    revision: int = REVISION

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(self)


@dataclass(frozen=True)
class Running:
    """Where a network runs, how precisely, and on how many items at a time."""

    device: str
    precision: Literal["float32", "bfloat16", "float16"]
    batch: int

    @classmethod
    def chosen(cls, device: str, precision: Precision, batch: int | None, *, on_cpu: int, on_gpu: int) -> Running:
        """As asked for, or what is sensible here: a GPU if there is one, half precision on CUDA alone."""
        if device == "auto":
            device = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
        try:
            torch.empty(0, device=device)
        except (RuntimeError, AssertionError) as error:
            raise InputError(f"The device {device!r} cannot be used here: {str(error).splitlines()[0]}") from error
        if precision not in ("auto", "float32", "bfloat16", "float16"):
            raise InputError(f"`precision` must be auto, float32, bfloat16 or float16, got {precision!r}.")
        if precision == "auto":
            cuda = device.startswith("cuda")
            precision = "float32" if not cuda else "bfloat16" if torch.cuda.is_bf16_supported() else "float16"
        if batch is None:
            batch = on_cpu if device == "cpu" else on_gpu
        if batch < 1:
            raise InputError(f"`batch` must be at least 1, got {batch}.")
        return cls(device, precision, batch)

    @contextmanager
    def mixed(self, *, exact: bool = False) -> Iterator[None]:
        """Nothing in here is learned from; matrix products are of the precision chosen unless `exact`."""
        kind, half = torch.device(self.device).type, {"bfloat16": torch.bfloat16, "float16": torch.float16}
        wanted = half.get(self.precision)
        with torch.inference_mode(), torch.autocast(kind, dtype=wanted, enabled=wanted is not None and not exact):
            yield


@runtime_checkable
class Backbone(Protocol):
    """From items (pictures, texts) to features, a batch at a time."""

    name: str
    """As it was asked for."""
    identity: Identity
    running: Running

    def order(self, items: Sequence[Any]) -> Sequence[int]:
        """In which order they are best looked at."""

    def content(self, item: Any) -> bytes:
        """What the item is made of; its features are kept under the digest of this."""

    def prepare(self, content: bytes, item: Any) -> Any:
        """What a batch is made of. Called from several threads at once."""

    def encode(self, prepared: Sequence[Any], *, exact: bool = False) -> Tensor:
        """One row of features an item, still where they were computed; `exact` asks for full precision."""


# -- files ----------------------------------------------------------------------------------------------------------------


def find_files(name: str | Path, kind: Kind) -> Path:
    """The folder of a pretrained network: the one that is named, or a download from the Hugging Face hub, made once."""
    folder = Path(name).expanduser()
    if folder.is_dir():
        _check_whole(folder, kind)
        return folder
    if not re.fullmatch(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?", str(name)):
        raise InputError(f"There is no backbone {name}: it is no folder, and no name on the Hugging Face hub.")
    try:
        from huggingface_hub import snapshot_download
    except ModuleNotFoundError as error:
        raise InputError(f"Backbones by name need transformers ({error}): {INSTALL[kind]}. Or give a folder.") from error
    wanted = [CONFIG, *WEIGHTS, *PREPARATION[kind]]
    with suppress(OSError, ValueError):  # what is here already is not looked for on the network
        here = Path(snapshot_download(str(name), allow_patterns=wanted, local_files_only=True))
        _check_whole(here, kind)
        return here
    try:
        fetched = Path(snapshot_download(str(name), allow_patterns=wanted))
    except (OSError, ValueError) as error:  # among these are the hub's own
        raise InputError(
            f"There is no backbone {name}: no folder has this name here, and it could not be fetched from the Hugging Face hub "
            f"({in_words(error)}). Check its spelling and your network, or give a folder."
        ) from error
    _check_whole(fetched, kind)
    return fetched


def lasting_name(name: str | Path) -> str:
    """A folder by its absolute path, so that it is found from elsewhere, too; a name on the hub as it is."""
    folder = Path(name).expanduser()
    return str(folder.absolute()) if folder.is_dir() else str(name)


def _check_whole(folder: Path, kind: Kind) -> None:
    lacking = [] if (folder / CONFIG).is_file() else [CONFIG]
    if not any((folder / name).is_file() for name in PREPARATION[kind]):
        lacking.append(PREPARATION[kind][0])
    if not _weights(folder):
        lacking.append("model.safetensors")
    if lacking:
        raise InputError(f"{folder} is not the folder of a network for {kind}: it has no {' and no '.join(lacking)}.")


def identify(folder: Path, kind: Kind, *settings: object) -> Identity:
    """What the files of a backbone say it is; `settings` are choices of the caller that change its features."""
    network, preparation = hashlib.sha256(), hashlib.sha256(repr(settings).encode())
    network.update(_said(folder / CONFIG))
    for file in _weights(folder):
        with open(file, "rb") as opened:
            while piece := opened.read(1 << 20):
                network.update(piece)
    for name in PREPARATION[kind]:
        if (folder / name).is_file():
            preparation.update(name.encode() + b"\0" + _said(folder / name) + b"\0")
    return Identity(kind, network.hexdigest(), preparation.hexdigest())


def _weights(folder: Path) -> list[Path]:
    """In the order in which they are digested: one file, or the parts of one."""
    whole = folder / WEIGHTS[0]
    return [whole] if whole.is_file() else sorted(folder.glob(WEIGHTS[2]))


def _said(file: Path) -> bytes:
    """What a file says, however it is laid out, without who wrote it when."""
    content = file.read_bytes()
    if file.suffix != ".json":
        return content
    try:
        values = json.loads(content)
    except ValueError as error:
        raise InputError(f"{file} is damaged: {in_words(error)}.") from error
    if isinstance(values, dict):
        values = {key: value for key, value in values.items() if key not in ("transformers_version", "_name_or_path")}
    return json.dumps(values, sort_keys=True).encode()


# -- networks -------------------------------------------------------------------------------------------------------------


def load_network(folder: Path, kind: Kind) -> nn.Module:
    """The network in a folder, in float32; only safetensors are read, and no code of the folder is run."""
    try:
        from transformers import AutoModel
    except ModuleNotFoundError as error:
        raise InputError(f"Pretrained networks need transformers ({error}): {INSTALL[kind]}.") from error
    try:
        with quiet_transformers():
            network, loaded = AutoModel.from_pretrained(
                folder, local_files_only=True, use_safetensors=True, trust_remote_code=False, output_loading_info=True
            )
    except Exception as error:  # a damaged file shows in any of its many layers
        raise InputError(f"{folder} holds no network that can be used: {in_words(error)}.") from error
    lacking = set(loaded["missing_keys"])  # transformers would leave them at random
    if lacking and all(name.startswith("pooler.") for name in lacking):
        network.pooler = None  # a head that this checkpoint never had
        lacking = set()
    if lacking:
        raise InputError(f"{folder} lacks some of its network's weights, such as {min(lacking)}.")
    made: nn.Module = network.float()
    return made


def outline(folder: Path) -> nn.Module | None:
    """The network in a folder without its weights, which takes no time; `None` where it cannot be had: loading it says why."""
    try:
        from transformers import AutoConfig, AutoModel

        with quiet_transformers(), torch.device("meta"):
            said = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
            made: nn.Module = AutoModel.from_config(said, trust_remote_code=False)
            return made
    except Exception:  # some networks compute while they are made, which takes numbers
        return None


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Without its bars, which would be drawn into files, and without its remarks."""
    from transformers.utils import logging

    bars, verbosity = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()


def in_words(error: Exception) -> str:
    """Its kind and its first line."""
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}".rstrip(". :")


def threads() -> int:
    """How many files are read and decoded at once: as many as this process may use cores, and at least two."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(2, cores)
