"""Learners that never adapt: what they answer with, and what they refuse."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from perdure import Environment, InputError, NotSolvableYet, Query, Support, UnknownEnvironment
from perdure.experiments import SupportOnly, lda, nearest_class_mean, source_only
from perdure.experiments.lower_bounds import distance_to_class_means, linear_discriminant, logistic_regression

CORNERS = {"a": (0.0, 0.0), "b": (4.0, 0.0), "c": (0.0, 4.0), "d": (4.0, 4.0)}
BOUNDS = (source_only, nearest_class_mean, lda)


def around_corners(labels: str, rows: int = 30, seed: int = 0) -> Support:
    y = np.repeat(list(labels), rows)
    noise = np.random.default_rng(seed).normal(scale=0.5, size=(len(y), 2))
    return Support(np.array([CORNERS[label] for label in y]) + noise, y)


def taught(bound: Callable[[], SupportOnly]) -> SupportOnly:
    learner = bound()
    learner.learn(Environment("first", around_corners("da")))
    assert learner.predict(np.array([[4.0, 0.5]])).tolist() in (["a"], ["d"])  # b is unheard of
    learner.learn(Environment("second", around_corners("cb"), Query(np.full((9, 2), 100.0))))
    return learner


@pytest.mark.parametrize("bound", BOUNDS)
def test_separable_classes_are_told_apart(bound: Callable[[], SupportOnly]) -> None:
    learner, fresh = taught(bound), around_corners("abcd", seed=1)
    assert learner.classes == ["a", "b", "c", "d"]
    assert learner.environments == ["first", "second"]
    assert (learner.predict(fresh.x) == fresh.y).mean() > 0.98


@pytest.mark.parametrize("bound", BOUNDS)
def test_with_the_environment_given_the_answer_is_among_its_classes(bound: Callable[[], SupportOnly]) -> None:
    """Each row lies where the other environment has a class, but nearer to the one that is named."""
    learner = taught(bound)
    assert learner.predict(np.array([[4.0, 1.0], [0.5, 1.0]]), "first").tolist() == ["d", "a"]
    assert learner.predict(np.array([[0.5, 1.0], [1.0, 0.5]]), "second").tolist() == ["c", "b"]


@pytest.mark.parametrize("bound", BOUNDS)
def test_a_query_changes_nothing(bound: Callable[[], SupportOnly]) -> None:
    support, probe = around_corners("ab"), np.random.default_rng(2).normal(2, 2, size=(50, 2))
    without, with_query = bound(), bound()
    without.learn(Environment("e", support))
    with_query.learn(Environment("e", support, Query(probe)))
    np.testing.assert_array_equal(without.predict(probe), with_query.predict(probe))


@pytest.mark.parametrize("bound", BOUNDS)
def test_a_class_of_two_environments_is_learned_from_both(bound: Callable[[], SupportOnly]) -> None:
    learner = bound()
    learner.learn(Environment("first", around_corners("ab")))
    moved = around_corners("bc")
    learner.learn(Environment("second", Support(moved.x + 20, moved.y)))
    assert learner.classes == ["a", "b", "c"]
    assert learner.predict(np.array([[0.0, 0.0]])).tolist() == ["a"]
    assert learner.predict(np.array([[20.0, 24.0]]), "second").tolist() == ["c"]


@pytest.mark.parametrize("bound", BOUNDS)
def test_pictures_are_answered_as_their_pixels_are(bound: Callable[[], SupportOnly]) -> None:
    rng = np.random.default_rng(3)
    y = np.repeat(["a", "b", "c"], 20)
    x = rng.normal(size=(60, 3, 4, 5)) + np.array([{"a": -0.3, "b": 0.0, "c": 0.3}[label] for label in y])[:, None, None, None]
    probe = rng.normal(size=(200, 3, 4, 5))
    pictures, pixels = bound(), bound()
    pictures.learn(Environment("e", Support(x, y)))
    pixels.learn(Environment("e", Support(x.reshape(60, 60), y)))
    answers = pictures.predict(probe)
    assert set(answers) == {"a", "b", "c"}
    np.testing.assert_array_equal(answers, pixels.predict(probe.reshape(200, 60)))
    with pytest.raises(InputError, match=r"shape \(60,\), what was learned has \(3, 4, 5\)"):
        pictures.predict(probe.reshape(200, 60))


def test_scores_of_class_means_equal_hand_computed_values() -> None:
    x = np.array([[0, 0], [2, 0], [4, 4]], dtype=np.float32)
    scores = distance_to_class_means(x, np.array([7, 7, 9]))
    # means (1, 0) and (4, 4): x . mean - |mean|^2 / 2
    np.testing.assert_allclose(scores(np.array([[1, 2]], dtype=np.float32)), [[1 - 0.5, 12 - 16]])


def test_discriminant_scores_differ_by_the_log_odds_of_the_gaussians() -> None:
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.normal((0, 0), (1, 2), (20_000, 2)), rng.normal((2, 2), (1, 2), (60_000, 2))]).astype(np.float32)
    y = np.repeat([0, 1], [20_000, 60_000])
    probe = np.array([[1.0, 1.0], [0.0, 2.0], [3.0, -1.0]], dtype=np.float32)
    odds = np.diff(linear_discriminant(x, y)(probe), axis=1)[:, 0]
    log_densities = [-((probe - mean) ** 2 / (2 * np.array([1, 4]))).sum(axis=1) for mean in ((0, 0), (2, 2))]
    np.testing.assert_allclose(odds, log_densities[1] - log_densities[0] + np.log(3), atol=0.1)


def test_logistic_regression_has_a_score_for_each_of_two_classes() -> None:
    support = around_corners("ab")
    scores = logistic_regression(support.x, support.y)(np.array([[0, 0], [4, 0]], dtype=np.float32))
    assert scores.shape == (2, 2)
    assert scores.argmax(axis=1).tolist() == [0, 1]


def test_logistic_regression_does_not_depend_on_the_unit() -> None:
    support = around_corners("abcd")
    metres, millimetres = logistic_regression(support.x, support.y), logistic_regression(1000 * support.x, support.y)
    np.testing.assert_allclose(metres(support.x), millimetres(1000 * support.x), atol=1e-2)


def test_one_class_alone_is_the_answer() -> None:
    learner = source_only()
    learner.learn(Environment("e", Support(np.zeros((3, 2)), np.array([5, 5, 5]))))
    assert learner.predict(np.ones((2, 2))).tolist() == [5, 5]


def test_what_cannot_be_learned_is_refused_and_nothing_is_lost() -> None:
    learner = taught(nearest_class_mean)
    with pytest.raises(InputError, match='"first" is learned already'):
        learner.learn(Environment("first", around_corners("ab")))
    with pytest.raises(InputError, match='"third" has no support'):
        learner.learn(Environment("third", query=Query(np.zeros((2, 2)))))
    with pytest.raises(InputError, match=r"shape \(3,\), earlier ones \(2,\)"):
        learner.learn(Environment("third", Support(np.zeros((2, 3)), np.array(["a", "b"]))))
    with pytest.raises(InputError, match="use one kind throughout"):
        learner.learn(Environment("third", Support(np.zeros((2, 2)), np.array([1, 2]))))
    assert learner.environments == ["first", "second"]
    assert learner.predict(np.array([[4.0, 4.0]])).tolist() == ["d"]


def test_what_cannot_be_answered_is_refused() -> None:
    with pytest.raises(NotSolvableYet, match="Nothing has been learned yet"):
        source_only().predict(np.zeros((1, 2)))
    learner = taught(nearest_class_mean)
    with pytest.raises(UnknownEnvironment, match=r"\"third\". Learned so far: \['first', 'second'\]"):
        learner.predict(np.zeros((1, 2)), "third")
    with pytest.raises(InputError, match=r"shape \(5,\), what was learned has \(2,\)"):
        learner.predict(np.zeros((1, 5)))
