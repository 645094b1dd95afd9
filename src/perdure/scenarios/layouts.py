"""Folders of pictures as they come: any domains and classes, or a published data set with its own order of classes.

Office-31, Office-Home, PACS, VisDA-2017 and DomainNet are recognised by the names of their domains and classes, however these are
spelled, and it is checked whether they are whole. Where the publishers' lists of files lie beside the pictures, the lists decide.
"""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, TypeAlias

from perdure.errors import InputError
from perdure.inputs.folders import Picture, find, shown
from perdure.scenarios import office_home

log = logging.getLogger("perdure")

Part: TypeAlias = Literal["train", "test"]


def plain(name: str) -> str:
    """Letters and digits alone, in lower case: "Real World" and "real_world" are one."""
    return "".join(character for character in name.lower() if character.isalnum())


@dataclass(frozen=True)
class Published:
    """A data set that others know by name."""

    name: str
    pictures: Mapping[str, int]
    """Domain → how many pictures it has."""
    classes: frozenset[str] | int
    """Their names, plain; or how many there are."""
    order: Callable[[str], str | int] = plain
    """What its classes are sorted by."""

    def is_of(self, domains: Sequence[str], classes: Sequence[str]) -> bool:
        """Whether folders of these names are of this data set, though some may be missing."""
        ours, theirs = {plain(name) for name in self.pictures}, {plain(name) for name in classes}
        if not {plain(name) for name in domains} <= ours:
            return False
        return len(theirs) == self.classes if isinstance(self.classes, int) else theirs <= self.classes


_OFFICE_HOME = {plain(name): place for place, name in enumerate(name for task in office_home.TASKS for name in task)}
_OFFICE_31 = (
    "backpack bike bikehelmet bookcase bottle calculator deskchair desklamp desktopcomputer filecabinet headphones keyboard "
    "laptopcomputer lettertray mobilephone monitor mouse mug papernotebook pen phone printer projector punchers ringbinder "
    "ruler scissors speaker stapler tapedispenser trashcan"
)
_VISDA = "aeroplane bicycle bus car horse knife motorcycle person plant skateboard train truck"

PUBLISHED = (
    Published("Office-31", {"amazon": 2817, "dslr": 498, "webcam": 795}, frozenset(_OFFICE_31.split())),
    Published(
        "Office-Home",
        {"Art": 2427, "Clipart": 4365, "Product": 4439, "Real World": 4357},
        frozenset(_OFFICE_HOME),
        lambda name: _OFFICE_HOME[plain(name)],
    ),
    Published(
        "PACS",
        {"art_painting": 2048, "cartoon": 2344, "photo": 1670, "sketch": 3929},
        frozenset("dog elephant giraffe guitar horse house person".split()),
    ),
    Published("VisDA-2017", {"train": 152_397, "validation": 55_388, "test": 72_372}, frozenset(_VISDA.split())),
    Published(
        "DomainNet",
        {"clipart": 48_129, "infograph": 51_605, "painting": 72_266, "quickdraw": 172_500, "real": 172_947, "sketch": 69_128},
        345,
    ),
)
"""The numbers of DomainNet are those of its cleaned version."""


@dataclass(frozen=True)
class Layout:
    """What lies in a folder of domains."""

    folder: Path
    published: Published | None
    """The data set that it is, if that was recognised."""
    pictures: Sequence[Picture]
    """By domain, class and file name, or as they are listed."""
    aside: Sequence[Picture]
    """Those that the publishers' lists keep for scoring."""
    classes: Sequence[str]
    """In their order: the data set's own, or alphabetical."""

    @property
    def domains(self) -> list[str]:
        """By the names of their folders."""
        return list(dict.fromkeys(picture.domain for picture in self.pictures))

    def domain(self, name: str) -> str:
        """The folder of a domain; a published one may be spelled in any way."""
        same = [known for known in self.domains if name == known or (self.published and plain(name) == plain(known))]
        if not same:
            raise InputError(f"{self.folder} has no pictures of a domain {name!r}; it has {', '.join(self.domains)}.")
        return same[0]

    def classes_of(self, domain: str) -> set[str]:
        """Those that it has pictures of."""
        return {picture.label for picture in self.pictures if picture.domain == domain}


def read(folder: Path) -> Layout:
    """What lies in a folder, and which data set it is; one that is not whole is used as it is, with a warning."""
    listed = _listed(folder)
    if listed is not None:
        pictures, aside, classes = listed
        kind = _recognised(pictures, classes)
    else:
        inner = folder / "kfold"  # as PACS comes
        pictures, aside = (
            list(find(inner if inner.is_dir() and not shown(folder / "kfold", folders=False) else folder).pictures),
            [],
        )
        kind = _recognised(pictures, sorted({picture.label for picture in pictures}))
        if kind is not None:
            spelled: dict[str, str] = {}
            pictures = [replace(each, label=spelled.setdefault(plain(each.label), each.label)) for each in pictures]
        classes = sorted({picture.label for picture in pictures}, key=str if kind is None else kind.order)
    if kind is not None:
        _warn_unless_whole(folder, kind, [*pictures, *aside])
    return Layout(folder, kind, pictures, aside, classes)


def _recognised(pictures: Sequence[Picture], classes: Sequence[str]) -> Published | None:
    domains = sorted({picture.domain for picture in pictures})
    return next((kind for kind in PUBLISHED if kind.is_of(domains, classes)), None)


def _warn_unless_whole(folder: Path, kind: Published, pictures: Sequence[Picture]) -> None:
    found = Counter(picture.domain for picture in pictures)
    official = {plain(name): count for name, count in kind.pictures.items()}
    odd = [f"{name} has {count} pictures instead of {official[plain(name)]}" for name, count in sorted(found.items())
           if count != official[plain(name)]]  # fmt: skip
    if odd:
        log.warning("%s is laid out as %s, but %s.", folder, kind.name, ", ".join(odd))


# -- lists of files -------------------------------------------------------------------------------------------------------


def _listed(folder: Path) -> tuple[list[Picture], list[Picture], list[str]] | None:
    """Pictures, those kept aside and classes by DomainNet's lists (`real_train.txt`) or VisDA's (`train/image_list.txt`)."""
    lists: list[tuple[str, Part, Path, Path]] = []
    if not folder.is_dir():
        return None
    for place in (folder, folder / "image_list", folder / "splits"):
        for file in sorted(place.glob("*_t*.txt")) if place.is_dir() else []:
            named = re.fullmatch(r"(.+)_(train|test)", file.stem)
            if named and (folder / named[1]).is_dir():
                lists.append((named[1], "train" if named[2] == "train" else "test", file, folder))
    if not lists:
        lists = [(each.name, "train", each / "image_list.txt", each) for each in shown(folder, folders=True)
                 if (each / "image_list.txt").is_file()]  # fmt: skip
    if not lists:
        return None
    read = [(domain, part, root, _lines(file)) for domain, part, file, root in lists]
    names = _class_names([lines for *_, lines in read])
    parts: dict[Part, list[Picture]] = {"train": [], "test": []}
    for domain, part, root, lines in read:
        parts[part] += [Picture(root / path, domain, names[number]) for path, number in lines]
    return parts["train"], parts["test"], [names[number] for number in sorted(names)]


def _class_names(lists: Sequence[Sequence[tuple[str, int]]]) -> dict[int, str]:
    """Number → the folder of its pictures, as far as a list has one folder for each (VisDA's test pictures lie otherwise)."""
    names: dict[int, str] = {}
    for lines in lists:
        pairs = {(number, path.rsplit("/", 2)[-2]) for path, number in lines if "/" in path}
        if len(pairs) == len({number for number, _ in pairs}) == len({name for _, name in pairs}):
            names = dict(pairs) | names
    return {number: names.get(number, str(number)) for lines in lists for _, number in lines}


def _lines(file: Path) -> list[tuple[str, int]]:
    lines = []
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
        path, _, label = line.strip().rpartition(" ")
        if not line.strip():
            continue
        if not path or not label.isdigit():
            raise InputError(f"{file}, line {number}: expected a path and the number of a class, got {line[:80]!r}.")
        lines.append((path, int(label)))
    return lines
