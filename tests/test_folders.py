"""Pictures found in folders, and written as files of features."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from pyarrow import parquet
from tiny_backbones import Colours

from perdure import InputError
from perdure.inputs.feature_files import write_pictures
from perdure.inputs.folders import find, photos
from perdure.inputs.tables import read_table
from perdure.scenarios import frozen


def draw(file: Path, grey: int = 10) -> Path:
    """A picture of one grey."""
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (9, 8), (grey, grey, grey)).save(file)
    return file


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two domains laid out as Office-31 (with `images`) and Office-Home (without); a picture's grey is its number."""
    root = tmp_path / "pictures"
    for number, (label, name) in enumerate([("cat", "1.png"), ("cat", "2.png"), ("dog", "1.png"), ("dog", "2.png")]):
        draw(root / "amazon" / "images" / label / name, 10 * number)
        draw(root / "Real World" / label / name, 100 + 10 * number)
    return root


# Found


def test_both_layouts_are_found_in_order_and_named_alike(folder: Path) -> None:
    draw(folder / "amazon" / "images" / "cat" / "10.JPEG")
    (folder / "amazon" / "images" / "cat" / ".hidden.png").write_text("a file system's own")
    (folder / "ImageInfo.csv").write_text("not in a class")
    (folder / "amazon" / "images" / "dog" / "Thumbs.db").write_text("no picture")
    found = find(folder)
    assert [picture.path for picture in found.pictures] == [
        *(f"Real World/{each}.png" for each in ("cat/1", "cat/2", "dog/1", "dog/2")),
        *("amazon/cat/1.png", "amazon/cat/10.JPEG", "amazon/cat/2.png", "amazon/dog/1.png", "amazon/dog/2.png"),
    ]
    assert found.left_out == [folder / "amazon" / "images" / "dog" / "Thumbs.db"]


@pytest.mark.parametrize("where", ["", "amazon/images", "Real World"])
def test_a_folder_of_another_depth_is_refused(folder: Path, where: str) -> None:
    with pytest.raises(InputError, match="holds no pictures as DOMAIN/CLASS/FILE or DOMAIN/images/CLASS/FILE"):
        find(folder / where if where else folder.parent)
    with pytest.raises(InputError, match=r"nowhere does not exist\."):
        find(folder / "nowhere")
    with pytest.raises(InputError, match=r"1\.png is a file, not a folder\."):
        find(folder / "Real World" / "cat" / "1.png")


def test_classes_are_the_folders_of_the_first_level_however_deep_pictures_lie(tmp_path: Path) -> None:
    for name in ("cat/b.png", "cat/a/1.PNG", "dog/1.jpg"):
        draw(tmp_path / name)
    (tmp_path / "dog" / "list.txt").write_text("no picture")
    (tmp_path / ".cache").mkdir()
    draw(tmp_path / ".cache" / "x.png")
    found = photos(tmp_path)
    assert found.names == ["cat/a/1.PNG", "cat/b.png", "dog/1.jpg"]
    assert found.labels == found.folders == ["cat", "cat", "dog"]
    assert found.left_out == [tmp_path / "dog" / "list.txt"]
    draw(tmp_path / "loose.png")
    assert photos(tmp_path).folders == ["cat", "cat", "dog", None]
    with pytest.raises(InputError, match=r"has 1 pictures in no class, such as loose\.png; labelled pictures lie as CLASS/FILE"):
        _ = photos(tmp_path).labels


def test_office_31s_folder_of_images_is_no_class(folder: Path) -> None:
    assert photos(folder / "amazon").labels == ["cat", "cat", "dog", "dog"]
    assert photos(folder / "amazon").folder == folder / "amazon" / "images"


def test_one_picture_is_a_folder_of_one(folder: Path) -> None:
    file = folder / "Real World" / "cat" / "1.png"
    assert (photos(file).files, photos(file).names) == ([file], ["1.png"])


def test_links_are_followed_and_circles_are_not(tmp_path: Path) -> None:
    draw(tmp_path / "elsewhere" / "cat" / "1.png")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "linked").symlink_to(tmp_path / "elsewhere" / "cat")
    (tmp_path / "elsewhere" / "cat" / "back").symlink_to(tmp_path / "data")
    assert photos(tmp_path / "data").names == ["linked/1.png"]


def test_a_folder_without_pictures_is_said_to_have_none(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("no picture")
    with pytest.raises(InputError, match=r"holds no pictures \(\.bmp, \.gif, .*\), nor do its folders\."):
        photos(tmp_path)
    with pytest.raises(InputError, match=r"notes\.txt is a file, not a folder\."):
        photos(tmp_path / "notes.txt")
    with pytest.raises(InputError, match=r"nowhere does not exist\."):
        photos(tmp_path / "nowhere")


# Written


def test_features_are_written_in_the_form_that_is_read(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.npz"
    done = write_pictures(folder, out, Colours(batch=3), progress=False)
    assert (done.rows, done.features, done.domains, done.classes) == (8, 3, ["Real World", "amazon"], ["cat", "dog"])
    with np.load(out, allow_pickle=False) as stored:
        assert {name: stored[name].dtype.str for name in stored.files} == {
            "X": "<f2", "y": "<i2", "domain": "|i1", "domain_names": "<U10", "class_names": "<U3", "paths": "<U20",
        }  # fmt: skip
        assert stored["paths"].tolist() == [picture.path for picture in find(folder).pictures]
        assert stored["y"].tolist() == [0, 0, 1, 1] * 2
        assert stored["domain"].tolist() == [0] * 4 + [1] * 4
    features = frozen.load(out)
    assert features.x[:, 0].tolist() == [100, 110, 120, 130, 0, 10, 20, 30]
    assert features.rows("amazon", ["dog"]).tolist() == [6, 7]


@pytest.mark.parametrize("name", ["out.parquet", "out.csv"])
def test_a_table_has_a_column_for_each_level_of_folders(folder: Path, tmp_path: Path, name: str) -> None:
    write_pictures(folder, tmp_path / name, Colours(), progress=False)
    table = read_table(tmp_path / name, label="class", leave_out=["path", "domain"])
    assert table.features.names == ("feature_0", "feature_1", "feature_2")
    assert table.x[:, 0].tolist() == [100, 110, 120, 130, 0, 10, 20, 30]
    assert table.y is not None
    assert table.y.tolist() == ["cat", "cat", "dog", "dog"] * 2


def test_a_folder_of_classes_or_of_pictures_has_fewer_columns(folder: Path, tmp_path: Path) -> None:
    write_pictures(folder / "Real World", tmp_path / "classes.parquet", Colours(), progress=False)
    columns = parquet.read_table(tmp_path / "classes.parquet")
    assert columns.column_names == ["path", "class", "feature_0", "feature_1", "feature_2"]
    assert columns["path"].to_pylist()[:2] == ["cat/1.png", "cat/2.png"]
    write_pictures(folder / "Real World" / "cat", tmp_path / "flat.parquet", Colours(), progress=False)
    assert parquet.read_table(tmp_path / "flat.parquet").column_names == ["path", "feature_0", "feature_1", "feature_2"]
    draw(folder / "Real World" / "loose.png")
    write_pictures(folder / "Real World", tmp_path / "loose.parquet", Colours(), progress=False)
    assert parquet.read_table(tmp_path / "loose.parquet").column_names[:2] == ["path", "feature_0"]
    with pytest.raises(InputError, match="holds no pictures as DOMAIN/CLASS/FILE"):
        write_pictures(folder / "Real World", tmp_path / "classes.npz", Colours(), progress=False)


def test_broken_pictures_leave_no_row(folder: Path, tmp_path: Path) -> None:
    bad = folder / "amazon" / "images" / "cat" / "1.png"
    bad.write_bytes(b"broken")
    with pytest.raises(InputError, match=rf"^{bad} cannot be read"):
        write_pictures(folder, tmp_path / "out.npz", Colours(), progress=False)
    assert not (tmp_path / "out.npz").exists()
    done = write_pictures(folder, tmp_path / "out.npz", Colours(), broken="skip", progress=False)
    assert (done.rows, len(done.broken)) == (7, 1)
    features = frozen.load(tmp_path / "out.npz")
    assert features.x[:, 0].tolist() == [100, 110, 120, 130, 10, 20, 30]
    assert features.classes.tolist() == ["cat", "cat", "dog", "dog", "cat", "dog", "dog"]
    assert features.domains.tolist() == ["Real World"] * 4 + ["amazon"] * 3


def test_features_too_large_for_the_form_are_refused_and_nothing_is_written(folder: Path, tmp_path: Path) -> None:
    backbone = Colours()
    encode = backbone.encode
    backbone.encode = lambda prepared, exact=False: 1e6 * encode(prepared)  # type: ignore[method-assign]
    with pytest.raises(InputError, match=r"Features up to 1\.3e\+08 do not fit into an \.npz file of float16; write a \.parquet"):
        write_pictures(folder, tmp_path / "out.npz", backbone, progress=False)
    assert not (tmp_path / "out.npz").exists()


def test_what_cannot_be_written_is_said_before_anything_is_computed(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "there.npz").write_bytes(b"mine")
    backbone = Colours()
    for name, message in (
        ("there.npz", "is there already; remove it"),
        ("out.txt", r"Features are written to a file that ends in \.parquet, \.pq, \.csv, \.npz; 'out\.txt' does not"),
        ("none/out.npz", "The folder of .*none/out.npz does not exist"),
    ):
        with pytest.raises(InputError, match=message):
            write_pictures(folder, tmp_path / name, backbone)
    assert backbone.count == 0
    assert (tmp_path / "there.npz").read_bytes() == b"mine"
