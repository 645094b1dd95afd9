"""What leaving unsure rows unanswered is worth: errors among the rows answered, in grids and as coverage–risk curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np

from perdure.experiments.ledger import Place, Planned, Results
from perdure.experiments.methods import Method
from perdure.experiments.pool import Task
from perdure.experiments.runner import Protocol
from perdure.metrics import COVERAGES, THRESHOLDS
from perdure.report.figures import save
from perdure.report.studies import Grid, markdown_of, text_of

Queries: TypeAlias = Literal["transductive", "inductive"]
QUERIES: tuple[Queries, ...] = ("transductive", "inductive")
MARKERS = dict(zip(THRESHOLDS, ("o", "s", "^"), strict=True))


class Curve(NamedTuple):
    """The mean over the scenarios of a group that have a curve."""

    label: str
    each: Sequence[Sequence[float]]
    """Of every such scenario, the error at each of `COVERAGES`."""
    error: Sequence[float]
    """Their mean; empty without such a scenario."""
    area: float | None
    abstaining: Mapping[float, tuple[float, float | None]]
    """`abstain_below` → fraction of the rows answered, and error among them where a scenario answers any."""


@dataclass(frozen=True)
class CoverageFigure:
    """A panel for each group of scenarios; the environment of a row is unknown. Its runs are those of the tables."""

    name: str
    title: str
    method: Method
    """One whose confidence is measured: the analytic learner."""
    groups: Mapping[str, Sequence[Place]]
    notes: Sequence[str] = ()

    def planned(self, place: Place, queries: Queries) -> Planned:
        """The run of a scenario."""
        return Planned(self.method, place, queries == "inductive")

    def tasks(self) -> list[tuple[int, Task]]:
        """Every run: first those whose queries are scored on the rows adapted to."""
        return [
            (tier, Task(self.planned(place, queries), " ".join((place.source, *map(str, place.arguments))) + f", {queries}"))
            for tier, queries in enumerate(QUERIES)
            for places in self.groups.values()
            for place in places
        ]

    def curve(self, results: Results, group: str, queries: Queries) -> Curve:
        """What is there of a group; results that were kept before curves were measured are left out."""
        protocol, places = str(Protocol("unknown", queries)), self.groups[group]
        kept = [results[key].numbers for place in places if (key := self.planned(place, queries).key) in results]
        found: list[Mapping[str, Any]] = [numbers["coverage"][protocol] for numbers in kept if "coverage" in numbers]
        label = f"{group}, {queries}" + f" ({len(found)} of {len(places)})" * (len(found) < len(places))
        if not found:
            return Curve(label, [], [], None, {})
        each = [curve["error"] for curve in found]
        abstaining = {}
        for below in THRESHOLDS:
            answers = [curve["abstain_below"][str(below)] for curve in found]
            errors = [answer["error"] for answer in answers if answer["error"] is not None]
            error = float(np.mean(errors)) if errors else None
            abstaining[below] = (float(np.mean([answer["coverage"] for answer in answers])), error)
        area = float(np.mean([curve["area"] for curve in found]))
        return Curve(label, each, np.mean(each, axis=0).tolist(), area, abstaining)

    # -- the text ---------------------------------------------------------------------------------------------------------

    def grids(self, results: Results) -> list[Grid]:
        """The curves at tenths of the rows, and the thresholds that `predict` takes."""
        curves = [self.curve(results, group, queries) for group in self.groups for queries in QUERIES]
        tenths = [[curve.label, *_percents(curve.error or [None] * len(COVERAGES)), *_percents([curve.area])] for curve in curves]
        thresholds = [
            [curve.label, *(cell for below in THRESHOLDS for cell in _percents(curve.abstaining.get(below, (None, None))))]
            for curve in curves
        ]
        return [
            Grid(
                "Error among the rows answered, %, by how many of all rows are answered, the surest first; "
                "AURC: area under this curve",
                ["", *(f"{100 * coverage:.0f} %" for coverage in COVERAGES), "AURC"],
                tenths,
            ),
            Grid(
                "With `abstain_below`: rows answered, and error among them, %",
                ["", *(cell for below in THRESHOLDS for cell in (f"{below}: answered", "error"))],
                thresholds,
            ),
        ]

    def text(self, results: Results) -> str:
        """For a terminal."""
        return text_of([self.title, *self._conditions(results)], self.grids(results))

    def markdown(self, results: Results) -> str:
        """For the ledger."""
        return markdown_of(self.name, [self.title, *self._conditions(results)], self.grids(results))

    def _conditions(self, results: Results) -> list[str]:
        """Under what conditions these numbers stand."""
        tasks = [task for _, task in self.tasks()]
        there = [results[task.planned.key] for task in tasks if task.planned.key in results]
        without = sum("coverage" not in result.numbers for result in there)
        return [
            "environment unknown; the rows of all environments together, then the mean over scenarios, each counting once",
            *self.notes,
            f"{len(there)} of {len(tasks)} runs are there" + f"; {without} of them without a curve" * (without > 0),
        ]

    # -- the picture ------------------------------------------------------------------------------------------------------

    def picture(self, results: Results, path: Path) -> None:
        """A panel for each group: a bold line for the mean, a pale one for each scenario, a mark for each threshold."""
        from matplotlib.artist import Artist
        from matplotlib.figure import Figure as Canvas

        canvas = Canvas(figsize=(3.8 * len(self.groups) + 2.2, 3.4), layout="constrained")
        axes = canvas.subplots(1, len(self.groups), sharey=True, squeeze=False)[0]
        answered = [100 * coverage for coverage in COVERAGES]
        drawn: dict[str, Artist] = {}
        for axis, group in zip(axes, self.groups, strict=True):
            for number, queries in enumerate(QUERIES):
                curve, colour = self.curve(results, group, queries), f"C{number}"
                if not curve.each:
                    continue
                for errors in curve.each:
                    axis.plot(answered, [100 * error for error in errors], color=colour, alpha=0.2, linewidth=0.8)
                (line,) = axis.plot(answered, [100 * error for error in curve.error], color=colour, linewidth=2)
                drawn.setdefault(f"{queries}, mean", line)
                for below, (coverage, error) in curve.abstaining.items():
                    if error is not None:
                        at = {"marker": MARKERS[below], "color": colour, "markerfacecolor": "white", "linestyle": "", "zorder": 3}
                        axis.plot([100 * coverage], [100 * error], **at)
            axis.set_title(group, fontsize=10)
            axis.grid(axis="y", color="0.9")
            axis.spines[["top", "right"]].set_visible(False)
            axis.set_xticks(answered[1::2])
        axes[0].set_ylim(bottom=0)  # of all panels, so it waits until the last line is there
        if drawn:
            for below, marker in MARKERS.items():
                (mark,) = axes[0].plot([], [], marker=marker, color="0.3", markerfacecolor="white", linestyle="")
                drawn[f"abstain_below={below}"] = mark
            canvas.legend(list(drawn.values()), list(drawn), loc="outside right upper", frameon=False, fontsize=8)
        canvas.supxlabel("rows answered, the surest first, % (environment unknown)", fontsize=9)
        canvas.supylabel("error among them, %", fontsize=9)
        save(canvas, path)


def _percents(values: Sequence[float | None]) -> list[str]:
    return ["–" if value is None else f"{100 * value:.1f}" for value in values]
