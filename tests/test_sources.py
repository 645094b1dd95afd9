"""Whatever data come in: the same rows and labels, at once or piece by piece."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from PIL import Image
from pyarrow import csv, parquet
from tiny_backbones import Colours, save
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from perdure import AnalyticLearner, Environment, InputError, VariationalConfig, VariationalLearner
from perdure.inputs import Reader, sources
from perdure.streams import as_rows

X = np.arange(60, dtype=np.float32).reshape(20, 3)
Y = np.array(["cat", "dog"] * 10)


class Pairs(Dataset[Any]):
    """A data set of torch's with places."""

    def __len__(self) -> int:
        return len(X)

    def __getitem__(self, i: int) -> tuple[torch.Tensor, str]:
        return torch.from_numpy(X[i]), str(Y[i])


class Rows(IterableDataset[Any]):
    """One that is gone through, of rows alone or with their labels, by place or by name."""

    def __init__(self, kind: str = "pair") -> None:
        self.kind = kind

    def __iter__(self) -> Iterator[Any]:
        for x, y in zip(X, Y, strict=True):
            yield {"pair": (x, y), "row": x, "single": (x,), "named": {"features": x, "label": str(y)}}[self.kind]


def in_chunks(*sizes: int, labels: bool = True) -> Iterator[Any]:
    start = 0
    for size in sizes:
        part = slice(start, start + size)
        yield (X[part], Y[part]) if labels else X[part]
        start += size


def hugging_face(**more: Any) -> datasets.Dataset:
    columns = {"features": X.tolist(), "label": [int(y == "dog") for y in Y], **more}
    return datasets.Dataset.from_dict(columns).cast_column("label", datasets.ClassLabel(names=["cat", "dog"]))


LABELLED: dict[str, Any] = {
    "pair of arrays": lambda tmp: (X, Y),
    "pair of tensor and list": lambda tmp: (torch.from_numpy(X), Y.tolist()),
    "pair of lists": lambda tmp: (X.tolist(), Y.tolist()),
    "frame": lambda tmp: pd.DataFrame(X, columns=["a", "b", "c"]).assign(label=Y),
    "torch data set": lambda tmp: Pairs(),
    "torch iterable": lambda tmp: Rows(),
    "torch iterable of columns": lambda tmp: Rows("named"),
    "loader": lambda tmp: DataLoader(Pairs(), batch_size=6),
    "hugging face": lambda tmp: hugging_face(),
    "hugging face, many columns": lambda tmp: datasets.Dataset.from_dict(
        {"a": X[:, 0], "b": X[:, 1], "c": X[:, 2], "label": Y.tolist()}
    ),
    "hugging face stream": lambda tmp: hugging_face().to_iterable_dataset(),
    "iterator of chunks": lambda tmp: in_chunks(7, 13),
    "list of chunks": lambda tmp: list(in_chunks(7, 13)),
    "function that begins an iterator": lambda tmp: lambda: in_chunks(7, 13),
    "chunks with columns": lambda tmp: iter([{"x": X[:9], "y": Y[:9]}, {"x": X[9:], "y": Y[9:]}]),
    "frames": lambda tmp: iter([pd.DataFrame(X).assign(label=Y)]),
    "parquet": lambda tmp: written(tmp / "t.parquet"),
    "csv": lambda tmp: written(tmp / "t.csv"),
}
UNLABELLED: dict[str, Any] = {
    **{name: make for name, make in LABELLED.items() if "pair" not in name},
    "array": lambda tmp: X,
    "tensor": lambda tmp: torch.from_numpy(X),
    "lists": lambda tmp: X.tolist(),
    "frame without labels": lambda tmp: pd.DataFrame(X),
    "torch data set of rows": lambda tmp: TensorDataset(torch.from_numpy(X)),
    "torch iterable of rows": lambda tmp: Rows("row"),
    "torch iterable of single": lambda tmp: Rows("single"),
    "chunks of rows": lambda tmp: in_chunks(7, 13, labels=False),
    "list of chunks of rows": lambda tmp: list(in_chunks(7, 13, labels=False)),
    "hugging face without labels": lambda tmp: hugging_face().remove_columns("label"),
}


def written(path: Path) -> Path:
    table = pa.table({"a": X[:, 0], "b": X[:, 1], "c": X[:, 2], "label": Y})
    if path.suffix == ".csv":
        csv.write_csv(table, path)
    else:
        parquet.write_table(table, path, row_group_size=6)
    return path


@pytest.mark.parametrize("rows", [8, 8192])
@pytest.mark.parametrize("kind", LABELLED)
def test_a_support_is_the_same_however_it_comes(tmp_path: Path, kind: str, rows: int) -> None:
    support = Reader(label="label" if kind in ("parquet", "csv") else None, rows=rows).support(LABELLED[kind](tmp_path))
    np.testing.assert_array_equal(support.x, X)
    assert support.y.tolist() == Y.tolist()
    assert support.x.dtype == np.float32


@pytest.mark.parametrize("kind", UNLABELLED)
def test_a_query_is_the_same_however_it_comes_and_has_no_labels(tmp_path: Path, kind: str) -> None:
    query = Reader(label="label" if kind in ("parquet", "csv") else None).query(UNLABELLED[kind](tmp_path))
    np.testing.assert_array_equal(query.x, X)


def test_labels_may_be_given_beside_the_rows() -> None:
    assert Reader().support(X, Y).y.tolist() == Y.tolist()
    assert Reader().support(X.tolist(), list(range(20))).y.tolist() == list(range(20))


def test_parts_are_one_half_each_and_say_whether_more_is_to_come() -> None:
    parts = list(Reader(rows=8).parts("b", (X, Y), in_chunks(15, 5, labels=False)))
    assert [more for _, more in parts] == [True] * 4 + [False]
    assert all(isinstance(part, Environment) and part.name == "b" for part, _ in parts)
    assert [(part.support is not None, part.query is not None) for part, _ in parts] == [(True, False)] * 3 + [(False, True)] * 2
    np.testing.assert_array_equal(np.concatenate([part.support.x for part, _ in parts[:3]]), X)
    np.testing.assert_array_equal(np.concatenate([part.query.x for part, _ in parts[3:]]), X)
    assert [more for _, more in Reader().parts("b", query=X)] == [False]
    with pytest.raises(InputError, match='Environment "b" has neither support nor query'):
        list(Reader().parts("b"))


def test_parts_hold_no_more_than_a_piece_in_memory(tmp_path: Path) -> None:
    names, group = [f"f{j}" for j in range(64)], 10_000
    with parquet.ParquetWriter(tmp_path / "big.parquet", pa.schema([(name, pa.float32()) for name in names])) as writer:
        for _ in range(10):
            writer.write_table(pa.table({name: np.random.default_rng(0).normal(size=group).astype(np.float32) for name in names}))
    tracemalloc.start()
    rows = sum(len(part.query.x) for part, _ in Reader(rows=2000).parts("b", query=tmp_path / "big.parquet"))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert rows == 100_000
    assert peak < 8 * 4 * 64 * 2000, f"{peak / (4 * 64 * 2000):.1f} pieces"  # all of it would be 50


def test_pieces_teach_the_analytic_learner_what_the_whole_does(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    y = np.repeat(["cat", "dog", "yak"], 40)
    x = (rng.normal(size=(120, 6)) + 2 * np.eye(6)[np.searchsorted(["cat", "dog", "yak"], y)]).astype(np.float32)
    shuffled = rng.permutation(120)
    x, y, query = x[shuffled], y[shuffled], (x + 0.5)[::2]
    parquet.write_table(pa.table({**{f"f{j}": x[:, j] for j in range(6)}, "kind": y}), tmp_path / "s.parquet")
    whole, pieces = AnalyticLearner(), AnalyticLearner()
    whole.learn(Environment("b", Reader(label="kind").support(tmp_path / "s.parquet"), Reader().query(query)))
    for part, more in Reader(label="kind", rows=17).parts("b", tmp_path / "s.parquet", iter(np.array_split(query, 7))):
        pieces.learn(part, more=more)
    np.testing.assert_allclose(pieces.predict_proba(query, "b"), whole.predict_proba(query, "b"), atol=1e-5)
    assert (pieces.predict(query) == whole.predict(query)).all()


# More than fits into memory


def test_more_than_memory_has_room_for_lies_in_a_file_that_goes_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "IN_MEMORY", 100)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    support = Reader(rows=4).support((X, Y))
    np.testing.assert_array_equal(support.x, X)
    base: Any = support.x
    while base.base is not None and not isinstance(base, np.memmap):
        base = base.base
    assert isinstance(base, np.memmap)
    assert list(tmp_path.iterdir()) == []
    query = Reader(rows=4).query(iter([X[:, :, None]] * 3))
    np.testing.assert_array_equal(query.x, np.concatenate([X[:, :, None]] * 3))
    config = VariationalConfig(latent=4, features=8, width=8, warm_up=2, steps=2, batch=8, replay_batch=8)
    learner = VariationalLearner(config)
    assert learner.learn(Environment("b", support, Reader(rows=4).query(X)), progress=False).steps == 4
    assert (support.x == X).all()


def test_a_row_that_is_no_number_is_found_block_by_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perdure.streams.AT_ONCE", 7)
    bad = X.copy()
    bad[13, 2] = np.nan
    bad[17, 0] = np.inf
    with pytest.raises(InputError, match=r"NaN or infinite values in 2 of 20 rows \(the first is row 13\)"):
        as_rows(bad, "query")
    np.testing.assert_array_equal(as_rows(X, "query"), X)


# Pictures and texts


def draw(folder: Path) -> list[Path]:
    files = [folder / label / f"{i}.png" for label in ("cat", "dog") for i in range(3)]
    for i, file in enumerate(files):
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (4, 4), (i, 2 * i, 5)).save(file)
    return files


def opened(file: Path) -> Image.Image:
    with Image.open(file) as picture:
        return picture.copy()


COLOURS = [[i, 2 * i, 5] for i in range(6)]
SEEN: dict[str, Any] = {
    "folder": lambda files: files[0].parents[1],
    "folder by name": lambda files: str(files[0].parents[1]),
    "paths": lambda files: (files, ["cat"] * 3 + ["dog"] * 3),
    "pictures": lambda files: ([opened(file) for file in files], ["cat"] * 3 + ["dog"] * 3),
    "bytes": lambda files: ([file.read_bytes() for file in files], ["cat"] * 3 + ["dog"] * 3),
    "array": lambda files: (np.stack([np.asarray(opened(file)) for file in files]), ["cat"] * 3 + ["dog"] * 3),
    "hugging face": lambda files: datasets.Dataset.from_dict(
        {"image": [str(file) for file in files], "label": ["cat"] * 3 + ["dog"] * 3, "id": range(6)}
    ).cast_column("image", datasets.Image()),
    "hugging face, in memory": lambda files: datasets.Dataset.from_dict(
        {"photo": [opened(file) for file in files], "label": [0] * 3 + [1] * 3},
        features=datasets.Features({"photo": datasets.Image(), "label": datasets.ClassLabel(names=["cat", "dog"])}),
    ),
    "loader of tensors": lambda files: DataLoader(
        [(torch.from_numpy(np.asarray(opened(file)).transpose(2, 0, 1) / np.float32(255)), file.parent.name) for file in files],
        batch_size=4,
    ),
    "chunks": lambda files: iter([(files[:4], ["cat"] * 3 + ["dog"]), (files[4:], ["dog"] * 2)]),
    "frame": lambda files: pd.DataFrame({"file": [str(file) for file in files], "label": ["cat"] * 3 + ["dog"] * 3}),
}


@pytest.mark.parametrize("kind", SEEN)
def test_pictures_are_seen_through_the_backbone_however_they_come(tmp_path: Path, kind: str) -> None:
    files = draw(tmp_path / "photos")
    support = Reader(backbone=Colours(), rows=4).support(SEEN[kind](files))
    assert support.x.tolist() == COLOURS
    assert support.y.tolist() == ["cat"] * 3 + ["dog"] * 3
    assert Reader(backbone=Colours(), rows=4, label="label").query(SEEN[kind](files)).x.tolist() == COLOURS


@pytest.mark.parametrize("kind", ["folder", "bytes", "hugging face", "chunks"])
def test_a_file_is_known_however_it_comes(tmp_path: Path, kind: str) -> None:
    files = draw(tmp_path / "photos")
    Reader(backbone=Colours()).query(files)
    backbone = Colours()
    Reader(backbone=backbone).support(SEEN[kind](files))
    assert backbone.count == 0


def test_what_is_broken_takes_its_label_along(tmp_path: Path) -> None:
    files = draw(tmp_path / "photos")
    files[1].write_bytes(b"broken")
    with pytest.raises(InputError, match="cannot be read as a picture"):
        Reader(backbone=Colours()).support(tmp_path / "photos")
    support = Reader(backbone=Colours(), broken="skip", rows=2).support(tmp_path / "photos")
    assert support.y.tolist() == ["cat"] * 2 + ["dog"] * 3
    assert support.x[:, 0].tolist() == [0, 2, 3, 4, 5]


def test_a_backbone_may_be_named_and_its_features_are_kept_where_it_was_asked(tmp_path: Path) -> None:
    files = draw(tmp_path / "photos")
    reader = Reader(backbone=save(tmp_path / "resnet", "ResNet"), cache=tmp_path / "cache")
    assert reader.query(files).x.shape == (6, 8)
    assert len(list((tmp_path / "cache").iterdir())) == 1
    Reader(backbone=Colours(), cache=tmp_path / "none", keep=False).query(files)
    assert not (tmp_path / "none").exists()


class Words(Colours):
    """Stands in for a backbone of texts: how many letters there are."""

    def content(self, item: Any) -> bytes:
        return str(item).encode()

    def prepare(self, content: bytes, item: Any) -> Any:
        return np.full((1, 1, 3), len(item))


def test_texts_are_read_from_a_column() -> None:
    frame = pd.DataFrame({"id": [1, 2], "said": ["a", "bcd"], "kind": ["x", "y"]})
    table = datasets.Dataset.from_pandas(frame)
    for data in (frame, table, (["a", "bcd"], ["x", "y"])):
        support = Reader(backbone=Words(), column="said", label="kind").support(data)
        assert (support.x[:, 0].tolist(), support.y.tolist()) == ([1, 3], ["x", "y"])
    assert Reader(backbone=Words()).query(["a", "bcd", "ef"]).x[:, 0].tolist() == [1, 3, 2]


def test_texts_of_a_table_need_their_columns_name(tmp_path: Path) -> None:
    csv.write_csv(pa.table({"said": ["a", "bcd"], "kind": ["x", "y"]}), tmp_path / "t.csv")
    support = Reader(backbone=Words(), column="said", label="kind").support(tmp_path / "t.csv")
    assert (support.x[:, 0].tolist(), support.y.tolist()) == ([1, 3], ["x", "y"])
    with pytest.raises(InputError, match=r"t\.csv: name the `column` that the texts are in"):
        Reader(backbone=Words()).query(tmp_path / "t.csv")


# Refused


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (X, "The support has no labels: a ndarray gives none"),
        (Rows("row"), "The support has no labels: a Rows gives none"),
        ((X, Y[:-1]), "There are 20 rows but 19 labels"),
        (iter([]), "The support is empty"),
        (([], []), "The support is empty: a tuple gives no rows"),
        ((["a", "b"], [0, 1]), "Items of type str are no rows of numbers; name the `backbone`"),
        (42, "a int cannot be read; give arrays, a file, a folder, a data set or an iterator of chunks"),
        (iter([(X, Y), (X[:, :2], Y)]), r"A row has shape \(2,\) where earlier ones have \(3,\)"),
        (hugging_face().map(lambda row: {"label": -1}), 'The column "label" has rows without a label'),
        (datasets.DatasetDict({"train": hugging_face()}), "This data set has the parts train; give one of them"),
        (iter([(X, Y.astype(object)), (X, [None] * 20)]), "Labels must be"),
    ],
)
def test_what_cannot_be_a_support_is_said(data: Any, why: str) -> None:
    with pytest.raises(InputError, match=why):
        Reader().support(data)


def test_columns_that_are_not_there_or_not_clear_are_said() -> None:
    with pytest.raises(InputError, match=r"There are no columns \['x'\]; there are \['features'\]"):
        Reader(column="x").support(hugging_face())
    with pytest.raises(
        InputError, match=r"Which column goes through the backbone\? Name one as `column`; there are \['features', 'id'\]"
    ):
        Reader(backbone=Words()).support(hugging_face(id=list(range(20))))
    with pytest.raises(InputError, match="`rows` must be at least 1, got 0"):
        Reader(rows=0)


def test_a_table_needs_the_name_of_its_labels(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="name the `label` column"):
        Reader().support(written(tmp_path / "t.parquet"))
    with pytest.raises(InputError, match="holds text"):
        Reader().query(tmp_path / "t.parquet")  # nobody said that this is a label
    with pytest.raises(InputError, match="a table of features is read whole"):
        Reader(column="a", label="label").support(tmp_path / "t.parquet")
    with pytest.raises(InputError, match=r"none\.parquet does not exist"):
        Reader().query(tmp_path / "none.parquet")


def test_a_column_may_be_chosen(tmp_path: Path) -> None:
    frame = pd.DataFrame(X, columns=["a", "b", "c"]).assign(label=Y)
    for data in (frame, datasets.Dataset.from_pandas(frame)):
        np.testing.assert_array_equal(Reader(column=["c", "a"]).support(data).x, X[:, [2, 0]])
