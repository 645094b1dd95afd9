"""Feature tables: what is read, what is refused and in which words, what is written."""

from __future__ import annotations

import decimal
import io
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import csv, parquet
from sklearn.datasets import load_digits

from perdure.errors import InputError
from perdure.inputs.tables import Features, check_writable, read_parts, read_table, replacing, write_csv, write_table

DIGITS = load_digits()
X = DIGITS.data[:120].astype(np.float32)
WORDS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
Y = np.array([WORDS[digit] for digit in DIGITS.target[:120]])
NAMES = tuple(f"pixel.{i}" for i in range(64))


def digits(**more: Any) -> pa.Table:
    return pa.table({**{name: X[:, i] for i, name in enumerate(NAMES)}, "digit": Y, **more})


@pytest.fixture
def text(tmp_path: Path) -> Callable[..., Path]:
    """Writes a file of these words."""

    def write(content: str | bytes, name: str = "table.csv") -> Path:
        (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
        return tmp_path / name

    return write


# -- reading --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["digits.csv", "digits.tsv", "digits.parquet", "digits.pq", "DIGITS.CSV", "digits.npz"])
def test_every_format_gives_the_same_rows_and_labels(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    if path.suffix == ".npz":
        np.savez_compressed(path, X=X.astype(np.float64), digit=Y)
    elif path.suffix in (".parquet", ".pq"):
        parquet.write_table(digits(), path)
    else:
        csv.write_csv(digits(), path, csv.WriteOptions(delimiter="\t" if path.suffix == ".tsv" else ","))
    table = read_table(path, label="digit")
    np.testing.assert_array_equal(table.x, X)
    assert table.x.dtype == np.float32
    assert table.x.flags.c_contiguous
    assert table.y is not None
    np.testing.assert_array_equal(table.y, Y)
    assert table.features == Features(64, None if path.suffix == ".npz" else NAMES)


def test_columns_are_matched_by_name_whatever_their_order(tmp_path: Path) -> None:
    parquet.write_table(digits().select(["digit", *reversed(NAMES)]), tmp_path / "turned.parquet")
    table = read_table(tmp_path / "turned.parquet", label="digit", like=Features(64, NAMES))
    np.testing.assert_array_equal(table.x, X)
    assert not table.by_place


def test_a_table_of_many_row_groups_and_blocks_keeps_its_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perdure.inputs.tables.ROWS_AT_ONCE", 7)
    parquet.write_table(digits(), tmp_path / "groups.parquet", row_group_size=11)
    csv.write_csv(digits(), tmp_path / "groups.csv")
    for name in ("groups.parquet", "groups.csv"):
        table = read_table(tmp_path / name, label="digit")
        np.testing.assert_array_equal(table.x, X)
        np.testing.assert_array_equal(table.y, Y)


def test_any_kind_of_number_is_a_feature(tmp_path: Path) -> None:
    columns = {
        "int8": pa.array([1, -2], pa.int8()),
        "uint64": pa.array([3, 4], pa.uint64()),
        "half": pa.array(np.array([0.5, 1.5], np.float16)),
        "double": pa.array([0.1, 1e30]),
        "bool": pa.array([True, False]),
        "decimal": pa.array([decimal.Decimal("1.25"), decimal.Decimal("-3.50")]),
        "few": pa.array([7.0, 9.0]).dictionary_encode(),
    }
    parquet.write_table(pa.table(columns), tmp_path / "kinds.parquet")
    expected = np.array([[1, 3, 0.5, 0.1, 1, 1.25, 7], [-2, 4, 1.5, 1e30, 0, -3.5, 9]], np.float32)
    np.testing.assert_array_equal(read_table(tmp_path / "kinds.parquet").x, expected)


def test_no_cell_becomes_a_python_object(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perdure.inputs.tables.ROWS_AT_ONCE", 10**6)
    x = np.random.default_rng(0).normal(size=(300_000, 2))
    parquet.write_table(pa.table({"f": x[:, 0], "g": x[:, 1]}), tmp_path / "large.parquet")
    csv.write_csv(pa.table({"f": x[:, 0], "g": x[:, 1]}), tmp_path / "large.csv")
    np.savez(tmp_path / "large.npz", X=x.astype(np.float32))
    for name in ("large.parquet", "large.csv", "large.npz"):
        read_table(tmp_path / name)  # imports what it needs
        tracemalloc.start()
        table = read_table(tmp_path / name)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        np.testing.assert_allclose(table.x, x, rtol=1e-6)
        # A matrix, its finiteness and one column on the way; a Python float and its place in a list would be 32 bytes a cell.
        assert peak < 12 * x.size, f"{peak / x.size:.1f} bytes a cell"


@pytest.mark.parametrize("name", ["digits.parquet", "digits.csv"])
def test_parts_are_the_table_piece_by_piece(tmp_path: Path, name: str) -> None:
    if name.endswith("csv"):
        csv.write_csv(digits(), tmp_path / name)
    else:
        parquet.write_table(digits().select(["digit", *reversed(NAMES)]), tmp_path / name, row_group_size=50)
    like = Features(64, NAMES)
    parts = list(read_parts(tmp_path / name, label="digit", like=like, rows=32))
    assert max(len(part.x) for part in parts) == 32
    np.testing.assert_array_equal(np.concatenate([part.x for part in parts]), X)
    assert np.concatenate([part.y for part in parts]).tolist() == Y.tolist()
    assert all(part.features == like for part in parts)
    with pytest.raises(InputError, match='has no label column "kind"'):
        next(read_parts(tmp_path / name, label="kind"))


def test_what_is_wrong_in_a_later_part_is_named_by_its_row_of_the_file(tmp_path: Path) -> None:
    parquet.write_table(pa.table({"a": [*range(20), None, 3.0]}), tmp_path / "late.parquet")
    parts = read_parts(tmp_path / "late.parquet", rows=8)
    assert [len(next(parts).x), len(next(parts).x)] == [8, 8]
    with pytest.raises(InputError, match=r'late\.parquet: column "a" has no value \(or NaN\) in row 21'):
        next(parts)
    parquet.write_table(pa.table({"a": pa.array([], pa.float32())}), tmp_path / "none.parquet")
    with pytest.raises(InputError, match="has columns but no rows"):
        next(read_parts(tmp_path / "none.parquet"))


def test_labels_left_out_are_not_read(tmp_path: Path) -> None:
    parquet.write_table(digits(), tmp_path / "query.parquet")
    table = read_table(tmp_path / "query.parquet", leave_out=["digit", "absent"])
    assert table.y is None
    assert table.left_out == ("digit",)
    assert table.features.names == NAMES


def test_labels_of_a_csv_are_read_as_they_are_written(text: Callable[..., Path]) -> None:
    for words, expected in (
        (["007", "010"], ["007", "010"]),
        (["7", "-10"], [7, -10]),
        (["1.0", "2"], [1, 2]),
        (["v1.0", "2"], ["v1.0", "2"]),
        (["true", "NA"], ["true", "NA"]),
        (["2024-01-01", "x"], ["2024-01-01", "x"]),
    ):
        path = text("f,y\n" + "".join(f"{i},{word}\n" for i, word in enumerate(words)))
        labels = read_table(path, label="y").y
        assert labels is not None
        assert labels.tolist() == expected


@pytest.mark.parametrize(
    "labels",
    [
        pa.array(["a", "b"]).dictionary_encode(),
        pa.array(["a", "b"], pa.large_string()),
        pa.array([3, 4], pa.uint8()),
        pa.array([3.0, 4.0]),
        pa.array([True, False]),
    ],
    ids=["category", "large_string", "uint8", "whole double", "bool"],
)
def test_labels_of_a_parquet_file_may_be_of_any_kind_of_class(tmp_path: Path, labels: pa.Array) -> None:
    parquet.write_table(pa.table({"f": [1.0, 2.0], "y": labels}), tmp_path / "t.parquet")
    read = read_table(tmp_path / "t.parquet", label="y").y
    assert read is not None
    assert read.tolist() == labels.to_pylist()


def test_what_spreadsheets_and_pandas_add_is_understood(text: Callable[..., Path], tmp_path: Path) -> None:
    marked = read_table(text('\ufefff,"a ""b"", c",note\r\n1,2,"two\nlines"\r\n\r\n3,4,x\r\n'), leave_out=["note"])
    assert marked.features.names == ("f", 'a "b", c')
    assert marked.x.tolist() == [[1, 2], [3, 4]]
    parquet.write_table(pa.table({"f": [1.0, 2.0], "__index_level_0__": ["u", "v"]}), tmp_path / "pandas.parquet")
    assert read_table(tmp_path / "pandas.parquet").features.names == ("f",)


def test_text_of_many_lines_may_stand_beside_the_features(text: Callable[..., Path]) -> None:
    lines = "\n".join(f"word {i}" for i in range(200))
    path = text("f,note,g\n" + "".join(f'{i},"{lines}",{-i}\n' for i in range(2000)))  # more than one block of the reader
    assert read_table(path, leave_out=["note"]).x.tolist() == [[i, -i] for i in range(2000)]


def test_a_column_that_counts_the_rows_is_pointed_out(tmp_path: Path) -> None:
    parquet.write_table(digits(row=np.arange(120) + 5, nearly=np.r_[0, 1, 3, 2, np.arange(4, 120)]), tmp_path / "t.parquet")
    assert read_table(tmp_path / "t.parquet", label="digit").counting == ("row",)


def test_an_array_without_names_is_matched_by_place(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", x=X)
    parquet.write_table(digits(), tmp_path / "x.parquet")
    assert read_table(tmp_path / "x.npz", like=Features(64, NAMES)).by_place
    assert not read_table(tmp_path / "x.npz", like=Features(64, None)).by_place
    assert read_table(tmp_path / "x.parquet", label="digit", like=Features(64, None)).by_place


# -- refusing -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("", "is empty"),
        ("\n1,2\n", "first line is blank"),
        ("f,y\n", "has columns but no rows"),
        ("y\n1\n2\n", "has no feature columns"),
        ("f,y\n1,a\n2\n", r"not a sound CSV file: .*Row #3: Expected 2 columns, got 1"),
        ("f;y\n1;2\n", "seems to be separated by ';'; save it with ',' between"),
        ("f\ty\n1\t2\n", r"seems to be separated by '\\t'"),
        (",f,y\n0,1,a\n1,2,b\n", "column 1 has no name, as when pandas .*--ignore-column ''"),
        ("f,f,y\n1,2,a\n", 'more than one column named "f"'),
        ("f,y,y\n1,a,a\n", 'more than one column named "y"'),
        ("f,id,y\n1,a17,a\n2,a18,b\n", '"id" holds text \\("a17" in row 1\\) .* leave it out with `--ignore-column id`'),
        ("f,my id,y\n1,a17,a\n", "--ignore-column 'my id'`"),
        ("f,day,y\n1,2024-01-01,a\n", '"day" holds date32.* where a feature must hold numbers'),
        ("f,y\n1,a\n,b\n", 'column "f" has no value .* in row 2'),
        ("f,y\n1,a\nNaN,b\n", 'column "f" has no value \\(or NaN\\) in row 2'),
        ("f,g,y\n1,,a\n2,,b\n", 'column "g" has no value .* in row 1'),
        ("f,y\n1,a\n-inf,b\n", 'column "f" holds -inf in row 2'),
        ("f,y\n1,a\n1e300,b\n", 'column "f" holds 1e\\+300, which is too large for float32 in row 2'),
        ("f,y\n1,0.5\n2,1\n", '"y": Labels are classes: .* got fractions'),
        ("f,y\n1,a\n2,\n", 'label column "y" has no value in row 2'),
        ("f,Y\n1,a\n", 'has no label column "y"; it has "f", "Y". Did you mean "Y"?'),
        (b"f\xe9,y\n1,a\n", "another encoding than UTF-8; save it as UTF-8"),
        (b"f,g,y\n1,\xe9,a\n", '"g" holds text that is not UTF-8'),
    ],
)
def test_a_csv_that_cannot_be_used_is_refused_in_one_sentence(text: Callable[..., Path], content: Any, sentence: str) -> None:
    path = text(content)
    with pytest.raises(InputError, match=sentence) as error:
        read_table(path, label="y")
    assert str(error.value).startswith(str(path))
    assert "\n" not in str(error.value)


def test_text_far_down_a_column_is_found(text: Callable[..., Path]) -> None:
    path = text("f,g\n" + "1,2\n" * 400_000 + "3,oops\n")
    with pytest.raises(InputError, match=r'"g" holds text \("oops" in row 400001\)'):
        read_table(path)


def test_a_bad_cell_far_down_is_named_by_its_row_in_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perdure.inputs.tables.ROWS_AT_ONCE", 7)
    broken = X.astype(np.float64)
    broken[100, 3] = np.nan
    parquet.write_table(pa.table({name: broken[:, i] for i, name in enumerate(NAMES)}), tmp_path / "t.parquet")
    np.savez(tmp_path / "t.npz", X=broken)
    with pytest.raises(InputError, match=r'"pixel.3" has no value \(or NaN\) in row 101'):
        read_table(tmp_path / "t.parquet")
    with pytest.raises(InputError, match=r'"number 4" has no value \(or NaN\) in row 101'):
        read_table(tmp_path / "t.npz")
    labels = [*Y[:99], None, *Y[100:]]
    parquet.write_table(pa.table({"f": X[:, 0], "y": pa.array(labels)}), tmp_path / "labels.parquet")
    with pytest.raises(InputError, match='label column "y" has no value in row 100'):
        read_table(tmp_path / "labels.parquet", label="y")


def test_other_columns_than_before_are_named(tmp_path: Path) -> None:
    names = ["pixel.0", "pixel.1", "odd one", "other"]
    parquet.write_table(pa.table({name: [1.0, 2.0] for name in names}), tmp_path / "t.parquet")
    with pytest.raises(InputError, match=r'lacks the column "pixel.2" and has the columns "odd one", "other" that') as error:
        read_table(tmp_path / "t.parquet", like=Features(3, ("pixel.0", "pixel.1", "pixel.2")))
    assert "--ignore-column 'odd one' --ignore-column other" in str(error.value)
    with pytest.raises(InputError, match="has 4 features a row where 9 are expected"):
        read_table(tmp_path / "t.parquet", like=Features(9, None))


@pytest.mark.parametrize(
    ("arrays", "sentence"),
    [
        ({"features": X}, 'under one of the keys "X" and "x"; it has "features"'),
        ({"X": X, "x": X}, "under one of the keys"),
        ({"X": X}, 'no key "y" to read labels from; it has "X"'),
        ({"X": X, "y": Y[:5]}, "has 120 rows but 5 labels"),
        ({"X": X, "y": np.linspace(0, 1, 120)}, "Labels are classes"),
        ({"X": X[0], "y": Y}, r"must be a table of numbers, got shape \(64,\)"),
        ({"X": X[:0], "y": Y[:0]}, "is empty"),
        ({"X": Y[:, None], "y": Y}, "must be a table of numbers, got shape .* of <U"),
        ({"X": X.astype(object), "y": Y}, "holds Python objects, which are never loaded"),
    ],
)
def test_an_npz_that_cannot_be_used_is_refused(tmp_path: Path, arrays: dict[str, Any], sentence: str) -> None:
    np.savez(tmp_path / "t.npz", **arrays)
    with pytest.raises(InputError, match=sentence):
        read_table(tmp_path / "t.npz", label="y")


@pytest.mark.parametrize("name", ["t.parquet", "t.npz"])
@pytest.mark.parametrize("part", ["start", "end", "middle"])
def test_a_damaged_file_is_refused(tmp_path: Path, name: str, part: str) -> None:
    path = tmp_path / name
    if name == "t.npz":
        np.savez(path, X=X, y=Y)
    else:
        parquet.write_table(digits(), path)
    whole = path.read_bytes()
    third = len(whole) // 3
    damaged = {"start": whole[third:], "end": whole[:-third], "middle": whole[:third] + b"\xff" * third + whole[2 * third :]}
    path.write_bytes(damaged[part])
    with pytest.raises(InputError, match=r"t\.(parquet is not a sound Parquet|npz is not a sound NPZ) file: ") as error:
        read_table(path, label="y" if name == "t.npz" else "digit")
    assert "\n" not in str(error.value)


def test_a_file_that_is_no_table_is_refused(tmp_path: Path, text: Callable[..., Path]) -> None:
    with pytest.raises(InputError, match="does not exist"):
        read_table(tmp_path / "none.csv")
    with pytest.raises(InputError, match=r'perdure reads \.parquet, .*, not "\.xlsx"'):
        read_table(text("x", "t.xlsx"))
    with pytest.raises(InputError, match="not a name without a suffix"):
        read_table(text("x", "table"))
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(InputError, match="is a folder"):
        read_table(tmp_path / "folder.csv")


def test_a_file_that_may_not_be_read_is_refused(text: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(*args: object, **kwargs: object) -> None:
        raise PermissionError(13, "Permission denied")

    path = text("f\n1\n")
    monkeypatch.setattr("pathlib.Path.open", denied)
    with pytest.raises(InputError, match=r"cannot be read: Permission denied\."):
        read_table(path)


# -- writing --------------------------------------------------------------------------------------------------------------


def columns() -> dict[str, np.ndarray]:
    return {"prediction": Y, "confidence": X[:, 10], "count": np.arange(120)}


@pytest.mark.parametrize("name", ["out.csv", "out.parquet"])
def test_what_is_written_is_what_was_given_in_its_order(tmp_path: Path, name: str) -> None:
    write_table(columns(), tmp_path / name)
    read = parquet.read_table(tmp_path / name) if name.endswith("parquet") else csv.read_csv(tmp_path / name)
    assert read.column_names == ["prediction", "confidence", "count"]
    for key, column in columns().items():
        np.testing.assert_array_equal(read[key].to_numpy(), column)
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_csv_is_quoted_where_it_must_be_and_nowhere_else() -> None:
    plain, odd = io.BytesIO(), io.BytesIO()
    write_csv({"prediction": np.array(["cat", "dog"]), "p": np.array([0.25, 1], np.float32)}, plain)
    assert plain.getvalue() == b"prediction,p\ncat,0.25\ndog,1\n"
    write_csv({'a "b", c': np.array(["cat, big", 'the "dog"', ""])}, odd)
    table = csv.read_csv(io.BytesIO(odd.getvalue()))
    assert table.to_pydict() == {'a "b", c': ["cat, big", 'the "dog"', ""]}


@pytest.mark.parametrize("name", ["out.csv", "out.parquet"])
def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    (tmp_path / name).write_text("before")
    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_table(columns(), tmp_path / name)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {name: "before"}


def test_a_file_is_replaced_only_once_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("before")
    with replacing(path) as file:
        file.write(b"after")
        file.flush()
        assert path.read_text() == "before"
    assert path.read_text() == "after"


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("out.npz", 'writes .parquet, .pq, .csv, not ".npz"'),
        ("none/out.csv", "does not exist; create"),
        ("dir.csv", "is a folder"),
    ],
)
def test_where_nothing_can_be_written_is_said_before(tmp_path: Path, name: str, sentence: str) -> None:
    (tmp_path / "dir.csv").mkdir()
    with pytest.raises(InputError, match=sentence):
        check_writable(tmp_path / name)


def test_what_was_left_unanswered_is_an_empty_cell_beside_words_that_need_quotes(tmp_path: Path) -> None:
    answers = np.array(["cat, black", None, "dog"], dtype=object)
    write_table({"prediction": answers, "confidence": np.array([0.5, 0.25, 0.5], np.float32)}, tmp_path / "t.csv")
    assert (tmp_path / "t.csv").read_text() == 'prediction,confidence\n"cat, black",0.5\n,0.25\n"dog",0.5\n'
    write_table({"prediction": np.array([7, None], dtype=object)}, tmp_path / "t.parquet")
    assert parquet.read_table(tmp_path / "t.parquet")["prediction"].to_pylist() == [7, None]
