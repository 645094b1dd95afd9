"""What the command line is given, a table of features, pictures or texts, read as one table of features."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from perdure.errors import InputError
from perdure.inputs.backbones import Backbone, Identity, Precision
from perdure.inputs.extraction import Broken, extract
from perdure.inputs.folders import Photos, is_picture, photos
from perdure.inputs.pictures import PictureBackbone
from perdure.inputs.tables import Features, Table, read_table, read_texts
from perdure.inputs.texts import TextBackbone
from perdure.progress import Progress

Note = Callable[[str], object]


@dataclass(frozen=True)
class Showing:
    """How inputs are to go through a backbone this time."""

    backbone: str | None = None
    """Its name or folder; `None` for the one that is remembered, if there is one."""
    text_column: str | None = None
    """Where in a table texts stand; `None` for pictures."""
    device: str = "auto"
    precision: Precision = "auto"
    batch: int | None = None
    cache: Path | None = None
    keep: bool = True
    """Whether features are kept in the cache."""
    broken: Broken = "stop"

    def open(self, name: str, text_column: str | None) -> Backbone:
        """A backbone, for texts if they have a column."""
        running: dict[str, Any] = {"device": self.device, "precision": self.precision, "batch": self.batch}
        return PictureBackbone(name, **running) if text_column is None else TextBackbone(name, **running)


@dataclass(frozen=True)
class Through:
    """The backbone that inputs go through: enough to find it again, and to know that it is the same."""

    name: str
    identity: Identity
    text_column: str | None

    def mismatch(self, other: Through) -> str | None:
        """In which way another one is not the same, in words."""
        if other.identity == self.identity and other.text_column == self.text_column:
            return None
        if (other.text_column is None) != (self.text_column is None):
            return "reads texts" if self.text_column is None else "reads pictures"
        if other.text_column != self.text_column:
            return f'reads the column "{other.text_column}" instead of "{self.text_column}"'
        if other.identity.network != self.identity.network:
            return "is another network, or has other weights"
        if other.identity.preparation != self.identity.preparation:
            return f"prepares its {self.identity.kind} in another way"
        return "made features in another way in that version of perdure"


def is_of_pictures(path: Path) -> bool:
    """A folder, or a file that is called like a picture."""
    return path.is_dir() or is_picture(path)


def read_input(
    path: Path,
    through: tuple[Through, Backbone] | None,
    showing: Showing,
    *,
    label: str | None,
    labelled: bool,
    leave_out: Collection[str],
    like: Features | None,
    progress: Progress,
    note: Note,
) -> Table:
    """One row an input. Classes are in the column `label`, of pictures the folders they lie in."""
    check_kind(path, through)
    if through is None:
        return read_table(path, label=label, leave_out=leave_out, like=like)
    remembered, backbone = through
    if remembered.text_column is not None:
        texts, y = read_texts(path, remembered.text_column, label=label)
        done = extract(texts, backbone, cache=showing.cache, keep=showing.keep, progress=progress)
        return Table(done.x, y, Features(done.x.shape[1], None))
    found = photos(path)
    labels = np.array(found.labels) if labelled else None
    for file in found.left_out:
        note(f"{file} is left out, since its name is not that of a picture.")
    done = extract(found.files, backbone, cache=showing.cache, keep=showing.keep, broken=showing.broken, progress=progress)
    for sentence in done.broken:
        note(f"left out: {sentence}")
    names = tuple(found.names[i] for i in done.of)
    return Table(done.x, None if labels is None else labels[done.of], Features(done.x.shape[1], None), names=names)


def check_kind(path: Path, through: tuple[Through, Backbone] | None) -> None:
    """Whether this could be what is wanted: a table, one with texts, or pictures."""
    column = None if through is None else through[0].text_column
    if through is None and is_of_pictures(path):
        raise InputError(f"{path} holds pictures; name the pretrained network that looks at them with `--backbone`.")
    if column is not None and path.is_dir():
        raise InputError(f'{path} is a folder, not a table with the texts in a column "{column}".')
    if through is not None and column is None and path.exists() and not is_of_pictures(path):
        raise InputError(f"{path} is neither a picture nor a folder of them, and only these go through {through[0].name}.")


def differing_folders(support: Path, query: Path) -> list[str]:
    """What to say where the folders of a query are called like classes, but not like the same ones.

    A query's classes are not known, so that this is never an error: its folders may just as well be patients or days.
    """
    taught, asked = set(photos(support).labels), {name for name in photos(query).folders if name is not None}
    if not taught & asked:
        return []
    sentences = []
    if asked - taught:
        sentences.append(
            f"{query} has {_folders(asked - taught)}, which {support} has not. Names of a query's folders are not read: a "
            "picture of a class without labels is given one of the classes that have them."
        )
    if taught - asked:
        sentences.append(
            f"{support} has {_folders(taught - asked)}, which {query} has not: a query may lack classes, and what its folders "
            "are called is not read."
        )
    return sentences


def one_level_too_high(support: Path) -> str | None:
    """What to say where every picture lies in a folder within the folder that its class is called after.

    It is no error: a class may keep its pictures by patient or by day.
    """
    found = photos(support)
    if any(name.count("/") < 2 for name in found.names):
        return None
    classes = found.labels
    return (
        f"{support} has no picture as CLASS/FILE, all lie deeper, and classes are named by {_folders(set(classes))}. "
        f"If each holds the folders of classes, did you mean {found.folder / classes[0]}?"
    )


def digest_of(found: Photos, digest: Callable[[Path], str]) -> str:
    """Changes with any picture, and with what it is called."""
    all_of_it = hashlib.sha256()
    for name, file in zip(found.names, found.files, strict=True):
        all_of_it.update(f"{name}\0{digest(file)}\n".encode())
    return all_of_it.hexdigest()


def _folders(names: Collection[str]) -> str:
    first = ", ".join(f'"{name}"' for name in sorted(names)[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    return f"the folder{'s' if len(names) > 1 else ''} {first}"
