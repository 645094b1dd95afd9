"""The learner in closed form: what it knows does not depend on how it came to know it."""

from __future__ import annotations

import json
import logging
import statistics
import time
import tracemalloc
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file
from tiny import gaussians, three

from perdure import (
    Adapted,
    AnalyticConfig,
    AnalyticLearner,
    CheckpointError,
    Environment,
    InputError,
    NotSolvableYet,
    Query,
    Queued,
    Support,
    alignment,
)
from perdure.analytic import prepared
from perdure.statistics import Moments


def learned(environments: Iterable[Environment], config: AnalyticConfig | None = None) -> AnalyticLearner:
    learner = AnalyticLearner(config)
    for environment in environments:
        learner.learn(environment)
    return learner


def halves(environment: Environment) -> tuple[Support, Query]:
    assert environment.support is not None
    assert environment.query is not None
    return environment.support, environment.query


def everything(environments: Iterable[Environment]) -> np.ndarray:
    return np.concatenate([half.x for environment in environments for half in halves(environment)])


def assert_answers_agree(one: AnalyticLearner, other: AnalyticLearner, x: np.ndarray, *, within: float = 1e-5) -> None:
    """Environment unknown and given, whatever the order they were learned in."""
    assert one.classes == other.classes
    assert set(one.environments) == set(other.environments)
    for name in (None, *one.environments):
        np.testing.assert_allclose(one.predict_proba(x, name), other.predict_proba(x, name), rtol=0, atol=within)
    together = one.inferred_environment(x).probabilities
    places = [other.environments.index(name) for name in one.environments]
    np.testing.assert_allclose(together, other.inferred_environment(x).probabilities[:, places], rtol=0, atol=within)


def drawn(
    of_query: list[int], *, rows: int = 40, distance: float = 1.5, shift: float = 0.5, seed: int = 0, unseen: int = 0
) -> tuple[Environment, np.ndarray]:
    """Gaussians in 20 dimensions, and the query's true classes; as many rows of classes that the support does not have."""
    rng = np.random.default_rng(seed)
    classes = len(of_query)
    centres, move = distance * rng.normal(size=(classes + 1, 20)), shift * rng.normal(size=20)
    y_s, y = np.repeat(np.arange(classes), rows), np.repeat(np.arange(classes + 1), [*of_query, unseen])
    x_s = centres[y_s] + rng.normal(size=(len(y_s), 20))
    x_q = centres[y] + move + rng.normal(size=(len(y), 20))
    return Environment("a", Support(x_s, y_s), Query(x_q)), y


# Order


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0), (1, 0, 2)], ids=str)
def test_environments_in_any_order_give_the_same_answers(order: tuple[int, ...]) -> None:
    environments = three()
    learner = learned(environments[i] for i in order)
    assert learner.environments == [environments[i].name for i in order]
    assert_answers_agree(learner, learned(three()), everything(three()))


@pytest.mark.parametrize("first", ["support", "query"])
def test_support_and_query_may_come_apart_with_others_between_them(first: str) -> None:
    clinic, farm, zoo = three()
    of_clinic, query_of_clinic = halves(clinic)
    support, query = Environment("clinic", of_clinic), Environment("clinic", query=query_of_clinic)
    one, other = (support, query) if first == "support" else (query, support)
    learner = AnalyticLearner()
    assert learner.learn(one) == Queued("clinic", "query" if first == "support" else "support")
    learner.learn(farm)
    assert isinstance(learner.learn(other), Adapted)
    learner.learn(zoo)
    assert learner.queued == {}
    assert_answers_agree(learner, learned(three()), everything(three()))


def chunks(environment: Environment, *, by_class: bool = False) -> list[Environment]:
    """Support and query in three chunks each; `by_class`: the first has one class only."""
    (support, query), name = halves(environment), environment.name
    order = np.argsort(support.y, kind="stable") if by_class else np.arange(len(support.x))
    of_support = [Environment(name, Support(support.x[i], support.y[i])) for i in np.array_split(order, 3)]
    of_query = [Environment(name, query=Query(x)) for x in np.array_split(query.x, 3)]
    return [chunk for pair in zip(of_query, of_support, strict=True) for chunk in pair]


@pytest.mark.parametrize("by_class", [False, True], ids=["mixed", "class after class"])
@pytest.mark.parametrize("backwards", [False, True], ids=["forwards", "backwards"])
def test_chunks_in_any_order_are_the_same_as_all_at_once(by_class: bool, backwards: bool) -> None:
    _, farm, _ = three()
    parts = chunks(farm, by_class=by_class)
    *first, last = reversed(parts) if backwards else parts
    learner = AnalyticLearner()
    for part in first:
        assert isinstance(learner.learn(part, more=True), Queued)
        assert learner.environments == []
    assert isinstance(learner.learn(last), Adapted)
    assert_answers_agree(learner, learned([farm]), everything([farm]))


def test_with_more_to_come_nothing_is_adapted_yet() -> None:
    learner = AnalyticLearner()
    assert learner.learn(three()[0], more=True) == Queued("clinic", "query")
    assert learner.queued == {"clinic": "query"}
    learner.learn(three()[1])
    with pytest.raises(NotSolvableYet, match=r'"clinic" waits for its last part; it is queued\. Add the last part with'):
        learner.predict(np.ones((1, 6)), "clinic")


def test_what_is_awaited_is_the_query_until_some_of_it_is_there() -> None:
    clinic, farm, _ = three()
    support, query = halves(clinic)
    learner = learned([farm, Environment("clinic", support)])
    with pytest.raises(NotSolvableYet, match='"clinic" waits for its query'):
        learner.predict(np.ones((1, 6)), "clinic")
    learner.learn(Environment("clinic", query=query), more=True)
    with pytest.raises(InputError, match=r'"clinic" already has a support and waits for its last part\. Give the last part, or'):
        learner.learn(Environment("clinic", support))


@pytest.mark.parametrize("half", ["support", "query"])
def test_a_half_that_is_whole_is_not_counted_twice(half: str) -> None:
    support, query = halves(three()[0])
    one = Environment("clinic", support) if half == "support" else Environment("clinic", query=query)
    learner = learned([one])
    missing = "query" if half == "support" else "support"
    sentence = f'"clinic" already has a {half} and waits for its {missing}. Give the {missing}, or drop it with forget("clinic").'
    for more in (False, True):
        with pytest.raises(InputError) as refused:
            learner.learn(one, more=more)
        assert str(refused.value) == sentence
    learner.learn(Environment("clinic", query=query) if half == "support" else Environment("clinic", support))
    assert_answers_agree(learner, learned(three()[:1]), everything(three()))


# Forgetting


@pytest.mark.parametrize("name", ["clinic", "farm", "zoo"])
def test_what_is_forgotten_has_never_been_there_bit_for_bit(name: str) -> None:
    learner, x = learned(three()), everything(three())
    learner.predict(x)
    learner.forget(name)
    never = learned(environment for environment in three() if environment.name != name)
    assert_answers_agree(learner, never, x, within=0)


def test_forgetting_takes_back_what_came_after_merging_saving_and_loading(tmp_path: Path) -> None:
    clinic, farm, zoo = three()
    x = everything(three())
    AnalyticLearner.merge(learned([clinic, farm]), learned([zoo])).save(tmp_path)
    learner = AnalyticLearner.load(tmp_path)
    learner.predict(x)
    learner.forget("farm")
    assert_answers_agree(learner, learned([clinic, zoo]), x)
    assert learner.classes == ["cat", "dog", "yak"]
    learner.save(tmp_path)
    learned([clinic, zoo]).save(tmp_path / "never")
    assert load_file(tmp_path / "tensors.safetensors").keys() == load_file(tmp_path / "never" / "tensors.safetensors").keys()
    assert "farm" not in (tmp_path / "state.json").read_text()


def test_learning_again_what_was_forgotten_gives_it_back() -> None:
    learner = learned(three())
    learner.forget("clinic")
    learner.learn(three()[0])
    assert_answers_agree(learner, learned(three()), everything(three()))


def test_forgetting_everything_leaves_a_learner_that_takes_anything() -> None:
    learner = learned(three())
    for name in learner.environments:
        learner.forget(name)
    rng = np.random.default_rng(0)
    wide = Environment("wide", Support(rng.normal(size=(20, 9)), np.arange(20) % 2), Query(rng.normal(size=(20, 9))))
    assert isinstance(learner.learn(wide), Adapted)
    assert learner.classes == [0, 1]


# Merging


def test_merging_is_learning_both() -> None:
    clinic, farm, zoo = three()
    one, other = learned([clinic, farm]), learned([zoo])
    x = everything(three())
    before = one.predict_proba(x)
    merged = AnalyticLearner.merge(one, other)
    assert_answers_agree(merged, learned(three()), x)
    merged.forget("clinic")
    np.testing.assert_array_equal(one.predict_proba(x), before)
    assert one.environments == ["clinic", "farm"]


def test_what_waits_is_merged_too() -> None:
    clinic, farm, _ = three()
    support, query = halves(clinic)
    waiting = learned([Environment("clinic", support)])
    merged = AnalyticLearner.merge(learned([farm]), waiting)
    merged.learn(Environment("clinic", query=query))
    assert_answers_agree(merged, learned([clinic, farm]), everything([clinic, farm]))
    assert waiting.queued == {"clinic": "query"}


def test_learners_that_do_not_add_up_are_refused() -> None:
    clinic, farm, _ = three()
    rng = np.random.default_rng(0)
    wide = Environment("wide", Support(rng.normal(size=(20, 9)), ["a", "b"] * 10), Query(rng.normal(size=(20, 9))))
    with pytest.raises(InputError, match=r"environments called \['clinic'\]; forget them in one of the two"):
        AnalyticLearner.merge(learned([clinic, farm]), learned([clinic]))
    with pytest.raises(InputError, match=r"environments called \['clinic'\]"):
        AnalyticLearner.merge(learned([clinic]), learned([Environment("clinic", halves(clinic)[0])]))
    with pytest.raises(InputError, match=r"Learners of different configurations do not add up: .*prior=4\.0"):
        AnalyticLearner.merge(learned([clinic]), learned([farm], AnalyticConfig(prior=4.0)))
    with pytest.raises(InputError, match=r"Learners of rows of different shapes do not add up: \[\(6,\), \(9,\)\]"):
        AnalyticLearner.merge(learned([clinic]), learned([wide]))
    with pytest.raises(InputError, match="labels that are integers and strings do not add up; use one kind throughout"):
        AnalyticLearner.merge(learned([clinic]), learned([gaussians("numbers", (1, 2))]))
    with pytest.raises(InputError, match="needs at least one learner"):
        AnalyticLearner.merge()


# What is kept


@pytest.mark.parametrize(("classes", "features"), [(2, 6), (3, 6), (3, 11)])
def test_an_environment_costs_the_stated_bytes_however_many_rows_it_has(classes: int, features: int, tmp_path: Path) -> None:
    sizes = []
    for rows in (30, 3000):
        rng = np.random.default_rng(rows)
        support = Support(rng.normal(size=(rows, features)), np.arange(rows) % classes)
        learner = learned([Environment("a", support, Query(rng.normal(size=(rows, features))))])
        d, k = features, classes
        assert learner.bytes_held == {"a": 8 * (d * (d + 1) + 2 * k * (d + 1) + d)}
        learner.save(tmp_path)
        tensors = load_file(tmp_path / "tensors.safetensors")
        assert sum(tensor.nbytes for tensor in tensors.values()) == learner.bytes_held["a"]
        sizes.append((tmp_path / "tensors.safetensors").stat().st_size)
    assert sizes[0] == sizes[1]


def test_a_waiting_support_is_saved_as_sums_and_a_waiting_query_not_at_all(tmp_path: Path) -> None:
    clinic, farm, _ = three()
    (support, query), (of_farm, query_of_farm) = halves(clinic), halves(farm)
    learned([Environment("clinic", support), Environment("farm", query=query_of_farm)]).save(tmp_path)
    loaded = AnalyticLearner.load(tmp_path)
    assert loaded.queued == {"clinic": "query", "farm": "support"}
    with pytest.raises(InputError, match='The query of "farm" arrived before this learner was saved, and data are never saved'):
        loaded.learn(Environment("farm", of_farm))
    with pytest.raises(InputError, match='"clinic" already has a support'):
        loaded.learn(Environment("clinic", support))
    loaded.learn(Environment("clinic", query=query))
    loaded.learn(Environment("farm", query=query_of_farm))
    loaded.learn(Environment("farm", of_farm))
    assert_answers_agree(loaded, learned([clinic, farm]), everything([clinic, farm]))


@pytest.mark.parametrize("lengths", [[1], [1, 1, 1], [1, 2, 3]], ids=["one row", "copies", "other lengths"])
def test_a_class_whose_rows_point_one_way_is_learned_and_what_that_keeps_is_said(
    lengths: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    clinic = three()[0]
    support, query = halves(clinic)
    with caplog.at_level(logging.WARNING, logger="perdure"):
        learned(three())
    assert not caplog.records
    lonely = np.outer(lengths, np.linspace(-2, 3, 6)).astype(np.float32)
    both = Support(np.concatenate([support.x, lonely]), np.concatenate([support.y, np.full(len(lonely), "lonely")]))
    with caplog.at_level(logging.WARNING, logger="perdure"):
        learner = learned([Environment("clinic", both, query)])
    assert "clinic: in each of the classes ['lonely'] all support rows point one way, be it" in caplog.records[0].message
    assert "single" not in caplog.records[0].message
    assert learner.predict(lonely).tolist() == ["lonely"] * len(lonely)


def test_a_thousandth_environment_costs_what_the_second_does() -> None:
    environments = [gaussians(f"{i}", (f"a{i}", f"b{i}"), rows=200, seed=i) for i in range(41)]
    few, many = learned(environments[:1]), learned(environments[:1])
    (one,) = many._remembered.values()
    many._remembered |= {f"copy {i}": replace(one, name=f"copy {i}", classes=[f"c{i}", f"d{i}"]) for i in range(998)}
    assert len(many.environments) == 999
    seconds: dict[str, list[float]] = {"few": [], "many": []}
    for environment in environments[1:]:
        for what, learner in (("few", few), ("many", many)):
            began = time.perf_counter()
            learner.learn(environment)
            seconds[what].append(time.perf_counter() - began)
        few.forget(environment.name)
    assert statistics.median(seconds["many"]) < 1.5 * statistics.median(seconds["few"])


# Class sets that do not match


@pytest.mark.parametrize("seed", range(3))
def test_a_query_with_two_of_five_classes_is_not_forced_apart(seed: int) -> None:
    environment, y = drawn([40, 0, 0, 40, 0], seed=seed)
    learner = learned([environment])
    x = halves(environment)[1].x
    assert (learner.predict(x) == y).mean() > 0.95
    assert (learner.predict(x, "a") == y).mean() > 0.95


def test_a_class_that_the_support_never_saw_lowers_confidence() -> None:
    confidence: dict[str, list[float]] = {"closed": [], "open": [], "seen": [], "unseen": []}
    for seed in range(5):
        closed, y = drawn([40] * 5, seed=seed, distance=1.0)
        opened, _ = drawn([40] * 5, seed=seed, distance=1.0, unseen=40)
        x = halves(opened)[1].x
        learner = learned([opened])
        of_closed = learned([closed]).predict_proba(halves(closed)[1].x).max(axis=1)
        of_opened = learner.predict_proba(x).max(axis=1)
        for what, some in (("closed", of_closed), ("open", of_opened), ("seen", of_opened[:200]), ("unseen", of_opened[200:])):
            confidence[what].append(float(some.mean()))
        assert confidence["unseen"][-1] < min(confidence["closed"][-1], confidence["seen"][-1])
        assert (learner.predict(x)[:200] == y).mean() > 0.8
    assert np.mean(confidence["open"]) < np.mean(confidence["closed"])
    assert np.mean(confidence["unseen"]) < np.mean(confidence["seen"]) - 0.08


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("of_query", [[5, 500], [5, 500, 500], [5, 500, 500, 500, 500]], ids=str)
def test_a_class_of_one_row_in_a_hundred_is_not_swallowed_and_swallows_none(of_query: list[int], seed: int) -> None:
    environment, y = drawn(of_query, seed=seed)
    answers = learned([environment]).predict(halves(environment)[1].x)
    assert [(answers[y == c] == c).mean() > 0.75 for c in range(len(of_query))] == [True] * len(of_query)


def test_a_class_that_no_query_row_has_is_where_its_support_was_moved_to() -> None:
    environment, _ = drawn([40, 40, 0], distance=3.0, shift=0.0)
    learner = learned([environment], AnalyticConfig(support_weight=0.0))
    support, _ = halves(environment)
    assert (learner.predict(support.x[support.y == 2]) == 2).all()


# Sizes


@pytest.mark.parametrize("features", [20, 1024, pytest.param(4096, marks=pytest.mark.slow)])
def test_five_rows_a_class_are_enough_in_few_and_in_many_dimensions(features: int) -> None:
    rng = np.random.default_rng(0)
    centres, y = 2 * rng.normal(size=(4, features)), np.repeat(np.arange(4), 5)
    x_s, x_q = (centres[y] + move + rng.normal(size=(20, features)) for move in (0.0, 0.7))
    learner = learned([Environment("a", Support(x_s, y), Query(x_q))])
    proba = learner.predict_proba(x_q)
    assert proba.dtype == np.float32
    assert np.isfinite(proba).all()
    assert (learner.predict(x_q) == y).all()


def test_one_row_a_class_is_learned_in_finite_numbers() -> None:
    environment, y = drawn([10] * 5, rows=1, distance=3.0)
    learner = learned([environment])
    assert np.isfinite(learner.predict_proba(halves(environment)[1].x)).all()
    assert (learner.predict(halves(environment)[1].x) == y).mean() > 0.9


@pytest.mark.parametrize("among", [1024, pytest.param(None, marks=pytest.mark.slow)], ids=str)
def test_a_hundred_thousand_rows_are_learned_in_bounded_memory(among: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    if among is not None:
        monkeypatch.setattr(alignment, "GRAPH_ROWS", among)
    rng = np.random.default_rng(0)
    centres, y = 2 * rng.normal(size=(3, 20)), np.arange(100_000) % 3
    x = (centres[y] + rng.normal(size=(100_000, 20))).astype(np.float32)
    environment = Environment("a", Support(x[::20], y[::20]), Query(x))
    tracemalloc.start()
    learner = learned([environment])
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 400 * 2**20  # all pairs of rows would be 37 GiB
    assert learner.predict_proba(x[:9]).dtype == np.float32
    assert (learner.predict(x[::10]) == y[::10]).mean() > 0.99


def test_rows_that_are_there_more_than_once_count_more_than_once() -> None:
    clinic = three()[0]
    support, query = halves(clinic)
    twice = Support(np.repeat(support.x, 2, axis=0), np.repeat(support.y, 2))
    once, doubled = learned([clinic]), learned([Environment("clinic", twice, Query(np.repeat(query.x, 2, axis=0)))])
    kept, kept_twice = (learner._remembered["clinic"].support for learner in (once, doubled))
    np.testing.assert_allclose(kept_twice.weight, 2 * kept.weight)
    np.testing.assert_allclose(kept_twice.second, 2 * kept.second, rtol=1e-12)
    np.testing.assert_array_equal(once.predict(query.x), doubled.predict(query.x))


# Answering


def test_doubtful_rows_are_left_unanswered() -> None:
    environment, _ = drawn([40] * 5, distance=0.7)
    learner, x = learned([environment]), halves(environment)[1].x
    confidence, answers = learner.predict_proba(x).max(axis=1), learner.predict(x)
    below = float(np.median(confidence))
    abstaining = learner.predict(x, abstain_below=below)
    np.testing.assert_array_equal([answer is None for answer in abstaining], confidence < below)
    assert 0 < (confidence < below).sum() < len(x)
    sure = confidence >= below
    np.testing.assert_array_equal(abstaining[sure].astype(np.int64), answers[sure])
    assert not any(answer is None for answer in learner.predict(x, abstain_below=0.0))
    for bad in (-0.1, 1.1, float("nan")):
        with pytest.raises(InputError, match="`abstain_below` must be a probability between 0 and 1"):
            learner.predict(x, abstain_below=bad)


def test_an_environment_is_inferred_row_by_row() -> None:
    learner = learned(three())
    for environment in three():
        inferred = learner.inferred_environment(halves(environment)[1].x)
        assert inferred.probabilities.shape == (len(halves(environment)[1].x), 3)
        np.testing.assert_allclose(inferred.probabilities.sum(axis=1), 1, rtol=1e-5)
        np.testing.assert_array_equal(inferred.confidence, inferred.probabilities.max(axis=1))
        assert (inferred.names == environment.name).mean() > 0.75


def test_rows_of_one_environment_say_together_which() -> None:
    environments = [
        Environment(name, *halves(drawn([40] * 3, distance=0.7, shift=shift)[0]))
        for name, shift in (("here", 0.0), ("there", 0.5))
    ]
    learner = learned(environments)
    for environment in environments:
        x = halves(environment)[1].x
        given, together = learner.predict_proba(x, environment.name), learner.predict_proba(x, same_environment=True)
        alone = learner.predict_proba(x)
        assert np.abs(together - given).max() < 0.01 < np.abs(alone - given).max()


# The guard

GUARDED, _ = drawn([5, 500, 500])
"""A query that adapting does no good to: its small class goes down among its neighbours."""


def test_what_the_guard_decides_is_said_recorded_saved_and_loaded(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    learner = AnalyticLearner(AnalyticConfig(guard=0.0))
    with caplog.at_level(logging.WARNING, logger="perdure"):
        kept = learner.learn(GUARDED)
    assert isinstance(kept, Adapted)
    assert not kept.adapted
    assert kept.explained[1] < kept.explained[0]
    assert [record.message for record in caplog.records] == [
        "a: adapting would not have helped; its queries are answered as by the source alone."
    ]
    support, query = drawn([40] * 2)[0].support, drawn([40] * 2)[0].query
    changed = learner.learn(Environment("b", support, query))
    assert isinstance(changed, Adapted)
    assert changed.adapted
    assert learner.adapted == {"a": False, "b": True}
    learner.save(tmp_path)
    assert [entry["adapted"] for entry in json.loads((tmp_path / "state.json").read_text())["environments"]] == [False, True]
    assert AnalyticLearner.load(tmp_path).adapted == {"a": False, "b": True}
    np.testing.assert_array_equal(
        learner.transform(halves(GUARDED)[1].x, "a"), prepared(halves(GUARDED)[1].x, learner.config.power)
    )


# Domains that come back


def visits(rows: int, domain: str | None, *, elsewhere: float = 0.0) -> list[Environment]:
    """Four environments of two classes each, with so many query rows, all moved alike; `elsewhere`: two supports lie apart."""
    rng = np.random.default_rng(3)
    move, aside, found = 0.6 * rng.normal(size=20), elsewhere * rng.normal(size=20), []
    for visit in range(4):
        centres = 2 + rng.normal(size=(2, 20))
        y_s, y_q = np.arange(60) % 2, np.arange(rows) % 2
        x_s = centres[y_s] + 0.7 * rng.normal(size=(60, 20)) + aside * (visit % 2)
        x_q = centres[y_q] + 0.7 * rng.normal(size=(rows, 20)) + move
        found.append(Environment(f"visit {visit}", Support(x_s, y_s + 2 * visit), Query(x_q), domain=domain))
    return found


def moves(learner: AnalyticLearner) -> np.ndarray:
    """By how much rows of each environment are moved."""
    x = np.ones((1, 20), dtype=np.float32)
    return np.concatenate([prepared(x, learner.config.power) - learner.transform(x, name) for name in learner.environments])


def test_visits_of_one_domain_say_together_how_far_it_is() -> None:
    (truth,) = moves(learned([replace(visits(2000, None)[0], name="many rows")]))
    alone, together = moves(learned(visits(6, None))), moves(learned(visits(6, "ward 7")))
    assert np.square(together - truth).sum() < 0.6 * np.square(alone - truth).sum()
    np.testing.assert_array_equal(moves(learned(visits(6, "ward 7")[:1])), alone[:1])


def test_visits_from_supports_that_lie_elsewhere_stay_apart() -> None:
    alone, together = (moves(learned(visits(300, domain, elsewhere=1.0))) for domain in (None, "ward 7"))
    between = np.square(alone[0] - alone[1]).sum()
    assert np.square(together - alone).sum(axis=1).max() < 0.02 * between


def test_visits_in_any_order_and_forgotten_ones_leave_the_same(tmp_path: Path) -> None:
    all_of_them, x = visits(6, "ward 7"), everything(visits(6, None))
    learner = learned(all_of_them[::-1])
    assert_answers_agree(learner, learned(all_of_them), x)
    learner.save(tmp_path)
    np.testing.assert_array_equal(AnalyticLearner.load(tmp_path).predict_proba(x), learner.predict_proba(x))
    learner.forget("visit 1")
    never = learned(each for each in all_of_them[::-1] if each.name != "visit 1")
    np.testing.assert_array_equal(learner.predict_proba(x), never.predict_proba(x))
    np.testing.assert_array_equal(moves(learner), moves(never))


# Numbers at the edge


@pytest.mark.parametrize("scatter", [1e-2, 1e-3, 1e-4, 1e-5, 0.0])
def test_classes_however_tight_are_learned_answered_and_saved(scatter: float, tmp_path: Path) -> None:
    for seed in range(8):
        rng = np.random.default_rng(seed)
        classes, d = int(rng.integers(2, 12)), int(rng.integers(4, 40))
        centres, move = rng.normal(size=(classes, d)), 0.1 * rng.normal(size=d)
        y = np.arange(10 * classes) % classes
        x_s, x_q = (centres[y] + scatter * rng.normal(size=(len(y), d)) + offset for offset in (0.0, move))
        learner = learned([Environment("a", Support(x_s, y), Query(x_q))])
        assert (learner.predict(x_q) == y).mean() == 1
        learner.save(tmp_path / str(seed))
        np.testing.assert_array_equal(AnalyticLearner.load(tmp_path / str(seed)).predict(x_q), learner.predict(x_q))


@pytest.mark.parametrize("scale", [1e-30, 1e-20, 1.0, 1e19, 1e30])
def test_the_unit_of_the_rows_does_not_matter(scale: float) -> None:
    environment, _ = drawn([40] * 3)
    support, query = halves(environment)
    scaled = Environment("a", Support(support.x * np.float32(scale), support.y), Query(query.x * np.float32(scale)))
    plain, other = learned([environment]), learned([scaled])
    np.testing.assert_allclose(other.predict_proba(query.x), plain.predict_proba(query.x), atol=1e-4)


def test_rows_that_nearly_point_one_way_are_not_called_the_same() -> None:
    rng, y = np.random.default_rng(0), np.arange(60) % 2
    x = np.column_stack([np.full(60, 20240.0), rng.normal(size=(60, 3)) + 3 * y[:, None]])
    assert isinstance(AnalyticLearner().learn(Environment("a", Support(x, y), Query(x + np.array([0, 1, 1, 1])))), Adapted)


def test_parts_of_a_class_never_add_up_to_more_than_one() -> None:
    rng, learner = np.random.default_rng(0), AnalyticLearner()
    centres = 4 * rng.normal(size=(2, 6))
    for visit in range(30):
        y = np.arange(20) % 2
        x = centres[y] + rng.normal(size=(20, 6))
        learner.learn(Environment(f"visit {visit}", Support(x, y), Query(x + 0.1 * rng.normal(size=6))))
    assert learner.predict_proba(rng.normal(size=(4000, 6)) + centres[0]).max() == 1


@pytest.mark.parametrize("domains", [("h", None), (None, "h"), ("h", "h")], ids=str)
@pytest.mark.parametrize("first", ["support", "query"])
def test_either_half_may_say_the_domain(domains: tuple[str | None, str | None], first: str, tmp_path: Path) -> None:
    support, query = halves(three()[0])
    parts = [Environment("a", support, domain=domains[0]), Environment("a", query=query, domain=domains[1])]
    learner = learned(parts if first == "support" else parts[::-1])
    learner.save(tmp_path)
    assert json.loads((tmp_path / "state.json").read_text())["environments"][0]["domain"] == "h"


def test_halves_of_two_domains_are_refused() -> None:
    support, query = halves(three()[0])
    learner = learned([Environment("a", support, domain="ward 7")])
    with pytest.raises(InputError, match='"a" came with the domain "ward 7" before and comes with "ward 8" now'):
        learner.learn(Environment("a", query=query, domain="ward 8"))
    with pytest.raises(InputError, match="called by a string that says something, got ' '"):
        Environment("a", support, domain=" ")


# How sure


def test_where_the_environment_is_unknown_no_class_is_surer_than_its_pseudo_labels_are_right(tmp_path: Path) -> None:
    learner, x = learned(three()[:2]), everything(three()[:2])  # no class is in both
    learner.save(tmp_path)
    right = {each["name"]: each["right"] for each in json.loads((tmp_path / "state.json").read_text())["environments"]}
    assert all(0.5 < part <= 1 for part in right.values())
    proba, among = learner.predict_proba(x), learner.inferred_environment(x).probabilities
    for place, name in enumerate(learner.environments):
        own = [learner.classes.index(label) for label in learner._remembered[name].classes]
        np.testing.assert_allclose(proba[:, own].sum(axis=1), among[:, place], atol=1e-5)  # what is doubted stays in it
        assert (proba[:, own].max(axis=1) <= right[name] * among[:, place] + 1e-5).all()
    given = learner.predict_proba(x[:20], "clinic")
    assert given.max() > right["clinic"]


def test_doubts_are_shared_among_the_other_classes_of_the_environment() -> None:
    learner = learned(three()[:2])
    for name, right in {"clinic": 0.9, "farm": 0.8}.items():
        before = learner._remembered[name]
        learner._remembered[name] = replace(before, sureness=before.sureness._replace(right=right))
    classes, cells = learner.classes, learner._solve().label
    given = learner._doubted(np.eye(len(classes), dtype=np.float32)[cells])
    expected = {"cat": {"cat": 0.9, "dog": 0.1}, "dog": {"cat": 0.1, "dog": 0.9}}
    expected |= {one: {other: 0.8 if other == one else 0.1 for other in ("cow", "hen", "pig")} for one in ("cow", "hen", "pig")}
    for row, cell in zip(given, cells, strict=True):
        named = {classes[place]: part for place, part in enumerate(row.tolist()) if part}
        assert named == pytest.approx(expected[classes[cell]])


# Settings and saves


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        ({"spread": 1.0}, "`spread` must be below 1, got 1.0"),
        ({"power": 1.5}, "`power` must be at most 1, got 1.5"),
        ({"prior": 0.0}, "`prior` must be positive, got 0.0"),
        ({"prior": 1e-9}, "`prior` must be from 1e-06 to 1e\\+06, got 1e-09"),
        ({"power": 0.0}, "`power` must be positive, got 0.0"),
        ({"rounds": -1}, "`rounds` must be zero or more, got -1"),
        ({"guard": float("nan")}, "`guard` must be zero or more, got nan"),
    ],
    ids=str,
)
def test_settings_that_mean_nothing_are_refused(setting: dict[str, float], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        AnalyticConfig(**setting)  # type: ignore[arg-type]


def test_settings_come_back(tmp_path: Path) -> None:
    config = replace(AnalyticConfig(), rounds=0, prior=0.25)
    learned(three(), config).save(tmp_path)
    assert AnalyticLearner.load(tmp_path).config == config


def test_a_save_that_lies_is_refused(tmp_path: Path) -> None:
    learned(three()).save(tmp_path)
    text = (tmp_path / "state.json").read_text()

    def refused(old: str, new: str) -> None:
        assert old in text
        (tmp_path / "state.json").write_text(text.replace(old, new))
        with pytest.raises(CheckpointError):
            AnalyticLearner.load(tmp_path)

    refused('"adapted": true', '"adapted": 1')
    refused('"yak"', "7")
    refused('"cow",\n    "hen",\n    "pig"', "1, 2, 3")  # whole numbers beside strings
    refused('"name": "zoo"', '"name": "farm"')
    refused('"cat"', '"dog"')
    refused('"row_shape": [\n  6\n ]', '"row_shape": [\n  5\n ]')
    refused('"row_shape": [\n  6\n ]', '"row_shape": null')
    refused('"arriving": []', '"arriving": [{}]')
    refused('"arriving": []', '"arriving": 3')


@pytest.mark.parametrize("bad", ["nan", "negative weight", "no support", "no scatter of any rows"])
def test_sums_that_are_of_no_rows_are_refused(bad: str, tmp_path: Path) -> None:
    learner = learned(three())
    farm = learner._remembered["farm"]
    parts = {"weight": farm.support.weight.copy(), "sums": farm.support.sums.copy(), "second": farm.support.second.copy()}
    part, value = {
        "nan": ("sums", np.nan),
        "negative weight": ("weight", -1.0),
        "no support": ("weight", 0.0),
        "no scatter of any rows": ("second", -1e6),
    }[bad]
    parts[part].flat[0] = value
    learner._remembered["farm"] = replace(farm, support=Moments(**parts))
    learner.save(tmp_path)
    with pytest.raises(CheckpointError, match="is damaged"):
        AnalyticLearner.load(tmp_path)
