"""Both learners as one scikit-learn classifier, and validators as scorers that read no label of the query."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.metrics import accuracy_score
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from perdure.analytic import AnalyticConfig, AnalyticLearner
from perdure.errors import InputError
from perdure.streams import Environment, Label, Labels, Query, Rows, Support, as_labels, as_rows
from perdure.validators import batch_nuclear_norm, class_ami, entropy, infomax, soft_neighbourhood_density
from perdure.variational import VariationalConfig, VariationalLearner

LabelFree: TypeAlias = Literal["infomax", "entropy", "batch_nuclear_norm", "soft_neighbourhood_density", "class_ami"]


class PerdureClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A scikit-learn classifier that adapts to unlabelled rows while it is fitted.

    `fit` learns one environment and forgets all others; `partial_fit` learns one more. Without `X_query` the rows of `X` are
    their own query: nothing is known to have shifted, and every call is still an environment of its own. `predict` takes rows of
    unknown origin unless `environment` says where they come from.

    After fitting: `classes_`, `n_features_in_`, `feature_names_in_` where `X` had names, and `learner_`, the learner itself. It
    saves, forgets and says what it holds. A class that is forgotten keeps its place in `classes_`, with probability 0.

    Cross-validation cuts arguments of `fit` that have as many rows as `X` along with it; a `perdure.Query` is never cut, so give
    `X_query` as one there.

    >>> import numpy as np
    >>> from perdure.sklearn import PerdureClassifier
    >>> rng = np.random.default_rng(0)
    >>> y = np.repeat(["cat", "dog"], 40)
    >>> x = rng.normal(size=(80, 8)) + 3 * (y == "dog")[:, None]
    >>> classifier = PerdureClassifier().fit(x, y, X_query=x + 0.5, environment="clinic")
    >>> classifier.predict_proba(x + 0.5, environment="clinic").shape, classifier.classes_.tolist()
    ((80, 2), ['cat', 'dog'])
    """

    classes_: NDArray[Any]
    learner_: AnalyticLearner | VariationalLearner

    def __init__(
        self,
        learner: Literal["analytic", "variational"] | AnalyticConfig | VariationalConfig = "analytic",
        *,
        device: str = "cpu",
        verbose: bool = False,
    ) -> None:
        """`learner`: which one, by name for its defaults or by its configuration. `device`: where the variational one trains;
        `verbose`: whether it shows a bar."""
        self.learner = learner
        self.device = device
        self.verbose = verbose

    def fit(self, X: Any, y: Any, X_query: Any = None, environment: str | None = None) -> PerdureClassifier:
        """Learn this environment and no other."""
        return self._learned(self._new_learner(), X, y, X_query, environment, None)

    def partial_fit(
        self, X: Any, y: Any, X_query: Any = None, environment: str | None = None, classes: Any = None
    ) -> PerdureClassifier:
        """Learn one more environment.

        `classes`: all that will ever come, so that the columns of `predict_proba` never change. Unlike elsewhere in scikit-learn
        they need not be known: without them columns are added as classes arrive.
        """
        first = not hasattr(self, "learner_")
        return self._learned(self._new_learner() if first else self.learner_, X, y, X_query, environment, classes)

    def _learned(
        self,
        learner: AnalyticLearner | VariationalLearner,
        X: Any,
        y: Any,
        X_query: Any,
        environment: str | None,
        classes: Any,
    ) -> PerdureClassifier:
        """What a call did stands only once all of it has been done."""
        first = learner is not getattr(self, "learner_", None)
        X, y = validate_data(self, X, y, dtype=np.float32, ensure_min_samples=2, reset=first)
        check_classification_targets(y)
        if isinstance(learner, AnalyticLearner) and X.shape[1] == 1:
            raise InputError(
                "X has 1 feature(s); the analytic learner brings each row to length one, which leaves only the sign of a single "
                "feature. Give it at least two, better dozens, or choose a VariationalConfig."
            )
        known = np.unique(y) if classes is None else np.unique(np.asarray(classes))
        if not np.isin(y, known).all():
            raise InputError(f"`classes` lacks {sorted(set(np.unique(y).tolist()) - set(known.tolist()))}, which `y` has.")
        query = X if X_query is None else self._query(X_query)
        if environment is None:
            environment = next(name for name in map(str, count(1)) if name not in learner.environments)
        arrived = Environment(environment, Support(X, y), Query(query))
        if isinstance(learner, AnalyticLearner):
            learner.learn(arrived)
        else:
            learner.learn(arrived, progress=None if self.verbose else False)
        self.classes_ = known if first else np.union1d(self.classes_, known)
        self.learner_ = learner
        return self

    def predict(self, X: Any, environment: str | None = None) -> Labels:
        """The likeliest class of each row."""
        best = self.predict_proba(X, environment).argmax(axis=1)
        answers: Labels = self.classes_[best]
        return answers

    def predict_proba(self, X: Any, environment: str | None = None) -> NDArray[np.float32]:
        """Probability of each class, in the order of `classes_`."""
        check_is_fitted(self)
        rows = validate_data(self, X, dtype=np.float32, reset=False)
        answers = self.learner_.predict_proba(rows, environment)
        probabilities = np.zeros((len(rows), len(self.classes_)), dtype=answers.dtype)
        probabilities[:, _columns(self.classes_, self.learner_.classes)] = answers
        return probabilities

    def score(self, X: Any, y: Any, sample_weight: Any = None, environment: str | None = None) -> float:
        """Fraction of rows answered right."""
        return float(accuracy_score(y, self.predict(X, environment), sample_weight=sample_weight))

    def _new_learner(self) -> AnalyticLearner | VariationalLearner:
        match self.learner:
            case "analytic":
                return AnalyticLearner()
            case "variational":
                return VariationalLearner(device=self.device)
            case AnalyticConfig():
                return AnalyticLearner(self.learner)
            case VariationalConfig():
                return VariationalLearner(self.learner, device=self.device)
        raise InputError(
            f'`learner` must be "analytic", "variational", an AnalyticConfig or a VariationalConfig, got {self.learner!r}.'
        )

    def _query(self, X_query: Any) -> Rows:
        """Its rows, with the features that `X` has."""
        try:
            rows: Rows = validate_data(self, X_query.x if isinstance(X_query, Query) else X_query, dtype=np.float32, reset=False)
        except ValueError as error:
            raise InputError(f"`X_query` cannot be used: {error}") from error
        return rows


def label_free_scorer(validator: LabelFree, X_query: Any) -> LabelFreeScorer:
    """A scorer for `GridSearchCV` and `cross_val_score`: how good the answers to these unlabelled rows look. Higher is better.

    `validator` is a function of `perdure.validators`, which says what it means and where it misleads. The held-out fold is not
    looked at. Those that weigh losses on the support are not among them: they judge a classifier where the support lies, and one
    that moved to where the query lies is not meant to be right there.
    """
    if validator not in get_args(LabelFree):
        raise InputError(f"`validator` must be one of {', '.join(map(repr, get_args(LabelFree)))}, got {validator!r}.")
    return LabelFreeScorer(validator, X_query.x if isinstance(X_query, Query) else X_query)


@dataclass(frozen=True, eq=False)
class LabelFreeScorer:
    """Called by scikit-learn with a fitted classifier; made by `label_free_scorer`."""

    validator: LabelFree
    X_query: Any

    def __call__(self, estimator: Any, X: Any = None, y: Any = None) -> float:
        p_q = np.asarray(estimator.predict_proba(self.X_query))
        match self.validator:
            case "infomax":
                return infomax(p_q)
            case "entropy":
                return -entropy(p_q)  # of which less is better
            case "batch_nuclear_norm":
                return batch_nuclear_norm(p_q)
            case "soft_neighbourhood_density":
                return soft_neighbourhood_density(p_q)
            case "class_ami":
                return class_ami(p_q, as_rows(self.X_query, "query"))


def _columns(classes: NDArray[Any], learned: list[Label]) -> NDArray[np.intp]:
    """Where the learner's classes stand among those the user named, which may be of another type: True or 1.0 for its 1."""
    return np.searchsorted(as_labels(classes), np.array(learned))
