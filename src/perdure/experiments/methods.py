"""The rows of the paper's tables: what learns, with which configuration, and how it is measured."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from perdure.analytic import AnalyticConfig, AnalyticLearner
from perdure.errors import InputError, NotSolvableYet, UnknownEnvironment
from perdure.experiments.backbones import BACKBONES, BackboneName
from perdure.experiments.lower_bounds import lda, nearest_class_mean, source_only
from perdure.experiments.runner import PROTOCOLS, Learner, Run, held_out, run
from perdure.metrics import accuracy, coverage_risk, expected_calibration_error
from perdure.progress import Progress
from perdure.settings import settings_to_json
from perdure.streams import Environment, Labels, Query, Rows, Scenario, Support, as_labels
from perdure.variational import VariationalConfig, VariationalLearner

Kind = Literal["continual", "split", "joint", "analytic", "source-only", "nearest class mean", "LDA"]
ANALYTIC_REVISION = 2
"""Raise it when a change to the analytic learner changes its numbers; those of trained methods stay."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What a data set and a budget decide, for every method alike."""

    features: int
    """Dimensions of h."""
    gamma: float
    """Margin of the discrepancy."""
    steps: int
    """Updates of all three modules, an environment."""
    warm_up: int
    """Updates of the inference module alone before those."""
    joint_steps: int
    """The same for joint training, which has one environment."""
    hypothesis_rate: float = 4e-4
    """Learning rate of f and f'."""
    inference_rate: float = 1e-4
    """Learning rate of the inference module."""

    def of(self, config: VariationalConfig, *, joint: bool = False) -> VariationalConfig:
        """The configuration here. One without warm-up gets as many updates in all."""
        steps = self.joint_steps if joint else self.steps
        warm_up, steps = (self.warm_up, steps) if config.warm_up else (0, self.warm_up + steps)
        return replace(
            config,
            features=self.features,
            gamma=self.gamma,
            hypothesis_rate=self.hypothesis_rate,
            inference_rate=self.inference_rate,
            warm_up=warm_up,
            steps=steps,
        )


@dataclass(frozen=True)
class Method:
    """A row of a table. Without a configuration to train with it is deterministic: the analytic learner, or a lower bound."""

    kind: Kind
    config: VariationalConfig | None = None
    backbone: BackboneName | None = None
    """The network that is trained along, from scratch or fine-tuned; `None`: inputs are features of a frozen one."""
    analytic: AnalyticConfig | None = None
    """Of the analytic learner."""

    def __post_init__(self) -> None:
        if (self.config is None) == (self.kind in ("continual", "split", "joint")):
            raise InputError(f"A {self.kind!r} method needs {'a' if self.config is None else 'no'} configuration.")
        if (self.analytic is None) == (self.kind == "analytic"):
            raise InputError(f"A {self.kind!r} method needs {'an' if self.analytic is None else 'no'} analytic configuration.")
        if self.backbone is not None and self.backbone not in BACKBONES:
            raise InputError(f"No backbone is called {self.backbone!r}. Known: {', '.join(BACKBONES)}.")
        if self.backbone is not None and self.config is None:
            raise InputError(f"A {self.kind!r} method trains nothing, so it has no use for the backbone {self.backbone!r}.")

    def at(self, setting: Setting, seed: int) -> Method:
        """The method with the setting and the seed of a run."""
        if self.config is None:
            return self
        return replace(self, config=replace(setting.of(self.config, joint=self.kind == "joint"), seed=seed))

    @property
    def orderless(self) -> bool:
        """Whether what it has learned at the end is the same whatever the order of the environments."""
        return self.kind != "continual"

    def updates(self, environments: int) -> int:
        """How many updates it makes, for progress and for what to run first."""
        if self.config is None:
            return 0
        return (self.config.warm_up + self.config.steps) * (1 if self.kind == "joint" else environments)

    def learner(self, environments: int, device: str) -> Learner:
        """A new learner for a scenario of so many environments."""
        if self.kind == "source-only":
            return source_only()
        if self.kind == "nearest class mean":
            return nearest_class_mean()
        if self.kind == "LDA":
            return lda()
        if self.analytic is not None:
            return AnalyticLearner(self.analytic)
        assert self.config is not None
        new = partial(VariationalLearner, self.config, backbone=self.backbone and BACKBONES[self.backbone], device=device)
        if self.kind == "split":
            return OneForEach(new)
        if self.kind == "joint":
            return AllAtOnce(new(), environments)
        return new()

    def to_json(self) -> dict[str, Any]:
        """What tells it from every other method."""
        config = None if self.config is None else settings_to_json(self.config)
        analytic = {} if self.analytic is None else {"analytic": asdict(self.analytic), "revision": ANALYTIC_REVISION}
        return {"kind": self.kind, "config": config, **({} if self.backbone is None else {"backbone": self.backbone}), **analytic}


def continual(config: VariationalConfig, *, backbone: BackboneName | None = None) -> Method:
    """One learner for all environments, one after another."""
    return Method("continual", config, backbone)


def upper_bound(config: VariationalConfig, *, backbone: BackboneName | None = None) -> Method:
    """The paper's upper bound (task split, domain split): a learner for each environment, which nothing can make forget."""
    return Method("split", config, backbone)


def joint_training(config: VariationalConfig) -> Method:
    """One environment with the data of all."""
    return Method("joint", config)


LOWER_BOUNDS = {name: Method(name) for name in ("source-only", "nearest class mean", "LDA")}
"""On the support alone."""
ANALYTIC = {"analytic learner": Method("analytic", analytic=AnalyticConfig())}
"""The closed form beside the paper's."""
UNTRAINED = {**ANALYTIC, **LOWER_BOUNDS}
"""All that need no seed."""


class OneForEach:
    """A new learner for every environment. Its answers are among that environment's classes, so it must be told which."""

    def __init__(self, new: Callable[[], VariationalLearner]) -> None:
        self._new = new
        self._learners: dict[str, VariationalLearner] = {}

    @property
    def environments(self) -> list[str]:
        """The learned environments."""
        return list(self._learners)

    @property
    def bytes_held(self) -> dict[str, int]:
        """What each keeps."""
        return {name: sum(learner.bytes_held.values()) for name, learner in self._learners.items()}

    def learn(self, environment: Environment, *, progress: Progress = None) -> None:
        """Learn it apart from all others."""
        learner = self._new()
        learner.learn(environment, progress=progress)
        self._learners[environment.name] = learner

    def predict(self, x: Rows, environment: str | None = None) -> Labels:
        """The class of each row by that environment's own learner."""
        if environment is None:
            raise NotSolvableYet("A learner for each environment must be told the environment.")
        if environment not in self._learners:
            raise UnknownEnvironment(f'No environment is called "{environment}". Learned so far: {self.environments}.')
        return self._learners[environment].predict(x, environment)


class AllAtOnce:
    """Waits until all environments are there, then learns them as one."""

    name = "all at once"

    def __init__(self, learner: VariationalLearner, environments: int) -> None:
        self._learner, self._expected = learner, environments
        self._waiting: list[Environment] = []

    @property
    def environments(self) -> list[str]:
        """All of them, once they are learned."""
        return [environment.name for environment in self._waiting] if self._learner.environments else []

    @property
    def bytes_held(self) -> dict[str, int]:
        """What the one environment keeps."""
        return self._learner.bytes_held

    def learn(self, environment: Environment, *, progress: Progress = None) -> None:
        """Keep it; with the last one, learn."""
        self._waiting.append(environment)
        if len(self._waiting) == self._expected:
            self._learner.learn(_merged(self.name, self._waiting), progress=progress)

    def predict(self, x: Rows, environment: str | None = None) -> Labels:
        """The class of each row among all; the environment is not asked for."""
        return self._learner.predict(x, self.name)


def _merged(name: str, environments: Sequence[Environment]) -> Environment:
    supports = [environment.support for environment in environments if environment.support is not None]
    queries = [environment.query for environment in environments if environment.query is not None]
    support = Support(np.concatenate([each.x for each in supports]), np.concatenate([each.y for each in supports]))
    return Environment(name, support, Query(np.concatenate([each.x for each in queries])))


@dataclass(frozen=True, eq=False)
class Measured:
    """A run, and what its learner kept."""

    run: Run
    own: dict[str, float]
    """Environment → accuracy of its snapshot's own f, among its own classes, on the queries that were adapted to."""
    bytes: int
    """All that the learner holds at the end."""
    calibration: dict[str, float]
    """Protocol → expected calibration error at the end, over the rows of all environments; of the analytic learner."""
    coverage: dict[str, dict[str, Any]]
    """Protocol → what leaving its unsure rows unanswered is worth: points of the coverage–risk curve over the same rows."""


def measure(method: Method, scenario: Scenario, *, device: str = "cpu", progress: Progress = None) -> Measured:
    """Run it with every protocol it can answer: the environment given after each stage, unknown at the end."""
    learner = method.learner(len(scenario.environments), device)
    given = [protocol for protocol in PROTOCOLS if protocol.environment == "given"]
    unknown = [protocol for protocol in PROTOCOLS if protocol.environment == "unknown"]
    once = method.orderless  # nothing changes what it has learned: the last stage says it all
    measured = run(
        scenario,
        learner,
        name=method.kind,
        progress=progress,
        every_stage=[] if once else given,
        last_stage=[*(given if once else []), *([] if method.kind == "split" else unknown)],
    )
    own = _own_accuracy(learner, scenario) if isinstance(learner, VariationalLearner) else {}
    held = learner.bytes_held if isinstance(learner, (VariationalLearner, AnalyticLearner, OneForEach, AllAtOnce)) else {}
    answered = _answered(learner, scenario) if isinstance(learner, AnalyticLearner) else {}
    calibration = {protocol: expected_calibration_error(*rows) for protocol, rows in answered.items()}
    coverage = {protocol: coverage_risk(*rows).to_json() for protocol, rows in answered.items()}
    return Measured(measured, own, sum(held.values()), calibration, coverage)


def _answered(learner: AnalyticLearner, scenario: Scenario) -> dict[str, tuple[NDArray[np.float32], NDArray[np.bool_]]]:
    """Under every protocol, how sure the learner is of each row and whether it is right."""
    classes, found = np.array(learner.classes), {}
    for queries, sets in held_out(scenario).items():
        for given in (True, False):
            sure, right = [], []
            for name, (x, truth) in sets.items():
                proba = learner.predict_proba(x, name if given else None)
                sure.append(proba.max(axis=1))
                right.append(classes[proba.argmax(axis=1)] == truth)
            protocol = f"environment {'given' if given else 'unknown'}, {queries}"
            found[protocol] = np.concatenate(sure), np.concatenate(right)
    return found


def _own_accuracy(learner: VariationalLearner, scenario: Scenario) -> dict[str, float]:
    """What the alignment reached, before the one solver: nothing in it but the snapshot's own networks."""
    if learner.config.snapshot != "full":
        return {}
    queries = {environment.name: environment.query for environment in scenario.environments}
    own = {}
    for snapshot in learner.snapshots:
        query = queries[snapshot.environment]
        assert query is not None and snapshot.generate is not None
        h = learner.transform(query.x, snapshot.environment)
        with torch.no_grad():
            answers = snapshot.generate.hypothesis(torch.from_numpy(h).to(learner.device)).argmax(dim=1)
        labels = np.array(learner.classes)[snapshot.classes[answers].cpu().numpy()]
        own[snapshot.environment] = accuracy(labels, as_labels(scenario.answers.transductive[snapshot.environment]))
    return own
