"""Accuracy while learning: a panel for each scenario, a line for each method."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from jaxtyping import Float

from perdure.experiments.ledger import Results
from perdure.experiments.methods import Kind
from perdure.experiments.runner import Protocol
from perdure.metrics import AccuracyMatrix
from perdure.report.tables import Column, Figure, Row, Table, in_order_of

SHOWN = Protocol("given", "transductive")
PER_LINE = 4
"""Panels side by side."""
GREYS: Mapping[Kind, str] = {"source-only": "0.75", "nearest class mean": "0.6", "LDA": "0.4"}
"""Of the lower bounds; the other methods have a colour each."""
LINES: Mapping[Kind, str] = dict.fromkeys((*GREYS, "split"), ":")
"""Of what learns no environment after another."""


def running(matrix: AccuracyMatrix, figure: Figure, *, orderless: bool) -> Float[np.ndarray, " stages"]:
    """What stood there after each stage: the mean over the environments learned by then, or the first one."""
    values = np.array(matrix.values)
    if orderless:  # scored at the end, and the same all along
        values = np.where(np.tri(len(values), values.shape[1], dtype=bool), values[-1], np.nan)
    if figure == "first task":
        return values[:, 0]
    return np.array([np.nanmean(row) for row in values])


def average_curves(table: Table, results: Results, path: Path) -> None:
    """The mean over all environments learned so far."""
    curves(table, results, path, "average")


def first_task_curves(table: Table, results: Results, path: Path) -> None:
    """The environment that was learned first."""
    curves(table, results, path, "first task")


def component_curves(table: Table, results: Results, path: Path) -> None:
    """A panel for every column: first task and average."""
    curves(table, results, path, None)


def curves(table: Table, results: Results, path: Path, figure: Figure | None) -> None:
    """One panel a scenario, or a column if `figure` is `None`; a band is one standard deviation over seeds."""
    from matplotlib.artist import Artist
    from matplotlib.figure import Figure as Canvas

    panels = list(table.columns if figure is None else {column.place: column for column in table.columns}.values())
    across = min(PER_LINE, len(panels))
    down = -(-len(panels) // across)
    canvas = Canvas(figsize=(3.2 * across + 2.6, 2.7 * down + 0.5), layout="constrained")
    axes = np.atleast_1d(canvas.subplots(down, across, sharey=True, squeeze=False).ravel())
    drawn: dict[str, Artist] = {}
    for axis, column in zip(axes, panels, strict=False):
        for number, row in enumerate(table.rows):
            if row.method.kind == "joint":
                continue
            lines = _lines(table, results, row, column, figure or column.figure)
            if not lines:
                continue
            mean = 100 * np.mean(lines, axis=0)
            stages = np.arange(1, len(mean) + 1)
            style = {"color": GREYS.get(row.method.kind, f"C{number % 10}"), "linestyle": LINES.get(row.method.kind, "-")}
            (line,) = axis.plot(stages, mean, marker="o", markersize=3, **style)
            if len(lines) > 1:
                spread = 100 * np.std(lines, axis=0, ddof=1)
                axis.fill_between(stages, mean - spread, mean + spread, color=style["color"], alpha=0.15, linewidth=0)
            drawn.setdefault(row.label, line)
            axis.set_xticks(stages[:: max(1, len(stages) // 6)])
        axis.set_title(_title(table, column, figure), fontsize=10)
        axis.grid(axis="y", color="0.9")
        axis.spines[["top", "right"]].set_visible(False)
        axis.set_ylim(0, 100)
    for axis in axes[len(panels) :]:
        axis.remove()
    what = {"first task": "accuracy on the first environment, %", "average": "accuracy, mean of environments so far, %"}
    canvas.supylabel("accuracy, %" if figure is None else what[figure], fontsize=9)
    canvas.supxlabel(f"environments learned ({SHOWN})", fontsize=9)
    if drawn:
        canvas.legend(list(drawn.values()), list(drawn), loc="outside right upper", frameon=False, fontsize=8)
    save(canvas, path)


def save(canvas: object, path: Path) -> None:
    """The whole picture or none of it."""
    from matplotlib.figure import Figure as Canvas

    assert isinstance(canvas, Canvas)
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        whole = Path(folder) / path.name
        canvas.savefig(whole, dpi=130, metadata={"Software": None})
        os.replace(whole, path)


def _title(table: Table, column: Column, figure: Figure | None) -> str:
    """The column's label, unless several columns share the panel."""
    shared = figure is not None and sum(other.place == column.place for other in table.columns) > 1
    return table.title if shared else column.label


def _lines(table: Table, results: Results, row: Row, column: Column, figure: Figure) -> list[Float[np.ndarray, " stages"]]:
    seeds = row.seeds if column.seeds is None else row.seeds[: column.seeds]
    found = (results.get(table.planned(row, column, seed).key) for seed in seeds)
    return [
        running(in_order_of(column, row.method, result.accuracy[SHOWN]), figure, orderless=row.method.orderless)
        for result in found
        if result is not None and SHOWN in result.accuracy
    ]
