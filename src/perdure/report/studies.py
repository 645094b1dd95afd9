"""Figures that need more than accuracies: the runs they need, and their numbers in words, grids and a picture."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from perdure.experiments.ledger import Place, Planned, Results
from perdure.experiments.methods import Method, Setting
from perdure.experiments.pool import Task
from perdure.report.tables import aligned_row, markdown_row, mean_and_spread

Numbers: TypeAlias = Mapping[str, Any]
"""What a study found, as JSON holds it."""


class Grid(NamedTuple):
    """Numbers in rows and columns, under one sentence that says what they are."""

    says: str
    header: Sequence[str]
    body: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Case:
    """A scenario that is studied."""

    label: str
    place: Place


@dataclass(frozen=True)
class Found:
    """What is there of a case: the numbers of each seed, at least of one."""

    case: Case
    seeds: Mapping[int, Numbers]

    @property
    def shown(self) -> Numbers:
        """Those of the first seed, for what cannot be averaged: clouds of points."""
        return self.seeds[min(self.seeds)]


@dataclass(frozen=True)
class Figure:
    """Everything that a file of `reproduce/` states that needs more than accuracies."""

    name: str
    title: str
    study: str
    """Its name in `STUDIES`."""
    method: Method
    setting: Setting
    cases: Sequence[Case]
    seeds: Sequence[int]
    grids: Callable[[Sequence[Found]], Sequence[Grid]]
    draw: Callable[[Sequence[Found], Path], None]
    notes: Sequence[str] = ()
    """What a reader must know: the protocol of each number, and how far it can be compared with the paper."""

    def planned(self, case: Case, seed: int) -> Planned:
        """The run of a case."""
        return Planned(self.method.at(self.setting, seed), case.place, study=self.study)

    def tasks(self) -> list[tuple[int, Task]]:
        """Every run: first the first seed of all cases, then the others."""
        return [
            (number, Task(self.planned(case, seed), f"{self.study}, {case.label}, seed {seed}"))
            for number, seed in enumerate(self.seeds)
            for case in self.cases
        ]

    def found(self, results: Results) -> list[Found]:
        """The cases that are there."""
        found = []
        for case in self.cases:
            there = {seed: results[key].numbers for seed in self.seeds if (key := self.planned(case, seed).key) in results}
            if there:
                found.append(Found(case, there))
        return found

    def picture(self, results: Results, path: Path) -> None:
        """Draw it."""
        self.draw(self.found(results), path)

    def text(self, results: Results) -> str:
        """For a terminal."""
        return text_of([self.title, *self._conditions(results)], self.grids(self.found(results)))

    def markdown(self, results: Results) -> str:
        """For the ledger."""
        return markdown_of(self.name, [self.title, *self._conditions(results)], self.grids(self.found(results)))

    def _conditions(self, results: Results) -> list[str]:
        """Under what conditions these numbers stand."""
        tasks = [task for _, task in self.tasks()]
        there = [results[task.planned.key] for task in tasks if task.planned.key in results]
        minutes = sum(sum(result.seconds) for result in there) / 60
        devices = sorted({result.computed_with["device"] for result in there})
        steps = f"{self.setting.warm_up} + {self.setting.steps:,} steps an environment (warm-up + end to end)"
        return [
            f"{steps}; seeds {', '.join(map(str, self.seeds))}; measured at the last step, nothing selected",
            *self.notes,
            f"{len(there)} of {len(tasks)} runs are there"
            + (f"; {minutes:.0f} minutes of one process, on {', '.join(devices)}" if there else ""),
        ]


def text_of(said: Sequence[str], grids: Iterable[Grid]) -> str:
    """Title and conditions, then every grid in columns."""
    lines = list(said)
    for grid in grids:
        widths = [max(len(row[i]) for row in (grid.header, *grid.body)) for i in range(len(grid.header))]
        lines += ["", grid.says, *("  " + aligned_row(row, widths) for row in (grid.header, *grid.body))]
    return "\n".join(lines)


def markdown_of(name: str, said: Sequence[str], grids: Iterable[Grid]) -> str:
    """A section for the title, a list of the conditions, a table for every grid, and the command."""
    title, *conditions = said
    lines = [f"## {title}", "", *(f"- {line}" for line in conditions), ""]
    for grid in grids:
        lines += [f"**{grid.says}**", "", markdown_row(grid.header)]
        lines += [markdown_row(["---"] + ["--:"] * (len(grid.header) - 1)), *map(markdown_row, grid.body), ""]
    command = f"Every run: `reproduce/results/{name}.json`; the picture stands beside it. Command: `perdure reproduce {name}`."
    return "\n".join([*lines, command])


def percent(values: Sequence[float]) -> str:
    """Mean over seeds in %, with its spread if there are several."""
    return mean_and_spread([100 * value for value in values])


# -- features ----------------------------------------------------------------------------------------------------------------


def feature_grids(found: Sequence[Found]) -> Iterator[Grid]:
    """Is h one cloud of both streams, and can generated h stand in for real ones?"""
    for each in found:
        runs = list(each.seeds.values())
        measures = ("neighbour accuracy", "same stream")
        columns = [f"{measure} {when}" for measure in measures for when in ("before", "after")]
        names = [environment["environment"] for environment in each.shown["environments"]]
        values = [
            [[run["environments"][i][column] for run in runs] for column in columns] for i in range(len(names))
        ]  # environment, column, seed
        means = [list(np.mean([row[c] for row in values], axis=0)) for c in range(len(columns))]
        yield Grid(
            f"{each.case.label}: the two streams before and after the inference module, %",
            ["", *columns],
            [[name, *map(percent, row)] for name, row in zip([*names, "mean"], [*values, means], strict=True)],
        )
        steps = each.shown["solver on real features"]["steps"]
        yield Grid(
            f"{each.case.label}: accuracy of a new solver over all classes, on real features, %; mean over environments",
            ["trained on; scored on; after steps", *map(str, steps)],
            [
                [f"{trained}; {scored}", *(percent([run[key][scored][i] for run in runs]) for i in range(len(steps)))]
                for trained, key in SOLVERS.items()
                for scored in ("support", "query")
            ],
        )


SOLVERS = {"real support": "solver on real features", "generated": "solver on generated features"}


# -- alignment ---------------------------------------------------------------------------------------------------------------


def alignment_grids(found: Sequence[Found]) -> Iterator[Grid]:
    """How well the streams lie together as the classes become more."""
    columns = ("neighbour accuracy", "same stream", "solver's accuracy")
    for each in found:
        runs = list(each.seeds.values())
        yield Grid(
            f"{each.case.label}: features of all environments learned so far, %",
            ["after", *columns],
            [
                [stage["environment"], *(percent([run["stages"][i][column] for run in runs]) for column in columns)]
                for i, stage in enumerate(each.shown["stages"])
            ],
        )


# -- augmentation ------------------------------------------------------------------------------------------------------------


def augmentation_grids(quoted: Mapping[tuple[str, str], str]) -> Callable[[Sequence[Found]], Iterator[Grid]]:
    """Accuracy on the second query domain without and with replay of the first; `quoted` is what the paper says of a pair."""

    def grids(found: Sequence[Found]) -> Iterator[Grid]:
        rows, overlaps = [], dict[tuple[str, ...], Numbers]()
        for each in found:
            runs = list(each.seeds.values())
            for i, second in enumerate(each.shown["second"]):
                last = {kind: [run["second"][i][kind]["accuracy"][-1] for run in runs] for kind in KINDS}
                gained = [b - a for a, b in zip(*last.values(), strict=True)]
                pair = each.shown["first"], second["environment"]
                rows.append(
                    [*pair, *(percent(last[kind]) for kind in KINDS), percent(gained), quoted.get(pair, "–"), str(len(runs))]
                )
            overlaps |= {tuple(each_pair["domains"]): each_pair for each_pair in each.shown["relation"]}
        yield Grid(
            "Accuracy on the second query domain, %: environment given, transductive",
            ["replayed", "learned", *KINDS, "gained", "the paper", "seeds"],
            rows,
        )
        yield Grid(
            "How apart two domains are before any learning: rows whose nearest neighbour is of their own domain, "
            "%; 100 is apart, about 50 is one cloud",
            ["domains", "the first class", "all classes"],
            [
                ["–".join(domains), *(f"{100 * pair[which]:.0f}" for which in ("first class", "all classes"))]
                for domains, pair in sorted(overlaps.items())
            ],
        )

    return grids


KINDS = ("without replay", "with replay")


# -- bound -------------------------------------------------------------------------------------------------------------------

BOTH = {"held out": " held out", "on these rows": ""}
"""How a term is estimated, and what its key ends with."""


def bound_grids(found: Sequence[Found]) -> Iterator[Grid]:
    """Every term of the theorem beside the error it bounds, then both sides of the inequality after each environment."""
    for each in found:
        runs = list(each.seeds.values())
        terms = [_terms_at_the_end(run) for run in runs]
        columns = list(terms[0][0])
        names = [environment["environment"] for environment in each.shown["environments"]]
        shown = [nats if column == KL else percent for column in columns]
        values = [[[run[i][column] for run in terms] for column in columns] for i in range(len(names))]
        means = [list(np.mean([row[c] for row in values], axis=0)) for c in range(len(columns))]
        yield Grid(
            f"{each.case.label}: every term after the last environment, in points: 100 is every row wrong, the discrepancy goes "
            "to 200; the KL is in nats, and that of the last environment in no sum",
            ["", *columns],
            [
                [name, *(as_text(cell) for as_text, cell in zip(shown, row, strict=True))]
                for name, row in zip([*names, "mean"], [*values, means], strict=True)
            ],
        )
        sides = [[[_side(run, i, side) for run in runs] for side in SIDES] for i in range(len(names))]
        verdicts = [[verdict(float(np.mean(left)), float(np.mean(right))) for right in rest] for left, *rest in sides]
        said = "; ".join(f"{how} it {_counted([row[i] for row in verdicts], len(names))}" for i, how in enumerate(BOTH))
        yield Grid(
            f"{each.case.label}: both sides of the inequality, over the number of environments so far, in points; {said}",
            ["after", "left: query error", *(cell for how in BOTH for cell in (f"right, {how}", "so the bound is"))],
            [
                [name, percent(left), *(cell for right, said in zip(rest, row, strict=True) for cell in (percent(right), said))]
                for name, (left, *rest), row in zip(names, sides, verdicts, strict=True)
            ],
        )


def verdict(left: float, right: float) -> str:
    """What the right side says of the left one, both of one environment on average."""
    if right < left:
        return "broken"  # its estimates are too low: the theorem itself holds
    return "vacuous" if right >= 1 else "informative"


def _counted(verdicts: Sequence[str], stages: int) -> str:
    counted = [f"{kind} after {verdicts.count(kind)}" for kind in ("vacuous", "broken", "informative") if kind in verdicts]
    return f"is {', '.join(counted)} of {stages}"


def nats(values: Sequence[float]) -> str:
    """Mean over seeds, with its spread if there are several; small, so with more places."""
    return f"{np.mean(values):.4f}" + (f"±{np.std(values, ddof=1):.4f}" if len(values) > 1 else "")


KL = "KL of replay"
SIDES = ("left side", *(f"right side{end}" for end in BOTH.values()))


def _side(run: Numbers, stage: int, side: str) -> float:
    return float(run["stages"][stage][side]) / (stage + 1)


def _terms_at_the_end(run: Numbers) -> list[dict[str, float]]:
    """Environment by environment, by the name of a column."""
    last = run["stages"][-1]
    return [
        {
            "true query error": last["query error"][i],
            "support error": last["support error"][i],
            "on generated": last["error on generated"][i],
            KL: lasting["divergence"],
            **{f"discrepancy, {how}": lasting[f"discrepancy{end}"] for how, end in BOTH.items()},
            **{f"C* (oracle), {how}": last[f"optimal error{end}"][i] for how, end in BOTH.items()},
        }
        for i, lasting in enumerate(run["environments"])
    ]
