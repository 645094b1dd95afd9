"""Answering changes nothing, learning follows from the seed alone, snapshots stay as they are, and no data are kept."""

from __future__ import annotations

import gc
import logging
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny import SETTINGS, TINY, anatomy, assert_same, differences, learner_of, three
from torch import Tensor, nn
from torch.testing import assert_close

from perdure import Environment, Query, Support, VariationalLearner


@dataclass
class Life:
    """A learner that has learned three environments, watched while it did."""

    learner: VariationalLearner
    environments: list[Environment]
    under_way: list[dict[str, Any]]
    """All that it was in the middle of the third lesson."""
    first_snapshot: list[dict[str, Any]]
    """The first snapshot, when taken and after every step from then on."""
    random_state: tuple[list[Tensor], list[Tensor]]
    """The caller's, before and after."""


@pytest.fixture(scope="module", params=SETTINGS.values(), ids=SETTINGS)
def life(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Life:
    environments = three()
    learner, under_way, first_snapshot = learner_of(**request.param), [], []

    def watch(step: int, total: int) -> None:
        if learner.snapshots:
            first_snapshot.append(anatomy(learner.snapshots[0]))
        if len(learner.snapshots) == 2 and step == 4:
            under_way.append(anatomy(learner))
            under_way.append(saved_and_loaded(learner, tmp_path_factory.mktemp("under way")))

    before = random_state()
    for environment in environments:
        learner.learn(environment, progress=watch)
    learner.learn(Environment("later", query=environments[0].query), progress=False)
    watch(0, 0)
    return Life(learner, environments, under_way, first_snapshot, (before, random_state()))


def random_state() -> list[Tensor]:
    return [torch.get_rng_state(), torch.from_numpy(np.random.get_state()[1].astype(np.int64))]  # noqa: NPY002


def saved_and_loaded(learner: VariationalLearner, folder: Path) -> dict[str, Any]:
    learner.save(folder)
    return anatomy(VariationalLearner.load(folder))


# Answering


def ask_everything(learner: VariationalLearner, folder: Path) -> None:
    x = three()[0].query
    assert x is not None
    known = learner.environments[0]
    for environment in (None, known):
        learner.predict(x.x, environment)
        learner.predict_proba(x.x, environment)
    learner.transform(x.x, known)
    learner.transform(x.x, known, stream="support")
    if learner.config.snapshot == "full":
        learner.inferred_environment(x.x)
    learner.save(folder)
    assert learner.classes
    assert learner.environments
    assert learner.bytes_held
    assert learner.queued is not learner.queued  # a copy, so that nothing can be written through it
    learner.classes.clear()
    learner.environments.clear()
    learner.queued.clear()


def test_predict_changes_nothing(life: Life, tmp_path: Path) -> None:
    before, state = anatomy(life.learner), random_state()
    ask_everything(life.learner, tmp_path)
    assert_same(life.learner, before)
    assert all(map(torch.equal, random_state(), state))


@pytest.mark.parametrize("which", ["generative", "no task confusion", "no encoder snapshot", "continued weights", "no snapshot"])
def test_predict_during_a_lesson_does_not_change_what_is_learned(which: str, tmp_path: Path) -> None:
    first, second, _ = three()
    undisturbed = learner_of([first, second], **SETTINGS[which])
    learner = learner_of([first], **SETTINGS[which])

    def ask(step: int, total: int) -> None:
        if step in (1, 3):
            before = anatomy(learner)
            ask_everything(learner, tmp_path)
            assert_same(learner, before)

    learner.learn(second, progress=ask)
    assert_same(learner, undisturbed)


def test_an_answer_that_fails_leaves_the_lesson_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second, _ = three()
    learner = learner_of([first], snapshot="decoder")

    def fail(step: int, total: int) -> None:
        if step == 2:
            before = anatomy(learner)
            with monkeypatch.context() as patch:
                patch.setattr("perdure.solver.TwoLayerClassifier.forward", lambda self, h: h[1_000_000_000])
                with pytest.raises(IndexError):
                    learner.predict(np.ones((2, 6)))
            assert_same(learner, before)

    learner.learn(second, progress=fail)


def test_answers_do_not_depend_on_who_else_asks() -> None:
    learner = learner_of(three())
    x = np.concatenate([environment.query.x for environment in three() if environment.query is not None])
    together = learner.predict_proba(x)
    alone = np.concatenate([learner.predict_proba(row) for row in x[:, None]])
    np.testing.assert_allclose(together, alone, rtol=0, atol=1e-5)


def test_many_rows_are_answered_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    learner = learner_of(three()[:1])
    x = np.random.default_rng(0).normal(size=(4096 * 2 + 5, 6))
    largest = 0
    forward = nn.Linear.forward

    def watched(self: nn.Linear, rows: Tensor) -> Tensor:
        nonlocal largest
        largest = max(largest, len(rows))
        return forward(self, rows)

    monkeypatch.setattr(nn.Linear, "forward", watched)
    answers = learner.predict_proba(x)
    assert largest == 4096
    np.testing.assert_allclose(answers[[0, 4096, 8196]], learner.predict_proba(x[[0, 4096, 8196]]), rtol=0, atol=1e-5)


# The seed


@pytest.mark.parametrize("which", ["generative", "memory", "no task confusion"])
def test_the_same_seed_gives_the_same_bits_whatever_happened_before(which: str) -> None:
    one = learner_of(three(), **SETTINGS[which])
    torch.randn(17)
    np.random.rand(5)  # noqa: NPY002  the global state is what must not matter
    assert_same(one, learner_of(three(), **SETTINGS[which]))


def test_another_seed_gives_other_weights_everywhere() -> None:
    one, other = (anatomy(learner_of(three()[:2], seed=seed)) for seed in (0, 1))
    weights = [path for path in one if path.endswith(".weight") and "norm" not in path]
    assert len(weights) == 12  # of two snapshots and the solver, two of them in two places
    assert set(weights) <= set(differences(one, other))


def test_environments_begin_from_weights_of_their_own() -> None:
    data = three()[0]
    learner = learner_of([data, Environment("again", data.support, data.query)])
    first, second = (anatomy(snapshot.inference) for snapshot in learner.snapshots)
    assert ".encode.to_posterior.weight" in differences(first, second)


def test_learning_leaves_the_callers_random_state_alone(life: Life) -> None:
    before, after = life.random_state
    assert all(map(torch.equal, before, after))


@pytest.mark.parametrize("which", ["generative", "no task confusion"])
def test_forgetting_and_loading_leave_the_callers_random_state_alone(which: str, tmp_path: Path) -> None:
    before = random_state()
    learner = learner_of(three(), **SETTINGS[which])
    learner.forget("farm")
    learner.save(tmp_path)
    VariationalLearner.load(tmp_path)
    assert all(map(torch.equal, random_state(), before))


def test_a_backbone_leaves_the_callers_random_state_alone_too(tmp_path: Path) -> None:
    def backbone() -> nn.Module:
        return nn.Sequential(nn.Linear(6, 5), nn.Dropout(0.5))

    before = torch.get_rng_state()
    learner = VariationalLearner(TINY, backbone=backbone)
    learner.learn(three()[0], progress=False)
    learner.save(tmp_path)
    loaded = VariationalLearner.load(tmp_path, backbone=backbone)
    assert torch.equal(torch.get_rng_state(), before)
    assert_same(loaded, learner)


# Snapshots


def test_snapshots_never_move(life: Life) -> None:
    first, *later = life.first_snapshot
    assert len(later) == 2 * 5
    for moment in later:
        assert differences(first, moment) == []


def test_snapshots_are_frozen() -> None:
    for settings in ({}, {"task_confusion": False}):
        for snapshot in learner_of(three(), **settings).snapshots:
            assert snapshot.inference is not None
            assert snapshot.generate is not None
            for network in (snapshot.inference, snapshot.generate.decode, snapshot.generate.hypothesis):
                assert not network.training
                assert not any(parameter.requires_grad for parameter in network.parameters())
            assert snapshot.generate.priors is not None
            assert not any(tensor.requires_grad for tensor in snapshot.generate.priors)


def test_the_same_answers_are_given_of_an_environment_with_its_own_f_forever() -> None:
    first, second, third = three()
    learner = learner_of([first])
    x = second.query
    assert x is not None
    before = learner.transform(x.x, "clinic")
    for environment in (second, third):
        learner.learn(environment, progress=False)
    np.testing.assert_array_equal(learner.transform(x.x, "clinic"), before)


# No data


def rows_of(environments: list[Environment], *, centred: float | None) -> list[Tensor]:
    """Every row that came; `centred`: minus the mean of its stream, brought to this length."""
    rows: list[Tensor] = []
    for environment in environments:
        for half in (environment.support, environment.query):
            if half is not None:
                x = torch.from_numpy(half.x.copy())
                if centred is not None:
                    x = x - x.mean(dim=0)
                    x = x * centred / x.square().sum(dim=1).mean().sqrt()
                rows += list(x)
    return rows


def holds_a_row(tensor: Tensor, rows: list[Tensor]) -> bool:
    """Whether a row, a column or a run of numbers anywhere in the tensor is one of these."""
    if not tensor.is_floating_point() or tensor.numel() < len(rows[0]):
        return False
    runs = [t.flatten().unfold(0, len(rows[0]), 1) for t in ((tensor, tensor.T) if tensor.ndim == 2 else (tensor,))]
    table = torch.stack(rows).double()
    return any(bool((torch.cdist(run.double(), table) < 1e-4).any()) for run in runs)


def test_the_search_for_rows_finds_one_where_there_is_one() -> None:
    rows = rows_of(three(), centred=None)
    hidden = torch.zeros(9, 16)
    hidden[4, 3:9] = rows[7]
    assert holds_a_row(hidden, rows)
    assert holds_a_row(hidden.T.contiguous(), rows)
    assert not holds_a_row(torch.zeros(9, 16), rows)


def test_nothing_learned_contains_data(life: Life, tmp_path: Path) -> None:
    length = life.learner.config.length
    rows = rows_of(life.environments, centred=None) + rows_of(life.environments, centred=length)
    for kept in (*life.under_way, anatomy(life.learner), saved_and_loaded(life.learner, tmp_path)):
        tensors = {path: value for path, value in kept.items() if isinstance(value, Tensor)}
        assert len(tensors) > 10
        assert [path for path, tensor in tensors.items() if holds_a_row(tensor, rows)] == []
    text = (tmp_path / "state.json").read_text()
    assert not any(repr(number)[:7] in text for row in rows for number in row.tolist())


@pytest.mark.parametrize("repeated", [1, 3])
def test_the_only_row_of_a_class_cannot_be_computed_back(repeated: int) -> None:
    """With as many latent dimensions as inputs the encoder has an inverse, and the mean of one z would be that row."""
    first, *_ = three()
    assert first.support is not None
    lonely = np.linspace(-2, 3, first.support.x.shape[1], dtype=np.float32)
    x = np.concatenate([first.support.x, np.tile(lonely, (repeated, 1))])
    y = np.concatenate([first.support.y, np.full(repeated, "lonely")])
    (snapshot,) = learner_of([Environment("lonely", Support(x, y), first.query)]).snapshots
    assert snapshot.inference is not None
    assert snapshot.generate is not None
    assert snapshot.generate.priors is not None
    encode = snapshot.inference.encode
    weight, bias = (parameter.chunk(2)[0] for parameter in (encode.to_posterior.weight, encode.to_posterior.bias))

    def computed_back(z: Tensor) -> Tensor:
        return torch.linalg.lstsq(weight, (z - bias)[:, None]).solution[:, 0] / encode.support.scale + encode.support.mean

    rows = [computed_back(z) for z in snapshot.generate.priors.drawn_around]
    of_first = torch.from_numpy(first.support.x[first.support.y == first.support.classes[0]].mean(axis=0))
    assert_close(rows[0], of_first, rtol=0, atol=1e-3)  # a mean of several rows can be: the inverse is the right one
    assert all((row - torch.from_numpy(lonely)).abs().max() > 0.5 for row in rows)


@pytest.mark.parametrize("settings", [{}, {"replay": "memory"}, {"fresh_inference": False}], ids=str)
def test_data_are_let_go_of_once_they_are_learned(settings: dict[str, Any]) -> None:
    learner = VariationalLearner(learner_of(**settings).config)
    environment = three()[0]
    assert environment.support is not None
    assert environment.query is not None
    watched: list[Callable[[], object]] = [
        weakref.ref(thing) for thing in (environment, environment.support, environment.query, environment.support.x)
    ]
    learner.learn(environment, progress=False)
    learner.learn(Environment("farm", query=environment.query), progress=False)
    learner.forget("farm")
    del environment
    gc.collect()
    assert [reference() for reference in watched] == [None] * 4


def test_memory_replay_stores_features_of_real_rows_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="perdure"):
        learner_of(three()[:1])
    assert not caplog.records
    with caplog.at_level(logging.WARNING, logger="perdure"):
        learner = learner_of(three()[:1], replay="memory", memory=7)
    assert [record.message for record in caplog.records] == [
        "clinic: memory replay stores features of real rows, against the promise to keep no data."
    ]
    (snapshot,) = learner.snapshots
    support = three()[0].support
    assert snapshot.memory is not None
    assert support is not None
    features = torch.from_numpy(learner.transform(support.x, "clinic", stream="support"))
    nearest = torch.cdist(snapshot.memory.h, features)
    assert snapshot.memory.h.shape == (7, 16)
    assert nearest.min(dim=1).values.max() < 1e-3
    rows = nearest.argmin(dim=1)
    assert len(set(rows.tolist())) == 7  # each row at most once
    assert [learner.classes[int(c)] for c in snapshot.memory.labels.argmax(dim=1)] == list(support.y[rows.numpy()])
    assert rows.tolist() != sorted(rows.tolist())  # any rows, not the first ones


def test_a_stream_of_one_row_repeated_is_refused_because_its_mean_is_that_row() -> None:
    x = np.random.default_rng(0).normal(size=(20, 6))
    learner = learner_of()
    with pytest.raises(ValueError, match="holds the same row 5 times"):
        learner.learn(Environment("a", Support(x, np.arange(20) % 2), Query(np.repeat(x[:1], 5, axis=0))), progress=False)
