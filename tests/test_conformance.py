"""What holds for every learner: one protocol, whichever is behind it."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import pickle
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from tiny import TINY, WIDTH, anatomy, differences, gaussians, three

from perdure import (
    AnalyticLearner,
    CheckpointError,
    Environment,
    InputError,
    NotSolvableYet,
    Query,
    Queued,
    Support,
    UnknownEnvironment,
    VariationalLearner,
)

Learner = VariationalLearner | AnalyticLearner
KINDS: dict[str, Callable[[], Learner]] = {"variational": lambda: VariationalLearner(TINY), "analytic": AnalyticLearner}


@dataclass(frozen=True)
class Kind:
    """A way to make learners."""

    new: Callable[[], Learner]
    other: Callable[[], Learner]

    def after(self, *environments: Environment) -> Learner:
        learner = self.new()
        for environment in environments:
            learner.learn(environment, progress=False)
        return learner

    def load(self, path: Path) -> Learner:
        return type(self.new()).load(path)


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> Kind:
    (other,) = KINDS.keys() - {request.param}
    return Kind(KINDS[request.param], KINDS[other])


def halves(environment: Environment) -> tuple[Support, Query]:
    assert environment.support is not None
    assert environment.query is not None
    return environment.support, environment.query


X = np.concatenate([half.x for environment in three() for half in halves(environment)])


def stored(learner: Learner, folder: Path) -> dict[str, Any]:
    """All that a learner is worth: what it would save."""
    learner.save(folder)
    return {
        **safetensors.torch.load_file(folder / "tensors.safetensors"),
        "state": json.loads((folder / "state.json").read_text()),
    }


def assert_same_answers(one: Learner, other: Learner) -> None:
    """Bit for bit."""
    assert (one.environments, one.classes, one.queued, one.bytes_held) == (
        other.environments,
        other.classes,
        other.queued,
        other.bytes_held,
    )
    for name in (None, *one.environments):
        np.testing.assert_array_equal(one.predict_proba(X, name), other.predict_proba(X, name))
    np.testing.assert_array_equal(one.inferred_environment(X).probabilities, other.inferred_environment(X).probabilities)


# Learning and answering


def test_what_was_learned_is_answered(kind: Kind) -> None:
    learner = kind.after(*three())
    assert learner.environments == ["clinic", "farm", "zoo"]
    assert sorted(map(str, learner.classes)) == ["cat", "cow", "dog", "hen", "pig", "yak"]
    assert learner.queued == {}
    assert {"clinic", "farm", "zoo"} <= set(learner.bytes_held)
    assert all(held > 0 for held in learner.bytes_held.values())
    for name in (None, *learner.environments):
        proba, answers = learner.predict_proba(X, name), learner.predict(X, name)
        assert proba.shape == (len(X), 6)
        assert proba.dtype == np.float32
        assert (proba >= 0).all()
        np.testing.assert_allclose(proba.sum(axis=1), 1, rtol=0, atol=1e-5)
        np.testing.assert_array_equal(answers, np.array(learner.classes)[proba.argmax(axis=1)])
    assert learner.transform(X, "farm").shape[0] == len(X)
    assert learner.transform(X, "farm").dtype == np.float32


def test_the_environment_is_inferred(kind: Kind) -> None:
    learner = kind.after(*three())
    inferred = learner.inferred_environment(X)
    assert set(inferred.names) <= {"clinic", "farm", "zoo"}
    assert inferred.probabilities.shape == (len(X), 3)
    assert inferred.probabilities.dtype == inferred.confidence.dtype == np.float32
    np.testing.assert_allclose(inferred.probabilities.sum(axis=1), 1, rtol=0, atol=1e-5)
    np.testing.assert_array_equal(inferred.names, np.array(learner.environments)[inferred.probabilities.argmax(axis=1)])
    np.testing.assert_array_equal(inferred.confidence, inferred.probabilities.max(axis=1))


def test_answering_changes_nothing(kind: Kind, tmp_path: Path) -> None:
    learner = kind.after(*three()[:2])
    before, random = stored(learner, tmp_path), torch.get_rng_state()
    first = learner.predict_proba(X)
    for name in (None, "farm"):
        learner.predict(X, name)
    learner.transform(X, "clinic")
    learner.inferred_environment(X)
    learner.classes.clear()
    learner.environments.clear()
    learner.queued["moon"] = "query"
    learner.bytes_held.clear()
    assert differences(anatomy(stored(learner, tmp_path)), anatomy(before)) == []
    assert torch.equal(torch.get_rng_state(), random)
    np.testing.assert_array_equal(learner.predict_proba(X), first)
    learner.learn(three()[2], progress=False)
    assert_same_answers(learner, kind.after(*three()))


def test_learning_twice_gives_the_same_bits(kind: Kind, tmp_path: Path) -> None:
    one, other = (stored(kind.after(*three()), tmp_path / name) for name in ("one", "other"))
    assert differences(anatomy(one), anatomy(other)) == []
    assert len(one) > 10


def test_rows_are_answered_alike_whoever_else_asks(kind: Kind) -> None:
    learner = kind.after(*three())
    alone = np.concatenate([learner.predict_proba(row) for row in X[:20, None]])
    np.testing.assert_allclose(learner.predict_proba(X)[:20], alone, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    "convert",
    [lambda x: x.astype(np.float64), lambda x: x.astype(object), lambda x: x.tolist(), torch.tensor, np.asfortranarray],
    ids=["float64", "object", "list", "tensor", "fortran"],
)
def test_rows_of_any_kind_are_learned_and_answered_alike(kind: Kind, convert: Callable[[Any], Any]) -> None:
    support, query = halves(three()[0])
    learner = kind.after(Environment("clinic", Support(convert(support.x), support.y), Query(convert(query.x))))
    expected = kind.after(three()[0])
    np.testing.assert_array_equal(learner.predict_proba(convert(X)), expected.predict_proba(X))


def test_whole_numbers_are_learned_as_rows_and_come_back_as_labels(kind: Kind) -> None:
    x = np.random.default_rng(0).integers(0, 200, size=(40, WIDTH))
    y = np.array([70_000, -3])[np.arange(40) % 2]
    learner = kind.after(Environment("a", Support(x, y), Query(x[::-1])))
    assert learner.classes == [-3, 70_000]
    assert learner.predict(x).dtype == np.int64


def test_rows_that_are_there_more_than_once_are_learned(kind: Kind) -> None:
    support, query = halves(three()[0])
    twice = [np.concatenate([part, part]) for part in (support.x, support.y, query.x)]
    learner = kind.after(Environment("clinic", Support(twice[0], twice[1]), Query(twice[2])))
    assert np.isfinite(learner.predict_proba(X)).all()


def test_a_class_that_returns_stays_one_class(kind: Kind) -> None:
    learner = kind.after(*three()[:2])
    learned = learner.learn(three()[2], progress=False)
    assert not isinstance(learned, Queued)
    assert (learned.environment, learned.returning) == ("zoo", ["dog"])
    assert learner.classes.count("dog") == 1


# Halves


@pytest.mark.parametrize("first", ["support", "query"])
def test_a_half_waits_for_the_other(kind: Kind, first: str) -> None:
    clinic, farm, _ = three()
    support, query = Environment("clinic", halves(clinic)[0]), Environment("clinic", query=halves(clinic)[1])
    one, other = (support, query) if first == "support" else (query, support)
    missing = "query" if first == "support" else "support"
    learner = kind.new()
    assert learner.learn(one, progress=False) == Queued("clinic", missing)  # type: ignore[arg-type]
    assert (learner.environments, learner.queued) == ([], {"clinic": missing})
    with pytest.raises(NotSolvableYet, match=f"Nothing has been learned yet.*Waiting: {{'clinic': '{missing}'}}"):
        learner.predict(X)
    with pytest.raises(InputError, match=f'"clinic" already has a {first} and waits for its {missing}. Give the {missing}, or'):
        learner.learn(one, progress=False)
    learner.learn(farm, progress=False)
    for ask in (learner.predict, learner.predict_proba, learner.transform):
        with pytest.raises(NotSolvableYet, match=f'^"clinic" .*{missing}.* it is queued. Add the {missing} with `learn'):
            ask(X, "clinic")
    assert not isinstance(learner.learn(other, progress=False), Queued)
    assert (learner.environments, learner.queued) == (["farm", "clinic"], {})
    assert_same_answers(learner, kind.after(farm, clinic))


def test_what_waits_can_be_forgotten(kind: Kind) -> None:
    learner = kind.after(Environment("clinic", query=halves(three()[0])[1]))
    learner.forget("clinic")
    assert learner.queued == {}
    learner.learn(three()[1], progress=False)
    assert_same_answers(learner, kind.after(three()[1]))


# Forgetting


def test_forgetting_takes_the_environment_and_the_classes_that_only_it_had(kind: Kind) -> None:
    learner = kind.after(*three())
    learner.forget("clinic")
    assert learner.environments == ["farm", "zoo"]
    assert sorted(map(str, learner.classes)) == ["cow", "dog", "hen", "pig", "yak"]
    assert "clinic" not in learner.bytes_held
    assert learner.predict_proba(X).shape == (len(X), 5)
    with pytest.raises(UnknownEnvironment, match="clinic"):
        learner.predict(X, "clinic")
    learner.learn(three()[0], progress=False)
    assert learner.environments == ["farm", "zoo", "clinic"]


def test_forgetting_everything_leaves_a_learner_that_takes_anything(kind: Kind) -> None:
    learner = kind.after(*three()[:2])
    for name in learner.environments:
        learner.forget(name)
    assert (learner.environments, learner.classes) == ([], [])
    with pytest.raises(NotSolvableYet, match="Nothing has been learned yet"):
        learner.predict(X)
    x = np.random.default_rng(0).normal(size=(20, 9))
    learner.learn(Environment("wide", Support(x, np.arange(20) % 2), Query(x + 1)), progress=False)
    assert learner.classes == [0, 1]


# What is refused

support, query = halves(three()[0])
RNG = np.random.default_rng(0)


def with_one(bad: float) -> np.ndarray:
    x = support.x.copy()
    x[3, 2] = bad
    return x


BAD: dict[str, tuple[Callable[[], Environment], str]] = {
    "not a number": (
        lambda: Environment("new", Support(with_one(np.nan), support.y), query),
        "The support holds NaN or infinite values in 1 of 20 rows (the first is row 3); drop or impute them.",
    ),
    "infinite": (
        lambda: Environment("new", support, Query(with_one(np.inf))),
        "The query holds NaN or infinite values in 1 of 20",
    ),
    "wider than before": (
        lambda: Environment("new", Support(RNG.normal(size=(20, 9)), support.y), Query(RNG.normal(size=(20, 9)))),
        'Rows of the support of "new" have shape (9,), those of earlier environments (6,)',
    ),
    "a wider half": (
        lambda: Environment("new", query=Query(RNG.normal(size=(20, 9)))),
        'Rows of the query of "new" have shape (9,), those of earlier environments (6,)',
    ),
    "labels without features": (
        lambda: Environment("new", Support(np.ones((20, 0)), support.y), query),
        "The support has no features: got shape (20, 0).",
    ),
    "fewer rows than labels": (
        lambda: Environment("new", Support(support.x[:7], support.y), query),
        "The support has 7 rows but 20 labels; give one label a row.",
    ),
    "one query row": (lambda: Environment("new", support, Query(query.x[:1])), 'The query of "new" has one single row; adapting'),
    "one waiting query row": (
        lambda: Environment("new", query=Query(query.x[:1])),
        'The query of "new" has one single row; adapting',
    ),
    "one support row": (
        lambda: Environment("new", Support(support.x[:1], support.y[:1]), query),
        'The support of "new" has one single row; adapting',
    ),
    "the same row again and again": (
        lambda: Environment("new", Support(np.tile(support.x[:1], (20, 1)), support.y), query),
        'The support of "new" holds the same row 20 times; adapting',
    ),
    "the same query row": (
        lambda: Environment("new", support, Query(np.tile(query.x[:1], (5, 1)))),
        'The query of "new" holds the same row 5 times; adapting',
    ),
    "one class": (
        lambda: Environment("new", Support(support.x, ["cat"] * 20), query),
        "The support of \"new\" holds one class only ('cat'); there is nothing to tell apart. Give at least two.",
    ),
    "one class, waiting": (lambda: Environment("new", Support(support.x, ["cat"] * 20)), "holds one class only ('cat')"),
    "an empty query": (lambda: Environment("new", support, Query(query.x[:0])), "The query is empty: got shape (0, 6)"),
    "a label column": (
        lambda: Environment("new", support, Query(np.ones((20, 7)))),
        "both streams must have the same features. Does the query still hold its label column?",
    ),
    "words": (
        lambda: Environment("new", support, Query(np.full((20, 6), "six"))),
        "The query must be numbers, got dtype <U3; encode text and categories first.",
    ),
    "labels of another kind": (
        lambda: Environment("new", Support(support.x, np.arange(20) % 2), query),
        'The labels of "new" are integers, those of earlier environments strings; use one kind throughout.',
    ),
    "pictures": (
        lambda: Environment("new", Support(RNG.normal(size=(20, 2, 3)), support.y), Query(RNG.normal(size=(20, 2, 3)))),
        "have shape (2, 3)",
    ),
    "no name": (lambda: Environment(" ", support, query), "An environment needs a name"),
    "learned already": (
        lambda: three()[0],
        'Environment "clinic" is learned already. Give the new data a new name, or forget("clinic") first.',
    ),
}


@pytest.mark.parametrize("what", BAD)
def test_what_cannot_be_learned_gets_one_sentence_and_changes_nothing(kind: Kind, what: str, tmp_path: Path) -> None:
    learner, (make, sentence) = kind.after(*three()[:2]), BAD[what]
    before = stored(learner, tmp_path)
    if what == "pictures":
        learner, before = kind.new(), stored(kind.new(), tmp_path)
    with pytest.raises(InputError, match=re.escape(sentence)) as refused:
        learner.learn(make(), progress=False)
    assert "\n" not in str(refused.value)
    assert str(refused.value).endswith((".", "?"))
    assert differences(anatomy(stored(learner, tmp_path)), anatomy(before)) == []
    assert not isinstance(learner.learn(gaussians("new"), progress=False), Queued)


@pytest.mark.parametrize(
    ("x", "sentence"),
    [
        (np.ones((2, 9)), "Rows of the query have shape (9,), what was learned has (6,)."),
        (np.ones(6), "The query must have one row an example, got shape (6,)"),
        (np.full((2, 6), np.nan), "The query holds NaN or infinite values in 2 of 2 rows"),
        (np.ones((0, 6)), "The query is empty"),
        ([[1.0], [1.0, 2.0]], "Expected rows of equal length"),
    ],
    ids=["wide", "vector", "nan", "empty", "ragged"],
)
def test_rows_that_cannot_be_answered_get_one_sentence(kind: Kind, x: Any, sentence: str) -> None:
    learner = kind.after(three()[0])
    asks: list[Callable[[], object]] = [
        lambda: learner.predict(x),
        lambda: learner.predict_proba(x, "clinic"),
        lambda: learner.transform(x, "clinic"),
        lambda: learner.inferred_environment(x),
    ]
    for ask in asks:
        with pytest.raises(InputError, match=re.escape(sentence)):
            ask()


def test_an_environment_that_is_not_there_is_called_unknown(kind: Kind) -> None:
    learner = kind.after(*three()[:2])
    sentence = r"^No environment is called \"moon\". Learned so far: \['clinic', 'farm'\].$"
    for ask in (learner.predict, learner.predict_proba, learner.transform):
        with pytest.raises(UnknownEnvironment, match=sentence):
            ask(X, "moon")
    with pytest.raises(UnknownEnvironment, match=sentence):
        learner.forget("moon")


def test_before_anything_is_learned_there_are_no_answers(kind: Kind) -> None:
    learner = kind.new()
    for ask in (learner.predict, learner.predict_proba, learner.inferred_environment):
        with pytest.raises(NotSolvableYet, match=r"Nothing has been learned yet\. Give support and query to `learn"):
            ask(X)


# Saving


def test_a_loaded_learner_is_the_one_that_was_saved(kind: Kind, tmp_path: Path) -> None:
    learner = kind.after(*three()[:2], Environment("zoo", query=halves(three()[2])[1]))
    learner.save(tmp_path)
    loaded = kind.load(tmp_path)
    assert_same_answers(loaded, learner)
    assert loaded.config == learner.config
    for one in (learner, loaded):
        one.learn(gaussians("moon", ("dog", "man"), seed=7), progress=False)
    assert_same_answers(loaded, learner)


def test_an_empty_learner_can_be_saved_too(kind: Kind, tmp_path: Path) -> None:
    kind.new().save(tmp_path)
    loaded = kind.load(tmp_path)
    loaded.learn(three()[0], progress=False)
    assert_same_answers(loaded, kind.after(three()[0]))


def test_odd_names_and_labels_come_back(kind: Kind, tmp_path: Path) -> None:
    learner = kind.after(gaussians('a.b/"c"\\\n日本 0', ("x.y", "π\t")), gaussians("0", ("x", "y")))
    learner.save(tmp_path)
    assert_same_answers(kind.load(tmp_path), learner)


def test_nothing_is_pickled_and_no_row_is_stored(kind: Kind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*arguments: Any, **options: Any) -> None:
        raise AssertionError("pickled")

    for name in ("dump", "dumps", "load", "loads", "Pickler", "Unpickler"):
        monkeypatch.setattr(pickle, name, never)
    learner = kind.after(*three(), Environment("moon", query=Query(X[:30] + 1)))
    parts = stored(learner, tmp_path)
    kind.load(tmp_path)
    rows = torch.from_numpy(np.concatenate([X, X[:30] + 1])).double()
    unit = rows / rows.norm(dim=1, keepdim=True)
    for name, part in parts.items():
        if isinstance(part, torch.Tensor) and part.numel() >= WIDTH:
            runs = part.double().flatten().unfold(0, WIDTH, 1)
            assert torch.cdist(runs, rows).min() > 1e-4, name
            assert torch.cdist(runs, unit).min() > 1e-4, name
    text = (tmp_path / "state.json").read_text()
    assert not any(repr(number)[:7] in text for row in X.tolist() for number in row)
    assert {path.name for path in tmp_path.iterdir()} == {"tensors.safetensors", "state.json"}


def test_a_save_that_fails_keeps_the_old_one(kind: Kind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = kind.after(three()[0])
    old.save(tmp_path)
    newer = kind.after(*three())

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(CheckpointError, match=r"No space left on device\. What was saved there before is untouched"):
            newer.save(tmp_path)
    assert_same_answers(kind.load(tmp_path), old)

    def killed(source: Any, target: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", killed)
        with pytest.raises(KeyboardInterrupt):
            newer.save(tmp_path)
    assert_same_answers(kind.load(tmp_path), old)
    newer.save(tmp_path)
    assert_same_answers(kind.load(tmp_path), newer)


@pytest.fixture
def saved(kind: Kind, tmp_path: Path) -> Path:
    kind.after(*three(), Environment("moon", halves(three()[0])[0])).save(tmp_path / "saved")
    return tmp_path / "saved"


def refused(kind: Kind, folder: Path, sentence: str = ".") -> None:
    with pytest.raises(CheckpointError, match=sentence) as error:
        kind.load(folder)
    assert "\n" not in str(error.value)


def rewritten(folder: Path, tensors: dict[str, torch.Tensor] | bytes, **changes: Any) -> None:
    """By someone who knows how: the digest matches."""
    data = tensors if isinstance(tensors, bytes) else safetensors.torch.save(tensors)
    (folder / "tensors.safetensors").write_bytes(data)
    state = json.loads((folder / "state.json").read_text())
    (folder / "state.json").write_text(json.dumps({**state, "tensors": hashlib.sha256(data).hexdigest(), **changes}))


class Bomb:
    """What a pickle may do when it is read."""

    def __reduce__(self) -> Any:
        return os.mkdir, ("exploded",)


def test_a_save_of_another_learner_is_refused(kind: Kind, tmp_path: Path) -> None:
    other = kind.other()
    other.learn(three()[0], progress=False)
    other.save(tmp_path)
    mine, theirs = type(kind.new()).__name__, type(other).__name__
    refused(kind, tmp_path, f"holds a '{theirs}', not a {mine}. Load it with its own class")


def test_a_save_that_is_cut_or_altered_is_refused(kind: Kind, saved: Path) -> None:
    for name, sentence in (("tensors.safetensors", "missing, truncated or altered"), ("state.json", ".")):
        data = (saved / name).read_bytes()
        flipped = bytearray(data)
        flipped[len(data) // 3] ^= 0x80
        for bad in (b"", data[: len(data) // 2], data[:-1], bytes(flipped)):
            (saved / name).write_bytes(bad)
            refused(kind, saved, sentence)
        (saved / name).unlink()
        refused(kind, saved)
        (saved / name).write_bytes(data)
    kind.load(saved)


@pytest.mark.parametrize("data", [b"", pickle.dumps(Bomb()), b"\xff" * 64, (2**62).to_bytes(8, "little") + b"{}"], ids=str)
def test_hostile_files_are_refused_and_never_run(
    kind: Kind, data: bytes, saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    rewritten(saved, data)
    refused(kind, saved)
    (saved / "state.json").write_bytes(data)
    refused(kind, saved, "is not JSON")
    assert not (tmp_path / "exploded").exists()


def test_a_tensor_that_is_not_what_it_should_be_is_refused(kind: Kind, saved: Path, tmp_path: Path) -> None:
    tensors = safetensors.torch.load_file(saved / "tensors.safetensors")
    for name, tensor in list(tensors.items()):
        others = {key: value for key, value in tensors.items() if key != name}
        changed = [{**others, name: tensor.repeat(2, *[1] * (tensor.ndim - 1)) if tensor.ndim else tensor[None]}, others]
        if tensor.is_floating_point():
            changed.append({**others, name: tensor.float() if tensor.dtype == torch.float64 else tensor.double()})
        for bad in changed:
            folder = tmp_path / "bad"
            shutil.copytree(saved, folder, dirs_exist_ok=True)
            rewritten(folder, bad)
            refused(kind, folder, "is damaged")
    rewritten(saved, {**tensors, "extra": torch.ones(3)})
    refused(kind, saved, "is damaged")


def test_a_state_that_is_not_what_it_should_be_is_refused(kind: Kind, saved: Path) -> None:
    tensors = safetensors.torch.load_file(saved / "tensors.safetensors")
    state = json.loads((saved / "state.json").read_text())
    for key in state.keys() - {"format", "tensors", "learner"}:
        for bad in (7, "x", [{"name": 3}], [7], {"a": [1]}):
            rewritten(saved, tensors, **{key: bad})
            if not (key == "lessons" and bad == 7):  # a count of lessons that could be true
                refused(kind, saved)
            rewritten(saved, tensors, **{key: state[key]})
    kind.load(saved)
    rewritten(saved, tensors, config={**state["config"], "extra": 1})
    refused(kind, saved, "has a configuration of another version: it differs in extra")
    rewritten(saved, tensors, config=state["config"], format=2)
    refused(kind, saved, "has format 2, this perdure reads format 1")
