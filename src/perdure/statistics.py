"""Sums over rows, class by class: all that the analytic learner remembers. They add, subtract and merge."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from perdure.streams import Rows

BLOCK = 4096
"""Rows that are held as float64 at once."""


@dataclass(frozen=True, eq=False)
class Moments:
    r"""Of rows $x$ that belong to class $c$ with weight $r_c$: $\sum r_c$, $\sum r_c\,x$ and $\sum(\sum_c r_c)\,x x^\top$.

    The last is of all classes together, and since it is symmetric only its upper triangle is kept. Everything is float64, so that
    what was added can be subtracted again without a trace above rounding.
    """

    weight: Float[np.ndarray, " classes"]
    sums: Float[np.ndarray, "classes features"]
    second: Float[np.ndarray, " triangle"]

    @classmethod
    def of(cls, x: Rows, belongs: Float[np.ndarray, "n classes"]) -> Moments:
        """The moments of these rows; a row's weights sum to one where it counts once."""
        classes, features = belongs.shape[1], x.shape[1]
        weight, sums, second = np.zeros(classes), np.zeros((classes, features)), np.zeros((features, features))
        for begin in range(0, len(x), BLOCK):
            rows, r = x[begin : begin + BLOCK].astype(np.float64), belongs[begin : begin + BLOCK].astype(np.float64)
            weight += r.sum(axis=0)
            sums += r.T @ rows
            second += (rows * r.sum(axis=1, keepdims=True)).T @ rows
        return cls(weight, sums, packed(second))

    def __add__(self, other: Moments) -> Moments:
        return Moments(self.weight + other.weight, self.sums + other.sums, self.second + other.second)

    def __sub__(self, other: Moments) -> Moments:
        return Moments(self.weight - other.weight, self.sums - other.sums, self.second - other.second)

    def at(self, places: NDArray[np.intp], classes: int) -> Moments:
        """The same among more classes: its own stand at these places."""
        weight, sums = np.zeros(classes), np.zeros((classes, self.features))
        weight[places], sums[places] = self.weight, self.sums
        return replace(self, weight=weight, sums=sums)

    @property
    def features(self) -> int:
        """Length of a row."""
        return int(self.sums.shape[1])

    @property
    def rows(self) -> float:
        """How many there are, counted by weight."""
        return float(self.weight.sum())

    @property
    def mean(self) -> Float[np.ndarray, " features"]:
        """Of all rows."""
        mean: NDArray[np.float64] = self.sums.sum(axis=0) / self.rows
        return mean

    @property
    def means(self) -> Float[np.ndarray, "classes features"]:
        """Of each class; zero where it has no rows."""
        means: NDArray[np.float64] = self.sums / np.where(self.weight > 0, self.weight, 1.0)[:, None]
        return means

    @property
    def spread(self) -> float:
        """Sum of squared distances of the rows from the mean of all."""
        ends = np.cumsum(np.arange(self.features, 0, -1))  # of the rows of the triangle; each begins on the diagonal
        diagonal = self.second[np.concatenate([[0], ends[:-1]])]
        return float(diagonal.sum() - self.sums.sum(axis=0) @ self.mean)

    @property
    def within(self) -> Float[np.ndarray, "features features"]:
        r"""$\sum_c\sum r_c\,(x-m_c)(x-m_c)^\top$: the scatter that is left when each class has its own mean."""
        scatter: NDArray[np.float64] = unpacked(self.second, self.features) - self.sums.T @ self.means
        return scatter

    @property
    def nbytes(self) -> int:
        """What it takes to keep."""
        return self.weight.nbytes + self.sums.nbytes + self.second.nbytes


def sums(x: Rows, belongs: Float[np.ndarray, "n classes"]) -> Float[np.ndarray, "classes features"]:
    """Of the rows of each class, in float64."""
    total = np.zeros((belongs.shape[1], x.shape[1]))
    for begin in range(0, len(x), BLOCK):
        total += belongs[begin : begin + BLOCK].astype(np.float64).T @ x[begin : begin + BLOCK].astype(np.float64)
    return total


def packed(symmetric: Float[np.ndarray, "n n"]) -> Float[np.ndarray, " triangle"]:
    """Its upper triangle, row by row."""
    triangle: NDArray[np.float64] = symmetric[np.triu_indices(len(symmetric))]
    return triangle


def unpacked(triangle: Float[np.ndarray, " triangle"], n: int) -> Float[np.ndarray, "n n"]:
    """The symmetric matrix with this upper triangle."""
    whole = np.zeros((n, n))
    whole[np.triu_indices(n)] = triangle
    whole.T[np.triu_indices(n)] = triangle
    return whole
