"""Replay as augmentation: does what was learned of one query domain help with the next, the classes being the same?"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from itertools import combinations
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from perdure.experiments.features import balanced, cloud, error, same_stream
from perdure.generative import ReplayKind
from perdure.progress import Progress, progress_bar
from perdure.scenarios import office_home
from perdure.streams import Environment, Scenario, as_labels
from perdure.variational import VariationalConfig, VariationalLearner

FIRST_CLASS = office_home.TASKS[0][0]
"""Of the supplement's class order; the paper shows its features in all domains."""
CURVE_POINTS = 6
"""How often a query is scored while it is learned, once the solver is."""


def augmentation(config: VariationalConfig, scenario: Scenario, device: str, progress: Progress) -> dict[str, Any]:
    """Learn the first environment, then each other one right after it, with replay of the first and without.

    The two start from the same weights and see the same batches, and the solver is a new one (`fresh_solver`): they differ by
    the replayed features alone.
    """
    first, *others = scenario.environments
    learner = VariationalLearner(replace(config, fresh_solver=True), device=device)
    learner.learn(first, progress=progress)
    found = []
    for second in others:
        curves = {}
        kinds: dict[str, ReplayKind] = {"without replay": "none", "with replay": config.replay}
        for name, replay in kinds.items():
            follower = copy.deepcopy(learner)
            follower.config = replace(learner.config, replay=replay)
            curves[name] = _curve(follower, second, scenario, progress)
        found.append({"environment": second.name, **curves})
    rows = _rows_by_domain(scenario)
    return {"first": first.name, "second": found, "domains": _domains(rows, config.seed), "relation": _relation(rows)}


def _curve(learner: VariationalLearner, environment: Environment, scenario: Scenario, progress: Progress) -> dict[str, Any]:
    """Learn it; the accuracy on its query, with the environment given, while learning and at the last step."""
    assert environment.query is not None
    config = learner.config
    truth = as_labels(scenario.answers.transductive[environment.name]).tolist()
    x = torch.from_numpy(environment.query.x).to(learner.device)
    every = max(1, config.steps // CURVE_POINTS)
    curve: dict[str, Any] = {"steps": [], "accuracy": []}
    y: torch.Tensor | None = None

    def score(step: int, total: int, report: Callable[[int], object]) -> None:
        nonlocal y
        report(step)
        done = step - config.warm_up
        if done <= 0 or (done % every and done < config.steps):
            return
        inference, solver = learner.inference, learner.solver
        assert inference is not None and solver is not None
        if y is None:
            place = {label: number for number, label in enumerate(learner.classes)}
            y = torch.tensor([place[label] for label in truth], device=learner.device)
        inference.eval()
        with torch.no_grad():
            curve["accuracy"].append(1 - error(solver, inference(x), y))
        inference.train()
        curve["steps"].append(done)

    with progress_bar(progress, environment.name, config.warm_up + config.steps, 0) as report:
        learner.learn(environment, progress=lambda step, total: score(step, total, report))
    return curve


def _rows_by_domain(scenario: Scenario) -> dict[str, tuple[Float[Tensor, "n features"], list[Any]]]:
    """Domain → its rows as they come, with their classes: the support's, then the queries'."""
    first = scenario.environments[0]
    assert first.support is not None
    support, _ = first.name.split("→")
    rows = {support: (torch.from_numpy(first.support.x), first.support.y.tolist())}
    for environment in scenario.environments:
        assert environment.query is not None
        truth = as_labels(scenario.answers.transductive[environment.name]).tolist()
        rows[environment.name.split("→")[1]] = (torch.from_numpy(environment.query.x), truth)
    return rows


def _domains(rows: dict[str, tuple[Float[Tensor, "n features"], list[Any]]], seed: int) -> dict[str, Any]:
    """The first class in every domain: the paper's estimate of how domains are related."""
    chosen = [(name, x[torch.tensor([label == FIRST_CLASS for label in y])]) for name, (x, y) in rows.items()]
    return {"class": FIRST_CLASS, **cloud([(name, x, torch.zeros(len(x), dtype=torch.int64)) for name, x in chosen], seed)}


def _relation(rows: dict[str, tuple[Float[Tensor, "n features"], list[Any]]]) -> list[dict[str, Any]]:
    """How apart every two domains are, class by class equally many rows of both."""
    place = {label: number for number, label in enumerate(sorted({label for _, y in rows.values() for label in y}))}
    found = []
    for (a, (x_a, labels_a)), (b, (x_b, labels_b)) in combinations(sorted(rows.items()), 2):
        y_a, y_b = (torch.tensor([place[label] for label in labels]) for labels in (labels_a, labels_b))
        some_a, some_b = balanced(y_a, y_b)
        of_first = y_a[some_a] == place[FIRST_CLASS]
        found.append(
            {
                "domains": [a, b],
                "first class": same_stream(x_a[some_a[of_first]], x_b[some_b[of_first]]),
                "all classes": same_stream(x_a[some_a], x_b[some_b]),
            }
        )
    return found
