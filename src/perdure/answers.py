"""What a learner answers beside class names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from perdure.errors import InputError


@dataclass(frozen=True, eq=False)
class InferredEnvironment:
    """Where each input seems to come from."""

    names: NDArray[Any]
    confidence: NDArray[np.float32]
    """Probability of the named one."""
    probabilities: Float[np.ndarray, "n environments"]
    """Columns in the order of `learner.environments`."""


def abstaining(classes: NDArray[Any], probabilities: Float[np.ndarray, "n classes"], below: float | None) -> NDArray[Any]:
    """The likeliest class of each row; with `below`, `None` where it is not as likely as that."""
    answers: NDArray[Any] = classes[probabilities.argmax(axis=1)]
    if below is None:
        return answers
    if not 0 <= below <= 1:
        raise InputError(f"`abstain_below` must be a probability between 0 and 1, got {below}.")
    answers = answers.astype(object)
    answers[probabilities.max(axis=1) < below] = None
    return answers
