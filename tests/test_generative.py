"""What is remembered of an environment is drawn from as the paper says, and replay costs the same however much is remembered."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from tiny import TINY, gaussians, learner_of, three
from torch import Tensor
from torch.testing import assert_close

from perdure import VariationalLearner
from perdure.generative import ClassPriors, FeatureGenerator, Rehearsal, Replay, ReplayKind, Snapshot
from perdure.inference import Decoder
from perdure.solver import TwoLayerClassifier

EPS = 1e-5  # batch norm's


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def plain_decoder(size: int = 2) -> Decoder:
    """h is z where z is positive, but for batch norm's epsilon."""
    decode = Decoder(size, size)
    decode.load_state_dict(
        {**decode.state_dict(), "linear.weight": torch.eye(size), "linear.bias": torch.zeros(size)}, strict=True
    )
    return decode.eval().requires_grad_(False)


def classifier(classes: int = 2) -> TwoLayerClassifier:
    """Whose logits are the features themselves, doubled for the first two classes."""
    f = TwoLayerClassifier(2, 2, classes)
    f.load_state_dict(
        {
            "hidden.weight": torch.eye(2),
            "hidden.bias": torch.zeros(2),
            "output.weight": 2 * torch.eye(classes, 2),
            "output.bias": torch.zeros(classes),
        }
    )
    return f.eval().requires_grad_(False)


def remembered(name: str, h: Tensor, labels: Tensor, classes: list[int]) -> Snapshot:
    return Snapshot(name, torch.tensor(classes), None, None, Replay(h, labels))


# The generator


def test_with_a_class_prior_a_class_is_drawn_first_and_is_the_label() -> None:
    means = torch.tensor([[100.0, 0.0], [0.0, 100.0], [100.0, 100.0]])
    priors = ClassPriors(means - 500, means)
    drawn = FeatureGenerator(plain_decoder(), classifier(classes=3), priors, hard_labels=False)(300, rng())
    at_prior_of = torch.cdist(drawn.h, means).argmin(dim=1)
    assert_close(drawn.labels, torch.nn.functional.one_hot(at_prior_of, 3).float(), rtol=0, atol=0)
    assert drawn.labels.sum(dim=0).min() > 60  # each class about a third of the time


def test_z_is_drawn_around_the_mean_of_its_class_with_unit_variance() -> None:
    means = torch.tensor([[100.0, 50.0]])
    priors = ClassPriors(means - 500, means)
    drawn = FeatureGenerator(plain_decoder(), classifier(classes=1), priors, hard_labels=False)(4000, rng())
    z = drawn.h * math.sqrt(1 + EPS)
    assert_close(z.mean(dim=0), means[0], rtol=0, atol=0.1)
    assert_close(z.std(dim=0), torch.ones(2), rtol=0, atol=0.05)


def test_without_a_class_prior_z_is_standard_normal_and_f_says_what_the_features_are() -> None:
    f = classifier()
    drawn = FeatureGenerator(plain_decoder(), f, None, hard_labels=False)(4000, rng())
    assert_close(drawn.labels, f(drawn.h).softmax(dim=1), rtol=0, atol=0)
    z = drawn.h * math.sqrt(1 + EPS)
    assert_close((z > 0).float().mean(dim=0), torch.full((2,), 0.5), rtol=0, atol=0.03)
    assert_close(z.square().mean(dim=0), torch.full((2,), 0.5), rtol=0, atol=0.05)  # half of it is rectified away


def test_hard_labels_are_what_f_finds_most_likely() -> None:
    f = classifier()
    drawn = FeatureGenerator(plain_decoder(), f, None, hard_labels=True)(50, rng())
    assert_close(drawn.labels, torch.nn.functional.one_hot(f(drawn.h).argmax(dim=1), 2).float(), rtol=0, atol=0)
    assert 0 < drawn.labels[:, 0].sum() < 50  # both occur, or nothing would have been shown


@pytest.mark.parametrize("means", [None, torch.zeros(2, 2)])
def test_what_is_drawn_is_a_function_of_the_generator(means: Tensor | None) -> None:
    priors = None if means is None else ClassPriors(means, means)
    generate = FeatureGenerator(plain_decoder(), classifier(), priors, hard_labels=False)
    one, same, other = generate(9, rng(1)), generate(9, rng(1)), generate(9, rng(2))
    assert torch.equal(one.h, same.h)
    assert torch.equal(one.labels, same.labels)
    assert not torch.equal(one.h, other.h)
    assert len(one.h) == len(one.labels) == 9


# A snapshot's replay


def test_noise_is_standard_normal_whatever_the_decoder_and_keeps_the_labels_of_generated_features() -> None:
    means = torch.tensor([[50.0, 9.0], [9.0, 50.0]])
    generate = FeatureGenerator(plain_decoder(), classifier(), ClassPriors(means, means + 9), hard_labels=False)
    other = FeatureGenerator(plain_decoder(), classifier(), ClassPriors(means, means + 1000), hard_labels=False)
    one, two = (Snapshot("a", torch.tensor([0, 1]), None, g, None).replay(4000, rng(3), "noise") for g in (generate, other))
    assert torch.equal(one.h, two.h)
    assert_close(one.h.mean(dim=0), torch.zeros(2), rtol=0, atol=0.1)
    assert_close(one.h.std(dim=0), torch.ones(2), rtol=0, atol=0.05)
    assert torch.equal(one.labels, generate(4000, rng(3)).labels)
    assert_close((one.h.T @ (one.labels - 0.5)) / 4000, torch.zeros(2, 2), rtol=0, atol=0.05)  # and have nothing to do with them


def test_memory_draws_stored_features_with_their_own_labels() -> None:
    h, labels = torch.randn(5, 3, generator=rng()), torch.nn.functional.one_hot(torch.tensor([0, 1, 0, 1, 1]), 2).float()
    drawn = remembered("a", h, labels, [0, 1]).replay(200, rng(), "memory")
    row = torch.cdist(drawn.h, h).argmin(dim=1)
    assert torch.equal(drawn.h, h[row])
    assert torch.equal(drawn.labels, labels[row])
    assert set(row.tolist()) == set(range(5))


def test_the_papers_replay_is_what_the_generator_draws() -> None:
    generate = FeatureGenerator(plain_decoder(), classifier(), None, hard_labels=False)
    drawn = Snapshot("a", torch.tensor([0, 1]), None, generate, None).replay(7, rng(4), "generative")
    assert torch.equal(drawn.h, generate(7, rng(4)).h)


# How well rows fit


def test_evidence_equals_hand_computed_value() -> None:
    means = torch.tensor([[0.0, 0.0], [2.0, 0.0]])
    generate = FeatureGenerator(plain_decoder(), classifier(), ClassPriors(means, means + 9), hard_labels=False)
    snapshot = Snapshot("a", torch.tensor([0, 1]), None, generate, None)
    # From (1, 1) it is a squared distance of 2 to either mean, which counts as that of 3 dimensions instead of 2.
    expected = math.log(2 * math.exp(-0.5 * 2 * 3 / 2))
    assert_close(snapshot.evidence(torch.tensor([[1.0, 1.0]]), dimensions=3.0), torch.tensor([expected]))
    # From (0, 0) they are 0 and 4.
    expected = math.log(1 + math.exp(-0.5 * 4 * 3 / 2))
    assert_close(snapshot.evidence(torch.tensor([[0.0, 0.0]]), dimensions=3.0), torch.tensor([expected]))


def test_evidence_without_a_class_prior_is_that_of_the_standard_normal() -> None:
    generate = FeatureGenerator(plain_decoder(), classifier(), None, hard_labels=False)
    snapshot = Snapshot("a", torch.tensor([0, 1]), None, generate, None)
    assert_close(snapshot.evidence(torch.tensor([[1.0, 3.0]]), dimensions=2.0), torch.tensor([-0.5 * (1 + 9)]))


# What is kept


@pytest.mark.parametrize(
    ("settings", "kept"),
    [
        ({}, "drawn_around hypothesis inference prior_means"),
        ({"replay_around": "prior"}, "hypothesis inference prior_means"),
        ({"conditioning": "environment"}, "hypothesis inference"),
        ({"snapshot": "decoder"}, "decode drawn_around hypothesis prior_means"),
        ({"snapshot": "none", "replay": "none"}, ""),
        ({"snapshot": "none", "replay": "memory"}, "memory"),
        ({"replay": "memory"}, "hypothesis inference memory prior_means"),
    ],
    ids=str,
)
def test_a_snapshot_keeps_what_its_configuration_says(settings: dict[str, object], kept: str) -> None:
    learner = learner_of(three()[:1], **settings)
    (snapshot,) = learner.snapshots
    assert " ".join(sorted({name.split(".")[0] for name in snapshot.tensors()})) == kept
    assert learner.bytes_held["clinic"] == sum(4 * t.numel() if t.is_floating_point() else 8 for t in snapshot.tensors().values())


def test_a_snapshot_without_its_encoder_is_smaller() -> None:
    full, decoder, none = (
        learner_of(three()[:1], replay="none", snapshot=kind).bytes_held["clinic"] for kind in ("full", "decoder", "none")
    )
    assert full > decoder > none == 0


# The rehearsal


def telling(snapshots: int, classes: int = 2) -> list[Snapshot]:
    """Snapshot i replays only (i, i, i), labelled with its second class; classes are i and i + 1."""
    second = torch.tensor([[0.0, 1.0]])
    return [remembered(str(i), torch.full((1, 3), float(i)), second, [i, i + 1]) for i in range(snapshots)]


def rehearsed(snapshots: list[Snapshot], steps: int, budget: int = 6, block: int = 32, **where: int) -> list[Replay]:
    rehearsal = Rehearsal(snapshots, "memory", budget, len(snapshots) + 1, where.get("seed", 0), where.get("lesson", 1))
    rehearsal.block = block
    return [rehearsal(step) for step in range(steps)]


@pytest.mark.parametrize("count", [1, 2, 3, 50, 500])
def test_every_step_has_the_same_number_of_replayed_features(count: int) -> None:
    for replay in rehearsed(telling(count), 70):
        assert replay.h.shape == (6, 3)
        assert replay.labels.shape == (6, count + 1)


@pytest.mark.parametrize(("count", "budget", "block"), [(2, 6, 32), (3, 6, 32), (7, 6, 32), (50, 1, 8), (5, 2, 1)])
def test_every_snapshot_gets_an_equal_share(count: int, budget: int, block: int) -> None:
    # Also where a block has fewer rows than there are snapshots.
    steps = 20 * block
    drawn = torch.cat([replay.h[:, 0] for replay in rehearsed(telling(count), steps, budget, block)])
    shares = drawn.long().bincount(minlength=count)
    assert shares.sum() == steps * budget
    assert shares.max() - shares.min() <= 1


@pytest.mark.parametrize(("count", "budget", "block"), [(3, 6, 32), (50, 1, 8)])
def test_labels_are_put_where_the_solver_has_that_class(count: int, budget: int, block: int) -> None:
    for replay in rehearsed(telling(count), 4 * block, budget, block):
        second_class = replay.h[:, 0].long() + 1
        assert torch.equal(replay.labels, torch.nn.functional.one_hot(second_class, count + 1).float())


def test_snapshots_are_mixed_within_a_block() -> None:
    first_half = torch.cat([replay.h[:, 0] for replay in rehearsed(telling(2), 16)])
    assert 0.3 < first_half.mean() < 0.7


def real_snapshots() -> list[Snapshot]:
    return learner_of([gaussians("a", seed=1), gaussians("b", ("x", "y"), seed=2)]).snapshots


def test_what_is_replayed_is_a_function_of_the_step() -> None:
    snapshots = real_snapshots()
    in_order = [Rehearsal(snapshots, "generative", 6, 4, 0, 2)(step) for step in (0, 1, 31, 32, 33, 64)]
    rehearsal = Rehearsal(snapshots, "generative", 6, 4, 0, 2)
    backwards = [rehearsal(step) for step in (64, 33, 32, 31, 1, 0)][::-1]
    for one, other in zip(in_order, backwards, strict=True):
        assert torch.equal(one.h, other.h)
        assert torch.equal(one.labels, other.labels)


def test_steps_blocks_lessons_and_seeds_draw_apart() -> None:
    snapshots = real_snapshots()

    def first_feature(step: int, seed: int, lesson: int) -> tuple[float, ...]:
        return tuple(Rehearsal(snapshots, "generative", 6, 4, seed, lesson)(step).h[0].tolist())

    places = [(0, 0, 2), (1, 0, 2), (32, 0, 2), (64, 0, 2), (0, 1, 2), (0, 0, 3)]
    assert len({first_feature(*place) for place in places}) == len(places)


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Rows of every call of a snapshot's decoder."""
    rows: list[int] = []
    forward = Decoder.forward

    def counted(self: Decoder, z: Tensor) -> Tensor:
        rows.append(len(z))
        return forward(self, z)

    monkeypatch.setattr(Decoder, "forward", counted)
    return rows


@pytest.mark.parametrize("kind", ["generative", "noise"])
def test_a_lesson_decodes_as_many_features_after_four_environments_as_after_one(kind: ReplayKind, decoded: list[int]) -> None:
    learner, costs = VariationalLearner(replace(TINY, replay=kind)), []
    for i in range(5):
        decoded.clear()
        learner.learn(gaussians(str(i), seed=i), progress=False)
        costs.append((sum(decoded), len(decoded)))
    assert [rows for rows, _ in costs] == [0] + 4 * [32 * 6]  # one block of 32 steps of 6
    assert [calls for _, calls in costs] == [0, 1, 2, 3, 4]  # in which each decoder is read once
