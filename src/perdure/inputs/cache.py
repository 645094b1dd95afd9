"""Features kept on disk, so that no input is computed twice: two plain files a writer, read through memory maps.

A folder for each backbone holds `about.json` and pairs of files, `0000.keys` and `0000.rows`. A row is written before its key,
and a key carries the row's checksum, so that whatever a kill or a power cut leaves half-written is not found again. Each writer
holds the lock of one pair; any number of processes may write at a time, and read meanwhile.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import zlib
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from jaxtyping import Float32
from numpy.typing import NDArray

from perdure.errors import InputError
from perdure.inputs.tables import replacing

FORMAT = "perdure features, 1"
ABOUT = "about.json"
KEY = np.dtype([("key", "V32"), ("checksum", "<u4")])


def default_folder() -> Path:
    """`PERDURE_CACHE`, or a folder of perdure's where this system keeps caches."""
    named = os.environ.get("PERDURE_CACHE")
    if named:
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "perdure" / "features"


def key_of(content: bytes) -> bytes:
    """What features are found by: a digest of all that the input is made of."""
    return hashlib.sha256(content).digest()


class FeatureCache:
    """The rows of one backbone: those that were there when this was opened, and those that were added through it."""

    def __init__(self, folder: str | Path | None, about: Mapping[str, Any]) -> None:
        self.about = {"format": FORMAT, **about}
        named = hashlib.sha256(json.dumps(self.about, sort_keys=True).encode()).hexdigest()[:32]
        self.folder = (default_folder() if folder is None else Path(folder)) / named
        self.width: int | None = None
        self._places: dict[bytes, tuple[int, int]] = {}
        self._rows: dict[int, NDArray[np.float32]] = {}
        self._checksums: dict[int, array[int]] = {}
        if (self.folder / ABOUT).exists():
            self.width = self._stored_width()
            for file in sorted(self.folder.glob("*.keys")):
                self._map(int(file.stem))

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, key: bytes) -> bool:
        """Whether its row is there and whole."""
        if key not in self._places:
            return False
        pair, row = self._places[key]
        return zlib.crc32(self._rows[pair][row].tobytes()) == self._checksums[pair][row]

    def read(self, keys: Sequence[bytes]) -> Float32[np.ndarray, "n width"]:
        """Their rows, in this order; all of them must be there."""
        x = np.empty((len(keys), self.width or 0), np.float32)
        for i, key in enumerate(keys):
            pair, row = self._places[key]
            x[i] = self._rows[pair][row]
        return x

    @contextmanager
    def writing(self) -> Iterator[Callable[[Sequence[bytes], Float32[np.ndarray, "n width"]], None]]:
        """A function that adds rows: they survive this process at once, and a power cut once this context is left."""
        with ExitStack() as opened:
            pair: tuple[int, BinaryIO, BinaryIO] | None = None

            def add(keys: Sequence[bytes], x: Float32[np.ndarray, "n width"]) -> None:
                nonlocal pair
                if pair is None:
                    self._begin(x.shape[1])
                    pair = opened.enter_context(self._free_pair())
                number, key_file, row_file = pair
                x = np.ascontiguousarray(x, dtype="<f4")
                records = np.zeros(len(keys), KEY)
                for i, key in enumerate(keys):
                    records[i] = (np.void(key), zlib.crc32(x[i].tobytes()))
                row_file.write(x.tobytes())
                row_file.flush()
                key_file.write(records.tobytes())
                key_file.flush()
                self._map(number)

            yield add

    def _begin(self, width: int) -> None:
        """Make the folder, unless it is there."""
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)  # features tell something about what they are of
        if not (self.folder / ABOUT).exists():
            with replacing(self.folder / ABOUT) as file:
                file.write(json.dumps({**self.about, "width": width}, indent=1).encode())
        self.width = self._stored_width()
        if self.width != width:
            raise InputError(f"{self.folder} keeps {self.width} features a row, not {width}; remove that folder.")

    def _stored_width(self) -> int:
        file = self.folder / ABOUT
        try:
            stored = json.loads(file.read_text(encoding="utf-8"))
            width = stored.pop("width")
            if stored != self.about or type(width) is not int or width < 1:
                raise ValueError("it is about something else")
            return width
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise InputError(f"{file} is damaged ({error}); remove the folder {self.folder}.") from error

    @contextmanager
    def _free_pair(self) -> Iterator[tuple[int, BinaryIO, BinaryIO]]:
        """The first pair of files that nobody else writes to, without what a kill left behind its last whole row."""
        assert self.width is not None
        for number in count():
            with open(_keys(self.folder, number), "ab") as key_file, open(_rows(self.folder, number), "ab") as row_file:
                try:
                    fcntl.flock(key_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    continue
                whole = self._map(number)
                key_file.truncate(whole * KEY.itemsize)
                row_file.truncate(whole * 4 * self.width)
                try:
                    yield number, key_file, row_file
                finally:
                    for file in (row_file, key_file):
                        file.flush()
                        os.fsync(file.fileno())
                return

    def _map(self, number: int) -> int:
        """Find the rows of a pair that have a key; returns how many."""
        assert self.width is not None
        keys, rows = _keys(self.folder, number), _rows(self.folder, number)
        known = len(self._checksums.get(number, ()))
        with open(keys, "rb") as file:
            file.seek(known * KEY.itemsize)
            stored = file.read()
        there = (rows.stat().st_size // (4 * self.width)) if rows.exists() else 0
        new = np.frombuffer(stored, KEY, count=min(len(stored) // KEY.itemsize, max(0, there - known)))
        whole = known + len(new)
        if len(new):
            self._rows[number] = np.memmap(rows, "<f4", "r", shape=(whole, self.width))
            self._checksums.setdefault(number, array("L")).extend(new["checksum"].tolist())
            self._places |= {key.tobytes(): (number, row) for row, key in enumerate(new["key"], known)}
        return whole


def _keys(folder: Path, number: int) -> Path:
    return folder / f"{number:04}.keys"


def _rows(folder: Path, number: int) -> Path:
    return folder / f"{number:04}.rows"
