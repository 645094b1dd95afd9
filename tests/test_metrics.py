"""Every figure against a value worked out by hand."""

from __future__ import annotations

import inspect
import json

import numpy as np
import pytest

from perdure import InputError
from perdure.metrics import (
    AccuracyMatrix,
    accuracy,
    coverage_risk,
    environment_inference_accuracy,
    expected_calibration_error,
)

NAN = float("nan")


@pytest.fixture
def matrix() -> AccuracyMatrix:
    """Three environments; the first rises and then falls, the second falls, the third is just learned."""
    return AccuracyMatrix(("a", "b", "c"), np.array([[0.8, NAN, NAN], [0.9, 0.7, NAN], [0.5, 0.6, 1.0]]))


def test_average_is_the_mean_of_the_last_row(matrix: AccuracyMatrix) -> None:
    assert matrix.average == pytest.approx((0.5 + 0.6 + 1.0) / 3)


def test_average_incremental_accuracy_is_the_mean_of_the_stages_means(matrix: AccuracyMatrix) -> None:
    assert matrix.average_incremental == pytest.approx((0.8 + (0.9 + 0.7) / 2 + (0.5 + 0.6 + 1.0) / 3) / 3)


def test_first_task_is_the_final_accuracy_on_what_was_learned_first(matrix: AccuracyMatrix) -> None:
    assert matrix.first_task == 0.5


def test_forgetting_is_counted_from_the_best_earlier_stage(matrix: AccuracyMatrix) -> None:
    assert matrix.forgetting == pytest.approx(((0.9 - 0.5) + (0.7 - 0.6)) / 2)


def test_forgetting_is_negative_where_later_stages_helped() -> None:
    assert AccuracyMatrix(("a", "b"), np.array([[0.5, NAN], [0.75, 1.0]])).forgetting == -0.25


def test_backward_transfer_is_counted_from_when_each_was_just_learned(matrix: AccuracyMatrix) -> None:
    assert matrix.backward_transfer == pytest.approx(((0.5 - 0.8) + (0.6 - 0.7)) / 2)


def test_worst_environment_is_named(matrix: AccuracyMatrix) -> None:
    assert matrix.worst_environment == ("a", 0.5)


def test_one_environment_cannot_have_been_forgotten() -> None:
    alone = AccuracyMatrix(("a",), np.array([[0.5]]))
    assert (alone.average, alone.first_task, alone.forgetting, alone.backward_transfer) == (0.5, 0.5, 0.0, 0.0)


def test_an_environment_that_is_learned_late_or_never_is_left_out_until_then() -> None:
    late = AccuracyMatrix(("never", "late", "early"), np.array([[NAN, NAN, 0.6], [NAN, 0.4, 0.5], [NAN, 0.3, 0.5]]))
    assert late.first_task == 0.5
    assert late.average == pytest.approx(0.4)
    assert late.average_incremental == pytest.approx((0.6 + 0.45 + 0.4) / 3)
    assert late.forgetting == pytest.approx((0.1 + 0.1) / 2)
    assert late.worst_environment == ("late", 0.3)
    np.testing.assert_array_equal(late.when_learned, [NAN, 0.4, 0.6])


def test_json_has_null_where_nothing_was_learned(matrix: AccuracyMatrix) -> None:
    entry = json.loads(json.dumps(matrix.to_json(), allow_nan=False))
    assert entry["values"] == [[0.8, None, None], [0.9, 0.7, None], [0.5, 0.6, 1.0]]
    assert entry["worst_environment"] == {"environment": "a", "accuracy": 0.5}
    assert {key: entry[key] for key in ("average", "first_task", "forgetting")} == pytest.approx(
        {"average": 0.7, "first_task": 0.5, "forgetting": 0.25}
    )


def test_matrix_is_a_value() -> None:
    given = np.array([[0.5]])
    matrix = AccuracyMatrix(("a",), given)
    given[0, 0] = 0.9
    assert matrix.average == 0.5
    with pytest.raises(ValueError, match="read-only"):
        matrix.values[0, 0] = 1.0


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([[0.5, 0.5]], "a column for each of 1 environments"),
        ([[1.5]], "between 0 and 1"),
        ([[0.5], [NAN]], "scored at every later stage"),
        ([[NAN]], "no environment was scored"),
    ],
)
def test_impossible_matrix_is_refused(values: list[list[float]], message: str) -> None:
    with pytest.raises(InputError, match=message):
        AccuracyMatrix(("a",), np.array(values))


def test_accuracy_is_the_fraction_of_rows_that_are_right() -> None:
    assert accuracy(np.array(["cat", "dog", "dog", "cow"]), np.array(["cat", "dog", "cat", "cow"])) == 0.75


def test_strings_are_not_compared_with_numbers() -> None:
    with pytest.raises(InputError, match="a string never equals a number"):
        accuracy(np.array(["1"]), np.array([1]))


def test_accuracy_needs_one_prediction_a_label() -> None:
    with pytest.raises(InputError, match=r"\(2,\) and \(1,\)"):
        accuracy(np.array([1, 1]), np.array([1]))
    with pytest.raises(InputError, match="at least one"):
        accuracy(np.array([], dtype=int), np.array([], dtype=int))


def test_environment_inference_accuracy_is_the_fraction_recognised() -> None:
    assert environment_inference_accuracy(np.array(["a", "b", "ab", "a"]), "a") == 0.5


def test_calibration_error_equals_hand_computed_value() -> None:
    # Two bins: (0, 1/2] holds 0.5 (wrong) and 0.3 (right), (1/2, 1] holds 0.9 (right), 0.7 (wrong) and 1.0 (right).
    confidence, right = np.array([0.5, 0.3, 0.9, 0.7, 1.0]), np.array([False, True, True, False, True])
    expected = 2 / 5 * abs(1 / 2 - 0.8 / 2) + 3 / 5 * abs(2 / 3 - 2.6 / 3)
    assert expected_calibration_error(confidence, right, bins=2) == pytest.approx(expected)


def test_calibration_error_is_zero_for_answers_as_sure_as_they_are_right() -> None:
    confidence, right = np.full(10, 0.8), np.arange(10) < 8
    assert expected_calibration_error(confidence, right) == pytest.approx(0)
    assert expected_calibration_error(confidence, ~right) == pytest.approx(0.6)


def test_confidence_of_zero_has_a_bin() -> None:
    assert expected_calibration_error(np.array([0.0, 0.0]), np.array([True, False]), bins=4) == pytest.approx(0.5)


@pytest.mark.parametrize("confidence", [[1.2], [NAN], []])
def test_confidence_must_be_probabilities(confidence: list[float]) -> None:
    for measure in (expected_calibration_error, coverage_risk):
        with pytest.raises(InputError, match="probabilities between 0 and 1"):
            measure(np.array(confidence, dtype=float), np.ones(len(confidence), dtype=bool))


@pytest.mark.parametrize("rows", [1, 3])
def test_there_must_be_a_confidence_for_each_answer(rows: int) -> None:
    for measure in (expected_calibration_error, coverage_risk):
        unchecked = inspect.unwrap(measure)  # as where shapes are not checked
        with pytest.raises(InputError, match=rf"a confidence for each answer; got shapes \(2,\) and \({rows},\)"):
            unchecked(np.array([0.5, 0.6]), np.ones(rows, dtype=bool))


def test_calibration_needs_a_bin() -> None:
    with pytest.raises(InputError, match="`bins` must be at least 1, got 0"):
        expected_calibration_error(np.array([0.5]), np.array([True]), bins=0)


def test_coverage_risk_equals_hand_computed_values() -> None:
    # The surest first: 0.9 right, 0.7 wrong, 0.6 right, 0.5 right, 0.2 wrong.
    confidence, right = np.array([0.2, 0.9, 0.6, 0.7, 0.5]), np.array([False, True, True, False, True])
    curve = coverage_risk(confidence, right)
    np.testing.assert_array_equal(curve.threshold, [0.9, 0.7, 0.6, 0.5, 0.2])
    np.testing.assert_allclose(curve.coverage, [1 / 5, 2 / 5, 3 / 5, 4 / 5, 1])
    np.testing.assert_allclose(curve.error, [0, 1 / 2, 1 / 3, 1 / 4, 2 / 5])
    assert curve.area == pytest.approx((0 + 1 / 2 + 1 / 3 + 1 / 4 + 2 / 5) / 5)


def test_rows_of_the_same_confidence_are_answered_together_whatever_their_order() -> None:
    # 0.9 right; then three of 0.8, two of them wrong; then 0.1 right.
    confidence, right = np.array([0.8, 0.9, 0.8, 0.1, 0.8]), np.array([False, True, True, True, False])
    for order in ([0, 1, 2, 3, 4], [2, 4, 3, 1, 0]):
        curve = coverage_risk(confidence[order], right[order])
        np.testing.assert_array_equal(curve.threshold, [0.9, 0.8, 0.1])
        np.testing.assert_allclose(curve.coverage, [1 / 5, 4 / 5, 1])
        np.testing.assert_allclose(curve.error, [0, 2 / 4, 2 / 5])
        assert curve.area == pytest.approx((0 + 3 * 2 / 4 + 2 / 5) / 5)  # each of the three counts
        assert [curve.at_coverage(least) for least in (0.1, 0.2, 0.21, 0.8, 1.0)] == pytest.approx([0, 0, 0.5, 0.5, 0.4])


def test_confidence_that_says_nothing_leaves_the_error_as_it_is() -> None:
    curve = coverage_risk(np.full(10, 0.7), np.arange(10) < 8)
    assert curve.coverage.tolist() == [1.0]
    assert (curve.area, curve.at_coverage(0.1)) == pytest.approx((0.2, 0.2))


def test_the_area_is_least_where_every_wrong_answer_is_less_sure_than_every_right_one() -> None:
    # Three right ones, then errors of 1/4 and 2/5; the other way round 1, 1, 2/3, 2/4 and 2/5.
    confidence, right = np.linspace(1, 0, 5), np.arange(5) < 3
    assert coverage_risk(confidence, right).area == pytest.approx((1 / 4 + 2 / 5) / 5)
    assert coverage_risk(1 - confidence, right).area == pytest.approx((1 + 1 + 2 / 3 + 2 / 4 + 2 / 5) / 5)


def test_one_row_is_a_curve() -> None:
    curve = coverage_risk(np.array([0.0]), np.array([False]))
    assert (curve.coverage.tolist(), curve.error.tolist(), curve.area) == ([1.0], [1.0], 1.0)


def test_a_threshold_answers_what_is_as_sure_as_that_or_more() -> None:
    curve = coverage_risk(np.array([0.9, 0.8, 0.7], dtype=np.float32), np.array([True, False, True]))
    # 0.9 is a little less in single precision; `abstain_below=0.9` answers such a row all the same.
    assert curve.abstaining(0.9) == pytest.approx((1 / 3, 0))
    assert curve.abstaining(0.8) == pytest.approx((2 / 3, 1 / 2))
    assert curve.abstaining(0.75) == pytest.approx((2 / 3, 1 / 2))
    assert curve.abstaining(0.0) == pytest.approx((1, 1 / 3))
    assert curve.abstaining(0.95) == (0, None)


def test_tenths_of_the_rows_are_those_rows() -> None:
    # Of ten rows only the third surest is wrong: the error at 30 % is 1/3, although 3 * 0.1 is not 0.3 in a computer.
    curve = coverage_risk(np.linspace(1, 0.1, 10), np.arange(10) != 2)
    for tenths in range(1, 11):
        expected = 1 / tenths if tenths > 2 else 0
        assert curve.at_coverage(tenths * 0.1 if tenths < 10 else 1.0) == pytest.approx(expected)


def test_json_of_a_curve_holds_tenths_its_area_and_thresholds() -> None:
    # Of two rows the surer, of 0.8, is right.
    entry = json.loads(json.dumps(coverage_risk(np.array([0.8, 0.4]), np.array([True, False])).to_json(), allow_nan=False))
    assert entry == {
        "coverage": [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0],
        "error": [0, 0, 0, 0, 0, 0.5, 0.5, 0.5, 0.5, 0.5],
        "area": 0.25,
        "abstain_below": {
            "0.5": {"coverage": 0.5, "error": 0},
            "0.8": {"coverage": 0.5, "error": 0},
            "0.9": {"coverage": 0, "error": None},
        },
    }


@pytest.mark.parametrize("least", [0.0, 1.1, NAN])
def test_a_coverage_is_a_fraction_of_the_rows(least: float) -> None:
    with pytest.raises(InputError, match=f"above 0 and at most 1, got {least}"):
        coverage_risk(np.array([0.5]), np.array([True])).at_coverage(least)
