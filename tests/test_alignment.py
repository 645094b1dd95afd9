"""Each step of the alignment against values worked out by hand, and what all of them together are good for."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import pytest

from perdure import AnalyticConfig, alignment
from perdure.alignment import (
    Alignment,
    align,
    apart,
    discriminant,
    evenly_spread,
    explained_scatter,
    factored,
    misplaced,
    neighbour_graph,
    shrunk_to_zero,
    softmax,
    spread_over,
    whitened,
)
from perdure.statistics import Moments


class Drawn(NamedTuple):
    """Gaussians; the query is elsewhere."""

    support: Moments
    query: np.ndarray
    y: np.ndarray
    """Of the query."""


def drawn(of_query: list[int], *, rows: int = 40, distance: float = 2.0, shift: float = 0.5, seed: int = 0) -> Drawn:
    """A query with so many rows of each class, and perhaps of one class more than the support has."""
    rng = np.random.default_rng(seed)
    centres, move = distance * rng.normal(size=(len(of_query), 20)), shift * rng.normal(size=20)
    y_s, y = np.repeat(np.arange(len(of_query)), rows), np.repeat(np.arange(len(of_query)), of_query)
    x_s, x_q = (c + rng.normal(size=c.shape) for c in (centres[y_s], centres[y] + move))
    support = Moments.of(x_s.astype(np.float32), np.eye(len(of_query), dtype=np.float32)[y_s])
    return Drawn(support, x_q.astype(np.float32), y)


def aligned(support: Moments, x: np.ndarray, **settings: Any) -> Alignment:
    """As the learner does by default."""
    config = AnalyticConfig()
    defaults = {name: getattr(config, name) for name in ("prior", "neighbours", "spread", "rounds", "guard")}
    return align(support, x, **{**defaults, **settings})


def by_source(support: Moments, x: np.ndarray) -> np.ndarray:
    rule = discriminant(support.means, support.within, support.rows, AnalyticConfig().prior)
    return (x @ rule.weights + rule.offsets).argmax(axis=1)


def of_rows(angles: list[float], lengths: list[float]) -> np.ndarray:
    return np.array([[r * math.cos(a), r * math.sin(a)] for a, r in zip(angles, lengths, strict=True)], dtype=np.float32)


# LDA


def test_a_discriminant_equals_one_worked_out_by_hand() -> None:
    means, scatter = np.array([[1.0, 0], [-1, 2]]), np.diag([8.0, 16])
    rule = discriminant(means, scatter, 4.0, 2.0)  # 4 rows and a prior of 4: A = (diag(8, 16) + 4 * 3 * I) / 8 = diag(2.5, 3.5)
    np.testing.assert_allclose(rule.weights, [[1 / 2.5, -1 / 2.5], [0, 2 / 3.5]], rtol=1e-6)
    np.testing.assert_allclose(rule.offsets, [-0.5 / 2.5, -0.5 * (1 / 2.5 + 4 / 3.5)], rtol=1e-6)
    assert rule.weights.dtype == rule.offsets.dtype == np.float32


def test_features_that_vary_together_are_taken_together() -> None:
    rule = discriminant(np.array([[1.0, 0], [0, 1]]), np.array([[4.0, 2], [2, 4]]), 2.0, 1e-12)  # inverse: [[2, -1], [-1, 2]] / 3
    np.testing.assert_allclose(rule.weights, [[2 / 3, -1 / 3], [-1 / 3, 2 / 3]], rtol=1e-6)


def test_a_prior_of_many_rows_leaves_the_nearest_mean() -> None:
    rng = np.random.default_rng(0)
    means, x = rng.normal(size=(4, 3)), rng.normal(size=(50, 3)).astype(np.float32)
    rule = discriminant(means, np.cov(rng.normal(size=(3, 9))), 1.0, 1e6)
    nearest = np.square(x[:, None] - means).sum(axis=2).argmin(axis=1)
    np.testing.assert_array_equal((x @ rule.weights + rule.offsets).argmax(axis=1), nearest)


@pytest.mark.parametrize("scatter", [np.zeros((3, 3)), 1e-18 * np.diag([1.0, -1, 0])], ids=["nothing", "rounding"])
def test_without_scatter_the_nearest_mean_wins_in_finite_numbers(scatter: np.ndarray) -> None:
    rule = discriminant(np.eye(3)[:2], scatter, 2.0, 1.0)
    scores = np.eye(3, dtype=np.float32) @ rule.weights + rule.offsets
    assert np.isfinite(scores).all()
    np.testing.assert_array_equal(softmax(scores)[:2], np.eye(2))


def test_the_more_rows_there_are_the_less_the_prior_counts() -> None:
    means, covariance = np.eye(2), np.diag([1.0, 3])
    few, many = (discriminant(means, rows * covariance, float(rows), 1.0).weights for rows in (2, 2000))
    np.testing.assert_allclose(few, np.diag([1 / 1.5, 1 / 2.5]), rtol=1e-6)
    np.testing.assert_allclose(many, np.diag([1.0, 1 / 3]), rtol=2e-3)


def test_what_rows_of_a_class_differ_in_counts_less_among_neighbours() -> None:
    scatter = np.array([[8.0, 4], [4, 10]])
    white = whitened(np.array([[2.0, 1], [0, 3]], dtype=np.float32), factored(np.zeros((1, 2)), scatter, 2.0, 1e-12))
    np.testing.assert_allclose(white, [[1, 0], [0, 1.5]], atol=1e-6)  # A = [[4, 2], [2, 5]] has the factor [[2, 0], [1, 2]]
    assert white.flags.c_contiguous


# A shift


def test_a_shift_is_shrunk_by_what_chance_would_make_it() -> None:
    np.testing.assert_allclose(shrunk_to_zero(np.array([3.0, 4]), 5.0), [2.4, 3.2])
    np.testing.assert_array_equal(shrunk_to_zero(np.array([3.0, 4]), 0.0), [3, 4])
    np.testing.assert_array_equal(shrunk_to_zero(np.array([3.0, 4]), 25.0), [0, 0])
    np.testing.assert_array_equal(shrunk_to_zero(np.array([3.0, 4]), 30.0), [0, 0])
    np.testing.assert_array_equal(shrunk_to_zero(np.zeros(2), 0.0), [0, 0])


# Neighbours

A, B, C = 0.0, math.acos(0.6), math.pi / 2
"""Directions with cosines 0.6 (A, B), 0.8 (B, C) and 0 (A, C), which cubed are 0.216, 0.512 and 0."""


@pytest.mark.parametrize("lengths", [[1.0, 1, 1], [2.0, 0.1, 30]])
def test_a_neighbour_graph_equals_one_worked_out_by_hand(lengths: list[float]) -> None:
    graph = neighbour_graph(of_rows([A, B, C], lengths), 2)
    ab, bc = 0.216 / math.sqrt(0.216 * 0.728), 0.512 / math.sqrt(0.728 * 0.512)
    np.testing.assert_allclose(graph.toarray(), [[0, ab, 0], [ab, 0, bc], [0, bc, 0]], atol=1e-6)
    assert graph.dtype == np.float32


def test_rows_are_tied_if_one_of_them_has_the_other_for_its_likest() -> None:
    graph = neighbour_graph(of_rows([A, B, C], [1.0, 1, 1]), 1)  # that of A is B, though that of B is C
    np.testing.assert_array_equal(graph.toarray() > 0, [[0, 1, 0], [1, 0, 1], [0, 1, 0]])


def test_rows_of_opposite_directions_are_not_tied() -> None:
    np.testing.assert_array_equal(neighbour_graph(of_rows([0, math.pi], [1.0, 1]), 1).toarray(), np.zeros((2, 2)))


def test_without_neighbours_there_are_no_ties() -> None:
    assert neighbour_graph(of_rows([A, B, C], [1.0, 1, 1]), 0).nnz == 0


def test_neighbours_are_looked_for_among_some_rows_of_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alignment, "GRAPH_ROWS", 10)
    rows = np.random.default_rng(0).normal(size=(50, 4)).astype(np.float32)
    ties = neighbour_graph(rows, 3).toarray()
    others = np.setdiff1d(np.arange(50), evenly_spread(rows / np.linalg.norm(rows, axis=1, keepdims=True), 10))
    assert len(others) == 40
    assert not ties[np.ix_(others, others)].any()
    assert ((ties[others] > 0).sum(axis=1) == 3).sum() > 30  # some point away from all but one or two


def test_the_same_rows_are_chosen_in_whatever_order_they_come() -> None:
    rows = np.random.default_rng(0).normal(size=(100, 4)).astype(np.float32)
    order = np.random.default_rng(1).permutation(100)
    chosen = evenly_spread(rows, 10)
    assert len(chosen) == 10
    assert set(order[evenly_spread(rows[order], 10)]) == set(chosen)
    np.testing.assert_array_equal(evenly_spread(rows, 100), np.arange(100))


def test_beliefs_spread_as_worked_out_by_hand() -> None:
    from scipy import sparse

    graph, beliefs = sparse.csr_matrix(np.array([[0, 1], [1, 0]], dtype=np.float32)), np.eye(2, dtype=np.float32)
    # (I - S/2)^-1 = [[4, 2], [2, 4]] / 3
    np.testing.assert_allclose(spread_over(graph, beliefs, 0.5), [[2 / 3, 1 / 3], [1 / 3, 2 / 3]], atol=1e-6)
    np.testing.assert_array_equal(spread_over(graph, beliefs, 0.0), beliefs)


# What decides


def test_explained_scatter_equals_values_worked_out_by_hand() -> None:
    about_mean = np.array([[2], [-1], [-1]], dtype=np.float32)
    sure, torn = np.eye(2, dtype=np.float32)[[0, 1, 1]], np.array([[0.9, 0.1], [0.6, 0.4], [0.2, 0.8]], dtype=np.float32)
    assert explained_scatter(sure, about_mean) == 1.0
    assert explained_scatter(torn, about_mean) == 0.25  # (1² / 2 + 1²) / 6
    assert explained_scatter(np.ones((3, 2), dtype=np.float32), about_mean) == 0.0  # all in one class


def test_proportions_are_apart_by_the_part_that_would_have_to_move() -> None:
    assert apart(np.array([1.0, 1]), np.array([30.0, 30])) == 0
    assert apart(np.array([1.0, 0]), np.array([1.0, 3])) == 0.75


def test_misplaced_is_what_one_shift_of_all_means_leaves() -> None:
    beliefs, means = np.eye(2, dtype=np.float32), np.array([[0.0, 0], [4, 0]])
    assert misplaced(beliefs, np.array([[7, 1], [11, 1]], dtype=np.float32), means) == 0  # both moved by (7, 1)
    assert misplaced(beliefs, np.array([[0, 0], [6, 0]], dtype=np.float32), means) == 1  # away by 0 and 2, at best by 1 each
    assert misplaced(beliefs[::-1].copy(), np.array([[7, 1], [11, 1]], dtype=np.float32), means) == 16


# All of it


@pytest.mark.parametrize("seed", range(3))
def test_a_query_elsewhere_is_answered_better_than_by_the_source_alone(seed: int) -> None:
    support, x, y = drawn([40] * 5, shift=5.0, seed=seed)
    found = aligned(support, x)
    assert found.adapted
    assert (by_source(support, x) == y).mean() < 0.8
    assert (found.beliefs.argmax(axis=1) == y).mean() > 0.95
    assert found.beliefs.dtype == np.float32
    np.testing.assert_allclose(found.beliefs.sum(axis=1), 1, rtol=1e-5)


def test_the_shift_is_found() -> None:
    support, x, _ = drawn([40] * 5, shift=0.0)
    move = np.linspace(-2, 2, 20, dtype=np.float32)
    np.testing.assert_allclose(aligned(support, x + move).shift, move, atol=0.4)
    assert np.linalg.norm(aligned(support, x).shift) < 0.5


@pytest.mark.parametrize("among", [8192, 50])
def test_the_order_of_query_rows_does_not_matter(among: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alignment, "GRAPH_ROWS", among)
    support, x, _ = drawn([40] * 3, distance=0.7)
    order = np.random.default_rng(0).permutation(120)
    one, other = aligned(support, x), aligned(support, x[order])
    np.testing.assert_allclose(other.beliefs, one.beliefs[order], rtol=0, atol=1e-5)
    np.testing.assert_allclose(other.shift, one.shift, rtol=0, atol=1e-5)
    assert (one.beliefs.max(axis=1) < 0.95).mean() > 0.05  # or there is nothing that could differ


def test_few_query_rows_do_no_harm() -> None:
    right = np.zeros(2)
    for seed in range(12):
        support, x, y = drawn([2, 2, 2, 1, 1], distance=0.7, seed=seed)
        right += [(answers == y).mean() / 12 for answers in (aligned(support, x).beliefs.argmax(axis=1), by_source(support, x))]
    assert right[0] > right[1] - 0.05, right


def test_of_support_rows_that_are_alone_in_their_class_the_nearest_is_found() -> None:
    support, x, y = drawn([10] * 5, rows=1)
    found = aligned(support, x)
    assert np.isfinite(found.beliefs).all()
    assert (found.beliefs.argmax(axis=1) == y).mean() > 0.9


GUARDED = {"of_query": [500, 5], "distance": 1.5, "seed": 1}
"""A small class of the query goes down among its neighbours: what is left accounts for nothing."""


def test_the_guard_keeps_the_source_where_adapting_accounts_for_less() -> None:
    support, x, _ = drawn(**GUARDED)  # type: ignore[arg-type]
    found = aligned(support, x)
    source, adapted = found.explained
    assert adapted < 0.9 * source
    assert not found.adapted
    assert not found.shift.any()
    np.testing.assert_array_equal(found.beliefs.argmax(axis=1), by_source(support, x))


def test_without_a_guard_the_adapted_answer_stands_whatever_it_accounts_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alignment, "MISMATCH", 1.0)
    support, x, _ = drawn(**GUARDED)  # type: ignore[arg-type]
    assert not aligned(support, x, guard=0.1).adapted
    assert aligned(support, x, guard=1.0).adapted


# Class sets that do not match


@pytest.mark.parametrize("of_query", [[40, 0, 0, 40, 0], [0, 0, 40, 0, 0]], ids=["two of five", "one of five"])
def test_a_query_with_fewer_classes_than_its_support_is_not_forced_apart(of_query: list[int]) -> None:
    right, leaked = [], []
    for seed in range(12):
        support, x, y = drawn(of_query, seed=seed)
        found = aligned(support, x)
        right.append((found.beliefs.argmax(axis=1) == y).mean() > 0.95)
        leaked.append(found.beliefs[:, np.array(of_query) == 0].sum() >= 0.05 * len(x))
    # One class is one cloud: in one draw of these, cutting it up looks as good as leaving it whole.
    assert sum(right) >= (12 if sum(map(bool, of_query)) > 1 else 11)
    assert sum(leaked) <= 12 - sum(right)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("of_query", [[5, 500], [500, 5]], ids=str)
def test_a_class_of_one_row_in_a_hundred_is_not_swallowed_and_swallows_none(of_query: list[int], seed: int) -> None:
    support, x, y = drawn(of_query, seed=seed, distance=1.5)
    answers = aligned(support, x).beliefs.argmax(axis=1)
    assert [(answers[y == c] == c).mean() > 0.75 for c in range(len(of_query))] == [True] * len(of_query)


def test_in_a_mismatch_each_row_counts_for_its_likeliest_class_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    support, x, _ = drawn([40, 0, 0, 40, 0], distance=1.0)
    found = aligned(support, x)
    assert found.adapted
    assert set(np.unique(found.beliefs)) == {0.0, 1.0}
    monkeypatch.setattr(alignment, "MISMATCH", 1.0)
    assert len(np.unique(aligned(support, x).beliefs)) > 100
