"""Learners and environments small enough to learn in milliseconds, and a way to compare all that a learner is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import nn

from perdure import Environment, Query, Support, VariationalConfig, VariationalLearner
from perdure.generative import Rehearsal

WIDTH = 6
TINY = VariationalConfig(latent=8, features=16, width=16, warm_up=2, steps=3, batch=8, replay_batch=6, memory=10)
SETTINGS: dict[str, dict[str, Any]] = {
    "generative": {},
    "environment reading": {"conditioning": "environment"},
    "hard labels": {"conditioning": "environment", "hard_labels": True},
    "memory": {"replay": "memory"},
    "noise": {"replay": "noise"},
    "no replay": {"replay": "none"},
    "no task confusion": {"task_confusion": False},
    "no encoder snapshot": {"snapshot": "decoder"},
    "no encoder snapshot, continued": {"snapshot": "decoder", "fresh_inference": False},
    "no snapshot": {"snapshot": "none", "replay": "none"},
    "continued weights": {"fresh_inference": False},
    "fresh solver": {"fresh_solver": True},
    "no warm-up": {"warm_up": 0, "steps": 5},
    "not centred, summed": {"centre": False, "kl_summed": True},
}
"""Every choice that makes the learner keep or do something else."""


def gaussians(
    name: str, classes: Iterable[str | int] = ("cat", "dog"), *, shift: float = 0.0, rows: int = 20, seed: int = 0
) -> Environment:
    """Classes are well apart; the query is the same classes, elsewhere, in as many rows."""
    classes = list(classes)
    rng = np.random.default_rng(seed)
    centres = 3 * rng.normal(size=(len(classes), WIDTH)) + shift
    y = np.arange(rows) % len(classes)
    x_s, x_q = (centres[y] + rng.normal(size=(rows, WIDTH)) + offset for offset in (0.0, 1.5))
    return Environment(name, Support(x_s, np.array(classes)[y]), Query(x_q))


def three() -> list[Environment]:
    """Three environments; the last brings back a class of the first."""
    return [
        gaussians("clinic", ("cat", "dog"), seed=1),
        gaussians("farm", ("cow", "hen", "pig"), shift=5, rows=21, seed=2),
        gaussians("zoo", ("dog", "yak"), shift=-5, seed=3),
    ]


def learner_of(environments: Iterable[Environment] = (), **settings: Any) -> VariationalLearner:
    """A tiny learner that has learned these."""
    learner = VariationalLearner(replace(TINY, **settings))
    for environment in environments:
        learner.learn(environment, progress=False)
    return learner


def anatomy(thing: Any, *, flags: bool = True, where: str = "") -> dict[str, Any]:
    """Every tensor, array and value that is reachable, by its path; `flags`: also which networks train."""
    parts: dict[str, Any] = {}
    if isinstance(thing, torch.Tensor):
        parts[where] = thing.detach().clone()
    elif isinstance(thing, np.ndarray):
        parts[where] = torch.from_numpy(thing.copy()) if thing.dtype.kind in "fiub" else thing.tolist()
    elif isinstance(thing, nn.Module):
        parts |= anatomy(dict(thing.state_dict()), flags=flags, where=where)
        if flags:
            parts[f"{where}.training"] = [module.training for module in thing.modules()]
            parts[f"{where}.requires_grad"] = [parameter.requires_grad for parameter in thing.parameters()]
    elif isinstance(thing, torch.optim.Optimizer):
        parts |= anatomy(thing.state_dict(), flags=flags, where=where)
    elif isinstance(thing, Environment):
        parts[where] = thing.digest
    elif isinstance(thing, Mapping):
        parts[f"{where}.keys"] = sorted(map(str, thing))
        for key, value in thing.items():
            parts |= anatomy(value, flags=flags, where=f"{where}.{key}")
    elif isinstance(thing, (list, tuple)):
        parts[f"{where}.length"] = len(thing)
        for i, value in enumerate(thing):
            parts |= anatomy(value, flags=flags, where=f"{where}.{i}")
    elif is_dataclass(thing) and not isinstance(thing, type):
        for field in fields(thing):
            parts |= anatomy(getattr(thing, field.name), flags=flags, where=f"{where}.{field.name}")
    elif isinstance(thing, Rehearsal) or callable(thing):
        parts[where] = type(thing).__name__  # drawn afresh from the seed
    elif hasattr(thing, "__dict__"):
        parts |= anatomy(vars(thing), flags=flags, where=where)
    else:
        parts[where] = thing
    return parts


def differences(one: dict[str, Any], other: dict[str, Any]) -> list[str]:
    """The paths at which two anatomies are not the same, bit for bit."""
    return [
        path
        for path in sorted(one.keys() | other.keys())
        if path not in one or path not in other or not _same(one[path], other[path])
    ]


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    return type(one) is type(other) and bool(one == other)


def assert_same(
    one: VariationalLearner | dict[str, Any], other: VariationalLearner | dict[str, Any], *, flags: bool = True
) -> None:
    """Bit for bit."""
    anatomies = [value if isinstance(value, dict) else anatomy(value, flags=flags) for value in (one, other)]
    assert differences(*anatomies) == []
