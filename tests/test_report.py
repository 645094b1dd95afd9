"""Figures beyond accuracies: which runs they need, their numbers in cells, and that each picture is drawn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure as Canvas
from matplotlib.image import imread

from perdure import generative_replay
from perdure.experiments.ledger import Place, Result
from perdure.experiments.methods import Setting, continual
from perdure.experiments.reproduce import load
from perdure.report import clouds
from perdure.report.clouds import DARK, LIGHT, draw_alignment, draw_augmentation, draw_bound, draw_features, hue, streams
from perdure.report.studies import (
    Case,
    Figure,
    Found,
    Grid,
    Numbers,
    alignment_grids,
    augmentation_grids,
    bound_grids,
    feature_grids,
    percent,
    verdict,
)

REPRODUCE = Path(__file__).resolve().parents[1] / "reproduce"
CASE = Case("D→A", Place("office31.tasks", ("D", "A")))
OTHER = Case("A→W", Place("office31.tasks", ("A", "W")))
CLOUD = {"points": [[0.0, 0.0], [1.0, 1.0], [2.0, 0.0]], "classes": [0, 1, 0], "streams": ["support", "support", "query"]}


def result(numbers: Numbers, seconds: float = 90.0) -> Result:
    """A run that found these numbers."""
    return Result({}, {}, {}, [seconds], 0, {"device": "cpu", "torch": "2"}, numbers)


def figure_of(
    grids: Callable[[Sequence[Found]], Any] = lambda found: [],
    draw: Callable[[Sequence[Found], Path], None] = lambda found, path: None,
    seeds: Sequence[int] = (0, 1),
) -> Figure:
    """A figure of two cases."""
    setting = Setting(features=16, gamma=4.0, warm_up=5, steps=1000, joint_steps=7)
    return Figure(
        "shades", "A title", "features", continual(generative_replay()), setting, [CASE, OTHER], seeds, grids, draw, ("A note",)
    )


# -- the figure --------------------------------------------------------------------------------------------------------------


def test_a_figure_runs_every_case_with_every_seed_the_first_seed_first() -> None:
    figure = figure_of()
    assert [(tier, task.label) for tier, task in figure.tasks()] == [
        (0, "features, D→A, seed 0"),
        (0, "features, A→W, seed 0"),
        (1, "features, D→A, seed 1"),
        (1, "features, A→W, seed 1"),
    ]
    planned = figure.planned(OTHER, 1)
    assert (planned.study, planned.place) == ("features", OTHER.place)
    config = planned.method.config
    assert config is not None
    assert (config.seed, config.features, config.gamma, config.warm_up, config.steps) == (1, 16, 4.0, 5, 1000)


def test_a_figure_finds_what_is_there_and_shows_the_first_seed() -> None:
    figure = figure_of()
    results = {figure.planned(CASE, seed).key: result({"seed": seed}) for seed in (1, 0)}
    (found,) = figure.found(results)
    assert found.case == CASE
    assert found.seeds == {0: {"seed": 0}, 1: {"seed": 1}}
    assert found.shown == {"seed": 0}
    assert figure.found({}) == []


def test_a_figure_hands_what_was_found_to_its_picture(tmp_path: Path) -> None:
    drawn: list[tuple[list[str], Path]] = []
    figure = figure_of(draw=lambda found, path: drawn.append(([each.case.label for each in found], path)))
    figure.picture({figure.planned(OTHER, 0).key: result({})}, tmp_path / "a.png")
    assert drawn == [(["A→W"], tmp_path / "a.png")]


def test_the_text_of_a_figure_has_its_conditions_and_its_grids_in_columns() -> None:
    figure = figure_of(lambda found: [Grid("What it is", ["", "n"], [["long name", "1.0"], ["x", "22.0"]])])
    assert figure.text({figure.planned(CASE, 0).key: result({}, 150.0)}).splitlines() == [
        "A title",
        "5 + 1,000 steps an environment (warm-up + end to end); seeds 0, 1; measured at the last step, nothing selected",
        "A note",
        "1 of 4 runs are there; 2 minutes of one process, on cpu",
        "",
        "What it is",
        "                n",
        "  long name   1.0",
        "  x          22.0",
    ]
    assert figure.text({}).splitlines()[3] == "0 of 4 runs are there"


def test_the_markdown_of_a_figure_has_a_table_for_each_grid_and_its_command() -> None:
    figure = figure_of(lambda found: [Grid("What it is", ["", "n"], [["x", "1.0"]])])
    lines = figure.markdown({}).splitlines()
    assert lines[0] == "## A title"
    assert lines[lines.index("**What it is**") :] == [
        "**What it is**",
        "",
        "|  | n |",
        "| --- | --: |",
        "| x | 1.0 |",
        "",
        "Every run: `reproduce/results/shades.json`; the picture stands beside it. Command: `perdure reproduce shades`.",
    ]


def test_a_share_is_shown_in_percent_with_its_spread_if_there_are_several() -> None:
    assert percent([0.5]) == "50.0"
    assert percent([0.5, 0.7]) == "60.0±14.1"  # 20 / sqrt(2)


# -- features ----------------------------------------------------------------------------------------------------------------


def features_found() -> Found:
    def run(shift: float) -> Numbers:
        def environment(name: str, before: float) -> Numbers:
            near = {"neighbour accuracy before": before + shift, "neighbour accuracy after": 0.9}
            return {"environment": name, **near, "same stream before": 1.0, "same stream after": 0.5}

        def curve(last: float) -> Numbers:
            return {"steps": [5, 10], "support": [0.5, 1.0], "query": [0.25, last + shift]}

        return {
            "environments": [environment("task 1", 0.2), environment("task 2", 0.6)],
            "before": CLOUD,
            "after": CLOUD,
            "solver on real features": curve(0.8),
            "solver on generated features": curve(0.7),
        }

    return Found(CASE, {0: run(0.0), 1: run(0.2)})


def test_the_grids_of_features_hold_means_over_seeds_and_environments() -> None:
    before_after, solvers = feature_grids([features_found()])
    assert before_after.says.startswith("D→A: ")
    assert before_after.header == [
        "", "neighbour accuracy before", "neighbour accuracy after", "same stream before", "same stream after"
    ]  # fmt: skip
    assert before_after.body == [
        ["task 1", "30.0±14.1", "90.0±0.0", "100.0±0.0", "50.0±0.0"],
        ["task 2", "70.0±14.1", "90.0±0.0", "100.0±0.0", "50.0±0.0"],
        ["mean", "50.0±14.1", "90.0±0.0", "100.0±0.0", "50.0±0.0"],
    ]
    assert solvers.header == ["trained on; scored on; after steps", "5", "10"]
    assert solvers.body == [
        ["real support; support", "50.0±0.0", "100.0±0.0"],
        ["real support; query", "25.0±0.0", "90.0±14.1"],
        ["generated; support", "50.0±0.0", "100.0±0.0"],
        ["generated; query", "25.0±0.0", "80.0±14.1"],
    ]


# -- alignment ---------------------------------------------------------------------------------------------------------------


def alignment_found() -> Found:
    def stage(name: str, near: float) -> Numbers:
        return {"environment": name, "neighbour accuracy": near, "same stream": 0.75, "solver's accuracy": 0.8, **CLOUD}

    return Found(CASE, {0: {"stages": [stage("task 1", 0.9), stage("task 2", 0.7)]}})


def test_the_grid_of_alignment_has_a_line_for_each_stage() -> None:
    (grid,) = alignment_grids([alignment_found()])
    assert grid.header == ["after", "neighbour accuracy", "same stream", "solver's accuracy"]
    assert grid.body == [["task 1", "90.0", "75.0", "80.0"], ["task 2", "70.0", "75.0", "80.0"]]


# -- augmentation ------------------------------------------------------------------------------------------------------------


def augmentation_found() -> Found:
    def run(gained: float) -> Numbers:
        return {
            "first": "Ar→Rw",
            "second": [
                {
                    "environment": "Ar→Pr",
                    "without replay": {"steps": [2, 4], "accuracy": [0.1, 0.5]},
                    "with replay": {"steps": [2, 4], "accuracy": [0.2, 0.5 + gained]},
                }
            ],
            "domains": {"class": "Drill", **CLOUD, "streams": ["Ar", "Rw", "Pr"]},
            "relation": [
                {"domains": ["Ar", "Rw"], "first class": 0.996, "all classes": 0.5},
                {"domains": ["Ar", "Pr"], "first class": 0.75, "all classes": 0.9},
            ],
        }

    return Found(CASE, {0: run(0.1), 1: run(0.3)})


def test_the_grids_of_augmentation_pair_the_seeds_and_quote_the_paper() -> None:
    gained, apart = augmentation_grids({("Ar→Rw", "Ar→Pr"): "about +3"})([augmentation_found()])
    assert gained.header == ["replayed", "learned", "without replay", "with replay", "gained", "the paper", "seeds"]
    assert gained.body == [["Ar→Rw", "Ar→Pr", "50.0±0.0", "70.0±14.1", "20.0±14.1", "about +3", "2"]]
    assert apart.body == [["Ar–Pr", "75", "90"], ["Ar–Rw", "100", "50"]]
    unquoted, _ = augmentation_grids({})([augmentation_found()])
    assert unquoted.body[0][5] == "–"


# -- bound -------------------------------------------------------------------------------------------------------------------


def bound_found() -> Found:
    """Two environments: held out the bound is first informative and then vacuous, on these rows broken and then vacuous."""
    lasting = [
        {"environment": "task 1", "discrepancy": 0.1, "discrepancy held out": 0.4, "divergence": 0.05},
        {"environment": "task 2", "discrepancy": 2.0, "discrepancy held out": 1.5, "divergence": 0.5},
    ]
    first = {
        "environment": "task 1",
        "support error": [0.0],
        "error on generated": [0.0],
        "optimal error": [0.0],
        "optimal error held out": [0.1],
        "query error": [0.2],
        "left side": 0.2,
        "right side": 0.1,
        "right side held out": 0.5,
    }
    second = {
        "environment": "task 2",
        "support error": [0.02, 0.01],
        "error on generated": [0.04, 0.03],
        "optimal error": [0.0, 0.07],
        "optimal error held out": [0.2, 0.3],
        "query error": [0.25, 0.15],
        "left side": 0.4,
        "right side": 2.25,
        "right side held out": 2.48,
    }
    return Found(CASE, {0: {"environments": lasting, "stages": [first, second]}})


def test_the_grids_of_the_bound_have_every_term_and_both_sides() -> None:
    terms, sides = bound_grids([bound_found()])
    assert terms.header == [
        "",
        "true query error",
        "support error",
        "on generated",
        "KL of replay",
        "discrepancy, held out",
        "discrepancy, on these rows",
        "C* (oracle), held out",
        "C* (oracle), on these rows",
    ]
    assert terms.body == [
        ["task 1", "25.0", "2.0", "4.0", "0.0500", "40.0", "10.0", "20.0", "0.0"],
        ["task 2", "15.0", "1.0", "3.0", "0.5000", "150.0", "200.0", "30.0", "7.0"],
        ["mean", "20.0", "1.5", "3.5", "0.2750", "95.0", "105.0", "25.0", "3.5"],
    ]
    assert sides.header == [
        "after", "left: query error", "right, held out", "so the bound is", "right, on these rows", "so the bound is"
    ]  # fmt: skip
    assert sides.body == [
        ["task 1", "20.0", "50.0", "informative", "10.0", "broken"],
        ["task 2", "20.0", "124.0", "vacuous", "112.5", "vacuous"],  # the sums over two environments
    ]
    assert "held out it is vacuous after 1, informative after 1 of 2" in sides.says
    assert "on these rows it is vacuous after 1, broken after 1 of 2" in sides.says


@pytest.mark.parametrize(
    ("left", "right", "said"),
    [(0.2, 0.3, "informative"), (0.2, 0.2, "informative"), (0.2, 1.0, "vacuous"), (0.2, 0.1, "broken"), (1.0, 1.0, "vacuous")],
)
def test_a_bound_that_any_solver_keeps_is_called_vacuous(left: float, right: float, said: str) -> None:
    assert verdict(left, right) == said


def test_the_terms_of_an_environment_are_stacked_to_its_share_of_the_right_side() -> None:
    axis = Canvas().subplots()
    clouds.bound_stacks(axis, list(bound_found().seeds.values()))
    bars = {round(bar.get_x() + bar.get_width() / 2, 2): 0.0 for bar in axis.patches}
    for bar in axis.patches:
        bars[round(bar.get_x() + bar.get_width() / 2, 2)] = bar.get_y() + bar.get_height()
    held_out, on_these_rows, query = (bars[place] for place in (-0.27, 0.0, 0.27))
    assert held_out == pytest.approx(2 + 40 + 5 + 20)
    assert on_these_rows == pytest.approx(2 + 10 + 5 + 0)
    assert query == pytest.approx(25)
    assert bars[0.73] == pytest.approx(1 + 150 + 30)  # the newest environment is not replayed: no KL
    assert bars[0.73] + held_out == pytest.approx(248)  # the right side of the second stage


# -- pictures ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("draw", "found"),
    [
        (draw_features, features_found),
        (draw_alignment, alignment_found),
        (draw_augmentation, augmentation_found),
        (draw_bound, bound_found),
    ],
    ids=["features", "alignment", "augmentation", "bound"],
)
@pytest.mark.parametrize("cases", [1, 2])
def test_each_picture_is_drawn_whole_and_alone(
    draw: Callable[[Sequence[Found], Path], None], found: Callable[[], Found], cases: int, tmp_path: Path
) -> None:
    path = tmp_path / "results" / "a.png"
    draw([found() for _ in range(cases)], path)
    assert [each.name for each in path.parent.iterdir()] == ["a.png"]
    picture = imread(path)
    assert min(picture.shape[:2]) > 300
    assert len(np.unique(picture[..., :3].reshape(-1, 3), axis=0)) > 20


def test_points_of_the_support_are_light_and_those_of_the_query_dark() -> None:
    axis = Canvas().subplots()
    streams(axis, CLOUD)
    support, query = axis.collections
    assert support.get_offsets().tolist() == [[0, 0], [1, 1]]
    assert query.get_offsets().tolist() == [[2, 0]]
    lightness = [(max(colour) + min(colour)) / 2 for colour in (*support.get_facecolors()[:, :3], *query.get_facecolors()[:, :3])]
    assert lightness == pytest.approx([LIGHT, LIGHT, DARK])


def test_no_two_classes_share_a_hue() -> None:
    for classes in (2, 6, 31):
        hues = np.array([hue(number, classes, dark=True) for number in range(classes)])
        apart = np.abs(hues[:, None] - hues[None]).max(axis=2) + np.eye(classes)
        assert apart.min() > 0.01


# -- the files of reproduce/ -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["bound", "features", "alignment", "augmentation"])
def test_a_quick_figure_is_the_first_case_of_the_full_one_at_a_smaller_budget(name: str) -> None:
    full, quick = load(REPRODUCE, name, "ledger"), load(REPRODUCE, name, "quick")
    assert isinstance(full, Figure)
    assert isinstance(quick, Figure)
    assert full.study == quick.study == name
    assert [case.label for case in quick.cases] == [full.cases[0].label]
    assert quick.seeds == full.seeds[:1]
    assert quick.setting.steps < full.setting.steps
    assert {task.planned.key for _, task in full.tasks()}.isdisjoint(task.planned.key for _, task in quick.tasks())


def test_the_bound_is_estimated_at_the_papers_budget_on_two_pairs() -> None:
    full = load(REPRODUCE, "bound")
    assert isinstance(full, Figure)
    assert [case.place.arguments for case in full.cases] == [("D", "A"), ("A", "W")]
    (setting, seeds) = full.setting, full.seeds
    assert (setting.warm_up, setting.steps, setting.features, setting.gamma, seeds) == (500, 1000, 1024, 4.0, (0,))
