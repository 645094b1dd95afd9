"""Every equation against a value worked out by hand, and the properties the paper relies on."""

from __future__ import annotations

import math
from math import log

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, tensor
from torch.distributions import Normal, kl_divergence
from torch.testing import assert_close

from perdure.errors import InputError
from perdure.objectives import (
    Posterior,
    h_delta_h_divergence,
    inference_objective,
    kl_to_class_prior,
    kl_to_prior,
    label_divergence,
    log_prob_of_any_other_class,
    margin_disparity_discrepancy,
    query_error_bound,
    replay_objective,
    replayed_support_error,
    reversal_strength,
    reverse_gradient,
    satisfaction_error,
    solver_objective,
)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def scalar(value: float) -> Tensor:
    return tensor(value, dtype=torch.float32)


# Posterior


def test_a_sample_is_the_mean_plus_the_standard_deviation_times_noise() -> None:
    posterior = Posterior(tensor([[1.0, -2.0]]), tensor([[log(9.0), log(0.25)]]))  # standard deviations 3 and 1/2
    noise = torch.randn(1, 2, generator=seeded())
    assert_close(posterior.sample(seeded()), tensor([[1.0, -2.0]]) + tensor([[3.0, 0.5]]) * noise)


def test_samples_have_the_moments_of_the_posterior() -> None:
    rows = 40_000
    drawn = Posterior(torch.full((rows, 1), 2.0), torch.full((rows, 1), log(9.0))).sample(seeded())
    assert drawn.mean().item() == pytest.approx(2.0, abs=0.06)  # four standard errors: 4 * 3 / 200
    assert drawn.std().item() == pytest.approx(3.0, abs=0.045)


def test_a_sample_lets_gradients_through_to_mean_and_log_variance() -> None:
    mean, log_variance = torch.zeros(1, 1, requires_grad=True), torch.full((1, 1), log(4.0), requires_grad=True)
    drawn = Posterior(mean, log_variance).sample(seeded())  # mean + 2 * noise, so d/dmean = 1 and d/dlog_variance = noise
    drawn.sum().backward()
    assert_close(mean.grad, torch.ones(1, 1))
    assert_close(log_variance.grad, torch.randn(1, 1, generator=seeded()))


# Eq. 1


def test_kl_to_prior_equals_hand_computed_value() -> None:
    # (var + mean^2 - 1 - log var) / 2 for each number: 1/2, 3/2 - log 2; 0, 2. They sum to 4 - log 2.
    posterior = Posterior(tensor([[1.0, 0.0], [0.0, 2.0]]), tensor([[0.0, log(4.0)], [0.0, 0.0]]))
    assert_close(kl_to_prior(posterior), scalar((4 - log(2)) / 4))  # over two rows and two dimensions
    assert_close(kl_to_prior(posterior, summed=True), scalar((4 - log(2)) / 2))  # over two rows


def test_kl_to_prior_is_zero_at_the_prior_and_positive_elsewhere() -> None:
    prior = Posterior(torch.zeros(3, 5), torch.zeros(3, 5))
    assert kl_to_prior(prior) == 0
    for mean, log_variance in ((0.1, 0.0), (-0.1, 0.0), (0.0, 0.1), (0.0, -0.1)):
        assert kl_to_prior(Posterior(torch.full((3, 5), mean), torch.full((3, 5), log_variance))) > 0


def test_kl_to_prior_agrees_with_torch_distributions() -> None:
    posterior = Posterior(torch.randn(7, 3, generator=seeded(1)), torch.randn(7, 3, generator=seeded(2)))
    reference = kl_divergence(Normal(posterior.mean, (posterior.log_variance / 2).exp()), Normal(0.0, 1.0))
    assert_close(kl_to_prior(posterior), reference.mean())
    assert_close(kl_to_prior(posterior, summed=True), reference.sum(dim=1).mean())


def test_kl_to_class_prior_equals_hand_computed_value() -> None:
    # One row at 1 with unit variance; classes at 0 and 3 are 1/2 and 2 away; believed in by 1/4 and 3/4.
    posterior = Posterior(tensor([[1.0]]), tensor([[0.0]]))
    value = kl_to_class_prior(posterior, tensor([[0.0], [3.0]]), tensor([[0.25, 0.75]]))
    assert_close(value, scalar(0.25 * 0.5 + 0.75 * 2))


def test_kl_to_class_prior_averages_rows_and_dimensions() -> None:
    # Row 1 of class 0, row 2 of class 1. Per number: row 1: 2^2/2 = 2 and (4 - 1 - log 4)/2 = 3/2 - log 2; row 2: 1/2 and 0.
    posterior = Posterior(tensor([[2.0, 0.0], [0.0, 1.0]]), tensor([[0.0, log(4.0)], [0.0, 0.0]]))
    prior_means, weights = tensor([[0.0, 0.0], [1.0, 1.0]]), torch.eye(2)
    assert_close(kl_to_class_prior(posterior, prior_means, weights), scalar((4 - log(2)) / 4))
    assert_close(kl_to_class_prior(posterior, prior_means, weights, summed=True), scalar((4 - log(2)) / 2))


@pytest.mark.parametrize("summed", [False, True])
def test_kl_to_class_prior_of_a_known_class_is_kl_to_prior_of_the_shifted_posterior(summed: bool) -> None:
    mean, log_variance = torch.randn(6, 4, generator=seeded(1)), torch.randn(6, 4, generator=seeded(2))
    prior_means, y = torch.randn(3, 4, generator=seeded(3)), tensor([0, 1, 2, 2, 1, 0])
    shifted = kl_to_prior(Posterior(mean - prior_means[y], log_variance), summed=summed)
    assert_close(kl_to_class_prior(Posterior(mean, log_variance), prior_means, F.one_hot(y, 3).float(), summed=summed), shifted)


def test_kl_to_class_prior_pulls_the_prior_means_towards_their_rows() -> None:
    # d/dmu_y of w_y (mean - mu_y)^2 / 2 is w_y (mu_y - mean): 1/4 (0 - 1) and 3/4 (3 - 1).
    prior_means = tensor([[0.0], [3.0]], requires_grad=True)
    kl_to_class_prior(Posterior(tensor([[1.0]]), tensor([[0.0]])), prior_means, tensor([[0.25, 0.75]])).backward()
    assert_close(prior_means.grad, tensor([[-0.25], [1.5]]))


# Eq. 2


def answers(*classes: int) -> Tensor:
    """Logits whose largest entry is at the given class, with no ties and no regular pattern elsewhere."""
    return 5 * F.one_hot(tensor(classes), 3).float() + tensor([0.1, 0.2, 0.3])


def test_h_delta_h_divergence_equals_hand_computed_value() -> None:
    # f and f' differ on 1 of 4 support rows and on 4 of 5 query rows: 2 |4/5 - 1/4| = 11/10.
    f_s, f_adv_s = answers(0, 1, 2, 0), answers(0, 1, 2, 1)
    f_q, f_adv_q = answers(0, 1, 2, 0, 1), answers(1, 2, 0, 2, 1)
    assert_close(h_delta_h_divergence(f_s, f_adv_s, f_q, f_adv_q), scalar(1.1))


def test_h_delta_h_divergence_does_not_mind_which_stream_is_which() -> None:
    agree, differ = (answers(0, 1), answers(0, 1)), (answers(0, 1), answers(1, 0))
    assert h_delta_h_divergence(*agree, *differ) == h_delta_h_divergence(*differ, *agree) == 2
    assert h_delta_h_divergence(*agree, *agree) == h_delta_h_divergence(*differ, *differ) == 0


# The discrepancy of eq. 3 and eq. 4


def test_mdd_equals_hand_computed_value() -> None:
    f = tensor([[2.0, 0.0], [0.0, 2.0]])  # h = 0, 1
    f_adv_s = tensor([[0.0, log(3.0)], [0.0, 0.0]])  # sigma_h(f') = 1/4, 1/2: mean log is -3/2 log 2
    f_adv_q = tensor([[0.0, log(3.0)], [0.0, log(2.0)]])  # 1 - sigma_h(f') = 3/4, 1/3: mean log is -log 2
    value = margin_disparity_discrepancy(f, f_adv_s, f, f_adv_q, gamma=4.0)
    assert_close(value, scalar(4 * (-1.5 * log(2)) - log(2)))


def test_mdd_with_three_classes_and_unequal_streams_equals_hand_computed_value() -> None:
    f_s, f_q = answers(2), answers(0, 1, 2)
    f_adv_s = tensor([[0.0, 0.0, log(2.0)]])  # sigma_2 = 1/2
    f_adv_q = tensor([[log(2.0), 0.0, 0.0], [0.0, 0.0, log(6.0)], [0.0, log(3.0), 0.0]])  # 1 - sigma: 1/2, 7/8, 4/5
    expected = 2 * log(1 / 2) + (log(1 / 2) + log(7 / 8) + log(4 / 5)) / 3
    assert_close(margin_disparity_discrepancy(f_s, f_adv_s, f_q, f_adv_q, gamma=2.0), scalar(expected))


def test_mdd_pairs_each_row_with_its_own_label_only() -> None:
    # f' agrees with f on every row, so support costs next to nothing; any row paired with the label of another would cost 20.
    f = answers(0, 1, 2)
    f_adv = 20 * torch.eye(3)
    off_query = tensor([[0.0, 20.0, 0.0], [0.0, 0.0, 20.0], [20.0, 0.0, 0.0]])  # f' differs from f on every row of the query
    assert margin_disparity_discrepancy(f, f_adv, f, off_query, gamma=1.0).item() == pytest.approx(0.0, abs=1e-6)


def test_mdd_treats_the_hypothesis_as_a_fixed_labelling() -> None:
    f = answers(0, 1).requires_grad_()
    f_adv = torch.randn(2, 3, generator=seeded()).requires_grad_()
    margin_disparity_discrepancy(f, f_adv, f, f_adv, gamma=1.0).backward()
    assert f.grad is None
    assert f_adv.grad is not None
    assert f_adv.grad.abs().sum() > 0


@pytest.mark.parametrize("gamma", [0.0, -4.0])
def test_mdd_refuses_a_margin_that_is_not_positive(gamma: float) -> None:
    f = answers(0, 1)
    with pytest.raises(InputError, match=f"`gamma` must be positive, got {gamma}"):
        margin_disparity_discrepancy(f, f, f, f, gamma=gamma)


def test_log_prob_of_any_other_class_equals_hand_computed_value() -> None:
    logits = tensor([[0.0, log(2.0), log(5.0)], [log(3.0), 0.0, 0.0]])  # sigma = 1/8, 2/8, 5/8 and 3/5, 1/5, 1/5
    assert_close(log_prob_of_any_other_class(logits, tensor([2, 0])), tensor([log(3 / 8), log(2 / 5)]))
    assert_close(log_prob_of_any_other_class(logits, tensor([0, 1])), tensor([log(7 / 8), log(4 / 5)]))


def test_log_prob_of_any_other_class_is_exact_where_the_probability_has_no_room_in_a_float() -> None:
    logits = tensor([[1000.0, 0.0, -1000.0]] * 3, requires_grad=True)
    value = log_prob_of_any_other_class(logits, tensor([0, 1, 2]))  # log(e^0 / e^1000), log(1 - 0), log(1 - 0)
    assert_close(value, tensor([-1000.0, 0.0, 0.0]))
    value.sum().backward()  # d/dlogits = softmax over the others - softmax over all
    assert_close(logits.grad, tensor([[-1.0, 1.0, 0.0], [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]]))
    far_below = tensor([[1000.0, -1000.0, -1000.0]])  # log(2 e^-1000 / e^1000)
    assert_close(log_prob_of_any_other_class(far_below, tensor([0])), tensor([-2000.0 + log(2)]))


def test_log_prob_of_any_other_class_keeps_small_probabilities() -> None:
    # sigma_0 = 1 - 1/(e^20 + 1): by way of 1 - sigma in 32 bits this is log 0.
    value = log_prob_of_any_other_class(tensor([[20.0, 0.0]]), tensor([0]))
    assert value.item() == pytest.approx(-math.log1p(math.exp(20)), rel=1e-6)


# Eq. 3 and eq. 4


def test_satisfaction_error_equals_hand_computed_value() -> None:
    f_s = tensor([[0.0, log(3.0)], [0.0, 0.0]])  # -log p(y|h) = log 4, log 2
    assert_close(satisfaction_error(f_s, tensor([0, 1]), scalar(3.0)), scalar(1.5 * log(2) + 3.0))
    assert_close(satisfaction_error(f_s, tensor([0, 1]), scalar(3.0), kl_weight=0.5), scalar(1.5 * log(2) + 1.5))


def test_inference_objective_subtracts_beta_times_the_discrepancy() -> None:
    assert_close(inference_objective(scalar(2.0), scalar(3.0), beta=0.5), scalar(0.5))


def test_one_backward_pass_makes_the_adversary_ascend_and_the_features_descend_the_discrepancy() -> None:
    # D = w * h with w = 5 in the adversary and h = 7 from the inference module, beta = 2, strength = 0.1.
    h, w = tensor([7.0], requires_grad=True), tensor([5.0], requires_grad=True)
    inference_objective(scalar(0.0), (w * reverse_gradient(h, 0.1)).sum(), beta=2.0).backward()
    assert_close(w.grad, tensor([-2 * 7.0]))  # a step against this gradient raises D
    assert_close(h.grad, tensor([0.1 * 2 * 5.0]))  # a step against this one lowers it


def test_reverse_gradient_changes_nothing_forward_and_turns_the_gradient_round() -> None:
    h = tensor([[1.0, -2.0], [3.0, 0.0]], requires_grad=True)
    out = reverse_gradient(h, 0.25)
    assert torch.equal(out, h)
    (out * tensor([[1.0, 2.0], [3.0, 4.0]])).sum().backward()
    assert_close(h.grad, -0.25 * tensor([[1.0, 2.0], [3.0, 4.0]]))


def test_reverse_gradient_of_strength_zero_stops_the_gradient() -> None:
    h = torch.ones(3, requires_grad=True)
    reverse_gradient(h, 0.0).sum().backward()
    assert_close(h.grad, torch.zeros(3))


# Eq. 15


def test_reversal_strength_equals_hand_computed_values() -> None:
    # 2a / (1 + e^-u) - a = a tanh(u/2)
    assert reversal_strength(0) == 0
    assert reversal_strength(2000) == pytest.approx(0.3 * math.tanh(0.5))
    assert reversal_strength(500) == pytest.approx(0.3 * math.tanh(0.125))
    assert reversal_strength(10**9) == pytest.approx(0.3)


def test_reversal_strength_grows_up_to_its_ceiling_over_its_horizon() -> None:
    strengths = [reversal_strength(step, ceiling=0.5, horizon=10.0) for step in (0, 10, 20, 10_000)]
    assert strengths == pytest.approx([0, 0.5 * math.tanh(0.5), 0.5 * math.tanh(1.0), 0.5])


# Eq. 6


def test_solver_objective_equals_hand_computed_value() -> None:
    solver_s = tensor([[0.0, 0.0, log(2.0)], [0.0, 0.0, 0.0]])  # -log p(y|h) = log 2, log 3
    current = (log(2) + log(3)) / 2
    assert_close(solver_objective(solver_s, tensor([2, 0])), scalar(current))
    assert_close(solver_objective(solver_s, tensor([2, 0]), scalar(1.25)), scalar(current + 1.25))


def test_replay_objective_equals_hand_computed_value() -> None:
    # -1/2 log 3/4 - 1/2 log 1/4 = 1/2 log 16/3 for the soft label, log 2 for the hard one; three environments.
    solver_r, y_r = tensor([[log(3.0), 0.0], [0.0, 0.0]]), tensor([[0.5, 0.5], [1.0, 0.0]])
    assert_close(replay_objective(solver_r, y_r, environments=3), scalar(3 * (0.5 * log(16 / 3) + log(2)) / 2))


def test_replay_objective_is_the_sum_of_the_environments_own_losses() -> None:
    # Eq. 6 sums over environments: two that share a batch evenly count as much as each alone.
    logits, y = torch.randn(8, 4, generator=seeded()), F.one_hot(tensor([0, 1, 0, 1, 2, 3, 2, 3]), 4).float()
    alone = replay_objective(logits[:4], y[:4], environments=1) + replay_objective(logits[4:], y[4:], environments=1)
    assert_close(replay_objective(logits, y, environments=2), alone)


# Eq. 7 to eq. 14


def test_label_divergence_equals_hand_computed_value() -> None:
    # 1/2 log 2 + 1/2 log 2/3 = 1/2 log 4/3, and log 2; over two rows.
    p_g, p_r = tensor([[0.5, 0.5], [1.0, 0.0]]), tensor([[0.25, 0.75], [0.5, 0.5]])
    assert_close(label_divergence(p_g, p_r), scalar((0.5 * log(4 / 3) + log(2)) / 2))


def test_label_divergence_is_of_the_generated_from_the_real_and_not_the_other_way() -> None:
    half, skew = tensor([[0.5, 0.5]]), tensor([[0.25, 0.75]])
    assert_close(label_divergence(half, skew), scalar(0.5 * log(4 / 3)))
    assert_close(label_divergence(skew, half), scalar(0.25 * log(0.5) + 0.75 * log(1.5)))
    assert label_divergence(skew, skew) == 0


def test_label_divergence_stays_finite_where_the_real_features_rule_a_label_out() -> None:
    value = label_divergence(tensor([[1.0, 0.0]]), tensor([[0.0, 1.0]]))
    assert torch.isfinite(value)
    assert value > 50


def test_replayed_support_error_adds_the_divergence() -> None:
    assert replayed_support_error(0.125, 0.25) == 0.375


def test_query_error_bound_equals_hand_computed_value() -> None:
    # (1/8 + 1/4) + (1 + 2) + 16 + 32: each term a power of two, so none can stand in for another.
    assert query_error_bound([0.125, 0.25], [1.0, 2.0], [16.0], 32.0) == 51.375


def test_query_error_bound_of_one_environment_is_the_corollary() -> None:
    assert query_error_bound([0.125], [0.25], [], 0.5) == 0.875  # eq. 9: support error + discrepancy + optimal error


def test_query_error_bound_in_two_steps_is_eq_11_with_eq_13() -> None:
    errors, discrepancies, divergences = [0.5, 0.25, 0.125], [1.0, 2.0, 4.0], [8.0, 16.0]
    replayed = [replayed_support_error(error, kl) for error, kl in zip(errors, divergences, strict=False)]
    eq_11 = errors[-1] + discrepancies[-1] + sum(replayed) + sum(discrepancies[:-1]) + 32.0
    assert query_error_bound(errors, discrepancies, divergences, 32.0) == eq_11


@pytest.mark.parametrize(
    ("errors", "discrepancies", "divergences", "counts"),
    [
        ([0.1, 0.2], [0.1, 0.2], [], "got 2, 2 and 0"),
        ([0.1], [0.1], [0.1], "got 1, 1 and 1"),
        ([0.1], [0.1, 0.2], [], "got 1, 2 and 0"),
    ],
)
def test_query_error_bound_refuses_terms_that_do_not_match(
    errors: list[float], discrepancies: list[float], divergences: list[float], counts: str
) -> None:
    with pytest.raises(InputError, match=f"one divergence for each but the last; {counts}"):
        query_error_bound(errors, discrepancies, divergences, 0.0)
