"""Randomness is an argument: a generator is a function of the seed and of where it is used, never of what ran before.

So resuming needs no generator's state: step 700 of the third environment draws the same numbers in any process.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum

import numpy as np
import torch


class Use(IntEnum):
    """What a generator is for; two uses never share one."""

    INITIALISE = 0
    STEP = 1
    SUPPORT_ORDER = 2
    QUERY_ORDER = 3
    REPLAY = 4
    MEMORY = 5


def derive(seed: int, use: Use, *where: int) -> int:
    """A seed that depends on all of its arguments."""
    return int(np.random.SeedSequence((seed, use, *where)).generate_state(1, np.uint64)[0] >> np.uint64(1))


def generator(seed: int, use: Use, *where: int, device: torch.device | str = "cpu") -> torch.Generator:
    """A fresh generator for this use at this place."""
    return torch.Generator(device).manual_seed(derive(seed, use, *where))


@contextmanager
def initialised_from(seed: int, *where: int) -> Iterator[None]:
    """Modules built inside get their first weights from `seed`; the caller's global state stays as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive(seed, Use.INITIALISE, *where))
        yield


class Batches:
    """Row numbers of a batch as a function of the step: one shuffled pass over the rows after another."""

    def __init__(self, rows: int, batch: int, seed: int, use: Use, *where: int, device: torch.device | str = "cpu") -> None:
        self.rows, self.batch, self.device = rows, batch, device
        self._seed, self._use, self._where = seed, use, where
        self._passes: dict[int, torch.Tensor] = {}

    def __call__(self, step: int) -> torch.Tensor:
        first, last = step * self.batch, (step + 1) * self.batch
        passes = range(first // self.rows, (last - 1) // self.rows + 1)
        self._passes = {p: self._passes[p] if p in self._passes else self._shuffled(p) for p in passes}
        together = self._passes[passes.start] if len(passes) == 1 else torch.cat([self._passes[p] for p in passes])
        offset = first - passes.start * self.rows
        return together[offset : offset + self.batch]

    def _shuffled(self, number: int) -> torch.Tensor:
        return torch.randperm(self.rows, generator=generator(self._seed, self._use, *self._where, number)).to(self.device)
