"""Sums over rows against sums worked out by hand."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from perdure import statistics
from perdure.statistics import Moments, packed, unpacked

X = np.array([[1, 2], [3, 0], [0, 4], [2, 2]], dtype=np.float32)
BELONGS = np.array([[1, 0], [1, 0], [0, 1], [0.5, 0.25]], dtype=np.float32)
"""The last row counts for three quarters, and for one class twice what it does for the other."""


def drawn(rows: int, classes: int = 3, features: int = 5) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(rows)
    return rng.normal(size=(rows, features)).astype(np.float32), rng.dirichlet(np.ones(classes), rows).astype(np.float32)


def assert_equal(one: Moments, other: Moments, *, within: float = 0.0) -> None:
    for part in ("weight", "sums", "second"):
        np.testing.assert_allclose(getattr(one, part), getattr(other, part), rtol=0, atol=within)


def test_moments_equal_those_worked_out_by_hand() -> None:
    moments = Moments.of(X, BELONGS)
    np.testing.assert_array_equal(moments.weight, [2.5, 1.25])
    np.testing.assert_array_equal(moments.sums, [[5, 3], [0.5, 4.5]])
    # x x^T is [[1, 2], [2, 4]], [[9, 0], [0, 0]], [[0, 0], [0, 16]] and [[4, 4], [4, 4]], the last for 0.75
    np.testing.assert_array_equal(moments.second, [13, 5, 23])
    assert moments.features == 2
    assert moments.rows == 3.75
    np.testing.assert_allclose(moments.mean, [5.5 / 3.75, 7.5 / 3.75])
    np.testing.assert_allclose(moments.means, [[2, 1.2], [0.4, 3.6]])
    assert [part.dtype for part in (moments.weight, moments.sums, moments.second)] == [np.float64] * 3


def test_within_is_the_scatter_about_each_classs_own_mean() -> None:
    moments = Moments.of(X[:3], BELONGS[:3])
    # about (2, 1) and (0, 4): (-1, 1), (1, -1) and nothing
    np.testing.assert_allclose(moments.within, [[2, -2], [-2, 2]], atol=1e-12)
    x, belongs = drawn(40)
    expected = np.zeros((5, 5))
    for c in range(3):
        about = x - (belongs[:, c] @ x) / belongs[:, c].sum()
        expected += (belongs[:, c, None] * about).T @ about
    np.testing.assert_allclose(Moments.of(x, belongs).within, expected, atol=1e-4)


def test_a_class_of_no_rows_has_a_mean_of_zero_and_adds_nothing_to_the_scatter() -> None:
    moments = Moments.of(X[:2], np.array([[1, 0], [1, 0]], dtype=np.float32))
    np.testing.assert_array_equal(moments.means, [[2, 1], [0, 0]])
    np.testing.assert_allclose(moments.within, [[2, -2], [-2, 2]], atol=1e-12)


def test_moments_of_all_rows_are_the_sum_of_those_of_some_and_of_the_others() -> None:
    x, belongs = drawn(50)
    assert_equal(Moments.of(x[:20], belongs[:20]) + Moments.of(x[20:], belongs[20:]), Moments.of(x, belongs), within=1e-12)


def test_what_was_added_can_be_subtracted_without_a_trace_above_rounding() -> None:
    one, other = Moments.of(*drawn(50)), Moments.of(*drawn(1000))
    assert_equal(one + other - other, one, within=1e-12)


def test_adding_leaves_both_as_they_were() -> None:
    one, other = Moments.of(*drawn(50)), Moments.of(*drawn(60))
    total = one + other
    total -= one
    total += one
    assert_equal(one, Moments.of(*drawn(50)))
    assert_equal(other, Moments.of(*drawn(60)))


@pytest.mark.parametrize("block", [1, 7, 50, 51])
def test_rows_are_taken_in_blocks_that_do_not_matter(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    x, belongs = drawn(50)
    whole = Moments.of(x, belongs)
    monkeypatch.setattr(statistics, "BLOCK", block)
    assert_equal(Moments.of(x, belongs), whole, within=1e-12)


def test_among_more_classes_its_own_stand_at_the_places_asked_for() -> None:
    moments = Moments.of(X, BELONGS).at(np.array([2, 0]), 4)
    np.testing.assert_array_equal(moments.weight, [1.25, 0, 2.5, 0])
    np.testing.assert_array_equal(moments.sums, [[0.5, 4.5], [0, 0], [5, 3], [0, 0]])
    np.testing.assert_array_equal(moments.second, [13, 5, 23])
    np.testing.assert_allclose(moments.within, Moments.of(X, BELONGS).within)


def test_a_symmetric_matrix_is_kept_as_its_upper_triangle_row_by_row() -> None:
    whole = np.array([[1.0, 2, 3], [2, 4, 5], [3, 5, 6]])
    np.testing.assert_array_equal(packed(whole), [1, 2, 3, 4, 5, 6])
    np.testing.assert_array_equal(unpacked(packed(whole), 3), whole)


@pytest.mark.parametrize(("part", "numbers"), [(lambda m: m, 3 + 3 * 5 + 15), (lambda m: m + m, 3 + 3 * 5 + 15)])
def test_bytes_do_not_depend_on_the_number_of_rows(part: Callable[[Moments], Moments], numbers: int) -> None:
    assert [part(Moments.of(*drawn(rows))).nbytes for rows in (1, 10, 1000)] == [8 * numbers] * 3
