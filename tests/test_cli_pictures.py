"""The command line on pictures and texts: from folders to features, to what was learned, to answers."""

from __future__ import annotations

import os
import shlex
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from pyarrow import parquet
from test_cli import Result, Run, run
from tiny_backbones import save

from perdure.inputs.pictures import PictureBackbone

__all__ = ["run"]
SMALL = ["--steps", "6", "--warm-up", "4", "--latent", "4", "--features", "8", "--width", "8", "--batch", "8"]


def draw(file: Path, colour: tuple[int, int, int]) -> Path:
    """A picture of one colour, a little noisy."""
    file.parent.mkdir(parents=True, exist_ok=True)
    noise = np.random.default_rng(list(file.name.encode())).integers(-9, 10, (40, 50, 3))
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
