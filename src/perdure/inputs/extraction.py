"""From many inputs to features: what was computed before is read, the rest goes through a backbone and is kept."""

from __future__ import annotations

import tempfile
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
import torch
from torch import Tensor

from perdure.errors import InputError
from perdure.inputs.backbones import Backbone, Unreadable, threads
from perdure.inputs.cache import FeatureCache, key_of
from perdure.progress import Progress, interruptible, progress_bar
from perdure.streams import Rows

Broken = Literal["stop", "skip"]
Result = TypeVar("Result")


@dataclass(frozen=True, eq=False)
class Extracted:
    """Features, and what became of the inputs."""

    x: Rows
    of: list[int]
    """Which input each row is of: all of them, but for broken ones."""
    broken: list[str]
    """A sentence for each input that was left out."""
    computed: int
    """How many went through the backbone; the others were there, or were the same as another."""


def extract(
    items: Sequence[Any],
    backbone: Backbone,
    *,
    cache: str | Path | None = None,
    keep: bool = True,
    broken: Broken = "stop",
    progress: Progress = None,
) -> Extracted:
    """The features of pictures or texts, in their order.

    They are kept in the folder `cache` (see `perdure.inputs.cache`), or nowhere without `keep`. A picture that cannot be read
    stops the work, or is left out and named with `broken="skip"`; what was computed before is kept either way, and after Ctrl-C.
    """
    if broken not in ("stop", "skip"):
        raise InputError(f'`broken` must be "stop" or "skip", got {broken!r}.')
    if len(items) == 0:
        raise InputError("There is nothing to turn into features; give at least one picture or text.")
    with _folder(cache, keep) as folder:
        kept = FeatureCache(folder, {**backbone.identity.to_json(), "precision": backbone.running.precision})
        keys, faults, computed = _fill(kept, items, backbone, broken, progress)
        of = sorted(keys)
        if not of:
            raise InputError(f"None of {len(items)} can be read. The first: {faults[0]}")
        return Extracted(kept.read([keys[i] for i in of]), of, faults, computed)


def _fill(
    kept: FeatureCache, items: Sequence[Any], backbone: Backbone, broken: Broken, progress: Progress
) -> tuple[dict[int, bytes], list[str], int]:
    """Compute and keep what is missing: the key of each item, a sentence for each broken one, and how many were computed."""
    keys: dict[int, bytes] = {}
    faults: list[str] = []
    at_once, computed = backbone.running.batch, 0

    def look(i: int) -> tuple[bytes, Any] | Unreadable:
        try:
            content = backbone.content(items[i])
            key = key_of(content)
            return key, None if key in kept else backbone.prepare(content, items[i])
        except Unreadable as error:
            return error

    unit = "img" if backbone.identity.kind == "pictures" else "text"
    with (
        kept.writing() as add,
        ThreadPoolExecutor(threads()) as pool,
        interruptible() as interrupted,
        progress_bar(progress, "features", len(items), 0, unit) as report,
    ):
        missing: dict[bytes, tuple[int, Any]] = {}
        under_way: tuple[dict[bytes, tuple[int, Any]], Tensor] | None = None

        def finish() -> None:
            """Wait for what is under way, and keep it."""
            nonlocal under_way, computed
            if under_way is not None:
                batch, features = under_way
                add(list(batch), _finite(features, backbone, items, batch))
                computed, under_way = computed + len(batch), None

        def begin() -> None:
            """Send what is missing through the backbone; a GPU works on it while the next pictures are read."""
            nonlocal under_way, missing, at_once
            features, at_once = _encoded(backbone, [prepared for _, prepared in missing.values()], at_once)
            batch, missing = missing, {}
            finish()
            under_way = batch, features

        for i, seen in _ahead(pool, look, backbone.order(items), 2 * backbone.running.batch):
            if isinstance(seen, Unreadable):
                if broken == "stop":
                    finish()
                    raise seen
                faults.append(str(seen))
                continue
            keys[i], prepared = seen
            if prepared is not None and (under_way is None or keys[i] not in under_way[0]):
                missing[keys[i]] = i, prepared
            if len(missing) >= at_once:
                begin()
            report(len(keys) + len(faults) - len(missing) - (len(under_way[0]) if under_way else 0))
            if interrupted():
                finish()
                raise KeyboardInterrupt
        if missing:
            begin()
        finish()
        report(len(items))
    return keys, faults, computed


def _ahead(
    pool: ThreadPoolExecutor, look: Callable[[int], Result], order: Sequence[int], count: int
) -> Iterator[tuple[int, Result]]:
    """What is seen at each place, in this order, while some threads look up to `count` places ahead."""
    waiting: deque[tuple[int, Future[Result]]] = deque()
    try:
        for i in order:
            waiting.append((i, pool.submit(look, i)))
            if len(waiting) > count:
                i, future = waiting.popleft()
                yield i, future.result()
        while waiting:
            i, future = waiting.popleft()
            yield i, future.result()
    finally:
        for _, future in waiting:
            future.cancel()


def _encoded(backbone: Backbone, prepared: Sequence[Any], at_once: int) -> tuple[Tensor, int]:
    """Features, and how many items fit into memory together: half as many, as often as it takes."""
    try:
        return torch.cat([backbone.encode(prepared[i : i + at_once]) for i in range(0, len(prepared), at_once)]), at_once
    except torch.cuda.OutOfMemoryError as error:
        if at_once == 1:
            raise InputError(f"Not even one input fits into the memory of the device with {backbone.name}.") from error
    torch.cuda.empty_cache()
    return _encoded(backbone, prepared, at_once // 2)


def _finite(features: Tensor, backbone: Backbone, items: Sequence[Any], batch: dict[bytes, tuple[int, Any]]) -> Rows:
    """As an array; where half precision was not enough, computed again in full."""
    x: Rows = features.cpu().numpy()
    if not np.isfinite(x).all() and backbone.running.precision != "float32":
        x = backbone.encode([prepared for _, prepared in batch.values()], exact=True).cpu().numpy()
    if not np.isfinite(x).all():
        i, _ = list(batch.values())[int((~np.isfinite(x).all(axis=1)).argmax())]
        raise InputError(f"{_named(items[i])} gets features that are no numbers; is {backbone.name} damaged?")
    return x


def _named(item: Any) -> str:
    return str(item) if isinstance(item, (str, Path)) and len(str(item)) < 200 else f"A {type(item).__name__}"


@contextmanager
def _folder(cache: str | Path | None, keep: bool) -> Iterator[str | Path | None]:
    if keep:
        yield cache
        return
    with tempfile.TemporaryDirectory(prefix="perdure-features-") as folder:
        yield folder
