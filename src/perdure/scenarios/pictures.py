"""Scenarios of pictures from folders, `<domain>/[images/]<class>/<file>`: pixels, for a backbone that is trained along."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path

import numpy as np
from jaxtyping import Float, UInt8

from perdure.errors import InputError
from perdure.scenarios import office_home
from perdure.streams import Answers, Environment, Labels, Query, Scenario, Support

SUFFIXES = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp"})
INSTALL = "pip install 'perdure[pictures]'"
SHORT = 256 / 224
"""What the short side is brought to before the centre is cut out of it, as a multiple of the latter."""
BILINEAR = 2
"""Pillow's number for it."""


@dataclass(frozen=True)
class Picture:
    """One file, with its domain and its class by name."""

    file: Path
    domain: str
    label: str

    @property
    def path(self) -> str:
        """What files of features call it, whether or not there is a folder `images` in between."""
        return f"{self.domain}/{self.label}/{self.file.name}"


@dataclass(frozen=True)
class Found:
    """What a folder of domains holds."""

    pictures: Sequence[Picture]
    """By domain, then class, then file name."""
    left_out: Sequence[Path]
    """Files beside them that are no pictures by their suffix."""


def find(folder: Path) -> Found:
    """The pictures below a folder, as Office-31's and Office-Home's archives lay them out; hidden files are not looked at."""
    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder.")
    pictures, left_out = [], list[Path]()
    for domain in _shown(folder, folders=True):
        inner = domain / "images"
        for label in _shown(inner if inner.is_dir() else domain, folders=True):
            for file in _shown(label, folders=False):
                if file.suffix.lower() in SUFFIXES:
                    pictures.append(Picture(file, domain.name, label.name))
                else:
                    left_out.append(file)
    if not pictures:
        raise InputError(
            f"{folder} holds no pictures as DOMAIN/CLASS/FILE or DOMAIN/images/CLASS/FILE; give the folder of all domains."
        )
    return Found(pictures, left_out)


def centre(file: Path, *, short: int, crop: int, resample: int = BILINEAR) -> UInt8[np.ndarray, "crop crop 3"]:
    """The square in the middle of a picture whose short side was brought to `short`.

    A camera's note on which side is up is not followed: the usual loaders of these data sets do not follow it either.
    """
    try:
        from PIL import Image
    except ModuleNotFoundError:
        raise InputError(f"Reading pictures needs Pillow: {INSTALL}.") from None
    try:
        with Image.open(file) as opened:
            picture = opened.convert("RGB")
    except Exception as error:  # what a decoder raises depends on how the file is broken
        raise InputError(
            f"{file} cannot be read as a picture ({type(error).__name__}: {error}). Replace it or take it out, then start again."
        ) from error
    width, height = picture.size
    size = (short, int(short * height / width)) if width <= height else (int(short * width / height), short)
    left, top = (size[0] - crop) // 2, (size[1] - crop) // 2
    return np.asarray(picture.resize(size, Image.Resampling(resample)).crop((left, top, left + crop, top + crop)))


def domains(
    folder: Path,
    support: str,
    queries: tuple[str, ...],
    classes: Sequence[str] | None = None,
    size: int = 224,
    *,
    inductive: bool = False,
    seed: int = 0,
) -> Scenario:
    """Scenario 2 in pixels, 0 to 1, of squares of this `size`: the query's domain drifts, all classes are there from the start.

    Domains are named as their folders are. Without `classes` all, which every domain must then have. Every environment has the
    same support. With `inductive` a random half of each query set is kept aside and never adapted to.
    """
    names = [(f"{support}→{query}", query) for query in queries]
    return _drifting(f"{folder.name} {support}→{','.join(queries)}", folder, support, names, classes, size, inductive, seed)


def office_home_domains(support: str, queries: tuple[str, ...], *, inductive: bool = False, seed: int = 0) -> Scenario:
    """Office-Home's Scenario 2 ("Ar", "Cl", "Pr" or "Rw") on its pictures, which are in the folder `PERDURE_PICTURES`.

    Where the stored features are those of the same pictures, the same halves are kept aside.
    """
    folders = office_home.DOMAINS
    unknown = [name for name in (support, *queries) if name not in folders]
    if unknown:
        raise InputError(f"No domains of Office-Home are called {unknown}. Known: {', '.join(folders)}.")
    names = [(f"{support}→{query}", folders[query]) for query in queries]
    title = f"Office-Home pictures {support}→{','.join(queries)}"
    return _drifting(title, office_home_folder(), folders[support], names, None, 224, inductive, seed)


def office_home_folder() -> Path:
    """Where the pictures of Office-Home are."""
    folder = os.environ.get("PERDURE_PICTURES")
    if not folder:
        raise InputError(
            "The pictures of Office-Home are needed: set PERDURE_PICTURES to the folder that holds "
            f"{', '.join(office_home.DOMAINS.values())}."
        )
    return Path(folder)


def _drifting(
    title: str,
    folder: Path,
    support: str,
    queries: Sequence[tuple[str, str]],
    classes: Sequence[str] | None,
    size: int,
    inductive: bool,
    seed: int,
) -> Scenario:
    """`queries`: what each environment is called, and the folder of its query."""
    if size < 1:
        raise InputError(f"`size` must be positive, got {size}.")
    pictures = find(folder).pictures
    chosen = _common_classes(folder, pictures, [support, *(query for _, query in queries)], classes)

    def shown(domain: str) -> tuple[Float[np.ndarray, "n 3 size size"], Labels]:
        some = [picture for picture in pictures if picture.domain == domain and picture.label in chosen]
        return pixels(tuple(picture.file for picture in some), size), np.array([picture.label for picture in some])

    taught = Support(*shown(support))
    environments, transductive, aside = [], {}, {}
    for number, (name, query) in enumerate(queries):
        x, y = shown(query)
        if inductive:
            shuffled = np.random.default_rng((seed, number)).permutation(len(y))
            kept, rows = np.sort(shuffled[: len(y) // 2]), np.sort(shuffled[len(y) // 2 :])
            aside[name] = Support(x[kept], y[kept])
            x, y = x[rows], y[rows]
        environments.append(Environment(name, taught, Query(x)))
        transductive[name] = y
    return Scenario(title, environments, Answers(transductive, aside))


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


def _common_classes(
    folder: Path, pictures: Sequence[Picture], domains: Sequence[str], classes: Sequence[str] | None
) -> frozenset[str]:
    """Those asked for, or all, if each of these domains has them."""
    there: dict[str, set[str]] = {}
    for picture in pictures:
        there.setdefault(picture.domain, set()).add(picture.label)
    unknown = [name for name in domains if name not in there]
    if unknown:
        raise InputError(f"{folder} has no pictures of the domains {unknown}; it has {', '.join(there)}.")
    wanted = frozenset(classes or set().union(*(there[domain] for domain in domains)))
    for domain in domains:
        lacking = sorted(wanted - there[domain])
        if lacking:
            raise InputError(f"{folder / domain} has no pictures of the classes {lacking}. Name `classes` that all domains have.")
    return wanted


def _shown(folder: Path, *, folders: bool) -> list[Path]:
    """Its folders or its files by name, without hidden ones."""
    return sorted(path for path in folder.iterdir() if path.is_dir() == folders and not path.name.startswith("."))
