"""The solver: the one classifier over every class seen so far. `f` and `f'` share its architecture."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn


class TwoLayerClassifier(nn.Module):
    """Linear, ReLU, linear; its output grows as classes arrive and shrinks as they are forgotten."""

    def __init__(self, features: int, width: int, classes: int) -> None:
        super().__init__()
        self.hidden = nn.Linear(features, width)
        self.output = nn.Linear(width, classes)

    def forward(self, h: Float[Tensor, "n features"]) -> Float[Tensor, "n classes"]:
        logits: Tensor = self.output(self.hidden(h).relu())
        return logits

    @property
    def classes(self) -> int:
        """How many classes it tells apart now."""
        return self.output.out_features

    @torch.no_grad()
    def grow(self, classes: int) -> None:
        """Room for `classes` classes; what is known of the present ones stays as it is."""
        new = nn.Linear(self.output.in_features, classes).to(self.output.weight.device)
        new.weight[: self.classes] = self.output.weight
        new.bias[: self.classes] = self.output.bias
        self.output = new

    @torch.no_grad()
    def keep(self, classes: Int[Tensor, " kept"]) -> None:
        """Only these outputs, in this order."""
        new = nn.Linear(self.output.in_features, len(classes)).to(self.output.weight.device)
        new.weight.copy_(self.output.weight[classes])
        new.bias.copy_(self.output.bias[classes])
        self.output = new
