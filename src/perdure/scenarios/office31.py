"""Office-31 on frozen features: 31 classes in three domains (amazon, dslr, webcam), the paper's five tasks."""

from __future__ import annotations

import numpy as np

from perdure.scenarios.frozen import FrozenFeatures, Step, data_file, domain_called, load, scenario
from perdure.streams import Scenario

DOMAINS = {"A": "amazon", "D": "dslr", "W": "webcam"}
PAIRS = (("A", "W"), ("D", "W"), ("W", "D"), ("A", "D"), ("D", "A"), ("W", "A"))
"""In the order of the paper's table."""
TASK_SIZES = (6, 6, 6, 6, 7)
"""The classes in alphabetical order, cut into tasks."""
COMBINED = (("D", "A"), ("A", "W"), ("W", "D"), ("D", "W"), ("W", "A"))
"""Support and query of each task where tasks and domains drift together."""


def features() -> FrozenFeatures:
    """ResNet-50 features of all pictures (the paper: ResNet-34)."""
    return load(data_file("office31_resnet50.npz"))


def task_classes() -> list[list[str]]:
    """The classes of each task."""
    names = sorted({str(name) for name in features().classes})
    ends = np.cumsum(TASK_SIZES)
    return [names[end - size : end] for size, end in zip(TASK_SIZES, ends, strict=True)]


def tasks(support: str, query: str, *, inductive: bool = False, seed: int = 0) -> Scenario:
    """Scenario 1: the classes drift, support and query each stay in one domain ("A", "D" or "W")."""
    steps = [
        Step(f"task {i + 1}", domain_called(support, DOMAINS), domain_called(query, DOMAINS), classes)
        for i, classes in enumerate(task_classes())
    ]
    return scenario(f"Office-31 {support}→{query}", features(), steps, inductive=inductive, seed=seed)


def combined(*, inductive: bool = False, seed: int = 0) -> Scenario:
    """Classes and domains drift together (the supplement's set-up table)."""
    steps = [
        Step(f"task {i + 1} {s}→{q}", domain_called(s, DOMAINS), domain_called(q, DOMAINS), classes)
        for i, ((s, q), classes) in enumerate(zip(COMBINED, task_classes(), strict=True))
    ]
    return scenario("Office-31 combined", features(), steps, inductive=inductive, seed=seed)
