"""The coverage–risk figure: which runs it needs, what stands in its grids, and what is drawn."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import stand_in
from matplotlib.figure import Figure as Canvas

from perdure.experiments.ledger import Place, Result
from perdure.experiments.methods import ANALYTIC
from perdure.experiments.reproduce import load
from perdure.experiments.runner import PROTOCOLS
from perdure.metrics import COVERAGES, THRESHOLDS
from perdure.report import coverage
from perdure.report.coverage import CoverageFigure
from perdure.report.tables import Table

REPRODUCE = Path(__file__).resolve().parents[1] / "reproduce"
METHOD = ANALYTIC["analytic learner"]
D_A, A_W, AR_CL = (
    Place("office31.tasks", ("D", "A")),
    Place("office31.tasks", ("A", "W")),
    Place("office_home.tasks", ("Ar", "Cl")),
)
FIGURE = CoverageFigure("made-up", "Made up", METHOD, {"small": [D_A, A_W], "large": [AR_CL]}, ("A note",))


def result(numbers: dict[str, Any]) -> Result:
    """A run that found these numbers."""
    return Result({}, {}, {}, [60.0], 0, {"device": "cpu", "torch": "2"}, numbers)


def measured(last: float, *, queries: str, below: Sequence[tuple[float, float | None]]) -> Result:
    """A run whose error rises evenly to `last`; that of a given environment is another."""
    thresholds = {str(each): {"coverage": c, "error": e} for each, (c, e) in zip(THRESHOLDS, below, strict=True)}
    curve = {
        "coverage": list(COVERAGES),
        "error": [last * each for each in COVERAGES],
        "area": last / 2,
        "abstain_below": thresholds,
    }
    other = {**curve, "error": [1.0] * 10, "area": 1.0}
    return result(
        {
            "calibration": {},
            "coverage": {
                f"environment {given}, {each}": curve if (given, each) == ("unknown", queries) else other
                for given in ("given", "unknown")
                for each in ("transductive", "inductive")
            },
        }
    )


def results() -> dict[str, Result]:
    """Transductive of all three scenarios; inductive of one, and an older result without a curve."""
    return {
        FIGURE.planned(D_A, "transductive").key: measured(
            0.1, queries="transductive", below=[(0.9, 0.08), (0.7, 0.06), (0.5, 0.04)]
        ),
        FIGURE.planned(A_W, "transductive").key: measured(
            0.3, queries="transductive", below=[(0.7, 0.2), (0.3, 0.1), (0.0, None)]
        ),
        FIGURE.planned(AR_CL, "transductive").key: measured(
            0.5, queries="transductive", below=[(0.6, 0.3), (0.4, 0.2), (0.2, 0.1)]
        ),
        FIGURE.planned(D_A, "inductive").key: measured(0.2, queries="inductive", below=[(0.8, 0.1), (0.6, 0.1), (0.0, None)]),
        FIGURE.planned(A_W, "inductive").key: result({"calibration": {str(protocol): 0.1 for protocol in PROTOCOLS}}),
    }


def test_a_curve_is_the_mean_over_the_scenarios_that_have_one() -> None:
    both = FIGURE.curve(results(), "small", "transductive")
    assert both.label == "small, transductive"
    assert both.error == pytest.approx([0.2 * each for each in COVERAGES])
    np.testing.assert_allclose(both.each, [[0.1 * each for each in COVERAGES], [0.3 * each for each in COVERAGES]])
    assert both.area == pytest.approx((0.05 + 0.15) / 2)
    assert both.abstaining[0.5] == pytest.approx((0.8, 0.14))
    assert both.abstaining[0.9] == pytest.approx((0.25, 0.04))  # of the one that answers any row
    one = FIGURE.curve(results(), "small", "inductive")
    assert (one.label, one.area) == ("small, inductive (1 of 2)", 0.1)
    assert one.abstaining[0.9] == (0, None)
    assert FIGURE.curve(results(), "large", "inductive") == ("large, inductive (0 of 1)", [], [], None, {})


def test_the_text_has_a_line_for_every_curve_and_a_dash_for_what_is_missing() -> None:
    assert FIGURE.text(results()).splitlines() == [
        "Made up",
        "environment unknown; the rows of all environments together, then the mean over scenarios, each counting once",
        "A note",
        "5 of 6 runs are there; 1 of them without a curve",
        "",
        "Error among the rows answered, %, by how many of all rows are answered, the surest first; AURC: area under this curve",
        "                             10 %  20 %  30 %  40 %  50 %  60 %  70 %  80 %  90 %  100 %  AURC",
        "  small, transductive         2.0   4.0   6.0   8.0  10.0  12.0  14.0  16.0  18.0   20.0  10.0",
        "  small, inductive (1 of 2)   2.0   4.0   6.0   8.0  10.0  12.0  14.0  16.0  18.0   20.0  10.0",
        "  large, transductive         5.0  10.0  15.0  20.0  25.0  30.0  35.0  40.0  45.0   50.0  25.0",
        "  large, inductive (0 of 1)     –     –     –     –     –     –     –     –     –      –     –",
        "",
        "With `abstain_below`: rows answered, and error among them, %",
        "                             0.5: answered  error  0.8: answered  error  0.9: answered  error",
        "  small, transductive                 80.0   14.0           50.0    8.0           25.0    4.0",
        "  small, inductive (1 of 2)           80.0   10.0           60.0   10.0            0.0      –",
        "  large, transductive                 60.0   30.0           40.0   20.0           20.0   10.0",
        "  large, inductive (0 of 1)              –      –              –      –              –      –",
    ]
    assert FIGURE.text({}).splitlines()[3] == "0 of 6 runs are there"


def test_the_markdown_has_the_same_numbers_and_its_command() -> None:
    text = FIGURE.markdown(results())
    assert text.startswith("## Made up\n\n- environment unknown; ")
    assert "| large, transductive | 60.0 | 30.0 | 40.0 | 20.0 | 20.0 | 10.0 |" in text
    assert text.endswith(
        "Every run: `reproduce/results/made-up.json`; the picture stands beside it. Command: `perdure reproduce made-up`."
    )


def test_curves_are_drawn_in_a_panel_for_each_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Canvas] = []
    save = coverage.save
    monkeypatch.setattr(coverage, "save", lambda canvas, path: (drawn.append(canvas), save(canvas, path)))
    FIGURE.picture(results(), tmp_path / "a.png")
    FIGURE.picture({}, tmp_path / "nothing.png")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.png", "nothing.png"]
    small, large = drawn[0].axes
    assert [axis.get_title() for axis in (small, large)] == ["small", "large"]

    def points(axis: Any, colour: str) -> list[list[tuple[float, float]]]:
        lines = [line for line in axis.get_lines() if line.get_color() == colour and len(line.get_xdata())]
        return [[(round(float(x), 6), round(float(y), 6)) for x, y in zip(*line.get_data(), strict=True)] for line in lines]

    def rising(last: float) -> list[tuple[float, float]]:
        return [(10.0 * tenth, last * tenth / 10) for tenth in range(1, 11)]

    assert points(small, "C0") == [rising(10), rising(30), rising(20), [(80, 14)], [(50, 8)], [(25, 4)]]
    assert points(small, "C1") == [rising(20), rising(20), [(80, 10)], [(60, 10)]]  # where nothing is answered is no mark
    assert points(large, "C0") == [rising(50), rising(50), [(60, 30)], [(40, 20)], [(20, 10)]]
    assert points(large, "C1") == []
    assert [line.get_marker() for line in large.get_lines()] == ["None", "None", "o", "s", "^"]
    assert small.get_ylim()[0] == large.get_ylim()[0] == 0
    assert small.get_ylim()[1] > 50  # the panels share it, and none is cut off
    (legend,) = drawn[0].legends
    assert [text.get_text() for text in legend.get_texts()] == [
        "transductive, mean", "inductive, mean", "abstain_below=0.5", "abstain_below=0.8", "abstain_below=0.9"
    ]  # fmt: skip
    assert drawn[1].legends == []


def test_every_run_is_one_of_the_tables_of_tasks() -> None:
    figure = load(REPRODUCE, "coverage-risk")
    assert isinstance(figure, CoverageFigure)
    assert {group: len(places) for group, places in figure.groups.items()} == {"Office-31": 6, "Office-Home": 12}
    of_tables = set()
    for name in ("office31-tasks", "office-home-tasks"):
        table = load(REPRODUCE, name)
        assert isinstance(table, Table)
        of_tables |= {task.planned.key for _, task in table.tasks() if task.planned.method.kind == "analytic"}
    assert {task.planned.key for _, task in figure.tasks()} == of_tables
    assert len(of_tables) == 2 * (6 + 12)


def test_a_run_keeps_its_curve_when_it_is_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERDURE_DATA", str(stand_in.write(tmp_path)))
    figure = CoverageFigure("made-up", "Made up", METHOD, {"small": [D_A]})
    stored = {}
    for _, task in figure.tasks():
        found = task.planned.carry_out(progress=False)
        stored[task.planned.key] = Result.from_json(json.loads(json.dumps(found.to_json(), allow_nan=False)))
        assert stored[task.planned.key].numbers == found.numbers
    for _, task in figure.tasks():
        kept = stored[task.planned.key]
        queries = "inductive" if task.planned.inductive else "transductive"
        curve = figure.curve(stored, "small", queries)
        at = kept.numbers["coverage"][f"environment unknown, {queries}"]
        assert (curve.label, list(curve.error), curve.area) == (f"small, {queries}", at["error"], at["area"])
        assert len(curve.error) == 10
