r"""Every numbered equation of the paper, one pure function each.

Symbols are the paper's: $x$ input, $z$ latent, $h$ domain-agnostic feature, $c$ condition, $f$ and $f'$ the two hypotheses;
`_s` is support and `_q` is query. `docs/paper.md` lists which equation is where.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from perdure.errors import InputError


class Posterior(NamedTuple):
    """The Gaussian $q(z|x,c)$ of a batch."""

    mean: Float[Tensor, "n latent"]
    log_variance: Float[Tensor, "n latent"]

    def sample(self, rng: torch.Generator) -> Float[Tensor, "n latent"]:
        """One reparameterised draw for each row."""
        noise = torch.randn(self.mean.shape, generator=rng, device=self.mean.device)
        return torch.addcmul(self.mean, noise, (0.5 * self.log_variance).exp())


def kl_to_prior(posterior: Posterior, *, summed: bool = False) -> Float[Tensor, ""]:
    r"""$KL(q(z|x,c)\,\|\,\mathcal N(0,I))$ of eq. 1, averaged over batch and latent dimensions (`summed`: summed over these)."""
    mean, log_variance = posterior
    per_dimension = 0.5 * (log_variance.exp() + mean.square() - 1 - log_variance).mean(dim=0)
    return per_dimension.sum() if summed else per_dimension.mean()


def kl_to_class_prior(
    posterior: Posterior,
    prior_means: Float[Tensor, "classes latent"],
    weights: Float[Tensor, "n classes"],
    *,
    summed: bool = False,
) -> Float[Tensor, ""]:
    r"""$\sum_y w_y\,KL(q(z|x)\,\|\,\mathcal N(\mu_y,I))$: eq. 1 in the class-prior reading.

    `weights` is one-hot where the class is known (support) and $f$'s belief where it is not (query).
    """
    mean, log_variance = posterior
    second_moment = mean.square() - 2 * mean * (weights @ prior_means) + weights @ prior_means.square()
    per_dimension = 0.5 * (log_variance.exp() + second_moment - 1 - log_variance).mean(dim=0)
    return per_dimension.sum() if summed else per_dimension.mean()


def h_delta_h_divergence(
    f_s: Float[Tensor, "s classes"],
    f_adv_s: Float[Tensor, "s classes"],
    f_q: Float[Tensor, "q classes"],
    f_adv_q: Float[Tensor, "q classes"],
) -> Float[Tensor, ""]:
    r"""The $\mathcal H\Delta\mathcal H$ divergence of eq. 2 at one pair $f,f'$: $2\,|P_q(f\ne f')-P_s(f\ne f')|$.

    The paper's is the supremum over all pairs; a trained adversary $f'$ gives a lower estimate of it.
    """
    disagree_q = (f_q.argmax(dim=1) != f_adv_q.argmax(dim=1)).float().mean()
    disagree_s = (f_s.argmax(dim=1) != f_adv_s.argmax(dim=1)).float().mean()
    return 2 * (disagree_q - disagree_s).abs()


def margin_disparity_discrepancy(
    f_s: Float[Tensor, "s classes"],
    f_adv_s: Float[Tensor, "s classes"],
    f_q: Float[Tensor, "q classes"],
    f_adv_q: Float[Tensor, "q classes"],
    *,
    gamma: float,
) -> Float[Tensor, ""]:
    r"""Margin disparity discrepancy, the differentiable stand-in for $d_{\mathcal H\Delta\mathcal H}$ in eq. 3 and eq. 4.

    $$D_\gamma=\gamma\,E_s[\log\sigma_h(f')]+E_q[\log(1-\sigma_h(f'))],\qquad h=\arg\max f$$

    The adversary $f'$ maximises it, the inference module minimises it.
    """
    if gamma <= 0:
        raise InputError(f"`gamma` must be positive, got {gamma}.")
    agrees_on_support = -F.cross_entropy(f_adv_s, f_s.argmax(dim=1))
    differs_on_query = log_prob_of_any_other_class(f_adv_q, f_q.argmax(dim=1)).mean()
    return gamma * agrees_on_support + differs_on_query


def log_prob_of_any_other_class(logits: Float[Tensor, "n classes"], y: Int[Tensor, " n"]) -> Float[Tensor, " n"]:
    r"""$\log(1-\sigma_y)$ without cancellation: the log-probability that the class is not `y`."""
    others = logits.scatter(1, y[:, None], -math.inf)
    return others.logsumexp(dim=1) - logits.logsumexp(dim=1)


def satisfaction_error(
    f_s: Float[Tensor, "s classes"], y_s: Int[Tensor, " s"], kl: Float[Tensor, ""], *, kl_weight: float = 1.0
) -> Float[Tensor, ""]:
    r"""$\epsilon$ of eq. 3: how far the first condition of eq. 1 is from being met, $-\log p(y|h)+KL$."""
    return F.cross_entropy(f_s, y_s) + kl_weight * kl


def inference_objective(epsilon: Float[Tensor, ""], discrepancy: Float[Tensor, ""], *, beta: float) -> Float[Tensor, ""]:
    r"""$\mathcal L=\epsilon+\beta\,d$ (eq. 3) in the form of eq. 4.

    $d$ comes in with a minus: `backward` then *ascends* it in $f'$, and the reversed gradient makes the
    inference module descend it.
    """
    return epsilon - beta * discrepancy


def reversal_strength(step: int, *, ceiling: float = 0.3, horizon: float = 2000.0) -> float:
    r"""Coefficient of gradient reversal (supplement, "Optimization"): $2a/(1+e^{-i/T})-a$ with $a=0.3$, $T=2000$."""
    return 2 * ceiling / (1 + math.exp(-step / horizon)) - ceiling


class _ReverseGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, h: Tensor, strength: float) -> Tensor:
        ctx.strength = strength
        return h.view_as(h)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return -ctx.strength * gradients[0], None


def reverse_gradient(h: Float[Tensor, "*shape"], strength: float) -> Float[Tensor, "*shape"]:
    """The identity going forward; going back the gradient times `-strength` (the min-max of eq. 4 in one pass)."""
    reversed_h: Tensor = _ReverseGradient.apply(h, strength)  # type: ignore[no-untyped-call]
    return reversed_h


def solver_objective(
    solver_s: Float[Tensor, "s classes"],
    y_s: Int[Tensor, " s"],
    replay: Float[Tensor, ""] | None = None,
) -> Float[Tensor, ""]:
    r"""Eq. 6 as a loss: $E_s[-\log p(y_s|h_t)]$ plus the replayed environments' sum, where there is one."""
    current = F.cross_entropy(solver_s, y_s)
    return current if replay is None else current + replay


def replay_objective(
    solver_r: Float[Tensor, "r classes"], y_r: Float[Tensor, "r classes"], *, environments: int
) -> Float[Tensor, ""]:
    r"""$\sum_{i<t}E_i[-\log p(y_i|\tilde h_i)]$ of eq. 6, estimated from one batch that the environments share evenly."""
    return environments * F.cross_entropy(solver_r, y_r)


def label_divergence(p_g: Float[Tensor, "n classes"], p_r: Float[Tensor, "n classes"]) -> Float[Tensor, ""]:
    r"""$KL(P_g\|P_r)$ of eq. 7: between label distributions given generated and given real features, averaged over rows."""
    tiny = torch.finfo(p_g.dtype).tiny
    return (p_g * (p_g.clamp_min(tiny).log() - p_r.clamp_min(tiny).log())).sum(dim=1).mean()


def replayed_support_error(support_error: float, divergence: float) -> float:
    r"""$\hat\varepsilon_{S_i}=\varepsilon_{S_i}+KL(P_g^{(i)}\|P_r^{(i)})$ (supplement, eq. 13)."""
    return support_error + divergence


def query_error_bound(
    support_errors: Sequence[float],
    discrepancies: Sequence[float],
    divergences: Sequence[float],
    optimal_error: float,
) -> float:
    r"""The theorem (eq. 7): $\varepsilon_Q\le\sum_{i\le t}(\varepsilon_{S_i}+\lambda_i)+\sum_{i<t}KL_i+C^*$.

    With one environment it is the corollary (eq. 9), which is Ben-David's bound (eq. 8) on features.
    """
    if not len(support_errors) == len(discrepancies) == len(divergences) + 1:
        raise InputError(
            f"The bound sums one support error and one discrepancy an environment, and one divergence for each but the last; "
            f"got {len(support_errors)}, {len(discrepancies)} and {len(divergences)}."
        )
    return sum(support_errors) + sum(discrepancies) + sum(divergences) + optimal_error
