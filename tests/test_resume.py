"""Stopped at any step and taken up again, here or in a new process, a learner becomes what it would have become, bit for bit."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny import SETTINGS, TINY, anatomy, assert_same, differences, gaussians, learner_of, three
from torch import nn

from perdure import CheckpointError, Environment, InputError, Learned, Query, Support, VariationalLearner
from perdure.generative import Rehearsal

TOTAL = TINY.warm_up + TINY.steps


@pytest.fixture(autouse=True, scope="module")
def _blocks_end_within_a_lesson() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Rehearsal, "block", 2)
        yield


@pytest.fixture(scope="module")
def expected(_blocks_end_within_a_lesson: None) -> dict[str, Any]:
    """All that a learner is that was never stopped."""
    return anatomy(learner_of(three()))


def stands_at(folder: Path) -> tuple[int, int]:
    """Environments learned and steps of the next one, as saved."""
    state = json.loads((folder / "state.json").read_text())
    return len(state["environments"]), 0 if state["lesson"] is None else state["lesson"]["step"]


def learn_and_copy_each_checkpoint(
    folder: Path, settings: dict[str, Any]
) -> tuple[VariationalLearner, dict[tuple[int, int], Path]]:
    """One learner that never stops, and what it had saved at each step."""
    learner, copies = learner_of(**settings), {}

    def copy(step: int, total: int) -> None:
        if (folder / "now" / "state.json").exists():
            place = stands_at(folder / "now")
            copies[place] = folder / "-".join(map(str, place))
            shutil.copytree(folder / "now", copies[place], dirs_exist_ok=True)

    for environment in three():
        learner.learn(environment, checkpoint=folder / "now", every=1, progress=copy)
    return learner, copies


def go_on(learner: VariationalLearner, **options: Any) -> VariationalLearner:
    """With all that is not learned yet."""
    for environment in three():
        if environment.name not in learner.environments:
            learner.learn(environment, **{"progress": False, **options})
    return learner


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_resuming_equals_never_stopping(settings: dict[str, Any], tmp_path: Path) -> None:
    never_stopped, copies = learn_and_copy_each_checkpoint(tmp_path, settings)
    in_warm_up, after = 1, 3
    for stop in ((0, after), (2, in_warm_up), (2, after)):
        assert_same(go_on(VariationalLearner.load(copies[stop])), never_stopped)


def test_every_single_step_can_be_resumed_from_and_saving_changes_nothing(tmp_path: Path) -> None:
    settings = {"warm_up": 1, "steps": 2}
    never_stopped, copies = learn_and_copy_each_checkpoint(tmp_path, settings)
    assert set(copies) == {(i, step) for i in range(3) for step in range(3)} - {(0, 0)}
    for copy in copies.values():
        assert_same(go_on(VariationalLearner.load(copy)), never_stopped)
    assert_same(learner_of(three(), **settings), never_stopped)


def test_a_saved_lesson_is_loaded_in_full(tmp_path: Path) -> None:
    learner = learner_of(three()[:2])
    interrupt(learner, three()[2], at=4)
    learner.save(tmp_path)
    loaded = VariationalLearner.load(tmp_path)
    assert loaded.in_progress == "zoo"
    gone = {"._lesson.environment", "._lesson.batch_of", "._lesson.rehearsal"}
    different = differences(anatomy(learner, flags=False), anatomy(loaded, flags=False))
    assert {path.removesuffix(".keys") for path in different} == gone


def interrupt(learner: VariationalLearner, environment: Environment, *, at: int, **options: Any) -> None:
    """Press Ctrl-C once that many steps are done."""

    def press(step: int, total: int) -> None:
        if step == at:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        learner.learn(environment, progress=press, **options)


@pytest.mark.parametrize("at", [1, 4, TOTAL])
def test_ctrl_c_saves_where_it_was_and_leaves_the_rest_for_later(at: int, tmp_path: Path, expected: dict[str, Any]) -> None:
    learner = learner_of(three()[:1])
    interrupt(learner, three()[1], at=at, checkpoint=tmp_path, every=1000)
    assert stands_at(tmp_path) == (1, at)
    assert learner.in_progress == "farm"
    assert_same(go_on(VariationalLearner.load(tmp_path), checkpoint=tmp_path), expected)
    assert_same(VariationalLearner.load(tmp_path), expected)
    assert_same(go_on(learner), expected)


@pytest.mark.parametrize("at", [1, TOTAL])
def test_ctrl_c_without_a_checkpoint_writes_nothing_and_can_be_continued_too(
    at: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, expected: dict[str, Any]
) -> None:
    monkeypatch.chdir(tmp_path)
    learner = learner_of()
    interrupt(learner, three()[0], at=at)
    assert not list(tmp_path.iterdir())
    assert_same(go_on(learner), expected)


def test_an_error_in_the_callers_progress_leaves_a_lesson_that_can_be_continued(expected: dict[str, Any]) -> None:
    def fail(step: int, total: int) -> None:
        if step == 3:
            raise ZeroDivisionError("of the caller")

    learner = learner_of()
    with pytest.raises(ZeroDivisionError, match="of the caller"):
        learner.learn(three()[0], progress=fail)
    assert learner.in_progress == "clinic"
    assert_same(go_on(learner), expected)


def test_it_can_be_stopped_again_and_again(tmp_path: Path, expected: dict[str, Any]) -> None:
    learner = learner_of()
    learner.save(tmp_path)
    for environment in three():
        for at in (1, 2, 4):
            learner = VariationalLearner.load(tmp_path)
            interrupt(learner, environment, at=at, checkpoint=tmp_path, every=1000)
        learner = VariationalLearner.load(tmp_path)
        learner.learn(environment, checkpoint=tmp_path, progress=False)
    assert_same(VariationalLearner.load(tmp_path), expected)


def test_a_process_that_was_killed_is_continued_by_another(tmp_path: Path, expected: dict[str, Any]) -> None:
    code = (
        f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        "from tiny import Rehearsal, learner_of, three\n"
        f"Rehearsal.block = {Rehearsal.block}\n"
        "learner = learner_of()\n"
        "for i, environment in enumerate(three()):\n"
        f"    learner.learn(environment, checkpoint={str(tmp_path)!r}, every=1,"
        " progress=lambda step, total: print(i, step, flush=True))\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    for line in process.stdout:
        if line.split() == ["1", "4"]:
            process.kill()  # SIGKILL, while it saves or learns
            break
    assert process.wait() == -signal.SIGKILL
    process.stdout.close()
    environments, step = stands_at(tmp_path)
    assert (environments, step) >= (1, 3)
    assert_same(go_on(VariationalLearner.load(tmp_path)), expected)


# When it saves


@pytest.fixture
def saves(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[int, int | None]]]:
    """Environments learned and the step of the lesson at each save."""
    made: list[tuple[int, int | None]] = []
    save: Callable[..., None] = VariationalLearner.save

    def recorded(self: VariationalLearner, path: str | Path) -> None:
        made.append((len(self.environments), None if self._lesson is None else self._lesson.step))
        save(self, path)

    monkeypatch.setattr(VariationalLearner, "save", recorded)
    return made


@pytest.mark.parametrize(
    ("every", "expected"), [(2, [(0, 2), (0, 4), (1, None)]), (4, [(0, 4), (1, None)]), (5, [(1, None)]), (200, [(1, None)])]
)
def test_it_saves_so_often_and_at_the_end(
    every: int, expected: list[tuple[int, int | None]], saves: list[tuple[int, int | None]], tmp_path: Path
) -> None:
    learner_of().learn(three()[0], checkpoint=tmp_path, every=every, progress=False)
    assert saves == expected


def test_learning_says_that_it_is_done_in_full_though_it_was_resumed(tmp_path: Path) -> None:
    learner = learner_of()
    interrupt(learner, three()[0], at=4, checkpoint=tmp_path)
    learned = VariationalLearner.load(tmp_path).learn(three()[0], progress=False)
    assert isinstance(learned, Learned)
    assert (learned.environment, learned.steps) == ("clinic", TOTAL)


def test_the_first_step_told_to_the_caller_is_the_one_after_the_last_saved(tmp_path: Path) -> None:
    interrupt(learner_of(), three()[0], at=3, checkpoint=tmp_path)
    told: list[tuple[int, int]] = []
    VariationalLearner.load(tmp_path).learn(three()[0], progress=lambda step, total: told.append((step, total)))
    assert told == [(4, TOTAL), (5, TOTAL)]


# What must be the same


def other_data(environment: Environment) -> list[Environment]:
    assert environment.support is not None
    assert environment.query is not None
    name, (x, y), query = environment.name, (environment.support.x, environment.support.y), environment.query.x
    changed = x.copy()
    changed[3, 2] += 1e-3
    swapped = y.copy()
    swapped[0] = y[1]
    return [
        Environment(name, Support(changed, y), Query(query)),
        Environment(name, Support(x, swapped), Query(query)),
        Environment(name, Support(x, y), Query(query[::-1])),
        Environment(name, Support(x, y), Query(query[:-1])),
    ]


@pytest.mark.parametrize("which", range(4), ids=["support", "labels", "order", "rows"])
def test_a_lesson_is_continued_with_the_same_data_only(which: int, expected: dict[str, Any]) -> None:
    learner = learner_of()
    interrupt(learner, three()[0], at=3)
    before = anatomy(learner)
    sentence = '"clinic" was begun with other data. Give the same support and query to continue at step 3, or drop it with'
    with pytest.raises(InputError, match="^" + re.escape(sentence)):
        learner.learn(other_data(three()[0])[which], progress=False)
    assert_same(learner, before)
    assert_same(go_on(learner), expected)


def test_the_same_data_in_another_array_are_the_same(expected: dict[str, Any]) -> None:
    learner = learner_of()
    interrupt(learner, three()[0], at=3)
    first = three()[0]
    assert first.support is not None
    assert first.query is not None
    again = Environment(
        "clinic", Support(first.support.x.astype(np.float64), list(first.support.y)), Query(np.asfortranarray(first.query.x))
    )
    learner.learn(again, progress=False)
    assert_same(go_on(learner), expected)


# What a checkpoint must not overwrite


@pytest.mark.parametrize("known", [1, 2])
def test_a_checkpoint_does_not_overwrite_a_learner_that_knows_more(known: int, tmp_path: Path) -> None:
    learner_of(three()[:known]).save(tmp_path)
    before = (tmp_path / "tensors.safetensors").read_bytes()
    learner = learner_of()
    lost = ["clinic", "farm"][:known]
    sentence = (
        f"{tmp_path} holds a learner that knows {lost}, which this one does not, and saving would lose it. Continue it with "
        f"VariationalLearner.load({str(tmp_path)!r}), or choose another path."
    )
    with pytest.raises(CheckpointError, match="^" + re.escape(sentence)):
        learner.learn(gaussians("new"), checkpoint=tmp_path, progress=False)
    assert_same(learner, learner_of())  # nothing was begun
    assert (tmp_path / "tensors.safetensors").read_bytes() == before


def test_a_checkpoint_does_not_overwrite_an_unfinished_lesson_of_another(tmp_path: Path) -> None:
    interrupt(learner_of(), three()[0], at=3, checkpoint=tmp_path)
    with pytest.raises(CheckpointError, match=r"knows \['clinic'\], which this one does not"):
        learner_of().learn(three()[0], checkpoint=tmp_path, progress=False)
    with pytest.raises(CheckpointError, match=r"knows \['clinic'\], which this one does not"):
        learner_of().learn(three()[1], checkpoint=tmp_path, progress=False)
    assert stands_at(tmp_path) == (0, 3)


def test_a_checkpoint_may_replace_a_learner_that_knows_less(tmp_path: Path) -> None:
    learner_of(three()[:1]).save(tmp_path)
    learner = learner_of(three()[:2])
    learner.learn(three()[2], checkpoint=tmp_path, progress=False)
    assert_same(VariationalLearner.load(tmp_path), learner)


@pytest.mark.parametrize(
    "state",
    [
        "[",
        "[]",
        '{"format": 2, "tensors": ""}',
        '{"format": 1, "tensors": ""}',
        '{"format": 1, "tensors": "", "environments": 5, "lesson": null}',
        '{"format": 1, "tensors": "", "environments": [], "lesson": 7}',
    ],
)
def test_a_checkpoint_does_not_overwrite_what_it_cannot_read(state: str, tmp_path: Path) -> None:
    (tmp_path / "state.json").write_text(state)
    learner = learner_of()
    with pytest.raises(CheckpointError):
        learner.learn(three()[0], checkpoint=tmp_path, progress=False)
    assert_same(learner, learner_of())
    assert (tmp_path / "state.json").read_text() == state


# A backbone that draws numbers


class Dropping(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Linear(6, 5), nn.Dropout(0.5))


def test_a_backbone_with_dropout_is_resumed_bit_for_bit_too(tmp_path: Path) -> None:
    def learner() -> VariationalLearner:
        return VariationalLearner(TINY, backbone=Dropping)

    never_stopped = learner()
    never_stopped.learn(three()[0], progress=False)
    stopped = learner()
    interrupt(stopped, three()[0], at=4, checkpoint=tmp_path)
    resumed = VariationalLearner.load(tmp_path, backbone=Dropping)
    resumed.learn(three()[0], progress=False)
    assert_same(resumed, never_stopped)
