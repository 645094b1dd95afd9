"""Scenarios over stored features of a frozen backbone: which classes of which domain support which queries, in what order."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from perdure.errors import InputError
from perdure.streams import Answers, Environment, Query, Scenario, Support


@dataclass(frozen=True, eq=False)
class FrozenFeatures:
    """A data set as features: one row a picture, with its class and its domain by name."""

    x: Float[np.ndarray, "n features"]
    classes: NDArray[Any]
    domains: NDArray[Any]

    def rows(self, domain: str, classes: Sequence[str]) -> NDArray[np.intp]:
        """Where the pictures of these classes in this domain stand."""
        (rows,) = np.nonzero((self.domains == domain) & np.isin(self.classes, list(classes)))
        if len(rows) == 0:
            raise InputError(
                f"There is no picture of domain {domain!r} with classes {list(classes)}; the domains are "
                f"{sorted(set(self.domains.tolist()))}."
            )
        return rows


@dataclass(frozen=True)
class Step:
    """One environment to be: where support and query come from, and the classes both hold."""

    environment: str
    support: str
    query: str
    classes: Sequence[str]


def domain_called(short: str, domains: Mapping[str, str]) -> str:
    """The domain that is written so for short."""
    if short not in domains:
        known = ", ".join(f"{name!r} ({domain})" for name, domain in domains.items())
        raise InputError(f"No domain is called {short!r}. Known: {known}.")
    return domains[short]


def data_file(name: str) -> Path:
    """A file of test data, in the folder `PERDURE_DATA` or, without it, `../shared/data`."""
    folder = Path(os.environ.get("PERDURE_DATA", "../shared/data"))
    if not (folder / name).exists():
        raise InputError(f"{name} is not in {folder}. Set PERDURE_DATA to the folder that holds it.")
    return folder / name


@lru_cache(maxsize=2)
def load(file: Path) -> FrozenFeatures:
    """Features from an NPZ file with `X`, `y` into `class_names` and `domain` into `domain_names`."""
    with np.load(file, allow_pickle=False) as stored:
        return FrozenFeatures(
            stored["X"].astype(np.float32),
            stored["class_names"][stored["y"].astype(np.intp)],
            stored["domain_names"][stored["domain"].astype(np.intp)],
        )


def scenario(name: str, features: FrozenFeatures, steps: Sequence[Step], *, inductive: bool = False, seed: int = 0) -> Scenario:
    """The steps as environments. `inductive`: a random half of each query set is kept aside and never adapted to."""
    environments, transductive, aside = [], {}, {}
    for number, step in enumerate(steps):
        s, q = features.rows(step.support, step.classes), features.rows(step.query, step.classes)
        if inductive:
            shuffled = np.random.default_rng((seed, number)).permutation(q)
            kept, q = np.sort(shuffled[: len(q) // 2]), np.sort(shuffled[len(q) // 2 :])
            aside[step.environment] = Support(features.x[kept], features.classes[kept])
        support = Support(features.x[s], features.classes[s])
        environments.append(Environment(step.environment, support, Query(features.x[q]), domain=step.query))
        transductive[step.environment] = features.classes[q]
    return Scenario(name, environments, Answers(transductive, aside))
