"""The runner: order, protocols, and nothing but the truth in the matrices."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from perdure import (
    Answers,
    Environment,
    Query,
    Scenario,
    Support,
    VariationalConfig,
    VariationalLearner,
    generative_replay,
    naive_baseline,
)
from perdure.experiments import PROTOCOLS, Protocol, run
from perdure.progress import Progress

GIVEN, GIVEN_ASIDE, UNKNOWN, UNKNOWN_ASIDE = PROTOCOLS
SMALL = {"latent": 4, "features": 8, "width": 8, "warm_up": 2, "steps": 3}


def scenario(*, inductive: bool = True) -> Scenario:
    """Two environments of two classes. A row is (class, is it kept aside)."""
    environments, transductive, kept_aside = [], {}, {}
    for name, labels in (("first", [0, 0, 0, 1]), ("second", [2, 3, 3, 3])):
        y = np.array(labels)
        rows, aside = (np.stack([y, np.full(4, kept)], axis=1).astype(np.float32) for kept in (0, 1))
        environments.append(Environment(name, Support(rows, y), Query(rows)))
        transductive[name] = y
        kept_aside[name] = Support(aside, y)
    return Scenario("two and two", environments, Answers(transductive, kept_aside if inductive else {}))


class Known:
    """Answers by a rule of its own, so that every entry of the matrices is known beforehand."""

    def __init__(
        self, rule: Callable[[np.ndarray, str | None, list[str]], np.ndarray], learns: tuple[str, ...] = ("first", "second")
    ):
        self.rule, self.learns = rule, learns
        self.environments: list[str] = []
        self.seen: list[Environment] = []
        self.progress: list[Progress] = []

    def learn(self, environment: Environment, *, progress: Progress = None) -> None:
        self.seen.append(environment)
        self.progress.append(progress)
        if environment.name in self.learns:
            self.environments = [*self.environments, environment.name]

    def predict(self, x: np.ndarray, environment: str | None = None) -> np.ndarray:
        return self.rule(x, environment, self.environments)


def right_where_told(x: np.ndarray, environment: str | None, learned: list[str]) -> np.ndarray:
    """Told the environment: right, but later only for the newest. Not told: always 3. Kept-aside rows: the lower class."""
    y = x[:, 0].astype(int)
    if environment is None:
        return np.full(len(x), 3)
    if x[0, 1] == 1:
        return np.full(len(x), y.min())
    return y if environment == learned[-1] else y + 10


def test_every_protocol_has_the_matrix_it_should() -> None:
    result = run(scenario(), Known(right_where_told))
    nan = np.nan
    expected = {
        GIVEN: [[1, nan], [0, 1]],
        GIVEN_ASIDE: [[0.75, nan], [0.75, 0.25]],
        UNKNOWN: [[0, nan], [0, 0.75]],
        UNKNOWN_ASIDE: [[0, nan], [0, 0.75]],
    }
    assert result.accuracy.keys() == expected.keys() == set(PROTOCOLS)
    for protocol, values in expected.items():
        np.testing.assert_array_equal(result.accuracy[protocol].values, values, err_msg=str(protocol))
        assert result.accuracy[protocol].environments == ("first", "second")


def test_protocols_say_what_they_are() -> None:
    assert [str(protocol) for protocol in PROTOCOLS] == [
        "environment given, transductive",
        "environment given, inductive",
        "environment unknown, transductive",
        "environment unknown, inductive",
    ]


def test_learner_receives_the_environments_in_order_and_no_answers() -> None:
    learner, given = Known(right_where_told), scenario()
    run(given, learner, progress=False)
    assert learner.seen == list(given.environments)
    assert learner.progress == [False, False]


def test_without_rows_kept_aside_only_the_transductive_protocols_are_scored() -> None:
    result = run(scenario(inductive=False), Known(right_where_told))
    assert set(result.accuracy) == {Protocol("given", "transductive"), Protocol("unknown", "transductive")}


def test_an_environment_that_could_not_be_learned_yet_is_not_scored() -> None:
    result = run(scenario(), Known(right_where_told, learns=("second",)))
    np.testing.assert_array_equal(result.accuracy[GIVEN].values, [[np.nan, np.nan], [np.nan, 1]])


def test_result_is_json() -> None:
    entry = json.loads(json.dumps(run(scenario(), Known(right_where_told), name="known").to_json(), allow_nan=False))
    assert entry["learner"] == "known"
    assert entry["scenario"] == "two and two"
    assert entry["selection"] == "last step"
    assert entry["accuracy"]["environment given, transductive"]["values"] == [[1.0, None], [0.0, 1.0]]
    assert entry["accuracy"]["environment given, transductive"]["forgetting"] == 1.0
    assert entry["inference_accuracy"] == {}
    assert len(entry["seconds"]) == 2
    assert all(seconds >= 0 for seconds in entry["seconds"])


def test_a_learner_is_called_by_its_type_unless_named() -> None:
    assert run(scenario(), Known(right_where_told)).learner == "Known"


def test_scores_are_those_of_the_learner_that_comes_out() -> None:
    learner, given = VariationalLearner(replace(generative_replay(), **SMALL)), scenario()
    result = run(given, learner, progress=False)
    assert learner.environments == ["first", "second"]
    for i, environment in enumerate(given.environments):
        name, truth = environment.name, given.answers.transductive[environment.name]
        assert result.accuracy[GIVEN].final[i] == (learner.predict(environment.query.x, name) == truth).mean()
        assert result.accuracy[UNKNOWN].final[i] == (learner.predict(environment.query.x) == truth).mean()
        aside = given.answers.inductive[name]
        assert result.accuracy[GIVEN_ASIDE].final[i] == (learner.predict(aside.x, name) == aside.y).mean()
    recognised = [(learner.inferred_environment(e.query.x).names == e.name).mean() for e in given.environments]
    assert result.inference_accuracy["transductive"] == pytest.approx(np.mean(recognised))
    assert set(result.inference_accuracy) == {"transductive", "inductive"}


def test_a_learner_without_snapshots_is_scored_all_the_same() -> None:
    config: VariationalConfig = replace(naive_baseline(), **SMALL)
    result = run(scenario(), VariationalLearner(config), progress=False)
    assert result.inference_accuracy == {}
    assert not np.isnan(result.accuracy[UNKNOWN].final).any()
