"""Pictures in folders, through a pretrained network: a shop's have their names, those from an office do not."""

import os
from pathlib import Path

import numpy as np

from perdure import AnalyticLearner, Environment, Query
from perdure.inputs import Reader

# PERDURE_DATA holds Office-31's pictures, as CLASS/FILE, and a ResNet-50 as Hugging Face saves it. Yours go here; the backbone
# may be the name of one that is fetched, such as "facebook/dinov2-small".
data = Path(os.environ.get("PERDURE_DATA", "../shared/data"))
shop, office = data / "office31_images_small" / "amazon", data / "office31_images_small" / "dslr"
reader = Reader(backbone=data / "backbones" / "resnet50-imagenet")


def some(folder: Path) -> list[Path]:
    """Three of each class, so that this takes seconds; a whole folder is read by its name, `reader.support(shop)`."""
    return [picture for label in sorted(folder.iterdir()) for picture in sorted(label.iterdir())[:3]]


def names(pictures: list[Path]) -> np.ndarray:
    return np.array([picture.parent.name for picture in pictures])


labelled, new = some(shop), some(office)
support, query = reader.support((labelled, names(labelled))), reader.query(new)  # what was seen once comes from the cache
learner, unadapted = AnalyticLearner(), AnalyticLearner()
learner.learn(Environment("office", support, query))
unadapted.learn(Environment("shop", support, Query(support.x)))
for name, each in {"unadapted": unadapted, "adapted": learner}.items():
    print(f"{name}: {(each.predict(query.x) == names(new)).mean():.1%} right")
sure, right = learner.predict_proba(query.x).max(axis=1) > 0.5, learner.predict(query.x) == names(new)
print(f"{(~sure).sum()} of {len(new)} better looked at; of the others {right[sure].mean():.1%} right")
