"""Runs on all cores: one process of one thread each, one progress line each, and nothing lost when it is stopped."""

from __future__ import annotations

import contextlib
import json
import logging
import multiprocessing
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, Literal, TypeAlias

from perdure.experiments.ledger import Planned, Result

Precision: TypeAlias = Literal["highest", "high", "medium"]
"""Of matrix products, in torch's words; "medium" rounds their factors to bfloat16, which some processors multiply several
times as fast."""
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
REPORT_EVERY = 0.5
"""Seconds between two reports of a worker."""


@dataclass(frozen=True)
class Task:
    """A run with what it is called while it runs."""

    planned: Planned
    label: str


@dataclass(frozen=True)
class Failure:
    """A run that raised, or whose process ended."""

    task: Task
    why: str


@dataclass(eq=False)
class Worker:
    """A process, the pipe to it and what it is doing."""

    slot: int
    process: BaseProcess
    pipe: Connection
    task: Task | None = None
    done: int = 0
    began: float = field(default_factory=time.monotonic)


def execute(
    tasks: Sequence[Task],
    *,
    workers: int,
    device: str = "cpu",
    precision: Precision = "highest",
    finished: Callable[[Task, Result], object],
    progress: bool | None = None,
) -> list[Failure]:
    """Carry out the tasks in the order given. `finished` is called here, in the parent, as each is done.

    Ctrl-C stops the workers and raises; should this process be killed, they notice and end by themselves.
    """
    waiting, failures = list(tasks), list[Failure]()
    board = _Board(tasks, workers, progress)
    active: list[Worker] = []
    started: list[BaseProcess] = []

    def start(slot: int) -> Worker:
        worker = _start(slot, device, precision)
        started.append(worker.process)
        return worker

    try:
        with environment_variables(ONE_THREAD):
            for slot in range(min(workers, len(tasks))):
                active.append(start(slot))
                _give(active[-1], waiting.pop(0))
            while active:
                for pipe in wait([worker.pipe for worker in active]):
                    worker = next(each for each in active if each.pipe is pipe)
                    task = worker.task
                    assert task is not None
                    try:
                        message: dict[str, Any] = json.loads(worker.pipe.recv_bytes())
                    except (EOFError, OSError):
                        worker.process.join()
                        message = {"failed": f"its process ended with exit code {worker.process.exitcode}"}
                        active[active.index(worker)] = worker = start(worker.slot)
                    if "done" in message:
                        worker.done = message["done"]
                        board.advance(worker, task)
                        continue
                    if "failed" in message:
                        failures.append(Failure(task, message["failed"]))
                        board.note(f"failed: {task.label}: {message['failed'].strip().splitlines()[-1]}", task)
                    else:
                        result = Result.from_json(message["result"])
                        finished(task, result)
                        board.note(f"{task.label}: {_headline(result)}", task, sum(result.seconds))
                    if waiting:
                        _give(worker, waiting.pop(0))
                    else:
                        active.remove(worker)
                        worker.pipe.close()  # it ends by itself
    finally:
        for worker in active:
            worker.process.terminate()
        for process in started:
            process.join()
        board.close()
    return failures


def _start(slot: int, device: str, precision: Precision) -> Worker:
    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_work, args=(theirs, device, precision), daemon=True)
    # Ctrl-C reaches every process of a terminal, but the parent decides. What is held back here stays so in the new process.
    resource_tracker.ensure_running()  # otherwise `start` does it, and lets the signal through again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        process.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    theirs.close()  # so that its end is noticed
    return Worker(slot, process, ours)


def _give(worker: Worker, task: Task) -> None:
    worker.task, worker.done, worker.began = task, 0, time.monotonic()
    with contextlib.suppress(OSError):  # it has ended: reading from it says so
        worker.pipe.send_bytes(json.dumps(task.planned.to_json()).encode())


def _work(pipe: Connection, device: str, precision: Precision) -> None:
    """What a worker does until its pipe is closed."""
    import torch

    torch.set_num_threads(1)
    torch.set_float32_matmul_precision(precision)
    logging.getLogger("perdure").setLevel(logging.ERROR)  # that memory replay keeps data is said in the tables
    while True:
        try:
            planned = Planned.from_json(json.loads(pipe.recv_bytes()))
        except (EOFError, OSError):
            return
        try:
            result = planned.carry_out(device=device, progress=_Report(pipe))
            message = json.dumps({"result": result.to_json()}, allow_nan=False)  # NaN cannot be kept: a failure of this run
        except Exception:
            message = json.dumps({"failed": traceback.format_exc()})
        with contextlib.suppress(OSError):  # nobody is listening any more: reading says so
            pipe.send_bytes(message.encode())


class _Report:
    """Tells the parent from time to time how many updates are done, over all environments of a run."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._before, self._last, self._sent = 0, 0, 0.0

    def __call__(self, step: int, total: int) -> None:
        if step < self._last:  # the next environment
            self._before += self._last
        self._last = step
        now = time.monotonic()
        if now - self._sent > REPORT_EVERY:
            self._sent = now
            self._pipe.send_bytes(json.dumps({"done": self._before + step}).encode())


class _Board:
    """Progress on stderr: lines that move if a person is watching, otherwise one line for each finished run."""

    def __init__(self, tasks: Sequence[Task], workers: int, progress: bool | None) -> None:
        self._moving = sys.stderr.isatty() if progress is None else progress
        self._quiet = progress is False
        self._runs, self._finished, self._began = len(tasks), 0, time.monotonic()
        self._work, self._worked = sum(task.planned.cost for task in tasks), 0.0
        self._under_way: dict[int, float] = {}
        self._bars: list[Any] = []
        if self._moving and tasks:
            from tqdm import tqdm

            bar = "{desc:60.60} {percentage:3.0f}%|{bar}| {remaining} left"
            for position in range(min(workers, len(tasks)) + 1):
                self._bars.append(tqdm(total=1.0, position=position, leave=False, bar_format=bar, file=sys.stderr))
            self._bars[0].set_description_str(f"{len(tasks)} runs")

    def advance(self, worker: Worker, task: Task) -> None:
        if not self._moving:
            return
        share = worker.done / max(task.planned.updates, 1)
        self._under_way[id(task)] = share * task.planned.cost
        bar = self._bars[worker.slot + 1]
        if bar.desc != task.label:
            bar.reset(total=1.0)
            bar.start_t -= time.monotonic() - worker.began
            bar.set_description_str(task.label, refresh=False)
        bar.n = min(share, 1.0)
        bar.refresh()
        self._total()

    def note(self, text: str, task: Task, seconds: float | None = None) -> None:
        self._finished += 1
        self._worked += task.planned.cost
        self._under_way.pop(id(task), None)
        if self._quiet:
            return
        took = "" if seconds is None else f", {seconds:.0f} s"
        line = f"[{self._finished}/{self._runs}] {text}{took}"
        if self._moving:
            self._bars[0].write(line, file=sys.stderr)
            self._total()
        else:
            print(f"{line}; {self._left()}", file=sys.stderr, flush=True)

    def _total(self) -> None:
        bar = self._bars[0]
        bar.set_description_str(f"{self._finished} of {self._runs} runs", refresh=False)
        bar.n = min((self._worked + sum(self._under_way.values())) / max(self._work, 1e-9), 1.0)
        bar.refresh()

    def _left(self) -> str:
        if self._worked <= 0:
            return f"{self._runs - self._finished} runs left"
        seconds = (time.monotonic() - self._began) * (self._work - self._worked) / self._worked
        return f"about {seconds / 60:.0f} min left"

    def close(self) -> None:
        for bar in reversed(self._bars):
            bar.close()


def _headline(result: Result) -> str:
    if not result.accuracy:
        return "done"
    protocol, matrix = next(iter(result.accuracy.items()))
    return f"{100 * matrix.average:.1f} ({protocol})"


@contextlib.contextmanager
def environment_variables(variables: Mapping[str, str]) -> Iterator[None]:
    """For the processes that are started inside."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
