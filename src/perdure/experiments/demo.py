"""The demo: source-only, no replay, the paper's method and the analytic learner side by side on the digits scenario."""

from __future__ import annotations

import itertools
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import torch

from perdure.analytic import AnalyticLearner
from perdure.errors import InputError
from perdure.experiments.lower_bounds import source_only
from perdure.experiments.runner import PROTOCOLS, Protocol, Run, run
from perdure.metrics import AccuracyMatrix
from perdure.progress import Progress, progress_bar
from perdure.scenarios.digits import TASKS, digits
from perdure.streams import Rows, Scenario
from perdure.variational import VariationalConfig, VariationalLearner, generative_replay, optimal_baseline

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SOURCE_ONLY, NO_REPLAY, PAPER, ANALYTIC = "source-only", "no replay", "the paper's method", "the analytic learner"
RIVALS = (SOURCE_ONLY, NO_REPLAY)
"""Of the paper's method."""
SHOWN = Protocol("given", "transductive")
"""The protocol of the picture and of the conclusion; the paper's tables use it."""
Runs: TypeAlias = Mapping[str, Sequence[Run]]
"""Method → its run for each seed."""
FIGURES: Mapping[str, Callable[[AccuracyMatrix], float]] = {
    "first task": lambda matrix: matrix.first_task,
    "average": lambda matrix: matrix.average,
    "forgetting": lambda matrix: matrix.forgetting,
}


def demo(
    seeds: Sequence[int] = (0, 1, 2), out: str | Path | None = "perdure-demo.png", *, progress: Progress = None
) -> dict[str, list[Run]]:
    """Run the four methods, print the table and what it shows, and draw the picture to `out` (PNG, SVG, PDF; `None`: none)."""
    if out is not None:
        _check_writable(Path(out))
    runs = compare(seeds, progress=progress)
    print(table(runs, seeds))
    print(f"\n{conclusion(runs)}")
    if out is not None:
        picture(runs, digits(seed=seeds[0]), Path(out))
        print(f"Accuracy on each environment over time: {out}")
    return runs


def compare(seeds: Sequence[int], *, progress: Progress = None) -> dict[str, list[Run]]:
    """Each method on the digits of each seed; the seed makes both the data and the learner's randomness."""
    if not seeds or len(set(seeds)) != len(seeds):
        raise InputError(f"`seeds` must be different numbers, at least one, got {list(seeds)}.")
    configs = {NO_REPLAY: optimal_baseline(), PAPER: generative_replay()}
    steps = sum(small(config, seed=0).warm_up + small(config, seed=0).steps for config in configs.values())
    runs: dict[str, list[Run]] = {SOURCE_ONLY: [], NO_REPLAY: [], PAPER: [], ANALYTIC: []}
    with one_thread(), progress_bar(progress, "demo", len(seeds) * len(TASKS) * steps, 0) as report:
        done = itertools.count(1)
        for seed in seeds:
            scenario = digits(seed=seed)
            runs[SOURCE_ONLY].append(run(scenario, source_only(), name=SOURCE_ONLY))
            runs[ANALYTIC].append(run(scenario, AnalyticLearner(), name=ANALYTIC))
            for method, config in configs.items():
                learner = VariationalLearner(small(config, seed=seed))
                runs[method].append(run(scenario, learner, name=method, progress=lambda step, total: report(next(done))))
    return runs


@contextmanager
def one_thread() -> Iterator[None]:
    """Products of matrices this small take longer shared between threads than in one; many times longer on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def small(config: VariationalConfig, *, seed: int) -> VariationalConfig:
    """The configuration for 64 features and two digits a task: networks an eighth as wide, a fifth as many steps.

    Nothing here was chosen by a score on queries: width and steps keep the demo short, and the rates follow from them. In a
    network an eighth as wide, a step of the same rate changes the answer about an eighth as much; and there are a fifth as many
    steps. Hence rates 40 times as high for what begins afresh with each environment, and a reversal that rises five times as
    fast. The solver goes on from one environment to the next and has the paper's rate, at which it forgets least without
    replay. z has half as many dimensions as the input.
    """
    narrower, shorter = 8, 5
    return replace(
        config,
        latent=32,
        features=config.features // narrower,
        width=config.width // narrower,
        warm_up=config.warm_up // shorter,
        steps=config.steps // shorter,
        inference_rate=config.inference_rate * narrower * shorter,
        hypothesis_rate=config.hypothesis_rate * narrower * shorter,
        solver_rate=config.hypothesis_rate,
        reversal_horizon=config.reversal_horizon / shorter,
        seed=seed,
    )


def table(runs: Runs, seeds: Sequence[int]) -> str:
    """Every method under every protocol, in per cent."""
    several = len(seeds) > 1
    spread = ", mean ± standard deviation" if several else ""
    first = next(iter(runs.values()))[0]
    which = f"{'seeds' if several else 'seed'} {', '.join(map(str, seeds))}"
    lines = [
        f"{first.scenario}, {len(first.seconds)} environments",
        f"accuracy in %{spread} of {which}; at the last step, nothing selected",
        "environment given: source-only and the analytic learner choose between its two digits, the others among all seen so far",
        "",
        f"{'':34}" + "".join(f"{figure:>14}" for figure in FIGURES),
    ]
    for protocol in PROTOCOLS:
        lines.append(str(protocol))
        for method, repeated in runs.items():
            values = [[100 * figure(each.accuracy[protocol]) for each in repeated] for figure in FIGURES.values()]
            cells = [f"{np.mean(v):.1f}" + (f" ± {np.std(v, ddof=1):4.1f}" if several else "") for v in values]
            lines.append(f"  {method:32}" + "".join(f"{cell:>14}" for cell in cells))
    return "\n".join(lines)


def conclusion(runs: Runs) -> str:
    """What the numbers show, in a line or two; it says so too if the paper's method does not win."""
    average = {method: np.array([100 * each.accuracy[SHOWN].average for each in repeated]) for method, repeated in runs.items()}
    ahead = {rival: average[PAPER] - average[rival] for rival in RIVALS}
    wins = min(float(points.min()) for points in ahead.values()) > 0
    seeds = len(average[PAPER])
    every_seed = "" if seeds == 1 else f" with each of {seeds} seeds" if wins else f" with every one of {seeds} seeds"
    verdict = f"{PAPER.capitalize()} {'wins' if wins else 'does not win'}{every_seed}"
    margins = " and ".join(f"{points.mean():+.1f} points against {rival}" for rival, points in ahead.items())
    closed_form = (
        f" {ANALYTIC.capitalize()} has {average[ANALYTIC].mean():.1f} %, without training." if ANALYTIC in average else ""
    )
    return f"{verdict}: {average[PAPER].mean():.1f} % right on average, {margins} ({SHOWN}).{closed_form}"


def picture(runs: Runs, scenario: Scenario, path: Path) -> None:
    """Write it in place of what is there."""
    figure = drawn(runs, scenario)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        whole = Path(folder) / path.name
        figure.savefig(whole, dpi=150)
        os.replace(whole, path)


def drawn(runs: Runs, scenario: Scenario) -> Figure:
    """Examples of both domains; below, a panel a method: accuracy on each environment after every stage, mean of the seeds."""
    from matplotlib import colormaps
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12.5, 4.6), layout="constrained")
    grid = figure.add_gridspec(2, 1, height_ratios=(1, 4))
    above, below = figure.add_subfigure(grid[0]), figure.add_subfigure(grid[1])
    domains = ("support: handwritten, labelled", "query: printed, unlabelled")
    for strip, domain, rows in zip(above.subplots(1, 2), domains, _examples(scenario), strict=True):
        strip.imshow(np.hstack([row.reshape(8, 8) for row in rows]), cmap="gray_r", vmin=0, vmax=16)
        strip.set_title(domain, fontsize=10)
        strip.set_axis_off()

    panels = below.subplots(1, len(runs), sharey=True)
    for panel, (method, repeated) in zip(panels, runs.items(), strict=True):
        matrices = [each.accuracy[SHOWN] for each in repeated]
        values = np.mean([matrix.values for matrix in matrices], axis=0)
        names, stages = matrices[0].environments, np.arange(1, len(values) + 1)
        for i, name in enumerate(names):
            colour = colormaps["viridis"](0.9 * i / max(len(names) - 1, 1))
            panel.plot(stages, values[:, i], marker="o", markersize=4, color=colour, label=name, clip_on=False)
        panel.set_title(f"{method}\n{100 * np.nanmean(values[-1]):.1f} % at the end", fontsize=11)
        panel.set_xticks(stages)
        panel.grid(axis="y", color="0.9")
        panel.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylim(0, 1)
    panels[0].yaxis.set_major_formatter(lambda value, _: f"{100 * value:.0f} %")
    panels[0].set_ylabel("accuracy on each environment")
    seeds = len(next(iter(runs.values())))
    below.supxlabel(f"environments learned  ({SHOWN}; {f'mean of {seeds} seeds' if seeds > 1 else 'one seed'})", fontsize=10)
    below.legend(*panels[0].get_legend_handles_labels(), loc="outside right center", frameon=False)
    return figure


def _examples(scenario: Scenario) -> tuple[list[Rows], list[Rows]]:
    """One row of each digit, handwritten and printed. The answers serve to find them for the eye and go nowhere else."""
    handwritten, prints = [], []
    for environment in scenario.environments:
        assert environment.support is not None
        assert environment.query is not None
        for label in environment.support.classes:
            handwritten.append(environment.support.x[np.argmax(environment.support.y == label)])
            prints.append(environment.query.x[np.argmax(scenario.answers.transductive[environment.name] == label)])
    return handwritten, prints


def _check_writable(path: Path) -> None:
    """Say before the work, not after it, that the picture cannot be written."""
    if path.suffix not in (".png", ".svg", ".pdf"):
        raise InputError(f"The picture can be a .png, .svg or .pdf, got {str(path)!r}.")
    if not os.access(path.parent, os.W_OK) or path.is_dir():
        raise InputError(f"Cannot write the picture to {str(path)!r}: name a file in a folder that exists and may be written to.")
