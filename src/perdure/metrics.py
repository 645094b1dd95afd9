"""What a run is judged by: plain numbers of predictions and held-out labels. No learner ever calls these."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float
from numpy.typing import NDArray

from perdure.errors import InputError
from perdure.streams import Labels


def accuracy(predicted: Labels, truth: Labels) -> float:
    """Fraction of rows that are right."""
    if predicted.shape != truth.shape or predicted.ndim != 1 or len(truth) == 0:
        raise InputError(f"Expected one prediction a label, at least one; got shapes {predicted.shape} and {truth.shape}.")
    if (predicted.dtype.kind == "U") != (truth.dtype.kind == "U"):
        raise InputError(f"Predictions are {predicted.dtype}, labels {truth.dtype}; a string never equals a number.")
    return float((predicted == truth).mean())


def environment_inference_accuracy(inferred: Labels, environment: str) -> float:
    """Fraction of the rows of one environment that were recognised as such."""
    return accuracy(inferred, np.full(len(inferred), environment))


def expected_calibration_error(confidence: Float[np.ndarray, " n"], right: Bool[np.ndarray, " n"], *, bins: int = 15) -> float:
    r"""$\sum_b\frac{n_b}{n}\,|\mathrm{accuracy}_b-\mathrm{confidence}_b|$ over `bins` equal intervals $(\frac{b-1}{B},\frac bB]$.

    0 when, of the answers given with a confidence of 80 %, 80 % are right; and so for every confidence.
    """
    if bins < 1:
        raise InputError(f"`bins` must be at least 1, got {bins}.")
    _check_confidence(confidence, right)
    bin_of = np.ceil(confidence.astype(np.float64) * bins).astype(int).clip(1, bins) - 1
    surplus = np.bincount(bin_of, weights=right.astype(np.float64) - confidence, minlength=bins)
    return float(np.abs(surplus).sum() / len(confidence))


COVERAGES = tuple(tenth / 10 for tenth in range(1, 11))
"""Where a stored coverage–risk curve is read off."""
THRESHOLDS = (0.5, 0.8, 0.9)
"""Values of `abstain_below` that are stored beside it."""
ROUNDING = 1e-9
"""A fraction that is a tenth of the rows but for its last digit is a tenth."""


@dataclass(frozen=True, eq=False)
class CoverageRisk:
    """What leaving unsure rows unanswered is worth: an entry for each confidence that some row has, the surest first.

    A threshold answers all rows of the same confidence or none, so that no order among them has to be made up.
    """

    threshold: Float[np.ndarray, " levels"]
    """From which confidence on a row is answered."""
    coverage: Float[np.ndarray, " levels"]
    """Fraction of the rows that then are; 1 in the end."""
    error: Float[np.ndarray, " levels"]
    """Fraction of these that are wrong."""

    @property
    def area(self) -> float:
        r"""Area under the curve (AURC): $\frac1n\sum_i$ of the error among the rows that are at least as sure as row $i$."""
        return float(np.diff(self.coverage, prepend=0) @ self.error)

    def at_coverage(self, least: float) -> float:
        """Error among as few of the surest rows as are this fraction of all, or more."""
        if not 0 < least <= 1:
            raise InputError(f"`least` must be a fraction of the rows above 0 and at most 1, got {least}.")
        return float(self.error[np.searchsorted(self.coverage, least - ROUNDING)])

    def abstaining(self, below: float) -> tuple[float, float | None]:
        """Fraction of the rows that `predict(..., abstain_below=below)` answers, and their error; `None` if it answers none."""
        answered = int((self.threshold >= below).sum())
        return (float(self.coverage[answered - 1]), float(self.error[answered - 1])) if answered else (0.0, None)

    def to_json(self) -> dict[str, Any]:
        """A few points of the curve and its area: how many points there are does not depend on how many rows."""
        return {
            "coverage": list(COVERAGES),
            "error": [self.at_coverage(coverage) for coverage in COVERAGES],
            "area": self.area,
            "abstain_below": {
                str(below): dict(zip(("coverage", "error"), self.abstaining(below), strict=True)) for below in THRESHOLDS
            },
        }


def coverage_risk(confidence: Float[np.ndarray, " n"], right: Bool[np.ndarray, " n"]) -> CoverageRisk:
    """Error among the rows answered, for every threshold of confidence (Geifman and El-Yaniv, 2017)."""
    _check_confidence(confidence, right)
    levels, level_of = np.unique(confidence, return_inverse=True)
    answered = np.bincount(level_of)[::-1].cumsum()
    wrong = np.bincount(level_of, weights=1.0 - right)[::-1].cumsum()
    return CoverageRisk(levels[::-1], answered / len(confidence), wrong / answered)


def _check_confidence(confidence: NDArray[Any], right: NDArray[Any]) -> None:
    if confidence.shape != right.shape:
        raise InputError(f"Expected a confidence for each answer; got shapes {confidence.shape} and {right.shape}.")
    if len(confidence) == 0 or not ((confidence >= 0) & (confidence <= 1)).all():
        held = f"{confidence.min():.4g} to {confidence.max():.4g}" if len(confidence) else "none"
        raise InputError(f"`confidence` must hold probabilities between 0 and 1, at least one; got {held}.")


@dataclass(frozen=True, eq=False)
class AccuracyMatrix:
    """`values[t, i]`: accuracy on environment `i` after stage `t`; NaN as long as `i` is not learned.

    Every figure but `average_incremental` stands for the end of the run, and counts each environment once, whatever its size.
    """

    environments: tuple[str, ...]
    values: Float[np.ndarray, "stages environments"]

    def __post_init__(self) -> None:
        values = np.array(self.values, dtype=np.float64)
        if values.ndim != 2 or values.shape[1] != len(self.environments) or 0 in values.shape:
            raise InputError(f"Expected a column for each of {len(self.environments)} environments, got shape {values.shape}.")
        there = ~np.isnan(values)
        if not ((values[there] >= 0) & (values[there] <= 1)).all():
            held = f"{values[there].min():.4g} to {values[there].max():.4g}"
            raise InputError(f"Accuracies must lie between 0 and 1, got {held}; divide per cent by 100.")
        if (there[:-1] & ~there[1:]).any():
            raise InputError("An environment that was scored once must be scored at every later stage.")
        if not there[-1].any():
            raise InputError("At the last stage no environment was scored.")
        values.flags.writeable = False
        object.__setattr__(self, "values", values)

    @property
    def final(self) -> Float[np.ndarray, " environments"]:
        """Accuracy on each environment at the end."""
        last: NDArray[np.float64] = self.values[-1]
        return last

    @property
    def when_learned(self) -> Float[np.ndarray, " environments"]:
        """Accuracy on each environment when it was just learned."""
        first: NDArray[np.float64] = self.values[(~np.isnan(self.values)).argmax(axis=0), np.arange(len(self.environments))]
        return first

    @property
    def average(self) -> float:
        """Mean over the environments."""
        return float(np.nanmean(self.final))

    @property
    def average_incremental(self) -> float:
        """Mean over the stages of the mean over the environments learned by then."""
        return float(np.mean([np.nanmean(row) for row in self.values if not np.isnan(row).all()]))

    @property
    def first_task(self) -> float:
        """Accuracy on the environment that was learned first."""
        learned_at = (~np.isnan(self.values)).argmax(axis=0)
        return float(self.final[np.where(np.isnan(self.final), len(self.values), learned_at).argmin()])

    @property
    def worst_environment(self) -> tuple[str, float]:
        """The environment with the lowest accuracy, and that accuracy."""
        worst = int(np.nanargmin(self.final))
        return self.environments[worst], float(self.final[worst])

    @property
    def forgetting(self) -> float:
        r"""Mean over the earlier environments of $\max_{t<T}R_{t,i}-R_{T,i}$: how far below its best each has fallen.

        0 if there is no earlier environment; below 0 where later stages helped.
        """
        earlier = self._earlier
        return float((np.nanmax(self.values[:-1, earlier], axis=0) - self.final[earlier]).mean()) if earlier.any() else 0.0

    @property
    def backward_transfer(self) -> float:
        r"""Mean over the earlier environments of $R_{T,i}-R_{i,i}$: what later stages did to each since it was just learned."""
        earlier = self._earlier
        return float((self.final[earlier] - self.when_learned[earlier]).mean()) if earlier.any() else 0.0

    @property
    def _earlier(self) -> Bool[np.ndarray, " environments"]:
        """Those that were learned before the last stage."""
        earlier: NDArray[np.bool_] = ~np.isnan(self.values[:-1]).all(axis=0)
        return earlier

    def to_json(self) -> dict[str, Any]:
        """The matrix (null where not learned) and its figures."""
        worst, lowest = self.worst_environment
        return {
            "environments": list(self.environments),
            "values": [[None if np.isnan(value) else float(value) for value in row] for row in self.values],
            "average": self.average,
            "average_incremental": self.average_incremental,
            "first_task": self.first_task,
            "forgetting": self.forgetting,
            "backward_transfer": self.backward_transfer,
            "worst_environment": {"environment": worst, "accuracy": lowest},
        }
