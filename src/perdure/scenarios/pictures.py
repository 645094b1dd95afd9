"""Scenarios of pictures from folders: features of a frozen backbone, or pixels for one that is trained along."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache, partial
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np
from jaxtyping import Float, UInt8

from perdure.errors import InputError
from perdure.inputs.backbones import Backbone
from perdure.inputs.extraction import extract
from perdure.inputs.folders import Picture
from perdure.inputs.pictures import PictureBackbone, open_picture, resized
from perdure.progress import Progress
from perdure.scenarios import layouts, office_home
from perdure.streams import Answers, Environment, Labels, Query, Scenario, Support

SHORT = 256 / 224
"""What the short side is brought to before the centre is cut out of it, as a multiple of the latter."""
BILINEAR = 2
"""Pillow's number for it."""
Rows: TypeAlias = Float[np.ndarray, "n *row"]


def folder(
    path: str | Path,
    support: str,
    queries: Sequence[str],
    tasks: int | Sequence[Sequence[str]] | None = None,
    *,
    classes: Sequence[str] | Literal["shared"] | None = None,
    backbone: Backbone | str | Path | None = None,
    cache: str | Path | None = None,
    size: int = 224,
    inductive: bool = False,
    seed: int = 0,
    progress: Progress = None,
) -> Scenario:
    """The domain `support` with labels, and each of `queries` without, from `<path>/<domain>/[images/]<class>/<file>`.

    Without `tasks` the domain drifts and all classes are there from the start; with a number of tasks, or with the classes of
    each, the classes of each query come one task after another. Classes are those of all domains asked for, which must have the
    same unless `classes` names some, or says "shared"; their order is that of the data set, where it is one that is known.

    The rows are features of `backbone` (a name, a folder or a backbone), kept in `cache`; without one they are squares of pixels
    from 0 to 1, for a learner that trains a backbone along. With `inductive` a random half of each query set is kept aside and
    never adapted to, or the data set's own list of test pictures.
    """
    layout = layouts.read(Path(path))
    support, queries = (
        layout.domain(support),
        [layout.domain(query) for query in ([queries] if isinstance(queries, str) else queries)],
    )
    if not queries:
        raise InputError("`queries` names no domain; name at least one.")
    chosen = _classes(layout, [support, *queries], classes)
    parts = _tasks(layout, tasks, chosen)
    steps = [
        (f"{support}→{query}" + ("" if tasks is None else f" task {number}"), query, part)
        for query in queries
        for number, part in enumerate(parts, 1)
    ]
    wanted = [*layout.pictures, *(layout.aside if inductive else [])]
    wanted = [each for each in wanted if each.domain in (support, *queries) and each.label in set(chosen)]
    if backbone is None:
        rows = _pixels(size)
    else:
        frozen = backbone if not isinstance(backbone, (str, Path)) else PictureBackbone(backbone)
        rows = _features(wanted, frozen, cache, progress)
    title = f"{layout.published.name if layout.published else Path(path).name} {support}→{','.join(queries)}"
    return _scenario(title, layout, support, steps, rows, inductive, seed)


def office_home_domains(support: str, queries: tuple[str, ...], *, inductive: bool = False, seed: int = 0) -> Scenario:
    """Office-Home's Scenario 2 ("Ar", "Cl", "Pr" or "Rw") on its pictures, which are in the folder `PERDURE_PICTURES`.

    Where the stored features are those of the same pictures, the same halves are kept aside.
    """
    folders = office_home.DOMAINS
    unknown = [name for name in (support, *queries) if name not in folders]
    if unknown:
        raise InputError(f"No domains of Office-Home are called {unknown}. Known: {', '.join(folders)}.")
    layout = layouts.read(office_home_folder())
    by_short = {name: layout.domain(folders[name]) for name in (support, *queries)}
    chosen = _classes(layout, list(by_short.values()), None)
    steps = [(f"{support}→{query}", by_short[query], chosen) for query in queries]
    title = f"Office-Home pictures {support}→{','.join(queries)}"
    return _scenario(title, layout, by_short[support], steps, _pixels(224), inductive, seed)


def office_home_folder() -> Path:
    """Where the pictures of Office-Home are."""
    folder = os.environ.get("PERDURE_PICTURES")
    if not folder:
        raise InputError(
            "The pictures of Office-Home are needed: set PERDURE_PICTURES to the folder that holds "
            f"{', '.join(office_home.DOMAINS.values())}."
        )
    return Path(folder)


def _scenario(
    title: str,
    layout: layouts.Layout,
    support: str,
    steps: Sequence[tuple[str, str, Sequence[str]]],
    rows: Callable[[Sequence[Picture]], Rows],
    inductive: bool,
    seed: int,
) -> Scenario:
    """`steps`: what each environment is called, the domain of its query and the classes of both halves."""

    def of(pictures: Sequence[Picture], domain: str, classes: Sequence[str]) -> tuple[Rows, Labels]:
        some = [each for each in pictures if each.domain == domain and each.label in classes]
        return rows(some), np.array([each.label for each in some])

    supports: dict[tuple[str, ...], Support] = {}  # environments with the same classes have the same support
    environments, transductive, aside = [], {}, {}
    for number, (name, query, classes) in enumerate(steps):
        if tuple(classes) not in supports:
            supports[tuple(classes)] = Support(*of(layout.pictures, support, classes))
        x, y = of(layout.pictures, query, classes)
        if inductive and any(each.domain == query for each in layout.aside):
            aside[name] = Support(*of(layout.aside, query, classes))
        elif inductive:
            shuffled = np.random.default_rng((seed, number)).permutation(len(y))
            kept, shown = np.sort(shuffled[: len(y) // 2]), np.sort(shuffled[len(y) // 2 :])
            aside[name] = Support(x[kept], y[kept])
            x, y = x[shown], y[shown]
        environments.append(Environment(name, supports[tuple(classes)], Query(x)))
        transductive[name] = y
    return Scenario(title, environments, Answers(transductive, aside))


def _classes(layout: layouts.Layout, domains: Sequence[str], asked: Sequence[str] | Literal["shared"] | None) -> list[str]:
    """Those asked for, or all, in their order; each of these domains must have them."""
    there = {domain: layout.classes_of(domain) for domain in domains}
    if asked == "shared":
        shared = set.intersection(*there.values())
        if not shared:
            raise InputError(f"{layout.folder}: no class is in all of {', '.join(domains)}.")
        return [name for name in layout.classes if name in shared]
    wanted = set().union(*there.values()) if asked is None else set(_spelled(layout, asked))
    for domain in domains:
        lacking = [name for name in layout.classes if name in wanted - there[domain]]
        if lacking:
            raise InputError(
                f"{layout.folder / domain} has no pictures of the classes {lacking}. Name `classes` that all domains have, "
                'or say classes="shared".'
            )
    return [name for name in layout.classes if name in wanted]


def _tasks(layout: layouts.Layout, tasks: int | Sequence[Sequence[str]] | None, classes: Sequence[str]) -> list[list[str]]:
    """The classes of each task. A number cuts them into tasks of one size, what is left over goes to the last ones."""
    if tasks is None:
        return [list(classes)]
    if isinstance(tasks, int):
        if not 1 <= tasks <= len(classes):
            raise InputError(f"`tasks` must be a number from 1 to {len(classes)}, that of the classes, got {tasks}.")
        sizes = [len(classes) // tasks + (i >= tasks - len(classes) % tasks) for i in range(tasks)]
        ends = np.cumsum(sizes)
        return [list(classes[end - size : end]) for size, end in zip(sizes, ends, strict=True)]
    parts = [_spelled(layout, names) for names in tasks]
    odd = [name for names in parts for name in names if name not in classes] + [i for i, names in enumerate(parts) if not names]
    if odd:
        raise InputError(f"`tasks` must name classes that all domains have, at least one a task; got {odd}.")
    return parts


def _spelled(layout: layouts.Layout, names: Sequence[str]) -> list[str]:
    """Names of classes as the folders spell them."""
    if isinstance(names, str):
        raise InputError(f'`classes` must be a list of names or "shared", got {names!r}.')
    known = {layouts.plain(name) if layout.published else name: name for name in layout.classes}
    unknown = [name for name in names if (layouts.plain(name) if layout.published else name) not in known]
    if unknown:
        raise InputError(f"{layout.folder} has no pictures of the classes {unknown} in any domain.")
    return [known[layouts.plain(name) if layout.published else name] for name in names]


def _features(
    pictures: Sequence[Picture], backbone: Backbone, cache: str | Path | None, progress: Progress
) -> Callable[[Sequence[Picture]], Rows]:
    """The features of some of these pictures, all of which go through the backbone once."""
    x = extract([each.file for each in pictures], backbone, cache=cache, progress=progress).x
    place = {each.file: row for row, each in enumerate(pictures)}
    return lambda some: x[[place[each.file] for each in some]]


def _pixels(size: int) -> Callable[[Sequence[Picture]], Rows]:
    if size < 1:
        raise InputError(f"`size` must be positive, got {size}.")
    return lambda some: pixels(tuple(each.file for each in some), size)


def pixels(files: tuple[Path, ...], size: int) -> Float[np.ndarray, "n 3 size size"]:
    """The middle of each picture, 0 to 1."""
    x = _stored_pixels(files, size).transpose(0, 3, 1, 2).astype(np.float32, order="C")
    x /= 255
    return x


@lru_cache(maxsize=4)
def _stored_pixels(files: tuple[Path, ...], size: int) -> UInt8[np.ndarray, "n size size 3"]:
    """Kept from one run to the next, in a quarter of the room that floats take."""
    with ThreadPoolExecutor() as pool:  # decoders let other threads run meanwhile
        return np.stack(list(pool.map(partial(centre, short=round(size * SHORT), crop=size), files)))


def centre(file: Path, *, short: int, crop: int) -> UInt8[np.ndarray, "crop crop 3"]:
    """The square in the middle of a picture whose short side was brought to `short`.

    A camera's note on which side is up is not followed: the usual loaders of these data sets do not follow it either.
    """
    return np.asarray(resized(open_picture(file, file, upright=False), short, (crop, crop), BILINEAR))
