"""What the studies measure: by hand where it is a rule, end to end on streams that are learned in milliseconds."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import stand_in
import torch
from tiny import TINY, learner_of, three
from torch import tensor

from perdure import Answers, Environment, Query, Scenario, Support, VariationalConfig, VariationalLearner
from perdure.errors import InputError
from perdure.experiments import bound, features
from perdure.experiments.augmentation import FIRST_CLASS, augmentation
from perdure.experiments.features import (
    DRAWN,
    aligned,
    alignment,
    balanced,
    cloud,
    error,
    feature_evaluation,
    learned,
    neighbour_accuracy,
    new_solver,
    same_stream,
    solver_curve,
    thinned,
)
from perdure.experiments.ledger import Place, Planned, Result
from perdure.experiments.methods import LOWER_BOUNDS, continual
from perdure.experiments.studies import STUDIES
from perdure.metrics import accuracy
from perdure.streams import as_labels

CPU = torch.device("cpu")
FOLLOWING = replace(TINY, steps=30, batch=32, solver_rate=0.3)
"""Enough for replay to make a difference."""


@pytest.fixture(autouse=True)
def _little_fitting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(features, "SCORED_AT", (1, 3))
    monkeypatch.setattr(bound, "FIT_STEPS", 3)


@pytest.fixture
def scenario() -> Scenario:
    """Three tiny environments; the query has the support's classes, in its order."""
    environments = three()
    return Scenario("three", environments, Answers({e.name: e.support.y for e in environments if e.support is not None}))


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    """Two of Office-Home's pairs of domains as stand-ins: Ar→Rw, then Ar→Pr."""
    monkeypatch.setenv("PERDURE_DATA", str(stand_in.write(tmp_path)))
    return Place("office_home.domains", ("Ar", ("Rw", "Pr")))


# -- neighbours --------------------------------------------------------------------------------------------------------------


def test_neighbour_accuracy_asks_the_nearest_support_row() -> None:
    x_s, y_s = tensor([[0.0], [10.0]]), tensor([0, 1])
    x_q, y_q = tensor([[1.0], [4.0], [6.0], [11.0]]), tensor([0, 1, 1, 0])  # nearest: 0, 0, 1, 1
    assert neighbour_accuracy(x_s, y_s, x_q, y_q) == 0.5
    assert neighbour_accuracy(x_s, y_s, x_q, tensor([0, 0, 1, 1])) == 1


def test_same_stream_is_one_where_the_streams_lie_apart() -> None:
    assert same_stream(tensor([[0.0], [1.0]]), tensor([[100.0], [101.0]])) == 1


def test_same_stream_is_nought_where_each_row_has_its_twin_in_the_other() -> None:
    x = tensor([[0.0], [10.0], [20.0]])
    assert same_stream(x, x + 1) == 0


def test_same_stream_counts_rows_of_both_streams() -> None:
    # Support 0, 1, 9 and query 10, 30, 31: of 9 and 10 alone the neighbour is of the other stream.
    assert same_stream(tensor([[0.0], [1.0], [9.0]]), tensor([[10.0], [30.0], [31.0]])) == pytest.approx(4 / 6)


def test_same_stream_is_about_a_half_in_one_cloud() -> None:
    x = torch.randn(400, 2, generator=torch.Generator().manual_seed(0))
    assert same_stream(x[:200], x[200:]) == pytest.approx(0.5, abs=0.1)


# -- which rows --------------------------------------------------------------------------------------------------------------


def test_thinned_keeps_the_first_rows_of_each_class_in_their_order() -> None:
    assert thinned(tensor([1, 0, 1, 1, 0, 2]), 2).tolist() == [0, 1, 2, 4, 5]
    assert thinned(tensor([1, 0, 1, 1, 0, 2]), 1).tolist() == [0, 1, 5]


def test_balanced_takes_of_each_class_as_many_as_both_streams_have() -> None:
    # Class 0: 3 and 1; class 1: 1 and 2; class 2 has no query, class 3 no support.
    rows_s, rows_q = balanced(tensor([0, 0, 1, 0, 2]), tensor([1, 3, 0, 1]))
    assert (rows_s.tolist(), rows_q.tolist()) == ([0, 2], [2, 0])


def test_a_cloud_names_the_class_and_the_stream_of_each_point() -> None:
    x = torch.randn(DRAWN + 9, 5, generator=torch.Generator().manual_seed(0))
    y = tensor([0] * (DRAWN + 5) + [1] * 4)
    drawn = cloud([("support", x, y), ("query", x[-6:] + 1, y[-6:])], seed=0)
    assert drawn["classes"] == [0] * DRAWN + [1] * 4 + [0] * 2 + [1] * 4
    assert drawn["streams"] == ["support"] * (DRAWN + 4) + ["query"] * 6
    assert np.array(drawn["points"]).shape == (DRAWN + 10, 2)
    assert drawn == cloud([("support", x, y), ("query", x[-6:] + 1, y[-6:])], seed=0)


def test_a_cloud_keeps_apart_what_lies_apart() -> None:
    x = torch.randn(20, 5, generator=torch.Generator().manual_seed(0))
    y = torch.zeros(20, dtype=torch.int64)
    drawn = cloud([("support", x, y), ("query", x + 50, y)], seed=0)
    points = torch.tensor(drawn["points"])
    assert same_stream(points[:20], points[20:]) == 1


# -- features of a learner ---------------------------------------------------------------------------------------------------


def test_aligned_features_have_the_numbers_of_the_solvers_outputs(scenario: Scenario) -> None:
    learner = learner_of(scenario.environments)
    rows = aligned(learner, scenario, "zoo")
    zoo = scenario.environments[2]
    assert zoo.support is not None
    assert zoo.query is not None
    assert [learner.classes[i] for i in rows.y_s] == zoo.support.y.tolist()
    assert [learner.classes[i] for i in rows.y_q] == scenario.answers.transductive["zoo"].tolist()
    np.testing.assert_array_equal(rows.h_s.numpy(), learner.transform(zoo.support.x, "zoo", stream="support"))
    np.testing.assert_array_equal(rows.h_q.numpy(), learner.transform(zoo.query.x, "zoo"))
    assert learner.solver is not None
    wrong = 1 - accuracy(learner.predict(zoo.query.x, "zoo"), as_labels(scenario.answers.transductive["zoo"]))
    assert error(learner.solver, rows.h_q, rows.y_q) == pytest.approx(wrong, abs=1e-6)


def test_a_learner_is_looked_at_after_each_environment(scenario: Scenario) -> None:
    seen: list[list[str]] = []
    learned(TINY, scenario, "cpu", False, lambda learner: seen.append(learner.environments))
    assert seen == [["clinic"], ["clinic", "farm"], ["clinic", "farm", "zoo"]]


def test_a_new_solver_follows_from_the_seed_and_where_it_is_used() -> None:
    weights = [new_solver(config, 3, CPU, *where).output.weight for config, where in ((TINY, (1,)), (TINY, (1,)), (TINY, (2,)))]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])
    assert not torch.equal(weights[0], new_solver(replace(TINY, seed=1), 3, CPU, 1).output.weight)


@pytest.mark.parametrize("real", [True, False])
def test_only_the_solver_on_real_features_is_trained_on_them(
    scenario: Scenario, monkeypatch: pytest.MonkeyPatch, real: bool
) -> None:
    monkeypatch.setattr(features, "SCORED_AT", (30, 100))
    learner = learner_of(scenario.environments, warm_up=10, steps=20)
    each = [aligned(learner, scenario, name) for name in learner.environments]
    curve = solver_curve(learner, each, real=real)
    assert curve["steps"] == [30, 100]
    misled = [rows._replace(y_s=(rows.y_s + 1) % len(learner.classes)) for rows in each]  # every label of the support is wrong
    assert (solver_curve(learner, misled, real=real)["query"] == curve["query"]) == (not real)
    assert curve["support"][-1] > 0.8


# -- each study, end to end --------------------------------------------------------------------------------------------------


def as_json(numbers: dict[str, Any]) -> dict[str, Any]:
    """What a file of results gives back: only plain values pass."""
    back: dict[str, Any] = json.loads(json.dumps(numbers, allow_nan=False))
    assert back == numbers
    return back


def test_the_study_of_features_measures_both_streams_before_and_after(scenario: Scenario) -> None:
    numbers = as_json(feature_evaluation(TINY, scenario, "cpu", False))
    assert [each["environment"] for each in numbers["environments"]] == ["clinic", "farm", "zoo"]
    learner = learner_of(scenario.environments)
    for environment, found in zip(scenario.environments, numbers["environments"], strict=True):
        assert environment.support is not None
        assert environment.query is not None
        rows = aligned(learner, scenario, environment.name)
        x_s, x_q = torch.from_numpy(environment.support.x), torch.from_numpy(environment.query.x)
        assert found["neighbour accuracy before"] == neighbour_accuracy(x_s, rows.y_s, x_q, rows.y_q)
        assert found["neighbour accuracy after"] == neighbour_accuracy(rows.h_s, rows.y_s, rows.h_q, rows.y_q)
        assert found["same stream before"] == same_stream(x_s, x_q)  # the streams have equally many rows of each class
        assert found["same stream after"] == same_stream(rows.h_s, rows.h_q)
    for when in ("before", "after"):
        assert numbers[when]["streams"] == ["support"] * 20 + ["query"] * 20
        assert sorted(set(numbers[when]["classes"])) == [0, 1]
    for solver in ("solver on real features", "solver on generated features"):
        assert numbers[solver]["steps"] == [1, 3]
        assert all(0 <= value <= 1 for scored in ("support", "query") for value in numbers[solver][scored])


def test_the_study_of_alignment_has_a_stage_for_each_environment(scenario: Scenario) -> None:
    stages = as_json(alignment(TINY, scenario, "cpu", False))["stages"]
    assert [stage["environment"] for stage in stages] == ["clinic", "farm", "zoo"]
    assert [1 + max(stage["classes"]) for stage in stages] == [2, 5, 6]  # the zoo brings back the dog
    learner = learner_of(scenario.environments)
    solved = []
    for environment in scenario.environments:
        assert environment.query is not None
        answers = learner.predict(environment.query.x, environment.name)
        solved.append(accuracy(answers, as_labels(scenario.answers.transductive[environment.name])))
    assert stages[-1]["solver's accuracy"] == pytest.approx(np.mean(solved))


def test_with_and_without_replay_differ_by_nothing_but_replay(home: Place) -> None:
    # Replay that is switched off is no replay: both then have the same weights, batches and solver from the first step on.
    numbers = augmentation(replace(FOLLOWING, replay="none"), home.scenario(inductive=False), "cpu", False)
    for second in numbers["second"]:
        assert second["with replay"] == second["without replay"]


def test_replay_as_augmentation_is_what_learning_one_after_the_other_with_a_new_solver_gives(home: Place) -> None:
    scenario = home.scenario(inductive=False)
    numbers = as_json(augmentation(FOLLOWING, scenario, "cpu", False))
    assert numbers["first"] == "Ar→Rw"
    (found,) = numbers["second"]
    second = scenario.environments[1]
    assert found["environment"] == second.name == "Ar→Pr"
    assert second.query is not None
    for kind, replay in (("with replay", "generative"), ("without replay", "none")):
        learner = VariationalLearner(replace(FOLLOWING, fresh_solver=True, replay=replay))
        for environment in scenario.environments:
            learner.learn(environment, progress=False)
        answers = learner.predict(second.query.x, second.name)
        right = accuracy(answers, as_labels(scenario.answers.transductive[second.name]))
        assert found[kind]["steps"] == [5, 10, 15, 20, 25, 30]
        assert found[kind]["accuracy"][-1] == pytest.approx(right)
    assert found["with replay"]["accuracy"] != found["without replay"]["accuracy"]


@pytest.mark.usefixtures("home")
def test_augmentation_says_how_apart_all_domains_are() -> None:
    place = Place("office_home.domains", ("Ar", ("Rw", "Pr", "Cl")))
    numbers = augmentation(TINY, place.scenario(inductive=False), "cpu", False)
    assert [pair["domains"] for pair in numbers["relation"]] == [
        ["Ar", "Cl"], ["Ar", "Pr"], ["Ar", "Rw"], ["Cl", "Pr"], ["Cl", "Rw"], ["Pr", "Rw"]
    ]  # fmt: skip
    assert numbers["domains"]["class"] == FIRST_CLASS
    assert numbers["domains"]["streams"] == [domain for domain in ("Ar", "Rw", "Pr", "Cl") for _ in range(stand_in.ROWS)]
    # The stand-ins' domains are shifted by about ten times the spread of a class: each row's neighbour is of its own domain.
    assert all(pair["first class"] == pair["all classes"] == 1 for pair in numbers["relation"])


def test_the_first_class_may_be_one_cloud_where_the_others_are_apart() -> None:
    # Domain B has A's rows of the first class a hair away, each the other's nearest, and its own rows of another class far off.
    near, far = np.array([[0.0, 0.0], [9.0, 0.0], [0.0, 9.0]]), np.array([[50.0, 0.0], [51.0, 0.0], [50.0, 1.0]])
    y = np.array([FIRST_CLASS] * 3 + ["Zebra"] * 3)
    a, b = np.concatenate([near, far]), np.concatenate([near + 0.1, -far])
    first = Environment("A→B", Support(a, y), Query(b))
    numbers = augmentation(TINY, Scenario("two domains", [first], Answers({"A→B": y})), "cpu", False)
    assert numbers["relation"] == [{"domains": ["A", "B"], "first class": 0.0, "all classes": 0.5}]
    assert numbers["domains"]["streams"] == ["A"] * 3 + ["B"] * 3


# -- as runs -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("study", ["bound", "features", "alignment"])
def test_a_study_is_a_run_whose_numbers_survive_the_results_file(
    study: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PERDURE_DATA", str(stand_in.write(tmp_path)))
    monkeypatch.setattr(features, "DRAWN", 1)
    planned = Planned(continual(TINY), Place("office31.tasks", ("D", "A")), study=study)
    assert Planned.from_json(planned.to_json()) == planned
    result = planned.carry_out(progress=False)
    assert not result.accuracy
    assert len(result.seconds) == 1
    back = Result.from_json(json.loads(json.dumps(result.to_json(), allow_nan=False)))
    assert back.numbers == result.numbers
    assert len(next(iter(result.numbers.values()))) == 5  # environments or stages


def test_a_study_makes_as_many_updates_as_it_learns_environments() -> None:
    steps = TINY.warm_up + TINY.steps
    tasks, domains = Place("office31.tasks", ("D", "A")), Place("office_home.domains", ("Ar", ("Rw", "Pr", "Cl")))
    for study in ("bound", "features", "alignment"):
        assert Planned(continual(TINY), tasks, study=study).updates == 5 * steps
    assert Planned(continual(TINY), domains, study="augmentation").updates == (1 + 2 * 2) * steps  # each other one twice


def test_a_study_is_another_run_than_its_scores() -> None:
    place = Place("office31.tasks", ("D", "A"))
    studies = [name for name, study in STUDIES.items() if study.kind == "continual"]
    keys = {Planned(continual(TINY), place, study=study).key for study in (None, *studies)}
    assert len(keys) == 1 + len(studies) == len(STUDIES)


@pytest.mark.parametrize("method", [continual(VariationalConfig()), LOWER_BOUNDS["LDA"]], ids=["unknown study", "no learner"])
def test_only_known_studies_of_continual_learners_are_runs(method: Any) -> None:
    study = "dreams" if method.kind == "continual" else "bound"
    with pytest.raises(InputError, match=rf"one of 'bound' of 'continual', .*; got '{study}' of '{method.kind}'"):
        Planned(method, Place("office31.tasks", ("D", "A")), study=study)
