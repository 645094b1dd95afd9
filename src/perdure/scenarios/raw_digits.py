"""Raw digits: one of MNIST, USPS and MNIST-M supports, others arrive as queries in turn. Pixels, for a trained backbone."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from perdure.errors import InputError
from perdure.scenarios.frozen import data_file
from perdure.streams import Answers, Environment, Query, Scenario, Support

FILE = "digits_28x28_subset.npz"
DOMAINS = {"mnist": "MNIST", "usps": "USPS", "mnistm": "MNIST-M"}
"""As they are stored, and as people write them."""
ADAPTED, ASIDE = 2000, 1000
"""Rows of each domain that are learned from (of its training part), and that are kept aside (of its test part)."""


def domains(support: str, queries: tuple[str, ...], *, inductive: bool = False, seed: int = 0) -> Scenario:
    """Scenario 2: the query's domain drifts ("mnist", "usps" or "mnistm"), all ten digits are there from the beginning.

    Every environment has the same support. `seed` draws the rows, never the same twice in one domain. With `inductive` rows of
    the test part are scored, too; what is adapted to stays the same.
    """
    unknown = [name for name in (support, *queries) if name not in DOMAINS]
    if unknown:
        raise InputError(f"No domains of raw digits are called {unknown}. Known: {', '.join(DOMAINS)}.")
    shown = Support(*pictures(support, "train", ADAPTED, seed))
    environments, transductive, aside = [], {}, {}
    for query in queries:
        name = f"{DOMAINS[support]}→{DOMAINS[query]}"
        x, transductive[name] = pictures(query, "train", ADAPTED, seed)
        environments.append(Environment(name, shown, Query(x)))
        if inductive:
            aside[name] = Support(*pictures(query, "test", ASIDE, seed))
    name = f"raw digits {DOMAINS[support]}→{','.join(DOMAINS[query] for query in queries)}"
    return Scenario(name, environments, Answers(transductive, aside))


def pictures(domain: str, part: str, count: int, seed: int) -> tuple[Float[np.ndarray, "n 3 28 28"], NDArray[np.int64]]:
    """A random `count` of the pictures, 0 to 1, with their digits; grey ones have three equal channels."""
    x, y = _stored(data_file(FILE), domain, part)
    if count > len(y):
        raise InputError(f"{DOMAINS[domain]} has {len(y)} {part} pictures in {FILE}, fewer than the {count} asked for.")
    # The domain is part of the seed, so that domains stored in one order do not show the same digits.
    rows = np.random.default_rng((seed, *domain.encode(), *part.encode())).choice(len(y), count, replace=False)
    chosen = x[rows].astype(np.float32) / 255
    colours = chosen if chosen.ndim == 4 else np.repeat(chosen[..., None], 3, axis=3)
    return np.ascontiguousarray(colours.transpose(0, 3, 1, 2)), y[rows].astype(np.int64)


@lru_cache(maxsize=8)
def _stored(file: Path, domain: str, part: str) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    with np.load(file, allow_pickle=False) as stored:
        return stored[f"{domain}_x_{part}"], stored[f"{domain}_y_{part}"]
