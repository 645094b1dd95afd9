"""What is saved comes back in full; a save that is killed leaves the last one; a file that lies is refused in one sentence."""

from __future__ import annotations

import builtins
import errno
import hashlib
import json
import math
import os
import pickle
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from tiny import SETTINGS, TINY, anatomy, assert_same, differences, gaussians, learner_of, three
from torch import Tensor

from perdure import CheckpointError, Environment, PerdureError, VariationalLearner, checkpoint

NAMES = {"tensors.safetensors", "state.json"}


def x_of(environment: Environment) -> np.ndarray:
    assert environment.query is not None
    return environment.query.x


def stopped_at(learner: VariationalLearner, environment: Environment, at: int) -> VariationalLearner:
    def stop(step: int, total: int) -> None:
        if step == at:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        learner.learn(environment, progress=stop)
    return learner


def files_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


# A round trip


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_a_loaded_learner_is_the_one_that_was_saved(settings: dict[str, Any], tmp_path: Path) -> None:
    learner = learner_of(three(), **settings)
    learner.save(tmp_path)
    assert files_in(tmp_path) == NAMES
    loaded = VariationalLearner.load(tmp_path)
    assert_same(loaded, learner)
    for name in (None, "clinic", "zoo"):
        np.testing.assert_array_equal(loaded.predict_proba(x_of(three()[0]), name), learner.predict_proba(x_of(three()[0]), name))
        assert loaded.predict(x_of(three()[0]), name).dtype == learner.predict(x_of(three()[0]), name).dtype


def test_an_empty_learner_can_be_saved_too(tmp_path: Path) -> None:
    learner_of(width=33).save(tmp_path)
    loaded = VariationalLearner.load(tmp_path)
    assert_same(loaded, learner_of(width=33))
    assert loaded.learn(three()[0], progress=False)


def test_whole_number_labels_come_back_as_whole_numbers(tmp_path: Path) -> None:
    learner = learner_of([gaussians("a", (70_000, -3))])
    learner.save(tmp_path)
    loaded = VariationalLearner.load(tmp_path)
    assert loaded.classes == [-3, 70_000]
    assert loaded.predict(x_of(three()[0])).dtype == np.int64


def test_odd_names_and_labels_come_back(tmp_path: Path) -> None:
    odd = 'a.b/"c"\\\n日本 0'
    learner = learner_of([gaussians(odd, ("x.y", "π\t")), gaussians("0", ("x", "y"))])
    learner.save(tmp_path)
    assert_same(VariationalLearner.load(tmp_path), learner)


def test_a_folder_is_made_where_there_is_none(tmp_path: Path) -> None:
    learner_of().save(str(tmp_path / "a" / "b"))
    assert files_in(tmp_path / "a" / "b") == NAMES


def test_saving_over_an_older_save_replaces_it(tmp_path: Path) -> None:
    learner_of(three()).save(tmp_path)
    newer = learner_of(three()[:1])
    newer.save(tmp_path)
    assert files_in(tmp_path) == NAMES
    assert_same(VariationalLearner.load(tmp_path), newer)


def test_the_state_is_json_that_a_person_can_read(tmp_path: Path) -> None:
    learner_of(three()[:1]).save(tmp_path)
    state = json.loads((tmp_path / "state.json").read_text())
    assert (state["format"], state["learner"], state["classes"]) == (1, "VariationalLearner", ["cat", "dog"])
    assert state["environments"] == [{"name": "clinic", "classes": [0, 1]}]
    assert state["tensors"] == hashlib.sha256((tmp_path / "tensors.safetensors").read_bytes()).hexdigest()
    assert len((tmp_path / "state.json").read_text().splitlines()) > 20


def test_what_is_loaded_does_not_hang_on_the_file(tmp_path: Path) -> None:
    learner = learner_of(three()[:1])
    learner.save(tmp_path)
    loaded = VariationalLearner.load(tmp_path)
    shutil.rmtree(tmp_path)
    assert_same(loaded, learner)


# A save that is killed

OLD, NEW = {"a": torch.zeros(300), "shared": torch.ones(5)}, {"b": torch.full((400,), 2.0), "shared": torch.ones(5)}


class Killed(BaseException):
    """The process is gone: no handler runs that would run for an error."""


class Faults:
    """Has the file operation of this number fail; one that writes fails half-way."""

    def __init__(self, at: int, error: Callable[[], BaseException], *, from_then_on: bool, after: bool) -> None:
        self.at, self.error, self.from_then_on, self.after = at, error, from_then_on, after
        self.done: list[str] = []

    def _strikes(self, what: str) -> bool:
        self.done.append(what)
        number = len(self.done) - 1
        return number == self.at or (self.from_then_on and number > self.at)

    def around(self, what: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def faulty(*arguments: Any, **options: Any) -> Any:
            strikes = self._strikes(what)
            if strikes and not self.after:
                raise self.error()
            result = function(*arguments, **options)
            if strikes:
                raise self.error()
            return result

        return faulty

    def open(self, file: Any, mode: str = "r", *arguments: Any, **options: Any) -> Any:
        opened: list[Any] = []

        def really_open() -> Any:
            opened.append(builtins.open(file, mode, *arguments, **options))  # noqa: SIM115
            return opened[0]

        try:
            stream = self.around("open", really_open)()
        except BaseException:
            for left in opened:
                left.close()
            raise
        write = stream.write

        def half(data: bytes) -> int:
            if self._strikes("write"):
                write(data[: len(data) // 2])
                stream.flush()
                raise self.error()
            return int(write(data))

        class Stream:
            def __enter__(self) -> Any:
                return self

            def __exit__(self, *error: object) -> None:
                stream.close()

            write = staticmethod(half)
            flush, fileno = stream.flush, stream.fileno

        return Stream()


@pytest.fixture
def fail(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Faults]]:
    def prepare(at: int, error: Callable[[], BaseException], *, from_then_on: bool = False, after: bool = False) -> Faults:
        faults = Faults(at, error, from_then_on=from_then_on, after=after)
        monkeypatch.setattr(checkpoint, "open", faults.open, raising=False)
        for name in ("replace", "fsync"):
            monkeypatch.setattr(os, name, faults.around(name, getattr(os, name)))
        return faults

    yield prepare
    monkeypatch.undo()


def save_until(fault: Faults, folder: Path, tensors: dict[str, Tensor], which: str, error: type[BaseException]) -> bool:
    """Whether it got through."""
    try:
        checkpoint.save(folder, tensors, {"which": which})
    except error:
        return False
    return True


def whole(folder: Path) -> str:
    """Which of the two learners is there; the tensors must be those of its state."""
    tensors, state = checkpoint.load(folder)
    expected = OLD if state["which"] == "old" else NEW
    assert tensors.keys() == expected.keys()
    assert all(torch.equal(tensors[name], expected[name]) for name in expected)
    return str(state["which"])


OPERATIONS = 8
"""Two files opened, written and flushed to disk, and two renamed; flushing the folder may fail or not."""


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_save_killed_at_any_operation_leaves_the_old_learner_or_the_new_one(
    after: bool, tmp_path: Path, fail: Callable[..., Faults], monkeypatch: pytest.MonkeyPatch
) -> None:
    outcomes, at, through = [], 0, False
    while not through:
        folder = tmp_path / str(at)
        checkpoint.save(folder, OLD, {"which": "old"})
        with monkeypatch.context():
            fault = fail(at, Killed, after=after)
            through = save_until(fault, folder, NEW, "new", Killed)
            monkeypatch.undo()
        outcomes.append(whole(folder))
        # What comes next is a save that works, also one that is killed at the same place first.
        fault = fail(at, Killed, after=after)
        save_until(fault, folder, OLD, "old", Killed)
        monkeypatch.undo()
        whole(folder)
        checkpoint.save(folder, NEW, {"which": "new"})
        assert whole(folder) == "new"
        assert files_in(folder) == NAMES
        at += 1
    assert at > OPERATIONS
    assert outcomes == sorted(outcomes, reverse=True)  # old until it counts, new from then on
    assert set(outcomes) == {"old", "new"}


def test_a_first_save_killed_at_any_operation_leaves_nothing_or_the_learner(
    tmp_path: Path, fail: Callable[..., Faults], monkeypatch: pytest.MonkeyPatch
) -> None:
    at, through = 0, False
    while not through:
        folder = tmp_path / str(at)
        through = save_until(fail(at, Killed), folder, NEW, "new", Killed)
        monkeypatch.undo()
        try:
            assert whole(folder) == "new"
        except CheckpointError as error:
            assert re.search("holds no saved learner", str(error))  # noqa: PT017  either is right
            assert not through
        checkpoint.save(folder, OLD, {"which": "old"})
        assert whole(folder) == "old"
        assert files_in(folder) == NAMES
        at += 1
    assert at > OPERATIONS


def disk_full() -> OSError:
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("from_then_on", [False, True], ids=["once", "from then on"])
def test_a_failing_disk_is_said_and_leaves_the_old_learner_and_nothing_else(
    from_then_on: bool, tmp_path: Path, fail: Callable[..., Faults], monkeypatch: pytest.MonkeyPatch
) -> None:
    refused, at, through = 0, 0, False
    while not through or at <= OPERATIONS:
        folder = tmp_path / str(at)
        checkpoint.save(folder, OLD, {"which": "old"})
        fault = fail(at, disk_full, from_then_on=from_then_on)
        sentence = f"Could not save to {folder}: No space left on device. What was saved there before is untouched."
        try:
            checkpoint.save(folder, NEW, {"which": "new"})
            through = True
        except CheckpointError as error:
            assert str(error) == sentence  # noqa: PT017  whether it is raised depends on the operation
            through = False
            refused += 1
        monkeypatch.undo()
        assert whole(folder) == ("new" if through else "old")
        assert fault.done
        if through and not from_then_on and at >= OPERATIONS - 1:
            assert files_in(folder) in (
                NAMES,
                {*NAMES, "tensors.safetensors.next"} - {"tensors.safetensors"},
                {*NAMES, "tensors.safetensors.next"},
            )
        if not through:
            assert files_in(folder) == NAMES
        checkpoint.save(folder, NEW, {"which": "new"})
        assert whole(folder) == "new"
        assert files_in(folder) == NAMES
        at += 1
    assert refused >= 6


def test_a_full_disk_leaves_nothing_though_the_tensors_are_the_same_as_before(
    tmp_path: Path, fail: Callable[..., Faults], monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint.save(tmp_path, OLD, {"which": "old"})
    for at in range(20):
        fault = fail(at, disk_full)
        if fault and save_until(fault, tmp_path, OLD, "old", CheckpointError):
            pass
        monkeypatch.undo()
        assert whole(tmp_path) == "old"
        checkpoint.save(tmp_path, OLD, {"which": "old"})
        assert files_in(tmp_path) == NAMES


def test_a_full_disk_while_learning_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    never_stopped = learner_of(three()[:2])
    learner = learner_of()
    learner.learn(three()[0], checkpoint=tmp_path, progress=False)
    first = anatomy(learner)

    def full(descriptor: int) -> None:
        raise disk_full()

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(CheckpointError, match=r"No space left on device\. What was saved there before is untouched\.$"):
            learner.learn(three()[1], checkpoint=tmp_path, every=2, progress=False)
    assert_same(VariationalLearner.load(tmp_path), first)
    assert files_in(tmp_path) == NAMES
    assert learner.in_progress == "farm"
    learner.learn(three()[1], checkpoint=tmp_path, progress=False)  # goes on where it was
    assert_same(learner, never_stopped)
    assert_same(VariationalLearner.load(tmp_path), never_stopped)


def test_a_full_disk_at_the_very_end_leaves_a_learner_that_has_learned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    learner = learner_of()

    def full(descriptor: int) -> None:
        raise disk_full()

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(CheckpointError, match="No space left on device"):
            learner.learn(three()[0], checkpoint=tmp_path, progress=False)
    assert files_in(tmp_path) == set()
    assert_same(learner, learner_of(three()[:1]))
    learner.save(tmp_path)
    assert_same(VariationalLearner.load(tmp_path), learner)


def test_a_folder_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(CheckpointError, match=f"^Could not save to {path}: (File exists|Not a directory)"):
            learner_of().save(path)
    assert (tmp_path / "file").read_text() == "not a folder"


def test_a_learner_that_is_saved_anew_while_it_is_read_is_read_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint.save(tmp_path, OLD, {"which": "old"})
    read_bytes, saves = Path.read_bytes, iter([NEW])

    def meanwhile(self: Path) -> bytes:
        if self.name == "tensors.safetensors":
            for tensors in saves:
                checkpoint.save(tmp_path, tensors, {"which": "new"})
        return read_bytes(self)

    monkeypatch.setattr(Path, "read_bytes", meanwhile)
    assert whole(tmp_path) == "new"


# Files that are not what they should be


KINDS: dict[str, dict[str, Any]] = {
    "full": {},
    "memory": {"replay": "memory"},
    "decoder": {"snapshot": "decoder"},
    "no task confusion": {"task_confusion": False, "conditioning": "environment"},
}


def save_every_kind(below: Path) -> dict[str, Path]:
    """Learners in every shape that is saved: with a lesson under way and without, with a queue."""
    folders = {}
    for name, settings in KINDS.items():
        learner = learner_of(three()[:2], **settings)
        learner.learn(Environment("later", query=three()[0].query), progress=False)
        learner.save(folders.setdefault(name, below / name))
        stopped_at(learner, three()[2], 4)
        learner.save(folders.setdefault(f"{name}, lesson", below / f"{name}, lesson"))
    return folders


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return save_every_kind(tmp_path_factory.mktemp("saved"))


def refused(folder: Path, sentence: str | None = None) -> str:
    with pytest.raises(CheckpointError, match=sentence) as caught:
        VariationalLearner.load(folder)
    assert "TypeCheckError" not in str(caught.value)  # what only the tests' own checks refuse would load elsewhere
    assert "\n" not in str(caught.value)
    assert str(caught.value).endswith((".", '"'))
    return str(caught.value)


def with_state(folder: Path, tmp_path: Path, state: Any) -> Path:
    target = tmp_path / "altered"
    shutil.copytree(folder, target, dirs_exist_ok=True)
    (target / "state.json").write_text(json.dumps(state))
    return target


def with_tensors(folder: Path, tmp_path: Path, tensors: dict[str, Tensor]) -> Path:
    """The digest is made to match: nothing but a check of the contents can tell."""
    data = safetensors.torch.save({name: tensor.contiguous() for name, tensor in tensors.items()})
    state = json.loads((folder / "state.json").read_text())
    target = with_state(folder, tmp_path, {**state, "tensors": hashlib.sha256(data).hexdigest()})
    (target / "tensors.safetensors").write_bytes(data)
    return target


def places_in(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of everything in a JSON value."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in items:
        yield (*path, key)
        yield from places_in(child, (*path, key))


GONE = object()
VALUES = [GONE, None, True, -1, 1.5, 10**30, 10**400, math.inf, "x", [[]], {}]


def altered_states(folder: Path) -> Iterator[tuple[str, Any]]:
    """The state with each of its parts taken away or turned into something else."""
    state = json.loads((folder / "state.json").read_text())
    for path in places_in(state):
        for value in VALUES[::2] if path[0] == "config" else VALUES:
            copy = json.loads(json.dumps(state))
            parent = copy
            for key in path[:-1]:
                parent = parent[key]
            if value is GONE:
                del parent[path[-1]]
            else:
                parent[path[-1]] = value
            yield f"{'.'.join(map(str, path))}={'gone' if value is GONE else str(value)[:20]}", copy


def altered_tensors(folder: Path, but_not: Collection[str] = ()) -> Iterator[tuple[str, dict[str, Tensor]]]:
    """The tensors with each of them taken away or turned into something else."""
    tensors = safetensors.torch.load_file(folder / "tensors.safetensors")
    for name, tensor in tensors.items():
        if name not in but_not:
            others = {other: value for other, value in tensors.items() if other != name}
            yield f"{name}=gone", others
            yield (
                f"{name}=longer",
                {**others, name: torch.cat([tensor, tensor]) if tensor.ndim else torch.stack([tensor, tensor])},
            )
            yield f"{name}=other", {**others, name: tensor.double() if tensor.is_floating_point() else tensor.float()}


def works_or_is_refused(folder: Path) -> str:
    """A file that was altered is refused, or it makes a learner that works: nothing in between."""
    try:
        learner = VariationalLearner.load(folder)
    except CheckpointError:
        return "refused"
    for name in (None, *learner.environments):
        assert learner.predict(np.ones((2, 6)), name).shape == (2,)
    if learner.config not in [replace(TINY, **settings) for settings in KINDS.values()]:
        return "works"  # another setting may take all the time or memory there is
    try:
        if learner._lesson is None:
            learner.learn(gaussians("new", (learner.classes[0], learner.classes[-1])), progress=False)
        else:
            learner._lesson.digest = three()[2].digest
            learner.learn(three()[2], progress=False)
    except PerdureError:
        return "says why not"
    return "works"


def try_everything(below: Path) -> dict[str, str]:
    """What comes of each alteration, as users would see it: without the checks of shapes that tests have."""
    saved, outcomes = save_every_kind(below), {}

    def attempt(what: str, folder: Path) -> None:
        try:
            outcomes[what] = works_or_is_refused(folder)
        except Exception as error:
            outcomes[what] = f"{type(error).__name__}: {error}"

    for what, state in altered_states(saved["full, lesson"]):
        attempt(what, with_state(saved["full, lesson"], below, state))
    tried: set[str] = set()
    for kind, folder in saved.items():
        if kind.endswith("lesson"):
            for what, tensors in altered_tensors(folder, but_not=tried):
                attempt(f"{kind}: {what}", with_tensors(folder, below, tensors))
            tried |= set(safetensors.torch.load_file(folder / "tensors.safetensors"))
    return outcomes


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    run = [sys.executable, __file__, str(tmp_path_factory.mktemp("altered"))]
    found: dict[str, str] = json.loads(subprocess.run(run, capture_output=True, text=True, check=True).stdout)
    return found


MAY_BE_OTHERWISE = re.compile(
    r"format=True|config\.\w+=(True|1\.5|10+)|lessons=10+|classes\.\d=x|environments\.\d\.name=x|queued=.*|queued\.later=gone"
    r"|lesson\.(name|digest)=x|lesson\.returning\.0=.*"
)


def test_whatever_stands_in_the_state_it_is_refused_or_works(outcomes: dict[str, str]) -> None:
    of_states = {what: outcome for what, outcome in outcomes.items() if ": " not in what}
    assert len(of_states) > 500
    assert {what: outcome for what, outcome in of_states.items() if outcome not in ("refused", "works", "says why not")} == {}
    accepted = [what for what, outcome in of_states.items() if outcome != "refused"]
    assert [what for what in accepted if not MAY_BE_OTHERWISE.fullmatch(what)] == []


def test_whatever_becomes_of_a_tensor_it_is_refused(outcomes: dict[str, str]) -> None:
    of_tensors = {what: outcome for what, outcome in outcomes.items() if ": " in what}
    assert len(of_tensors) > 250
    assert {what: outcome for what, outcome in of_tensors.items() if outcome != "refused"} == {}


@pytest.mark.parametrize("kind", ["full", "full, lesson"])
@pytest.mark.parametrize(
    "part", ["solver", "inference", "hypothesis", "snapshots.1", "snapshots.0.hypothesis", "lesson", "lesson.adam"]
)
def test_a_part_that_is_missing_whole_is_refused(kind: str, part: str, saved: dict[str, Path], tmp_path: Path) -> None:
    tensors = safetensors.torch.load_file(saved[kind] / "tensors.safetensors")
    left = {name: tensor for name, tensor in tensors.items() if not name.startswith(f"{part}.")}
    if len(left) == len(tensors):
        pytest.skip("not part of this learner")
    folder = with_tensors(saved[kind], tmp_path, left)
    if part == "lesson.adam":  # as it is before the first step
        assert works_or_is_refused(folder) == "works"
    else:
        refused(folder, "is damaged")


def test_sentences_name_the_folder_and_say_what_to_do(saved: dict[str, Path], tmp_path: Path) -> None:
    state = json.loads((saved["full"] / "state.json").read_text())

    def sentence(**changes: Any) -> str:
        return refused(with_state(saved["full"], tmp_path, {**state, **changes})).removeprefix(str(tmp_path / "altered"))

    assert sentence(format=2) == "/state.json has format 2, this perdure reads format 1. Use the version that wrote it."
    assert (
        sentence(learner="AnalyticLearner") == " holds a 'AnalyticLearner', not a VariationalLearner. Load it with its own class."
    )
    assert (
        sentence(config={**state["config"], "latent": -1})
        == " has an impossible configuration: `latent` must be positive, got -1."
    )
    assert sentence(config={**state["config"], "extra": 1}) == " has a configuration of another version: it differs in extra."
    assert sentence(config=None) == " has no configuration."
    assert sentence(queued=[]) == " has a damaged queue."
    assert sentence(tensors=7) == "/state.json was not written by perdure."
    assert sentence(tensors="0" * 64) == (
        "/tensors.safetensors is missing, truncated or altered: it does not match state.json. Restore the folder from a copy."
    )
    assert sentence(classes=["cat", "cat", "cow", "hen", "pig"]) == (
        " is damaged or was saved with another backbone "
        "(ValueError: a class stands twice in ['cat', 'cat', 'cow', 'hen', 'pig']). Restore it from a copy."
    )
    assert "expected a whole number from zero to below 5, got 5" in sentence(environments=[{"name": "a", "classes": [0, 5]}])
    assert "an environment stands twice in ['a', 'a']" in sentence(environments=2 * [{"name": "a", "classes": [0, 1]}])


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "7", '"state"', "{}", "\xff\xfe", "[" * 100_000, '{"format": 1}', "NaN"])
def test_a_state_that_is_no_state_is_refused(text: str, saved: dict[str, Path], tmp_path: Path) -> None:
    shutil.copytree(saved["full"], tmp_path, dirs_exist_ok=True)
    (tmp_path / "state.json").write_bytes(text.encode("latin-1"))
    refused(tmp_path, "(is not JSON: |was not written by perdure)")


def test_missing_files_are_named(saved: dict[str, Path], tmp_path: Path) -> None:
    assert refused(tmp_path) == f"{tmp_path} holds no saved learner: there is no state.json."
    assert refused(tmp_path / "nowhere") == f"{tmp_path / 'nowhere'} holds no saved learner: there is no state.json."
    (tmp_path / "state.json").write_bytes((saved["full"] / "state.json").read_bytes())
    assert refused(tmp_path).startswith(f"{tmp_path}/tensors.safetensors is missing, truncated or altered")
    refused(tmp_path / "state.json", "cannot be read: Not a directory")
    (tmp_path / "tensors.safetensors").mkdir()
    refused(tmp_path, "cannot be read: Is a directory")


def test_tensors_that_were_cut_or_altered_are_refused(saved: dict[str, Path], tmp_path: Path) -> None:
    data = (saved["full"] / "tensors.safetensors").read_bytes()
    shutil.copytree(saved["full"], tmp_path, dirs_exist_ok=True)
    flipped = bytearray(data)
    flipped[-5] ^= 1
    for bad in (b"", data[:7], data[: len(data) // 2], data[:-1], data + b"\0", bytes(flipped)):
        (tmp_path / "tensors.safetensors").write_bytes(bad)
        refused(tmp_path, "missing, truncated or altered: it does not match")


def header(entries: dict[str, Any], data: bytes = b"") -> bytes:
    text = json.dumps(entries).encode()
    return len(text).to_bytes(8, "little") + text + data


class Bomb:
    """What a pickle may do when it is read."""

    def __reduce__(self) -> Any:
        return os.mkdir, ("exploded",)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        pickle.dumps(Bomb()),
        b"\xff" * 64,
        (2**62).to_bytes(8, "little") + b"{}",
        header([]),  # type: ignore[arg-type]
        header({"solver.hidden.weight": {"dtype": "F32", "shape": [2**40, 2**40], "data_offsets": [0, 2**62]}}),
        header({"solver.hidden.weight": {"dtype": "F32", "shape": [2**40], "data_offsets": [0, 4]}}, b"\0" * 4),
        header({"solver.hidden.weight": {"dtype": "python", "shape": [1], "data_offsets": [0, 4]}}, b"\0" * 4),
        header({"a": {"dtype": "F8_E5M2", "shape": [4], "data_offsets": [0, 4]}}, b"\0" * 4),
        header({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}, b"\0" * 4),
        header({"__metadata__": {"x": "y"}}),
    ],
    ids=["empty", "pickle", "noise", "long header", "list", "huge", "lying", "dtype", "float8", "other names", "metadata"],
)
def test_hostile_tensors_are_refused_and_never_run(
    data: bytes, saved: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The digest matches: whoever wrote the tensors wrote the state, too.
    state = json.loads((saved["full"] / "state.json").read_text())
    folder = with_state(saved["full"], tmp_path, {**state, "tensors": hashlib.sha256(data).hexdigest()})
    (folder / "tensors.safetensors").write_bytes(data)
    monkeypatch.chdir(tmp_path)
    refused(folder)
    assert files_in(tmp_path) == {"altered"}


def test_a_pickled_state_is_never_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "state.json").write_bytes(pickle.dumps(Bomb()))
    refused(tmp_path, "is not JSON")
    assert files_in(tmp_path) == {"state.json"}


@pytest.mark.parametrize("name", ["latent", "features", "width"])
@pytest.mark.parametrize("size", [10**9, 10**12, 2**62, 10**30])
@pytest.mark.parametrize("kind", ["full, lesson", "decoder"])
def test_a_huge_size_in_the_configuration_allocates_nothing(
    name: str, size: int, kind: str, saved: dict[str, Path], tmp_path: Path
) -> None:
    state = json.loads((saved[kind] / "state.json").read_text())
    state["config"][name] = size
    folder = with_state(saved[kind], tmp_path, state)
    with pytest.MonkeyPatch.context() as patch:
        for function in ("empty", "zeros", "randn"):
            patch.setattr(torch, function, smaller(getattr(torch, function)))
        refused(folder, "is damaged")


def smaller(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def checked(*sizes: Any, **options: Any) -> Tensor:
        made = function(*sizes, **options)
        assert made.device.type == "meta" or made.numel() < 10**6
        return made

    return checked


def test_a_feature_learner_is_not_loaded_with_a_backbone_nor_the_other_way_round(tmp_path: Path) -> None:
    def backbone() -> torch.nn.Module:
        return torch.nn.Linear(6, 6)

    learner_of(three()[:1]).save(tmp_path / "features")
    with_backbone = VariationalLearner(TINY, backbone=backbone)
    with_backbone.learn(three()[0], progress=False)
    with_backbone.save(tmp_path / "backbone")
    with pytest.raises(CheckpointError, match="is damaged or was saved with another backbone"):
        VariationalLearner.load(tmp_path / "features", backbone=backbone)
    with pytest.raises(CheckpointError, match="is damaged or was saved with another backbone"):
        VariationalLearner.load(tmp_path / "backbone")
    with pytest.raises(CheckpointError, match="is damaged or was saved with another backbone"):
        VariationalLearner.load(tmp_path / "backbone", backbone=lambda: torch.nn.Linear(6, 5))
    assert differences(anatomy(VariationalLearner.load(tmp_path / "backbone", backbone=backbone)), anatomy(with_backbone)) == [
        "._backbone"
    ] or anatomy(VariationalLearner.load(tmp_path / "backbone", backbone=backbone))


if __name__ == "__main__":
    print(json.dumps(try_everything(Path(sys.argv[1]))))
