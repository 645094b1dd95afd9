"""How label-free validators rank configurations of the analytic learner, beside how right these are in truth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
from jaxtyping import Float

from perdure.analytic import AnalyticConfig
from perdure.experiments.ledger import Place, Planned, Results
from perdure.experiments.methods import Method
from perdure.experiments.pool import Task
from perdure.experiments.selection import BETTER
from perdure.report.figures import save
from perdure.report.studies import Case, Grid, markdown_of, text_of

TOGETHER = "all together"
"""The mean over validators of the place that each gives a configuration, case by case."""
Scores: TypeAlias = Mapping[str, "Float[np.ndarray, 'cases configurations']"]
"""Validator, or how a configuration is scored in truth → a number for each; more is better."""


@dataclass(frozen=True)
class Selection:
    """What a file of `reproduce/` states that compares validators."""

    name: str
    title: str
    configurations: Mapping[str, AnalyticConfig]
    cases: Mapping[str, Sequence[Case]]
    """Data set → scenarios."""
    notes: Sequence[str] = ()

    def planned(self, config: AnalyticConfig, place: Place) -> Planned:
        """A run keeps a half of every query aside."""
        return Planned(Method("analytic", analytic=config), place, inductive=True, study="validators")

    def tasks(self) -> list[tuple[int, Task]]:
        """Every run."""
        return [
            (0, Task(self.planned(config, case.place), f"{name}, {case.label}"))
            for name, config in self.configurations.items()
            for cases in self.cases.values()
            for case in cases
        ]

    def picture(self, results: Results, path: Path) -> None:
        """Each configuration by its rank without labels and its accuracy in truth; a panel for each data set."""
        from matplotlib.figure import Figure as Canvas

        canvas = Canvas(figsize=(5.2 * len(self.cases), 4.2), layout="constrained")
        for axis, (data, cases) in zip(canvas.subplots(1, len(self.cases), squeeze=False)[0], self.cases.items(), strict=True):
            names, said, true = self.scores(results, cases)
            axis.set_title(data, fontsize=10)
            axis.set_xlabel("mean rank by all validators together, more is better", fontsize=9)
            axis.set_ylabel("accuracy, environment unknown, %", fontsize=9)
            if not names:
                continue
            for queries, marker in (("transductive", "o"), ("inductive", "^")):
                y = 100 * true[f"{queries}, unknown"].mean(axis=0)
                axis.scatter(said[TOGETHER].mean(axis=0), y, marker=marker, s=22, label=queries)
            axis.legend(frameon=False, fontsize=8)
        save(canvas, path)

    def text(self, results: Results) -> str:
        """For a terminal."""
        return text_of([self.title, *self._conditions(results)], self._grids(results))

    def markdown(self, results: Results) -> str:
        """For the ledger."""
        return markdown_of(self.name, [self.title, *self._conditions(results)], self._grids(results))

    def scores(self, results: Results, cases: Sequence[Case]) -> tuple[list[str], Scores, Scores]:
        """Of the configurations that are there in all cases: what validators say and what is true."""
        planned = {name: [self.planned(config, case.place).key for case in cases] for name, config in self.configurations.items()}
        names = [name for name, keys in planned.items() if all(key in results for key in keys)]
        runs = [[results[planned[name][i]].numbers for name in names] for i in range(len(cases))]
        said = {
            validator: sign * np.array([[float(run["validators"][validator]) for run in row] for row in runs])
            for validator, sign in BETTER.items()
        }
        if names:
            said[TOGETHER] = np.mean([ranks(values) for values in said.values()], axis=0)
        true = {
            f"{queries}, {environment}": np.array([[run["accuracy"][queries][environment] for run in row] for row in runs])
            for queries in ("transductive", "inductive")
            for environment in ("unknown", "given")
        }
        return names, said, true

    def _grids(self, results: Results) -> list[Grid]:
        found = {data: self.scores(results, cases) for data, cases in self.cases.items()}
        found = {data: each for data, each in found.items() if len(each[0]) > 1}
        if not found:
            return []
        measures = [f"{queries}, unknown" for queries in ("transductive", "inductive")]
        ranking = [
            [
                validator,
                *(
                    f"{np.mean([correlation(a, b) for a, b in zip(said[validator], true[measure], strict=True)]):.2f}"
                    for _, said, true in found.values()
                    for measure in measures
                ),
                *(cell for names, said, true in found.values() for cell in _chosen(names, said[validator], true, measures)),
            ]
            for validator in [*BETTER, TOGETHER]
        ]
        columns = [f"{data}, {measure.partition(',')[0]}" for data in found for measure in measures]
        chosen = [f"{data}, {what}" for data in found for what in ("chosen", *(m.partition(",")[0] for m in measures))]
        bests = "; ".join(
            f"{data} {' and '.join(f'{100 * true[measure].mean(axis=0).max():.1f}' for measure in measures)}"
            for data, (_, _, true) in found.items()
        )
        return [
            Grid(
                "Rank correlation (Spearman, the mean over pairs) of validator and accuracy, environment unknown; then what the "
                f"validator would choose and its accuracy in %; the best there is, which takes labels to know: {bests}",
                ["validator", *columns, *chosen],
                ranking,
            ),
            Grid(
                "The configurations: mean rank by all validators together, 1 is the worst; accuracy in %, environment unknown",
                ["configuration", *(f"{data}, {what}" for data in found for what in ("rank", "transductive", "inductive"))],
                [
                    [name, *(cell for each in found.values() for cell in _row(name, *each, measures))]
                    for name in self.configurations
                    if all(name in names for names, _, _ in found.values())
                ],
            ),
        ]

    def _conditions(self, results: Results) -> list[str]:
        tasks = [task for _, task in self.tasks()]
        there = [results[task.planned.key] for task in tasks if task.planned.key in results]
        minutes = sum(sum(result.seconds) for result in there) / 60
        return [
            *self.notes,
            f"{len(there)} of {len(tasks)} runs are there" + (f"; {minutes:.0f} minutes of one process" if there else ""),
        ]


def ranks(values: Float[np.ndarray, "cases configurations"]) -> Float[np.ndarray, "cases configurations"]:
    """1 for the worst of a case; those that are equal share the mean of their places."""
    from scipy.stats import rankdata

    placed: Float[np.ndarray, "cases configurations"] = rankdata(values, axis=1)
    return placed


def correlation(a: Float[np.ndarray, " n"], b: Float[np.ndarray, " n"]) -> float:
    """Spearman's; 0 where either is the same for all."""
    one, other = ranks(a[None])[0], ranks(b[None])[0]
    return float(np.corrcoef(one, other)[0, 1]) if one.std() > 0 and other.std() > 0 else 0.0


def _chosen(
    names: Sequence[str], said: Float[np.ndarray, "cases configurations"], true: Scores, measures: Sequence[str]
) -> list[str]:
    best = int(ranks(said).mean(axis=0).argmax())
    return [names[best], *(f"{100 * true[measure][:, best].mean():.1f}" for measure in measures)]


def _row(name: str, names: Sequence[str], said: Scores, true: Scores, measures: Sequence[str]) -> list[str]:
    place = names.index(name)
    accuracies = (f"{100 * true[measure][:, place].mean():.1f}" for measure in measures)
    return [f"{said[TOGETHER][:, place].mean():.2f}", *accuracies]
