"""One step is the paper's, environments follow one another, and queries are answered by the right networks."""

from __future__ import annotations

import copy
import itertools
import logging
import math
import os
import signal
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tiny import TINY, WIDTH, anatomy, assert_same, differences, gaussians, learner_of, three
from torch import Tensor, nn
from torch.testing import assert_close

import perdure
from perdure import Environment, InputError, Learned, NotSolvableYet, Query, Support, UnknownEnvironment, VariationalConfig
from perdure import VariationalLearner as Learner
from perdure.inference import Encoder, InferenceModule
from perdure.objectives import margin_disparity_discrepancy
from perdure.randomness import Use, generator
from perdure.solver import TwoLayerClassifier
from perdure.variational import QueryBatch, SupportBatch


def xs(environment: Environment) -> tuple[np.ndarray, np.ndarray]:
    assert environment.support is not None
    assert environment.query is not None
    return environment.support.x, environment.query.x


def begun(environments: list[Environment], *, at: int = 0, **settings: Any) -> tuple[Learner, SupportBatch, QueryBatch]:
    """All but the last are learned; the last is about to take this step, its optimisers untouched. And the step's batch."""
    learner = learner_of(environments[:-1], **{**settings, "warm_up": TINY.warm_up})
    learner.config = replace(learner.config, **settings)
    learner._set_up(learner._begin(environments[-1]), environments[-1])
    lesson = learner._under_way()
    lesson.step = at
    assert lesson.batch_of is not None
    return learner, *lesson.batch_of(at)


# One step, computed by hand


def batch_normalised(decode: nn.Module, z: Tensor) -> Tensor:
    rectified = F.linear(z, decode.linear.weight, decode.linear.bias).clamp_min(0)
    mean, variance = rectified.mean(dim=0), rectified.var(dim=0, unbiased=False)
    return (rectified - mean) / (variance + 1e-5).sqrt() * decode.norm.weight + decode.norm.bias


def cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    """To class numbers or to a distribution."""
    log_p = logits - logits.exp().sum(dim=1, keepdim=True).log()
    one_hot = F.one_hot(target, logits.shape[1]).float() if target.ndim == 1 else target
    return -(one_hot * log_p).sum(dim=1).mean()


class ByHand:
    """The terms of one step from their definitions, and the weights after it."""

    def __init__(self, learner: Learner, support: SupportBatch, query: QueryBatch) -> None:
        config, lesson = learner.config, learner._under_way()
        self.learner, self.config = learner, config
        inference, f, f_adv = learner._networks()
        noise = torch.randn(
            len(support.x) + len(query.x), config.latent, generator=generator(config.seed, Use.STEP, lesson.number, lesson.step)
        )
        h, kls = [], []
        own = lesson.classes
        for stream, x, eps in (("support", support.x, noise[: len(support.x)]), ("query", query.x, noise[len(support.x) :])):
            mean, log_variance = inference.encode(x, stream)
            h.append(batch_normalised(inference.decode, mean + (log_variance / 2).exp() * eps))
            if config.conditioning == "environment":
                kl = 0.5 * (log_variance.exp() + mean**2 - 1 - log_variance)
            else:
                if stream == "support":
                    belief = F.one_hot(support.own_y, len(own)).float()
                else:
                    belief = (f(h[1]) if config.task_confusion else f(h[1])[:, own]).detach().softmax(dim=1)
                kl = sum(
                    belief[:, c, None] * 0.5 * (log_variance.exp() + (mean - mu) ** 2 - 1 - log_variance)
                    for c, mu in enumerate(lesson.prior_means)
                )
            kls.append(kl.mean(dim=0).sum() if config.kl_summed else kl.mean())
        h_s, h_q = h
        y = support.own_y if config.task_confusion else support.y
        self.kl = sum(kls)
        self.epsilon = cross_entropy(f(h_s), y) + config.kl_weight * self.kl
        self.discrepancy = margin_disparity_discrepancy(f(h_s), f_adv(h_s), f(h_q), f_adv(h_q), gamma=config.gamma)
        self.solver = self.replay = None
        past = torch.zeros(())
        if lesson.step >= config.warm_up:
            answer = learner.solver if config.task_confusion else f
            if lesson.rehearsal is not None:
                replayed = lesson.rehearsal(lesson.step - config.warm_up)
                self.replay = len(learner.snapshots) * cross_entropy(answer(replayed.h), replayed.labels)
                past = self.replay
            if config.task_confusion:
                self.solver = cross_entropy(answer(h_s), support.y) + past
                past = self.solver
        self.strength = (
            2 * config.reversal_ceiling / (1 + math.exp(-lesson.step / config.reversal_horizon)) - config.reversal_ceiling
        )
        self._satisfaction = self.epsilon + past
        self._params = {
            "inference": list(inference.parameters()),
            "prior": [lesson.prior_means] if config.conditioning == "class_prior" else [],
            "f": list(f.parameters()),
            "adversary": list(f_adv.parameters()),
            "solver": [] if learner.solver is None else list(learner.solver.parameters()),
        }

    def weights_after(self) -> dict[str, list[Tensor]]:
        """The first step of Adam and of SGD with Nesterov momentum, written out."""

        def gradients(of: Tensor, names: list[str]) -> dict[str, list[Tensor | None]]:
            params = [p for name in names for p in self._params[name]]
            found = iter(torch.autograd.grad(of, params, retain_graph=True, allow_unused=True))
            return {name: [next(found) for _ in self._params[name]] for name in names}

        config = self.config
        satisfaction = gradients(self._satisfaction, ["inference", "prior", "f", "solver"])
        discrepancy = gradients(self.discrepancy, ["inference", "adversary"])
        after: dict[str, list[Tensor]] = {}
        for name, params in self._params.items():
            after[name] = []
            for i, p in enumerate(params):
                if name == "adversary":
                    g = -config.beta * discrepancy[name][i]  # SGD goes down, so it ascends
                else:
                    g = satisfaction[name][i]
                    if name == "inference":
                        g = g + self.strength * config.beta * discrepancy[name][i]
                if g is None:  # not part of this step
                    after[name].append(p.detach().clone())
                elif name in ("inference", "prior"):
                    after[name].append((p - config.inference_rate * g / (g.abs() + 1e-8)).detach())
                else:
                    rate = config.solver_rate if name == "solver" else config.hypothesis_rate
                    g = g + config.weight_decay * p
                    after[name].append((p - rate * (g + config.momentum * g)).detach())
        return after

    def weights_now(self) -> dict[str, list[Tensor]]:
        return {name: [p.detach().clone() for p in params] for name, params in self._params.items()}


STEPS = {
    "warming up": {"warm_up": 800},
    "replay": {},
    "environment reading": {"conditioning": "environment"},
    "environment reading, hard labels": {"conditioning": "environment", "hard_labels": True},
    "memory": {"replay": "memory"},
    "noise": {"replay": "noise"},
    "no replay": {"replay": "none"},
    "no task confusion": {"task_confusion": False},
    "no task confusion, no replay": {"task_confusion": False, "replay": "none"},
    "summed": {"kl_summed": True, "conditioning": "environment"},
    "summed over classes": {"kl_summed": True, "kl_weight": 0.3},
    "other weights": {"beta": 0.5, "gamma": 2.0, "kl_weight": 3.0, "momentum": 0.5, "weight_decay": 0.1, "solver_rate": 0.3},
    "other reversal": {"reversal_ceiling": 0.9, "reversal_horizon": 300.0, "hypothesis_rate": 0.02, "inference_rate": 0.01},
}


@pytest.mark.parametrize("settings", STEPS.values(), ids=STEPS)
def test_one_step_equals_the_same_step_by_hand(settings: dict[str, Any]) -> None:
    # Far into the lesson, so that the reversal is strong. The third environment brings back a class.
    learner, support, query = begun(three(), at=700, **settings)
    hand = ByHand(learner, support, query)
    before, expected = hand.weights_now(), hand.weights_after()
    losses = learner.step(support, query)
    for name in ("epsilon", "kl", "discrepancy", "solver", "replay"):
        term, by_hand = getattr(losses, name), getattr(hand, name)
        assert (term is None) == (by_hand is None), name
        if term is not None:
            assert_close(term, by_hand, msg=lambda text, name=name: f"{name}: {text}")
    moved = {
        name
        for name in before
        if any(not torch.equal(*pair) for pair in zip(before[name], hand.weights_now()[name], strict=True))
    }
    warm = settings.get("warm_up", 0) < 700
    assert moved == {"inference", "f", "adversary"} | {
        name
        for name, moves in (
            ("prior", learner.config.conditioning == "class_prior"),
            ("solver", warm and learner.config.task_confusion),
        )
        if moves
    }
    for name, params in hand.weights_now().items():
        for now, then in zip(params, expected[name], strict=True):
            assert_close(now, then, rtol=0, atol=2e-6, msg=lambda text, name=name: f"{name}: {text}")
    assert learner._under_way().step == 701


def test_the_adversary_raises_the_discrepancy_and_the_inference_module_lowers_it() -> None:
    for who, sign in (("adversary", 1), ("inference", -1)):
        rising = []
        for seed in range(5):
            learner, support, query = begun(three()[:1], at=5000, seed=seed, warm_up=9000, kl_weight=0.0)
            before = ByHand(learner, support, query).discrepancy.item()
            frozen = copy.deepcopy((learner.inference, learner.adversary, learner.hypothesis))
            if who == "inference":  # of its objective only what the adversary says
                learner.config = replace(learner.config, beta=1000.0)
            learner.step(support, query)
            learner._under_way().step = 5000
            if who == "adversary":
                learner.inference, learner.hypothesis = frozen[0], frozen[2]
            else:
                learner.adversary, learner.hypothesis = frozen[1], frozen[2]
            rising.append(sign * (ByHand(learner, support, query).discrepancy.item() - before))
        assert min(rising) > 0, (who, rising)


def test_the_terms_that_are_reported_are_those_of_the_last_step() -> None:
    learner, seen = learner_of(three()[:1]), []
    step = learner.step

    def recorded(support: SupportBatch, query: QueryBatch) -> Any:
        seen.append(step(support, query))
        return seen[-1]

    learner.step = recorded  # type: ignore[method-assign]
    learned = learner.learn(three()[1], progress=False)
    assert isinstance(learned, Learned)
    assert len(seen) == learned.steps == TINY.warm_up + TINY.steps
    assert learned.losses == {name: term.item() for name, term in seen[-1]._asdict().items()}
    assert [name for name, term in seen[0]._asdict().items() if term is None] == ["solver", "replay"]
    assert learned.seconds > 0


def test_a_step_needs_a_lesson() -> None:
    with pytest.raises(NotSolvableYet, match=r"^No environment is being learned; `learn` begins one and calls `step`\.$"):
        learner_of().step(
            SupportBatch(torch.ones(2, 6), torch.zeros(2).long(), torch.zeros(2).long()), QueryBatch(torch.ones(2, 6))
        )


# Batches


def test_batches_are_rows_of_the_environment_with_their_own_labels() -> None:
    learner, *_ = begun(three())
    lesson = learner._under_way()
    assert lesson.batch_of is not None
    x_s, x_q = xs(three()[2])
    support_rows, query_rows = [], []
    for step in range(5):
        support, query = lesson.batch_of(step)
        rows = [int(np.flatnonzero((x_s == row).all(axis=1))[0]) for row in support.x.numpy()]
        given = three()[2].support
        assert given is not None
        assert [learner.classes[int(y)] for y in support.y] == list(given.y[rows])
        assert [["dog", "yak"][int(y)] for y in support.own_y] == list(given.y[rows])
        support_rows += rows
        query_rows += [int(np.flatnonzero((x_q == row).all(axis=1))[0]) for row in query.x.numpy()]
    assert sorted(support_rows) == sorted([*range(20)] * 2)  # 5 batches of 8 are two passes over 20 rows
    assert sorted(query_rows) == sorted([*range(20)] * 2)
    assert support_rows != query_rows


# Warming up


@pytest.mark.parametrize("earlier", [0, 2])
def test_the_solver_does_not_move_while_warming_up(earlier: int) -> None:
    environments = three()[: earlier + 1]
    learner, states = learner_of(environments[:-1], warm_up=3, steps=2), []

    def look(step: int, total: int) -> None:
        states.append(
            (anatomy(learner.solver), anatomy(learner.inference), anatomy(learner.hypothesis), anatomy(learner.adversary))
        )

    learner.learn(environments[-1], progress=look)
    solver_moved, *others_moved = (
        [bool(differences(states[i][network], states[i + 1][network])) for i in range(4)] for network in range(4)
    )
    assert solver_moved == [False, False, True, True]  # between steps 1 and 2, 2 and 3, 3 and 4, 4 and 5
    assert others_moved == [[True] * 4] * 3


def test_without_warm_up_the_solver_moves_from_the_first_step() -> None:
    learner, support, query = begun(three()[:1], warm_up=0)
    before = anatomy(learner.solver)
    assert learner.step(support, query).solver is not None
    assert differences(before, anatomy(learner.solver))


# From one environment to the next


def test_each_environment_begins_afresh_unless_told_to_go_on() -> None:
    for fresh in (True, False):
        learner = learner_of(three()[:1], fresh_inference=fresh)
        (first,) = learner.snapshots
        learner._begin(three()[1])
        assert learner.inference is not None
        assert first.inference is not None
        one, other = learner.inference.encode.to_posterior.weight, first.inference.encode.to_posterior.weight
        assert torch.equal(one, other) is not fresh
        assert not torch.equal(learner.inference.encode.query.mean, first.inference.encode.query.mean)  # each its own stream


def test_the_solver_goes_on_unless_told_to_begin_afresh() -> None:
    for fresh in (True, False):
        learner = learner_of(three()[:1], fresh_solver=fresh)
        before = copy.deepcopy(learner.solver)
        learner._begin(three()[1])
        assert before is not None
        assert learner.solver is not None
        assert learner.solver.classes == 5
        assert torch.equal(learner.solver.hidden.weight, before.hidden.weight) is not fresh
        assert torch.equal(learner.solver.output.weight[:2], before.output.weight) is not fresh


def test_f_and_its_adversary_know_only_the_classes_of_their_environment() -> None:
    learner, *_ = begun(three())
    assert learner.hypothesis is not None
    assert learner.adversary is not None
    assert learner.solver is not None
    assert (learner.hypothesis.classes, learner.adversary.classes, learner.solver.classes) == (2, 2, 6)
    assert differences(anatomy(learner.hypothesis), anatomy(learner.adversary))


def test_without_task_confusion_f_knows_every_class_and_goes_on() -> None:
    learner = learner_of(three()[:1], task_confusion=False)
    before = copy.deepcopy(learner.hypothesis)
    learner._begin(three()[1])
    assert before is not None
    assert learner.hypothesis is not None
    assert learner.hypothesis.classes == 5
    assert torch.equal(learner.hypothesis.hidden.weight, before.hidden.weight)
    assert learner.solver is None


def test_first_prior_means_have_the_spread_asked_for() -> None:
    environment = gaussians("many", range(10), rows=40)
    for spread in (2.0, 0.5, 0.0):
        learner, *_ = begun([environment], prior_spread=spread, latent=200)
        means = learner._under_way().prior_means
        assert means.shape == (10, 200)
        assert means.std().item() == pytest.approx(spread, rel=0.1)


@pytest.mark.parametrize("centre", [True, False])
def test_each_stream_is_centred_by_its_own_mean_to_the_length_asked_for(centre: bool) -> None:
    learner, *_ = begun(three()[:1], centre=centre, length=3.0)
    assert learner.inference is not None
    x_s, x_q = xs(three()[0])
    for centring, x in ((learner.inference.encode.support, x_s), (learner.inference.encode.query, x_q)):
        seen = centring(torch.from_numpy(x))
        expected = torch.from_numpy(x)
        if centre:
            expected = expected - expected.mean(dim=0)
            expected = expected * 3 / expected.square().sum(dim=1).mean().sqrt()
        assert_close(seen, expected)


def test_what_is_kept_is_what_was_learned_last() -> None:
    learner, final = learner_of(), {}

    def look(step: int, total: int) -> None:
        lesson = learner._under_way()
        final.update(
            inference=copy.deepcopy(learner.inference), f=copy.deepcopy(learner.hypothesis), means=lesson.prior_means.clone()
        )

    learner.learn(three()[0], progress=look)
    (snapshot,) = learner.snapshots
    assert snapshot.generate is not None
    assert snapshot.inference is not None
    assert snapshot.generate.decode is snapshot.inference.decode
    assert snapshot.generate.priors is not None
    assert differences(anatomy(snapshot.inference, flags=False), anatomy(final["inference"], flags=False)) == []
    assert differences(anatomy(snapshot.generate.hypothesis, flags=False), anatomy(final["f"], flags=False)) == []
    assert torch.equal(snapshot.generate.priors.means, final["means"])
    assert (learner.inference, learner.hypothesis, learner.adversary, learner.in_progress) == (None, None, None, None)


def test_a_class_is_drawn_around_where_its_support_rows_lie() -> None:
    environment = three()[0]
    assert environment.support is not None
    (snapshot,) = learner_of([environment]).snapshots
    assert snapshot.inference is not None
    assert snapshot.generate is not None
    assert snapshot.generate.priors is not None
    z, y = snapshot.inference.encode(torch.from_numpy(environment.support.x), "support").mean, environment.support.y
    expected = torch.stack([z[torch.from_numpy(y == label)].mean(dim=0) for label in environment.support.classes])
    assert_close(snapshot.generate.priors.drawn_around, expected)
    (at_prior,) = learner_of([environment], replay_around="prior").snapshots
    assert at_prior.generate is not None
    assert at_prior.generate.priors is not None
    assert torch.equal(at_prior.generate.priors.drawn_around, at_prior.generate.priors.means)
    assert torch.equal(at_prior.generate.priors.means, snapshot.generate.priors.means)


def test_without_task_confusion_a_snapshot_keeps_f_for_its_own_classes_only() -> None:
    learner = learner_of(three(), task_confusion=False)
    assert learner.hypothesis is not None
    generate = learner.snapshots[2].generate
    assert generate is not None
    h = torch.randn(4, TINY.features, generator=torch.Generator().manual_seed(0))
    dog, yak = learner.classes.index("dog"), learner.classes.index("yak")
    assert_close(generate.hypothesis(h), learner.hypothesis(h)[:, [dog, yak]])


# Answering


def module_by_hand(module: InferenceModule, x: np.ndarray) -> Tensor:
    w = module.state_dict()
    rows = (torch.from_numpy(x) - w["encode.query.mean"]) * w["encode.query.scale"]
    z = rows @ w["encode.to_posterior.weight"][: TINY.latent].T + w["encode.to_posterior.bias"][: TINY.latent]
    h = (z @ w["decode.linear.weight"].T + w["decode.linear.bias"]).clamp_min(0)
    h = (h - w["decode.norm.running_mean"]) / (w["decode.norm.running_var"] + 1e-5).sqrt()
    return h * w["decode.norm.weight"] + w["decode.norm.bias"]


def classifier_by_hand(classifier: TwoLayerClassifier, h: Tensor) -> Tensor:
    w = classifier.state_dict()
    hidden = (h @ w["hidden.weight"].T + w["hidden.bias"]).clamp_min(0)
    return (hidden @ w["output.weight"].T + w["output.bias"]).softmax(dim=1)


@pytest.mark.parametrize("i", [0, 1, 2])
def test_an_environment_that_is_given_is_answered_by_its_snapshot_and_the_solver(i: int) -> None:
    learner = learner_of(three())
    _, x = xs(three()[0])
    module = learner.snapshots[i].inference
    assert module is not None
    assert learner.solver is not None
    h = module_by_hand(module, x)
    expected = classifier_by_hand(learner.solver, h)
    name = learner.environments[i]
    assert_close(torch.from_numpy(learner.transform(x, name)), h, rtol=0, atol=1e-4)
    assert_close(torch.from_numpy(learner.predict_proba(x, name)), expected, rtol=0, atol=1e-5)
    assert list(learner.predict(x, name)) == [learner.classes[c] for c in expected.argmax(dim=1)]


def test_an_unknown_environment_is_answered_by_all_snapshots_each_as_likely_as_it_is() -> None:
    learner = learner_of(three())
    _, x = xs(three()[1])
    weights = learner.inferred_environment(x).probabilities
    expected = sum(weights[:, [i]] * learner.predict_proba(x, name) for i, name in enumerate(learner.environments))
    mixed = learner.predict_proba(x)
    np.testing.assert_allclose(mixed, expected, rtol=0, atol=1e-6)
    assert list(learner.predict(x)) == [learner.classes[c] for c in expected.argmax(axis=1)]
    assert len({tuple(learner.predict_proba(x, name)[0]) for name in learner.environments}) == 3


def test_the_weight_of_a_snapshot_follows_from_how_well_its_prior_fits() -> None:
    learner = learner_of(three())
    _, x = xs(three()[1])
    dimensions = (2 + 3 + 2) / 3
    rows = torch.from_numpy(x.copy())
    each = [s.evidence(s.inference.encode(rows, "query").mean, dimensions=dimensions) for s in learner.snapshots if s.inference]
    evidence = torch.stack(each, dim=1)
    np.testing.assert_allclose(learner.inferred_environment(x).probabilities, evidence.softmax(dim=1), rtol=0, atol=1e-6)


@pytest.mark.parametrize("conditioning", ["class_prior", "environment"])
def test_environments_that_are_far_apart_are_recognised(conditioning: str) -> None:
    far = [
        gaussians(name, shift=shift, seed=seed) for seed, (name, shift) in enumerate({"a": 0.0, "b": 60.0, "c": -60.0}.items())
    ]
    learner = learner_of(far, conditioning=conditioning, warm_up=10, inference_rate=1e-2)
    for environment in far:
        _, x = xs(environment)
        inferred = learner.inferred_environment(x)
        assert list(inferred.names) == [environment.name] * len(x)
        assert inferred.confidence.min() > 0.9
        np.testing.assert_allclose(learner.predict_proba(x), learner.predict_proba(x, environment.name), rtol=0, atol=0.1)


@pytest.mark.parametrize("settings", [{}, {"conditioning": "environment"}, {"task_confusion": False}], ids=str)
def test_probabilities_are_probabilities(settings: dict[str, Any]) -> None:
    learner = learner_of(three(), **settings)
    x = 100 * np.random.default_rng(0).normal(size=(50, WIDTH))
    for proba in (learner.predict_proba(x), learner.predict_proba(x, "farm"), learner.inferred_environment(x).probabilities):
        assert proba.dtype == np.float32
        assert proba.min() >= 0
        np.testing.assert_allclose(proba.sum(axis=1), 1, atol=1e-5)
    inferred = learner.inferred_environment(x)
    assert inferred.probabilities.shape == (50, 3)
    np.testing.assert_array_equal(inferred.confidence, inferred.probabilities.max(axis=1))
    assert list(inferred.names) == [learner.environments[i] for i in inferred.probabilities.argmax(axis=1)]
    assert learner.predict_proba(x).shape == (50, len(learner.classes))


def test_with_one_environment_there_is_nothing_to_infer() -> None:
    learner = learner_of(three()[:1])
    _, x = xs(three()[0])
    inferred = learner.inferred_environment(x)
    assert set(inferred.names) == {"clinic"}
    assert (inferred.confidence == 1).all()
    np.testing.assert_array_equal(learner.predict_proba(x), learner.predict_proba(x, "clinic"))


def test_both_streams_can_be_transformed() -> None:
    learner = learner_of(three()[:1])
    x_s, _ = xs(three()[0])
    module = learner.snapshots[0].inference
    assert module is not None
    as_support = learner.transform(x_s, "clinic", stream="support")
    np.testing.assert_array_equal(as_support, module(torch.from_numpy(x_s.copy()), "support").numpy())
    assert not np.array_equal(as_support, learner.transform(x_s, "clinic"))


def test_a_learner_learns() -> None:
    environments = three()[:2]
    learner = learner_of(environments, warm_up=20, steps=40, inference_rate=1e-2, hypothesis_rate=2e-2, solver_rate=5e-2)
    for environment in environments:
        _, x_q = xs(environment)
        assert environment.support is not None
        assert (learner.predict(x_q, environment.name) == environment.support.y).mean() > 0.9  # the query has the same classes


# Labels and arrays of every kind


@pytest.mark.parametrize(
    ("labels", "classes", "dtype"),
    [
        (np.array(["b", "a"]), ["a", "b"], "U"),
        (np.array(["b", "a"], dtype=object), ["a", "b"], "U"),
        (np.array([70_000, -3]), [-3, 70_000], "i"),
        (np.array([7, 2], dtype=np.uint8), [2, 7], "i"),
        (np.array([2.0, 5.0]), [2, 5], "i"),
        (torch.tensor([9, 4]), [4, 9], "i"),
    ],
    ids=str,
)
def test_labels_come_back_as_they_were_given(labels: Any, classes: list[Any], dtype: str) -> None:
    x_s, x_q = xs(three()[0])
    y = labels[np.arange(20) % 2] if isinstance(labels, np.ndarray) else labels[torch.arange(20) % 2]
    learner = learner_of([Environment("a", Support(x_s, y), Query(x_q))])
    assert learner.classes == classes
    assert [type(label) for label in learner.classes] == [type(label) for label in classes]
    answers = learner.predict(x_q)
    assert isinstance(answers, np.ndarray)
    assert answers.dtype.kind == dtype
    assert set(answers.tolist()) <= set(classes)


@pytest.mark.parametrize(
    "convert",
    [
        lambda x: x.astype(np.float64),
        lambda x: x.astype(object),
        lambda x: x.tolist(),
        torch.tensor,
        lambda x: torch.tensor(x, dtype=torch.float64, requires_grad=True),
        np.asfortranarray,
        lambda x: np.repeat(x, 2, axis=0)[::2],
    ],
    ids=["float64", "object", "list", "tensor", "tensor64", "fortran", "strided"],
)
def test_rows_of_any_kind_are_learned_and_answered_alike(convert: Any) -> None:
    x_s, x_q = xs(three()[0])
    y = np.array(["cat", "dog"])[np.arange(20) % 2]
    expected = learner_of([Environment("a", Support(x_s, y), Query(x_q))])
    learner = learner_of([Environment("a", Support(convert(x_s), y), Query(convert(x_q)))])
    assert_same(learner, expected)
    for answer in (learner.predict_proba(convert(x_q)), learner.transform(convert(x_q), "a")):
        assert type(answer) is np.ndarray
        assert answer.dtype == np.float32
    np.testing.assert_array_equal(learner.predict_proba(convert(x_q)), expected.predict_proba(x_q))


def test_whole_numbers_are_learned_as_they_are() -> None:
    x = np.random.default_rng(0).integers(0, 200, size=(20, WIDTH))
    y = np.arange(20) % 2
    one, other = (learner_of([Environment("a", Support(x.astype(t), y), Query(x.astype(t)))]) for t in (np.uint8, np.float32))
    assert_same(one, other)


def test_arrays_that_cannot_be_written_are_learned_without_a_murmur() -> None:
    # Such are memory maps and columns of Arrow tables; torch warns of them, and warnings are errors here.
    x_s, x_q = (x.copy() for x in xs(three()[0]))
    for x in (x_s, x_q):
        x.flags.writeable = False
    learner = learner_of([Environment("a", Support(x_s, np.arange(20) % 2), Query(x_q))])
    assert len(learner.predict(x_q)) == 20


def test_a_class_that_comes_back_stays_one_class(caplog: pytest.LogCaptureFixture) -> None:
    learner = learner_of(three()[:2])
    with caplog.at_level(logging.INFO, logger="perdure"):
        learned = learner.learn(three()[2], progress=False)
    assert isinstance(learned, Learned)
    assert learned.returning == ["dog"]
    assert [record.message for record in caplog.records] == [
        "zoo: classes ['dog'] were seen before; each stays one class, learned from both."
    ]
    assert learner.classes == ["cat", "dog", "cow", "hen", "pig", "yak"]
    assert learner.predict_proba(xs(three()[0])[1]).shape == (20, 6)
    assert [snapshot.classes.tolist() for snapshot in learner.snapshots] == [[0, 1], [2, 3, 4], [1, 5]]


def test_classes_that_are_all_new_are_said_to_be_none_returning() -> None:
    learned = learner_of(three()[:1]).learn(three()[1], progress=False)
    assert isinstance(learned, Learned)
    assert learned.returning == []
    assert learned.environment == "farm"


# Forgetting


def test_forgetting_takes_the_classes_that_only_it_had() -> None:
    learner = learner_of(three())
    _, x = xs(three()[0])
    before = {name: learner.predict_proba(x, name) for name in ("farm", "zoo")}
    features = {name: learner.transform(x, name) for name in ("farm", "zoo")}
    learner.forget("clinic")
    assert learner.environments == ["farm", "zoo"]
    assert learner.classes == ["dog", "cow", "hen", "pig", "yak"]  # the zoo has dogs, too
    assert [[learner.classes[int(c)] for c in s.classes] for s in learner.snapshots] == [["cow", "hen", "pig"], ["dog", "yak"]]
    assert set(learner.bytes_held) == {"farm", "zoo", "(shared)"}
    for name in ("farm", "zoo"):
        np.testing.assert_array_equal(learner.transform(x, name), features[name])
        left = before[name][:, 1:]  # without the cats
        np.testing.assert_allclose(learner.predict_proba(x, name), left / left.sum(axis=1, keepdims=True), rtol=0, atol=1e-5)
    assert learner.inferred_environment(x).probabilities.shape == (20, 2)
    assert learner.predict_proba(x).shape == (20, 5)
    with pytest.raises(UnknownEnvironment):
        learner.predict(x, "clinic")


@pytest.mark.parametrize(
    "settings", [{}, {"task_confusion": False}, {"snapshot": "decoder"}, {"fresh_inference": False}], ids=str
)
def test_learning_goes_on_after_forgetting(settings: dict[str, Any]) -> None:
    learner = learner_of(three(), **settings)
    learner.forget("farm")
    assert learner.classes == ["cat", "dog", "yak"]
    learner.learn(three()[1], progress=False)
    assert learner.environments == ["clinic", "zoo", "farm"]
    assert learner.classes == ["cat", "dog", "yak", "cow", "hen", "pig"]
    assert learner.predict_proba(xs(three()[1])[1], "clinic").shape == (21, 6)


def test_forgetting_everything_leaves_a_learner_that_takes_anything() -> None:
    learner = learner_of(three()[:2])
    for name in ("clinic", "farm"):
        learner.forget(name)
    assert learner.environments == learner.classes == []
    assert learner.bytes_held == {"(shared)": 0}
    with pytest.raises(NotSolvableYet, match="Nothing has been learned yet"):
        learner.predict(xs(three()[0])[1])
    x = np.random.default_rng(0).normal(size=(20, 3))  # of another width, with labels of another kind
    learner.learn(Environment("clinic", Support(x, np.arange(20) % 2), Query(x)), progress=False)
    assert learner.classes == [0, 1]


def begun_and_dropped(learner: Learner, environment: Environment) -> None:
    def stop(step: int, total: int) -> None:
        if step == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        learner.learn(environment, progress=stop)
    learner.forget(environment.name)


@pytest.mark.parametrize("settings", [{}, {"task_confusion": False}], ids=str)
def test_forgetting_an_unfinished_lesson_leaves_what_was_learned_before(settings: dict[str, Any]) -> None:
    learner, expected = learner_of(three()[:2], **settings), learner_of(three()[:2], **settings)
    begun_and_dropped(learner, three()[2])
    assert learner.in_progress is None
    assert (learner.environments, learner.classes) == (expected.environments, expected.classes)
    left = {path for path in differences(anatomy(learner), anatomy(expected)) if not path.startswith(("._lessons", ".adversary"))}
    # While warming up the solver does not move; f as the only classifier does, and its module stays the newest.
    assert {path.split(".")[1] for path in left} == ({"hypothesis"} if settings else set())
    learner.learn(three()[2], progress=False)
    assert learner.environments == ["clinic", "farm", "zoo"]


def test_forgetting_the_unfinished_first_lesson_leaves_an_empty_learner() -> None:
    learner = learner_of()
    begun_and_dropped(learner, three()[0])
    assert set(differences(anatomy(learner), anatomy(learner_of()))) == {"._lessons"}
    learner.learn(three()[1], progress=False)
    assert learner.classes == ["cow", "hen", "pig"]


def test_an_environment_that_is_not_there_cannot_be_forgotten() -> None:
    learner = learner_of(three()[:2])
    before = anatomy(learner)
    with pytest.raises(UnknownEnvironment, match=r"^No environment is called \"moon\". Learned so far: \['clinic', 'farm'\].$"):
        learner.forget("moon")
    assert_same(learner, before)


def test_nothing_else_is_forgotten_while_a_lesson_is_under_way() -> None:
    learner = learner_of(three()[:1])

    def try_it(step: int, total: int) -> None:
        with pytest.raises(InputError, match=r'^"farm" is under way. Finish it, or drop it first with forget\("farm"\).$'):
            learner.forget("clinic")

    learner.learn(three()[1], progress=try_it)
    assert learner.environments == ["clinic", "farm"]


# The named configurations

NAMED = {
    "generative_replay": (perdure.generative_replay, {}),
    "memory_replay": (perdure.memory_replay, {"replay": "memory"}),
    "noise_replay": (perdure.noise_replay, {"replay": "noise"}),
    "optimal_baseline": (perdure.optimal_baseline, {"replay": "none"}),
    "baseline_2": (perdure.baseline_2, {"replay": "none", "warm_up": 0, "steps": 1500}),
    "baseline_3": (perdure.baseline_3, {"replay": "none", "warm_up": 0, "steps": 1500, "task_confusion": False}),
    "naive_baseline": (
        perdure.naive_baseline,
        {"replay": "none", "warm_up": 0, "steps": 1500, "task_confusion": False, "snapshot": "none"},
    ),
}


@pytest.mark.parametrize("name", NAMED)
def test_a_named_configuration_changes_what_its_name_says_and_nothing_else(name: str) -> None:
    config, changes = NAMED[name][0](), NAMED[name][1]
    default = VariationalConfig()
    assert asdict(config) == {**asdict(default), **changes}
    assert config.warm_up + config.steps == default.warm_up + default.steps


@pytest.mark.parametrize("name", NAMED)
def test_every_named_configuration_learns_and_answers_two_environments(name: str) -> None:
    small = {key: getattr(TINY, key) for key in ("latent", "features", "width", "batch", "replay_batch", "memory")}
    config = NAMED[name][0]()
    learner = Learner(replace(config, **small, warm_up=min(config.warm_up, 2), steps=3))
    for environment in three()[:2]:
        learner.learn(environment, progress=False)
    for environment in three()[:2]:
        _, x = xs(environment)
        assert learner.predict(x, environment.name).shape == (len(x),)
        assert learner.predict_proba(x).shape == (len(x), 5)


def test_without_task_confusion_f_itself_answers() -> None:
    learner = learner_of(three(), task_confusion=False, replay="none", warm_up=0)
    _, x = xs(three()[0])
    module = learner.snapshots[0].inference
    assert module is not None
    assert learner.solver is None
    assert learner.hypothesis is not None
    expected = classifier_by_hand(learner.hypothesis, module_by_hand(module, x))
    np.testing.assert_allclose(learner.predict_proba(x, "clinic"), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("settings", [{"snapshot": "none", "replay": "none"}, {"snapshot": "decoder"}], ids=str)
@pytest.mark.parametrize("fresh", [True, False])
def test_without_encoder_snapshots_every_query_passes_through_the_newest_module(settings: dict[str, Any], fresh: bool) -> None:
    learner = learner_of(three(), fresh_inference=fresh, **settings)
    _, x = xs(three()[0])
    assert learner.inference is not None
    assert learner.solver is not None
    assert_close(learner.inference.encode.query.mean, torch.from_numpy(xs(three()[2])[1]).mean(dim=0))  # the newest's
    expected = classifier_by_hand(learner.solver, module_by_hand(learner.inference, x))
    for name in ("clinic", "farm", "zoo", None):
        np.testing.assert_allclose(learner.predict_proba(x, name), expected, rtol=0, atol=1e-5)
    with pytest.raises(NotSolvableYet, match=r"keeps no encoders .* cannot tell environments apart"):
        learner.inferred_environment(x)


# A backbone


class Pictures(nn.Sequential):
    """From pictures of 8 x 8 to five features."""

    def __init__(self) -> None:
        super().__init__(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(3 * 36, 5))


def pictures(name: str, seed: int) -> Environment:
    rng = np.random.default_rng(seed)
    y = np.arange(20) % 2
    x = rng.normal(size=(20, 1, 8, 8)) + y[:, None, None, None]
    return Environment(name, Support(x, y), Query(x + 1))


def test_a_backbone_is_trained_along_kept_and_loaded(tmp_path: Any) -> None:
    learner, states = Learner(TINY, backbone=Pictures), []

    def look(step: int, total: int) -> None:
        assert learner.inference is not None
        states.append(anatomy(learner.inference.encode.backbone, flags=False))

    learner.learn(pictures("a", 0), progress=look)
    for path in (".0.weight", ".1.weight", ".4.weight", ".1.running_mean"):
        assert all(path in differences(one, other) for one, other in itertools.pairwise(states)), path
    first = learner.snapshots[0].inference
    assert first is not None
    assert differences(anatomy(first.encode.backbone, flags=False), states[-1]) == []
    before = anatomy(first)
    learner.learn(pictures("b", 1), progress=False)
    second = learner.snapshots[1].inference
    assert second is not None
    assert differences(anatomy(first), before) == []
    assert ".encode.backbone.0.weight" in differences(anatomy(first), anatomy(second))

    _, x = xs(pictures("b", 1))
    learner.save(tmp_path)
    loaded = Learner.load(tmp_path, backbone=Pictures)
    assert_same(loaded, learner)
    for name in ("a", "b", None):
        np.testing.assert_array_equal(loaded.predict_proba(x, name), learner.predict_proba(x, name))


def test_the_inputs_of_a_backbone_are_never_centred() -> None:
    learner = Learner(TINY, backbone=Pictures)
    learner.learn(pictures("a", 0), progress=False)
    encode = learner.snapshots[0].inference.encode  # type: ignore[union-attr]
    assert isinstance(encode, Encoder)
    assert (encode.query.mean.item(), encode.query.scale.item()) == (0, 1)
    _, x = xs(pictures("a", 0))
    rows = torch.from_numpy(x.copy())
    assert_close(encode(rows, "query").mean, encode.to_posterior(encode.backbone(rows))[:, : TINY.latent])


def test_every_environment_gets_a_backbone_of_its_own_unless_weights_are_continued() -> None:
    for fresh in (True, False):
        made: list[nn.Module] = []

        def backbone(made: list[nn.Module] = made) -> nn.Module:
            made.append(Pictures())
            return made[-1]

        learner = Learner(replace(TINY, fresh_inference=fresh), backbone=backbone)
        for seed, name in enumerate(("a", "b")):
            learner.learn(pictures(name, seed), progress=False)
        assert len(made) == (2 if fresh else 1)


def half_frozen() -> nn.Module:
    network = Pictures()
    network[0].requires_grad_(False)
    return network


@pytest.mark.parametrize("fresh", [True, False])
def test_what_the_maker_of_a_backbone_froze_stays_so(fresh: bool, tmp_path: Path) -> None:
    """In one environment, in those that continue its weights, and in a lesson that is taken up again."""
    made: list[dict[str, Any]] = []

    def backbone() -> nn.Module:
        network = half_frozen()
        made.append(anatomy(network, flags=False))
        return network

    def stop(step: int, total: int) -> None:
        if step == 3:
            os.kill(os.getpid(), signal.SIGINT)

    learner = Learner(replace(TINY, fresh_inference=fresh), backbone=backbone)
    learner.learn(pictures("a", 0), progress=False)
    with pytest.raises(KeyboardInterrupt):
        learner.learn(pictures("b", 1), checkpoint=tmp_path, progress=stop)
    number = len(made) - 1
    for each in (Learner.load(tmp_path, backbone=half_frozen), learner):
        each.learn(pictures("b", 1), progress=False)
        for snapshot, of in zip(each.snapshots, (made[0], made[number]), strict=True):
            assert snapshot.inference is not None
            moved = differences(anatomy(snapshot.inference.encode.backbone, flags=False), of)
            assert {".0.weight", ".0.bias"}.isdisjoint(moved)
            assert {".1.weight", ".4.weight"} <= set(moved)


# Bytes


def test_bytes_held_are_those_of_the_tensors() -> None:
    learner = learner_of(three())
    encoder = WIDTH * 2 * 8 + 2 * 8 + 2 * (WIDTH + 1)
    decoder = 8 * 16 + 16 + 4 * 16
    for name, classes in (("clinic", 2), ("farm", 3), ("zoo", 2)):
        f = 16 * 16 + 16 + 16 * classes + classes
        assert learner.bytes_held[name] == 4 * (encoder + decoder + f + 2 * classes * 8) + 8  # and batch norm's counter
    assert learner.bytes_held["(shared)"] == 4 * (16 * 16 + 16 + 16 * 6 + 6)
