"""Laboratories join one after another, each with instruments that read otherwise; one of them asks to be forgotten."""

import numpy as np
from sklearn.datasets import load_wine
from sklearn.preprocessing import StandardScaler

from perdure import AnalyticLearner, Environment, Query, Support

x, y = load_wine(return_X_y=True)
x = StandardScaler().fit_transform(x)
rng = np.random.default_rng(0)
order = rng.permutation(len(x))
known, *rest = np.array_split(order, [60, 100, 140])  # 60 wines have labels; each laboratory measures others, without labels
sites = {site: (x[rows] + rng.normal(size=13), y[rows]) for site, rows in zip(("Asti", "Bari", "Como"), rest, strict=True)}


def right(learner: AnalyticLearner) -> str:
    answered = {site: (learner.predict(sites[site][0], site) == sites[site][1]).mean() for site in learner.environments}
    return ", ".join(f"{site} {part:.0%}" for site, part in answered.items())


learner, never_saw_bari = AnalyticLearner(), AnalyticLearner()
for site, (measured, _) in sites.items():
    arrived = Environment(site, Support(x[known], y[known]), Query(measured))
    learner.learn(arrived)
    if site != "Bari":
        never_saw_bari.learn(arrived)
    print(f"{site} joined: {right(learner)}")

learner.forget("Bari")
print(f"Bari forgotten: {right(learner)}")
everything = np.concatenate([measured for measured, _ in sites.values()])
apart = np.abs(learner.predict_proba(everything) - never_saw_bari.predict_proba(everything)).max()
print(f"as if it had never joined: {apart < 1e-6}")
