"""The rows of the paper's tables: what learns, from which data, with how many updates, and under which protocols it is scored."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import stand_in
import torch
from tiny import TINY, anatomy, assert_same, differences, gaussians, three

from perdure import (
    AnalyticLearner,
    Answers,
    Environment,
    Query,
    Scenario,
    Support,
    VariationalConfig,
    VariationalLearner,
    baseline_2,
    baseline_3,
    generative_replay,
    memory_replay,
    naive_baseline,
    noise_replay,
    optimal_baseline,
)
from perdure.errors import InputError, NotSolvableYet, UnknownEnvironment
from perdure.experiments import PROTOCOLS, SupportOnly
from perdure.experiments.methods import (
    ANALYTIC,
    LOWER_BOUNDS,
    AllAtOnce,
    Method,
    OneForEach,
    Setting,
    continual,
    joint_training,
    measure,
    upper_bound,
)
from perdure.progress import Progress
from perdure.scenarios import office31, office_home

GIVEN, GIVEN_ASIDE, UNKNOWN, UNKNOWN_ASIDE = PROTOCOLS
SETTING = Setting(features=24, gamma=2.0, warm_up=30, steps=70, joint_steps=200, hypothesis_rate=0.5)
ALL = {
    "ours": generative_replay(),
    "memory": memory_replay(),
    "noise": noise_replay(),
    "optimal": optimal_baseline(),
    "baseline 2": baseline_2(),
    "baseline 3": baseline_3(),
    "naive": naive_baseline(),
}
WITHOUT_WARM_UP = {"baseline 2", "baseline 3", "naive"}


@pytest.fixture
def _features(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stand-ins for the stored features."""
    monkeypatch.setenv("PERDURE_DATA", str(stand_in.write(tmp_path)))


class Noting:
    """In place of a learner: notes what it is given."""

    def __init__(self) -> None:
        self.bytes_held = {"all": 7}
        self.learned: list[Environment] = []
        self.asked: list[str | None] = []

    @property
    def environments(self) -> list[str]:
        return [environment.name for environment in self.learned]

    def learn(self, environment: Environment, *, progress: Progress = None) -> None:
        self.learned.append(environment)

    def predict(self, x: Any, environment: str | None = None) -> Any:
        self.asked.append(environment)
        return np.zeros(len(x), dtype=int)


# -- what learns -------------------------------------------------------------------------------------------------------------


def test_joint_training_learns_once_from_all_data_in_order() -> None:
    noting, environments = Noting(), three()
    joint: Any = AllAtOnce(noting, 3)  # type: ignore[arg-type]
    for number, environment in enumerate(environments):
        assert noting.learned == []
        assert joint.environments == []
        joint.learn(environment)
        assert len(noting.learned) == (number == 2)
    (whole,) = noting.learned
    assert whole.support is not None
    assert whole.query is not None
    np.testing.assert_array_equal(whole.support.x, np.concatenate([e.support.x for e in environments]))
    np.testing.assert_array_equal(whole.support.y, np.concatenate([e.support.y for e in environments]))
    np.testing.assert_array_equal(whole.query.x, np.concatenate([e.query.x for e in environments]))
    assert joint.environments == ["clinic", "farm", "zoo"]
    joint.predict(whole.query.x[:2], "farm")
    joint.predict(whole.query.x[:2])
    assert noting.asked == [whole.name, whole.name]  # the one environment that there is
    assert joint.bytes_held == {"all": 7}


def test_joint_training_answers_among_all_classes_whatever_the_environment() -> None:
    joint = joint_training(TINY).learner(3, "cpu")
    environments = three()
    for environment in environments:
        joint.learn(environment, progress=False)
    x = np.concatenate([e.query.x for e in environments])
    np.testing.assert_array_equal(joint.predict(x, "clinic"), joint.predict(x))
    assert isinstance(joint, AllAtOnce)
    assert joint._learner.classes == ["cat", "cow", "dog", "hen", "pig", "yak"]


def test_a_learner_for_each_environment_answers_among_its_own_classes_only() -> None:
    split = upper_bound(replace(TINY, steps=40)).learner(3, "cpu")
    assert isinstance(split, OneForEach)
    environments = three()
    for environment in environments:
        split.learn(environment, progress=False)
    assert split.environments == ["clinic", "farm", "zoo"]
    x = np.concatenate([e.query.x for e in environments])
    for environment in environments:
        assert environment.support is not None
        assert set(split.predict(x, environment.name).tolist()) == set(environment.support.classes)
    with pytest.raises(NotSolvableYet, match=r"^A learner for each environment must be told the environment.$"):
        split.predict(x)
    with pytest.raises(UnknownEnvironment, match=r'^No environment is called "moon". Learned so far: \[\'clinic\', \'farm\', '):
        split.predict(x, "moon")
    assert split.bytes_held.keys() == {"clinic", "farm", "zoo"}


def test_each_learner_of_the_upper_bound_is_the_one_of_that_environment_alone() -> None:
    """Hence it does not depend on the order."""
    split = upper_bound(TINY).learner(3, "cpu")
    assert isinstance(split, OneForEach)
    for environment in three():
        split.learn(environment, progress=False)
    alone = VariationalLearner(TINY)
    alone.learn(three()[1], progress=False)
    assert_same(split._learners["farm"], alone)


def test_a_continual_method_is_one_learner_for_all() -> None:
    learner = continual(TINY).learner(3, "cpu")
    assert isinstance(learner, VariationalLearner)
    assert learner.config == TINY
    assert all(isinstance(bound.learner(3, "cpu"), SupportOnly) for bound in LOWER_BOUNDS.values())
    assert [continual(TINY).orderless, upper_bound(TINY).orderless, joint_training(TINY).orderless] == [False, True, True]
    assert all(bound.orderless for bound in LOWER_BOUNDS.values())


def test_methods_that_make_no_sense_are_refused() -> None:
    with pytest.raises(InputError, match=r"^A 'joint' method needs a configuration.$"):
        Method("joint")
    with pytest.raises(InputError, match=r"^A 'LDA' method needs no configuration.$"):
        Method("LDA", TINY)
    with pytest.raises(InputError, match=r"^No backbone is called 'tea'. Known: "):
        Method("continual", TINY, "tea")  # type: ignore[arg-type]


# -- with which configuration ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ALL)
def test_every_method_gets_as_many_updates_in_a_setting(name: str) -> None:
    method = continual(ALL[name]).at(SETTING, seed=5)
    assert method.config is not None
    expected = (0, 100) if name in WITHOUT_WARM_UP else (30, 70)
    assert (method.config.warm_up, method.config.steps) == expected
    assert method.updates(13) == 1300


@pytest.mark.parametrize("name", ALL)
def test_a_setting_changes_nothing_but_what_it_says(name: str) -> None:
    config, at = ALL[name], continual(ALL[name]).at(SETTING, seed=5).config
    assert at == replace(
        config,
        features=24,
        gamma=2.0,
        hypothesis_rate=0.5,
        seed=5,
        warm_up=0 if name in WITHOUT_WARM_UP else 30,
        steps=100 if name in WITHOUT_WARM_UP else 70,
    )


def test_joint_training_has_its_own_number_of_steps_and_one_environment() -> None:
    config = joint_training(generative_replay()).at(SETTING, 0).config
    assert config is not None
    assert (config.warm_up, config.steps) == (30, 200)
    assert joint_training(generative_replay()).at(SETTING, 0).updates(13) == 230
    split = upper_bound(generative_replay()).at(SETTING, 0).config
    assert split == continual(generative_replay()).at(SETTING, 0).config
    for bound in LOWER_BOUNDS.values():
        assert bound.at(SETTING, 5) == bound
        assert bound.updates(13) == 0


def test_the_baselines_leave_out_one_component_after_the_other() -> None:
    """Table 1 of the paper: replay, warm-up, task confusion, snapshot."""

    def components(config: VariationalConfig) -> tuple[bool, bool, bool, bool]:
        return config.replay == "generative", config.warm_up > 0, config.task_confusion, config.snapshot == "full"

    assert [components(ALL[name]) for name in ("ours", "optimal", "baseline 2", "baseline 3", "naive")] == [
        (True, True, True, True),
        (False, True, True, True),
        (False, False, True, True),
        (False, False, False, True),
        (False, False, False, False),
    ]
    assert len({config.warm_up + config.steps for config in ALL.values()}) == 1


# -- how it is measured ------------------------------------------------------------------------------------------------------

METHODS = {
    "continual": continual(TINY),
    "naive": continual(replace(TINY, warm_up=0, replay="none", task_confusion=False, snapshot="none")),
    "split": upper_bound(TINY),
    "joint": joint_training(TINY),
    **LOWER_BOUNDS,
}


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("inductive", [False, True])
@pytest.mark.usefixtures("_features")
def test_every_protocol_that_a_method_can_answer_is_measured(name: str, inductive: bool) -> None:
    measured = measure(METHODS[name], office31.tasks("D", "A", inductive=inductive), progress=False)
    protocols = {GIVEN, *([] if name == "split" else [UNKNOWN])}
    protocols |= {GIVEN_ASIDE, *([] if name == "split" else [UNKNOWN_ASIDE])} if inductive else set()
    assert set(measured.run.accuracy) == protocols
    stages = np.tri(5, dtype=bool)
    for protocol, matrix in measured.run.accuracy.items():
        # Given: after each stage, unless order means nothing. Unknown: at the end only.
        every = name in ("continual", "naive") and protocol.environment == "given"
        expected = stages if every else np.arange(5)[:, None] == np.full(5, 4)
        np.testing.assert_array_equal(~np.isnan(matrix.values), expected, err_msg=str(protocol))
        assert matrix.environments == ("task 1", "task 2", "task 3", "task 4", "task 5")
    recognises = name == "continual"
    assert set(measured.run.inference_accuracy) == ({"transductive", *(["inductive"] * inductive)} if recognises else set())
    assert measured.own.keys() == (set(measured.run.accuracy[GIVEN].environments) if recognises else set())
    assert (measured.bytes > 0) == (name not in LOWER_BOUNDS)


def two(answers: Answers | None = None, *, aside: bool = False) -> Scenario:
    """Two environments that are easily told apart, and right answers unless others are given."""
    environments = [gaussians("clinic", ("cat", "dog"), seed=1), gaussians("farm", ("cow", "hen"), shift=5, seed=2)]
    truth = {e.name: e.support.y for e in environments if e.support is not None}
    supports = {e.name: e.support for e in environments if e.support is not None}
    return Scenario("two", environments, answers or Answers(truth, supports if aside else {}))


def test_transductive_and_inductive_rows_are_not_mixed_up() -> None:
    """Kept aside here: the support itself, which LDA answers rightly; the answers to the queries are all wrong."""
    wrong = {name: np.full(20, "moon") for name in ("clinic", "farm")}
    supports = {e.name: e.support for e in two().environments if e.support is not None}
    measured = measure(LOWER_BOUNDS["LDA"], two(Answers(wrong, supports)))
    assert measured.run.accuracy[GIVEN].average == measured.run.accuracy[UNKNOWN].average == 0
    assert measured.run.accuracy[GIVEN_ASIDE].average == measured.run.accuracy[UNKNOWN_ASIDE].average == 1


def test_own_accuracy_is_that_of_the_snapshots_f_on_the_queries_adapted_to(monkeypatch: pytest.MonkeyPatch) -> None:
    learners = _kept(monkeypatch)
    scenario = two()
    own = measure(continual(replace(TINY, steps=30)), scenario, progress=False).own
    (learner,) = learners
    assert isinstance(learner, VariationalLearner)
    for environment, snapshot in zip(scenario.environments, learner.snapshots, strict=True):
        assert environment.query is not None
        assert environment.support is not None
        assert snapshot.generate is not None
        f = snapshot.generate.hypothesis
        h = torch.from_numpy(learner.transform(environment.query.x, environment.name))
        answered = np.array(environment.support.classes)[f(h).argmax(dim=1).numpy()]  # f has the environment's own classes
        right = (answered == scenario.answers.transductive[environment.name]).mean()
        assert own[environment.name] == right


def test_confidence_is_measured_under_every_protocol_by_what_abstaining_would_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    learners = _kept(monkeypatch)
    rng = np.random.default_rng(0)
    environments, transductive, inductive = [], {}, {}
    for place, (name, classes) in enumerate({"clinic": ("cat", "dog"), "farm": ("cow", "hen")}.items()):
        y = np.repeat(classes, 60)
        x = rng.normal(size=(3, 120, 6)) + 4 * np.eye(6)[place] + 3 * (y == classes[1])[:, None] * np.eye(6)[3]
        environments.append(Environment(name, Support(x[0], y), Query(x[1])))
        transductive[name], inductive[name] = y, Support(x[2], y)
    scenario = Scenario("overlapping", environments, Answers(transductive, inductive))
    measured = measure(ANALYTIC["analytic learner"], scenario)
    (learner,) = learners
    assert isinstance(learner, AnalyticLearner)
    assert measured.coverage.keys() == measured.calibration.keys() == {str(protocol) for protocol in PROTOCOLS}
    for protocol in PROTOCOLS:
        curve = measured.coverage[str(protocol)]
        assert curve["error"][-1] == pytest.approx(1 - measured.run.accuracy[protocol].average)  # environments of equal size
        assert 0 < curve["area"] < curve["error"][-1]
        for below in (0.5, 0.8, 0.9):
            answers, truth = [], []
            for environment in environments:
                assert environment.query is not None
                aside = protocol.queries == "inductive"
                x = inductive[environment.name].x if aside else environment.query.x
                given = environment.name if protocol.environment == "given" else None
                answers.append(learner.predict(x, given, abstain_below=below))
                truth.append(transductive[environment.name])
            answered, right = np.concatenate(answers) != None, np.concatenate(answers) == np.concatenate(truth)  # noqa: E711
            assert answered.mean() > 0.1
            assert curve["abstain_below"][str(below)] == pytest.approx(
                {"coverage": answered.mean(), "error": 1 - right.sum() / answered.sum()}
            )
    assert len({json.dumps(curve) for curve in measured.coverage.values()}) == 4


def test_only_the_analytic_learner_has_its_confidence_measured() -> None:
    for name in ("continual", "LDA"):
        measured = measure(METHODS[name], two(), progress=False)
        assert (measured.calibration, measured.coverage) == ({}, {})


def _kept(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The learners that `measure` makes from now on."""
    kept: list[Any] = []
    make = Method.learner

    def learner(self: Method, environments: int, device: str) -> Any:
        kept.append(make(self, environments, device))
        return kept[-1]

    monkeypatch.setattr(Method, "learner", learner)
    return kept


@pytest.mark.parametrize("name", METHODS)
def test_no_label_of_a_query_can_choose_anything(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With every answer another one, the same learner comes out, bit for bit; only its scores differ."""
    learners = _kept(monkeypatch)
    right = two(aside=True)
    wrong = {name: labels[::-1].copy() for name, labels in right.answers.transductive.items()}
    aside = {name: replace(rows, y=rows.y[::-1].copy()) for name, rows in right.answers.inductive.items()}
    scores = [
        measure(METHODS[name], scenario, progress=False).run.accuracy[GIVEN].average
        for scenario in (right, two(Answers(wrong, aside)))
    ]
    assert scores[0] != scores[1] or name in ("continual", "naive", "split", "joint")  # barely trained: may be at chance
    one, other = (anatomy(learner) for learner in learners)
    assert one
    assert differences(one, other) == []


@pytest.mark.parametrize("orders", [("Rw", "Pr", "Cl"), ("Cl", "Pr", "Rw")])
@pytest.mark.usefixtures("_features")
def test_the_first_environment_is_the_one_that_is_learned_first(orders: tuple[str, ...]) -> None:
    measured = measure(continual(TINY), office_home.domains("Ar", orders), progress=False)
    assert measured.run.accuracy[GIVEN].environments == tuple(f"Ar→{query}" for query in orders)
    assert measured.run.accuracy[GIVEN].first_task == measured.run.accuracy[GIVEN].values[-1, 0]
