"""What every label-free validator says of one configuration of the analytic learner, and what it is worth in truth."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from perdure import validators
from perdure.analytic import AnalyticConfig, AnalyticLearner, prepared
from perdure.metrics import accuracy
from perdure.progress import Progress, progress_bar
from perdure.streams import Environment, Labels, Rows, Scenario, Support, as_labels

EVERY = 5
"""One support row in so many is not learned: of a label that was learned the answer says little."""
BETTER: Mapping[str, int] = {
    "source accuracy": 1,
    "entropy": -1,
    "InfoMax": 1,
    "nuclear norm": 1,
    "SND": 1,
    "ClassAMI": 1,
    "A-distance": -1,
    "MMD": -1,
    "DEV": -1,
}
"""Validator → 1 if more is better, -1 if less is."""


def validated(config: AnalyticConfig, scenario: Scenario, device: str, progress: Progress) -> dict[str, Any]:
    """Learn the scenario, less one support row in five; score it with the query's labels and, apart from that, without.

    The scenario keeps a half of every query aside. Validators see the answers on that half, the environment unknown: of rows that
    were adapted to, a learner that merely remembers them is sure.
    """
    learner, kept = AnalyticLearner(config), dict[str, Support]()
    with progress_bar(progress, "environments", len(scenario.environments), 0) as report:
        for number, environment in enumerate(scenario.environments):
            assert environment.support is not None and environment.query is not None
            learned, kept[environment.name] = parted(environment.support)
            learner.learn(Environment(environment.name, learned, environment.query))
            report(number + 1)
    sets = {
        "transductive": {
            e.name: (e.query.x, as_labels(scenario.answers.transductive[e.name])) for e in scenario.environments if e.query
        },
        "inductive": {name: (rows.x, rows.y) for name, rows in scenario.answers.inductive.items()},
    }
    true = {queries: _accuracies(learner, rows) for queries, rows in sets.items()}
    unseen = {name: x for name, (x, _) in sets["inductive"].items()}
    return {"accuracy": true, "validators": _validators(learner, kept, unseen)}


def parted(support: Support) -> tuple[Support, Support]:
    """What is learned and what is kept aside, class by class alike."""
    aside = np.zeros(len(support.y), dtype=bool)
    for label in support.classes:
        aside[np.flatnonzero(support.y == label)[EVERY - 1 :: EVERY]] = True
    return Support(support.x[~aside], support.y[~aside]), Support(support.x[aside], support.y[aside])


def _accuracies(learner: AnalyticLearner, sets: Mapping[str, tuple[Rows, Labels]]) -> dict[str, float]:
    """Environment given and unknown, the mean over environments."""
    return {
        "given": float(np.mean([accuracy(learner.predict(x, name), y) for name, (x, y) in sets.items()])),
        "unknown": float(np.mean([accuracy(learner.predict(x), y) for x, y in sets.values()])),
    }


def _validators(learner: AnalyticLearner, kept: Mapping[str, Support], unseen: Mapping[str, Rows]) -> dict[str, float]:
    """Those of answers once for all environments, those of two streams the mean over environments."""
    p_q = learner.predict_proba(np.concatenate(list(unseen.values())))
    moved = {name: learner.transform(x, name) for name, x in unseen.items()}
    found = {
        "entropy": validators.entropy(p_q),
        "InfoMax": validators.infomax(p_q),
        "nuclear norm": validators.batch_nuclear_norm(p_q),
        "SND": validators.soft_neighbourhood_density(p_q),
        "ClassAMI": validators.class_ami(p_q, np.concatenate(list(moved.values()))),
    }
    place = {label: number for number, label in enumerate(learner.classes)}
    each: dict[str, list[float]] = {"source accuracy": [], "A-distance": [], "MMD": [], "DEV": []}
    for name, support in kept.items():
        x_s, x_q = prepared(support.x, learner.config.power), moved[name]
        p_s, y_s = learner.predict_proba(support.x), np.array([place[label] for label in support.y.tolist()])
        each["source accuracy"].append(validators.source_accuracy(p_s, y_s))
        each["A-distance"].append(validators.proxy_a_distance(x_s, x_q))
        each["MMD"].append(validators.maximum_mean_discrepancy(x_s, x_q))
        weights = validators.importance_weights(x_s, x_q)
        each["DEV"].append(validators.deep_embedded_validation(validators.log_loss(p_s, y_s), weights))
    return found | {name: float(np.mean(values)) for name, values in each.items()}
