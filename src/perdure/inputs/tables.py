"""Feature tables: Parquet, CSV and NPZ files in; CSV and Parquet files out.

Columns are told apart by name, and one that cannot be a feature is refused rather than guessed about.
"""

from __future__ import annotations

import csv
import difflib
import os
import re
import zipfile
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from perdure.errors import InputError
from perdure.streams import Labels, Rows, as_labels

READABLE = (".parquet", ".pq", ".csv", ".tsv", ".npz")
WRITABLE = (".parquet", ".pq", ".csv")
ROWS_AT_ONCE = 65_536


@dataclass(frozen=True)
class Features:
    """Which columns are features, in the order in which the learner reads them."""

    width: int
    names: tuple[str, ...] | None
    """`None` for an NPZ array, whose columns have a place and no name."""


@dataclass(frozen=True, eq=False)
class Table:
    """One file, read."""

    x: Rows
    y: Labels | None
    features: Features
    left_out: tuple[str, ...] = ()
    """The columns that were asked to be left out and were there."""
    by_place: bool = False
    """One of the file and what it was to be like has no names, so that columns were matched by their place."""
    counting: tuple[str, ...] = ()
    """Features that only count the rows, as a row number saved by mistake does."""
    names: tuple[str, ...] | None = None
    """What each row is called, where it is a picture."""


def read_table(path: Path, *, label: str | None = None, leave_out: Collection[str] = (), like: Features | None = None) -> Table:
    """The features of a file as float32 rows and, if a label column is named, its labels.

    Columns in `leave_out` are never read. With `like`, the features must be those, in any order.
    """
    suffix = check_readable(path)
    with _explained(path, suffix):
        if suffix == ".npz":
            return _read_npz(path, label, leave_out, like)
        return _read_columns(path, suffix, label, leave_out, like)


def read_parts(
    path: Path,
    *,
    label: str | None = None,
    leave_out: Collection[str] = (),
    like: Features | None = None,
    rows: int = ROWS_AT_ONCE,
) -> Iterator[Table]:
    """The same as one table of some rows after another; of a Parquet file no more than those is in memory at a time."""
    suffix = check_readable(path)
    if suffix not in (".parquet", ".pq"):
        whole = read_table(path, label=label, leave_out=leave_out, like=like)
        for start in range(0, len(whole.x), rows):
            part = slice(start, start + rows)
            yield replace(whole, x=whole.x[part], y=None if whole.y is None else whole.y[part])
        return
    with _explained(path, suffix):
        names = _parquet_names(path)
        left_out = tuple(name for name in names if name in leave_out and name != label)
        features = _feature_columns(path, names, label, left_out, like)
        count, schema, batches = _parquet_batches(path, [*features, *([] if label is None else [label])], rows)
        if count == 0:
            raise InputError(f"{path} has columns but no rows.")
        _refuse_text(path, features, schema, batches)
        start, by_place = 0, like is not None and like.names is None
        for batch in batches:
            x, y = _fill(path, features, label, len(batch), [batch], start)
            y = None if y is None else _labels(path, label, y, len(x))
            yield Table(x, y, Features(len(features), tuple(features)), left_out, by_place)
            start += len(batch)


def read_texts(path: Path, column: str, *, label: str | None = None) -> tuple[list[str], Labels | None]:
    """A column of text, none of it missing, and, if a label column is named, its labels."""
    import pyarrow as pa
    from pyarrow import csv as arrow_csv
    from pyarrow import parquet

    suffix = check_readable(path)
    if suffix == ".npz":
        raise InputError(f"{path}: texts are read from Parquet, CSV and TSV files, not from NPZ arrays.")
    wanted = [column, *([] if label is None else [label])]
    with _explained(path, suffix):
        names = _csv_names(path, suffix) if suffix in (".csv", ".tsv") else _parquet_names(path)
        for name, what in zip(wanted, ("column", "label column"), strict=False):
            _check_there(path, name, names, what)
        if suffix in (".csv", ".tsv"):
            parse = arrow_csv.ParseOptions(delimiter=_delimiter(suffix), newlines_in_values=True)
            convert = arrow_csv.ConvertOptions(include_columns=wanted, column_types=dict.fromkeys(wanted, pa.string()))
            table = arrow_csv.read_csv(path, parse_options=parse, convert_options=convert)
        else:
            table = parquet.read_table(path, columns=wanted)
        if len(table) == 0:
            raise InputError(f"{path} has columns but no rows.")
        kind = table.schema.field(column).type
        if not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
            raise InputError(f"{path}: column {_quoted(column)} holds {kind} where texts are expected.")
        texts = table[column].to_pylist()
        missing = next((row for row, text in enumerate(texts, 1) if not (text or "").strip()), None)
        if missing is not None:
            raise InputError(f"{path}: column {_quoted(column)} has no text in row {missing}; drop the row or fill the cell in.")
        y = None
        if label is not None:
            values = _label_array(path, label, table[label].combine_chunks(), 0)
            y = _labels(path, label, _numbers_as_numbers(values) if suffix in (".csv", ".tsv") else values, len(texts))
        return texts, y


@contextmanager
def _explained(path: Path, suffix: str) -> Iterator[None]:
    """What goes wrong while a file is read is said in a sentence that names the file."""
    try:
        yield
    except InputError:
        raise
    except (OSError, ValueError, KeyError, EOFError, MemoryError, zipfile.BadZipFile, zlib.error, csv.Error) as error:
        # Arrow's own errors are among these; those of the system alone have a number.
        if isinstance(error, OSError) and error.errno is not None:
            raise InputError(f"{path} cannot be read: {error.strerror}.") from error
        kind = {".npz": "NPZ", ".csv": "CSV", ".tsv": "TSV"}.get(suffix, "Parquet")
        raise InputError(f"{path} is not a sound {kind} file: {_reason(error)}.") from error


def write_table(columns: Mapping[str, NDArray[Any]], path: Path) -> None:
    """Equally long columns as a CSV or Parquet file, by its suffix; a file that was there is replaced whole or not at all."""
    if check_writable(path) == ".csv":
        with replacing(path) as file:
            write_csv(columns, file)
    else:
        from pyarrow import parquet

        with replacing(path) as file:
            parquet.write_table(_arrow_table(columns), file)


def check_readable(path: Path) -> str:
    """The suffix of a file that `read_table` could read, or a sentence that says why it could not."""
    suffix = _suffix(path, READABLE, "reads")
    if not path.is_file():
        raise InputError(f"{path} is a folder, not a table." if path.is_dir() else f"{path} does not exist.")
    if path.stat().st_size == 0:
        raise InputError(f"{path} is empty.")
    return suffix


def check_writable(path: Path) -> str:
    """The suffix of a file that `write_table` could write, or a sentence that says why it could not."""
    suffix = _suffix(path, WRITABLE, "writes")
    if path.is_dir():
        raise InputError(f"{path} is a folder; give the name of a file to write.")
    if not path.absolute().parent.is_dir():
        raise InputError(f"The folder of {path} does not exist; create it first.")
    return suffix


def write_csv(columns: Mapping[str, NDArray[Any]], file: BinaryIO) -> None:
    """Columns as CSV; text is quoted only where it must be."""
    from pyarrow import csv as arrow_csv

    words = {str(word) for column in columns.values() if column.dtype.kind in "UO" for word in set(column.tolist()) - {None}}
    plain = not any(re.search(r'[",\r\n]', word) or not word for word in words)
    header = ",".join(f'"{_doubled(name)}"' if re.search(r'[",\r\n]', name) else name for name in columns)
    file.write(header.encode() + b"\n")
    options = arrow_csv.WriteOptions(include_header=False, quoting_style="none" if plain else "needed")
    arrow_csv.write_csv(_arrow_table(columns), file, options)


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A file to write in place of `path`, which changes only once all of the new one is safe on disk."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    if os.name == "posix":  # the rename itself is only safe once the folder is
        folder = os.open(path.absolute().parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _read_npz(path: Path, label: str | None, leave_out: Collection[str], like: Features | None) -> Table:
    if not zipfile.is_zipfile(path):
        raise zipfile.BadZipFile("it is cut off or something else")
    with np.load(path, allow_pickle=False) as arrays:
        keys = [key for key in ("X", "x") if key in arrays.files]
        if len(keys) != 1:
            raise InputError(f'{path} must hold its features under one of the keys "X" and "x"; it has {_some(arrays.files)}.')
        if label is not None and label not in arrays.files:
            raise InputError(f"{path} has no key {_quoted(label)} to read labels from; it has {_some(arrays.files)}.")
        try:
            x, y = arrays[keys[0]], None if label is None else arrays[label]
        except ValueError as error:
            if "allow_pickle" not in str(error):
                raise
            raise InputError(f"{path} holds Python objects, which are never loaded; save plain arrays of numbers.") from error
        left_out = tuple(key for key in arrays.files if key in leave_out and key != label)
    if x.ndim != 2 or x.dtype.kind not in "fiub":
        raise InputError(f"{path}: {_quoted(keys[0])} must be a table of numbers, got shape {x.shape} of {x.dtype}.")
    if 0 in x.shape:
        raise InputError(f"{path} is empty: {_quoted(keys[0])} has shape {x.shape}.")
    if like is not None and like.width != x.shape[1]:
        raise InputError(f"{path} has {x.shape[1]} features a row where {like.width} are expected.")
    with np.errstate(over="ignore"):
        rows = np.ascontiguousarray(x, dtype=np.float32)
    _check_finite(rows, 0, [f"number {j + 1}" for j in range(x.shape[1])], path, lambda i, j: x[i, j].item())
    if y is not None:
        y = _labels(path, label, y, len(rows))
    return Table(rows, y, Features(rows.shape[1], None), left_out, by_place=like is not None and like.names is not None)


def _read_columns(path: Path, suffix: str, label: str | None, leave_out: Collection[str], like: Features | None) -> Table:
    names = _csv_names(path, suffix) if suffix in (".csv", ".tsv") else _parquet_names(path)
    left_out = tuple(name for name in names if name in leave_out and name != label)
    features = _feature_columns(path, names, label, left_out, like)
    wanted = [*features, *([] if label is None else [label])]
    if suffix in (".csv", ".tsv"):
        rows, schema, batches = _csv_batches(path, suffix, wanted, label)
    else:
        rows, schema, batches = _parquet_batches(path, wanted)
    if rows == 0:
        raise InputError(f"{path} has columns but no rows.")
    _refuse_text(path, features, schema, batches)
    x, y = _fill(path, features, label, rows, batches)
    if y is not None and label is not None:
        if suffix in (".csv", ".tsv"):
            y = _numbers_as_numbers(y)
        y = _labels(path, label, y, rows)
    named = Features(len(features), tuple(features))
    by_place = like is not None and like.names is None
    return Table(x, y, named, left_out, by_place, tuple(features[j] for j in _counting(x)))


def _feature_columns(
    path: Path, names: Sequence[str], label: str | None, left_out: Collection[str], like: Features | None
) -> list[str]:
    """Which columns to read as features, in which order."""
    if label is not None:
        _check_there(path, label, names, "label column")
    features = [name for name in names if name != label and name not in left_out]
    if "" in features:
        raise InputError(
            f"{path}: column {names.index('') + 1} has no name, as when pandas saves its row numbers. "
            "Name it, or leave it out with `--ignore-column ''`."
        )
    twice = {name for name in features if features.count(name) > 1} if len(set(features)) < len(features) else set()
    if twice or list(names).count(label or "") > 1:
        raise InputError(
            f"{path} has more than one column named {_some(sorted(twice) or [str(label)])}; columns are matched by name. "
            "Is its first line a header?"
        )
    if not features:
        raise InputError(f"{path} has no feature columns.")
    if like is None:
        return features
    if like.names is None:
        if like.width != len(features):
            raise InputError(f"{path} has {len(features)} features a row where {like.width} are expected: {_some(features)}.")
        return features
    here, expected = set(features), set(like.names)
    missing, extra = [name for name in like.names if name not in here], [name for name in features if name not in expected]
    if missing or extra:
        problems = [f"lacks {_columns(missing)}"] if missing else []
        problems += [f"has {_columns(extra)} that the features learned from do not have"] if extra else []
        hint = f" Leave it out with `{_ignoring(extra)}`, or name the labels with `--label-column`." if extra else ""
        raise InputError(f"{path} {' and '.join(problems)}.{hint}")
    return list(like.names)


def _check_there(path: Path, name: str, names: Sequence[str], what: str) -> None:
    if name not in names:
        plain = {known.strip().lower(): known for known in names}
        close = difflib.get_close_matches(name.strip().lower(), plain, n=1)
        hint = f" Did you mean {_quoted(plain[close[0]])}?" if close else ""
        raise InputError(f"{path} has no {what} {_quoted(name)}; it has {_some(names)}.{hint}")


def _csv_names(path: Path, suffix: str) -> list[str]:
    with path.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
        names = next(csv.reader(file, delimiter=_delimiter(suffix)), [])
    if any("\udc80" <= letter <= "\udcff" for name in names for letter in name):
        raise InputError(f"{path} names its columns in another encoding than UTF-8; save it as UTF-8.")
    if not names:
        raise InputError(f"{path} must start with a line that names its columns; its first line is blank.")
    if len(names) == 1 and (other := re.search(r"[;\t|,]", names[0])):
        raise InputError(
            f"{path} seems to be separated by {other[0]!r}; save it with {_delimiter(suffix)!r} between its columns."
        )
    return names


def _csv_batches(path: Path, suffix: str, wanted: list[str], label: str | None) -> tuple[int, Any, Iterable[Any]]:
    import pyarrow as pa
    from pyarrow import csv as arrow_csv

    def read(use_threads: bool) -> Any:
        return arrow_csv.read_csv(
            path,
            arrow_csv.ReadOptions(use_threads=use_threads),
            arrow_csv.ParseOptions(delimiter=_delimiter(suffix), newlines_in_values=True),
            # Labels are read as they are written: a guess would turn the class 007 into 7.
            arrow_csv.ConvertOptions(include_columns=wanted, column_types={} if label is None else {label: pa.string()}),
        )

    try:
        table = read(use_threads=True)
    except pa.ArrowInvalid:
        table = read(use_threads=False)  # fails the same way, and names the row
    return len(table), table.schema, table.to_batches(max_chunksize=ROWS_AT_ONCE)


def _parquet_names(path: Path) -> list[str]:
    from pyarrow import parquet

    names = parquet.read_schema(path).names
    return [name for name in names if not re.fullmatch(r"__index_level_\d+__", name)]  # pandas' own row labels


def _parquet_batches(path: Path, wanted: list[str], rows: int = ROWS_AT_ONCE) -> tuple[int, Any, Iterable[Any]]:
    from pyarrow import parquet

    class Batches:
        def __iter__(self) -> Iterator[Any]:
            with parquet.ParquetFile(path, pre_buffer=False) as file:  # buffered, the whole file would be held beside the matrix
                yield from file.iter_batches(batch_size=rows, columns=wanted)

    return parquet.read_metadata(path).num_rows, parquet.read_schema(path), Batches()


def _refuse_text(path: Path, features: Sequence[str], schema: Any, batches: Iterable[Any]) -> None:
    from pyarrow import types

    for name in features:
        kind = schema.field(name).type
        kind = kind.value_type if types.is_dictionary(kind) else kind
        if any(is_(kind) for is_ in (types.is_integer, types.is_floating, types.is_boolean, types.is_decimal, types.is_null)):
            continue
        if types.is_string(kind) or types.is_large_string(kind):
            row, value = _first_text(batches, name)
            what = f'text ("{value[:40]}" in row {row})'
        else:
            what = "text that is not UTF-8" if types.is_binary(kind) else f"{kind}"
        raise InputError(
            f"{path}: column {_quoted(name)} holds {what} where a feature must hold numbers. "
            f"Correct it, leave it out with `{_ignoring([name])}`, or name it with `--label-column` if it holds the labels."
        )


def _first_text(batches: Iterable[Any], name: str) -> tuple[int, str]:
    row = 0
    for batch in batches:
        for value in batch.column(name).to_pylist():
            row += 1
            try:
                float(value or "nan")
            except ValueError:
                return row, value
    return 1, ""


def _fill(
    path: Path, features: list[str], label: str | None, rows: int, batches: Iterable[Any], start: int = 0
) -> tuple[Rows, Labels | None]:
    """One float32 matrix, filled column by column; no cell becomes a Python object. `start` rows of the file came before."""
    import pyarrow as pa

    x, labels, before = np.empty((rows, len(features)), dtype=np.float32), [], start
    for batch in batches:
        block = x[start - before : start - before + len(batch)]
        for j, name in enumerate(features):
            block[:, j] = batch.column(name).cast(pa.float32(), safe=False).to_numpy(zero_copy_only=False)
        _check_finite(block, start, features, path, lambda i, j, batch=batch: batch.column(features[j])[i].as_py())
        if label is not None:
            labels.append(_label_array(path, label, batch.column(label), start))
        start += len(batch)
    return x, np.concatenate(labels) if labels else None


def _check_finite(block: Rows, start: int, names: Sequence[str], path: Path, cell: Any) -> None:
    finite = np.isfinite(block)
    if finite.all():
        return
    i, j = (int(place) for place in np.argwhere(~finite)[0])
    value = cell(i, j)
    if value is None or value != value:
        what = "has no value (or NaN)"
    else:
        what = f"holds {value}" + ("" if value in (float("inf"), -float("inf")) else ", which is too large for float32")
    name = _quoted(names[j]) if names[j] else names[j]
    raise InputError(f"{path}: column {name} {what} in row {start + i + 1}; drop the row or fill the cell in.")


def _label_array(path: Path, label: str, column: Any, start: int) -> NDArray[Any]:
    from pyarrow import types

    if types.is_dictionary(column.type):
        column = column.dictionary_decode()
    values: NDArray[Any] = column.to_numpy(zero_copy_only=False)
    text = types.is_string(column.type) or types.is_large_string(column.type)
    missing = (values == "") | (values == None) if text else column.is_null().to_numpy(zero_copy_only=False)  # noqa: E711
    if missing.any():
        raise InputError(f"{path}: label column {_quoted(label)} has no value in row {start + int(missing.argmax()) + 1}.")
    return values.astype(str) if text else values


def _labels(path: Path, label: str | None, values: NDArray[Any], rows: int) -> Labels:
    try:
        y = as_labels(values)
    except InputError as error:
        raise InputError(f"{path}, {_quoted(str(label))}: {error}") from None
    if len(y) != rows:
        raise InputError(f"{path} has {rows} rows but {len(y)} labels under {_quoted(str(label))}.")
    return y


def _numbers_as_numbers(y: NDArray[Any]) -> NDArray[Any]:
    """Text that was all written as numbers, as those numbers; 007 is not how a number is written."""
    words = [str(word) for word in np.unique(y)]
    if all(re.fullmatch(r"-?(0|[1-9]\d{0,17})", word) for word in words):
        return y.astype(np.int64)
    if all(re.fullmatch(r"-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?", word) for word in words):
        return y.astype(np.float64)
    return y


def _counting(x: Rows) -> list[int]:
    if len(x) < 8:
        return []
    with np.errstate(over="ignore"):
        maybe = np.flatnonzero((x[1] - x[0] == 1) & (x[-1] - x[0] == len(x) - 1))
    return [int(j) for j in maybe if (np.diff(x[:, j]) == 1).all()]


def _arrow_table(columns: Mapping[str, NDArray[Any]]) -> Any:
    import pyarrow as pa

    return pa.table({name: pa.array(column) for name, column in columns.items()})


def _suffix(path: Path, known: Collection[str], verb: str) -> str:
    suffix = path.suffix.lower()
    if suffix not in known:
        raise InputError(
            f"{path}: perdure {verb} {', '.join(known)}, not {_quoted(suffix) if suffix else 'a name without a suffix'}."
        )
    return suffix


def _delimiter(suffix: str) -> str:
    return "\t" if suffix == ".tsv" else ","


def _doubled(text: str) -> str:
    return text.replace('"', '""')


def _quoted(name: str) -> str:
    return f'"{name}"'


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(_quoted(name) for name in names[:6])
    return f"{shown} and {len(names) - 6} more" if len(names) > 6 else shown or "none"


def _columns(names: Sequence[str]) -> str:
    return f"the column{'s' if len(names) > 1 else ''} {_some(names)}"


def _ignoring(names: Sequence[str]) -> str:
    import shlex

    return " ".join(f"--ignore-column {shlex.quote(name)}" for name in names[:6]) + (" …" if len(names) > 6 else "")


def _reason(error: Exception) -> str:
    first = (str(error).splitlines() or [""])[0].strip("'\". ")
    return "".join(letter for letter in first if letter.isprintable()) or type(error).__name__
