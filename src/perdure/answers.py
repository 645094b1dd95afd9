"""What a learner answers beside class names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class InferredEnvironment:
    """Where each input seems to come from."""

    names: NDArray[Any]
    confidence: NDArray[np.float32]
    """Probability of the named one."""
    probabilities: Float[np.ndarray, "n environments"]
    """Columns in the order of `learner.environments`."""
