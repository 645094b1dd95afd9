"""Every validator against a value worked out by hand, or by another, straightforward way."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import make_blobs
from sklearn.metrics import adjusted_mutual_info_score
from sklearn.metrics.pairwise import cosine_similarity, rbf_kernel

from perdure import InputError, validators

LOG2 = math.log(2)
SURE = np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
UNSURE = np.full((4, 2), 0.5)
ONE_SIDED = np.tile([1.0, 0.0], (4, 1))


def random_probabilities(n: int, classes: int, *, seed: int = 0) -> Any:
    return np.random.default_rng(seed).dirichlet(np.full(classes, 0.3), size=n)


def test_entropy_equals_hand_computed_value() -> None:
    assert validators.entropy(np.array([[0.5, 0.5], [1.0, 0.0]])) == pytest.approx(LOG2 / 2)
    assert validators.entropy(np.array([[0.25, 0.75]])) == pytest.approx(-0.25 * math.log(0.25) - 0.75 * math.log(0.75))


def test_infomax_is_entropy_of_the_mean_minus_mean_of_the_entropies() -> None:
    p = np.array([[1.0, 0.0], [0.5, 0.5]])
    of_the_mean = -0.75 * math.log(0.75) - 0.25 * math.log(0.25)
    assert validators.infomax(p) == pytest.approx(of_the_mean - LOG2 / 2)


def test_infomax_is_not_fooled_by_one_class_for_all_and_entropy_is() -> None:
    assert validators.infomax(SURE) == pytest.approx(LOG2)
    assert validators.infomax(ONE_SIDED) == validators.infomax(UNSURE) == 0
    assert validators.entropy(SURE) == validators.entropy(ONE_SIDED) == 0


def test_nuclear_norm_equals_hand_computed_value() -> None:
    # Two orthogonal columns of length sqrt(2); two equal columns of length 1, together one singular value of sqrt(2).
    assert validators.batch_nuclear_norm(SURE) == pytest.approx(2 * math.sqrt(2) / 4)
    assert validators.batch_nuclear_norm(UNSURE) == pytest.approx(math.sqrt(2) / 4)
    assert validators.batch_nuclear_norm(ONE_SIDED) == pytest.approx(math.sqrt(4) / 4)


def test_density_equals_hand_computed_value() -> None:
    # Each row has one neighbour at cosine 1 and two at cosine 0; with temperature 1 their weights are e, 1, 1 of e + 2.
    weights = np.array([math.e, 1, 1]) / (math.e + 2)
    expected = -(weights * np.log(weights)).sum()
    assert validators.soft_neighbourhood_density(SURE, temperature=1.0) == pytest.approx(expected)


def test_density_equals_a_direct_computation_whatever_the_block(monkeypatch: pytest.MonkeyPatch) -> None:
    p = random_probabilities(23, 4)
    similarity = cosine_similarity(p)[~np.eye(23, dtype=bool)].reshape(23, 22) / 0.05
    weights = np.exp(similarity) / np.exp(similarity).sum(axis=1, keepdims=True)
    expected = -(weights * np.log(weights)).sum(axis=1).mean()
    assert validators.soft_neighbourhood_density(p) == pytest.approx(expected)
    monkeypatch.setattr(validators, "BLOCK", 5)
    assert validators.soft_neighbourhood_density(p) == pytest.approx(expected)


def test_class_ami_equals_sklearns_for_clusters_that_are_known() -> None:
    x, blob = make_blobs(90, centers=[[0, 0], [20, 0], [0, 20]], random_state=0)
    answers = blob.copy()
    answers[:20] = (answers[:20] + 1) % 3
    expected = adjusted_mutual_info_score(blob, answers)
    assert 0 < expected < 0.9
    assert validators.class_ami(np.eye(3)[answers], x) == pytest.approx(expected)
    assert validators.class_ami(np.eye(3)[blob], x) == pytest.approx(1)


def test_a_distance_is_two_where_streams_are_told_apart_and_zero_where_they_are_one() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(400, 3))
    assert validators.proxy_a_distance(x[:200], x[200:] + 20) == 2
    assert validators.proxy_a_distance(x[:200], x[200:]) < 0.2


def test_a_distance_is_that_of_the_best_threshold_whatever_the_sizes() -> None:
    # Two normal streams whose means are 2 apart: the best threshold is wrong for P(z > 1) = 0.1587 of either.
    rng = np.random.default_rng(0)
    x_s, x_q = rng.normal(size=(20000, 1)), rng.normal(2.0, size=(2000, 1))
    assert validators.proxy_a_distance(x_s, x_q) == pytest.approx(2 * (1 - 2 * 0.1587), abs=0.05)


def test_a_distance_does_not_depend_on_the_unit_of_the_features() -> None:
    rng = np.random.default_rng(0)
    x_s, x_q = rng.normal(size=(60, 8)), rng.normal(0.4, size=(60, 8))
    assert validators.proxy_a_distance(1000 * x_s, 1000 * x_q) == validators.proxy_a_distance(x_s, x_q)


def test_mmd_equals_hand_computed_value() -> None:
    # Squared distances: 4 within the support, 0 within the query, 1 between any two of different streams; sigma = 1.
    x_s, x_q = np.array([[0.0], [2.0]]), np.array([[1.0], [1.0]])
    expected = math.exp(-2) + 1 - 2 * math.exp(-0.5)
    assert validators.maximum_mean_discrepancy(x_s, x_q, bandwidth=1.0) == pytest.approx(expected)


def test_mmd_equals_a_direct_computation_with_the_median_distance(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    x_s, x_q = rng.normal(size=(11, 3)), rng.normal(1.0, size=(7, 3))
    both = np.concatenate([x_s, x_q])
    distances = np.linalg.norm(both[:, None] - both, axis=2)[np.triu_indices(18, k=1)]
    k = rbf_kernel(both, gamma=1 / (2 * np.median(distances) ** 2))
    within_s, within_q = k[:11, :11][~np.eye(11, dtype=bool)].mean(), k[11:, 11:][~np.eye(7, dtype=bool)].mean()
    expected = within_s + within_q - 2 * k[:11, 11:].mean()
    assert validators.maximum_mean_discrepancy(x_s, x_q) == pytest.approx(expected)
    sigma = float(np.median(distances))
    monkeypatch.setattr(validators, "BLOCK", 4)
    assert validators.maximum_mean_discrepancy(x_s, x_q, bandwidth=sigma) == pytest.approx(expected)


def test_source_accuracy_is_the_fraction_of_rows_answered_right() -> None:
    assert validators.source_accuracy(SURE, np.array([0, 1, 1, 1])) == 0.75


def test_log_loss_equals_hand_computed_value_and_is_finite() -> None:
    p = np.array([[0.25, 0.75], [0.0, 1.0]])
    np.testing.assert_allclose(validators.log_loss(p, np.array([0, 0])), [math.log(4), 12 * math.log(10)])


def test_importance_weights_are_the_ratio_of_the_densities() -> None:
    # N(1, 1) over N(0, 1) is exp(x - 1/2), whatever the number of rows of each.
    rng = np.random.default_rng(0)
    x_s, x_q = rng.normal(size=(40000, 1)), rng.normal(1.0, size=(10000, 1))
    weights = validators.importance_weights(x_s, x_q)
    middle = np.abs(x_s[:, 0]) < 2
    np.testing.assert_allclose(weights[middle], np.exp(x_s[middle, 0] - 0.5), rtol=0.1)
    assert weights.mean() == pytest.approx(1, abs=0.05)


def test_importance_weighted_risk_equals_hand_computed_value() -> None:
    assert validators.importance_weighted_risk(np.array([1.0, 2.0, 4.0]), np.array([0.5, 1.0, 0.25])) == pytest.approx(3.5 / 3)


def test_dev_equals_hand_computed_value() -> None:
    # w·loss = (0, 2, 3) and w = (1, 1, 2.5): Cov = 0.75, Var = 0.5, eta = -4/3 · …, worked out below with means 5/3 and 3/2.
    loss, w = np.array([0.0, 2.0, 1.2]), np.array([1.0, 1.0, 2.5])
    covariance = (1 * 0 + 1 * 2 + 2.5 * 3) / 3 - 5 / 3 * 3 / 2
    variance = (1 + 1 + 6.25) / 3 - 9 / 4
    expected = 5 / 3 - covariance / variance * (3 / 2 - 1)
    assert covariance / variance == pytest.approx(4 / 3)
    assert validators.deep_embedded_validation(loss, w) == pytest.approx(expected) == pytest.approx(1.0)


def test_dev_is_less_noisy_than_the_weighted_risk_it_controls() -> None:
    # Support N(0, 1), query N(1, 1), loss 1 + x²/10: the risk on the query is 1 + 2/10.
    rng = np.random.default_rng(0)
    plain, controlled = [], []
    for _ in range(300):
        x = rng.normal(size=200)
        loss, weights = 1 + x**2 / 10, np.exp(x - 0.5)
        plain.append(validators.importance_weighted_risk(loss, weights))
        controlled.append(validators.deep_embedded_validation(loss, weights))
    assert np.mean(controlled) == pytest.approx(1.2, abs=0.03)
    assert np.std(controlled) < np.std(plain) / 2


def test_dev_with_equal_weights_is_the_mean_loss() -> None:
    assert validators.deep_embedded_validation(np.array([1.0, 2.0]), np.ones(2)) == 1.5


@pytest.mark.parametrize(
    "validator",
    [validators.entropy, validators.infomax, validators.batch_nuclear_norm, validators.soft_neighbourhood_density],
)
class TestProbabilitiesAreRefused:
    def test_unless_rows_sum_to_one(self, validator: Callable[..., float]) -> None:
        with pytest.raises(InputError, match=r"1 of 2 rows are not probabilities \(row 1 sums to 1.2, .*softmax"):
            validator(np.array([[0.5, 0.5], [0.5, 0.7]]))

    def test_if_negative_or_nan(self, validator: Callable[..., float]) -> None:
        for row in ([1.5, -0.5], [float("nan"), 1.0]):
            with pytest.raises(InputError, match="1 of 1 rows are not probabilities"):
                validator(np.array([row]))

    def test_if_there_is_one_class_or_no_row(self, validator: Callable[..., float]) -> None:
        with pytest.raises(InputError, match="one class say nothing"):
            validator(np.ones((3, 1)))
        with pytest.raises(InputError, match=r"at least one.*\(0, 2\)"):
            validator(np.ones((0, 2)))


def test_probabilities_in_float32_are_taken() -> None:
    p = random_probabilities(200, 65)
    p32 = p.astype(np.float32)
    assert validators.infomax(p32) == pytest.approx(validators.infomax(p), rel=1e-5)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: validators.soft_neighbourhood_density(SURE, temperature=0.0), "`temperature` must be positive, got 0.0"),
        (lambda: validators.soft_neighbourhood_density(SURE[:2]), "at least three rows, got 2"),
        (lambda: validators.class_ami(SURE[:1], np.ones((1, 2))), "2 clusters need as many rows, got 1"),
        (lambda: validators.proxy_a_distance(np.ones((4, 2)), np.ones((1, 2))), "2 folds need as many rows .* got 4 and 1"),
        (lambda: validators.proxy_a_distance(np.ones((4, 2)), np.ones((4, 2)), folds=1), "`folds` must be at least 2"),
        (lambda: validators.proxy_a_distance(np.ones((0, 2)), np.ones((4, 2))), r"`x_s` must have a row .*\(0, 2\)"),
        (lambda: validators.importance_weights(np.array([[np.nan]]), np.ones((1, 1))), "`x_s` holds NaN"),
        (lambda: validators.maximum_mean_discrepancy(np.ones((1, 2)), np.ones((4, 2))), "at least two rows, got 1 and 4"),
        (lambda: validators.maximum_mean_discrepancy(np.ones((2, 2)), np.ones((2, 2))), "`bandwidth` must be positive, got 0"),
        (lambda: validators.source_accuracy(SURE, np.array([0, 1, 2, 0])), "columns of `p_s`, 0 to 1; got 0 to 2"),
        (lambda: validators.importance_weighted_risk(np.ones(2), np.array([1.0, -1.0])), "weights finite and not negative"),
        (lambda: validators.deep_embedded_validation(np.ones(0), np.ones(0)), "at least one of each"),
    ],
)
def test_bad_input_is_refused_with_a_reason(call: Callable[[], float], message: str) -> None:
    with pytest.raises(InputError, match=message):
        call()
