"""Whatever data come in, as support and query: arrays, frames, files, folders of pictures, data sets of others, streams.

All rows at once; more of them than fit into memory lie in a file that has no name and goes with its last user:

    reader = Reader(backbone="facebook/dinov2-small")
    learner.learn(Environment("b", reader.support("photos/a"), reader.query("photos/b")))

Or one piece after another, for a learner that needs no more than a piece at a time:

    for part, more in reader.parts("b", support, query):
        learner.learn(part, more=more)
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from torch.utils.data import DataLoader, Dataset, IterableDataset

from perdure.errors import InputError
from perdure.inputs.backbones import Backbone
from perdure.inputs.extraction import Broken, extract
from perdure.inputs.folders import is_picture, photos
from perdure.inputs.pictures import PictureBackbone
from perdure.inputs.tables import read_parts, read_texts
from perdure.progress import Progress
from perdure.streams import Environment, Labels, Query, Rows, Support, as_labels, as_rows

IN_MEMORY = 256 << 20
"""Bytes of features that are held in memory; more are put into a file."""
LABELS = ("label", "labels", "target", "y", "class")
"""What the labels of a data set are called where nobody says."""

Items: TypeAlias = Any
"""Rows of numbers, or a list of pictures or texts."""
Piece: TypeAlias = tuple[Items, Any]
"""Items, and their labels or `None`."""


@dataclass(frozen=True)
class Reader:
    """Reads arrays, tensors, pairs of those, frames, lists, files, folders, `datasets`, torch `Dataset`s and iterators of chunks.

    Labels come with the data: as the second of a pair, in a column, or as folders. Whoever reads a query leaves them unread.
    """

    backbone: Backbone | str | Path | None = None
    """What pictures and texts go through; a name or folder is one for pictures, for texts give a `TextBackbone`."""
    column: str | Sequence[str] | None = None
    """What to learn from, of data that have columns; all but the labels if nothing is said."""
    label: str | None = None
    """The column of labels; "label" and its like are found."""
    rows: int = 8192
    """Of a piece, where the data do not come in pieces."""
    cache: str | Path | None = None
    """Where features are kept (see `perdure.inputs.cache`)."""
    keep: bool = True
    """Whether they are."""
    broken: Broken = "stop"
    """What happens to pictures that cannot be read."""
    progress: Progress = False

    def __post_init__(self) -> None:
        if isinstance(self.backbone, (str, Path)):
            object.__setattr__(self, "backbone", PictureBackbone(self.backbone))
        if self.rows < 1:
            raise InputError(f"`rows` must be at least 1, got {self.rows}.")

    def support(self, data: Any, y: Any = None) -> Support:
        """All rows with their labels, which are `y` if they do not come with the data."""
        labels = list[Labels]()

        def rows() -> Iterator[Rows]:
            for part in self._supports(data if y is None else (data, y)):
                labels.append(part.y)
                yield part.x

        x = _together(rows())
        return Support(x, np.concatenate(labels))

    def query(self, data: Any) -> Query:
        """All rows; labels that come with them are not looked at."""
        return Query(_together(part.x for part in self._queries(data)))

    def parts(self, environment: str, support: Any = None, query: Any = None) -> Iterator[tuple[Environment, bool]]:
        """An environment piece by piece, each of one half, and whether more of it is to come."""
        if support is None and query is None:
            raise InputError(f'Environment "{environment}" has neither support nor query; give at least one.')

        def pieces() -> Iterator[Environment]:
            if support is not None:
                yield from (Environment(environment, support=part) for part in self._supports(support))
            if query is not None:
                yield from (Environment(environment, query=part) for part in self._queries(query))

        waiting: Environment | None = None
        for piece in pieces():
            if waiting is not None:
                yield waiting, True
            waiting = piece
        assert waiting is not None
        yield waiting, False

    def _supports(self, data: Any) -> Iterator[Support]:
        for items, labels in self._pieces(data, labelled=True):
            if labels is None:
                raise InputError(
                    f"The support has no labels: {_kind(data)} gives none. Give pairs of rows and labels, or name `label`."
                )
            x, of = self._features(items)
            yield Support(x, as_labels(labels)[of])

    def _queries(self, data: Any) -> Iterator[Query]:
        for items, _ in self._pieces(data, labelled=False):
            yield Query(self._features(items)[0])

    def _features(self, items: Items) -> tuple[Rows, Any]:
        """Rows of numbers, and which of the items they are of."""
        if self.backbone is None:
            if isinstance(items, list) and len(items) and not _is_number(items[0]):
                what = type(items[0]).__name__
                raise InputError(
                    f"Items of type {what} are no rows of numbers; name the `backbone` that pictures or texts go through."
                )
            return as_rows(items, "data"), slice(None)
        assert not isinstance(self.backbone, (str, Path))
        done = extract(list(items), self.backbone, cache=self.cache, keep=self.keep, broken=self.broken, progress=self.progress)
        return done.x, done.of

    def _pieces(self, data: Any, *, labelled: bool) -> Iterator[Piece]:
        """What the data hold, a piece at a time; at least one."""
        count = 0
        for items, labels in self._read(data, labelled):
            if len(items):
                count += 1
                yield items, labels if labelled else None
        if count == 0:
            raise InputError(f"The {'support' if labelled else 'query'} is empty: {_kind(data)} gives no rows.")

    def _read(self, data: Any, labelled: bool) -> Iterator[Piece]:
        if isinstance(data, (str, Path)):
            yield from self._cut(self._file(Path(data), labelled))
        elif _is_hugging_faces(data):
            yield from self._data_set(data, labelled)
        elif isinstance(data, Dataset):
            yield from self._torch(data)
        elif isinstance(data, tuple) and len(data) == 2:
            yield from self._cut([(_items(data[0]), data[1])])
        elif hasattr(data, "columns") and hasattr(data, "to_numpy"):
            yield from self._cut([self._frame(data, labelled)])
        elif hasattr(data, "__array__") or hasattr(data, "detach"):
            yield from self._cut([(data, None)])
        elif callable(data):
            yield from self._read(data(), labelled)
        elif isinstance(data, Sequence) and not (len(data) and self._is_chunk(data[0])):
            yield from self._cut([(_items(data), None)])
        elif isinstance(data, (Iterable, DataLoader)):
            yield from map(self._chunk, data)
        else:
            raise InputError(f"{_kind(data)} cannot be read; give arrays, a file, a folder, a data set or an iterator of chunks.")

    def _cut(self, wholes: Iterable[Piece]) -> Iterator[Piece]:
        for items, labels in wholes:
            if labels is not None and len(labels) != len(items):
                raise InputError(f"There are {len(items)} rows but {len(labels)} labels; give one label a row.")
            for start in range(0, len(items), self.rows):
                part = slice(start, start + self.rows)
                yield items[part], None if labels is None else labels[part]

    # -- files ------------------------------------------------------------------------------------------------------------

    def _file(self, path: Path, labelled: bool) -> Iterator[Piece]:
        if path.is_dir() or is_picture(path):
            found = photos(path)
            yield list(found.files), found.labels if labelled else None
            return
        if self.backbone is not None:
            if not isinstance(self.column, str):
                raise InputError(f"{path}: name the `column` that the texts are in.")
            yield read_texts(path, self.column, label=self.label if labelled else None)
            return
        if labelled and self.label is None:
            raise InputError(f"{path}: name the `label` column.")
        if self.column is not None:
            raise InputError(f"{path}: a table of features is read whole; `column` is for texts.")
        leave_out = [] if labelled or self.label is None else [self.label]
        for part in read_parts(path, label=self.label if labelled else None, leave_out=leave_out, rows=self.rows):
            yield part.x, part.y

    def _frame(self, frame: Any, labelled: bool) -> Piece:
        names = list(frame.columns)
        label = self._label(names)
        labels = frame[label].to_numpy() if labelled and label is not None else None
        if self.backbone is not None:
            return list(frame[self._one_column([name for name in names if name != label])]), labels
        chosen = self._columns([name for name in names if name != label])
        return frame[chosen].to_numpy(), labels

    # -- data sets of others ----------------------------------------------------------------------------------------------

    def _data_set(self, data: Any, labelled: bool) -> Iterator[Piece]:
        """Of Hugging Face, whether it is all there or streams."""
        import datasets

        if isinstance(data, (datasets.DatasetDict, datasets.IterableDatasetDict)):
            raise InputError(f"This data set has the parts {', '.join(data)}; give one of them.")
        features = data.features or {}
        names = list(data.column_names or features)
        if not names:
            raise InputError("This data set does not say what its columns are; give it `features`, or an iterator of chunks.")
        label = self._label(names)
        pictures = [name for name in names if isinstance(features.get(name), datasets.Image)]
        rest = [name for name in names if name != label]
        if self.backbone is not None:
            chosen = [pictures[0] if self.column is None and len(pictures) == 1 else self._one_column(rest)]
        else:
            chosen = self._columns(rest)
        wanted = [*chosen, *([label] if labelled and label is not None else [])]
        data = data.select_columns(wanted)
        for name in set(chosen) & set(pictures):
            data = data.cast_column(name, datasets.Image(decode=False))  # the file itself tells what it is
        called = getattr(features.get(label), "names", None) if label is not None else None
        for rows in (data if self.backbone is not None else data.with_format("numpy")).iter(batch_size=self.rows):
            labels = rows[label] if label in wanted else None
            if labels is not None and called is not None:
                if min(labels) < 0:
                    raise InputError(f'The column "{label}" has rows without a label; filter them out.')
                labels = [called[number] for number in labels]
            if self.backbone is not None:
                yield [_picture_of(item) for item in rows[chosen[0]]], labels
            else:
                columns = [np.asarray(rows[name]) for name in chosen]
                yield np.concatenate([c[:, None] if c.ndim == 1 else c.reshape(len(c), -1) for c in columns], axis=1), labels

    def _torch(self, data: Any) -> Iterator[Piece]:
        """Of torch, whether it has places or is gone through."""
        examples = iter(data) if isinstance(data, IterableDataset) else (data[i] for i in range(len(data)))
        while some := list(islice(examples, self.rows)):
            pairs = [self._pair(example) for example in some]
            labels = None if pairs[0][1] is None else [_plain(label) for _, label in pairs]
            yield self._stacked([item for item, _ in pairs]), labels

    def _pair(self, example: Any) -> tuple[Any, Any]:
        """One example and its label, if it has one."""
        if isinstance(example, Mapping):
            label = self._label(list(example))
            item = self._one_column([name for name in example if name != label])
            return example[item], None if label is None else example[label]
        if isinstance(example, (tuple, list)) and len(example) in (1, 2):
            return example[0], example[1] if len(example) == 2 else None
        return example, None

    def _stacked(self, items: list[Any]) -> Items:
        if self.backbone is not None or not items:
            return items
        return np.stack([np.asarray(item.detach().cpu() if hasattr(item, "detach") else item) for item in items])

    def _chunk(self, chunk: Any) -> Piece:
        """One of an iterator's: rows, rows with labels, or columns by name."""
        if isinstance(chunk, Mapping):
            items, labels = self._pair(chunk)
        elif hasattr(chunk, "columns") and hasattr(chunk, "to_numpy"):
            items, labels = self._frame(chunk, labelled=True) if self._label(list(chunk.columns)) else (chunk.to_numpy(), None)
        elif isinstance(chunk, (tuple, list)) and len(chunk) == 2 and _are_labels(chunk[1], of=chunk[0]):
            items, labels = chunk
        elif isinstance(chunk, (tuple, list)) and len(chunk) == 1:
            items, labels = chunk[0], None
        else:
            items, labels = chunk, None
        return _items(items), labels

    def _is_chunk(self, item: Any) -> bool:
        """Whether a list of such is a list of chunks, not of rows: of pairs, or of arrays of rows."""
        if isinstance(item, (tuple, list)) and len(item) == 2 and _are_labels(item[1], of=item[0]):
            return not _is_number(item[0]) or np.ndim(item[0]) == 2
        return self.backbone is None and getattr(item, "ndim", 0) == 2

    # -- columns ----------------------------------------------------------------------------------------------------------

    def _label(self, names: Sequence[str]) -> str | None:
        if self.label is not None:
            return self.label if self.label in names else None
        return next((name for name in LABELS if name in names), None)

    def _columns(self, names: Sequence[str]) -> list[str]:
        asked = names if self.column is None else [self.column] if isinstance(self.column, str) else list(self.column)
        unknown = [name for name in asked if name not in names]
        if unknown or not asked:
            raise InputError(f"There are no columns {unknown}; there are {list(names)}.")
        return list(asked)

    def _one_column(self, names: Sequence[str]) -> str:
        chosen = self._columns(names)
        if len(chosen) != 1:
            raise InputError(f"Which column goes through the backbone? Name one as `column`; there are {list(names)}.")
        return chosen[0]


def _together(parts: Iterator[Rows]) -> Rows:
    """All rows: in memory, or from a certain size on in a file that has no name."""
    first = next(parts)
    held, size = [first], first.nbytes
    for part in parts:
        _check_same_shape(first, part)
        held.append(part)
        size += part.nbytes
        if size > IN_MEMORY:
            return _in_a_file(held, parts)
    return first if len(held) == 1 else np.concatenate(held)


def _in_a_file(held: list[Rows], parts: Iterator[Rows]) -> Rows:
    first, count = held[0], 0
    with tempfile.TemporaryFile(prefix="perdure-") as file:
        while held:
            part = held.pop(0)
            file.write(part.data)
            count += len(part)
        for part in parts:
            _check_same_shape(first, part)
            file.write(np.ascontiguousarray(part).data)
            count += len(part)
        file.flush()
        return np.memmap(file, np.float32, "r", shape=(count, *first.shape[1:]))


def _check_same_shape(first: Rows, part: Rows) -> None:
    if part.shape[1:] != first.shape[1:]:
        raise InputError(f"A row has shape {part.shape[1:]} where earlier ones have {first.shape[1:]}; all must be alike.")


def _items(data: Any) -> Items:
    """A list of pictures or texts, or an array of numbers."""
    if isinstance(data, (list, tuple)) and len(data) and _is_number(data[0]):
        return np.asarray(data)
    return list(data) if isinstance(data, tuple) else data


def _is_number(item: Any) -> bool:
    """Or a row of them."""
    while isinstance(item, (list, tuple)) and len(item):
        item = item[0]
    return isinstance(item, (bool, int, float, np.number)) or (hasattr(item, "__array__") and not hasattr(item, "mode"))


def _are_labels(labels: Any, *, of: Any) -> bool:
    """Whether these are the labels of those rows."""
    if (
        not hasattr(of, "__len__")
        or not hasattr(labels, "__len__")
        or isinstance(of, (str, bytes))
        or isinstance(labels, (str, bytes))
    ):
        return False
    return len(labels) == len(of) and getattr(labels, "ndim", 1) == 1


def _is_hugging_faces(data: Any) -> bool:
    """Whether this is one of the kinds of the package `datasets`, which must be there if so."""
    package = sys.modules.get("datasets")
    names = ("Dataset", "IterableDataset", "DatasetDict", "IterableDatasetDict")
    kinds = tuple(kind for name in names if isinstance(kind := getattr(package, name, None), type))
    return isinstance(data, kinds)


def _picture_of(item: Any) -> Any:
    """The file of a picture that a data set holds as bytes or by its path; anything else is left as it is."""
    if isinstance(item, Mapping) and {"bytes", "path"} <= set(item):
        return item["path"] if item["bytes"] is None else item["bytes"]
    return item


def _plain(label: Any) -> Any:
    return label.item() if hasattr(label, "item") else label


def _kind(data: Any) -> str:
    return str(data) if isinstance(data, (str, Path)) else f"a {type(data).__name__}"
