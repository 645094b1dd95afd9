"""The command line on pictures and texts: from folders to features, to what was learned, to answers."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image
from pyarrow import csv, parquet
from test_cli import Result, Run, analytic, contents, kind, run
from tiny_backbones import Colours, save

from perdure.home import Kind
from perdure.inputs.pictures import PictureBackbone
from perdure.inputs.showing import Showing, Through, read_input

__all__ = ["kind", "run"]
SMALL = ["--learner", "variational", "--steps", "6", "--warm-up", "4", "--latent", "4", "--features", "8", "--width", "8"]
SMALL += ["--batch", "8"]
HOW = {"analytic": "and adapted to its query", "variational": "in 10 steps"}


@pytest.fixture
def small(kind: Kind) -> list[str]:
    """What a first learn is told: nothing makes it analytic."""
    return SMALL if kind == "variational" else []


def draw(file: Path, colour: tuple[int, int, int]) -> Path:
    """A picture of about one colour, a little noisy."""
    file.parent.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(list(file.name.encode()))
    noise = rng.integers(-20, 21, 3) + rng.integers(-9, 10, (40, 50, 3))
    Image.fromarray((np.array(colour) + noise).clip(0, 255).astype(np.uint8)).save(file)
    return file


@pytest.fixture(scope="session")
def network(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A ResNet of a few thousand random weights."""
    return save(tmp_path_factory.mktemp("networks") / "resnet", "ResNet")


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Two hospitals, red cats and blue dogs; those of hospital b are darker."""
    for hospital, light in (("a", 1.0), ("b", 0.6)):
        for label, colour in (("cat", (220, 30, 60)), ("dog", (30, 60, 220))):
            for i in range(6):
                draw(tmp_path / "photos" / hospital / label / f"{hospital}{i}.png", tuple(int(light * value) for value in colour))  # type: ignore[arg-type]
    return tmp_path / "photos"


def one_sentence(result: Result, *parts: str, code: int = 2) -> None:
    assert (result.code, result.out, result.err.count("\n")) == (code, "", 1), result
    for part in parts:
        assert part in result.err


# -- features -------------------------------------------------------------------------------------------------------------


def test_pictures_become_features_and_are_known_the_next_time(run: Run, photos: Path, network: Path, tmp_path: Path) -> None:
    (photos / "a" / "cat" / "notes.txt").write_text("no picture")
    out = tmp_path / "out.parquet"
    words = ["features", photos, "-o", out, "--backbone", network, "--batch", "5", "--device", "cpu"]
    said = f"24 pictures of 2 classes in 2 domains (a, b): 8 features each written to {out}"
    left_out = f"left out, since their names are not those of pictures: {photos}/a/cat/notes.txt."
    assert run(*words) == (0, f"{said} (0 were known).\n", f"note: {left_out}\n")
    first = parquet.read_table(out)
    assert first.column_names == ["path", "domain", "class", *(f"feature_{j}" for j in range(8))]
    backbone = PictureBackbone(network, device="cpu")
    file = photos / "b" / "dog" / "b3.png"
    (row,) = backbone.encode([backbone.prepare(backbone.content(file), file)]).tolist()
    stored = first.to_pylist()[first["path"].to_pylist().index("b/dog/b3.png")]
    np.testing.assert_allclose([stored[f"feature_{j}"] for j in range(8)], row, rtol=1e-5)
    again = run(*words)
    one_sentence(again, f"perdure: {out} is there already; remove it, or give another file to write.")
    out.unlink()
    content = run(*words, "--json").json
    assert content == {
        "out": str(out), "pictures": 24, "features": 8, "domains": ["a", "b"], "classes": ["cat", "dog"], "computed": 0,
        "broken": [], "notes": [left_out],
    }  # fmt: skip
    assert parquet.read_table(out).equals(first)


def test_ctrl_c_keeps_features_and_the_same_command_goes_on(
    run: Run, photos: Path, network: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["features", photos, "-o", tmp_path / "out.npz", "--backbone", network, "--batch", "3", "--cache", tmp_path / "c d"]
    encode, batches = PictureBackbone.encode, list[int]()

    def pressed(self: PictureBackbone, prepared: Any, *, exact: bool = False) -> Any:
        batches.append(len(prepared))
        if len(batches) == 2:
            os.kill(os.getpid(), signal.SIGINT)
        return encode(self, prepared, exact=exact)

    monkeypatch.setattr(PictureBackbone, "encode", pressed)
    stopped = run(*words)
    again = shlex.join(["perdure", *map(str, words)])
    kept = "perdure: stopped; what is done is kept in the cache. To go on, run the same command again:"
    assert stopped == (130, "", f"{kept}\n  {again}\n")
    assert not (tmp_path / "out.npz").exists()
    done = run(*words)
    assert (done.code, done.out.endswith("(6 were known).\n")) == (0, True)
    assert sum(batches) == 24
    with np.load(tmp_path / "out.npz") as stored:
        assert stored["paths"].tolist()[:2] == ["a/cat/a0.png", "a/cat/a1.png"]
    batches.clear()
    (tmp_path / "out.npz").unlink()
    stopped = run(*words[:-2], "--no-cache")
    assert "stopped; nothing is kept. To go on" in stopped.err


def test_pictures_that_cannot_be_used_get_one_sentence(run: Run, photos: Path, network: Path, tmp_path: Path) -> None:
    words = ["features", photos, "-o", tmp_path / "out.npz", "--backbone", network]
    one_sentence(run(*words, "--device", "abacus"), "The device 'abacus' cannot be used here")
    one_sentence(run("features", tmp_path / "none", *words[2:]), f"{tmp_path}/none does not exist.")
    one_sentence(
        run(*words[:-1], "facebook/no-such-model"), "There is no backbone facebook/no-such-model: no folder has this name here"
    )
    one_sentence(run(*words, "--label-column", "x"), "`--label-column` belongs to `--text-column`")
    (photos / "b" / "dog" / "b3.png").write_bytes(b"broken")
    one_sentence(run(*words), f"{photos}/b/dog/b3.png cannot be read as a picture")
    assert not (tmp_path / "out.npz").exists()
    skipped = run(*words, "--skip-broken")
    assert (skipped.code, skipped.out.split(" of ")[0]) == (0, "23 pictures")
    assert skipped.err.startswith(f"note: left out: {photos}/b/dog/b3.png cannot be read as a picture")
    (tmp_path / "empty").mkdir()
    one_sentence(
        run("features", tmp_path / "empty", "-o", tmp_path / "o.parquet", *words[4:]), f"{tmp_path}/empty holds no pictures"
    )


# -- learning and answering -----------------------------------------------------------------------------------------------


@pytest.fixture
def lesson(photos: Path, network: Path, tmp_path: Path, small: list[str]) -> list[object]:
    """The words that teach hospital a's cats and dogs for hospital b."""
    halves = ["--support", photos / "a", "--query", photos / "b", "--environment", "b"]
    return ["learn", tmp_path / "home", *halves, "--backbone", network, *small]


def watch(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many pictures went through the network, batch by batch."""
    encode, batches = PictureBackbone.encode, list[int]()

    def counted(self: PictureBackbone, prepared: Any, *, exact: bool = False) -> Any:
        batches.append(len(prepared))
        return encode(self, prepared, exact=exact)

    monkeypatch.setattr(PictureBackbone, "encode", counted)
    return batches


def test_photos_are_learned_and_answered(run: Run, photos: Path, lesson: list[object], tmp_path: Path, kind: Kind) -> None:
    home, how = tmp_path / "home", "and adapted to its query"
    if kind == "variational":
        lesson += ["--steps", 60, "--warm-up", 30, "--latent", 8, "--features", 32, "--width", 32, "--inference-rate", 0.003]
        lesson += ["--hypothesis-rate", 0.01, "--reversal-horizon", 100]
        how = "in 90 steps"
    learned = run(*lesson)
    assert learned == (0, f'learned "b" {how}. {home} knows environments b; classes cat, dog.\n', "")
    answers = run("predict", home, photos / "b", "--environment", "b")
    header, *rows = answers.out.splitlines()
    assert (answers.code, header) == (0, "picture,prediction")
    assert [row.split(",")[0] for row in rows] == [f"{label}/b{i}.png" for label in ("cat", "dog") for i in range(6)]
    assert [row.split(",")[1] for row in rows] == ["cat"] * 6 + ["dog"] * 6
    one = run("predict", home, photos / "b" / "dog" / "b2.png", "--proba", "--json").json
    assert one["columns"]["picture"] == ["b2.png"]
    assert one["columns"]["prediction"] == ["dog"]
    assert one["columns"]["environment"] == ["b"]
    assert one["columns"]["probability_dog"][0] > 0.5
    out = tmp_path / "answers.parquet"
    assert run("predict", home, photos / "a" / "cat", "-o", out).out == f"6 answers written to {out}.\n"
    assert parquet.read_table(out)["picture"].to_pylist() == [f"a{i}.png" for i in range(6)]


def test_nothing_is_computed_twice_and_nothing_in_home_is_a_feature(
    run: Run, photos: Path, network: Path, lesson: list[object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches = watch(monkeypatch)
    assert run(*lesson).code == 0
    assert sum(batches) == 24
    assert run("predict", tmp_path / "home", photos / "b").code == 0
    assert run("features", photos, "-o", tmp_path / "out.npz", "--backbone", network).code == 0
    assert sum(batches) == 24
    with np.load(tmp_path / "out.npz") as stored:
        row = stored["X"][0].astype(np.float32)
    from safetensors.numpy import load_file

    for tensor in load_file(tmp_path / "home" / "tensors.safetensors").values():
        assert tensor.ndim < 2 or tensor.shape[1] != 8 or not np.isclose(tensor, row, rtol=1e-3).all(axis=1).any()
    assert run("predict", tmp_path / "home", photos / "b", "--no-cache").code == 0
    assert sum(batches) == 36


def test_the_backbone_is_remembered_and_another_is_refused(
    run: Run, photos: Path, network: Path, lesson: list[object], tmp_path: Path
) -> None:
    home = tmp_path / "home"
    assert run(*lesson).code == 0
    before = contents(home)
    assert f"backbone      {network}\n" in run("status", home).out
    other = save(tmp_path / "other", "ViT")
    halves = ["--support", photos / "b", "--query", photos / "a", "--environment", "a"]
    refused = (
        f"{home} learned through {network}; {other} is another network, or has other weights. Leave `--backbone` out, or use "
    )
    one_sentence(run("learn", home, *halves, "--backbone", other), refused)
    one_sentence(run("predict", home, photos / "a", "--backbone", other), refused)
    moved = Path(shutil.copytree(network, tmp_path / "moved"))
    said = json.loads((moved / "preprocessor_config.json").read_text())
    (moved / "preprocessor_config.json").write_text(json.dumps({**said, "crop_pct": 0.9}))
    one_sentence(run("predict", home, photos / "a", "--backbone", moved), f"{moved} prepares its pictures in another way.")
    one_sentence(run("predict", home, photos / "a", "--backbone", "facebook/none"), "There is no backbone facebook/none")
    assert contents(home) == before
    shutil.copy(network / "preprocessor_config.json", moved)
    assert run("predict", home, photos / "a", "--backbone", moved).code == 0  # the same, elsewhere
    assert run("learn", home, *halves).out.startswith('learned "a"')


def test_before_anything_was_made_of_it_the_backbone_may_be_another(
    run: Run, photos: Path, network: Path, lesson: list[object], tmp_path: Path, small: list[str]
) -> None:
    other = save(tmp_path / "other", "ViT")
    assert run("learn", tmp_path / "home", "--environment", "b", "--query", photos / "b", "--backbone", other, *small).code == 0
    half = ["--environment", "b", "--support", photos / "a", "--backbone", network]
    one_sentence(run("learn", tmp_path / "home", *half), "is another network, or has other weights")
    assert run(*lesson).out.startswith('learned "b"')  # both halves anew
    assert json.loads((tmp_path / "home" / "home.json").read_text())["through"]["name"] == str(network)


def test_a_broken_picture_takes_its_class_along(photos: Path) -> None:
    (photos / "a" / "cat" / "a2.png").write_bytes(b"broken")
    backbone, notes = Colours(), list[str]()
    through = Through("colours", backbone.identity, None)
    table = read_input(
        photos / "a", (through, backbone), Showing(broken="skip"),
        label=None, labelled=True, leave_out=(), like=None, progress=False, note=notes.append,
    )  # fmt: skip
    assert table.y is not None
    assert table.y.tolist() == ["cat"] * 5 + ["dog"] * 6
    assert ((table.x[:, 0] > table.x[:, 2]) == (table.y == "cat")).all()  # red cats, blue dogs
    assert (table.names or ())[2] == "cat/a3.png"
    assert len(notes) == 1


def test_a_backbone_that_is_gone_can_be_named_again(
    run: Run, photos: Path, lesson: list[object], network: Path, tmp_path: Path
) -> None:
    home, mine = tmp_path / "home", Path(shutil.copytree(network, tmp_path / "mine"))
    assert run(*["--backbone" if word == "--backbone" else mine if word == network else word for word in lesson]).code == 0
    mine.rename(tmp_path / "elsewhere")
    gone = f"{home} learned through a backbone that cannot be used now. There is no backbone {mine}: it is no folder"
    one_sentence(run("predict", home, photos / "b"), gone, "Or name it with `--backbone`.")
    assert run("predict", home, photos / "b", "--backbone", tmp_path / "elsewhere").code == 0


def test_halves_of_pictures_wait_for_each_other(
    run: Run, photos: Path, lesson: list[object], network: Path, tmp_path: Path, small: list[str]
) -> None:
    home = tmp_path / "home"
    words = ["learn", home, "--environment", "b", "--backbone", network, *small]
    assert run(*words, "--query", photos / "b").out == '"b" is queued: it waits for its support.\n'
    kept = (home / "home.json").read_text()
    assert str(photos / "b") in kept
    draw(photos / "b" / "dog" / "late.png", (0, 0, 99))
    one_sentence(
        run("learn", home, "--environment", "b", "--support", photos / "a"), f'The query of "b" was {photos}/b, which has changed'
    )
    (photos / "b" / "dog" / "late.png").unlink()
    before = (photos / "b" / "cat" / "b0.png").read_bytes()
    (photos / "b" / "cat" / "b0.png").write_bytes((photos / "b" / "dog" / "b0.png").read_bytes())
    one_sentence(run("learn", home, "--environment", "b", "--support", photos / "a"), "which has changed since")
    (photos / "b" / "cat" / "b0.png").write_bytes(before)
    assert run("learn", home, "--environment", "b", "--support", photos / "a").out.startswith('learned "b"')
    whole = run(*lesson[:1], tmp_path / "whole", *lesson[2:])
    assert whole.code == 0
    for name in ("tensors.safetensors",):
        assert (home / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


@pytest.mark.parametrize("lay", ["flat", "by patient"])
def test_a_query_needs_no_classes(run: Run, photos: Path, lesson: list[object], tmp_path: Path, lay: str) -> None:
    for i, file in enumerate(sorted((photos / "b").glob("*/*.png"))):
        place = tmp_path / "query" / (f"patient {i // 5}" if lay == "by patient" else "")
        place.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, place / f"{i}.png")
    assert run(*[tmp_path / "query" if word == photos / "b" else word for word in lesson]).code == 0


@pytest.mark.parametrize("first", ["support", "query", "both at once"])
def test_a_class_that_a_query_lacks_is_no_error_and_is_said(
    run: Run, photos: Path, lesson: list[object], tmp_path: Path, kind: Kind, first: str
) -> None:
    for i in range(6):
        draw(photos / "a" / "gnu" / f"a{i}.png", (40, 200, 40))
    halves = {"support": ["--query", photos / "b"], "query": ["--support", photos / "a"]}
    if first in halves:
        assert "is queued" in run(*[word for word in lesson if word not in halves[first]]).out
        lesson = [word for word in lesson if word not in halves["query" if first == "support" else "support"]]
    learned = run(*lesson)
    home = tmp_path / "home"
    sentence = f'note: {photos}/a has the folder "gnu", which {photos}/b has not: a query may lack classes'
    assert learned.out == f'learned "b" {HOW[kind]}. {home} knows environments b; classes cat, dog, gnu.\n'
    assert (learned.code, learned.err.count("\n"), learned.err.startswith(sentence)) == (0, 1, True), learned.err


@analytic
def test_a_folder_that_only_a_query_has_is_said_and_no_label(
    run: Run, photos: Path, lesson: list[object], tmp_path: Path
) -> None:
    assert run(*lesson).code == 0
    before = contents(tmp_path / "home")
    shutil.rmtree(tmp_path / "home")
    (photos / "b" / "dog").rename(photos / "b" / "yak")  # the same pictures under names that lie
    (photos / "b" / "cat").rename(photos / "b" / "dog")
    learned = run(*lesson)
    assert "knows environments b; classes cat, dog." in learned.out
    one, other = learned.err.splitlines()
    assert one.startswith(
        f'note: {photos}/b has the folder "yak", which {photos}/a has not. Names of a query\'s folders are not read'
    )
    assert other.startswith(f'note: {photos}/a has the folder "cat", which {photos}/b has not: a query may lack classes')
    answers = run("predict", tmp_path / "home", photos / "b", "--environment", "b").out.splitlines()[1:]
    assert answers == [f"{place}/b{i}.png,{label}" for place, label in (("dog", "cat"), ("yak", "dog")) for i in range(6)]
    assert contents(tmp_path / "home") == before


def test_sites_that_are_taken_for_classes_are_doubted(run: Run, photos: Path, lesson: list[object]) -> None:
    doubt = f"did you mean {photos / 'a'}?"
    assert doubt not in run(*lesson).err
    assert doubt not in run("predict", lesson[1], photos).err  # of a query, folders mean nothing
    run("forget", lesson[1], "b")
    lesson[lesson.index("--support") + 1] = photos
    learned = run(*lesson)
    assert learned.out.endswith("classes a, b.\n")
    assert (
        f'note: {photos} has no picture as CLASS/FILE, all lie deeper, and classes are named by the folders "a", "b".'
        in learned.err
    )
    assert learned.err.count(doubt) == 1


def test_input_that_cannot_be_used_gets_one_sentence_and_leaves_nothing(
    run: Run, photos: Path, lesson: list[object], network: Path, tmp_path: Path
) -> None:
    home = tmp_path / "home"

    def refused(*parts: str, **changes: object) -> None:
        words = list(lesson)
        for option, value in changes.items():
            words[words.index(f"--{option}") + 1] = value
        one_sentence(run(*words), *parts)
        assert not home.exists()

    (tmp_path / "empty").mkdir()
    refused(f"{tmp_path}/empty holds no pictures", support=tmp_path / "empty")
    refused(f"{tmp_path}/empty holds no pictures", query=tmp_path / "empty")
    refused(f"{tmp_path}/none does not exist.", query=tmp_path / "none")
    refused("6 pictures in no class, such as a0.png; labelled pictures lie as CLASS/FILE", support=photos / "a" / "cat")
    refused("There is no backbone facebook/no-such-model", backbone="facebook/no-such-model")
    refused(f"{tmp_path}/empty is not the folder of a network for pictures", backbone=tmp_path / "empty")
    csv.write_csv(pa.table({"f": [1.0]}), tmp_path / "t.csv")
    refused(f"{tmp_path}/t.csv is neither a picture nor a folder of them", query=tmp_path / "t.csv")
    one_sentence(run(*lesson, "--label-column", "x"), "The classes of pictures are their folders; leave `--label-column` out.")
    one_sentence(run(*lesson, "--ignore-column", "x"), "no table has a column")
    without = lesson.index("--backbone")
    one_sentence(run(*lesson[:without], *lesson[without + 2 :]), f"{photos}/a holds pictures; name the pretrained network")
    one_sentence(run(*lesson[:without], *lesson[without + 2 :], "--text-column", "x"), "Texts need a pretrained network")
    (photos / "b" / "dog" / "b3.png").write_bytes(b"broken")
    refused(f"{photos}/b/dog/b3.png cannot be read as a picture")
    skipped = run(*lesson, "--skip-broken")
    assert skipped.out.startswith('learned "b"')
    assert skipped.err.startswith(f"note: left out: {photos}/b/dog/b3.png cannot be read")
    answers = run("predict", home, photos / "b", "--skip-broken")
    assert len(answers.out.splitlines()) == 1 + 11


def test_tables_and_pictures_do_not_mix(
    run: Run, photos: Path, lesson: list[object], network: Path, tmp_path: Path, small: list[str]
) -> None:
    rng = np.random.default_rng(0)
    for name in ("s", "q"):
        x = rng.normal(size=(12, 2))
        columns = {"f": x[:, 0], "g": x[:, 1], **({"kind": ["cat", "dog"] * 6} if name == "s" else {})}
        csv.write_csv(pa.table(columns), tmp_path / f"{name}.csv")
    halves = ["--support", tmp_path / "s.csv", "--query", tmp_path / "q.csv", "--environment", "t"]
    assert run("learn", tmp_path / "tables", *halves, "--label-column", "kind", *small).code == 0
    tables = [*lesson[:1], tmp_path / "tables", *lesson[2 : len(lesson) - len(small)]]
    one_sentence(run(*tables), f"{tmp_path}/tables learned from tables of features, without a backbone; leave `--backbone` out.")
    without = [word for word in tables if word not in ("--backbone", network)]
    one_sentence(run(*without), f"{photos}/a holds pictures; name the pretrained network")
    assert run(*lesson).code == 0
    one_sentence(run("learn", tmp_path / "home", *halves), "s.csv is neither a picture nor a folder of them")
    one_sentence(run("predict", tmp_path / "home", tmp_path / "q.csv"), "q.csv is neither a picture nor a folder of them")


@pytest.mark.parametrize(
    "through",
    [
        {"name": "x", "identity": {"kind": "pictures"}, "text_column": None},
        {"name": "x", "identity": {"kind": "text", "network": "", "preparation": "", "revision": 1}, "text_column": None},
        {"name": 3, "identity": {"kind": "pictures", "network": "", "preparation": "", "revision": 1}, "text_column": None},
        [],
    ],
)
def test_a_damaged_memory_of_the_backbone_is_said(
    run: Run, photos: Path, lesson: list[object], tmp_path: Path, through: object
) -> None:
    assert run(*lesson).code == 0
    file = tmp_path / "home" / "home.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "through": through}))
    one_sentence(run("predict", tmp_path / "home", photos / "b"), "home.json is damaged", code=4)
