"""The scikit-learn classifier: scikit-learn's own checks, its tools, people's frames, and scorers without labels."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
import sklearn
from sklearn.base import clone
from sklearn.datasets import load_wine
from sklearn.model_selection import GridSearchCV, StratifiedKFold, cross_val_score
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import estimator_checks_generator
from tiny import TINY, gaussians

from perdure import (
    AnalyticConfig,
    AnalyticLearner,
    InputError,
    Query,
    UnknownEnvironment,
    VariationalConfig,
    VariationalLearner,
    validators,
)
from perdure.sklearn import PerdureClassifier, label_free_scorer

SMALL = VariationalConfig(latent=8, features=16, width=16, warm_up=50, steps=100, batch=32, replay_batch=8, inference_rate=1e-2)
"""Enough to tell scikit-learn's blobs apart."""
QUICK_CHECKS = {
    "check_estimator_sparse_tag",
    "check_estimators_nan_inf",
    "check_fit2d_1sample",
    "check_fit2d_1feature",
    "check_classifiers_one_label",
    "check_estimators_partial_fit_n_features",
    "check_methods_subset_invariance",
    "check_dict_unchanged",
    "check_estimators_pickle",
}
"""Those that a learner which trains could fail where the other does not; the others take ten times as long."""

Wines = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


@pytest.fixture(scope="module")
def wines() -> Wines:
    """Rows and labels of one laboratory; of another, whose instruments read otherwise, rows to adapt to and their answers."""
    x, y = load_wine(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(x))
    x, y = x[order], y[order]
    x = (x - x[:88].mean(axis=0)) / x[:88].std(axis=0)
    return x[:88], y[:88], x[88:] + 1.5 * np.random.default_rng(3).normal(size=13), y[88:]


@pytest.fixture
def routing() -> Iterator[None]:
    with sklearn.config_context(enable_metadata_routing=True):
        yield


# scikit-learn's own checks


def named(value: Any) -> str:
    return value.func.__name__ if isinstance(value, partial) else ""


@pytest.mark.parametrize(("estimator", "check"), [*estimator_checks_generator(PerdureClassifier())], ids=named)
def test_scikit_learns_checks_pass(estimator: PerdureClassifier, check: Callable[[Any], None]) -> None:
    check(estimator)


def checks_of_variational() -> list[Any]:
    found = [(each, check) for each, check in estimator_checks_generator(PerdureClassifier(SMALL))]
    quick = [pair for pair in found if pair[1].func.__name__ in QUICK_CHECKS]
    assert {check.func.__name__ for _, check in quick} == QUICK_CHECKS
    slow = [pytest.param(*pair, marks=pytest.mark.slow) for pair in found if pair not in quick]
    return [*(pytest.param(*pair) for pair in quick), *slow]


@pytest.mark.parametrize(("estimator", "check"), checks_of_variational(), ids=named)
def test_scikit_learns_checks_pass_when_it_trains(estimator: PerdureClassifier, check: Callable[[Any], None]) -> None:
    check(estimator)


# fitting


def test_a_query_changes_the_answers_for_the_better(wines: Wines) -> None:
    x, y, new, answers = wines
    before, after = PerdureClassifier().fit(x, y), PerdureClassifier().fit(x, y, X_query=new)
    assert before.score(new, answers) + 0.1 < after.score(new, answers)
    assert after.learner_.adapted == {"1": True}


def test_without_a_query_the_rows_are_their_own(wines: Wines) -> None:
    x, y, new, _ = wines
    alone, told = PerdureClassifier().fit(x, y), PerdureClassifier().fit(x, y, X_query=x)
    np.testing.assert_array_equal(alone.predict_proba(new), told.predict_proba(new))


def test_the_variational_learner_is_taught_the_same_way() -> None:
    home = gaussians("a")
    classifier = PerdureClassifier(TINY).fit(home.support.x, home.support.y, home.query.x)
    learner = VariationalLearner(TINY)
    learner.learn(gaussians("1"), progress=False)
    np.testing.assert_array_equal(classifier.predict_proba(home.query.x), learner.predict_proba(home.query.x))
    assert [classifier._new_learner().config, PerdureClassifier("variational")._new_learner().config] == [
        TINY,
        VariationalConfig(),
    ]


def test_partial_fit_adds_an_environment_and_fit_begins_anew() -> None:
    clinic, farm = gaussians("clinic"), gaussians("farm", ("cow", "dog", "hen"), shift=5, seed=2)
    classifier = PerdureClassifier().partial_fit(clinic.support.x, clinic.support.y, clinic.query.x, environment="clinic")
    classifier.partial_fit(farm.support.x, farm.support.y, farm.query.x)
    assert classifier.learner_.environments == ["clinic", "1"]
    assert classifier.classes_.tolist() == ["cat", "cow", "dog", "hen"]
    learner = AnalyticLearner()
    learner.learn(clinic)
    learner.learn(farm)
    np.testing.assert_array_equal(
        classifier.predict_proba(farm.query.x, environment="1"), learner.predict_proba(farm.query.x, "farm")
    )
    assert classifier.predict(clinic.query.x, environment="clinic").tolist() == learner.predict(clinic.query.x, "clinic").tolist()
    assert classifier.fit(clinic.support.x, clinic.support.y).learner_.environments == ["1"]
    assert classifier.classes_.tolist() == ["cat", "dog"]


def test_an_unnamed_environment_gets_a_name_that_is_free() -> None:
    clinic = gaussians("clinic")
    classifier = PerdureClassifier()
    for _ in range(3):
        classifier.partial_fit(clinic.support.x, clinic.support.y)
    classifier.learner_.forget("2")
    classifier.partial_fit(clinic.support.x, clinic.support.y)
    assert classifier.learner_.environments == ["1", "3", "2"]


def test_what_is_refused_changes_nothing() -> None:
    clinic, farm = gaussians("clinic"), gaussians("farm", ("cow", "hen"), seed=2)
    classifier = PerdureClassifier().fit(clinic.support.x, clinic.support.y, environment="clinic")
    before = classifier.predict_proba(clinic.query.x)
    with pytest.raises(InputError, match='"clinic" is learned already'):
        classifier.partial_fit(farm.support.x, farm.support.y, environment="clinic")
    with pytest.raises(InputError, match=r"labels of .* are integers"):
        classifier.partial_fit(farm.support.x, np.arange(20) % 2)
    assert classifier.classes_.tolist() == ["cat", "dog"]
    np.testing.assert_array_equal(classifier.predict_proba(clinic.query.x), before)


def test_a_forgotten_class_keeps_its_column_at_zero() -> None:
    clinic, farm = gaussians("clinic"), gaussians("farm", ("cow", "dog"), shift=5, seed=2)
    classifier = PerdureClassifier()
    for each in (clinic, farm):
        classifier.partial_fit(each.support.x, each.support.y, each.query, environment=each.name)
    classifier.learner_.forget("clinic")
    proba = classifier.predict_proba(farm.query.x)
    assert classifier.classes_.tolist() == ["cat", "cow", "dog"]
    assert (proba[:, 0] == 0).all()
    np.testing.assert_array_equal(proba[:, 1:], classifier.learner_.predict_proba(farm.query.x))


def test_classes_that_are_still_to_come_have_a_column() -> None:
    clinic = gaussians("clinic")
    classifier = PerdureClassifier().partial_fit(clinic.support.x, clinic.support.y, classes=["yak", "dog", "cat", "ant"])
    assert classifier.classes_.tolist() == ["ant", "cat", "dog", "yak"]
    proba = classifier.predict_proba(clinic.support.x)
    assert proba[:, [0, 3]].max() == 0
    assert classifier.score(clinic.support.x, clinic.support.y) == 1
    with pytest.raises(InputError, match=r"`classes` lacks \['cat'\]"):
        PerdureClassifier().partial_fit(clinic.support.x, clinic.support.y, classes=["yak", "dog"])


@pytest.mark.parametrize(
    "labels", [(False, True), (-1, 7), (2.0, 10.0), ("b", "a"), (np.uint8(3), np.uint8(200))], ids=lambda labels: str(labels[0])
)
def test_labels_come_back_as_they_were_given(labels: tuple[Any, Any]) -> None:
    home = gaussians("a")
    y = np.array(labels)[np.arange(20) % 2]
    classifier = PerdureClassifier().fit(home.support.x, y)
    answers = classifier.predict(home.support.x)
    assert answers.dtype == y.dtype
    assert answers.tolist() == y.tolist()


# what is refused


@pytest.mark.parametrize("learner", ["nearest", None, VariationalLearner])
def test_a_learner_that_is_none_is_refused(learner: Any) -> None:
    with pytest.raises(InputError, match='must be "analytic", "variational", an AnalyticConfig or a VariationalConfig, got'):
        PerdureClassifier(learner).fit([[0, 1], [1, 0]], [0, 1])


def test_a_query_with_other_features_is_named_as_the_culprit(wines: Wines) -> None:
    x, y, new, _ = wines
    with pytest.raises(InputError, match="`X_query` cannot be used: X has 12 features"):
        PerdureClassifier().fit(x, y, X_query=new[:, 1:])
    frame = pd.DataFrame(x).add_prefix("column ")
    with pytest.raises(InputError, match="`X_query` cannot be used: The feature names"):
        PerdureClassifier().fit(frame, y, X_query=frame[frame.columns[::-1]])


def test_an_unknown_environment_is_refused(wines: Wines) -> None:
    x, y, new, answers = wines
    classifier = PerdureClassifier().fit(x, y)
    with pytest.raises(UnknownEnvironment, match='No environment is called "farm"'):
        classifier.predict(new, environment="farm")
    with pytest.raises(UnknownEnvironment, match='No environment is called "farm"'):
        classifier.score(new, answers, environment="farm")


def test_one_feature_is_refused_by_the_analytic_learner_alone() -> None:
    x, y = np.linspace(-1, 1, 20)[:, None], np.arange(20) // 10
    with pytest.raises(InputError, match="leaves only the sign of a single feature"):
        PerdureClassifier().fit(x, y)
    assert PerdureClassifier(TINY).fit(x, y).n_features_in_ == 1


# frames


knows_polars = pytest.mark.skipif(
    int(sklearn.__version__.split(".")[1]) < 8, reason="this scikit-learn does not know the columns of a Polars frame by name"
)


def as_polars(frame: pd.DataFrame) -> pl.DataFrame:
    return pl.DataFrame({name: frame[name].to_numpy() for name in frame.columns})


@pytest.mark.parametrize("framed", [pd.DataFrame, pytest.param(as_polars, marks=knows_polars)], ids=["pandas", "polars"])
def test_frames_give_the_answers_of_arrays(framed: Callable[[Any], Any], wines: Wines) -> None:
    x, y, new, _ = wines
    names = [f"column {i}" for i in range(13)]
    column = framed(pd.DataFrame({"y": np.array(["a", "b", "c"])[y]}))["y"]
    support, query = framed(pd.DataFrame(x, columns=names)), framed(pd.DataFrame(new, columns=names))
    classifier = PerdureClassifier().fit(support, column, X_query=query)
    plain = PerdureClassifier().fit(x, y, X_query=new)
    assert classifier.feature_names_in_.tolist() == names
    assert classifier.predict(query).tolist() == np.array(["a", "b", "c"])[plain.predict(new)].tolist()
    np.testing.assert_array_equal(classifier.predict_proba(query), plain.predict_proba(new))


@pytest.mark.parametrize(("output", "kind"), [("pandas", pd.DataFrame), pytest.param("polars", pl.DataFrame, marks=knows_polars)])
def test_a_pipeline_may_hand_it_frames(output: str, kind: type, wines: Wines) -> None:
    x, y, new, _ = wines
    pipeline = make_pipeline(StandardScaler(), PerdureClassifier()).set_output(transform=output)
    pipeline.fit(pd.DataFrame(x).add_prefix("column "), y)
    assert isinstance(pipeline[0].transform(pd.DataFrame(new).add_prefix("column ")), kind)
    assert pipeline[-1].feature_names_in_[0] == "column 0"
    plain = make_pipeline(StandardScaler(), PerdureClassifier()).fit(x, y)
    np.testing.assert_array_equal(pipeline.predict_proba(pd.DataFrame(new).add_prefix("column ")), plain.predict_proba(new))


# scikit-learn's tools


def test_a_clone_has_the_settings_and_has_learned_nothing(wines: Wines) -> None:
    x, y, *_ = wines
    config = AnalyticConfig(prior=0.25)
    fitted = PerdureClassifier(config, device="cpu", verbose=True).fit(x, y)
    again = clone(fitted)
    assert again.get_params() == {"learner": config, "device": "cpu", "verbose": True}
    assert not hasattr(again, "learner_")


@pytest.mark.usefixtures("routing")
def test_a_pipeline_scales_the_query_as_it_scales_the_rows(wines: Wines) -> None:
    x, y, new, answers = wines
    steps = [("scale", StandardScaler()), ("classify", PerdureClassifier().set_fit_request(X_query=True))]
    pipeline = Pipeline(steps, transform_input=["X_query"]).fit(10 * x, y, X_query=10 * new)
    scale = StandardScaler().fit(10 * x)
    by_hand = PerdureClassifier().fit(scale.transform(10 * x), y, scale.transform(10 * new))
    np.testing.assert_array_equal(pipeline.predict_proba(10 * new), by_hand.predict_proba(scale.transform(10 * new)))
    assert pipeline.score(10 * new, answers) > 0.8


def test_cross_validation_cuts_an_array_as_long_as_the_rows_but_not_a_query(wines: Wines) -> None:
    x, y, new, _ = wines
    lengths = []

    class Watched(PerdureClassifier):
        def fit(self, X: Any, y: Any, X_query: Any = None, environment: str | None = None) -> Any:
            lengths.append(len(X_query.x if isinstance(X_query, Query) else X_query))
            return super().fit(X, y, X_query, environment)

    for query in (new[:88], Query(new[:88])):
        cross_val_score(Watched(), x, y, cv=2, params={"X_query": query})
    assert lengths == [44, 44, 88, 88]


def test_a_grid_is_searched_by_what_the_scorer_says(wines: Wines) -> None:
    x, y, new, _ = wines
    configs = [AnalyticConfig(power=power) for power in (0.1, 0.5, 1.0)]
    folds = list(StratifiedKFold(2).split(x, y))
    search = GridSearchCV(PerdureClassifier(), {"learner": configs}, scoring=label_free_scorer("infomax", new), cv=folds)
    search.fit(x, y, X_query=Query(new))

    def looks(config: AnalyticConfig, rows: Any = slice(None)) -> float:
        return validators.infomax(PerdureClassifier(config).fit(x[rows], y[rows], X_query=new).predict_proba(new))

    by_hand = [np.mean([looks(config, train) for train, _ in folds]) for config in configs]
    np.testing.assert_allclose(search.cv_results_["mean_test_score"], by_hand, rtol=1e-6)
    assert len(set(by_hand)) == 3
    assert search.best_params_ == {"learner": configs[int(np.argmax(by_hand))]}
    assert search.score(x, y) == pytest.approx(looks(search.best_params_["learner"]))


class Fixed:
    """Answers what it was given."""

    def __init__(self, p: Any) -> None:
        self.p = np.array(p)

    def predict_proba(self, X: Any) -> Any:
        return self.p


@pytest.mark.parametrize("validator", ["infomax", "entropy", "batch_nuclear_norm"])
def test_a_scorer_prefers_sure_answers_to_none(validator: Any) -> None:
    scorer = label_free_scorer(validator, np.zeros((4, 2)))
    sure, unsure = Fixed([[1.0, 0.0], [0.0, 1.0]] * 2), Fixed([[0.5, 0.5]] * 4)
    assert scorer(sure) > scorer(unsure)


def test_scorers_say_what_the_validators_say(wines: Wines) -> None:
    x, y, new, _ = wines
    classifier = PerdureClassifier().fit(x, y)
    p = classifier.predict_proba(new)
    said = {name: label_free_scorer(name, new)(classifier, x, y) for name in LABEL_FREE}
    assert said == {
        "infomax": validators.infomax(p),
        "entropy": -validators.entropy(p),
        "batch_nuclear_norm": validators.batch_nuclear_norm(p),
        "soft_neighbourhood_density": validators.soft_neighbourhood_density(p),
        "class_ami": validators.class_ami(p, new.astype(np.float32)),
    }


LABEL_FREE: list[Any] = ["infomax", "entropy", "batch_nuclear_norm", "soft_neighbourhood_density", "class_ami"]


def test_a_scorer_that_is_none_is_refused() -> None:
    with pytest.raises(InputError, match=r"`validator` must be one of 'infomax', .*, got 'accuracy'"):
        label_free_scorer("accuracy", np.zeros((4, 2)))  # type: ignore[arg-type]
