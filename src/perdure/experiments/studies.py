"""Computations that a figure needs beyond accuracies. Their results are plain numbers, kept under a key like any other run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from perdure.experiments.augmentation import augmentation
from perdure.experiments.bound import bound_terms
from perdure.experiments.features import alignment, feature_evaluation
from perdure.progress import Progress
from perdure.streams import Scenario
from perdure.variational import VariationalConfig


class Study(NamedTuple):
    """What is computed, and how many environments it learns of a scenario that has so many."""

    measure: Callable[[VariationalConfig, Scenario, str, Progress], dict[str, Any]]
    """Configuration, scenario, device and progress to numbers that JSON can hold."""
    lessons: Callable[[int], int] = int


STUDIES: Mapping[str, Study] = {
    "bound": Study(bound_terms),
    "features": Study(feature_evaluation),
    "alignment": Study(alignment),
    "augmentation": Study(augmentation, lambda environments: 1 + 2 * (environments - 1)),
}
