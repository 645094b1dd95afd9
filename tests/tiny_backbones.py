"""Pretrained networks of a few thousand random weights, saved to folders as any other; and one that needs no transformers."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from torch import Tensor

from perdure.inputs.backbones import Identity, Running, quiet_transformers
from perdure.inputs.pictures import PictureBackbone, Preprocessing

SIDE = 32
_ATTENTION = {
    "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24, "image_size": SIDE,
    "patch_size": 8,
}  # fmt: skip
_TEXT = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16, "vocab_size": 99}
_MEAN = {"image_mean": [0.5, 0.4, 0.3], "image_std": [0.2, 0.25, 0.5]}
_SHORT = {"size": {"shortest_edge": 40}, "crop_size": {"height": SIDE, "width": SIDE}, **_MEAN}
_SQUARE = {"size": {"height": SIDE, "width": SIDE}, **_MEAN}

MAKERS: dict[str, tuple[Callable[[], Any], dict[str, Any]]] = {
    "ResNet": (
        lambda: transformers.ResNetModel(
            transformers.ResNetConfig(embedding_size=4, hidden_sizes=[4, 8], depths=[1, 1], layer_type="basic")
        ),
        {"image_processor_type": "ConvNextImageProcessor", "crop_pct": 0.8, **_MEAN, "size": {"shortest_edge": SIDE}},
    ),
    "ConvNeXt": (
        lambda: transformers.ConvNextModel(
            transformers.ConvNextConfig(hidden_sizes=[4, 8], depths=[1, 1], num_stages=2, image_size=SIDE)
        ),
        {"feature_extractor_type": "ConvNextFeatureExtractor", **_MEAN, "size": SIDE},
    ),
    "ViT": (
        lambda: transformers.ViTModel(transformers.ViTConfig(**_ATTENTION)),
        {"image_processor_type": "ViTImageProcessor", **_SQUARE},
    ),
    "DINOv2": (
        lambda: transformers.Dinov2Model(
            transformers.Dinov2Config(
                hidden_size=16, num_hidden_layers=2, num_attention_heads=2, mlp_ratio=2, image_size=SIDE, patch_size=8
            )
        ),
        {"image_processor_type": "BitImageProcessor", "resample": 3, **_SHORT},
    ),
    "CLIP": (
        lambda: transformers.CLIPModel(transformers.CLIPConfig(text_config=_TEXT, vision_config=_ATTENTION, projection_dim=8)),
        {"feature_extractor_type": "CLIPFeatureExtractor", **_MEAN, "size": 36, "crop_size": SIDE},
    ),
    "SigLIP": (
        lambda: transformers.SiglipModel(
            transformers.SiglipConfig(
                text_config={**_TEXT, "projection_size": 16, "bos_token_id": 1, "eos_token_id": 2}, vision_config=_ATTENTION
            )
        ),
        {"image_processor_type": "SiglipImageProcessor", "resample": 3, **_SQUARE},
    ),
}
"""Name → what makes the network, and its preprocessing as it is stored."""


def save(folder: Path, name: str) -> Path:
    """A folder with a network of this architecture."""
    make, preprocessing = MAKERS[name]
    torch.manual_seed(0)
    made = make()
    with torch.no_grad():
        for parameter in made.parameters():  # those made to be small at first say little
            parameter.normal_(0, 0.3)
    with quiet_transformers():
        made.save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(json.dumps(preprocessing))
    return folder


class Colours:
    """Stands in for a backbone: the features of a picture are its mean red, green and blue. Counts what passes through it."""

    def __init__(self, batch: int = 4, network: str = "colours") -> None:
        self.name = "colours"
        self.identity = Identity("pictures", network, "none")
        self.running = Running("cpu", "float32", batch)
        self.seen: list[int] = []
        self.preprocessing = Preprocessing((4, 4), None, 0, (0.0, 0.0, 0.0), (1.0, 1.0, 1.0))

    order = PictureBackbone.order
    content = PictureBackbone.content
    prepare = PictureBackbone.prepare

    def encode(self, prepared: Sequence[Any], *, exact: bool = False) -> Tensor:
        self.seen.append(len(prepared))
        return torch.from_numpy(np.stack(prepared).astype(np.float32).mean(axis=(1, 2)))

    @property
    def count(self) -> int:
        return sum(self.seen)
