"""The inference module: filters both streams into domain-agnostic features h."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from perdure.objectives import Posterior

Stream = Literal["support", "query"]


class Centring(nn.Module):
    """Each stream minus its own mean, brought to one common length: an alignment of first moments that needs no labels."""

    mean: Tensor
    scale: Tensor

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(shape))
        self.register_buffer("scale", torch.ones(()))

    @torch.no_grad()
    def fit(self, x: Float[Tensor, "n *input"], length: float) -> None:
        """From now on rows like `x` have mean zero and root mean square length `length`."""
        self.mean.copy_(x.mean(dim=0))
        spread = (x - self.mean).flatten(1).square().sum(dim=1).mean().sqrt()
        if spread > 0:
            self.scale.copy_(length / spread)

    def forward(self, x: Float[Tensor, "n *input"]) -> Float[Tensor, "n *input"]:
        return (x - self.mean) * self.scale


class Encoder(nn.Module):
    """$q(z|x,c)$: a backbone (or the features as they are, centred), then one linear layer to mean and log-variance."""

    def __init__(self, inputs: int, latent: int, backbone: nn.Module | None = None, precision: torch.dtype | None = None) -> None:
        """With `precision` the backbone multiplies in that, under autocast; all else is float32."""
        super().__init__()
        shape = (inputs,) if backbone is None else ()
        self.support, self.query = Centring(shape), Centring(shape)
        self.backbone = nn.Identity() if backbone is None else backbone
        self.precision = precision
        self.to_posterior = nn.Linear(inputs, 2 * latent)

    def forward(self, x: Float[Tensor, "n *input"], stream: Stream) -> Posterior:
        return self._posterior(self.support(x) if stream == "support" else self.query(x))

    def both(self, x_s: Float[Tensor, "s *input"], x_q: Float[Tensor, "q *input"]) -> Posterior:
        """Support rows, then query rows, through one matrix product."""
        return self._posterior(torch.cat([self.support(x_s), self.query(x_q)]))

    def _posterior(self, x: Float[Tensor, "n *input"]) -> Posterior:
        return Posterior(*self.to_posterior(self._features(x)).chunk(2, dim=1))

    def _features(self, x: Float[Tensor, "n *input"]) -> Float[Tensor, "n inputs"]:
        with nullcontext() if self.precision is None else torch.autocast(x.device.type, self.precision):
            features: Tensor = self.backbone(x)
        return features.float()


class Decoder(nn.Module):
    """$p(h|z,c)$: linear, ReLU, batch norm."""

    def __init__(self, latent: int, features: int) -> None:
        super().__init__()
        self.linear = nn.Linear(latent, features)
        self.norm = nn.BatchNorm1d(features)

    def forward(self, z: Float[Tensor, "n latent"]) -> Float[Tensor, "n features"]:
        h: Tensor = self.norm(self.linear(z).relu())
        return h

    def both(self, z: Float[Tensor, "n latent"], support_rows: int) -> Float[Tensor, "n features"]:
        """Support rows, then query rows: one matrix product, but each stream normalised by its own batch statistics."""
        streams = self.linear(z).relu().split([support_rows, len(z) - support_rows])
        return torch.cat([self.norm(rectified) for rectified in streams])


class InferenceModule(nn.Module):
    r"""$\Psi: x\to h$. The condition c of an environment is the choice of its module (docs/paper.md, "The condition c")."""

    def __init__(
        self,
        inputs: int,
        latent: int,
        features: int,
        backbone: nn.Module | None = None,
        precision: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.encode = Encoder(inputs, latent, backbone, precision)
        self.decode = Decoder(latent, features)
        self.frozen = frozenset(name for name, weight in self.encode.backbone.named_parameters() if not weight.requires_grad)
        """Weights of the backbone that whoever made it froze."""

    def requires_grad_(self, requires_grad: bool = True) -> InferenceModule:
        """As usual, but what a backbone came with frozen stays so."""
        super().requires_grad_(requires_grad)
        for name, weight in self.encode.backbone.named_parameters():
            weight.requires_grad_(requires_grad and name not in self.frozen)
        return self

    def forward(self, x: Float[Tensor, "n *input"], stream: Stream = "query") -> Float[Tensor, "n features"]:
        """The features h at the posterior's mean: deterministic, for answering."""
        h: Tensor = self.decode(self.encode(x, stream).mean)
        return h
