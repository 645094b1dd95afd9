"""Pictures in folders: one folder a domain and in it one a class, one a class, or as they lie."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from perdure.errors import InputError

SUFFIXES = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp"})


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
    _check_folder(folder)
    pictures, left_out = [], list[Path]()
    for domain in shown(folder, folders=True):
        inner = domain / "images"
        for label in shown(inner if inner.is_dir() else domain, folders=True):
            for file in shown(label, folders=False):
                if is_picture(file):
                    pictures.append(Picture(file, domain.name, label.name))
                else:
                    left_out.append(file)
    if not pictures:
        raise InputError(
            f"{folder} holds no pictures as DOMAIN/CLASS/FILE or DOMAIN/images/CLASS/FILE; give the folder of all domains."
        )
    return Found(pictures, left_out)


@dataclass(frozen=True)
class Photos:
    """The pictures of one domain."""

    folder: Path
    files: Sequence[Path]
    """By their path."""
    left_out: Sequence[Path]
    """Files beside them that are no pictures by their suffix."""

    @property
    def names(self) -> list[str]:
        """Each picture's path within the folder."""
        return [file.relative_to(self.folder).as_posix() for file in self.files]

    @property
    def folders(self) -> list[str | None]:
        """The folder each picture is in, at the first level; `None` where it is in none."""
        return [name.partition("/")[0] if "/" in name else None for name in self.names]

    @property
    def labels(self) -> list[str]:
        """The class of each picture, which is the name of its folder."""
        loose = [name for name, folder in zip(self.names, self.folders, strict=True) if folder is None]
        if loose:
            raise InputError(
                f"{self.folder} has {len(loose)} pictures in no class, such as {loose[0]}; labelled pictures lie as CLASS/FILE."
            )
        return [folder for folder in self.folders if folder is not None]


def photos(folder: Path) -> Photos:
    """All pictures below a folder, however deep; or the one picture that is named. Hidden files are not looked at."""
    if is_picture(folder) and folder.is_file():
        return Photos(folder.parent, [folder], [])
    _check_folder(folder)
    inner = folder / "images"
    if (
        inner.is_dir()
        and not any(is_picture(file) for file in shown(folder, folders=False))
        and len(shown(folder, folders=True)) == 1
    ):
        folder = inner  # as Office-31's archive has it
    files, left_out = list[Path](), list[Path]()
    for file in _below(folder, set()):
        (files if is_picture(file) else left_out).append(file)
    if not files:
        kinds = ", ".join(sorted(SUFFIXES))
        raise InputError(f"{folder} holds no pictures ({kinds}), nor do its folders.")
    return Photos(folder, files, left_out)


def is_picture(file: Path) -> bool:
    """By its suffix."""
    return file.suffix.lower() in SUFFIXES


def shown(folder: Path, *, folders: bool) -> list[Path]:
    """Its folders or its files by name, without hidden ones."""
    return sorted(path for path in folder.iterdir() if path.is_dir() == folders and not path.name.startswith("."))


def _below(folder: Path, seen: set[tuple[int, int]]) -> Iterable[Path]:
    """All files, folder by folder; one that a link leads back to is not entered again."""
    status = folder.stat()
    if (status.st_dev, status.st_ino) in seen:
        return
    seen.add((status.st_dev, status.st_ino))
    for path in sorted(folder.iterdir(), key=os.fspath):
        if path.name.startswith("."):
            continue
        if path.is_dir():
            yield from _below(path, seen)
        else:
            yield path


def _check_folder(folder: Path) -> None:
    if not folder.is_dir():
        raise InputError(f"{folder} is a file, not a folder." if folder.exists() else f"{folder} does not exist.")
