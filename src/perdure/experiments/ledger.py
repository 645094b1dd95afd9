"""The memory of the reproduction: what a run is, under which key its result is kept, and where."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from perdure.analytic import AnalyticConfig
from perdure.errors import InputError
from perdure.experiments.methods import Kind, Method, measure
from perdure.experiments.runner import Protocol
from perdure.experiments.studies import STUDIES
from perdure.metrics import AccuracyMatrix
from perdure.progress import Progress
from perdure.scenarios import office31, office_home, pictures, raw_digits
from perdure.scenarios.frozen import data_file
from perdure.settings import settings_from_json
from perdure.streams import Scenario
from perdure.variational import VariationalConfig

REVISION = 1
"""Raise it when a change to the code changes numbers: results of older revisions are then computed again."""

Argument: TypeAlias = "str | tuple[str, ...]"


class Source(NamedTuple):
    """A function that makes scenarios, and how many environments they have."""

    make: Callable[..., Scenario]
    environments: Callable[..., int]
    data: Callable[[], Path]
    """Where its data are; raises if they are not there."""


_OFFICE31, _OFFICE_HOME, _DIGITS = (
    partial(data_file, name) for name in ("office31_resnet50.npz", "officehome_resnet50.npz", raw_digits.FILE)
)
SOURCES: Mapping[str, Source] = {
    "office31.tasks": Source(office31.tasks, lambda *_: len(office31.TASK_SIZES), _OFFICE31),
    "office31.combined": Source(office31.combined, lambda *_: len(office31.TASK_SIZES), _OFFICE31),
    "office_home.tasks": Source(office_home.tasks, lambda *_: len(office_home.TASKS), _OFFICE_HOME),
    "office_home.combined": Source(office_home.combined, lambda *_: len(office_home.TASKS), _OFFICE_HOME),
    "office_home.domains": Source(office_home.domains, lambda _, queries: len(queries), _OFFICE_HOME),
    "raw_digits.domains": Source(raw_digits.domains, lambda _, queries: len(queries), _DIGITS),
    "pictures.office_home_domains": Source(
        pictures.office_home_domains, lambda _, queries: len(queries), pictures.office_home_folder
    ),
}


@dataclass(frozen=True)
class Place:
    """A scenario by name: the function that makes it and its arguments."""

    source: str
    arguments: tuple[Argument, ...] = ()

    def __post_init__(self) -> None:
        if self.source not in SOURCES:
            raise InputError(f"No scenarios are called {self.source!r}. Known: {', '.join(SOURCES)}.")

    @property
    def environments(self) -> int:
        """How many it has."""
        return SOURCES[self.source].environments(*self.arguments)

    def data(self) -> Path:
        """Where its data are; raises if they are not there."""
        return SOURCES[self.source].data()

    def scenario(self, *, inductive: bool) -> Scenario:
        """Load it."""
        return SOURCES[self.source].make(*self.arguments, inductive=inductive)

    def unordered(self) -> Place:
        """One name for all orders of the same environments."""
        return replace(self, arguments=tuple(tuple(sorted(a)) if isinstance(a, tuple) else a for a in self.arguments))

    @property
    def order(self) -> tuple[int, ...]:
        """Where each of its environments stands among those of `unordered()`; a tuple of names has one for each."""
        for argument in self.arguments:
            if isinstance(argument, tuple):
                return tuple(sorted(argument).index(name) for name in argument)
        return tuple(range(self.environments))


@dataclass(frozen=True)
class Planned:
    """One run: everything its numbers follow from."""

    method: Method
    place: Place
    inductive: bool = False
    study: str | None = None
    """What is computed with the method instead of scoring it under every protocol: a name in `STUDIES`."""

    def __post_init__(self) -> None:
        if self.study is not None and (self.study not in STUDIES or self.method.kind != STUDIES[self.study].kind):
            each = ", ".join(f"{name!r} of {study.kind!r}" for name, study in STUDIES.items())
            raise InputError(f"A study is one of {each}; got {self.study!r} of {self.method.kind!r}.")
        if self.method.orderless:
            object.__setattr__(self, "place", self.place.unordered())

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "revision": REVISION,
            "method": self.method.to_json(),
            "place": {"source": self.place.source, "arguments": _lists(self.place.arguments)},
            "inductive": self.inductive,
            **({} if self.study is None else {"study": self.study}),
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Planned:
        """What `to_json` was made from."""
        kind: Kind = values["method"]["kind"]
        config, analytic = values["method"]["config"], values["method"].get("analytic")
        method = Method(
            kind,
            None if config is None else settings_from_json(VariationalConfig, config, "A planned run"),
            values["method"].get("backbone"),
            None if analytic is None else settings_from_json(AnalyticConfig, analytic, "A planned run"),
        )
        return cls(
            method,
            Place(values["place"]["source"], _tuples(values["place"]["arguments"])),
            values["inductive"],
            values.get("study"),
        )

    @cached_property
    def key(self) -> str:
        """Two runs with one key have the same numbers, as far as devices and the precision of products do not change them."""
        return hashlib.sha256(canonical(self.to_json()).encode()).hexdigest()

    @property
    def updates(self) -> int:
        """How many it makes."""
        environments = self.place.environments
        return self.method.updates(environments if self.study is None else STUDIES[self.study].lessons(environments))

    @property
    def cost(self) -> float:
        """Roughly how long it takes, compared with others."""
        config = self.method.config
        if self.method.analytic is not None:
            return 100.0 * self.place.environments
        return 0.0 if config is None else self.updates * (1 + config.features / 1024)

    def carry_out(self, *, device: str = "cpu", progress: Progress = None) -> Result:
        """Do it."""
        import torch

        computed_with = {"device": _device_name(device), "torch": str(torch.__version__)}
        if self.study is not None:
            scenario, began = self.place.scenario(inductive=self.inductive), time.perf_counter()
            numbers = STUDIES[self.study].measure(self.method.config or self.method.analytic, scenario, device, progress)
            return Result({}, {}, {}, [time.perf_counter() - began], 0, computed_with, numbers)
        measured = measure(self.method, self.place.scenario(inductive=self.inductive), device=device, progress=progress)
        return Result(
            accuracy=measured.run.accuracy,
            own=measured.own,
            recognised=measured.run.inference_accuracy,
            seconds=measured.run.seconds,
            bytes=measured.bytes,
            computed_with=computed_with,
            numbers={"calibration": measured.calibration, "coverage": measured.coverage} if measured.calibration else {},
        )


@dataclass(frozen=True, eq=False)
class Result:
    """The numbers of one run, with the weights of its last step."""

    accuracy: Mapping[Protocol, AccuracyMatrix]
    own: Mapping[str, float]
    """Environment → accuracy of its snapshot's own f."""
    recognised: Mapping[str, float]
    """"transductive" and "inductive" → fraction of rows whose environment was recognised."""
    seconds: Sequence[float]
    """Learning time of each stage."""
    bytes: int
    """What the learner holds at the end."""
    computed_with: Mapping[str, str]
    numbers: Mapping[str, Any] = field(default_factory=dict)
    """What a study found; of a run that was scored, what stands beside its accuracies."""

    def to_json(self) -> dict[str, Any]:
        """Plain values; null where nothing was scored."""
        return {
            "selection": "last step",
            "accuracy": {
                str(protocol): {
                    "environments": list(matrix.environments),
                    "values": [[None if np.isnan(value) else float(value) for value in row] for row in matrix.values],
                }
                for protocol, matrix in self.accuracy.items()
            },
            "own": dict(self.own),
            "recognised": dict(self.recognised),
            "seconds": [round(seconds, 2) for seconds in self.seconds],
            "bytes": self.bytes,
            "computed_with": dict(self.computed_with),
            **({"numbers": dict(self.numbers)} if self.numbers else {}),
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Result:
        """What `to_json` was made from."""
        accuracy = {}
        for name, matrix in values["accuracy"].items():
            rows = [[np.nan if value is None else value for value in row] for row in matrix["values"]]
            accuracy[_protocol(name)] = AccuracyMatrix(tuple(matrix["environments"]), np.array(rows))
        return cls(
            accuracy,
            values["own"],
            values["recognised"],
            values["seconds"],
            values["bytes"],
            values["computed_with"],
            values.get("numbers", {}),
        )


Results: TypeAlias = Mapping[str, Result]
"""Key → numbers."""


def canonical(value: Any) -> str:
    """One text for equal values."""
    return json.dumps(value, sort_keys=True, ensure_ascii=True, separators=(",", ":"), allow_nan=False)


class Store:
    """The results of one table: a JSON file with one run a line."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> dict[str, dict[str, Any]]:
        """Key → run and result; those of another revision are left out."""
        if not self.path.exists():
            return {}
        try:
            stored = json.loads(self.path.read_text(encoding="utf-8"))
            runs = {str(entry["key"]): entry for entry in stored["runs"]}
            return {key: entry for key, entry in runs.items() if entry["run"]["revision"] == REVISION}
        except (ValueError, KeyError, TypeError) as error:
            raise self._damaged(error) from error

    def results(self) -> dict[str, Result]:
        """Key → numbers."""
        entries = self.read()
        try:
            return {key: Result.from_json(entry["result"]) for key, entry in entries.items()}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise self._damaged(error) from error

    def add(self, entries: Mapping[str, Mapping[str, Any]]) -> None:
        """Keep more runs, beside those that another process may have written meanwhile."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with locked(self.path):
            merged = {**self.read(), **entries}
            lines = ",\n".join(json.dumps(merged[key], ensure_ascii=False, allow_nan=False) for key in sorted(merged))
            write_atomically(self.path, f'{{"runs": [\n{lines}\n]}}\n')

    def _damaged(self, error: Exception) -> InputError:
        return InputError(
            f"{self.path} is not a file of results ({type(error).__name__}: {error}). Restore it, or remove it to begin anew."
        )


def entry(planned: Planned, result: Result) -> dict[str, Any]:
    """A line of the store."""
    return {"key": planned.key, "run": planned.to_json(), "result": result.to_json()}


def put_section(path: Path, name: str, text: str) -> None:
    """Replace what stands between the markers of `name`, or append it; the rest of the file is a person's."""
    begin, end = f"<!-- begin {name} (written by `perdure reproduce {name}`) -->", f"<!-- end {name} -->"
    section = f"{begin}\n{text.strip()}\n{end}"
    path.parent.mkdir(parents=True, exist_ok=True)
    with locked(path):
        before = path.read_text(encoding="utf-8") if path.exists() else "# Ledger\n"
        # No section holds the beginning of another: where a person lost an end, what follows is not swallowed.
        pattern = re.compile(f"{re.escape(begin)}(?:(?!<!-- begin ).)*?{re.escape(end)}", re.DOTALL)
        there = pattern.search(before)
        after = pattern.sub(lambda _: section, before, count=1) if there else f"{before.rstrip()}\n\n{section}\n"
        if after != before:
            write_atomically(path, after)


def write_atomically(path: Path, text: str) -> None:
    """The whole file or none of it."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """One process at a time, of those that write `path`. The lock's file is there only as long as it is held."""
    lock, held = path.parent / f".{path.name}.lock", False
    while not held:
        with open(lock, "w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            with suppress(FileNotFoundError):  # removed by the last holder, and perhaps made anew by another process
                held = os.path.samestat(os.fstat(file.fileno()), lock.stat())
            if held:
                try:
                    yield
                finally:
                    lock.unlink()


def _protocol(name: str) -> Protocol:
    for environment in ("given", "unknown"):
        for queries in ("transductive", "inductive"):
            protocol = Protocol(environment, queries)
            if str(protocol) == name:
                return protocol
    raise KeyError(name)


def _device_name(device: str) -> str:
    import torch

    rounded = "" if torch.get_float32_matmul_precision() == "highest" else f", {torch.get_float32_matmul_precision()} precision"
    return (torch.cuda.get_device_name(device) if device.startswith("cuda") else device) + rounded


def _lists(arguments: Sequence[Argument]) -> list[Any]:
    return [list(argument) if isinstance(argument, tuple) else argument for argument in arguments]


def _tuples(arguments: Sequence[Any]) -> tuple[Argument, ...]:
    return tuple(tuple(argument) if isinstance(argument, list) else argument for argument in arguments)
