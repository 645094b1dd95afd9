"""Pictures of studies: features as points in the plane, the curves that belong to them, and the terms of the bound."""

from __future__ import annotations

import colorsys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from perdure.report.figures import save
from perdure.report.studies import BOTH, KINDS, SOLVERS, Found, Numbers

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
    shown = runs[0][SOLVERS["generated"]]["steps"][::2]
    axis.set_xticks(shown, [str(step) for step in shown])
    axis.minorticks_off()
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
        axis.set_ylabel("accuracy on the query, %", fontsize=9)
        axis.margins(y=0.15)
        axis.legend(frameon=False, fontsize=8, loc="lower right")
        _plain(axis)
    for axis in axes[len(pairs) :]:
        axis.remove()
    canvas.supxlabel("steps end to end (environment given, transductive)", fontsize=9)
    save(canvas, path)


def draw_bound(found: Sequence[Found], path: Path) -> None:
    """The terms of each environment stacked, beside its true query error; then both sides after each environment."""
    from matplotlib.figure import Figure as Canvas

    canvas = Canvas(figsize=(11.6, 3.6 * len(found) + 0.6), layout="constrained")
    panels = canvas.subplots(len(found), 2, squeeze=False, gridspec_kw={"width_ratios": [1.5, 1]})
    for (stacks, stages), each in zip(panels, found, strict=True):
        runs = list(each.seeds.values())
        bound_stacks(stacks, runs)
        bound_sides(stages, runs)
        stacks.set_title(f"{each.case.label}: terms of each environment, after the last", fontsize=10)
        stages.set_title(f"{each.case.label}: both sides, over the environments so far", fontsize=10)
    for line in panels:
        for axis in line:
            axis.set_ylabel("points (100: every row wrong)", fontsize=9)
            _plain(axis)
    handles, labels = panels[0][0].get_legend_handles_labels()
    canvas.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False, fontsize=8)
    save(canvas, path)


def bound_stacks(axis: Any, runs: Sequence[Numbers]) -> None:
    """Three bars for each environment: its share of the right side, held out and on these rows, and what that bounds."""
    names = [environment["environment"] for environment in runs[0]["environments"]]
    places = np.arange(len(names))
    offsets = dict(zip((*BOTH, "error"), (-0.27, 0.0, 0.27), strict=True))
    for how, end in BOTH.items():
        foot = np.zeros(len(names))
        for (term, colour), values in zip(TERMS.items(), _stacked(runs, end), strict=True):
            style = {"color": "white", "hatch": "////"} if term == ORACLE else {"color": colour}
            label = term if how == "held out" else None
            axis.bar(places + offsets[how], values, 0.25, bottom=foot, edgecolor=colour, linewidth=0.8, label=label, **style)
            foot += values
    query = 100 * np.mean([run["stages"][-1]["query error"] for run in runs], axis=0)
    axis.bar(places + offsets["error"], query, 0.25, color=LEFT, label="true query error")
    axis.axhline(100, color="0.2", linestyle=":", linewidth=1)
    axis.set_axisbelow(True)
    bars = [(place + offset, how) for place in places for how, offset in offsets.items()]
    axis.xaxis.remove_overlapping_locs = False  # the middle bar stands where the environment's name does
    axis.set_xticks([place for place, _ in bars], [how for _, how in bars], minor=True, rotation=90, fontsize=7)
    axis.set_xticks(places, names)
    axis.tick_params(axis="x", which="major", length=0, pad=60)


def bound_sides(axis: Any, runs: Sequence[Numbers]) -> None:
    """Left and right; from 100 on the right side says nothing."""
    names = [stage["environment"] for stage in runs[0]["stages"]]
    stages = np.arange(1, len(names) + 1)
    sides = {"left: query error": "left side", **{f"right, {how}": f"right side{end}" for how, end in BOTH.items()}}
    highest = 110.0
    for (label, key), (colour, line) in zip(sides.items(), ((LEFT, "-"), ("C3", "-"), ("C3", "--")), strict=True):
        values = 100 * np.array([[stage[key] for stage in run["stages"]] for run in runs]) / stages
        mean, highest = values.mean(axis=0), max(highest, 1.1 * values.max())
        axis.plot(stages, mean, line, color=colour, marker="o", markersize=3, label=label)
        if len(runs) > 1:
            spread = values.std(axis=0, ddof=1)
            axis.fill_between(stages, mean - spread, mean + spread, color=colour, alpha=0.15, linewidth=0)
    axis.axhspan(100, highest, color="0.93", zorder=0, label="vacuous: any solver keeps it")
    axis.set_ylim(0, highest)
    axis.set_xticks(stages, names)
    axis.set_xlabel("after", fontsize=9)
    axis.legend(frameon=False, fontsize=8, loc="center right")


ORACLE = "C*: oracle, uses query labels"
TERMS = {"support error": "C0", "discrepancy λ": "C3", "KL of replay (not of the last)": "C1", ORACLE: "C2"}
"""In the order of the theorem; what needs the query's labels is hatched."""
LEFT = "0.15"
"""What is bounded."""


def _stacked(runs: Sequence[Numbers], end: str) -> list[Any]:
    """The terms by environment, the mean over seeds; the newest environment is not replayed, so its KL is in no sum."""
    environments, last = [run["environments"] for run in runs], [run["stages"][-1] for run in runs]
    divergences = [[each["divergence"] for each in run[:-1]] + [0.0] for run in environments]
    values = (
        [stage["support error"] for stage in last],
        [[each[f"discrepancy{end}"] for each in run] for run in environments],
        divergences,
        [stage[f"optimal error{end}"] for stage in last],
    )
    return [100 * np.mean(term, axis=0) for term in values]


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
