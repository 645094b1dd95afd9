"""Saved learners: a folder with `tensors.safetensors` and `state.json`. Never pickle, never half a save.

A save is two files but one moment: `state.json` carries the digest of its tensors, and replacing it is what makes a save
count. Killed before that, the old pair stands untouched. Killed after it but before the tensors got their final name, the
new tensors still lie beside it as `tensors.safetensors.next`, where reading finds them by their digest.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

from perdure.errors import CheckpointError

FORMAT = 1
Module = TypeVar("Module", bound=nn.Module)
TENSORS, STATE = "tensors.safetensors", "state.json"
_ACCUMULATES: dict[type[torch.optim.Optimizer], set[str]] = {
    torch.optim.Adam: {"step", "exp_avg", "exp_avg_sq"},
    torch.optim.SGD: {"momentum_buffer"},
}


def save(path: str | Path, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
    """Both files in the folder `path`, or neither."""
    folder = Path(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _finish_interrupted(folder)
        contiguous = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
        data = safetensors.torch.save(contiguous)
        text = json.dumps({"format": FORMAT, "tensors": hashlib.sha256(data).hexdigest(), **state}, indent=1)
        _write(folder / f"{TENSORS}.next", data)
        _write(folder / f"{STATE}.next", text.encode())
        _sync_folder(folder)
        os.replace(folder / f"{STATE}.next", folder / STATE)
    except OSError as error:
        _discard_unfinished(folder)
        raise CheckpointError(
            f"Could not save to {folder}: {error.strerror or error}. What was saved there before is untouched."
        ) from error
    except KeyboardInterrupt:
        _discard_unfinished(folder)
        raise
    with suppress(OSError):  # the save counts already: reading finds its tensors under either name
        _sync_folder(folder)
        os.replace(folder / f"{TENSORS}.next", folder / TENSORS)


def load(path: str | Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors and the state of a save, or a `CheckpointError` that says what is wrong with it."""
    folder = Path(path)
    state = read_state(folder)
    for name in (TENSORS, f"{TENSORS}.next"):
        try:
            data = (folder / name).read_bytes()
        except FileNotFoundError:
            continue
        except OSError as error:
            raise CheckpointError(f"{folder / name} cannot be read: {error.strerror or error}.") from error
        if hashlib.sha256(data).hexdigest() == state["tensors"]:
            break
    else:
        if read_state(folder) != state:  # another process has saved since we looked
            return load(path)
        raise CheckpointError(
            f"{folder / TENSORS} is missing, truncated or altered: it does not match {STATE}. Restore the folder from a copy."
        )
    try:
        return safetensors.torch.load(data), state
    except (safetensors.SafetensorError, ValueError, KeyError) as error:
        raise CheckpointError(f"{folder / TENSORS} is not a safetensors file: {error}.") from error


def read_state(path: str | Path) -> dict[str, Any]:
    """`state.json` alone, its format checked: cheap, for a look at what is saved."""
    file = Path(path) / STATE
    try:
        state = json.loads(file.read_bytes())
    except FileNotFoundError:
        raise CheckpointError(f"{file.parent} holds no saved learner: there is no {STATE}.") from None
    except OSError as error:
        raise CheckpointError(f"{file} cannot be read: {error.strerror or error}.") from error
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{file} is not JSON: {error}.") from error
    if not isinstance(state, dict) or "format" not in state or not isinstance(state.get("tensors"), str):
        raise CheckpointError(f"{file} was not written by perdure.")
    if state["format"] != FORMAT:
        raise CheckpointError(
            f"{file} has format {state['format']!r}, this perdure reads format {FORMAT}. Use the version that wrote it."
        )
    return state


class Folder(dict[str, Tensor]):
    """Tensors by name, where dots make folders."""

    def folder(self, name: str) -> Folder:
        """The tensors whose names begin with `name.`, without that beginning."""
        return Folder({key[len(name) + 1 :]: tensor for key, tensor in self.items() if key.startswith(f"{name}.")})

    def to(self, device: torch.device) -> Folder:
        """A copy of each tensor on this device."""
        return Folder({name: tensor.to(device, copy=True) for name, tensor in self.items()})

    def numbers(self, name: str, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """The tensor of this name, which must have this shape."""
        tensor = self[name]
        if tuple(tensor.shape) != shape or tensor.dtype != dtype:
            raise ValueError(f"{name} should be {dtype} of shape {shape}, not {tensor.dtype} of shape {tuple(tensor.shape)}")
        return tensor

    def into(self, module: Module) -> Module:
        """The module with these as its weights, ready to answer."""
        expected = module.state_dict()
        if self.keys() != expected.keys():
            raise ValueError(f"its networks differ in {', '.join(sorted(self.keys() ^ expected.keys()))}")
        for name, tensor in expected.items():  # in place, for it also says by which version's rules it is to be read
            expected[name] = self.numbers(name, *tensor.shape, dtype=tensor.dtype)
        module.load_state_dict(expected, strict=True, assign=True)
        module.eval().requires_grad_(False)
        return module


def whole(value: Any, *, below: float = math.inf) -> int:
    """A count or a place, as JSON should hold it."""
    if type(value) is not int or not 0 <= value < below:
        raise ValueError(f"expected a whole number from zero{f' to below {below}' if below < math.inf else ''}, got {value!r}")
    return value


def places(values: Any, *, below: int) -> list[int]:
    """One or more different places, as JSON should hold them."""
    found = [whole(value, below=below) for value in values]
    if not found or len(set(found)) < len(found):
        raise ValueError(f"expected different places, got {found}")
    return found


def word(value: Any) -> str:
    """A string, as JSON should hold it."""
    if not isinstance(value, str):
        raise ValueError(f"expected a string, got {value!r}")
    return value


def optimiser_tensors(optimiser: torch.optim.Optimizer, name: str) -> dict[str, Tensor]:
    """What the optimiser has accumulated for each parameter."""
    state = optimiser.state_dict()["state"]
    return {
        f"{name}.{parameter}.{key}": value
        for parameter, values in state.items()
        for key, value in values.items()
        if value is not None
    }


def restore_optimiser(optimiser: torch.optim.Optimizer, tensors: Folder) -> None:
    """Give a new optimiser over the same parameters what another one had accumulated."""
    parameters = [parameter for group in optimiser.param_groups for parameter in group["params"]]
    state: dict[int, dict[str, Tensor]] = {}
    for place in sorted({int(name.split(".")[0]) for name in tensors}):
        accumulated = tensors.folder(str(place))
        if set(accumulated) != _ACCUMULATES[type(optimiser)]:
            raise ValueError(f"an optimiser has accumulated {sorted(accumulated)}")
        shape = parameters[whole(place, below=len(parameters))].shape
        state[place] = {key: accumulated.numbers(key, *(() if key == "step" else shape)) for key in accumulated}
    for group in optimiser.state_dict()["param_groups"] if isinstance(optimiser, torch.optim.SGD) else []:
        if 0 < len(state.keys() & set(group["params"])) < len(group["params"]):
            raise ValueError("an optimiser has accumulated for some of a network's parameters only")
    optimiser.load_state_dict({"state": state, "param_groups": optimiser.state_dict()["param_groups"]})


def _write(file: Path, data: bytes) -> None:
    with open(file, "wb") as stream:
        stream.write(data)
        stream.flush()
        os.fsync(stream.fileno())


def _sync_folder(folder: Path) -> None:
    """Have the disk know the names of its files; not every system lets us."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _finish_interrupted(folder: Path) -> None:
    """Give the tensors of the last save that counts their final name, should it have been killed just before."""
    if _counts(folder):
        os.replace(folder / f"{TENSORS}.next", folder / TENSORS)


def _counts(folder: Path) -> bool:
    """Whether the tensors that still wait for their final name are those that `state.json` speaks of."""
    following = folder / f"{TENSORS}.next"
    if not following.exists() or not (folder / STATE).exists():
        return False
    return bool(hashlib.sha256(following.read_bytes()).hexdigest() == read_state(folder)["tensors"])


def _discard_unfinished(folder: Path) -> None:
    """Free the disk of a save that did not come to count."""
    with suppress(OSError, CheckpointError):
        _finish_interrupted(folder)
        for name in (TENSORS, STATE):
            (folder / f"{name}.next").unlink(missing_ok=True)
