"""Pictures of studies: features as points in the plane, and the curves that belong to them."""

from __future__ import annotations

import colorsys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from perdure.report.figures import save
from perdure.report.studies import KINDS, SOLVERS, Found, Numbers

LIGHT, DARK = 0.78, 0.38
"""Lightness of support and query, as in the paper: light and dark."""


def draw_features(found: Sequence[Found], path: Path) -> None:
    """Before, after, and the two solvers; a line of panels for each case."""
    from matplotlib.figure import Figure as Canvas

    canvas = Canvas(figsize=(12.6, 4.1 * len(found)), layout="constrained")
    panels = canvas.subplots(len(found), 3, squeeze=False)
    for (before, after, curves), each in zip(panels, found, strict=True):
        first, more = each.shown["environments"][0], each.case.label
        for axis, when in ((before, "before"), (after, "after")):
            streams(axis, each.shown[when])
            same, near = 100 * first[f"same stream {when}"], 100 * first[f"neighbour accuracy {when}"]
            axis.set_title(f"{more}, {first['environment']}, {when} the inference module", fontsize=10)
            axis.set_xlabel(f"same stream {same:.0f} %, neighbour accuracy {near:.0f} %", fontsize=9)
        solver_curves(curves, list(each.seeds.values()))
    _legend_of_streams(panels[0][0])
    save(canvas, path)


def solver_curves(axis: Any, runs: Sequence[Numbers]) -> None:
    """How fast a solver learns from real and from generated features."""
    for colour, (trained, key) in zip(("C0", "C1"), SOLVERS.items(), strict=True):
        for scored, line in (("support", ":"), ("query", "-")):
            values = 100 * np.array([run[key][scored] for run in runs])
            steps, mean = runs[0][key]["steps"], values.mean(axis=0)
            axis.plot(
                steps, mean, line, color=colour, marker="o", markersize=3, label=f"trained on {trained}, scored on {scored}"
            )
            if len(runs) > 1:
                spread = values.std(axis=0, ddof=1)
                axis.fill_between(steps, mean - spread, mean + spread, color=colour, alpha=0.15, linewidth=0)
    axis.set_xscale("log")
    axis.set_xlabel("steps of a new solver", fontsize=9)
    axis.set_ylabel("accuracy on real features, %", fontsize=9)
    axis.set_ylim(0, 101)
    axis.set_title("a solver of all classes", fontsize=10)
    axis.legend(frameon=False, fontsize=8, loc="lower right")
    _plain(axis)


def draw_alignment(found: Sequence[Found], path: Path) -> None:
    """The clouds after each environment; a line of panels for each case."""
    from matplotlib.figure import Figure as Canvas

    stages = max(len(each.shown["stages"]) for each in found)
    canvas = Canvas(figsize=(3.5 * stages, 3.9 * len(found)), layout="constrained")
    panels = canvas.subplots(len(found), stages, squeeze=False)
    for line, each in zip(panels, found, strict=True):
        classes = 1 + max(max(stage["classes"]) for stage in each.shown["stages"])
        for axis, stage in zip(line, each.shown["stages"], strict=False):
            streams(axis, stage, classes)
            axis.set_title(f"{each.case.label}, after {stage['environment']}", fontsize=11)
            near, solved = 100 * stage["neighbour accuracy"], 100 * stage["solver's accuracy"]
            axis.set_xlabel(
                f"{1 + max(stage['classes'])} classes; neighbour accuracy {near:.0f} %, solver {solved:.0f} %", fontsize=9
            )
    _legend_of_streams(panels[0][0])
    save(canvas, path)


def draw_augmentation(found: Sequence[Found], path: Path) -> None:
    """The first class in all domains, then the query accuracy of every pair with replay and without."""
    from matplotlib.figure import Figure as Canvas

    pairs = [(each, i) for each in found for i in range(len(each.shown["second"]))]
    across = min(3, 1 + len(pairs))
    down = -(-(1 + len(pairs)) // across)
    canvas = Canvas(figsize=(4.0 * across, 3.3 * down), layout="constrained")
    domains, *axes = canvas.subplots(down, across, squeeze=False).ravel()
    shown = found[0].shown["domains"]
    points, names = np.array(shown["points"]), np.array(shown["streams"])
    for number, name in enumerate(sorted(set(shown["streams"]))):
        domains.scatter(*points[names == name].T, s=16, color=f"C{number}", label=name, linewidth=0)
    domains.set_title(f"{shown['class']} in each domain, before any learning", fontsize=10)
    domains.legend(frameon=False, fontsize=8)
    _bare(domains)
    for axis, (each, i) in zip(axes, pairs, strict=False):
        runs = [run["second"][i] for run in each.seeds.values()]
        for colour, kind in zip(("0.45", "C3"), KINDS, strict=True):
            values = 100 * np.array([run[kind]["accuracy"] for run in runs])
            steps, mean = runs[0][kind]["steps"], values.mean(axis=0)
            axis.plot(steps, mean, color=colour, marker="o", markersize=3, label=kind)
            if len(runs) > 1:
                spread = values.std(axis=0, ddof=1)
                axis.fill_between(steps, mean - spread, mean + spread, color=colour, alpha=0.15, linewidth=0)
        gained = np.mean([100 * (run[KINDS[1]]["accuracy"][-1] - run[KINDS[0]]["accuracy"][-1]) for run in runs])
        axis.set_title(f"{runs[0]['environment']} after {each.shown['first']}: {gained:+.1f}", fontsize=10)
        axis.margins(y=0.15)
        axis.legend(frameon=False, fontsize=8, loc="lower right")
        _plain(axis)
    for axis in axes[len(pairs) :]:
        axis.remove()
    canvas.supxlabel("steps end to end", fontsize=9)
    canvas.supylabel("accuracy on the query, % (environment given, transductive)", fontsize=9)
    save(canvas, path)


def streams(axis: Any, cloud: Numbers, classes: int | None = None) -> None:
    """Support light, query dark; a hue for each class."""
    points, y = np.array(cloud["points"]), np.array(cloud["classes"])
    is_query = np.array([stream == "query" for stream in cloud["streams"]])
    colours = np.array([hue(c, classes or 1 + int(y.max()), dark=bool(q)) for c, q in zip(y, is_query, strict=True)])
    axis.scatter(*points[~is_query].T, s=14, c=colours[~is_query], marker="o", linewidth=0)
    axis.scatter(*points[is_query].T, s=9, c=colours[is_query], marker="^", linewidth=0)
    _bare(axis)


def hue(number: int, of: int, *, dark: bool) -> tuple[float, float, float]:
    """Colours that differ as much as can be; those of neighbouring numbers lie apart on the circle."""
    # The golden ratio spreads any number of classes, and an early class keeps its colour as more arrive.
    return colorsys.hls_to_rgb(number / of if of <= 10 else number * 0.61803398875 % 1, DARK if dark else LIGHT, 0.75)


def _legend_of_streams(axis: Any) -> None:
    from matplotlib.lines import Line2D

    marks = [
        Line2D([], [], linestyle="", marker=marker, color=str(grey), label=name)
        for name, marker, grey in (("support (light)", "o", LIGHT), ("query (dark)", "^", DARK))
    ]
    axis.legend(handles=marks, frameon=False, fontsize=8, loc="best")


def _plain(axis: Any) -> None:
    axis.grid(axis="y", color="0.9")
    axis.spines[["top", "right"]].set_visible(False)


def _bare(axis: Any) -> None:
    """Coordinates of t-SNE mean nothing."""
    axis.set_xticks([])
    axis.set_yticks([])
    axis.spines[:].set_color("0.8")
