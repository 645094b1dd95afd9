"""Long work shows how far it is, and an interrupt waits for the end of a step."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TypeAlias

Progress: TypeAlias = Callable[[int, int], object] | bool | None
"""`None`: a bar if a person is watching. True or False: a bar or none. A function: called with (step, total)."""


@contextmanager
def progress_bar(progress: Progress, what: str, total: int, done: int, unit: str = "step") -> Iterator[Callable[[int], object]]:
    """A function to be told the number of steps done; the bar shows how many a second and the time left."""
    if callable(progress):
        report = progress
        yield lambda step: report(step, total)
        return
    if progress is False:
        yield lambda step: None
        return
    from tqdm import tqdm

    disable = None if progress is None else False
    with tqdm(total=total, initial=done, desc=what, unit=unit, disable=disable, leave=False) as bar:
        yield lambda step: bar.update(step - bar.n)


@contextmanager
def interruptible() -> Iterator[Callable[[], bool]]:
    """A function that says whether Ctrl-C was pressed; the second press interrupts at once.

    It never was outside the main thread, nor in a process that was told to ignore it (a shell's background jobs).
    """
    pressed = False

    def on_interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal pressed
        if pressed:
            raise KeyboardInterrupt
        pressed = True

    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or before in (signal.SIG_IGN, None):
        yield lambda: False
        return
    signal.signal(signal.SIGINT, on_interrupt)
    try:
        yield lambda: pressed
    finally:
        signal.signal(signal.SIGINT, before)
