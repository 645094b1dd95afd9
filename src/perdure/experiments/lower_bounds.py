"""Lower bounds: classifiers that learn from the support alone and never adapt to a query."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike, NDArray

from perdure.errors import InputError, NotSolvableYet, UnknownEnvironment
from perdure.progress import Progress
from perdure.streams import Environment, Label, Labels, Rows, as_rows

Scores: TypeAlias = Callable[[Rows], Float[np.ndarray, "n classes"]]
"""From rows to one score a class, the classes in sorted order; the highest is the answer."""
Fit: TypeAlias = Callable[[Rows, Labels], Scores]


def source_only() -> SupportOnly:
    """Logistic regression on all support seen so far."""
    return SupportOnly(logistic_regression)


def nearest_class_mean() -> SupportOnly:
    """The class whose mean over all support seen so far is nearest."""
    return SupportOnly(distance_to_class_means)


def lda() -> SupportOnly:
    """Linear discriminant analysis, with a shrunk covariance (Ledoit-Wolf), on all support seen so far."""
    return SupportOnly(linear_discriminant)


class SupportOnly:
    """Keeps all support and fits one classifier to it; never looks at a query before it has to answer it.

    A generous reading of a lower bound: what it keeps, a continual learner may not, and so it forgets nothing. What it
    lacks is adaptation. With the environment given it chooses among the classes of that environment's support, otherwise among
    all classes seen so far.
    """

    def __init__(self, fit: Fit) -> None:
        self._fit = fit
        self._scores: Scores | None = None
        self._x: list[Rows] = []
        self._y: list[Labels] = []
        self._own: dict[str, list[Label]] = {}

    @property
    def environments(self) -> list[str]:
        """The learned environments, in the order they were learned."""
        return list(self._own)

    @property
    def classes(self) -> list[Label]:
        """Every class seen so far, sorted."""
        return sorted({label for own in self._own.values() for label in own})

    def learn(self, environment: Environment, *, progress: Progress = None) -> None:
        """Keep the support. The classifier is fitted when it is first asked."""
        name, support = environment.name, environment.support
        if name in self._own:
            raise InputError(f'Environment "{name}" is learned already. Give the new data a new name.')
        if support is None:
            raise InputError(f'Environment "{name}" has no support, and this learner learns from nothing else.')
        if self._x and support.x.shape[1:] != self._x[0].shape[1:]:
            raise InputError(
                f'Rows of the support of "{name}" have shape {support.x.shape[1:]}, earlier ones {self._x[0].shape[1:]}.'
            )
        if self._y and (support.y.dtype.kind == "U") != (self._y[0].dtype.kind == "U"):
            raise InputError(
                f'The labels of "{name}" are {support.y.dtype}, earlier ones {self._y[0].dtype}; use one kind throughout.'
            )
        self._own[name] = support.classes
        self._x.append(support.x)
        self._y.append(support.y)
        self._scores = None

    def predict(self, x: ArrayLike, environment: str | None = None) -> Labels:
        """The class of each row: among the environment's, or, if that is unknown, among all seen so far."""
        if not self._own:
            raise NotSolvableYet("Nothing has been learned yet. Give support to `learn(...)`.")
        if environment is not None and environment not in self._own:
            raise UnknownEnvironment(f'No environment is called "{environment}". Learned so far: {self.environments}.')
        rows = as_rows(x, "query")
        if rows.shape[1:] != self._x[0].shape[1:]:
            raise InputError(f"Rows of the query have shape {rows.shape[1:]}, what was learned has {self._x[0].shape[1:]}.")
        classes = np.array(self.classes)
        among = np.arange(len(classes)) if environment is None else np.searchsorted(classes, self._own[environment])
        if len(among) == 1:
            return np.repeat(classes[among], len(rows))
        if self._scores is None:
            self._scores = self._fit(_as_vectors(np.concatenate(self._x)), np.concatenate(self._y))
        answers: Labels = classes[among[self._scores(_as_vectors(rows))[:, among].argmax(axis=1)]]
        return answers


def _as_vectors(x: Rows) -> Rows:
    """Pictures as their pixels."""
    return x.reshape(len(x), -1).astype(np.float32, copy=False)


def logistic_regression(x: Rows, y: Labels) -> Scores:
    """Multinomial, with scikit-learn's default penalty."""
    from sklearn.linear_model import LogisticRegression

    # One scale for all features: the penalty then means the same whatever their unit, and their proportions stay.
    mean, scale = x.mean(axis=0), x.std() or 1.0
    fitted = LogisticRegression(max_iter=1000).fit((x - mean) / scale, y)

    def scores(rows: Rows) -> Float[np.ndarray, "n classes"]:
        decision: NDArray[np.floating] = fitted.decision_function((rows - mean) / scale)
        # scikit-learn gives two classes one column, positive for the second.
        return decision if decision.ndim == 2 else np.stack([-decision, decision], axis=1)

    return scores


def distance_to_class_means(x: Rows, y: Labels) -> Scores:
    """Minus half the squared distance to each class mean, less what all classes share."""
    means = np.stack([x[y == label].mean(axis=0) for label in np.unique(y)])
    return lambda rows: rows @ means.T - (means**2).sum(axis=1) / 2


def linear_discriminant(x: Rows, y: Labels) -> Scores:
    """Gaussian classes with one covariance, shrunk."""
    from sklearn.covariance import ledoit_wolf

    labels, index, counts = np.unique(y, return_inverse=True, return_counts=True)
    x = x.astype(np.float64)
    means = np.stack([x[index == i].mean(axis=0) for i in range(len(labels))])
    covariance, _ = ledoit_wolf(x - means[index], assume_centered=True)
    weights = np.linalg.solve(covariance, means.T)
    offsets = np.log(counts / len(y)) - (means.T * weights).sum(axis=0) / 2
    return lambda rows: rows @ weights + offsets
