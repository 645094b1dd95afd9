"""A table of the paper: its rows and columns, the runs they need, and its text beside the paper's numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias

import numpy as np

from perdure.errors import InputError
from perdure.experiments.ledger import Place, Planned, Results
from perdure.experiments.methods import Method, Setting
from perdure.experiments.pool import Task
from perdure.experiments.runner import PROTOCOLS, Protocol
from perdure.metrics import AccuracyMatrix

Figure: TypeAlias = Literal["average", "first task"]
Values: TypeAlias = "dict[int, float]"
"""Seed → per cent."""
PAPERS_RATE = 1e-4
"""Adam's, for the inference module."""
ANSWERED = 0.8
"""Of the rows, those that the learner is surest of: how many of them are wrong stands beside the calibration error."""
SUREST = f"error, surest {100 * ANSWERED:.0f} %"


@dataclass(frozen=True)
class Column:
    """A scenario and what is read off its accuracy matrix."""

    label: str
    place: Place
    setting: Setting
    figure: Figure = "average"
    seeds: int | None = None
    """At most so many seeds here; `None`: as many as the row has."""


@dataclass(frozen=True)
class Row:
    """A method, and what the paper prints for it."""

    label: str
    method: Method
    seeds: Sequence[int] = (0,)
    inductive_seeds: Sequence[int] = ()
    """Seeds of the runs that keep half of each query set aside."""
    paper: str = ""
    """The paper's numbers, a word for each column and then for each mean."""
    tier: int = 0
    """What is run first: 0, then 1, and so on. Seeds after the first come one later, inductive runs two."""


class Cell(NamedTuple):
    """A column of a row: one value a seed."""

    values: Values
    planned: int

    def __str__(self) -> str:
        return mean_and_spread(list(self.values.values()))


@dataclass(frozen=True)
class Table:
    """Everything that one file of `reproduce/` states."""

    name: str
    title: str
    columns: Sequence[Column]
    rows: Sequence[Row]
    draw: Callable[[Table, Results, Path], None]
    means: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """Label → which columns it averages."""
    notes: Sequence[str] = ()
    """What a reader must know to compare with the paper."""

    def __post_init__(self) -> None:
        for row in self.rows:
            if row.paper and len(row.paper.split()) != len(self.columns) + len(self.means):
                raise InputError(
                    f"Row {row.label!r} of {self.name} quotes {len(row.paper.split())} numbers of the paper for "
                    f"{len(self.columns)} columns and {len(self.means)} means."
                )

    # -- the runs ---------------------------------------------------------------------------------------------------------

    def planned(self, row: Row, column: Column, seed: int, *, inductive: bool = False) -> Planned:
        """The run of a cell."""
        return Planned(row.method.at(column.setting, seed), column.place, inductive)

    def tasks(self) -> list[tuple[int, Task]]:
        """Every run with its tier, each once, the most important first."""
        tasks: dict[str, tuple[int, Task]] = {}
        for row in self.rows:
            for column in self.columns:
                for inductive, seeds in ((False, row.seeds), (True, row.inductive_seeds)):
                    for number, seed in enumerate(_for_column(seeds, column)):
                        run = self.planned(row, column, seed, inductive=inductive)
                        tier = row.tier + (2 if inductive else 1 if number else 0)
                        place = " ".join(
                            argument if isinstance(argument, str) else ",".join(argument) for argument in run.place.arguments
                        )
                        label = f"{row.label}, {run.place.source} {place}".strip() + f", seed {seed}" * (
                            run.method.config is not None
                        )
                        task = Task(run, label + ", inductive" * inductive)
                        if run.key not in tasks or tier < tasks[run.key][0]:
                            tasks[run.key] = (tier, task)
        return sorted(tasks.values(), key=lambda each: each[0])

    # -- the numbers ------------------------------------------------------------------------------------------------------

    def cell(self, results: Results, row: Row, column: Column, protocol: Protocol) -> Cell:
        """What is known of a cell so far."""
        inductive = protocol.queries == "inductive"
        seeds = _for_column(row.inductive_seeds if inductive else row.seeds, column)
        values = {}
        for seed in seeds:
            result = results.get(self.planned(row, column, seed, inductive=inductive).key)
            if result is not None and protocol in result.accuracy:
                values[seed] = 100 * _figure(in_order_of(column, row.method, result.accuracy[protocol]), column.figure)
        return Cell(values, len(seeds))

    def cells(self, results: Results, row: Row, protocol: Protocol) -> list[Cell]:
        """The columns of a row and its means, over the seeds that all averaged columns have."""
        cells = [self.cell(results, row, column, protocol) for column in self.columns]
        for columns in self.means.values():
            averaged = [cells[i] for i in columns]
            seeds = set.intersection(*(set(cell.values) for cell in averaged))
            means = {seed: float(np.mean([cell.values[seed] for cell in averaged])) for seed in sorted(seeds)}
            cells.append(Cell(means, max(cell.planned for cell in averaged)))
        return cells

    def remarks(self, results: Results, row: Row, protocol: Protocol) -> dict[str, str]:
        """What the accuracies leave out: forgetting, the snapshots' own f, recognition, and what confidence is worth.

        Each is the mean over the columns that are there, each counting once, of the mean over its seeds.
        """
        given = Protocol("given", "transductive")
        of_columns: dict[str, list[float]] = {"forgetting": [], "own f": [], "recognised": [], "ECE": [], SUREST: []}
        inductive = protocol.queries == "inductive"
        for column in self.columns:
            seeds = _for_column(row.inductive_seeds if inductive else row.seeds, column)
            keys = [self.planned(row, column, seed, inductive=inductive).key for seed in seeds]
            found = [results[key] for key in keys if key in results]
            of_seeds = {
                "forgetting": [
                    result.accuracy[given].forgetting
                    for result in found
                    if given in result.accuracy and row.method.kind == "continual"
                ],
                "own f": [float(np.mean(list(result.own.values()))) for result in found if result.own],
                "recognised": [result.recognised[protocol.queries] for result in found if protocol.queries in result.recognised],
                "ECE": [result.numbers["calibration"][str(protocol)] for result in found if "calibration" in result.numbers],
                SUREST: [
                    curve["error"][curve["coverage"].index(ANSWERED)]
                    for result in found
                    if (curve := result.numbers.get("coverage", {}).get(str(protocol)))  # older results have none
                ],
            }
            for name, values in of_seeds.items():
                of_columns[name] += [float(np.mean(values))] if values else []
        return {name: f"{100 * np.mean(values):.1f}" if values else "" for name, values in of_columns.items()}

    def picture(self, results: Results, path: Path) -> None:
        """Draw it."""
        self.draw(self, results, path)

    # -- the text ---------------------------------------------------------------------------------------------------------

    def text(self, results: Results) -> str:
        """For a terminal."""
        lines = [self.title, *self._conditions(results), ""]
        for protocol in PROTOCOLS:
            header, body = self._grid(results, protocol)
            if not body:
                continue
            widths = [max(len(line[i]) for line in (header, *body)) for i in range(len(header))]
            lines.append(str(protocol))
            lines += ["  " + aligned_row(line, widths) for line in (header, *body)]
            lines.append("")
        return "\n".join(lines).rstrip()

    def markdown(self, results: Results) -> str:
        """For the ledger."""
        lines = [f"## {self.title}", "", *(f"- {line}" for line in self._conditions(results)), ""]
        for protocol in PROTOCOLS:
            header, body = self._grid(results, protocol)
            if not body:
                continue
            lines += [f"**{protocol}**", "", markdown_row(header), markdown_row(["---"] + ["--:"] * (len(header) - 1))]
            lines += [markdown_row([cell or " " for cell in line]) for line in body]
            lines.append("")
        lines.append(f"Every run: `reproduce/results/{self.name}.json`. Command: `perdure reproduce {self.name}`.")
        return "\n".join(lines)

    def _grid(self, results: Results, protocol: Protocol) -> tuple[list[str], list[list[str]]]:
        """Header and lines: ours, and the paper's beneath where it has the same protocol."""
        shown = protocol == Protocol("given", "transductive")
        extras = ["forgetting", "own f"] if shown else ["recognised"] if protocol.environment == "unknown" else []
        if protocol.queries == "inductive":
            extras = []
        of_rows = [self.remarks(results, row, protocol) for row in self.rows]
        extras += [name for name in ("ECE", SUREST) if any(remarks[name] for remarks in of_rows)]
        header = ["", *(column.label for column in self.columns), *self.means, *extras]
        body = []
        for row, remarks in zip(self.rows, of_rows, strict=True):
            cells = self.cells(results, row, protocol)
            quoted = row.paper.split() if shown else []
            if not quoted and not any(cell.values for cell in cells):
                continue
            counts = {len(cell.values) for cell in cells if cell.values}
            seeds = "" if counts <= {1} else f" ({'–'.join(str(n) for n in sorted({min(counts), max(counts)}))} seeds)"
            body.append([row.label + seeds, *map(str, cells), *(remarks[name] for name in extras)])
            if quoted:
                body.append(["  the paper", *quoted, *([""] * len(extras))])
        return header, body

    def _conditions(self, results: Results) -> list[str]:
        """Under what conditions these numbers stand."""
        tasks = [task for _, task in self.tasks()]
        there = [results[task.planned.key] for task in tasks if task.planned.key in results]
        budgets = {f"{c.setting.warm_up} + {c.setting.steps:,} steps an environment" for c in self.columns}
        joint = {c.setting.joint_steps for c in self.columns if any(row.method.kind == "joint" for row in self.rows)}
        other_rates = sorted({c.setting.inference_rate for c in self.columns} - {PAPERS_RATE})
        seeds = max((row.seeds for row in self.rows if row.method.config is not None), key=len, default=())
        hours = sum(sum(result.seconds) for result in there) / 3600
        devices = sorted({result.computed_with["device"] for result in there})
        return [
            "accuracy in %; mean over environments, each counting once; ± standard deviation over seeds (n − 1)",
            f"{'; '.join(sorted(budgets))} (warm-up + end to end); scored at the last step, nothing selected",
            f"seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}"
            + "; a row that has fewer has the first of them" * (len(seeds) > 1),
            *(
                f"the inference module at Adam's {rate:g}; the paper has {PAPERS_RATE:g} for its own steps"
                for rate in other_rates
            ),
            *(f"joint training: {steps:,} steps in all after the same warm-up" for steps in sorted(joint)),
            *self.notes,
            *(
                ["ECE: expected calibration error in %, 15 bins, over the rows of all environments together"]
                if any("calibration" in result.numbers for result in there)
                else []
            ),
            *(
                [f"{SUREST}: in %, if of these rows only the {100 * ANSWERED:.0f} % that the learner is surest of are answered"]
                if any("coverage" in result.numbers for result in there)
                else []
            ),
            f"{len(there)} of {len(tasks)} runs are there"
            + (f"; {hours:.1f} hours of one process, on {', '.join(devices)}" if there else ""),
        ]


def in_order_of(column: Column, method: Method, matrix: AccuracyMatrix) -> AccuracyMatrix:
    """The environments as the column has them: a method without an order was run in the one that all orders share."""
    if not method.orderless or column.place == column.place.unordered():
        return matrix
    order = list(column.place.order)
    return AccuracyMatrix(tuple(matrix.environments[i] for i in order), matrix.values[:, order])


def _figure(matrix: AccuracyMatrix, figure: Figure) -> float:
    return matrix.average if figure == "average" else matrix.first_task


def _for_column(seeds: Sequence[int], column: Column) -> Sequence[int]:
    return seeds if column.seeds is None else seeds[: column.seeds]


def mean_and_spread(values: Sequence[float]) -> str:
    if not values:
        return "–"
    return f"{np.mean(values):.1f}" + (f"±{np.std(values, ddof=1):.1f}" if len(values) > 1 else "")


def aligned_row(cells: Sequence[str], widths: Sequence[int]) -> str:
    first, *rest = (
        cell.ljust(width) if i == 0 else cell.rjust(width) for i, (cell, width) in enumerate(zip(cells, widths, strict=True))
    )
    return "  ".join((first, *rest)).rstrip()


def markdown_row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"
