"""Finds the files of `reproduce/`, runs what is missing in one pool, and writes results, pictures and the ledger."""

from __future__ import annotations

import ast
import importlib.util
import os
import typing
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

from perdure.errors import InputError, PerdureError
from perdure.experiments.ledger import Result, Results, Store, entry, put_section
from perdure.experiments.pool import Failure, Precision, Task, environment_variables, execute

FOLDER = "reproduce"
Budget: TypeAlias = Literal["ledger", "quick", "paper"]
"""What the ledger shows; minutes on two cores; the paper's own, which is the ledger's unless that made fewer steps."""


class Experiment(typing.Protocol):
    """What a file of `reproduce/` defines for each budget: `FULL`, `QUICK` and, where it is another than `FULL`, `PAPER`."""

    @property
    def name(self) -> str:
        """That of the file."""

    def tasks(self) -> list[tuple[int, Task]]:
        """Every run, with its tier: the lower, the sooner."""

    def text(self, results: Results) -> str:
        """For a terminal."""

    def markdown(self, results: Results) -> str:
        """For the ledger."""

    def picture(self, results: Results, path: Path) -> None:
        """Draw it."""


@dataclass(frozen=True)
class Reproduced:
    """What `reproduce` did for one name."""

    name: str
    text: str
    """The table beside the paper's numbers."""
    results: Path
    picture: Path
    runs: int
    """How many the table has."""
    missing: int
    """How many of them are not there."""


class RunsFailed(PerdureError):
    """Some runs raised; the others are kept. Its cause is the first of them, as its process told it."""


def reproduce(
    names: str | Sequence[str],
    *,
    budget: Budget = "ledger",
    workers: int | None = None,
    device: str = "cpu",
    precision: Precision = "highest",
    data: str | Path | None = None,
    progress: bool | None = None,
    show: bool = False,
    only: str | None = None,
) -> list[Reproduced]:
    """Run what is missing of these tables and figures, all in one pool, and write them.

    Results stand in `reproduce/results/NAME.json`, those of another budget than the ledger's in a folder of its name beside it; a
    run that stands in any of these files is not done again. `show` runs nothing; what is there is drawn
    and, at the ledger's budget, its section of the ledger written, as after any run. `only`: of the missing runs, those whose
    label contains it, such as "joint training" or "seed 1". `precision`: of matrix products, as torch names it. `progress` as
    for `learn`, but without function.
    """
    folder = find_folder()
    experiments = [load(folder, name, budget) for name in dict.fromkeys([names] if isinstance(names, str) else names)]
    out = folder / "results" if budget == "ledger" else folder / "results" / budget
    stores = {experiment.name: Store(out / f"{experiment.name}.json") for experiment in experiments}
    _share(folder, experiments, stores)
    failures: list[Failure] = []
    try:
        if not show:
            with environment_variables({} if data is None else {"PERDURE_DATA": str(data)}):  # the workers read it too
                failures = _run_missing(
                    experiments, stores, only or "", workers or os.cpu_count() or 1, device, precision, progress
                )
    finally:
        reproduced = [_write(folder, experiment, stores[experiment.name], budget) for experiment in experiments]
    if failures:
        shown = "".join(f"\n  {failure.task.label}: {failure.why.strip().splitlines()[-1]}" for failure in failures)
        raise RunsFailed(
            f"{len(failures)} run{'s' * (len(failures) > 1)} failed; what is done is kept, and the same call tries again:{shown}"
        ) from RuntimeError(failures[0].why)
    return reproduced


def names(folder: Path) -> list[str]:
    """What can be reproduced."""
    return sorted(path.stem for path in folder.glob("*.py"))


def about(folder: Path, name: str) -> str:
    """The first line of what its file says of itself."""
    text = ast.get_docstring(ast.parse((folder / f"{name}.py").read_text(encoding="utf-8"))) or ""
    return text.partition("\n")[0]


def find_folder() -> Path:
    """The checkout's `reproduce/`: from here upwards, or beside an editable install."""
    for place in (*[Path.cwd(), *Path.cwd().parents], Path(__file__).resolve().parents[3]):
        if any((place / FOLDER).glob("*.py")) and (place / "src" / "perdure").is_dir():
            return place / FOLDER
    raise InputError(f"There is no folder `{FOLDER}` from {Path.cwd()} upwards. Run this inside a checkout of perdure.")


def load(folder: Path, name: str, budget: Budget = "ledger") -> Experiment:
    """The configuration that a file of `reproduce/` states."""
    path = folder / f"{name}.py"
    if name not in names(folder):
        raise InputError(f"Nothing is called {name!r}. There are: {', '.join(names(folder))}.")
    spec = importlib.util.spec_from_file_location(f"reproduce_{name.replace('-', '_')}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    stated = {"PAPER": module.FULL, **vars(module)}
    experiment: Experiment = stated[{"ledger": "FULL", "quick": "QUICK", "paper": "PAPER"}[budget]]
    if experiment.name != name:
        raise InputError(f"{path} states the name {experiment.name!r}; it must be {name!r}.")
    return experiment


def _share(folder: Path, experiments: Sequence[Experiment], stores: dict[str, Store]) -> None:
    """Copy runs that another table has done already."""
    known: dict[str, dict[str, Any]] = {}
    for path in sorted((folder / "results").rglob("*.json")):
        known |= Store(path).read()
    for experiment in experiments:
        store = stores[experiment.name]
        own = store.read()
        wanted = {task.planned.key for _, task in experiment.tasks()}
        found = {key: known[key] for key in sorted(wanted) if key in known and key not in own}
        if found:
            store.add(found)


def _run_missing(
    experiments: Sequence[Experiment],
    stores: dict[str, Store],
    only: str,
    workers: int,
    device: str,
    precision: Precision,
    progress: bool | None,
) -> list[Failure]:
    labels = [task.label for experiment in experiments for _, task in experiment.tasks()]
    if not any(only in label for label in labels):
        raise InputError(f"No run is called {only!r}. They are called like {labels[0]!r} and {labels[-1]!r}.")
    missing: dict[str, tuple[int, Task]] = {}
    wanted_by: dict[str, list[Store]] = {}
    for experiment in experiments:
        done = stores[experiment.name].read()
        for tier, task in experiment.tasks():
            key = task.planned.key
            if key not in done and only in task.label:
                wanted_by.setdefault(key, []).append(stores[experiment.name])
                if key not in missing or tier < missing[key][0]:
                    missing[key] = (tier, task)
    for place in {task.planned.place.source: task.planned.place for _, task in missing.values()}.values():
        place.data()  # say that they are absent now, not from every run
    if missing:
        _check_device(device)
    # The longest first, so that none is left alone at the end; within what matters most.
    order = sorted(missing.values(), key=lambda each: (each[0], -each[1].planned.cost))

    def finished(task: Task, result: Result) -> None:
        for store in wanted_by[task.planned.key]:
            store.add({task.planned.key: entry(task.planned, result)})

    tasks = [task for _, task in order]
    return execute(tasks, workers=workers, device=device, precision=precision, finished=finished, progress=progress)


def _check_device(device: str) -> None:
    import torch

    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise InputError(f"The device {device!r} cannot be used here: {str(error).splitlines()[0]}") from error


def _write(folder: Path, experiment: Experiment, store: Store, budget: Budget) -> Reproduced:
    results = store.results()
    picture = store.path.with_suffix(".png")
    keys = [task.planned.key for _, task in experiment.tasks()]
    missing = sum(key not in results for key in keys)
    if missing < len(keys):
        experiment.picture(results, picture)
        if budget == "ledger":
            put_section(folder.parent / "docs" / "ledger.md", experiment.name, experiment.markdown(results))
    return Reproduced(experiment.name, experiment.text(results), store.path, picture, len(keys), missing)
