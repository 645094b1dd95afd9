"""What validators say of configurations: that they see no label of the query, and how their ranks are counted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tiny import gaussians, three

from perdure import AnalyticConfig, Answers, Scenario, Support
from perdure.experiments.ledger import Place, Result
from perdure.experiments.selection import BETTER, EVERY, parted, validated
from perdure.report.selection import TOGETHER, Selection, correlation, ranks
from perdure.report.studies import Case

CONFIGURATIONS = {"one": AnalyticConfig(), "two": AnalyticConfig(spread=0.5), "three": AnalyticConfig(rounds=0)}
CASES = {"Here": [Case("D→A", Place("office31.tasks", ("D", "A"))), Case("A→W", Place("office31.tasks", ("A", "W")))]}
SELECTION = Selection("validators", "Ranks", CONFIGURATIONS, CASES)


def scenario(*, answers_moved: int = 0) -> Scenario:
    """Three environments; of each another draw from the same place is kept aside, and answers may be wrong on purpose."""
    environments = three()
    aside = {e.name: gaussians(e.name, e.support.classes, rows=20, seed=7).support for e in environments if e.support is not None}
    right = {e.name: np.roll(e.support.y, answers_moved) for e in environments if e.support is not None}
    unseen = {name: Support(rows.x, np.roll(rows.y, answers_moved)) for name, rows in aside.items() if rows is not None}
    return Scenario("three", environments, Answers(right, unseen))


def test_each_validator_has_a_number_that_the_labels_of_queries_do_not_move() -> None:
    right, wrong = (validated(AnalyticConfig(), scenario(answers_moved=n), "cpu", False) for n in (0, 1))
    assert right["validators"].keys() == BETTER.keys()
    assert np.isfinite(list(right["validators"].values())).all()
    assert right["validators"] == wrong["validators"]
    assert right["accuracy"] != wrong["accuracy"]


def test_one_row_in_five_of_every_class_is_kept_aside() -> None:
    x, y = np.arange(24.0)[:, None], np.repeat(["a", "b"], [10, 14])
    learned, aside = parted(Support(x, y))
    assert EVERY == 5
    assert aside.x.ravel().tolist() == [4, 9, 14, 19]
    assert aside.y.tolist() == ["a", "a", "b", "b"]
    assert sorted([*learned.x.ravel(), *aside.x.ravel()]) == x.ravel().tolist()


def test_equal_values_share_a_rank() -> None:
    assert ranks(np.array([[0.1, 0.5, 0.5, 0.2], [4, 3, 2, 1]])).tolist() == [[1, 3.5, 3.5, 2], [4, 3, 2, 1]]


def test_spearmans_correlation() -> None:
    assert correlation(np.array([1.0, 2, 3]), np.array([10.0, 100, 1000])) == pytest.approx(1)
    assert correlation(np.array([1.0, 2, 3]), np.array([3.0, 1, 2])) == pytest.approx(-0.5)
    assert correlation(np.array([1.0, 1, 1]), np.array([3.0, 1, 2])) == 0


def made_up(values: dict[str, tuple[float, float]]) -> dict[str, Result]:
    """Configuration → what every validator says, better upwards, and how right it is; the same in both cases."""
    return {
        SELECTION.planned(config, case.place).key: Result(
            {},
            {},
            {},
            [1.0],
            0,
            {"device": "cpu"},
            {
                "validators": {name: sign * values[label][0] for name, sign in BETTER.items()},
                "accuracy": {queries: {"given": 1.0, "unknown": values[label][1]} for queries in ("transductive", "inductive")},
            },
        )
        for label, config in CONFIGURATIONS.items()
        if label in values
        for case in CASES["Here"]
    }


def test_validators_that_rank_as_the_truth_does_correlate_and_choose_the_best() -> None:
    results = made_up({"one": (1, 0.3), "two": (3, 0.5), "three": (2, 0.4)})
    text = SELECTION.text(results)
    for name in [*BETTER, TOGETHER]:
        line = next(line for line in text.splitlines() if line.strip().startswith(name))
        assert line.split()[-5:] == ["1.00", "1.00", "two", "50.0", "50.0"], line
    assert "the best there is, which takes labels to know: Here 50.0 and 50.0" in text


def test_validators_that_rank_the_other_way_choose_the_worst() -> None:
    line = next(
        line
        for line in SELECTION.text(made_up({"one": (3, 0.3), "two": (1, 0.5), "three": (2, 0.4)})).splitlines()
        if line.strip().startswith(TOGETHER)
    )
    assert line.split()[-5:] == ["-1.00", "-1.00", "one", "30.0", "30.0"]


def test_configurations_that_are_missing_are_left_out_and_said(tmp_path: Path) -> None:
    results = made_up({"one": (1, 0.3), "two": (2, 0.5)})
    assert "4 of 6 runs are there" in SELECTION.markdown(results)
    assert "\n| three |" not in SELECTION.markdown(results)
    SELECTION.picture(results, tmp_path / "p.png")
    assert (tmp_path / "p.png").stat().st_size > 1000
    assert "0 of 6 runs are there" in SELECTION.text({})


def test_a_run_says_what_it_is() -> None:
    (_, first), *others = SELECTION.tasks()
    assert first.label == "one, D→A"
    assert first.planned.inductive
    assert first.planned.study == "validators"
    assert len({task.planned.key for _, task in others} | {first.planned.key}) == 6
    assert replace(first.planned, study=None).key != first.planned.key
