"""Digits in another light: a scikit-learn pipeline adapts to them, with a setting chosen without a label of that light."""

import sklearn
from sklearn.datasets import load_digits
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import StandardScaler

from perdure import AnalyticConfig
from perdure.sklearn import PerdureClassifier, label_free_scorer

x, y = load_digits(return_X_y=True)
x, y, new, answers = x[::2], y[::2], x[1::2] * range(63, -1, -1) / 32, y[1::2]  # the new ones are lit from above

sklearn.set_config(enable_metadata_routing=True)  # so that the pipeline scales X_query, too
pipeline = Pipeline(
    [("scale", StandardScaler(with_mean=False)), ("classify", PerdureClassifier().set_fit_request(X_query=True))],
    transform_input=["X_query"],
)
search = GridSearchCV(
    pipeline,
    {"classify__learner": [AnalyticConfig(power=power) for power in (0.25, 0.5, 1.0)]},
    scoring=label_free_scorer("infomax", new),
    cv=3,
)
search.fit(x, y, X_query=new)

chosen = search.best_params_["classify__learner"]
before = pipeline.set_params(classify__learner=chosen).fit(x, y).score(new, answers)  # the labels only say how it went
print(f"power {chosen.power}: {before:.1%} right before, {search.best_estimator_.score(new, answers):.1%} adapted")
