"""Folders of pictures and columns of text to files of features, one row an input."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from perdure.errors import InputError
from perdure.inputs import folders, tables
from perdure.inputs.backbones import Backbone
from perdure.inputs.extraction import Broken, extract
from perdure.progress import Progress
from perdure.streams import Labels, Rows

WRITABLE = (".parquet", ".pq", ".csv", ".npz")


@dataclass(frozen=True)
class Written:
    """What a file of features holds, and what it took."""

    out: Path
    rows: int
    features: int
    domains: list[str]
    classes: list[str]
    computed: int
    """Rows that went through the backbone; the others were in the cache."""
    broken: list[str]
    """A sentence for each picture that was skipped."""
    left_out: list[Path]
    """Files in the folders that are no pictures by their suffix."""


def write_pictures(
    folder: str | Path,
    out: str | Path,
    backbone: Backbone,
    *,
    cache: str | Path | None = None,
    keep: bool = True,
    broken: Broken = "stop",
    progress: Progress = None,
) -> Written:
    """Features of all pictures below a folder: `DOMAIN/[images/]CLASS/FILE`, `CLASS/FILE`, or as they lie.

    A table has the columns `path`, `domain` and `class`, as far as there are such folders, and `feature_0` and so on. An NPZ file
    needs all of them: `X` (float16), `y` into `class_names`, `domain` into `domain_names`, and `paths`. The file appears whole.
    """
    out = Path(out)
    _check_new(out)
    found = _survey(Path(folder), npz=out.suffix.lower() == ".npz")
    done = extract(found.files, backbone, cache=cache, keep=keep, broken=broken, progress=progress)
    paths = np.array([found.paths[i] for i in done.of])
    named = {
        name: np.array([values[i] for i in done.of])
        for name, values in (("domain", found.domains), ("class", found.classes))
        if values is not None
    }
    if out.suffix.lower() == ".npz":
        _write_npz(out, done.x, paths, named["domain"], named["class"])
    else:
        _write_table(out, {"path": paths, **named}, done.x)
    domains, classes = (sorted(set(named[name].tolist())) if name in named else [] for name in ("domain", "class"))
    return Written(out, len(done.of), done.x.shape[1], domains, classes, done.computed, done.broken, found.left_out)


def write_texts(
    table: str | Path,
    out: str | Path,
    backbone: Backbone,
    column: str,
    *,
    label: str | None = None,
    cache: str | Path | None = None,
    keep: bool = True,
    progress: Progress = None,
) -> Written:
    """Features of a column of text, in the order of its rows, and the column `label` beside them if one is named."""
    out = Path(out)
    _check_new(out)
    if out.suffix.lower() == ".npz":
        raise InputError(f"Features of texts are written to a .parquet or .csv file, not to {out.name}.")
    texts, y = tables.read_texts(Path(table), column, label=label)
    done = extract(texts, backbone, cache=cache, keep=keep, progress=progress)
    _write_table(out, {} if y is None or label is None else {label: y}, done.x)
    classes = [] if y is None else [str(name) for name in np.unique(y)]
    return Written(out, len(texts), done.x.shape[1], [], classes, done.computed, [], [])


@dataclass(frozen=True)
class _Survey:
    files: Sequence[Path]
    paths: Sequence[str]
    domains: Sequence[str] | None
    classes: Sequence[str] | None
    left_out: list[Path]


def _survey(folder: Path, *, npz: bool) -> _Survey:
    """Which of the three ways a folder is laid out in: the deepest one that all of its pictures follow."""
    below = None if npz else folders.photos(folder)
    depth = 3 if below is None else min(len(_parts(name)) for name in below.names)
    if below is None or depth >= 3:
        found = folders.find(folder)
        if below is None or len(found.pictures) == len(below.files):
            pictures = found.pictures
            return _Survey(
                [each.file for each in pictures],
                [each.path for each in pictures],
                [each.domain for each in pictures],
                [each.label for each in pictures],
                list(found.left_out),
            )
    assert below is not None
    classes = None if depth < 2 else below.labels
    return _Survey(below.files, below.names, None, classes, list(below.left_out))


def _parts(name: str) -> list[str]:
    return [part for i, part in enumerate(name.split("/")) if not (i == 1 and part == "images")]


def _write_npz(out: Path, x: Rows, paths: NDArray[np.str_], domains: NDArray[np.str_], classes: NDArray[np.str_]) -> None:
    domain_names, domain = np.unique(domains, return_inverse=True)
    class_names, y = np.unique(classes, return_inverse=True)
    if len(domain_names) > np.iinfo(np.int8).max or len(class_names) > np.iinfo(np.int16).max:
        raise InputError(
            f"There are {len(domain_names)} domains of {len(class_names)} classes; an .npz file has room for 127 of 32767. "
            "Give the folder that holds DOMAIN/CLASS/FILE, or write a .parquet file."
        )
    with np.errstate(over="ignore"):
        half = x.astype(np.float16)
    if not np.isfinite(half).all():
        raise InputError(f"Features up to {np.abs(x).max():.3g} do not fit into an .npz file of float16; write a .parquet file.")
    with tables.replacing(out) as file:
        np.savez_compressed(
            file,
            X=half,
            y=y.astype(np.int16),
            domain=domain.astype(np.int8),
            domain_names=domain_names,
            class_names=class_names,
            paths=paths,
        )


def _write_table(out: Path, named: dict[str, Labels], x: Rows) -> None:
    tables.write_table({**named, **{f"feature_{j}": np.ascontiguousarray(x[:, j]) for j in range(x.shape[1])}}, out)


def _check_new(out: Path) -> None:
    if out.suffix.lower() not in WRITABLE:
        raise InputError(f"Features are written to a file that ends in {', '.join(WRITABLE)}; {out.name!r} does not.")
    if out.exists():
        raise InputError(f"{out} is there already; remove it, or give another file to write.")
    if not out.absolute().parent.is_dir():
        raise InputError(f"The folder of {out} does not exist; create it first.")
