"""The embedded default: what it is made of, and that it is as hard and as learnable as it should be."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from perdure import InputError, Scenario
from perdure.scenarios import digits
from perdure.scenarios.digits import TYPEFACES, glyph


@pytest.fixture(scope="module")
def scenario() -> Scenario:
    return digits()


def test_five_environments_of_two_digits_in_order(scenario: Scenario) -> None:
    expected = {"printed 0-1": [0, 1], "printed 2-3": [2, 3], "printed 4-5": [4, 5], "printed 6-7": [6, 7], "printed 8-9": [8, 9]}
    assert {e.name: e.support.classes for e in scenario.environments} == expected
    for name, labels in expected.items():
        assert np.unique(scenario.answers.transductive[name]).tolist() == labels
        assert scenario.answers.inductive[name].classes == labels


def test_support_is_all_of_the_handwriting(scenario: Scenario) -> None:
    from sklearn.datasets import load_digits

    assert sum(len(e.support.x) for e in scenario.environments) == len(load_digits().data) == 1797


def test_queries_and_those_kept_aside_are_balanced(scenario: Scenario) -> None:
    for environment in scenario.environments:
        adapted, aside = scenario.answers.transductive[environment.name], scenario.answers.inductive[environment.name]
        assert (len(environment.query.x), len(aside.x)) == (10 * 2 * 8, 11 * 2 * 8)
        assert np.unique(adapted, return_counts=True)[1].tolist() == [80, 80]
        assert np.unique(aside.y, return_counts=True)[1].tolist() == [88, 88]


def test_order_of_the_rows_does_not_give_the_labels_away(scenario: Scenario) -> None:
    for labels in scenario.answers.transductive.values():
        assert np.count_nonzero(np.diff(labels)) > len(labels) / 4


def test_print_is_the_same_kind_of_feature_as_handwriting(scenario: Scenario) -> None:
    for environment in scenario.environments:
        aside = scenario.answers.inductive[environment.name].x
        for rows in (environment.support.x, environment.query.x, aside):
            assert rows.shape[1] == 64
            assert rows.min() >= 0
            assert 14 <= rows.max() <= 16
            np.testing.assert_array_equal(rows, rows.round())


def test_the_seed_decides_everything(scenario: Scenario) -> None:
    again, other = digits(seed=0), digits(seed=1)
    for first, same, different in zip(scenario.environments, again.environments, other.environments, strict=True):
        np.testing.assert_array_equal(first.query.x, same.query.x)
        np.testing.assert_array_equal(scenario.answers.inductive[first.name].x, again.answers.inductive[first.name].x)
        np.testing.assert_array_equal(first.support.x, different.support.x)
        assert (first.query.x != different.query.x).any()


def test_typefaces_kept_aside_are_others(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def recording(typeface: str, digit: int) -> np.ndarray:
        asked.append(typeface)
        return glyph(typeface, digit)

    monkeypatch.setattr(sys.modules["perdure.scenarios.digits"], "glyph", recording)
    digits(renderings=1)
    adapted, aside = set(), set()
    for i in range(0, len(asked), 42):  # ten and eleven typefaces, two digits of each
        adapted |= set(asked[i : i + 20])
        aside |= set(asked[i + 20 : i + 42])
    assert (len(adapted), len(aside)) == (10, 11)
    assert adapted | aside == set(TYPEFACES)


def test_every_supported_matplotlib_ships_the_typefaces() -> None:
    """Of version 3.8, the oldest that is supported; 3.11 added one."""
    computer_modern = {"cmb10", "cmex10", "cmmi10", "cmr10", "cmss10", "cmsy10", "cmtt10"}
    assert {face for face in TYPEFACES if face.startswith("cm")} <= computer_modern


def test_every_typeface_draws_digits() -> None:
    """Of each, at least half look most like the same digit of another face; of one that draws ornaments, one or two would."""
    from PIL import Image

    small = np.array(
        [
            [np.asarray(Image.fromarray(glyph(face, digit)).resize((12, 16))).reshape(-1) for digit in range(10)]
            for face in TYPEFACES
        ]
    )
    for i, face in enumerate(TYPEFACES):
        others = np.delete(small, i, axis=0).reshape(-1, small.shape[-1])
        nearest = ((small[i][:, None] - others) ** 2).sum(axis=2).argmin(axis=1) % 10
        assert (nearest == np.arange(10)).mean() >= 0.5, face


def test_domain_is_hard_without_adapting_and_learnable_with_labels(scenario: Scenario) -> None:
    from perdure.experiments import PROTOCOLS, run, source_only
    from perdure.experiments.lower_bounds import logistic_regression

    scores = {str(protocol): matrix.average for protocol, matrix in run(scenario, source_only()).accuracy.items()}
    assert scores.keys() == {str(protocol) for protocol in PROTOCOLS}
    for protocol, score in scores.items():
        assert score < (0.8 if "given" in protocol else 0.4), protocol

    x = np.concatenate([e.query.x for e in scenario.environments])
    y = np.concatenate([scenario.answers.transductive[e.name] for e in scenario.environments])
    aside = scenario.answers.inductive.values()
    with_labels = logistic_regression(x, y)(np.concatenate([rows.x for rows in aside])).argmax(axis=1)
    assert (with_labels == np.concatenate([rows.y for rows in aside])).mean() > 0.9


def test_missing_typeface_is_named() -> None:
    with pytest.raises(InputError, match="does not ship the typeface Garamond"):
        glyph("Garamond", 0)


@pytest.mark.parametrize(
    ("argument", "message"), [({"seed": -1}, "`seed` .* got -1"), ({"renderings": 0}, "`renderings` .* got 0")]
)
def test_impossible_arguments_are_refused(argument: dict[str, int], message: str) -> None:
    with pytest.raises(InputError, match=message):
        digits(**argument)
