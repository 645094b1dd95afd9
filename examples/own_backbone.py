"""A small convolutional network of your own, trained along with the paper's learner, on digits in two lights."""

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn

from perdure import Environment, Query, Support, VariationalConfig, VariationalLearner


def backbone() -> nn.Module:
    """Called for each environment; any module from a batch of inputs to a batch of vectors will do."""
    return nn.Sequential(
        *(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.Flatten()),
    )


torch.set_num_threads(1)
digits = load_digits()
pictures, y = digits.images[:, None].astype(np.float32) / 16, digits.target  # n x channel x 8 x 8
shaded = pictures * np.linspace(0, 2, 8, dtype=np.float32)[:, None]  # the same, lit from below
config = VariationalConfig(latent=64, features=128, width=128, warm_up=40, steps=80, inference_rate=1e-3)
learner = VariationalLearner(config, backbone=backbone)

tasks = {"0 and 1": (0, 1), "2 and 3": (2, 3)}
for name, classes in tasks.items():
    rows = np.isin(y, classes)
    learner.learn(Environment(name, Support(pictures[rows], y[rows]), Query(shaded[rows])), progress=False)
for name, classes in tasks.items():
    rows = np.isin(y, classes)
    print(f"{name}: {(learner.predict(shaded[rows], environment=name) == y[rows]).mean():.1%} right")
