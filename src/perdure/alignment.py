"""From the sums of a labelled support and the rows of an unlabelled query to what class each query row seems to be.

Nothing here has a gradient or a random number. Support enters as `Moments` alone, so it may have arrived long before.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray

from perdure.statistics import Moments, sums
from perdure.streams import Rows

GRAPH_ROWS = 8192
"""Neighbours are looked for among at most so many rows of a query, evenly spread; time grows with n times this."""
MISMATCH = 0.4
"""Class proportions of support and query that are further apart than this are no chance: class sets may not match."""
BLURRED = 0.5
"""An answer whose classes account for less than this part of what another's do does not see classes that are there."""
TIE = 0.02
"""Two answers that misplace the query's rows alike but for this part are equally good; the shorter shift decides."""
NO_SCATTER = 1e-9
"""Scatter within classes of less than this part of their means' squared length, a feature, is rounding."""
COLDEST, WARMEST = 0.1, 100.0
"""Between these a temperature is looked for."""
SPREADING_STEPS = 60
"""At a spread of 0.9 what is left of the error is 0.9^60, less than 0.2 %."""


@dataclass(frozen=True, eq=False)
class Alignment:
    """What the query seems to be: the answer that was adapted, or the source's own where that is the better one."""

    beliefs: Float[np.ndarray, "n classes"]
    shift: Float[np.ndarray, " features"]
    """From where the support lies to where the query does; zero if nothing was adapted."""
    noise: float
    """Expected squared length of what chance adds to that."""
    adapted: bool
    explained: tuple[float, float]
    """What decided: which part of the query's scatter its classes account for, by the source-only and by the adapted answer."""


def align(
    support: Moments,
    x: Rows,
    *,
    prior: float,
    neighbours: int,
    spread: float,
    rounds: int,
    guard: float,
) -> Alignment:
    """Class beliefs of the query's rows `x`, by an LDA that is fitted to both streams in turns with them."""
    own, away = support.means - support.mean, x.mean(axis=0, dtype=np.float64) - support.mean
    rows = x - support.mean.astype(np.float32)
    within = support.within
    # expected squared distance of a row from its class's mean
    a_row = max(float(np.trace(within)), 0.0) / max(support.rows - len(own), 1.0)
    rule = discriminant(own, within, support.rows, prior)
    source = softmax(rows @ rule.weights + rule.offsets)

    about_mean = x - x.mean(axis=0, dtype=np.float64).astype(np.float32)
    # A row should find its neighbours within its class, even if that has half the rows of the others.
    white = whitened(about_mean, factored(own, within, support.rows, prior))
    graph = neighbour_graph(white, min(neighbours, len(x) // (2 * len(own))))
    scatter_q = Moments.of(x, np.ones((len(x), 1))).within
    about_zero = within + (own.T * support.weight) @ own + scatter_q

    def fitted(weight: Float[np.ndarray, " classes"]) -> Fit:
        """Shift and classifier in turns with the beliefs, beginning with classes of these weights in the query."""
        means, scatter, total = own, within, support.rows
        for _ in range(rounds + 1):
            proportions = weight / weight.sum()
            noise = a_row * float(1 / len(x) + (proportions**2 / support.weight).sum())
            shift = shrunk_to_zero(away - proportions @ own, noise)
            aligned = rows - shift.astype(np.float32)
            rule = discriminant(means, scatter, total, prior)
            beliefs = spread_over(graph, softmax(aligned @ rule.weights + rule.offsets), spread)
            belongs = beliefs.astype(np.float64)
            belongs /= belongs.sum(axis=1, keepdims=True)
            weight = belongs.sum(axis=0)
            both = support.weight + weight
            # Rounded to float32, rows whose scatter is small beside their means would leave none, or a negative one.
            moved = sums(x, belongs) - weight[:, None] * (support.mean + shift)
            means = (support.weight[:, None] * own + moved) / both[:, None]
            residue = away - shift
            scatter, total = about_zero + len(x) * np.outer(residue, residue) - (means.T * both) @ means, float(both.sum())
        return Fit(beliefs, weight, shift, noise)

    fit, helps = fitted(support.weight), True
    alone, clear = explained_scatter(source, about_mean), explained_scatter(fit.beliefs, about_mean)
    seen = source.astype(np.float64).sum(axis=0)
    if max(apart(seen, support.weight), apart(fit.weight, support.weight)) > MISMATCH:
        # The query may lack classes, or be mostly one: begin again with classes as the source counts them, and ask which
        # answer puts the classes of the query where those of the support are, but for one shift in common. What an answer does
        # not see of the query's own scatter, and the first one does, counts against it; where the first one finds the support's
        # proportions after all, an answer that sees less than half of that is not asked.
        other = fitted(seen)
        a_length = float(np.square(about_mean).sum(axis=1).mean())
        as_expected = apart(fit.weight, support.weight) <= MISMATCH

        def off(beliefs: Float[np.ndarray, "n classes"]) -> float:
            sees = explained_scatter(beliefs, about_mean)
            if as_expected and sees < BLURRED * clear:
                return float("inf")
            return misplaced(beliefs, rows, own) + max(0.0, clear - sees) * a_length

        of_fit, of_other, of_source = off(fit.beliefs), off(other.beliefs), off(source)
        nearer = of_other < (1 - TIE) * of_fit
        shorter = of_other < (1 + TIE) * of_fit and other.shift @ other.shift < fit.shift @ fit.shift
        if nearer or shorter:
            fit, of_fit = other, of_other
        likeliest = np.eye(len(own), dtype=np.float32)[fit.beliefs.argmax(axis=1)]
        if apart(likeliest.sum(axis=0), support.weight) > MISMATCH:
            # What leaks from a class of many rows would outweigh a class of few: each row counts for its likeliest class alone.
            fit = fit._replace(beliefs=likeliest)
        helps = of_fit < (1 + TIE) * of_source
    explained = (alone, explained_scatter(fit.beliefs, about_mean))
    if not helps or explained[1] < (1 - guard) * explained[0]:
        return Alignment(source, np.zeros_like(fit.shift), 0.0, False, explained)
    return Alignment(fit.beliefs, fit.shift, fit.noise, True, explained)


class Fit(NamedTuple):
    """Where one set of first proportions has led."""

    beliefs: Float[np.ndarray, "n classes"]
    weight: Float[np.ndarray, " classes"]
    """Of each class in the query: how many rows it seems to have."""
    shift: Float[np.ndarray, " features"]
    noise: float
    """Expected squared length of what chance adds to the shift."""


def apart(one: Float[np.ndarray, " classes"], other: Float[np.ndarray, " classes"]) -> float:
    """How far the proportions of two sets of class weights are apart: from 0 to 1 (total variation)."""
    return float(np.abs(one / one.sum() - other / other.sum()).sum() / 2)


class Sureness(NamedTuple):
    """How sure a classifier of one environment may be, as far as that shows without a label of its query."""

    right: float
    """How often it is right on rows that it has not seen, among the environment's own classes."""
    temperature: float
    """What its scores are divided by to be that sure."""


def sureness(support: Moments, x: Rows, aligned: Alignment, *, prior: float, support_weight: float) -> Sureness:
    """A classifier of the support and half of the query answers the other half, and the other way round.

    How often that is right lies between two numbers of the alignment, which has seen those rows and their neighbours: its mean
    belief in the answers, which is low because beliefs are spread, and how often its likeliest class is the answer, which is high
    because it errs, too. It is taken for the middle of the two, and the mean probability is made as high.
    """
    first = np.zeros(len(x), dtype=bool)
    first[evenly_ordered(x)[::2]] = True
    within, scores = support.within, np.empty_like(aligned.beliefs)
    for learned in (first, ~first):
        query = Moments.of(x[learned], aligned.beliefs[learned])
        weight = support_weight * support.weight + query.weight
        means = (support_weight * (support.sums + support.weight[:, None] * aligned.shift) + query.sums) / weight[:, None]
        rule = discriminant(means, within + query.within, support.rows + query.rows, prior)
        scores[~learned] = x[~learned] @ rule.weights + rule.offsets
    answers = scores.argmax(axis=1)
    believed = float(aligned.beliefs[np.arange(len(x)), answers].mean())
    right = (believed + float((aligned.beliefs.argmax(axis=1) == answers).mean())) / 2
    low, high = np.log(COLDEST), np.log(WARMEST)
    for _ in range(20):
        middle = (low + high) / 2
        sure = float(softmax(scores / np.float32(np.exp(middle))).max(axis=1).mean())
        low, high = (middle, high) if sure > right else (low, middle)
    return Sureness(right, float(np.exp((low + high) / 2)))


class Discriminant(NamedTuple):
    """Scores of a row are `x @ weights + offsets`, one for each mean; a constant away from their log densities."""

    weights: Float[np.ndarray, "features means"]
    offsets: Float[np.ndarray, " means"]


def discriminant(
    means: Float[np.ndarray, "means features"], scatter: Float[np.ndarray, "features features"], rows: float, prior: float
) -> Discriminant:
    r"""LDA with the matrix $A$ of `factored`: weights $A^{-1}m$, offsets $-\frac12 m^\top A^{-1}m$."""
    factor = factored(means, scatter, rows, prior)
    weights: NDArray[np.float64] = torch.cholesky_solve(torch.from_numpy(means.T.copy()), factor).numpy()
    return Discriminant(weights.astype(np.float32), (-(means.T * weights).sum(axis=0) / 2).astype(np.float32))


def factored(
    means: Float[np.ndarray, "means features"], scatter: Float[np.ndarray, "features features"], rows: float, prior: float
) -> torch.Tensor:
    r"""The Cholesky factor of $A=\frac{S+\kappa d\,\sigma^2I}{n+\kappa d}$ with $\sigma^2=\frac{\mathrm{tr}S}{nd}$.

    As if `prior` rows a feature, alike in all directions, had been seen beside the n rows whose scatter about their means is S.
    """
    d = len(scatter)
    # Means of one row each leave no scatter but rounding: then the nearest mean is meant, in numbers that float32 can hold.
    level = max(float(np.trace(scatter)) / rows / d, NO_SCATTER * float(np.square(means).sum(axis=1).max()), NO_SCATTER**2)
    shrunk = scatter / (rows + prior * d)
    shrunk[np.diag_indices(d)] += level * prior * d / (rows + prior * d)
    # torch's Cholesky: ten times as fast as SciPy's at 2,048 features
    factor: torch.Tensor = torch.linalg.cholesky(torch.from_numpy(shrunk))
    return factor


def whitened(rows: Float[np.ndarray, "n features"], factor: torch.Tensor) -> Float[np.ndarray, "n features"]:
    r"""$L^{-1}x$ with $LL^\top=A$: what rows of one class differ in counts less."""
    white = torch.linalg.solve_triangular(factor.float(), torch.from_numpy(rows).T, upper=False).T.numpy()
    return np.ascontiguousarray(white)


def shrunk_to_zero(shift: Float[np.ndarray, " features"], noise: float) -> Float[np.ndarray, " features"]:
    r"""$\left(1-\frac{\mathrm{noise}}{\lVert\delta\rVert^2}\right)_+\delta$ (James and Stein).

    A shift no longer than chance would make it is none.
    """
    length = float(shift @ shift)
    shrunk: NDArray[np.float64] = max(0.0, 1 - noise / length) * shift if length > 0 else shift
    return shrunk


def neighbour_graph(about_mean: Float[np.ndarray, "n features"], neighbours: int) -> Any:
    r"""$D^{-1/2}AD^{-1/2}$, sparse: each row with the rows most alike by cosine, weighed by its cube."""
    from scipy import sparse

    n = len(about_mean)
    if neighbours == 0:
        return sparse.csr_matrix((n, n), dtype=np.float32)
    unit = about_mean / np.maximum(np.linalg.norm(about_mean, axis=1, keepdims=True), np.finfo(np.float32).tiny)
    among = evenly_spread(unit, GRAPH_ROWS)
    k = min(neighbours, len(among) - 1)
    to, cosine = np.empty((n, k), dtype=np.intp), np.empty((n, k), dtype=np.float32)
    of_row = np.full(n, -1)
    of_row[among] = np.arange(len(among))
    for begin in range(0, n, 1024):
        block = slice(begin, begin + 1024)
        similarity = unit[block] @ unit[among].T
        (itself,) = np.nonzero(of_row[block] >= 0)
        similarity[itself, of_row[block][itself]] = -2
        nearest = np.argpartition(-similarity, k - 1, axis=1)[:, :k]
        to[block], cosine[block] = among[nearest], np.take_along_axis(similarity, nearest, axis=1)
    ties = sparse.csr_matrix((cosine.clip(0).ravel() ** 3, to.ravel(), np.arange(0, n * k + 1, k)), shape=(n, n))
    ties = ties.maximum(ties.T)
    scale = sparse.diags(1 / np.sqrt(np.maximum(np.asarray(ties.sum(axis=1)).ravel(), np.finfo(np.float32).tiny)))
    return (scale @ ties @ scale).tocsr()


def evenly_spread(unit: Float[np.ndarray, "n features"], most: int) -> Int[np.ndarray, " some"]:
    """At most so many rows, evenly spaced along one fixed direction, so that the order of the rows does not matter."""
    if len(unit) <= most:
        return np.arange(len(unit))
    chosen: NDArray[np.intp] = np.sort(evenly_ordered(unit)[np.linspace(0, len(unit) - 1, most, dtype=np.intp)])
    return chosen


def evenly_ordered(x: Rows) -> Int[np.ndarray, " n"]:
    """The rows along one fixed direction: an order that is theirs, whatever order they came in."""
    direction = np.random.default_rng(0).normal(size=(x.shape[1],)).astype(np.float32)
    return np.argsort(x @ direction, kind="stable")


def spread_over(graph: Any, beliefs: Float[np.ndarray, "n classes"], spread: float) -> Float[np.ndarray, "n classes"]:
    r"""$(I-aS)^{-1}p$ with rows that sum to one: each row believes what its neighbours do (label spreading, Zhou et al. 2004)."""
    spreading = beliefs
    for _ in range(SPREADING_STEPS):
        spreading = beliefs + spread * (graph @ spreading)
    normalised: NDArray[np.float32] = spreading / spreading.sum(axis=1, keepdims=True)
    return normalised


def explained_scatter(beliefs: Float[np.ndarray, "n classes"], about_mean: Float[np.ndarray, "n features"]) -> float:
    """Which part of the rows' squared length their classes' means account for, when each row is in its likeliest class."""
    answer = np.eye(beliefs.shape[1], dtype=np.float32)[beliefs.argmax(axis=1)]
    weight, sums = answer.sum(axis=0), answer.T @ about_mean
    there = weight > 0
    return float((sums[there] ** 2 / weight[there, None]).sum() / np.square(about_mean).sum())


def misplaced(
    beliefs: Float[np.ndarray, "n classes"], rows: Float[np.ndarray, "n features"], means: Float[np.ndarray, "classes features"]
) -> float:
    """Mean squared distance of the rows from their likeliest classes' means, once these have moved together as is best."""
    away = rows - means.astype(np.float32)[beliefs.argmax(axis=1)]
    return float(np.square(away - away.mean(axis=0)).sum(axis=1).mean())


def softmax(scores: Float[np.ndarray, "n classes"]) -> Float[np.ndarray, "n classes"]:
    """Along the classes."""
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    normalised: NDArray[np.float32] = powers / powers.sum(axis=1, keepdims=True)
    return normalised
