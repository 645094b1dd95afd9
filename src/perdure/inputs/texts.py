"""Texts to features: the mean over the tokens of what a pretrained network makes of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jaxtyping import Float, Int
from torch import Tensor, nn

from perdure.errors import InputError
from perdure.inputs.backbones import (
    CONFIG,
    INSTALL,
    Precision,
    Running,
    Unreadable,
    find_files,
    identify,
    in_words,
    load_network,
    quiet_transformers,
)

LONGEST = 512
"""Tokens of a text that are read, if the backbone does not ask for fewer."""


def mean_over_tokens(h: Float[Tensor, "n tokens features"], mask: Int[Tensor, "n tokens"]) -> Float[Tensor, "n features"]:
    """The mean of `h` where the mask is 1; what only fills a batch up does not count."""
    weight = mask.to(h.dtype)[..., None]
    return (h * weight).sum(dim=1) / weight.sum(dim=1).clamp(min=1)


class TextBackbone:
    """A pretrained network that turns texts into features. It is loaded when the first text needs it."""

    def __init__(
        self,
        name: str | Path,
        *,
        device: str = "auto",
        precision: Precision = "auto",
        batch: int | None = None,
        tokens: int | None = None,
    ) -> None:
        self.name = str(name)
        self.folder = find_files(name, "text")
        self.tokens = _longest(self.folder) if tokens is None else tokens
        if self.tokens < 1:
            raise InputError(f"`tokens` must be at least 1, got {tokens}.")
        self.running = Running.chosen(device, precision, batch, on_cpu=32, on_gpu=256)
        self.identity = identify(self.folder, "text", self.tokens)
        self._loaded: tuple[nn.Module, Any] | None = None

    @property
    def loaded(self) -> tuple[nn.Module, Any]:
        """The network, where it runs, and its tokenizer."""
        if self._loaded is None:
            tokenizer = _tokenizer(self.folder)
            self._loaded = load_network(self.folder, "text").eval().to(self.running.device), tokenizer
        return self._loaded

    def order(self, items: Sequence[Any]) -> Sequence[int]:
        """The longest first: texts of a length share a batch, and one that does not fit shows at once."""
        return sorted(range(len(items)), key=lambda i: -len(items[i]) if isinstance(items[i], str) else 0)

    def content(self, item: Any) -> bytes:
        """The text as UTF-8."""
        if not isinstance(item, str):
            raise Unreadable(f"A text must be a string, got {type(item).__name__}; fill in or leave out what is missing.")
        return item.encode("utf-8", "surrogatepass")

    def prepare(self, content: bytes, item: str) -> str:
        """As it is: a batch is cut into tokens together."""
        return item

    def encode(self, prepared: Sequence[str], *, exact: bool = False) -> Float[Tensor, "n features"]:
        """Features, still where they were computed."""
        network, tokenizer = self.loaded
        cut = tokenizer(list(prepared), padding=True, truncation=True, max_length=self.tokens, return_tensors="pt")
        with self.running.mixed(exact=exact):
            cut = cut.to(self.running.device, non_blocking=True)
            return mean_over_tokens(network(**cut).last_hidden_state.float(), cut["attention_mask"])


def _tokenizer(folder: Path) -> Any:
    try:
        from transformers import AutoTokenizer
    except ModuleNotFoundError as error:
        raise InputError(f"Pretrained networks need transformers ({error}): {INSTALL['text']}.") from error
    try:
        with quiet_transformers():
            return AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:
        raise InputError(f"{folder} holds no tokenizer that can be used: {in_words(error)}.") from error


def _longest(folder: Path) -> int:
    """As far as its places reach, or its tokenizer or what it was trained on asks for less."""
    asked = [LONGEST]
    for name, key in (
        (CONFIG, "max_position_embeddings"),
        ("tokenizer_config.json", "model_max_length"),
        ("sentence_bert_config.json", "max_seq_length"),
    ):
        value = json.loads((folder / name).read_text("utf-8")).get(key) if (folder / name).is_file() else None
        asked.append(int(value or LONGEST))
    return min(asked)
