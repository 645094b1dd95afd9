"""Networks from pictures to feature vectors that a method trains along, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal, TypeAlias

from torch import nn

BackboneName: TypeAlias = Literal["small convolutional"]
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


BACKBONES: Mapping[BackboneName, Callable[[], nn.Module]] = {"small convolutional": small_convolutional}
"""All there are. A bigger one, such as a pretrained ResNet without its last layer, is one more function and one more name."""
