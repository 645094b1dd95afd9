"""Runs in processes of their own: each once, nothing lost to one that fails or is killed, and none left behind."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import stand_in
from tiny import TINY

from perdure.experiments import pool
from perdure.experiments.ledger import Place, Planned, Result
from perdure.experiments.methods import LOWER_BOUNDS, continual
from perdure.experiments.pool import ONE_THREAD, REPORT_EVERY, Failure, Task, environment_variables, execute

NEAREST = LOWER_BOUNDS["nearest class mean"]
HERE = Path(__file__).parent


def task(label: str, support: str = "D", query: str = "A") -> Task:
    """A run of a moment."""
    return Task(Planned(NEAREST, Place("office31.tasks", (support, query))), label)


@pytest.fixture
def _features(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stand-ins for the stored features, where the workers find them, too."""
    monkeypatch.setenv("PERDURE_DATA", str(stand_in.write(tmp_path)))


@pytest.mark.usefixtures("_features")
def test_every_task_is_carried_out_once_whatever_becomes_of_the_others(capfd: pytest.CaptureFixture[str]) -> None:
    """One worker: the second run raises; the worker is killed just before the fifth."""
    tasks = [
        task("first"),
        task("impossible", "D", "the moon"),
        task("third", "A", "D"),
        task("last of its worker", "W", "A"),
        task("killed", "A", "W"),
        task("after it", "D", "W"),
        Task(Planned(continual(TINY), Place("office31.tasks", ("W", "D"))), "learned"),
    ]
    finished: list[tuple[str, Result]] = []
    processes: set[int | None] = set()

    def finish(done: Task, result: Result) -> None:
        finished.append((done.label, result))
        (worker,) = multiprocessing.active_children()
        processes.add(worker.pid)
        if done.label == "last of its worker":
            worker.kill()
            worker.join()

    before = dict(os.environ)
    failures = execute(tasks, workers=1, finished=finish)
    assert dict(os.environ) == before
    assert [label for label, _ in finished] == ["first", "third", "last of its worker", "after it", "learned"]
    assert [failure.task.label for failure in failures] == ["impossible", "killed"]
    refusal = "perdure.errors.InputError: No domain is called 'the moon'. Known: 'A' (amazon), 'D' (dslr), 'W' (webcam)."
    assert failures[0].why.rstrip().splitlines()[-1] == refusal
    assert "Traceback" in failures[0].why
    assert failures[1] == Failure(tasks[4], "its process ended with exit code -9")
    assert len(processes) == 2  # the killed one was replaced
    assert multiprocessing.active_children() == []

    # The numbers are those of the task that they were handed over with.
    for done in (tasks[0], tasks[5], tasks[6]):
        expected = done.planned.carry_out(progress=False).to_json()
        assert dict(finished)[done.label].to_json()["accuracy"] == expected["accuracy"]

    said = capfd.readouterr().err.splitlines()
    assert [line.partition("]")[0] for line in said] == [f"[{i}/7" for i in range(1, 8)]  # one line a run, no stray traceback
    assert said[1].startswith(f"[2/7] failed: impossible: {refusal}; ")
    assert said[4].startswith("[5/7] failed: killed: its process ended with exit code -9; ")


@pytest.mark.usefixtures("_features")
def test_several_workers_share_the_tasks(capfd: pytest.CaptureFixture[str]) -> None:
    tasks = [task(f"{s}→{q}", s, q) for s, q in ("DA", "AD", "WA", "AW")]
    finished: list[str] = []
    at_once: list[int] = []

    def finish(done: Task, result: Result) -> None:
        finished.append(done.label)
        at_once.append(len(multiprocessing.active_children()))

    assert execute(tasks, workers=2, finished=finish, progress=False) == []
    assert sorted(finished) == sorted(done.label for done in tasks)
    assert at_once[0] == 2
    assert capfd.readouterr().err == ""


def test_nothing_to_do_starts_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "_start", None)
    assert execute([], workers=2, finished=lambda *_: None) == []


@pytest.mark.usefixtures("_features")
def test_what_finished_raises_stops_all_workers() -> None:
    def full(done: Task, result: Result) -> None:
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        execute([task("one"), task("two", "A", "W")], workers=1, finished=full, progress=False)
    assert multiprocessing.active_children() == []


class Pipe:
    """In place of the worker's end of a pipe: it is asked to do these, then nothing more."""

    def __init__(self, *planned: Planned, broken: bool = False) -> None:
        self.orders = [json.dumps(each.to_json()).encode() for each in planned]
        self.said: list[dict[str, object]] = []
        self.broken = broken

    def recv_bytes(self) -> bytes:
        if not self.orders:
            raise EOFError
        return self.orders.pop(0)

    def send_bytes(self, message: bytes) -> None:
        if self.broken:
            raise BrokenPipeError
        self.said.append(json.loads(message, parse_constant=lambda name: pytest.fail(f"{name} is no JSON")))


@pytest.fixture
def _unchanged() -> Iterator[None]:
    """A worker sets what concerns its whole process; here it is this one."""
    import logging

    import torch

    before = torch.get_num_threads(), torch.get_float32_matmul_precision(), logging.getLogger("perdure").level
    yield
    torch.set_num_threads(before[0])
    torch.set_float32_matmul_precision(before[1])
    logging.getLogger("perdure").setLevel(before[2])


@pytest.mark.usefixtures("_unchanged", "_features")
def test_a_number_that_json_cannot_hold_is_a_failure_of_its_run_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    good = Result({}, {}, {}, [], 0, {"device": "cpu", "torch": "0"})
    results = [replace(good, own={"task 1": float("nan")}), good]
    monkeypatch.setattr(Planned, "carry_out", lambda self, **_: results.pop(0))
    pipe = Pipe(task("a").planned, task("b").planned)
    pool._work(pipe, "cpu", "highest")  # type: ignore[arg-type]
    assert str(pipe.said[0]["failed"]).rstrip().endswith("ValueError: Out of range float values are not JSON compliant")
    assert pipe.said[1] == {"result": good.to_json()}


@pytest.mark.usefixtures("_unchanged", "_features")
def test_a_worker_that_nobody_listens_to_ends_without_a_word() -> None:
    pool._work(Pipe(task("a").planned, broken=True), "cpu", "highest")  # type: ignore[arg-type]
    learning = Planned(continual(TINY), Place("office31.tasks", ("D", "A")))
    pool._work(Pipe(learning, broken=True), "cpu", "highest")  # type: ignore[arg-type]


def test_progress_counts_the_updates_of_all_environments(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter(range(1, 100))
    monkeypatch.setattr(time, "monotonic", lambda: next(now) * (REPORT_EVERY + 0.1))
    pipe = Pipe()
    report = pool._Report(pipe)  # type: ignore[arg-type]
    for step in (1, 2, 3, 1, 2, 3, 1):
        report(step, 3)
    assert [said["done"] for said in pipe.said] == [1, 2, 3, 4, 5, 6, 7]


def test_environment_variables_are_as_before_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    monkeypatch.delenv("MKL_NUM_THREADS", raising=False)
    with contextlib.suppress(KeyError), environment_variables(ONE_THREAD):
        assert os.environ["OMP_NUM_THREADS"] == os.environ["MKL_NUM_THREADS"] == "1"
        raise KeyError
    assert os.environ["OMP_NUM_THREADS"] == "7"
    assert "MKL_NUM_THREADS" not in os.environ


# -- signals -----------------------------------------------------------------------------------------------------------------

ENDLESS = """
import os, sys
from dataclasses import replace
sys.path.insert(0, {here!r})
from tiny import TINY
from perdure.experiments import pool
from perdure.experiments.ledger import Place, Planned
from perdure.experiments.methods import LOWER_BOUNDS, continual

if __name__ == "__main__":
    place = Place("office31.tasks", ("D", "A"))
    endless = Planned(continual(replace(TINY, steps=10**7)), place)
    start = pool._start

    def and_say(*arguments):
        worker = start(*arguments)
        print(worker.process.pid, flush=True)
        return worker

    pool._start = and_say
    tasks = [pool.Task(Planned(LOWER_BOUNDS["LDA"], place), "short"), pool.Task(endless, "endless")]
    pool.execute(tasks, workers=1, finished=lambda *_: print("finished", flush=True), progress=False)
"""


@contextlib.contextmanager
def endless_run(folder: Path) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A parent in a session of its own, as a terminal has it, and the number of its one worker."""
    script = folder / "endless.py"
    script.write_text(ENDLESS.format(here=str(HERE)), encoding="utf-8")
    parent = subprocess.Popen(
        [sys.executable, str(script)],
        env={**os.environ, "PERDURE_DATA": str(stand_in.write(folder))},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert parent.stdout is not None
        yield parent, int(parent.stdout.readline())
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(parent.pid, signal.SIGKILL)
        parent.communicate()


def has_ended(process: int) -> bool:
    """Gone, or dead and waiting for somebody to notice."""
    try:
        return Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


linux = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks into /proc")


@linux
def test_a_killed_parent_leaves_no_worker_behind(tmp_path: Path) -> None:
    with endless_run(tmp_path) as (parent, worker):
        assert parent.stdout is not None
        assert parent.stdout.readline() == "finished\n"  # the worker is learning endlessly now
        assert not has_ended(worker)
        parent.kill()
        parent.wait()
        deadline = time.monotonic() + 20
        while not has_ended(worker) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert has_ended(worker)
        assert parent.stderr is not None
        assert parent.stderr.read() == ""


@linux
def test_ctrl_c_is_for_the_parent_to_decide(tmp_path: Path) -> None:
    """It reaches every process of a terminal: a worker goes on, from its first moment; the parent ends it."""
    with endless_run(tmp_path) as (parent, worker):
        assert parent.stdout is not None
        for _ in range(20):  # while it starts, and imports
            os.kill(worker, signal.SIGINT)
            time.sleep(0.05)
        assert parent.stdout.readline() == "finished\n"
        for _ in range(3):  # while it learns
            os.kill(worker, signal.SIGINT)
            time.sleep(0.1)
        assert not has_ended(worker)
        os.killpg(parent.pid, signal.SIGINT)
        _, said = parent.communicate(timeout=20)
        assert parent.returncode == -signal.SIGINT
        assert has_ended(worker)
        assert said.count("Traceback") == 1  # the parent's own: nothing catches it in this script
        assert said.rstrip().endswith("KeyboardInterrupt")
