"""Finds the files of `reproduce/`, runs what is missing in one pool, and writes results, pictures and the ledger.

python -m perdure.experiments.reproduce NAME [NAME ...] [--quick] [--show] [--workers N] [--device cpu] [--data DIR]
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import signal
import sys
import typing
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perdure.errors import InputError, PerdureError
from perdure.experiments.ledger import Result, Results, Store, entry, put_section
from perdure.experiments.pool import Failure, Task, execute
from perdure.scenarios.frozen import data_file

FOLDER = "reproduce"


class Experiment(typing.Protocol):
    """What a file of `reproduce/` defines twice: `FULL`, the budget of the ledger, and `QUICK`, minutes on two cores."""

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
    missing: int
    """Runs that are not there."""


class RunsFailed(PerdureError):
    """Some runs raised; the others are kept."""


def reproduce(
    names: str | Sequence[str],
    *,
    quick: bool = False,
    workers: int | None = None,
    device: str = "cpu",
    data: str | Path | None = None,
    progress: bool | None = None,
    show: bool = False,
) -> list[Reproduced]:
    """Run what is missing of these tables and figures, all in one pool, and write them.

    Results stand in `reproduce/results/NAME.json`, and under `reproduce/results/quick/` if `quick`; a run that stands in any
    of these files is not done again. `show` runs nothing and writes what is there. `progress` as for `learn`, but without
    function.
    """
    folder = find_folder()
    experiments = [load(folder, name, quick=quick) for name in dict.fromkeys([names] if isinstance(names, str) else names)]
    if data is not None:
        os.environ["PERDURE_DATA"] = str(data)  # the workers read it too
    out = folder / "results" / "quick" if quick else folder / "results"
    stores = {experiment.name: Store(out / f"{experiment.name}.json") for experiment in experiments}
    _share(folder, experiments, stores)
    failures: list[Failure] = []
    try:
        if not show:
            failures = _run_missing(experiments, stores, workers or os.cpu_count() or 1, device, progress)
    finally:
        reproduced = [_write(folder, experiment, stores[experiment.name], quick=quick) for experiment in experiments]
    if failures:
        shown = "\n".join(f"{failure.task.label}:\n{failure.why}" for failure in failures[:3])
        raise RunsFailed(f"{len(failures)} runs failed; the others are kept, and the same command tries these again.\n{shown}")
    return reproduced


def names(folder: Path) -> list[str]:
    """What can be reproduced."""
    return sorted(path.stem for path in folder.glob("*.py"))


def find_folder() -> Path:
    """The checkout's `reproduce/`: from here upwards, or beside an editable install."""
    for place in (*[Path.cwd(), *Path.cwd().parents], Path(__file__).resolve().parents[3]):
        if any((place / FOLDER).glob("*.py")) and (place / "src" / "perdure").is_dir():
            return place / FOLDER
    raise InputError(f"There is no folder `{FOLDER}` from {Path.cwd()} upwards. Run this inside a checkout of perdure.")


def load(folder: Path, name: str, *, quick: bool) -> Experiment:
    """The configuration that a file of `reproduce/` states."""
    path = folder / f"{name}.py"
    if name not in names(folder):
        raise InputError(f"Nothing is called {name!r}. There are: {', '.join(names(folder))}.")
    spec = importlib.util.spec_from_file_location(f"reproduce_{name.replace('-', '_')}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    experiment: Experiment = module.QUICK if quick else module.FULL
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
    experiments: Sequence[Experiment], stores: dict[str, Store], workers: int, device: str, progress: bool | None
) -> list[Failure]:
    missing: dict[str, tuple[int, Task]] = {}
    wanted_by: dict[str, list[Store]] = {}
    for experiment in experiments:
        done = stores[experiment.name].read()
        for tier, task in experiment.tasks():
            key = task.planned.key
            if key not in done:
                wanted_by.setdefault(key, []).append(stores[experiment.name])
                if key not in missing or tier < missing[key][0]:
                    missing[key] = (tier, task)
    for file in sorted({task.planned.place.file for _, task in missing.values()}):
        data_file(file)  # say that it is absent now, not from every run
    # The longest first, so that none is left alone at the end; within what matters most.
    order = sorted(missing.values(), key=lambda each: (each[0], -each[1].planned.cost))

    def finished(task: Task, result: Result) -> None:
        for store in wanted_by[task.planned.key]:
            store.add({task.planned.key: entry(task.planned, result)})

    return execute([task for _, task in order], workers=workers, device=device, finished=finished, progress=progress)


def _write(folder: Path, experiment: Experiment, store: Store, *, quick: bool) -> Reproduced:
    results = store.results()
    picture = store.path.with_suffix(".png")
    keys = [task.planned.key for _, task in experiment.tasks()]
    missing = sum(key not in results for key in keys)
    if missing < len(keys):
        experiment.picture(results, picture)
        if not quick:
            put_section(folder.parent / "docs" / "ledger.md", experiment.name, experiment.markdown(results))
    return Reproduced(experiment.name, experiment.text(results), store.path, picture, missing)


def main(arguments: Sequence[str] | None = None) -> int:
    """Without the command line of the package: for a plain checkout."""
    parser = argparse.ArgumentParser(prog="python -m perdure.experiments.reproduce", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="a file of reproduce/; all of them if none is named")
    parser.add_argument("--quick", action="store_true", help="fewer pairs, seeds and steps: minutes on two cores")
    parser.add_argument("--show", action="store_true", help="run nothing; print and write what is there")
    parser.add_argument("--workers", type=int, help="processes of one thread each (as many as there are cores)")
    parser.add_argument("--device", default="cpu", help="cpu, cuda (cpu)")
    parser.add_argument("--data", type=Path, help="the folder of the features (PERDURE_DATA, else ../shared/data)")
    args = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # `timeout` and schedulers stop as Ctrl-C does
    try:
        done = reproduce(
            args.names or names(find_folder()),
            quick=args.quick,
            workers=args.workers,
            device=args.device,
            data=args.data,
            show=args.show,
        )
    except KeyboardInterrupt:
        print("stopped; finished runs are kept, and the same command goes on.", file=sys.stderr)
        return 130
    except PerdureError as error:
        print(error, file=sys.stderr)
        return 2
    print("\n\n".join(f"{each.text}\n\nresults: {each.results}\npicture: {each.picture}" for each in done))
    return 0


if __name__ == "__main__":
    sys.exit(main())
