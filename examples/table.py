"""Two tables in Parquet: wines with their cultivar, and a laboratory without labels, whose instruments read otherwise.

`pip install pandas`: scikit-learn hands its wines out in a frame.
"""

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from sklearn.datasets import load_wine

from perdure import AnalyticLearner
from perdure.inputs import Reader

wines = load_wine(as_frame=True).frame.sample(frac=1, random_state=0)
wines["cultivar"] = wines.pop("target").map({0: "Barolo", 1: "Grignolino", 2: "Barbera"})
columns = wines.columns.drop("cultivar")
home, away = wines[:89].copy(), wines[89:].copy()
mean, spread = home[columns].mean(), home[columns].std()  # units differ: without this the largest column would decide
home[columns] = (home[columns] - mean) / spread
away[columns] = (away[columns] - mean) / spread + np.random.default_rng(0).normal(size=len(columns))

with TemporaryDirectory() as folder:
    labelled, unlabelled = Path(folder, "home.parquet"), Path(folder, "away.parquet")
    home.to_parquet(labelled)
    away[columns].to_parquet(unlabelled)

    reader = Reader(label="cultivar")
    learner, unadapted = AnalyticLearner(), AnalyticLearner()
    for part, more in reader.parts("away", labelled, unlabelled):  # piece by piece: the labelled table may exceed memory
        learner.learn(part, more=more)
    for part, more in reader.parts("home", labelled, labelled):
        unadapted.learn(part, more=more)
    new = reader.query(unlabelled).x

for name, each in {"unadapted": unadapted, "adapted": learner}.items():
    print(f"{name}: {(each.predict(new) == away['cultivar']).mean():.1%} right")
print(f"first answers: {', '.join(learner.predict(new[:3], environment='away'))}")
