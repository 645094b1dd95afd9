"""Runs a learner through a scenario and scores it under every protocol."""

from __future__ import annotations

import time
import typing
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np

from perdure.answers import InferredEnvironment
from perdure.errors import NotSolvableYet
from perdure.metrics import AccuracyMatrix, accuracy, environment_inference_accuracy
from perdure.progress import Progress
from perdure.streams import Environment, Labels, Rows, Scenario, as_labels


class Learner(typing.Protocol):
    """What the runner needs of a learner."""

    @property
    def environments(self) -> list[str]:
        """The learned environments."""

    def learn(self, environment: Environment, *, progress: Progress = None) -> object:
        """Learn one environment."""

    def predict(self, x: Rows, environment: str | None = None) -> Labels:
        """The class of each row; `None` where the environment is unknown."""


class Protocol(NamedTuple):
    """Under what conditions a number was measured. No figure is printed without."""

    environment: Literal["given", "unknown"]
    """Whether `predict` is told which environment a row belongs to."""
    queries: Literal["transductive", "inductive"]
    """Scored on the very queries that were adapted to, or on those kept aside."""

    def __str__(self) -> str:
        return f"environment {self.environment}, {self.queries}"


HeldOut: TypeAlias = Mapping[str, Mapping[str, tuple[Rows, Labels]]]
"""What is scored: "transductive" or "inductive" → environment → rows and their answers."""
PROTOCOLS = tuple(
    Protocol(environment, queries) for environment in ("given", "unknown") for queries in ("transductive", "inductive")
)


@dataclass(frozen=True, eq=False)
class Run:
    """One learner on one scenario, scored with the weights of its last step: nothing was selected."""

    learner: str
    scenario: str
    accuracy: Mapping[Protocol, AccuracyMatrix]
    """Without the inductive protocols if the scenario keeps no queries aside."""
    inference_accuracy: Mapping[str, float]
    """"transductive" and "inductive" → fraction of rows whose environment was recognised at the end, averaged over the
    environments; empty if the learner does not infer it."""
    seconds: tuple[float, ...]
    """Learning time of each stage."""

    def to_json(self) -> dict[str, Any]:
        """Plain values for a ledger."""
        return {
            "learner": self.learner,
            "scenario": self.scenario,
            "selection": "last step",
            "accuracy": {str(protocol): matrix.to_json() for protocol, matrix in self.accuracy.items()},
            "inference_accuracy": dict(self.inference_accuracy),
            "seconds": list(self.seconds),
        }


def run(
    scenario: Scenario,
    learner: Learner,
    *,
    name: str | None = None,
    progress: Progress = None,
    every_stage: Collection[Protocol] = PROTOCOLS,
    last_stage: Collection[Protocol] = (),
) -> Run:
    """Learn the environments in order; after each, score all learned ones.

    `name` is what the learner is called in tables; `progress` is passed on to `learn`. Protocols of `last_stage` are scored
    once, at the end: the cost of an unknown environment grows with the square of their number.
    """
    names = tuple(environment.name for environment in scenario.environments)
    scored = held_out(scenario)
    asked = [protocol for protocol in PROTOCOLS if protocol in every_stage or protocol in last_stage]
    values = {protocol: np.full((len(names), len(names)), np.nan) for protocol in asked if protocol.queries in scored}
    seconds = []
    for stage, environment in enumerate(scenario.environments):
        began = time.perf_counter()
        learner.learn(environment, progress=progress)
        seconds.append(time.perf_counter() - began)
        known = set(learner.environments)
        for protocol, matrix in values.items():
            if protocol not in every_stage and stage < len(names) - 1:
                continue
            for i, name_i in enumerate(names):
                if name_i in known and name_i in scored[protocol.queries]:
                    x, truth = scored[protocol.queries][name_i]
                    matrix[stage, i] = accuracy(learner.predict(x, name_i if protocol.environment == "given" else None), truth)
    return Run(
        learner=name or type(learner).__name__,
        scenario=scenario.name,
        accuracy={protocol: AccuracyMatrix(names, matrix) for protocol, matrix in values.items()},
        inference_accuracy=_inference_accuracy(learner, scored),
        seconds=tuple(seconds),
    )


def held_out(scenario: Scenario) -> HeldOut:
    """What a scenario's learners are scored on."""
    answers = scenario.answers
    adapted = {e.name: (e.query.x, as_labels(answers.transductive[e.name])) for e in scenario.environments if e.query is not None}
    kept_aside = {name: (rows.x, rows.y) for name, rows in answers.inductive.items()}
    return {"transductive": adapted, **({"inductive": kept_aside} if kept_aside else {})}


@typing.runtime_checkable
class InfersEnvironments(typing.Protocol):
    """A learner that says where a row seems to come from."""

    def inferred_environment(self, x: Rows) -> InferredEnvironment:
        """The environment of each row; raises `NotSolvableYet` where it is not set up to tell."""


def _inference_accuracy(learner: Learner, scored: HeldOut) -> dict[str, float]:
    if not isinstance(learner, InfersEnvironments):
        return {}
    known = set(learner.environments)
    try:
        return {
            queries: float(
                np.mean(
                    [
                        environment_inference_accuracy(learner.inferred_environment(x).names, name)
                        for name, (x, _) in rows.items()
                        if name in known
                    ]
                )
            )
            for queries, rows in scored.items()
        }
    except NotSolvableYet:  # it keeps no encoders
        return {}
