"""The terms of the theorem: each estimator against a value known beforehand, and the two sides against their sums."""

from __future__ import annotations

from dataclasses import replace
from math import log

import pytest
import torch
from tiny import TINY, learner_of, three
from torch import Tensor, tensor
from torch.testing import assert_close

from perdure import Answers, Scenario
from perdure.experiments import bound
from perdure.experiments.bound import (
    belief_by_class,
    bound_terms,
    discrepancy,
    discrepancy_held_out,
    expected_error,
    optimal_errors,
    replay_divergence,
)
from perdure.experiments.features import Aligned, new_solver
from perdure.solver import TwoLayerClassifier

CONFIG = replace(TINY, features=4, width=32)
CPU = torch.device("cpu")
LOG_3 = log(3.0)


@pytest.fixture(autouse=True)
def _quick_fitting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bound, "FIT_STEPS", 150)
    monkeypatch.setattr(bound, "FIT_RATE", 1e-2)


def noise(rows: int, seed: int, *, at: float = 0.0, features: int = 4) -> Tensor:
    """A Gaussian around `at` in the last dimension."""
    h = torch.randn(rows, features, generator=torch.Generator().manual_seed(seed))
    h[:, -1] += at
    return h


def hypothesis(features: int = 4, classes: int = 2) -> TwoLayerClassifier:
    """Some f."""
    return new_solver(replace(CONFIG, features=features), classes, CPU, 7)


def first_rows(s: int, q: int, first_s: int, first_q: int) -> tuple[Tensor, Tensor]:
    """The first so many rows of a stream of `s` and of one of `q`."""
    return torch.arange(s) < first_s, torch.arange(q) < first_q


def reading(classes: int) -> TwoLayerClassifier:
    """Its logits are the features, which must not be negative."""
    classifier = TwoLayerClassifier(classes, classes, classes).requires_grad_(False)
    for layer in (classifier.hidden, classifier.output):
        layer.weight.copy_(torch.eye(classes))
        layer.bias.zero_()
    return classifier


# -- the discrepancy ---------------------------------------------------------------------------------------------------------


def test_identical_streams_have_no_discrepancy() -> None:
    h = noise(30, 0)
    assert discrepancy(hypothesis(), h, h, h, h, CONFIG, 0) == 0


def test_the_discrepancy_of_streams_that_can_be_told_apart_is_two() -> None:
    s, q = noise(60, 0, at=6), noise(90, 1, at=-6)
    f = hypothesis().requires_grad_(False)
    f.output.bias += tensor([100.0, 0.0])  # one answer for all, so that f' has only the streams to tell apart
    assert discrepancy(f, s, q, s, q, CONFIG, 0) == 2
    rows = Aligned(s, torch.zeros(60, dtype=torch.int64), q, torch.zeros(90, dtype=torch.int64))
    assert discrepancy_held_out(f, rows, first_rows(60, 90, 30, 45), CONFIG, 0) == 2


def test_the_discrepancy_weighs_the_streams_alike() -> None:
    # At one place lie 1/3 of the support and 2/3 of the query, elsewhere it is the other way round. An f' that differs there
    # and only there has 2 (2/3 - 1/3). With the margin 4 of learning it would agree: the query is only twice as dense.
    place, elsewhere = tensor([[3.0, 0.0, 0.0, 0.0]]), tensor([[-3.0, 0.0, 0.0, 0.0]])
    s = torch.cat([place.expand(20, 4), elsewhere.expand(40, 4)])
    q = torch.cat([place.expand(40, 4), elsewhere.expand(20, 4)])
    assert discrepancy(hypothesis(), s, q, s, q, CONFIG, 0) == pytest.approx(2 * (2 / 3 - 1 / 3))


def test_held_out_is_measured_on_rows_that_the_adversary_was_not_fitted_to() -> None:
    # Few rows in many dimensions, of one distribution: told apart at will, but by chance alone.
    s, q = noise(40, 0, features=64), noise(40, 1, features=64)
    y = torch.zeros(40, dtype=torch.int64)
    config = replace(CONFIG, features=64)
    assert discrepancy(hypothesis(64), s, q, s, q, config, 0) > 1.9
    assert discrepancy_held_out(hypothesis(64), Aligned(s, y, q, y), first_rows(40, 40, 20, 20), config, 0) < 0.6


# -- replay ------------------------------------------------------------------------------------------------------------------


def test_replay_of_the_very_features_does_not_diverge() -> None:
    h, labels = noise(12, 0), torch.eye(2).repeat(6, 1)
    assert replay_divergence(hypothesis(), h, labels, h, labels) == 0


def test_replay_divergence_equals_hand_computed_value() -> None:
    # Generated features of class 0 are believed 3/4, 1/4 and real ones 1/2, 1/2; those of class 1 are the same.
    h_g, h_r = tensor([[LOG_3, 0.0], [0.0, LOG_3]]), tensor([[0.0, 0.0], [0.0, LOG_3]])
    value = replay_divergence(reading(2), h_g, torch.eye(2), h_r, torch.eye(2))
    assert value == pytest.approx((0.75 * log(1.5) + 0.25 * log(0.5)) / 2)


def test_a_class_that_was_not_generated_is_left_out_of_the_divergence() -> None:
    h_g, h_r = tensor([[LOG_3, 0.0], [LOG_3, 0.0]]), tensor([[0.0, 0.0], [0.0, LOG_3]])
    value = replay_divergence(reading(2), h_g, tensor([[1.0, 0.0], [1.0, 0.0]]), h_r, torch.eye(2))
    assert value == pytest.approx(0.75 * log(1.5) + 0.25 * log(0.5))


def test_a_soft_label_counts_in_part_for_the_belief_of_a_class() -> None:
    belief, labels = tensor([[0.8, 0.2], [0.4, 0.6]]), tensor([[1.0, 0.0], [0.5, 0.5]])
    # Class 0: (0.8 + 0.4/2) / 1.5 and (0.2 + 0.6/2) / 1.5; class 1: the second row alone.
    assert_close(belief_by_class(belief, labels), tensor([[2 / 3, 1 / 3], [0.4, 0.6]]))


def test_the_expected_error_of_soft_labels_is_the_belief_in_other_classes() -> None:
    # Answers 2, 0, 1 among three classes; the environment's own are 2 and 0, so the last answer is wrong whatever the label.
    h = 5 * tensor([[0.0, 0.0, 1.0], [1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
    labels = tensor([[0.75, 0.25], [0.9, 0.1], [0.5, 0.5]])  # right by 0.75, 0.1, 0
    assert expected_error(reading(3), h, labels, tensor([2, 0])) == pytest.approx(1 - 0.85 / 3)


# -- the optimal solver ------------------------------------------------------------------------------------------------------


def two_points(s: tuple[int, int], q: tuple[int, int], y_s: int, y_q: int) -> Aligned:
    """So many rows of both streams at one point and at another; there both are of class 2, at the first they may differ."""
    here, there = tensor([4.0, 0.0, 0.0, 0.0]), tensor([0.0, 4.0, 0.0, 0.0])

    def stream(here_and_there: tuple[int, int], y: int) -> tuple[Tensor, Tensor]:
        a, b = here_and_there
        return torch.cat([here.expand(a, 4), there.expand(b, 4)]), tensor([y] * a + [2] * b)

    return Aligned(*stream(s, y_s), *stream(q, y_q))


def twice(rows: Aligned) -> tuple[Aligned, tuple[Tensor, Tensor]]:
    """The rows and the same again as the other half, so that what holds on these rows holds held out."""
    both = Aligned(*(torch.cat([part, part]) for part in rows))
    return both, first_rows(len(both.y_s), len(both.y_q), len(rows.y_s), len(rows.y_q))


def test_classes_that_can_be_told_apart_leave_the_optimal_solver_no_error() -> None:
    first, half = twice(two_points((5, 5), (9, 3), 0, 0))
    assert optimal_errors([first], [half], 3, CONFIG) == ([0.0], [0.0])


def test_streams_that_contradict_each_other_cost_any_solver_one() -> None:
    # At one point the support is always 0 and the query always 1: whoever answers 0 has errors 0 + 1, who answers 1 has 1 + 0.
    rows, half = twice(two_points((5, 0), (9, 0), 0, 1))
    on_these_rows, held_out = optimal_errors([rows], [half], 3, CONFIG)
    assert on_these_rows == held_out == [1.0]


def test_the_optimal_solver_counts_each_stream_alike_however_many_rows_it_has() -> None:
    # Of the query two thirds contradict the whole support: answering as the support does costs 2/3, as the query does 1.
    # In rows the query has 60 against 10.
    rows, half = twice(two_points((10, 0), (60, 30), 0, 1))
    on_these_rows, held_out = optimal_errors([rows], [half], 3, CONFIG)
    assert on_these_rows == held_out == [pytest.approx(2 / 3)]


def test_the_optimal_solver_held_out_is_scored_on_the_other_half() -> None:
    # The halves contradict each other, each stream agreeing with the other: fitted to one, all is wrong on the other.
    one, other = two_points((6, 0), (6, 0), 0, 0), two_points((6, 0), (6, 0), 1, 1)
    rows = Aligned(*(torch.cat([a, b]) for a, b in zip(one, other, strict=True)))
    assert optimal_errors([rows], [first_rows(12, 12, 6, 6)], 3, CONFIG)[1] == [2.0]


# -- both sides --------------------------------------------------------------------------------------------------------------


@pytest.fixture
def scenario(monkeypatch: pytest.MonkeyPatch) -> Scenario:
    """Three tiny environments, and little fitting."""
    monkeypatch.setattr(bound, "FIT_STEPS", 5)
    monkeypatch.setattr(bound, "GENERATED", 40)
    environments = three()
    return Scenario("three", environments, Answers({e.name: e.support.y for e in environments if e.support is not None}))


def test_the_right_side_sums_every_term_up_to_t_and_the_divergence_up_to_the_one_before(scenario: Scenario) -> None:
    found = bound_terms(TINY, scenario, "cpu", False)
    environments, stages = found["environments"], found["stages"]
    assert [each["environment"] for each in environments] == [each["environment"] for each in stages] == ["clinic", "farm", "zoo"]
    assert all(each["divergence"] > 0 for each in environments)
    for t, stage in enumerate(stages, start=1):
        for name in ("support error", "query error", "optimal error", "optimal error held out", "error on generated"):
            assert len(stage[name]) == t
        assert stage["left side"] == sum(stage["query error"])
        replayed = sum(each["divergence"] for each in environments[: t - 1])
        for how in ("", " held out"):
            lambdas = sum(each[f"discrepancy{how}"] for each in environments[:t])
            expected = sum(stage["support error"]) + lambdas + replayed + sum(stage[f"optimal error{how}"])
            assert stage[f"right side{how}"] == pytest.approx(expected, abs=1e-12)


def test_the_errors_of_a_stage_are_those_of_the_solver_as_it_was_then(scenario: Scenario) -> None:
    stages = bound_terms(TINY, scenario, "cpu", False)["stages"]
    for t, stage in enumerate(stages, start=1):
        learner = learner_of(scenario.environments[:t])
        for environment, wrong in zip(scenario.environments[:t], stage["query error"], strict=True):
            assert environment.query is not None
            answers = learner.predict(environment.query.x, environment.name)
            truth = scenario.answers.transductive[environment.name]
            assert wrong == pytest.approx(float((answers != truth).mean()), abs=1e-6)
