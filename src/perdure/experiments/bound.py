r"""Every term of the theorem (eq. 7), estimated on the features of a learner while it learns a scenario.

$$\varepsilon_Q\le\sum_{i\le t}(\varepsilon_{S_i}+\lambda_i)+\sum_{i<t}KL_i+C^*$$

The theorem holds for any distributions, so also for the empirical ones of the rows at hand ("on these rows"); "held out" fits
f' and the optimal solver on one half of the rows and measures on the other, both ways round. The learner itself has seen all
rows either way: the errors of its solver on the support are training errors, those on the query transductive ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from perdure.experiments.features import APART, Aligned, aligned, error, learned, new_solver
from perdure.generative import Replay, Snapshot
from perdure.objectives import h_delta_h_divergence, label_divergence, margin_disparity_discrepancy, query_error_bound
from perdure.progress import Progress
from perdure.randomness import Batches, Use, generator
from perdure.solver import TwoLayerClassifier
from perdure.streams import Scenario
from perdure.variational import VariationalConfig, VariationalLearner

GENERATED = 1024
"""Generated features that a divergence is estimated from."""
FIT_STEPS = 400
"""Updates of f', and an environment of the optimal solver."""
FIT_RATE = 1e-3
FIT_BATCH = 64
Half: TypeAlias = tuple[Bool[Tensor, " _"], Bool[Tensor, " _"]]
"""Which rows of the support and of the query are in the first half."""


def bound_terms(config: VariationalConfig, scenario: Scenario, device: str, progress: Progress) -> dict[str, Any]:
    """What stays of each environment once it is learned, and for each stage the solver's errors and both sides of eq. 7."""
    each: list[Aligned] = []
    halves: list[Half] = []
    environments: list[dict[str, Any]] = []
    stages: list[dict[str, Any]] = []

    def measure(learner: VariationalLearner) -> None:
        number, snapshot = len(each), learner.snapshots[-1]
        rows = aligned(learner, scenario, snapshot.environment)
        each.append(rows)
        halves.append((_half(len(rows.y_s), config, number, 0), _half(len(rows.y_q), config, number, 1)))
        environments.append(lasting_terms(snapshot, rows, halves[-1], config, number))
        stages.append(stage_terms(learner, each, halves, environments))

    learned(config, scenario, device, progress, measure)
    return {"environments": environments, "stages": stages}


def lasting_terms(snapshot: Snapshot, rows: Aligned, half: Half, config: VariationalConfig, number: int) -> dict[str, Any]:
    r"""$\lambda_i$ and $KL_i$: of the frozen snapshot alone, so they are what they are at every later stage."""
    assert snapshot.generate is not None
    f = snapshot.generate.hypothesis
    generated = _generated(snapshot, config, number)
    labels = (rows.y_s[:, None] == snapshot.classes).float()
    return {
        "environment": snapshot.environment,
        "discrepancy": discrepancy(f, rows.h_s, rows.h_q, rows.h_s, rows.h_q, config, number),
        "discrepancy held out": discrepancy_held_out(f, rows, half, config, number),
        "divergence": replay_divergence(f, generated.h, generated.labels, rows.h_s, labels),
    }


def stage_terms(
    learner: VariationalLearner, each: Sequence[Aligned], halves: Sequence[Half], lasting: Sequence[dict[str, Any]]
) -> dict[str, Any]:
    """What the solver of this stage makes of every environment so far; both sides are sums over these."""
    solver, config = learner.solver, learner.config
    assert solver is not None
    generated = [_generated(snapshot, config, i) for i, snapshot in enumerate(learner.snapshots)]
    support_errors = [error(solver, rows.h_s, rows.y_s) for rows in each]
    query_errors = [error(solver, rows.h_q, rows.y_q) for rows in each]
    optimal, optimal_held_out = optimal_errors(each, halves, len(learner.classes), config)
    divergences = [terms["divergence"] for terms in lasting[:-1]]  # the newest environment is learned from its real features
    return {
        "environment": learner.environments[-1],
        "support error": support_errors,
        "error on generated": [
            expected_error(solver, replay.h, replay.labels, snapshot.classes)
            for replay, snapshot in zip(generated, learner.snapshots, strict=True)
        ],
        "optimal error": optimal,
        "optimal error held out": optimal_held_out,
        "query error": query_errors,
        "left side": sum(query_errors),
        "right side": query_error_bound(support_errors, [terms["discrepancy"] for terms in lasting], divergences, sum(optimal)),
        "right side held out": query_error_bound(
            support_errors, [terms["discrepancy held out"] for terms in lasting], divergences, sum(optimal_held_out)
        ),
    }


def _generated(snapshot: Snapshot, config: VariationalConfig, number: int) -> Replay:
    """The same features of a snapshot at every stage."""
    assert snapshot.generate is not None
    return snapshot.generate(GENERATED, generator(config.seed, Use.REPLAY, APART, number, device=snapshot.classes.device))


def discrepancy(
    f: TwoLayerClassifier,
    fit_s: Float[Tensor, "s features"],
    fit_q: Float[Tensor, "q features"],
    h_s: Float[Tensor, "s2 features"],
    h_q: Float[Tensor, "q2 features"],
    config: VariationalConfig,
    *where: int,
) -> float:
    r"""Eq. 2 at $f$ and an $f'$ trained afresh to agree with it on the support and differ on the query.

    A lower estimate of $\lambda_i$, which is the supremum over both. The margin is 1 and not that of learning, because eq. 2
    weighs the streams alike: with a larger one f' agrees even where the query is denser, only not by that factor.
    """
    f_adv = new_solver(config, f.classes, fit_s.device, 1, *where)
    optimiser = torch.optim.Adam(f_adv.parameters(), FIT_RATE, fused=True)
    with torch.no_grad():
        f_s, f_q = f(fit_s), f(fit_q)
    batch_s = Batches(len(fit_s), FIT_BATCH, config.seed, Use.SUPPORT_ORDER, APART, *where, device=fit_s.device)
    batch_q = Batches(len(fit_q), FIT_BATCH, config.seed, Use.QUERY_ORDER, APART, *where, device=fit_q.device)
    for step in range(FIT_STEPS):
        s, q = batch_s(step), batch_q(step)
        f_adv_sq = f_adv(torch.cat([fit_s[s], fit_q[q]]))
        ascended = margin_disparity_discrepancy(f_s[s], f_adv_sq[: len(s)], f_q[q], f_adv_sq[len(s) :], gamma=1.0)
        optimiser.zero_grad()
        (-ascended).backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    with torch.no_grad():
        return float(h_delta_h_divergence(f(h_s), f_adv(h_s), f(h_q), f_adv(h_q)))


def discrepancy_held_out(f: TwoLayerClassifier, rows: Aligned, half: Half, config: VariationalConfig, *where: int) -> float:
    """`discrepancy` with f' trained on one half of both streams and measured on the other, averaged over the two ways."""
    s, q = half
    ways = [(s, q), (~s, ~q)]
    return sum(discrepancy(f, rows.h_s[a], rows.h_q[b], rows.h_s[~a], rows.h_q[~b], config, *where) for a, b in ways) / 2


@torch.no_grad()
def replay_divergence(
    f: TwoLayerClassifier,
    h_g: Float[Tensor, "g features"],
    labels_g: Float[Tensor, "g own"],
    h_s: Float[Tensor, "s features"],
    labels_s: Float[Tensor, "s own"],
) -> float:
    r"""$KL(P_g\|P_r)$ in nats: what f says of generated features of a class against what it says of real ones, over the classes.

    Both are label distributions of one classifier, the snapshot's f, which has never seen a generated feature. A class of
    which none was generated has no such distribution and is left out.
    """
    there = (labels_g.sum(dim=0) > 0) & (labels_s.sum(dim=0) > 0)
    p_g, p_r = (belief_by_class(f(h).softmax(dim=1), labels[:, there]) for h, labels in ((h_g, labels_g), (h_s, labels_s)))
    return float(label_divergence(p_g, p_r))


def belief_by_class(belief: Float[Tensor, "n classes"], labels: Float[Tensor, "n some"]) -> Float[Tensor, "some classes"]:
    """The mean belief over the rows of each class; a soft label counts in part."""
    return (labels.T @ belief) / labels.sum(dim=0)[:, None]


@torch.no_grad()
def expected_error(
    solver: TwoLayerClassifier, h: Float[Tensor, "n features"], labels: Float[Tensor, "n own"], classes: Int[Tensor, " own"]
) -> float:
    r"""$\hat\varepsilon_{S_i}$: the solver's error on generated features under their labels."""
    answers = solver(h).argmax(dim=1)
    return float(1 - (labels * (answers[:, None] == classes)).sum(dim=1).mean())


def optimal_errors(
    each: Sequence[Aligned], halves: Sequence[Half], classes: int, config: VariationalConfig
) -> tuple[list[float], list[float]]:
    r"""$\varepsilon_{S_i}+\varepsilon_{Q_i}$ of the best solver for all streams, fitted with the query's labels: an oracle.

    On the very rows it was fitted to, and held out. Their sum over environments is an upper estimate of $C^*$, the least.
    """
    everything = [(torch.ones_like(s), torch.ones_like(q)) for s, q in halves]
    other = [(~s, ~q) for s, q in halves]
    on_these_rows = _summed_errors(_oracle(each, everything, classes, config), each, everything)
    ways = [
        _summed_errors(_oracle(each, fit, classes, config), each, scored) for fit, scored in ((halves, other), (other, halves))
    ]
    return on_these_rows, [(a + b) / 2 for a, b in zip(*ways, strict=True)]


def _oracle(each: Sequence[Aligned], rows: Sequence[Half], classes: int, config: VariationalConfig) -> TwoLayerClassifier:
    """Trained on both streams with labels; every set counts alike, as in the sum that C* is the least of."""
    sets = [
        (h[kept], y[kept]) for a, (s, q) in zip(each, rows, strict=True) for h, y, kept in ((a.h_s, a.y_s, s), (a.h_q, a.y_q, q))
    ]
    h, y = torch.cat([h for h, _ in sets]), torch.cat([y for _, y in sets])
    weight = torch.cat([torch.full((len(y),), len(h) / len(sets) / len(y), device=h.device) for _, y in sets])
    solver = new_solver(config, classes, h.device, 2)
    optimiser = torch.optim.Adam(solver.parameters(), FIT_RATE, fused=True)
    batches = Batches(len(h), FIT_BATCH, config.seed, Use.SUPPORT_ORDER, APART, len(h), device=h.device)
    for step in range(FIT_STEPS * len(each)):
        b = batches(step)
        loss = (weight[b] * F.cross_entropy(solver(h[b]), y[b], reduction="none")).mean()
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    return solver


def _summed_errors(solver: TwoLayerClassifier, each: Sequence[Aligned], rows: Sequence[Half]) -> list[float]:
    return [error(solver, a.h_s[s], a.y_s[s]) + error(solver, a.h_q[q], a.y_q[q]) for a, (s, q) in zip(each, rows, strict=True)]


def _half(n: int, config: VariationalConfig, *where: int) -> Bool[Tensor, " n"]:
    """A random half of the rows."""
    order = torch.randperm(n, generator=generator(config.seed, Use.MEMORY, APART, *where))
    return (order < n // 2).to(torch.bool)
