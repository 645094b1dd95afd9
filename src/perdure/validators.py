r"""Label-free validators: which of several adapted classifiers is best, without a label of the query.

Pure functions of arrays. `p` are probabilities, `x` rows of features; `_s` is support and `_q` is query. Each says which way is
better and where it comes from. None of them is a proof that a classifier is right about the query.
Those that need labels take the support's, as columns of `p_s`, and mean what they say only on rows that were not trained on.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import NDArray

from perdure.errors import InputError

BLOCK = 1024
"""Rows whose distances to all others are held at once, so that memory grows with n and not with n²."""
SUM_TOLERANCE = 1e-3
"""How far a row of float32 probabilities may be from summing to one."""


# -- of the query's probabilities -------------------------------------------------------------------------------------------


def entropy(p_q: Float[np.ndarray, "n classes"]) -> float:
    r"""$E_q[H(p)]$ in nats: how unsure the answers are. Lower is better (Grandvalet & Bengio 2004; Morerio et al. 2018).

    Blind to the classifier that puts every row confidently into one class; `infomax` is not.
    """
    return float(_entropies(_probabilities(p_q)).mean())


def infomax(p_q: Float[np.ndarray, "n classes"]) -> float:
    r"""$H(E_q[p])-E_q[H(p)]$ in nats: mutual information of row and answer. Higher is better (Shi & Sha 2012).

    Rewards answers that are sure one by one and spread over the classes as a whole, so it assumes classes of like size.
    """
    p = _probabilities(p_q)
    return float(_entropies(p.mean(axis=0, keepdims=True))[0] - _entropies(p).mean())


def batch_nuclear_norm(p_q: Float[np.ndarray, "n classes"]) -> float:
    r"""$\lVert P\rVert_*/n$, the sum of singular values (BNM, Cui et al. 2020). Higher is better.

    Grows when answers get surer and when they get more diverse. It falls with $n$: compare models on the same rows only.
    """
    p = _probabilities(p_q)
    return float(np.linalg.svd(p, compute_uv=False).sum() / len(p))


def soft_neighbourhood_density(p_q: Float[np.ndarray, "n classes"], *, temperature: float = 0.05) -> float:
    r"""Mean entropy of each row's similarities to all others (SND, Saito et al. 2021). Higher is better.

    $s_{ij}=\mathrm{softmax}_{j\ne i}(\hat p_i\cdot\hat p_j/\tau)$ with rows of length one: high where rows have many neighbours
    that are answered alike, and highest of all when every row is. Time grows with n²; take a sample of a large query.
    """
    if temperature <= 0:
        raise InputError(f"`temperature` must be positive, got {temperature}.")
    p = _probabilities(p_q)
    if len(p) < 3:
        raise InputError(f"Neighbourhoods need at least three rows, got {len(p)}.")
    unit = p / np.linalg.norm(p, axis=1, keepdims=True)
    total = 0.0
    for begin in range(0, len(unit), BLOCK):
        block = unit[begin : begin + BLOCK]
        similarity = block @ unit.T / temperature
        similarity[np.arange(len(block)), begin + np.arange(len(block))] = -np.inf
        weight = np.exp(similarity - similarity.max(axis=1, keepdims=True))
        total += float(_entropies(weight / weight.sum(axis=1, keepdims=True)).sum())
    return total / len(unit)


def class_ami(p_q: Float[np.ndarray, "n classes"], x_q: Float[np.ndarray, "n features"], *, seed: int = 0) -> float:
    """Adjusted mutual information of answers and k-means clusters of the features, as many as classes.

    Higher is better (ClassAMI, Musgrave et al. 2022). 1: the answers are the clusters; 0: no more alike than by chance. `x_q` are
    the features that the classifier sees; with those of a frozen backbone the clusters are the same for every classifier.
    """
    from sklearn.cluster import KMeans
    from sklearn.metrics import adjusted_mutual_info_score

    p, x = _probabilities(p_q), _rows(x_q, "x_q")
    if len(x) < p.shape[1]:
        raise InputError(f"{p.shape[1]} clusters need as many rows, got {len(x)}.")
    clusters = KMeans(p.shape[1], n_init=3, random_state=seed).fit_predict(x)
    return float(adjusted_mutual_info_score(clusters, p.argmax(axis=1)))


# -- of both streams' features ----------------------------------------------------------------------------------------------


def proxy_a_distance(
    x_s: Float[np.ndarray, "s features"], x_q: Float[np.ndarray, "q features"], *, folds: int = 2, seed: int = 0
) -> float:
    r"""$2(1-2\epsilon)$, $\epsilon$ the held-out error of a linear classifier of the two streams. Lower is better.

    Ben-David et al. 2006. 2: told apart without error; 0: not at all. The error counts both streams alike, whatever their sizes.
    """
    x_s, x_q = _streams(x_s, x_q)
    of_query = np.repeat([False, True], [len(x_s), len(x_q)])
    called_query = _log_odds_of_query(x_s, x_q, folds, seed) > 0
    error = (np.mean(called_query[~of_query]) + np.mean(~called_query[of_query])) / 2
    return float(np.clip(2 * (1 - 2 * error), 0, 2))


def maximum_mean_discrepancy(
    x_s: Float[np.ndarray, "s features"], x_q: Float[np.ndarray, "q features"], *, bandwidth: float | None = None
) -> float:
    r"""Unbiased estimate of the squared MMD with a Gaussian kernel (Gretton et al. 2012, eq. 3). Lower is better.

    $k(a,b)=\exp(-\lVert a-b\rVert^2/2\sigma^2)$; $\sigma$ is `bandwidth`, or the median distance among at most 1,024 rows of
    each stream. Below 0 now and then where the streams are alike. To compare features of different scale leave `bandwidth` out.
    """
    x_s, x_q = _streams(x_s, x_q)
    if len(x_s) < 2 or len(x_q) < 2:
        raise InputError(f"Each stream needs at least two rows, got {len(x_s)} and {len(x_q)}.")
    sigma = _median_distance(x_s, x_q) if bandwidth is None else bandwidth
    if not sigma > 0:
        raise InputError(f"`bandwidth` must be positive, got {sigma}; the median distance is 0 where most rows are equal.")
    n_s, n_q = len(x_s), len(x_q)
    within_s = (_kernel_sum(x_s, x_s, sigma) - n_s) / (n_s * (n_s - 1))
    within_q = (_kernel_sum(x_q, x_q, sigma) - n_q) / (n_q * (n_q - 1))
    return float(within_s + within_q - 2 * _kernel_sum(x_s, x_q, sigma) / (n_s * n_q))


# -- of the support's labels ------------------------------------------------------------------------------------------------


def source_accuracy(p_s: Float[np.ndarray, "n classes"], y_s: Int[np.ndarray, " n"]) -> float:
    """Fraction of support rows answered right. Higher is better. On rows that were not trained on."""
    p, y = _labelled(p_s, y_s)
    return float((p.argmax(axis=1) == y).mean())


def log_loss(p_s: Float[np.ndarray, "n classes"], y_s: Int[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
    r"""$-\log p(y)$ of each support row: what the risks below weigh. At most 27.6, where $p(y)\le10^{-12}$."""
    p, y = _labelled(p_s, y_s)
    loss: NDArray[np.float64] = -np.log(p[np.arange(len(y)), y].clip(1e-12))
    return loss


def importance_weights(
    x_s: Float[np.ndarray, "s features"], x_q: Float[np.ndarray, "q features"], *, folds: int = 2, seed: int = 0
) -> Float[np.ndarray, " s"]:
    r"""$w(x)=p_q(x)/p_s(x)$ at each support row, from a logistic classifier of the two streams (Bickel et al. 2007).

    $w=\frac{n_s}{n_q}\frac{P(q|x)}{P(s|x)}$, each row's by a classifier that was not fitted to it. Mean 1 if that is right.
    """
    x_s, x_q = _streams(x_s, x_q)
    weights: NDArray[np.float64] = np.exp(_log_odds_of_query(x_s, x_q, folds, seed)[: len(x_s)])
    return weights


def importance_weighted_risk(loss: Float[np.ndarray, " n"], weights: Float[np.ndarray, " n"]) -> float:
    r"""$E_s[w\,\ell]$, an estimate of the risk on the query (IWCV, Sugiyama et al. 2007). Lower is better.

    Right where the label given x is the same in both streams; noisy where few rows carry the weight: `deep_embedded_validation`.
    """
    loss, weights = _weighted(loss, weights)
    return float((weights * loss).mean())


def deep_embedded_validation(loss: Float[np.ndarray, " n"], weights: Float[np.ndarray, " n"]) -> float:
    r"""The importance-weighted risk with the weights as control variate (DEV, You et al. 2019). Lower is better.

    $E[w\ell]+\eta\,(E[w]-1)$ with $\eta=-\mathrm{Cov}(w\ell,w)/\mathrm{Var}(w)$: since $E[w]=1$, this takes from the risk what it
    owes to weights that are too large or too small on average. Below 0 now and then.
    """
    loss, weights = _weighted(loss, weights)
    weighted = weights * loss
    variance = weights.var()
    eta = -((weighted - weighted.mean()) * (weights - weights.mean())).mean() / variance if variance > 0 else 0.0
    return float(weighted.mean() + eta * (weights.mean() - 1))


# -- what they share --------------------------------------------------------------------------------------------------------


def _entropies(p: Float[np.ndarray, "n classes"]) -> Float[np.ndarray, " n"]:
    entropies: NDArray[np.float64] = -(p * np.log(np.where(p > 0, p, 1.0))).sum(axis=1)
    return entropies


def _log_odds_of_query(
    x_s: Float[np.ndarray, "s features"], x_q: Float[np.ndarray, "q features"], folds: int, seed: int
) -> Float[np.ndarray, " both"]:
    """Of support and then query rows, as if both streams were of one size; each by a classifier fitted to the other folds."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import StratifiedKFold, cross_val_predict

    if folds < 2:
        raise InputError(f"`folds` must be at least 2, so that no row judges itself; got {folds}.")
    if min(len(x_s), len(x_q)) < folds:
        raise InputError(f"{folds} folds need as many rows of each stream, got {len(x_s)} and {len(x_q)}; set `folds` lower.")
    x = np.concatenate([x_s, x_q])
    # One scale for all features together: the penalty then means the same whatever unit they come in.
    x = (x - x.mean(axis=0)) / max(float(np.sqrt(x.var(axis=0).mean())), np.finfo(np.float64).tiny)
    of_query = np.repeat([0, 1], [len(x_s), len(x_q)])
    # Balanced, its odds are the ratio of the densities: the n_s / n_q of the formula is in it.
    classifier = LogisticRegression(class_weight="balanced", max_iter=1000)
    splits = StratifiedKFold(folds, shuffle=True, random_state=seed)
    log_odds: NDArray[np.float64] = cross_val_predict(classifier, x, of_query, cv=splits, method="decision_function")
    return log_odds


def _kernel_sum(a: Float[np.ndarray, "a features"], b: Float[np.ndarray, "b features"], sigma: float) -> float:
    squares = (_squared_distances(a[begin : begin + BLOCK], b) for begin in range(0, len(a), BLOCK))
    return sum(float(np.exp(-square / (2 * sigma**2)).sum()) for square in squares)


def _median_distance(x_s: Float[np.ndarray, "s features"], x_q: Float[np.ndarray, "q features"]) -> float:
    some = np.concatenate([x[np.linspace(0, len(x) - 1, min(len(x), BLOCK)).astype(int)] for x in (x_s, x_q)])
    above = np.triu_indices(len(some), k=1)
    return float(np.sqrt(np.median(_squared_distances(some, some)[above])))


def _squared_distances(a: Float[np.ndarray, "a features"], b: Float[np.ndarray, "b features"]) -> Float[np.ndarray, "a b"]:
    squares: NDArray[np.float64] = (a**2).sum(axis=1)[:, None] + (b**2).sum(axis=1) - 2 * a @ b.T
    return squares.clip(0)


def _probabilities(p: Float[np.ndarray, "n classes"]) -> Float[np.ndarray, "n classes"]:
    if p.ndim != 2 or len(p) == 0:
        raise InputError(
            f"Probabilities must have a row for each example, at least one, and a column for each class; got {p.shape}."
        )
    if p.shape[1] < 2:
        raise InputError(f"Probabilities of one class say nothing; give at least two columns, got shape {p.shape}.")
    p = p.astype(np.float64)
    off = ~((p >= 0).all(axis=1) & (np.abs(p.sum(axis=1) - 1) <= SUM_TOLERANCE))
    if off.any():
        first = int(off.argmax())
        raise InputError(
            f"{int(off.sum())} of {len(p)} rows are not probabilities (row {first} sums to {p[first].sum():.4g}, "
            f"its least value is {p[first].min():.4g}); apply a softmax to logits first."
        )
    normalised: NDArray[np.float64] = p / p.sum(axis=1, keepdims=True)
    return normalised


def _rows(x: Float[np.ndarray, "n features"], name: str) -> Float[np.ndarray, "n features"]:
    if x.ndim != 2 or 0 in x.shape:
        raise InputError(f"`{name}` must have a row for each example and a column for each feature, at least one; got {x.shape}.")
    if not np.isfinite(x).all():
        bad = int((~np.isfinite(x).all(axis=1)).sum())
        raise InputError(f"`{name}` holds NaN or infinite values in {bad} of {len(x)} rows; drop or impute them.")
    return x.astype(np.float64)


def _streams(
    x_s: Float[np.ndarray, "s features"], x_q: Float[np.ndarray, "q features"]
) -> tuple[Float[np.ndarray, "s features"], Float[np.ndarray, "q features"]]:
    return _rows(x_s, "x_s"), _rows(x_q, "x_q")


def _labelled(
    p_s: Float[np.ndarray, "n classes"], y_s: Int[np.ndarray, " n"]
) -> tuple[Float[np.ndarray, "n classes"], Int[np.ndarray, " n"]]:
    p = _probabilities(p_s)
    if y_s.min() < 0 or y_s.max() >= p.shape[1]:
        raise InputError(f"`y_s` must be columns of `p_s`, 0 to {p.shape[1] - 1}; got {y_s.min()} to {y_s.max()}.")
    return p, y_s


def _weighted(
    loss: Float[np.ndarray, " n"], weights: Float[np.ndarray, " n"]
) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, " n"]]:
    if len(loss) == 0 or not (np.isfinite(loss).all() and np.isfinite(weights).all() and (weights >= 0).all()):
        raise InputError("Losses must be finite and weights finite and not negative, at least one of each.")
    return loss.astype(np.float64), weights.astype(np.float64)
