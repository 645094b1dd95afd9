"""Networks from pictures to feature vectors that a method trains along, by name."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal, TypeAlias

from torch import nn

from perdure.inputs.pictures import pretrained
from perdure.scenarios.frozen import data_file

BackboneName: TypeAlias = Literal["small convolutional", "resnet50"]
"""What a planned run can carry from one process to another; a network it cannot."""


def small_convolutional() -> nn.Module:
    """From 3 x 28 x 28 to 128 features, from scratch.

    A picture is normalised by itself, channel by channel, and no layer averages over rows: support and query go through in
    one batch while learning, but a query comes alone when it is answered.
    """
    return nn.Sequential(
        nn.InstanceNorm2d(3),
        nn.Conv2d(3, 24, 5, stride=2, padding=2),
        nn.ReLU(),
        nn.Conv2d(24, 48, 5, stride=2, padding=2),
        nn.GroupNorm(6, 48),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(48 * 7 * 7, 128),
        nn.ReLU(),
    )


RESNET50 = "backbones/resnet50-imagenet"
"""Where it is in the folder of test data."""


def resnet50() -> nn.Module:
    """The paper's ResNet-50, pretrained on ImageNet and without its last layer: from 3 x 224 x 224, 0 to 1, to 2048 features.

    Its folder, as Hugging Face saves it, is `PERDURE_BACKBONE`; without that, a part of the test data.
    """
    return pretrained(Path(os.environ.get("PERDURE_BACKBONE") or data_file(RESNET50)))


BACKBONES: Mapping[BackboneName, Callable[[], nn.Module]] = {"small convolutional": small_convolutional, "resnet50": resnet50}
"""All there are."""
