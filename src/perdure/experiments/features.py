"""What the features h are worth: are the two streams one cloud, and can generated features stand in for real ones?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from perdure.generative import Rehearsal
from perdure.inference import Stream
from perdure.metrics import accuracy
from perdure.progress import Progress
from perdure.randomness import Batches, Use, initialised_from
from perdure.solver import TwoLayerClassifier
from perdure.streams import Scenario, as_labels
from perdure.variational import VariationalConfig, VariationalLearner

DRAWN = 20
"""At most so many rows of a class and stream are drawn."""
APART = 10_000
"""Lesson numbers from here on belong to studies, so that none draws what a lesson drew."""
SCORED_AT = (5, 10, 20, 40, 80, 150, 300, 500, 750, 1000, 1500)
"""Steps after which a solver is scored."""


class Aligned(NamedTuple):
    """The features of an environment's real rows through its own snapshot. The query's labels only score and colour."""

    h_s: Float[Tensor, "s features"]
    y_s: Int[Tensor, " s"]
    h_q: Float[Tensor, "q features"]
    y_q: Int[Tensor, " q"]


def learned(
    config: VariationalConfig, scenario: Scenario, device: str, progress: Progress, after: Callable[[VariationalLearner], object]
) -> VariationalLearner:
    """A learner that has learned the scenario; `after` is called after each environment."""
    learner = VariationalLearner(config, device=device)
    for environment in scenario.environments:
        learner.learn(environment, progress=progress)
        after(learner)
    return learner


def aligned(learner: VariationalLearner, scenario: Scenario, name: str) -> Aligned:
    """The features of one learned environment; classes are the solver's outputs."""
    (environment,) = (each for each in scenario.environments if each.name == name)
    assert environment.support is not None and environment.query is not None
    place = {label: number for number, label in enumerate(learner.classes)}

    def features(x: Any, stream: Stream) -> Tensor:
        return torch.from_numpy(learner.transform(x, name, stream=stream)).to(learner.device)

    def numbers(labels: Any) -> Tensor:
        return torch.tensor([place[label] for label in as_labels(labels).tolist()], device=learner.device)

    support, query = environment.support, environment.query
    return Aligned(
        features(support.x, "support"),
        numbers(support.y),
        features(query.x, "query"),
        numbers(scenario.answers.transductive[name]),
    )


def new_solver(config: VariationalConfig, classes: int, device: torch.device, *where: int) -> TwoLayerClassifier:
    """An untrained classifier of the solver's architecture."""
    with initialised_from(config.seed, APART, *where):
        return TwoLayerClassifier(config.features, config.width, classes).to(device)


def neighbour_accuracy(
    x_s: Float[Tensor, "s d"], y_s: Int[Tensor, " s"], x_q: Float[Tensor, "q d"], y_q: Int[Tensor, " q"]
) -> float:
    """How many queries have the class of their nearest support row."""
    nearest = torch.cdist(x_q, x_s).argmin(dim=1)
    return float((y_s[nearest] == y_q).float().mean())


def same_stream(x_s: Float[Tensor, "n d"], x_q: Float[Tensor, "n d"]) -> float:
    """How many rows have their nearest neighbour in their own stream, of equally many: 1 if apart, about 1/2 if one cloud."""
    x = torch.cat([x_s, x_q])
    stream = torch.arange(len(x), device=x.device) < len(x_s)
    distances = torch.cdist(x, x)
    distances.fill_diagonal_(torch.inf)
    return float((stream[distances.argmin(dim=1)] == stream).float().mean())


def thinned(y: Int[Tensor, " n"], most: int) -> Int[Tensor, " kept"]:
    """Row numbers: the first `most` of each class."""
    return torch.cat([(y == c).nonzero()[:most, 0] for c in torch.unique(y)]).sort().values


def balanced(y_s: Int[Tensor, " s"], y_q: Int[Tensor, " q"]) -> tuple[Int[Tensor, " n"], Int[Tensor, " n"]]:
    """Row numbers of both streams: of each class as many as both have."""
    pairs = []
    for c in torch.unique(y_s):
        rows_s, rows_q = (y_s == c).nonzero()[:, 0], (y_q == c).nonzero()[:, 0]
        n = min(len(rows_s), len(rows_q))
        pairs.append((rows_s[:n], rows_q[:n]))
    return torch.cat([rows for rows, _ in pairs]), torch.cat([rows for _, rows in pairs])


def embedding(x: Float[np.ndarray, "n d"], seed: int) -> list[list[float]]:
    """t-SNE in the plane, by scikit-learn with its own settings, of the first 50 principal components."""
    from sklearn.decomposition import PCA
    from sklearn.manifold import TSNE

    reduced = PCA(min(50, *x.shape), random_state=seed).fit_transform(x)
    points = TSNE(perplexity=min(30.0, (len(x) - 1) / 3), init="pca", random_state=seed).fit_transform(reduced)
    return [[round(float(a), 2), round(float(b), 2)] for a, b in points]


def cloud(rows: Sequence[tuple[str, Tensor, Tensor]], seed: int) -> dict[str, Any]:
    """Streams as points in the plane: coordinates, the class of each point and its stream by name."""
    kept = [(stream, x[thinned(y, DRAWN)], y[thinned(y, DRAWN)]) for stream, x, y in rows]
    return {
        "points": embedding(torch.cat([x for _, x, _ in kept]).cpu().numpy(), seed),
        "classes": torch.cat([y for _, _, y in kept]).tolist(),
        "streams": [stream for stream, _, y in kept for _ in range(len(y))],
    }


def feature_evaluation(config: VariationalConfig, scenario: Scenario, device: str, progress: Progress) -> dict[str, Any]:
    """Both halves of the paper's figure: the first environment before and after, and a solver on generated or real features."""
    learner = learned(config, scenario, device, progress, lambda _: None)
    each = {name: aligned(learner, scenario, name) for name in learner.environments}
    inputs = {
        environment.name: [torch.from_numpy(np.asarray(half.x, dtype=np.float32)).to(learner.device) for half in halves]
        for environment in scenario.environments
        if (halves := [half for half in (environment.support, environment.query) if half is not None])
    }
    measured = []
    for name, rows in each.items():
        x_s, x_q = inputs[name]
        some_s, some_q = balanced(rows.y_s, rows.y_q)
        measured.append(
            {
                "environment": name,
                "neighbour accuracy before": neighbour_accuracy(x_s, rows.y_s, x_q, rows.y_q),
                "neighbour accuracy after": neighbour_accuracy(rows.h_s, rows.y_s, rows.h_q, rows.y_q),
                "same stream before": same_stream(x_s[some_s], x_q[some_q]),
                "same stream after": same_stream(rows.h_s[some_s], rows.h_q[some_q]),
            }
        )
    first = learner.environments[0]
    rows, (x_s, x_q) = each[first], inputs[first]
    return {
        "environments": measured,
        "before": cloud([("support", x_s, rows.y_s), ("query", x_q, rows.y_q)], config.seed),
        "after": cloud([("support", rows.h_s, rows.y_s), ("query", rows.h_q, rows.y_q)], config.seed),
        "solver on real features": solver_curve(learner, list(each.values()), real=True),
        "solver on generated features": solver_curve(learner, list(each.values()), real=False),
    }


def solver_curve(learner: VariationalLearner, environments: Sequence[Aligned], *, real: bool) -> dict[str, Any]:
    """A new solver over all classes, trained on real support features or on generated ones; both scored on real features."""
    config, classes, device = learner.config, len(learner.classes), learner.device
    h_s, y_s = torch.cat([each.h_s for each in environments]), torch.cat([each.y_s for each in environments])
    rehearsal = Rehearsal(learner.snapshots, "generative", config.batch, classes, config.seed, APART)
    batches = Batches(len(h_s), config.batch, config.seed, Use.SUPPORT_ORDER, APART, device=device)
    solver = new_solver(config, classes, device, 0)
    optimiser = torch.optim.SGD(
        solver.parameters(),
        config.solver_rate,
        momentum=config.momentum,
        nesterov=config.momentum > 0,
        weight_decay=config.weight_decay,
    )
    curve: dict[str, Any] = {"steps": [], "support": [], "query": []}
    for step in range(max(SCORED_AT)):
        if real:
            rows = batches(step)
            loss = F.cross_entropy(solver(h_s[rows]), y_s[rows])
        else:
            replay = rehearsal(step)
            loss = F.cross_entropy(solver(replay.h), replay.labels)
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        if step + 1 in SCORED_AT:
            curve["steps"].append(step + 1)
            curve["support"].append(float(np.mean([1 - error(solver, each.h_s, each.y_s) for each in environments])))
            curve["query"].append(float(np.mean([1 - error(solver, each.h_q, each.y_q) for each in environments])))
    return curve


@torch.no_grad()
def error(classifier: TwoLayerClassifier, h: Float[Tensor, "n features"], y: Int[Tensor, " n"]) -> float:
    """How many rows it answers wrongly."""
    return float((classifier(h).argmax(dim=1) != y).float().mean())


def alignment(config: VariationalConfig, scenario: Scenario, device: str, progress: Progress) -> dict[str, Any]:
    """The features of all environments so far, after each of them."""
    stages = []

    def draw(learner: VariationalLearner) -> None:
        each = [aligned(learner, scenario, name) for name in learner.environments]
        h_s, y_s = torch.cat([a.h_s for a in each]), torch.cat([a.y_s for a in each])
        h_q, y_q = torch.cat([a.h_q for a in each]), torch.cat([a.y_q for a in each])
        some_s, some_q = balanced(y_s, y_q)
        stages.append(
            {
                "environment": learner.environments[-1],
                "neighbour accuracy": neighbour_accuracy(h_s, y_s, h_q, y_q),
                "same stream": same_stream(h_s[some_s], h_q[some_q]),
                "solver's accuracy": float(np.mean([_solved(learner, scenario, name) for name in learner.environments])),
                **cloud([("support", h_s, y_s), ("query", h_q, y_q)], config.seed),
            }
        )

    learned(config, scenario, device, progress, draw)
    return {"stages": stages}


def _solved(learner: VariationalLearner, scenario: Scenario, name: str) -> float:
    (x,) = (each.query.x for each in scenario.environments if each.name == name and each.query is not None)
    truth: NDArray[Any] = as_labels(scenario.answers.transductive[name])
    return accuracy(learner.predict(x, name), truth)
