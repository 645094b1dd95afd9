"""Tables and curves: every number that is printed or drawn, worked out by hand from results that are made up here."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure as Canvas
from tiny import TINY

from perdure.errors import InputError
from perdure.experiments.ledger import Place, Result
from perdure.experiments.methods import ANALYTIC, LOWER_BOUNDS, Setting, continual, joint_training, upper_bound
from perdure.experiments.runner import PROTOCOLS, Protocol
from perdure.metrics import AccuracyMatrix
from perdure.report import figures
from perdure.report.figures import average_curves, component_curves, first_task_curves, running
from perdure.report.tables import SUREST, Column, Row, Table, aligned_row, markdown_row, mean_and_spread

GIVEN, GIVEN_ASIDE, UNKNOWN, UNKNOWN_ASIDE = PROTOCOLS
NAN = np.nan
SETTING = Setting(features=8, gamma=2.0, warm_up=10, steps=2000, joint_steps=7)
RISING = Place("office_home.domains", ("Ar", ("Rw", "Pr", "Cl")))
FALLING = Place("office_home.domains", ("Ar", ("Cl", "Pr", "Rw")))
OURS, BOUND, LDA = continual(TINY), upper_bound(TINY), LOWER_BOUNDS["LDA"]
NO_CONFIDENCE = {"ECE": "", SUREST: ""}


def matrix(*stages: Sequence[float]) -> AccuracyMatrix:
    """A row a stage, filled up with NaN."""
    width = len(stages[-1])
    return AccuracyMatrix(
        tuple(f"environment {i}" for i in range(width)), np.array([[*row, *[NAN] * (width - len(row))] for row in stages])
    )


def at_the_end(*final: float) -> AccuracyMatrix:
    """Of a method that is scored once."""
    return AccuracyMatrix(
        tuple(f"environment {i}" for i in range(len(final))), np.array([[NAN] * len(final)] * (len(final) - 1) + [list(final)])
    )


def result(accuracy: dict[Protocol, AccuracyMatrix], **changed: Any) -> Result:
    """A run that took an hour."""
    values: dict[str, Any] = {"own": {}, "recognised": {}, "seconds": [1800.0, 1800.0], "bytes": 0, **changed}
    return Result(accuracy, **{"computed_with": {"device": "cpu", "torch": "0"}, **values})


def table(columns: Sequence[Column], rows: Sequence[Row], **more: Any) -> Table:
    return Table("made-up", "Made up", columns, rows, average_curves, **more)


def pair(label: str, **more: Any) -> Column:
    """A column whose place has no order: "D→A"."""
    return Column(label, Place("office31.tasks", tuple(label.split("→"))), SETTING, **more)


def lines(text: str) -> list[list[str]]:
    """Words of each line of a grid, which two spaces keep apart."""
    return [re.split(r"  +", line.strip()) for line in text.splitlines()]


# -- means and spreads -------------------------------------------------------------------------------------------------------


def test_a_cell_is_the_mean_over_seeds_with_n_minus_one() -> None:
    assert mean_and_spread([]) == "–"
    assert mean_and_spread([12.34]) == "12.3"
    assert mean_and_spread([10.0, 20.0]) == "15.0±7.1"  # sqrt(50 / 1), not sqrt(50 / 2) = 5.0
    assert mean_and_spread([1.0, 2.0, 6.0]) == "3.0±2.6"  # sqrt((4 + 1 + 9) / 2)


def test_a_value_of_a_cell_is_the_mean_over_environments_or_the_first_one() -> None:
    average, first = pair("D→A"), pair("D→A", figure="first task")
    row = Row("ours", OURS, seeds=(0, 1))
    made = table([average, first], [row])
    results = {
        made.planned(row, average, 0).key: result({GIVEN: matrix([0.9], [0.5, 1.0], [0.3, 0.6, 0.9])}),
        made.planned(row, average, 1).key: result({GIVEN: matrix([0.9], [0.5, 1.0], [0.2, 0.2, 0.2])}),
    }
    assert made.cell(results, row, average, GIVEN).values == pytest.approx({0: 60.0, 1: 20.0})
    assert made.cell(results, row, first, GIVEN).values == pytest.approx({0: 30.0, 1: 20.0})
    assert made.cell(results, row, average, UNKNOWN).values == {}
    assert [str(cell) for cell in made.cells(results, row, GIVEN)] == ["40.0±28.3", "25.0±7.1"]
    assert made.cell(results, row, average, GIVEN).planned == 2


def test_seeds_belong_to_their_own_runs() -> None:
    column, row = pair("D→A"), Row("ours", OURS, seeds=(3, 1), inductive_seeds=(5,))
    made = table([column], [row])
    results = {
        made.planned(row, column, seed, inductive=inductive).key: result({GIVEN: matrix([value]), GIVEN_ASIDE: matrix([value])})
        for seed, inductive, value in ((3, False, 0.3), (1, False, 0.1), (5, True, 0.5), (3, True, 0.9), (5, False, 0.8))
    }
    assert len(results) == 5
    assert made.cell(results, row, column, GIVEN).values == pytest.approx({3: 30.0, 1: 10.0})
    # Inductive: other runs, which adapt to half of each query; their transductive scores stand nowhere.
    assert made.cell(results, row, column, GIVEN_ASIDE).values == pytest.approx({5: 50.0})
    assert made.cell(results, row, column, GIVEN_ASIDE).planned == 1


def test_a_column_may_have_fewer_seeds_than_the_row() -> None:
    many, few = pair("D→A"), pair("A→W", seeds=1)
    row = Row("ours", OURS, seeds=(0, 1), inductive_seeds=(0, 1))
    made = table([many, few], [row], means={"mean": (0, 1)})
    results = {
        made.planned(row, column, seed).key: result({GIVEN: matrix([value])})
        for column, seed, value in ((many, 0, 0.2), (many, 1, 0.4), (few, 0, 0.6), (few, 1, 0.9))
    }
    assert [str(cell) for cell in made.cells(results, row, GIVEN)] == ["30.0±14.1", "60.0", "40.0"]  # the mean has seed 0 only
    assert len(made.tasks()) == 2 * (2 + 1)
    header, body = made._grid(results, GIVEN)
    assert (header[0], body[0][0]) == ("", "ours (1–2 seeds)")


def test_a_mean_is_over_its_own_columns_and_the_seeds_that_all_of_them_have() -> None:
    columns = [pair("D→A"), pair("A→W"), pair("W→D")]
    row = Row("ours", OURS, seeds=(0, 1))
    made = table(columns, [row], means={"first two": (0, 1), "last": (2,), "all": range(3)})
    values = {(0, 0): 0.1, (0, 1): 0.2, (1, 1): 0.6, (2, 0): 0.9}  # column, seed
    results = {made.planned(row, columns[c], s).key: result({GIVEN: matrix([value])}) for (c, s), value in values.items()}
    assert [str(cell) for cell in made.cells(results, row, GIVEN)] == ["15.0±7.1", "60.0", "90.0", "40.0", "90.0", "–"]


# -- the text ----------------------------------------------------------------------------------------------------------------


def full_table() -> tuple[Table, dict[str, Result]]:
    """Two columns and their mean; ours with two seeds, an upper bound in part, a lower bound, a row without runs."""
    columns = [pair("D→A"), pair("A→W")]
    rows = [
        Row("joint", joint_training(TINY), paper="70.1 80.2 75.2"),
        Row("upper", BOUND, paper="1±.1 2 3"),
        Row("ours", OURS, seeds=(0, 1), inductive_seeds=(0,)),
        Row("LDA", LDA, inductive_seeds=(0,)),
    ]
    made = table(columns, rows, means={"mean": (0, 1)}, notes=("one note",))
    d_a, a_w = columns
    results = {
        made.planned(rows[1], d_a, 0).key: result({GIVEN: at_the_end(0.5, 0.7)}),
        made.planned(rows[2], d_a, 0).key: result(
            {GIVEN: matrix([0.9], [0.7, 0.9]), UNKNOWN: at_the_end(0.1, 0.3)},  # forgot 0.2
            own={"environment 0": 1.0, "environment 1": 0.9},
            recognised={"transductive": 0.4},
        ),
        made.planned(rows[2], d_a, 1).key: result(
            {GIVEN: matrix([0.8], [0.8, 1.0]), UNKNOWN: at_the_end(0.1, 0.1)},  # forgot nothing
            own={"environment 0": 0.8, "environment 1": 0.9},
            recognised={"transductive": 0.6},
        ),
        made.planned(rows[2], a_w, 0).key: result(
            {GIVEN: matrix([0.7], [0.2, 0.4]), UNKNOWN: at_the_end(0.5, 0.5)},  # forgot 0.5
            own={"environment 0": 0.5, "environment 1": 0.5},
            recognised={"transductive": 0.8},
        ),
        made.planned(rows[2], d_a, 0, inductive=True).key: result({GIVEN_ASIDE: matrix([0.9], [0.3, 0.3]), GIVEN: matrix([0.0])}),
        made.planned(rows[3], d_a, 0).key: result({GIVEN: at_the_end(0.6, 0.6), UNKNOWN: at_the_end(0.5, 0.6)}),
        made.planned(rows[3], a_w, 0).key: result({GIVEN: at_the_end(0.8, 0.8), UNKNOWN: at_the_end(0.5, 0.7)}),
    }
    return made, results


def test_the_text_has_each_protocol_the_papers_row_and_a_dash_for_what_is_missing() -> None:
    made, results = full_table()
    assert lines(made.text(results)) == [
        ["Made up"],
        ["accuracy in %; mean over environments, each counting once; ± standard deviation over seeds (n − 1)"],
        ["10 + 2,000 steps an environment (warm-up + end to end); scored at the last step, nothing selected"],
        ["seeds 0, 1; a row that has fewer has the first of them"],
        ["joint training: 7 steps in all after the same warm-up"],
        ["one note"],
        # Of 2 + 2 + (4 + 2) + (2 + 2); seven hours.
        ["7 of 14 runs are there; 7.0 hours of one process, on cpu"],
        [""],
        ["environment given, transductive"],
        ["D→A", "A→W", "mean", "forgetting", "own f"],
        ["joint", "–", "–", "–"],
        ["the paper", "70.1", "80.2", "75.2"],
        ["upper", "60.0", "–", "–"],
        ["the paper", "1±.1", "2", "3"],
        # Forgetting: D→A (0.2 + 0) / 2, A→W 0.5. Own f: D→A (0.95 + 0.85) / 2, A→W 0.5.
        ["ours (1–2 seeds)", "85.0±7.1", "30.0", "55.0", "30.0", "70.0"],
        ["LDA", "60.0", "80.0", "70.0"],
        [""],
        ["environment given, inductive"],
        ["D→A", "A→W", "mean"],
        ["ours", "30.0", "–", "–"],
        [""],
        ["environment unknown, transductive"],
        ["D→A", "A→W", "mean", "recognised"],
        # Recognised: D→A (0.4 + 0.6) / 2, A→W 0.8.
        ["ours (1–2 seeds)", "15.0±7.1", "50.0", "35.0", "65.0"],
        ["LDA", "55.0", "60.0", "57.5"],
    ]


def test_the_markdown_has_the_same_numbers() -> None:
    made, results = full_table()
    text = made.markdown(results)
    assert text.splitlines()[:2] == ["## Made up", ""]
    assert "- 7 of 14 runs are there; 7.0 hours of one process, on cpu" in text
    assert "|  | D→A | A→W | mean | forgetting | own f |\n| --- | --: | --: | --: | --: | --: |\n| joint | – | – | –" in text
    assert "\n|   the paper | 1±.1 | 2 | 3 |   |   |\n| ours (1–2 seeds) | 85.0±7.1 | 30.0 | 55.0 | 30.0 | 70.0 |\n" in text
    assert (
        "**environment given, inductive**\n\n|  | D→A | A→W | mean |\n| --- | --: | --: | --: |\n| ours | 30.0 | – | – |\n"
        in text
    )
    assert "environment unknown, inductive" not in text
    assert text.endswith("Every run: `reproduce/results/made-up.json`. Command: `perdure reproduce made-up`.")


def test_a_table_without_results_says_so() -> None:
    made, _ = full_table()
    assert "0 of 14 runs are there\n" in made.text({})
    assert lines(made.text({}))[-4:] == [
        ["joint", "–", "–", "–"],
        ["the paper", "70.1", "80.2", "75.2"],
        ["upper", "–", "–", "–"],
        ["the paper", "1±.1", "2", "3"],
    ]


def test_every_device_that_numbers_come_from_is_named() -> None:
    made, results = full_table()
    key = next(iter(results))
    mixed = {**results, key: replace(results[key], computed_with={"device": "a card", "torch": "0"})}
    assert "on a card, cpu" in made.text(mixed)


def test_each_column_of_a_remark_counts_once_however_many_seeds_it_has() -> None:
    many, few = pair("D→A"), pair("A→W", seeds=1)
    row = Row("ours", OURS, seeds=(0, 1, 2))
    made = table([many, few], [row])
    forgot = {"own": {"a": 0.2}, "recognised": {"transductive": 0.1}}
    kept = {"own": {"a": 0.8}, "recognised": {"transductive": 0.9}}
    results = {made.planned(row, many, s).key: result({GIVEN: matrix([0.9], [0.5, 0.5])}, **forgot) for s in row.seeds}
    results[made.planned(row, few, 0).key] = result({GIVEN: matrix([0.9], [0.9, 0.9])}, **kept)
    assert made.remarks(results, row, GIVEN) == {"forgetting": "20.0", "own f": "50.0", "recognised": "50.0", **NO_CONFIDENCE}


def test_what_cannot_forget_has_no_forgetting() -> None:
    column = pair("D→A")
    rows = [Row("upper", BOUND), Row("LDA", LDA)]
    made = table([column], rows)
    for row in rows:
        results = {made.planned(row, column, 0).key: result({GIVEN: at_the_end(0.5, 0.7)})}
        assert made.remarks(results, row, GIVEN) == {"forgetting": "", "own f": "", "recognised": "", **NO_CONFIDENCE}


def test_what_confidence_is_worth_stands_beside_what_has_it() -> None:
    """Older results have a calibration error and no curve; what is not the analytic learner has neither."""
    columns = [pair("D→A"), pair("A→W")]
    rows = [Row("closed", ANALYTIC["analytic learner"], inductive_seeds=(0,)), Row("LDA", LDA)]
    made = table(columns, rows)
    errors = [0.01, 0.02, 0.03, 0.04, 0.05, 0.06, 0.07, 0.08, 0.09, 0.1]
    curve = {"coverage": [tenth / 10 for tenth in range(1, 11)], "error": errors}
    old = {"calibration": {str(GIVEN): 0.02, str(UNKNOWN): 0.03}}
    new = {
        "calibration": {str(GIVEN): 0.04, str(UNKNOWN): 0.05},
        "coverage": {str(GIVEN): curve, str(UNKNOWN): {**curve, "error": [2 * error for error in errors]}},
    }
    accuracy = {GIVEN: at_the_end(0.5, 0.7), UNKNOWN: at_the_end(0.5, 0.7)}
    keys = [made.planned(rows[0], column, 0).key for column in columns]
    results = {keys[0]: result(accuracy, numbers=old), made.planned(rows[1], columns[0], 0).key: result(accuracy)}
    assert lines(made.text(results))[-3:] == [
        ["D→A", "A→W", "recognised", "ECE"],
        ["closed", "60.0", "–", "3.0"],
        ["LDA", "60.0", "–"],
    ]
    assert "surest" not in made.text(results)

    results[keys[1]] = result(accuracy, numbers=new)
    assert lines(made.text(results))[-3:] == [
        ["D→A", "A→W", "recognised", "ECE", "error, surest 80 %"],
        ["closed", "60.0", "60.0", "4.0", "16.0"],  # of the one column that has a curve
        ["LDA", "60.0", "–"],
    ]
    said = "error, surest 80 %: in %, if of these rows only the 80 % that the learner is surest of are answered"
    assert said in made.text(results)
    assert made.remarks(results, rows[0], GIVEN)[SUREST] == "8.0"
    assert made.remarks(results, rows[0], UNKNOWN_ASIDE) == {"forgetting": "", "own f": "", "recognised": "", **NO_CONFIDENCE}
    assert made.remarks(results, rows[1], GIVEN)[SUREST] == ""


def test_the_papers_row_must_have_a_number_for_every_column_and_mean() -> None:
    with pytest.raises(InputError, match=r"^Row 'ours' of made-up quotes 2 numbers of the paper for 1 columns and 0 means\.$"):
        table([pair("D→A")], [Row("ours", OURS, paper="1 2")])


def test_rows_are_laid_out_in_columns() -> None:
    assert aligned_row(["a", "1", ""], [3, 4, 2]) == "a       1"
    assert markdown_row(["a", "1"]) == "| a | 1 |"


# -- the runs ----------------------------------------------------------------------------------------------------------------


def test_every_run_is_there_once_and_the_most_important_ones_come_first() -> None:
    first, average = pair("D→A", figure="first task"), pair("D→A")
    rows = [
        Row("asked for later", OURS, tier=4),
        Row("later", continual(replace(TINY, beta=2.0)), tier=2),
        Row("ours", OURS, seeds=(0, 1), inductive_seeds=(0,)),
        Row("the same", OURS),
        Row("LDA", LDA, seeds=(0, 1, 2), tier=3),
    ]
    tasks = table([first, average], rows).tasks()
    assert [(tier, task.label) for tier, task in tasks] == [
        (0, "ours, office31.tasks D A, seed 0"),
        (1, "ours, office31.tasks D A, seed 1"),
        (2, "later, office31.tasks D A, seed 0"),
        (2, "ours, office31.tasks D A, seed 0, inductive"),
        (3, "LDA, office31.tasks D A"),
    ]
    assert [task.planned.inductive for _, task in tasks] == [False, False, False, True, False]
    assert len({task.planned.key for _, task in tasks}) == 5


def test_a_run_of_the_upper_bound_stands_in_the_columns_of_all_orders() -> None:
    columns = [Column("rising", RISING, SETTING), Column("falling", FALLING, SETTING)]
    tasks = table(columns, [Row("upper", BOUND), Row("ours", OURS)]).tasks()
    assert [task.label for _, task in tasks] == [
        "upper, office_home.domains Ar Cl,Pr,Rw, seed 0",
        "ours, office_home.domains Ar Rw,Pr,Cl, seed 0",
        "ours, office_home.domains Ar Cl,Pr,Rw, seed 0",
    ]


# -- orders ------------------------------------------------------------------------------------------------------------------


def test_a_run_without_an_order_is_read_in_the_order_of_its_column() -> None:
    """It was run as Cl, Pr, Rw; in the rising column Rw comes first."""
    columns = [
        Column("rising", RISING, SETTING, "first task"),
        Column("falling", FALLING, SETTING, "first task"),
        Column("mean", RISING, SETTING),
    ]
    row = Row("upper", BOUND)
    made = table(columns, [row])
    results = {made.planned(row, columns[0], 0).key: result({GIVEN: at_the_end(0.1, 0.2, 0.6)})}
    assert [str(cell) for cell in made.cells(results, row, GIVEN)] == ["60.0", "10.0", "30.0"]


def test_the_curve_of_a_run_without_an_order_follows_the_order_of_its_panel() -> None:
    row = Row("upper", BOUND)
    columns = [Column("rising", RISING, SETTING), Column("falling", FALLING, SETTING)]
    made = table(columns, [row])
    results = {made.planned(row, columns[0], 0).key: result({GIVEN: at_the_end(0.1, 0.2, 0.6)})}
    (rising,), (falling,) = (figures._lines(made, results, row, column, "average") for column in columns)
    np.testing.assert_allclose(rising, [0.6, 0.4, 0.3])
    np.testing.assert_allclose(falling, [0.1, 0.15, 0.3])


# -- curves ------------------------------------------------------------------------------------------------------------------


def test_a_curve_is_the_mean_of_what_was_learned_by_then_or_the_first_environment() -> None:
    learned = matrix([0.9], [0.5, 1.0], [0.3, 0.6, 0.9])
    np.testing.assert_allclose(running(learned, "average", orderless=False), [0.9, 0.75, 0.6])
    np.testing.assert_allclose(running(learned, "first task", orderless=False), [0.9, 0.5, 0.3])


def test_the_curve_of_what_is_scored_at_the_end_is_the_same_all_along() -> None:
    ended = at_the_end(0.2, 0.4, 0.9)
    np.testing.assert_allclose(running(ended, "average", orderless=True), [0.2, 0.3, 0.5])
    np.testing.assert_allclose(running(ended, "first task", orderless=True), [0.2, 0.2, 0.2])


def curves_table(draw: Any, columns: Sequence[Column]) -> tuple[Table, dict[str, Result]]:
    rows = [Row("ours", OURS, seeds=(0, 1)), Row("LDA", LDA), Row("joint", joint_training(TINY)), Row("absent", BOUND)]
    made = Table("made-up", "Made up", columns, rows, draw)
    results = {
        made.planned(rows[0], columns[0], 0).key: result({GIVEN: matrix([0.8], [0.4, 0.8]), UNKNOWN: at_the_end(0.0, 0.0)}),
        made.planned(rows[0], columns[0], 1).key: result({GIVEN: matrix([0.6], [0.2, 0.6])}),
        made.planned(rows[1], columns[0], 0).key: result({GIVEN: at_the_end(0.1, 0.3)}),
        made.planned(rows[2], columns[0], 0).key: result({GIVEN: at_the_end(0.9, 0.9)}),
    }
    return made, results


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Canvas]:
    """What is about to be saved."""
    canvases: list[Canvas] = []
    save = figures.save

    def and_keep(canvas: Canvas, path: Path) -> None:
        canvases.append(canvas)
        save(canvas, path)

    monkeypatch.setattr(figures, "save", and_keep)
    return canvases


def heights(axis: Any) -> list[list[float]]:
    return [[round(float(y), 6) for y in line.get_ydata()] for line in axis.get_lines()]


def test_curves_are_drawn_with_these_values_and_titles(tmp_path: Path, drawn: list[Canvas]) -> None:
    columns = [pair("D→A", figure="first task"), pair("D→A")]
    for draw, titles, expected in (
        (average_curves, ["Made up"], [[[70, 50], [10, 20]]]),
        (first_task_curves, ["Made up"], [[[70, 30], [10, 10]]]),
        (component_curves, ["D→A", "D→A"], [[[70, 30], [10, 10]], [[70, 50], [10, 20]]]),
    ):
        made, results = curves_table(draw, columns)
        path = tmp_path / "deeper" / f"{draw.__name__}.png"
        made.picture(results, path)
        assert path.read_bytes().startswith(b"\x89PNG")
        canvas = drawn[-1]
        assert [axis.get_title() for axis in canvas.axes] == titles
        assert [heights(axis) for axis in canvas.axes] == expected  # the joint learner has no curve, nor what is absent
        (legend,) = canvas.legends
        assert [text.get_text() for text in legend.get_texts()] == ["ours", "LDA"]
    assert sorted(path.name for path in (tmp_path / "deeper").iterdir()) == [
        "average_curves.png",
        "component_curves.png",
        "first_task_curves.png",
    ]


def test_a_band_is_one_standard_deviation_over_seeds(tmp_path: Path, drawn: list[Canvas]) -> None:
    made, results = curves_table(average_curves, [pair("D→A")])
    made.picture(results, tmp_path / "a.png")
    (band,) = drawn[-1].axes[0].collections  # LDA has one run, hence none
    corners = {(round(float(x)), round(float(y), 3)) for x, y in band.get_paths()[0].vertices}
    # Seeds 80 and 60: 70 ± 14.142; then 60 and 40: 50 ± 14.142.
    assert corners == {(1, 84.142), (1, 55.858), (2, 64.142), (2, 35.858)}


def test_each_scenario_has_its_own_panel_and_no_panel_is_empty(tmp_path: Path, drawn: list[Canvas]) -> None:
    labels = ["D→A", "A→W", "W→D", "D→W", "W→A"]
    made, results = curves_table(average_curves, [pair(label) for label in labels])
    made.picture(results, tmp_path / "a.png")
    assert [axis.get_title() for axis in drawn[-1].axes] == labels  # of two lines of four, three are removed
    made.picture({}, tmp_path / "nothing.png")
    assert (tmp_path / "nothing.png").exists()


def test_a_picture_that_fails_leaves_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "a.unknown"
    path.write_text("old", encoding="utf-8")
    with pytest.raises(ValueError, match="unknown"):
        figures.save(Canvas(), path)
    assert path.read_text(encoding="utf-8") == "old"
    assert list(tmp_path.iterdir()) == [path]
