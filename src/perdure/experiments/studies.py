"""Computations that a figure needs beyond accuracies. Their results are plain numbers, kept under a key like any other run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

from perdure.experiments.augmentation import augmentation
from perdure.experiments.bound import bound_terms
from perdure.experiments.features import alignment, feature_evaluation
from perdure.experiments.selection import validated
from perdure.progress import Progress
from perdure.streams import Scenario


class Study(NamedTuple):
    """What is computed, and how many environments it learns of a scenario that has so many."""

    measure: Callable[[Any, Scenario, str, Progress], dict[str, Any]]
    """Configuration of the learner, scenario, device and progress to numbers that JSON can hold."""
    lessons: Callable[[int], int] = int
    kind: Literal["continual", "analytic"] = "continual"
    """Of the methods that it studies."""


STUDIES: Mapping[str, Study] = {
    "bound": Study(bound_terms),
    "features": Study(feature_evaluation),
    "alignment": Study(alignment),
    "augmentation": Study(augmentation, lambda environments: 1 + 2 * (environments - 1)),
    "validators": Study(validated, kind="analytic"),
}
