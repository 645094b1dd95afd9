"""The command line: what a person types, what comes back, and what is left on disk."""

from __future__ import annotations

import errno
import io
import json
import os
import re
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import csv, parquet
from sklearn.datasets import load_digits
from test_analytic import GUARDED, halves

from perdure import (
    AnalyticConfig,
    AnalyticLearner,
    Environment,
    Query,
    Support,
    VariationalConfig,
    VariationalLearner,
    checkpoint,
    home,
)
from perdure.cli import main
from perdure.streams import Labels, Rows

DOCS = Path(__file__).resolve().parents[1] / "docs" / "command-line.md"
NAMES = [f"pixel_{i}" for i in range(64)]
GOOD = ["--learner", "variational", "--steps", "100", "--warm-up", "50", "--latent", "32", "--features", "128", "--width", "128"]
GOOD += ["--inference-rate", "0.0032", "--hypothesis-rate", "0.0128", "--reversal-horizon", "200"]
SMALL = ["--learner", "variational", "--steps", "12", "--warm-up", "8", "--latent", "8", "--features", "16", "--width", "16"]
SMALL += ["--batch", "16"]
LONG = ["--learner", "variational", "--steps", "400", "--warm-up", "0", "--latent", "4", "--features", "8", "--width", "8"]
LONG += ["--batch", "8"]


class Result(NamedTuple):
    """What a command left behind."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        """The one object on stdout."""
        assert self.out.count("\n") == 1, self.out
        content: dict[str, Any] = json.loads(self.out)
        return content


Run = Callable[..., Result]
Files = dict[str, Path]
variational = pytest.mark.parametrize("kind", ["variational"], indirect=True)
"""Of a test that is about steps."""
analytic = pytest.mark.parametrize("kind", ["analytic"], indirect=True)


@pytest.fixture(scope="session", params=["analytic", "variational"])
def kind(request: pytest.FixtureRequest) -> home.Kind:
    """Which learner; a test that does not say otherwise holds for both."""
    chosen: home.Kind = request.param
    return chosen


@pytest.fixture(scope="session")
def small(kind: home.Kind) -> list[str]:
    """What a first learn is told, so that it takes milliseconds: nothing makes it analytic."""
    return SMALL if kind == "variational" else []


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Types a command."""

    def type_in(*words: object) -> Result:
        code = main([str(word) for word in words])
        out, err = capsys.readouterr()
        return Result(code, out, err)

    return type_in


def rows_of(classes: tuple[int, ...], part: slice) -> tuple[Rows, Labels]:
    digits = load_digits()
    chosen = np.flatnonzero(np.isin(digits.target, classes))[part]
    return digits.data[chosen].astype(np.float32), np.array([f"digit {label}" for label in digits.target[chosen]])


def darker(x: Rows) -> Rows:
    return (0.5 * x + 3).astype(np.float32)


def table(x: np.ndarray, y: np.ndarray | None = None, **more: Any) -> pa.Table:
    return pa.table({**{name: x[:, i] for i, name in enumerate(NAMES)}, **({} if y is None else {"kind": y}), **more})


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    """Real digits as tables; the query of each pair is darker and its rows are others."""
    folder = tmp_path_factory.mktemp("tables")
    made: Files = {}
    for letter, classes in (("a", (0, 1)), ("b", (2, 3))):
        (x, y), (q, answers) = rows_of(classes, slice(0, 150)), rows_of(classes, slice(150, 300))
        q = darker(q)
        csv.write_csv(table(x, y), folder / f"{letter}.csv")
        parquet.write_table(table(x, y), folder / f"{letter}.parquet")
        np.savez(folder / f"{letter}.npz", X=x, y=y)
        parquet.write_table(table(q), folder / f"{letter}q.parquet")
        csv.write_csv(table(q), folder / f"{letter}q.csv")
        np.savez(folder / f"{letter}q.npz", x=q)
        parquet.write_table(table(q, answers), folder / f"{letter}q_with_labels.parquet")
        parquet.write_table(table(q).select(NAMES[::-1]), folder / f"{letter}q_turned.parquet")
        parquet.write_table(table(q, id=[f"row {i}" for i in range(len(q))]), folder / f"{letter}q_with_id.parquet")
    for path in folder.iterdir():
        made[path.name] = path
    return made


@pytest.fixture(scope="session")
def made_once(files: Files, small: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("homes") / "home"
    words = ["--support", files["a.csv"], "--label-column", "kind", "--query", files["aq.parquet"]]
    assert main([str(word) for word in ("learn", folder, *words, "--environment", "a", *small)]) == 0
    return folder


@pytest.fixture
def learned(made_once: Path, tmp_path: Path) -> Path:
    """A home that knows environment a."""
    return Path(shutil.copytree(made_once, tmp_path / "home"))


def contents(folder: Path) -> dict[str, bytes] | None:
    return {path.name: path.read_bytes() for path in folder.iterdir()} if folder.exists() else None


def forget_which_learner(folder: Path) -> None:
    """Leave `home.json` as it was before that was written down."""
    content = json.loads((folder / "home.json").read_text())
    del content["learner"]
    (folder / "home.json").write_text(json.dumps(content))


def learner_in(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in ("state.json", "tensors.safetensors")}


def lesson(files: Files, letter: str, support: str = ".parquet", query: str = "q.parquet") -> list[object]:
    return ["--support", files[letter + support], "--query", files[letter + query], "--environment", letter]


# -- learning and answering -----------------------------------------------------------------------------------------------


def test_tables_are_learned_and_answered(run: Run, files: Files, tmp_path: Path, kind: home.Kind) -> None:
    good = GOOD if kind == "variational" else []
    first = run("learn", tmp_path / "h", *lesson(files, "a"), "--label-column", "kind", *good)
    assert first.code == 0, first.err
    how = "in 150 steps" if kind == "variational" else "and adapted to its query"
    assert first.out == f'learned "a" {how}. {tmp_path / "h"} knows environments a; classes digit 0, digit 1.\n'
    second = run("learn", tmp_path / "h", *lesson(files, "b", ".csv", "q.csv"), "--label-column", "kind")
    assert second.code == 0, second.err
    for letter in "ab":
        answers = run("predict", tmp_path / "h", files[f"{letter}q.parquet"], "--environment", letter)
        truth = parquet.read_table(files[f"{letter}q_with_labels.parquet"])["kind"].to_pylist()
        header, *given = answers.out.splitlines()
        assert header == "prediction"
        assert len(given) == len(truth)
        assert np.mean([one == other for one, other in zip(given, truth, strict=True)]) > 0.85


def taught(kind: home.Kind, q: Rows) -> home.Learner:
    """The library's, as the command line makes it with the words of `small`."""
    (x, y), config = (
        rows_of((0, 1), slice(0, 150)),
        VariationalConfig(steps=12, warm_up=8, latent=8, features=16, width=16, batch=16),
    )
    learner = AnalyticLearner() if kind == "analytic" else VariationalLearner(config)
    learner.learn(Environment("a", Support(x, y), Query(q)), progress=False)
    return learner


def test_the_commands_do_what_the_library_does(run: Run, files: Files, learned: Path, tmp_path: Path, kind: home.Kind) -> None:
    q = darker(rows_of((0, 1), slice(150, 300))[0])
    learner = taught(kind, q)
    learner.save(tmp_path / "library")
    assert learner_in(learned) == learner_in(tmp_path / "library")
    assert json.loads((learned / "home.json").read_text())["pending"] == {}
    run("predict", learned, files["aq.csv"], "--proba", "-o", tmp_path / "out.parquet")
    out = parquet.read_table(tmp_path / "out.parquet")
    assert out.column_names == ["prediction", "environment", "confidence", "probability_digit 0", "probability_digit 1"]
    np.testing.assert_array_equal(out["prediction"].to_numpy(), learner.predict(q))
    np.testing.assert_array_equal(out["probability_digit 1"].to_numpy(), learner.predict_proba(q)[:, 1])
    np.testing.assert_array_equal(out["confidence"].to_numpy(), learner.inferred_environment(q).confidence)


@pytest.mark.parametrize("support", [".csv", ".parquet", ".npz"])
@pytest.mark.parametrize("query", ["q.parquet", "q.csv", "q.npz", "q_turned.parquet", "q_with_labels.parquet"])
def test_the_same_numbers_teach_the_same_whatever_the_file(
    run: Run, files: Files, learned: Path, tmp_path: Path, small: list[str], support: str, query: str
) -> None:
    label = [] if support == ".npz" else ["--label-column", "kind"]
    extra = ["--label-column", "y", "--ignore-column", "kind"] if support == ".npz" and "labels" in query else label
    result = run("learn", tmp_path / "other", *lesson(files, "a", support, query), *extra, *small)
    assert result.code == 0, result.err
    if query == "q_turned.parquet" and support == ".npz":
        assert "matched by their place" in result.err  # nothing else could tell that they are turned round
    else:
        assert learner_in(tmp_path / "other") == learner_in(learned)


def test_labels_of_a_query_are_left_out_and_that_is_said(run: Run, files: Files, learned: Path) -> None:
    path = files["bq_with_labels.parquet"]
    sentence = f'note: {path}: "kind" holds labels; it is left out, neither a feature nor looked at.\n'
    assert run("learn", learned, *lesson(files, "b", query="q_with_labels.parquet")).err == sentence
    assert run("predict", learned, path, "--environment", "b").err == sentence


def test_rows_that_are_there_more_than_once_are_learned_and_that_is_said(run: Run, files: Files, learned: Path) -> None:
    path = learned.parent / "copies.csv"
    x, y = rows_of((2, 3), slice(0, 50))
    some = np.r_[0:50, 0:20, 0]  # the first row three times, 19 others twice
    csv.write_csv(table(x[some], y[some]), path)
    result = run("learn", learned, "--support", path, "--query", files["bq.parquet"], "--environment", "b")
    assert (result.code, result.err) == (
        0,
        f"note: {path}: 21 of 71 rows are copies of an earlier one; each counts like any other row.\n",
    )


def test_an_ignored_column_stays_ignored(run: Run, files: Files, tmp_path: Path, small: list[str]) -> None:
    learn = ["learn", tmp_path / "h", *lesson(files, "a", query="q_with_id.parquet"), "--label-column", "kind", *small]
    refused = run(*learn)
    assert refused.code == 2
    assert 'the column "id"' in refused.err
    assert "`--ignore-column id`" in refused.err
    assert run(*learn, "--ignore-column", "id").code == 0
    assert run("predict", tmp_path / "h", files["aq_with_id.parquet"]).code == 0
    typo = run("predict", tmp_path / "h", files["aq.parquet"], "--ignore-column", "ID")
    assert (typo.code, typo.err) == (2, 'perdure: `--ignore-column ID`: no table has a column "ID".\n')
    feature = run("learn", tmp_path / "h", *lesson(files, "b"), "--ignore-column", "pixel_3")
    assert feature.code == 2
    assert '"pixel_3" is a feature of what was learned before' in feature.err


def test_a_class_that_comes_back_is_said_to_stay_one(run: Run, files: Files, learned: Path) -> None:
    words = ["--support", files["a.parquet"], "--query", files["aq.parquet"], "--environment", "a again"]
    result = run("learn", learned, *words)
    assert "the class digit 0 came back: it stays one class, learned from both" in result.err
    assert run("status", learned, "--json").json["classes"] == ["digit 0", "digit 1"]


@variational
def test_settings_are_taken_once(run: Run, files: Files, learned: Path) -> None:
    before = contents(learned)
    other = run("learn", learned, *lesson(files, "b"), "--warm-up", "9")
    assert other.code == 2
    assert f"{learned} learns with --warm-up 8, as set at its first learn; got --warm-up 9." in other.err
    assert contents(learned) == before
    same = run("learn", learned, *lesson(files, "b"), "--warm-up", "8", "--json")
    assert same.json["steps"] == 20


# -- which learner --------------------------------------------------------------------------------------------------------


def test_a_home_keeps_the_learner_it_was_begun_with(run: Run, files: Files, learned: Path, kind: home.Kind) -> None:
    other = "analytic" if kind == "variational" else "variational"
    before = contents(learned)
    refused = run("learn", learned, *lesson(files, "b"), "--learner", other)
    said = (
        f"perdure: {learned} has the {kind} learner, as chosen at its first learn; got --learner {other}. Leave it out, or use "
    )
    assert (refused.code, refused.err) == (2, f"{said}another home.\n")
    assert contents(learned) == before
    assert run("learn", learned, *lesson(files, "b"), "--learner", kind).code == 0
    assert run("status", learned, "--json").json["learner"] == kind


@analytic
@pytest.mark.parametrize("option", ["--steps", "--seed", "--replay", "--checkpoint-every"])
@pytest.mark.parametrize("existing", [True, False], ids=["home", "no home"])
def test_options_of_steps_are_refused_by_a_learner_that_makes_none(
    run: Run, files: Files, learned: Path, tmp_path: Path, option: str, existing: bool
) -> None:
    folder = learned if existing else tmp_path / "new"
    before = contents(folder)
    words = [option, "none" if option == "--replay" else "3"]
    refused = run("learn", folder, *lesson(files, "b"), "--label-column", "kind", *words)
    assert (refused.code, refused.out, contents(folder)) == (2, "", before)
    assert refused.err == (
        f"perdure: {option} is an option of the variational learner, and {folder} has the analytic one. "
        "Leave it out, or begin a new home with --learner variational.\n"
    )


@analytic
@pytest.mark.parametrize("command", ["learn", "predict"])
def test_a_device_that_nothing_computes_on_is_refused(run: Run, files: Files, learned: Path, command: str) -> None:
    words = lesson(files, "b") if command == "learn" else [files["aq.csv"]]
    refused = run(command, learned, *words, "--device", "cuda")
    assert (refused.code, refused.err.count("\n")) == (2, 1)
    assert "--device is for backbones and for the variational learner; the analytic one computes on the processor." in refused.err
    assert run(command, learned, *words, "--device", "cpu").code == 0


def test_a_home_that_was_left_before_there_was_a_choice_is_variational(run: Run, files: Files, tmp_path: Path) -> None:
    folder = tmp_path / "h"
    assert run("learn", folder, "--query", files["aq.parquet"], "--environment", "a", *SMALL).code == 0
    for name in ("state.json", "tensors.safetensors"):
        (folder / name).unlink()  # as a kill before the first save left it
    forget_which_learner(folder)
    assert run("status", folder, "--json").json["learner"] == "variational"
    small = [word for word in SMALL if word not in ("--learner", "variational")]
    learned = run("learn", folder, "--support", files["a.csv"], "--label-column", "kind", "--environment", "a", *small)
    assert "in 20 steps" in learned.out


def test_what_the_guard_decides_is_said(run: Run, tmp_path: Path) -> None:
    support, query = halves(GUARDED)
    AnalyticLearner(AnalyticConfig(guard=0.0)).save(tmp_path / "h")
    np.savez(tmp_path / "s.npz", X=support.x, y=support.y)
    np.savez(tmp_path / "q.npz", X=query.x)
    learned = run("learn", tmp_path / "h", "--support", tmp_path / "s.npz", "--query", tmp_path / "q.npz", "--environment", "a")
    assert learned.out.startswith('learned "a" without adapting to its query. ')
    assert "note: a: adapting would not have helped; its queries are answered as by the source alone.\n" in learned.err
    assert "environments  a (not adapted)\n" in run("status", tmp_path / "h").out
    assert run("status", tmp_path / "h", "--json").json["adapted"] == {"a": False}
    run("forget", tmp_path / "h", "a")
    words = ["--support", tmp_path / "s.npz", "--query", tmp_path / "q.npz", "--environment", "a", "--json"]
    said = run("learn", tmp_path / "h", *words).json
    assert said["adapted"] is False
    assert said["explained"][1] < said["explained"][0]


@analytic
def test_a_column_that_hides_all_others_is_named(run: Run, files: Files, learned: Path, tmp_path: Path) -> None:
    x, y = rows_of((2, 3), slice(0, 50))
    x[:, 5] = 200  # nothing beside it is above 16
    parquet.write_table(table(x, y), tmp_path / "s.parquet")
    words = ["--query", files["bq.parquet"], "--environment", "b"]
    said = run("learn", learned, "--support", tmp_path / "s.parquet", *words).err
    assert re.search(r'note: .*/s.parquet: "pixel_5" makes up \d\d% of the squared length of the rows\. The analytic', said)
    assert f"{float((x[:, 5] ** 2).sum() / (x**2).sum()):.0%} of the squared length" in said
    assert said.count("of the squared length") == 1


@analytic
@pytest.mark.parametrize("command", ["learn", "predict"])
def test_a_query_in_other_units_is_named_too(run: Run, files: Files, learned: Path, tmp_path: Path, command: str) -> None:
    q = darker(rows_of((2, 3), slice(150, 200))[0])
    q[:, 5] *= 1000  # the support's is as it was
    parquet.write_table(table(q), tmp_path / "q.parquet")
    words = ["--support", files["b.parquet"], "--query", tmp_path / "q.parquet", "--environment", "b"]
    result = run("learn", learned, *words) if command == "learn" else run("predict", learned, tmp_path / "q.parquet")
    assert result.code == 0
    part = float((q[:, 5].astype(float) ** 2).sum() / (q.astype(float) ** 2).sum())
    assert f'note: {tmp_path}/q.parquet: "pixel_5" makes up {part:.0%} of the squared length of the rows.' in result.err
    assert result.err.count("of the squared length") == 1


# -- halves that wait -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("first", ["support", "query"])
def test_halves_that_come_apart_teach_the_same(
    run: Run, files: Files, learned: Path, tmp_path: Path, small: list[str], first: str
) -> None:
    halves = {
        "support": ["--support", files["a.csv"], "--label-column", "kind"],
        "query": ["--query", files["aq_with_labels.parquet"], "--label-column", "kind"],
    }
    second = "query" if first == "support" else "support"
    queued = run("learn", tmp_path / "h", *halves[first], "--environment", "a", *small)
    assert (queued.code, queued.out) == (0, f'"a" is queued: it waits for its {second}.\n')
    waiting = run("status", tmp_path / "h", "--json").json["queued"]
    assert waiting == [{"environment": "a", "missing": second, "files": {first: str(halves[first][1])}}]
    asked = run("predict", tmp_path / "h", files["aq.parquet"], "--environment", "a")
    assert (asked.code, asked.out) == (3, "")
    assert f'"a" waits for its {second}; it is queued. Add the {second} with `perdure learn {tmp_path / "h"} …`' in asked.err
    assert run("learn", tmp_path / "h", *halves[second], "--environment", "a").code == 0
    assert learner_in(tmp_path / "h") == learner_in(learned)
    assert run("status", tmp_path / "h", "--json").json["queued"] == []


def test_a_home_keeps_where_a_queued_file_is_and_nothing_of_it(run: Run, files: Files, tmp_path: Path, small: list[str]) -> None:
    run("learn", tmp_path / "h", "--support", files["a.csv"], "--label-column", "kind", "--environment", "a", *small)
    kept = contents(tmp_path / "h")
    assert kept is not None
    assert set(kept) == {"home.json", "state.json", "tensors.safetensors"}
    assert all(len(data) < 4000 for data in kept.values())
    assert b"digit 0" not in b"".join(kept.values())
    pending = json.loads(kept["home.json"])["pending"]["a"]["support"]
    assert pending["path"] == str(files["a.csv"])
    assert re.fullmatch("[0-9a-f]{64}", pending["sha256"])


@pytest.mark.parametrize("trouble", ["changed", "gone"])
def test_a_queued_file_that_is_not_what_it_was_is_refused(
    run: Run, files: Files, learned: Path, tmp_path: Path, trouble: str
) -> None:
    waiting = tmp_path / "b.parquet"
    shutil.copy(files["b.parquet"], waiting)
    assert run("learn", learned, "--support", waiting, "--environment", "b").code == 0
    shutil.copy(files["a.parquet"], waiting) if trouble == "changed" else waiting.unlink()
    before = contents(learned)
    refused = run("learn", learned, "--query", files["bq.parquet"], "--environment", "b")
    assert refused.code == 2
    assert f'The support of "b" was {waiting}, which {"has changed" if trouble == "changed" else "is gone"}' in refused.err
    assert contents(learned) == before
    again = run("learn", learned, "--support", files["b.csv"], "--environment", "b")
    assert (again.code, again.out) == (0, '"b" is queued: it waits for its query.\n')
    assert run("learn", learned, "--query", files["bq.parquet"], "--environment", "b").code == 0


def test_columns_are_free_until_something_is_made_of_them(run: Run, files: Files, tmp_path: Path, small: list[str]) -> None:
    queued = run("learn", tmp_path / "h", "--query", files["aq_with_id.parquet"], "--environment", "a", *small)
    assert queued.code == 2
    odd = tmp_path / "odd.parquet"
    parquet.write_table(table(*rows_of((0, 1), slice(0, 9)), odd=np.ones(9)), odd)
    assert run("learn", tmp_path / "h", "--support", odd, "--label-column", "kind", "--environment", "a", *small).code == 0
    other = run("learn", tmp_path / "h", "--query", files["aq.parquet"], "--environment", "a")
    assert other.code == 2
    assert 'lacks the column "odd"' in other.err
    assert run("learn", tmp_path / "h", *lesson(files, "a")).code == 0


# -- bad input ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def broken(files: Files, tmp_path: Path) -> Files:
    """Files with one thing wrong."""
    folder = tmp_path / "broken"
    folder.mkdir()
    x, y = rows_of((2, 3), slice(0, 20))
    hole = x.copy()
    hole[6, 2] = np.nan
    lines = files["b.csv"].read_text().splitlines()
    texts = {
        "empty.csv": "",
        "header.csv": lines[0] + "\n",
        "ragged.csv": "\n".join([*lines[:3], "1,2,3"]) + "\n",
        "words.csv": "\n".join([*lines[:3], lines[3].replace(",", ",many,", 1).rsplit(",", 2)[0] + ',"digit 2"']) + "\n",
        "broken.parquet": "PAR1 and then something else",
        "table.xlsx": "x",
    }
    for name, content in texts.items():
        (folder / name).write_text(content)
    parquet.write_table(table(hole, y), folder / "nan.parquet")
    parquet.write_table(table(x), folder / "unlabelled.parquet")
    parquet.write_table(table(x[:1], y[:1]), folder / "one_row.parquet")
    parquet.write_table(table(x, np.full(20, "digit 2")), folder / "one_class.parquet")
    parquet.write_table(table(x, np.arange(20) % 2), folder / "numbers.parquet")
    parquet.write_table(table(x, y).drop_columns(["pixel_5"]), folder / "narrow.parquet")
    parquet.write_table(table(x, y, extra=x[:, 0]), folder / "wide.parquet")
    np.savez(folder / "objects.npz", X=x.astype(object), y=y)
    np.savez(folder / "narrow.npz", X=x[:, :9], y=y)
    return {path.name: path for path in folder.iterdir()}


BAD = [
    ("none.csv", "does not exist"),
    ("empty.csv", "is empty"),
    ("header.csv", "has columns but no rows"),
    ("ragged.csv", "is not a sound CSV file"),
    ("words.csv", '"pixel_1" holds text ("many" in row 3)'),
    ("broken.parquet", "is not a sound Parquet file"),
    ("table.xlsx", 'not ".xlsx"'),
    ("nan.parquet", 'column "pixel_2" has no value (or NaN) in row 7'),
    ("unlabelled.parquet", 'has no label column "kind"'),
    ("one_row.parquet", "one single row"),
    ("one_class.parquet", "holds one class only"),
    ("narrow.parquet", 'lacks the column "pixel_5"'),
    ("wide.parquet", 'has the column "extra"'),
    ("objects.npz", "holds Python objects, which are never loaded"),
    ("narrow.npz", "has 9 features a row where 64 are expected"),
]


@pytest.mark.parametrize("existing", [True, False], ids=["home", "no home"])
@pytest.mark.parametrize(("name", "sentence"), BAD, ids=[name for name, _ in BAD])
def test_bad_input_gets_one_sentence_and_changes_nothing(
    run: Run,
    files: Files,
    broken: Files,
    learned: Path,
    tmp_path: Path,
    small: list[str],
    name: str,
    sentence: str,
    existing: bool,
) -> None:
    if name in ("narrow.npz", "narrow.parquet", "wide.parquet") and not existing:
        words: list[object] = ["--support", files["b.parquet"], "--query", broken[name]]
    else:
        words = ["--support", broken.get(name, tmp_path / name), "--query", files["bq.parquet"]]
    folder = learned if existing else tmp_path / "new" / "home"
    before = contents(folder)
    label = [] if name == "objects.npz" or (name == "narrow.npz" and existing) else ["--label-column", "kind"]
    result = run("learn", folder, *words, "--environment", "b", *label, *([] if existing else small))
    assert (result.code, result.out) == (2, "")
    assert sentence in result.err
    assert result.err.startswith("perdure: ")
    assert result.err.count("\n") == 1
    assert contents(folder) == before
    assert existing or not (tmp_path / "new").exists()


def test_labels_of_another_kind_are_refused(run: Run, files: Files, broken: Files, learned: Path) -> None:
    before = contents(learned)
    words = ["--support", broken["numbers.parquet"], "--query", files["bq.parquet"]]
    result = run("learn", learned, *words, "--environment", "b")
    assert result.code == 2
    assert "use one kind throughout" in result.err
    assert contents(learned) == before


NEW = ["learn", "NEW", "--query", "aq.csv", "--environment", "b", "--learner", "variational"]
USAGE = [
    (["learn", "HOME", "--environment", "b"], 'Learning "b" needs files: give `--support` and `--query`.'),
    (["learn", "HOME", "--query", "bq.parquet"], "The following arguments are required: --environment."),
    (
        ["learn", "HOME", "--support", "b.csv", "--environment", "b", "--label-column", "pixel_1"],
        '"pixel_1" is a feature of what',
    ),
    (["learn", "HOME", "--support", "a.csv", "--query", "aq.csv", "--environment", "a"], '"a" is learned already'),
    (["learn", "HOME", "--query", "aq.csv", "--environment", " "], "An environment needs a name"),
    (["learn", "HOME", "--steps", "0", "--environment", "b"], "Argument --steps: must be a whole number above zero, got '0'."),
    (["learn", "HOME", "--gamma", "x", "--environment", "b"], "Argument --gamma: must be a number, got 'x'."),
    (
        ["learn", "NEW", "--query", "aq.csv", "--environment", "b", "--learner", "both"],
        "Argument --learner: invalid choice: 'both'",
    ),
    ([*NEW, "--batch", "1"], "`batch` must be at least 2"),
    ([*NEW, "--gamma", "-1"], "`gamma` must be positive, got -1.0."),
    (["learn", "NEW", "--support", "a.csv", "--environment", "b"], "Which column of a.csv holds the labels? Name it with"),
    (["learn", "NEW", "--support", "none.csv", "--environment", "b"], "none.csv does not exist."),
    (["learn", "NEW", "--support", "none", "--environment", "b"], "none does not exist."),
    ([*NEW, "--device", "abacus"], "`--device abacus` cannot be used here"),
    (
        ["learn", "TABLES", "--query", "aq.csv", "--environment", "b"],
        "is not a perdure home: it has files in it, but no home.json",
    ),
    (["learn", "a.csv", "--query", "aq.csv", "--environment", "b"], "a.csv is a file, not the folder of a perdure home"),
    (["predict", "HOME", "aq.csv", "--environment", "z"], "No environment is called \"z\". Learned so far: ['a']."),
    (["predict", "HOME", "none.csv"], "none.csv does not exist."),
    (["predict", "NEW", "aq.csv"], "There is no home at NEW; begin one with `perdure learn NEW …`."),
    (["predict", "TABLES", "aq.csv"], "is not a perdure home"),
    (["predict", "HOME", "aq.csv", "-o", "out.xlsx"], 'perdure writes .parquet, .pq, .csv, not ".xlsx".'),
    (["predict", "NEW", "aq.csv", "-o", "out.xlsx"], 'perdure writes .parquet, .pq, .csv, not ".xlsx".'),
    (["predict", "HOME", "aq.csv", "-o", "none/out.csv"], "The folder of none/out.csv does not exist"),
    (["predict", "HOME", "aq.csv", "-o", "aq.csv"], "aq.csv is the table to answer"),
    (["status", "NEW"], "There is no home at NEW"),
    (["status"], "The following arguments are required: HOME. `perdure status --help` shows how."),
    (["forget", "HOME", "z"], "No environment is called \"z\". HOME knows ['a']."),
    (["forget", "NEW", "z"], "There is no home at NEW"),
    (["unlearn", "HOME"], "invalid choice: 'unlearn'"),
    ([], "The following arguments are required: COMMAND."),
]


@pytest.mark.parametrize(("words", "sentence"), USAGE, ids=[" ".join(words) for words, _ in USAGE])
def test_bad_usage_gets_one_sentence_and_changes_nothing(
    run: Run, files: Files, learned: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], sentence: str
) -> None:
    learned.rename(learned.parent / "HOME")
    monkeypatch.chdir(learned.parent)
    Path("TABLES").mkdir()
    for name in ("a.csv", "b.csv", "aq.csv", "bq.parquet"):
        shutil.copy(files[name], name)
        shutil.copy(files[name], Path("TABLES") / name)
    before = {str(path): path.read_bytes() for path in Path().rglob("*") if path.is_file()}
    result = run(*words)
    assert (result.code, result.out) == (2, "")
    assert sentence in result.err
    assert result.err.count("\n") == 1
    assert "Traceback" not in result.err
    assert {str(path): path.read_bytes() for path in Path().rglob("*") if path.is_file()} == before
    assert not Path("NEW").exists()


def test_a_python_hint_is_said_in_shell_words(run: Run, files: Files, learned: Path) -> None:
    result = run("learn", learned, *lesson(files, "a"))
    assert f"`perdure forget {learned} a`" in result.err
    assert 'forget("' not in result.err


def test_debug_shows_where_an_error_comes_from(run: Run, learned: Path, tmp_path: Path) -> None:
    assert "Traceback" not in run("predict", learned, tmp_path / "none.csv").err
    for words in (["predict", "--debug", learned, tmp_path / "none.csv"], ["--debug", "predict", learned, tmp_path / "none.csv"]):
        result = run(*words)
        assert result.code == 2
        assert "Traceback" in result.err
        assert result.err.splitlines()[-1] == f"perdure: {tmp_path / 'none.csv'} does not exist."


def test_the_unexpected_is_called_that(run: Run, learned: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*args: object) -> None:
        raise ZeroDivisionError("nobody thought of this")

    monkeypatch.setattr(home, "status", fails)
    result = run("status", learned)
    assert result.code == 1
    assert "something unexpected: ZeroDivisionError: nobody thought of this" in result.err
    assert "Traceback" not in result.err


# -- damage, disks, other processes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("tensors.safetensors", None),
        ("tensors.safetensors", b"short"),
        ("state.json", b"{"),
        ("state.json", None),
        ("home.json", b"not json"),
        ("home.json", b"[]"),
        ("home.json", b'{"format": 99}'),
        (
            "home.json",
            b'{"format": 1, "features": {"width": 3, "names": ["a"]}, "label_columns": [], "ignored": [], "pending": {}}',
        ),
        ("home.json", b'{"format": 1, "features": null, "label_columns": "kind", "ignored": [], "pending": {}}'),
        ("home.json", b'{"format": 1, "features": null, "label_columns": [], "ignored": [], "pending": {"a": {"half": {}}}}'),
    ],
)
@pytest.mark.parametrize("command", ["status", "predict", "learn", "forget"])
def test_a_damaged_home_is_called_damaged_and_left_alone(
    run: Run, files: Files, learned: Path, name: str, content: bytes | None, command: str
) -> None:
    (learned / name).unlink() if content is None else (learned / name).write_bytes(content)
    before = contents(learned)
    mores: dict[str, list[object]] = {"status": [], "predict": [files["aq.csv"]], "learn": lesson(files, "b"), "forget": ["a"]}
    result = run(command, learned, *mores[command])
    assert (result.code, result.out) == (4, "")
    assert name in result.err
    assert result.err.count("\n") == 1
    assert contents(learned) == before


@pytest.mark.parametrize("command", ["status", "predict", "learn", "forget"])
@pytest.mark.parametrize("older", [False, True], ids=["the tensors too", "and not written down"])
def test_a_home_that_lost_its_learner_is_not_a_new_one(run: Run, files: Files, learned: Path, command: str, older: bool) -> None:
    (learned / "state.json").unlink()
    if older:
        forget_which_learner(learned)
    else:
        (learned / "tensors.safetensors").unlink()
    before = contents(learned)
    mores: dict[str, list[object]] = {"status": [], "predict": [files["aq.csv"]], "learn": lesson(files, "b"), "forget": ["a"]}
    result = run(command, learned, *mores[command])
    assert (result.code, result.out) == (4, "")
    assert f"{learned} is damaged: state.json, a part of its learner, is gone; restore it from a copy." in result.err
    assert result.err.count("\n") == 1
    assert contents(learned) == before


def test_a_home_says_which_learner_it_has(learned: Path, kind: home.Kind) -> None:
    assert json.loads((learned / "home.json").read_text())["learner"] == kind


@pytest.mark.parametrize("command", ["predict", "learn"])
def test_a_home_that_lost_its_names_says_so(run: Run, files: Files, learned: Path, command: str) -> None:
    words = [files["aq.csv"]] if command == "predict" else [*lesson(files, "b"), "--label-column", "kind"]
    sentence = f"note: {learned} has a learner but no home.json, as one saved from Python: the names of its features,"
    (kept := learned / "home.json").rename(learned.parent / "kept.json")
    result = run(command, learned, *words)
    assert result.code == 0
    assert result.err.count(sentence) == 1
    (learned.parent / "kept.json").rename(kept)
    assert sentence not in run("predict", learned, files["aq.csv"]).err


@pytest.mark.parametrize("name", ["home.json", "state.json"])
def test_a_home_that_cannot_be_read_is_not_called_damaged(run: Run, learned: Path, name: str) -> None:
    (learned / name).unlink()
    (learned / name).mkdir()  # root may read anything but this
    result = run("status", learned)
    assert result.code == 5
    assert str(learned / name) in result.err
    assert "Is a directory" in result.err


@contextmanager
def disk_with_room_for(size: int) -> Iterator[None]:
    """No file may grow beyond `size`: the system then refuses to write, as it does when a disk is full."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("existing", [True, False], ids=["home", "no home"])
@pytest.mark.parametrize("room", [0, 10, 3000], ids=["not for a byte", "for nothing", "for home.json"])
def test_a_full_disk_loses_nothing(
    run: Run, files: Files, learned: Path, tmp_path: Path, small: list[str], existing: bool, room: int
) -> None:
    folder = learned if existing else tmp_path / "new"
    before = contents(folder)
    words = ["learn", folder, *lesson(files, "b"), "--label-column", "kind", *([] if existing else small)]
    with disk_with_room_for(room):
        result = run(*words)
    assert (result.code, result.out) == (5, "")
    assert "File too large" in result.err
    assert "untouched" in result.err
    assert result.err.count("\n") == 1
    assert contents(folder) == before
    assert run(*words).code == 0


@pytest.mark.parametrize("name", ["out.csv", "out.parquet"])
def test_a_full_disk_leaves_the_last_answers(run: Run, files: Files, learned: Path, tmp_path: Path, name: str) -> None:
    out = tmp_path / "out" / name
    out.parent.mkdir()
    out.write_text("before")
    with disk_with_room_for(10):
        result = run("predict", learned, files["aq.csv"], "-o", out)
    assert result.code == 5
    assert "File too large" in result.err
    assert contents(out.parent) == {name: b"before"}


@pytest.fixture
def interrupted(run: Run, files: Files, learned: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home whose disk filled up while it learned environment b, after two checkpoints."""
    save, saves = VariationalLearner.save, []

    def full_the_third_time(learner: VariationalLearner, path: Path) -> None:
        saves.append(path)
        if len(saves) == 3:
            raise OSError(errno.ENOSPC, "No space left on device")
        save(learner, path)

    with monkeypatch.context() as patched:
        patched.setattr(VariationalLearner, "save", full_the_third_time)
        result = run("learn", learned, *lesson(files, "b"), "--checkpoint-every", "7")
    assert (result.code, "No space left on device" in result.err) == (5, True)
    return learned


@variational
def test_a_disk_that_fails_after_a_checkpoint_keeps_the_checkpoint(run: Run, files: Files, interrupted: Path, both: Path) -> None:
    assert run("status", interrupted, "--json").json["in_progress"] == {"environment": "b", "step": 14, "steps": 20}
    text = run("status", interrupted).out
    assert f"in progress   b, saved at step 14 of 20; `perdure learn {interrupted} --environment b` goes on\n" in text
    assert run("learn", interrupted, "--environment", "b").code == 0
    assert contents(interrupted) == contents(both)


# -- answers --------------------------------------------------------------------------------------------------------------


@pytest.fixture
def both(run: Run, files: Files, made_once: Path, tmp_path: Path) -> Path:
    """A home that knows environments a and b."""
    folder = Path(shutil.copytree(made_once, tmp_path / "both"))
    assert run("learn", folder, *lesson(files, "b")).code == 0
    return folder


def test_answers_keep_the_order_of_the_rows(run: Run, files: Files, both: Path, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(home, "ROWS_AT_ONCE", 37)
    run("predict", both, files["aq.csv"], "--proba", "-o", tmp_path / "forth.parquet")
    rows = parquet.read_table(files["aq.parquet"])
    parquet.write_table(rows.take(np.arange(len(rows))[::-1]), tmp_path / "turned.parquet")
    run("predict", both, tmp_path / "turned.parquet", "--proba", "-o", tmp_path / "back.parquet")
    forth, back = (parquet.read_table(tmp_path / f"{name}.parquet") for name in ("forth", "back"))
    assert len(forth) == len(rows)
    for name in forth.column_names:
        one, other = forth[name].to_numpy(), back[name].to_numpy()[::-1]
        if one.dtype.kind == "f":
            np.testing.assert_allclose(one, other, rtol=1e-5)
        else:
            np.testing.assert_array_equal(one, other)


def test_probabilities_have_a_column_for_every_class(run: Run, files: Files, both: Path) -> None:
    for more, first in (["--environment", "b"], ["prediction"]), ([], ["prediction", "environment", "confidence"]):
        result = run("predict", both, files["bq.parquet"], "--proba", *more)
        read = csv.read_csv(io.BytesIO(result.out.encode()))
        assert read.column_names == [*first, *(f"probability_digit {i}" for i in range(4))]
        probabilities = np.stack([read[f"probability_digit {i}"].to_numpy() for i in range(4)], axis=1)
        np.testing.assert_allclose(probabilities.sum(axis=1), 1, rtol=1e-5)
        assert [f"digit {i}" for i in probabilities.argmax(axis=1)] == read["prediction"].to_pylist()


@analytic
@pytest.mark.parametrize("more", [[], ["--proba"]], ids=["", "proba"])
def test_doubtful_rows_are_left_empty(run: Run, files: Files, both: Path, tmp_path: Path, more: list[str]) -> None:
    q = csv.read_csv(files["bq.csv"]).to_pandas().to_numpy()
    learner = AnalyticLearner.load(both)
    below = float(np.quantile(learner.predict_proba(q).max(axis=1), 0.3))
    expected = learner.predict(q, abstain_below=below).tolist()
    empty = expected.count(None)
    assert 10 < empty < 60
    for name in ("out.csv", "out.parquet"):
        said = run("predict", both, files["bq.csv"], "--abstain-below", below, *more, "-o", tmp_path / name)
        assert (said.code, said.out) == (0, f"150 answers written to {tmp_path / name}, {empty} of them empty.\n")
    assert parquet.read_table(tmp_path / "out.parquet")["prediction"].to_pylist() == expected
    given = [line.split(",")[0] or None for line in (tmp_path / "out.csv").read_text().splitlines()[1:]]
    assert given == expected
    content = run("predict", both, files["bq.csv"], "--abstain-below", below, *more, "--json").json
    assert content["columns"]["prediction"] == expected
    assert (content["unanswered"], sum(content["classes"].values())) == (empty, 150 - empty)
    wrong = run("predict", both, files["bq.csv"], "--abstain-below", "2")
    assert (wrong.code, "must be a probability between 0 and 1, got 2.0" in wrong.err) == (2, True)


@variational
def test_the_variational_learner_does_not_abstain(run: Run, files: Files, learned: Path) -> None:
    refused = run("predict", learned, files["aq.csv"], "--abstain-below", "0.5")
    assert (refused.code, refused.out) == (2, "")
    assert f"--abstain-below is an option of the analytic learner, and {learned} has the variational one." in refused.err


def test_predict_changes_nothing(run: Run, files: Files, both: Path) -> None:
    before = contents(both)
    assert run("predict", both, files["bq.parquet"], "--proba").code == 0
    assert run("status", both).code == 0
    assert contents(both) == before


def test_a_reader_that_has_seen_enough_is_no_error(files: Files, both: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with monkeypatch.context() as patched, os.fdopen(writing, "w") as stdout:
        patched.setattr(sys, "stdout", stdout)
        assert main(["predict", str(both), str(files["bq.parquet"])]) == 141


def test_a_learner_saved_from_python_is_a_home(run: Run, files: Files, tmp_path: Path, kind: home.Kind) -> None:
    q = rows_of((0, 1), slice(150, 300))[0]
    learner = taught(kind, q)
    learner.save(tmp_path / "h")
    answers = run("predict", tmp_path / "h", files["aq.csv"], "--environment", "a")
    assert answers.out.splitlines()[1:] == learner.predict(darker(q), "a").tolist()
    assert run("learn", tmp_path / "h", *lesson(files, "b"), "--label-column", "kind").code == 0
    assert run("status", tmp_path / "h", "--json").json["environments"] == ["a", "b"]


# -- status and forget ----------------------------------------------------------------------------------------------------


def test_status_tells_what_a_home_holds(run: Run, files: Files, learned: Path, kind: home.Kind) -> None:
    run("learn", learned, "--query", files["bq.parquet"], "--environment", "b")
    text, content = run("status", learned), run("status", learned, "--json").json
    learner = (AnalyticLearner if kind == "analytic" else VariationalLearner).load(learned)
    assert content["learner"] == kind
    assert content["environments"] == ["a"]
    assert content["adapted"] == ({"a": True} if kind == "analytic" else None)
    assert content["classes"] == ["digit 0", "digit 1"]
    assert content["queued"] == [{"environment": "b", "missing": "support", "files": {"query": str(files["bq.parquet"])}}]
    assert content["in_progress"] is None
    assert content["features"] == {"width": 64, "names": NAMES}
    assert content["bytes_held"] == learner.bytes_held
    assert content["config"] == asdict(learner.config)
    assert text.out.splitlines()[:4] == [
        f"learner       {kind}",
        "environments  a",
        "classes       digit 0, digit 1",
        f"queued        b waits for its support (query: {files['bq.parquet']})",
    ]


def test_what_is_forgotten_is_gone(run: Run, files: Files, both: Path) -> None:
    result = run("forget", both, "a")
    assert (result.code, result.out) == (
        0,
        f'forgot "a". {both} now knows environments b; classes digit 2, digit 3.\n',
    )
    assert run("predict", both, files["aq.parquet"], "--environment", "a").code == 2
    assert run("learn", both, *lesson(files, "a")).code == 0


def test_what_is_queued_can_be_forgotten(run: Run, files: Files, learned: Path) -> None:
    before = contents(learned)
    run("learn", learned, "--query", files["bq.parquet"], "--environment", "b")
    assert contents(learned) != before
    assert run("forget", learned, "b", "--json").json["environments"] == ["a"]
    assert contents(learned) == before


# -- for programs ---------------------------------------------------------------------------------------------------------


def test_json_is_one_object_on_every_command(run: Run, files: Files, learned: Path, tmp_path: Path, kind: home.Kind) -> None:
    learn = run("learn", learned, *lesson(files, "b", query="q_with_labels.parquet"), "--json")
    assert learn.err == ""
    done = {"steps": 20} if kind == "variational" else {"adapted": True}
    assert {key: learn.json[key] for key in ("environment", "state", "environments", "returning", *done)} == {
        "environment": "b",
        "state": "learned",
        "environments": ["a", "b"],
        "returning": [],
        **done,
    }
    assert "holds labels" in learn.json["notes"][0]
    assert run("learn", learned, "--query", files["aq.csv"], "--environment", "c", "--json").json["missing"] == "support"
    printed = run("predict", learned, files["aq.csv"], "--json").json
    written = run("--json", "predict", learned, files["aq.csv"], "-o", tmp_path / "out.csv").json
    assert printed["rows"] == written["rows"] == len(printed["columns"]["prediction"]) == 150
    assert sum(written["classes"].values()) == sum(written["environments"].values()) == 150
    assert run("status", learned, "--json").json["environments"] == ["a", "b"]
    assert run("forget", learned, "a", "--json").json["forgotten"] == "a"


@pytest.mark.parametrize(
    ("words", "error_kind", "code"),
    [
        (["predict", "HOME", "none.csv"], "InputError", 2),
        (["predict", "HOME"], "InputError", 2),
        (["predict", "HOME", "a.csv", "--environment", "z"], "UnknownEnvironment", 2),
        (["status", "NEW"], "InputError", 2),
    ],
)
def test_json_tells_of_errors_too(
    run: Run, files: Files, learned: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], error_kind: str, code: int
) -> None:
    learned.rename(learned.parent / "HOME")
    monkeypatch.chdir(learned.parent)
    shutil.copy(files["a.csv"], "a.csv")
    result = run(*words, "--json")
    assert result.code == code
    error = result.json["error"]
    assert (error["kind"], error["exit_code"]) == (error_kind, code)
    assert result.err == f"perdure: {error['message']}\n"


@pytest.fixture
def helps(capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    """What every command says of itself."""
    said = {}
    for command in ("", "learn", "predict", "status", "forget", "demo", "features", "reproduce"):
        with pytest.raises(SystemExit, match="0"):
            main([*command.split(), "--help"])
        said[command] = capsys.readouterr().out
    return said


def test_the_page_explains_every_option_and_exit_code(helps: dict[str, str]) -> None:
    page = DOCS.read_text(encoding="utf-8")
    for command, said in helps.items():
        for option in set(re.findall(r"--[a-z][a-z-]+", said)):
            assert f"`{option}" in page or f"/`{option}" in page, f"{option} of {command!r} is not explained in {DOCS.name}"
    codes = re.findall(r"^  (\d+) +(.*)$", helps[""].split("exit codes:")[1], flags=re.MULTILINE)
    assert [int(code) for code, _ in codes] == [0, 1, 2, 3, 4, 5, 130]
    for code, meaning in codes:
        assert f"| {code} | {meaning} |" in page


def test_help_and_page_say_that_show_writes_the_ledger(helps: dict[str, str]) -> None:
    said = " ".join(helps["reproduce"].split())
    assert "--show run nothing; print and draw what is there, and write the ledger's section" in said
    (row,) = re.findall(r"^\| `--show` .*$", DOCS.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert "[ledger.md](ledger.md)" in row


def test_help_and_page_give_the_true_defaults(helps: dict[str, str]) -> None:
    page, defaults = DOCS.read_text(encoding="utf-8"), asdict(VariationalConfig())
    settings = " ".join(helps["learn"].split("settings of the variational learner")[1].split("running:")[0].split())
    said = re.findall(r"--([a-z-]+) (?:N|\{[^}]*\}) (?:(?! --).)*?\(([\w.]+)\)", settings)
    assert len(said) == 15
    for name, value in said:
        default = defaults[name.replace("-", "_")]
        assert value == default or float(value) == default
        assert f"| `--{name}` | {value} |" in page


def test_the_page_is_true(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = DOCS.read_text(encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    exec(page.split("```python\n")[1].split("```")[0], {})
    steps = re.findall(r"^\$ perdure (.*)\n((?:[^$].*\n)*)", page.split("```console\n")[1].split("```")[0], flags=re.MULTILINE)
    assert len(steps) == 6
    for command, said in steps:
        assert run(*shlex.split(command)) == (0, said, "")
    low, high = csv.read_csv("answers.csv")["prediction"].to_numpy(), parquet.read_table("answers.parquet")
    assert np.mean(np.isin(low, [0, 1])) > 0.9
    assert high.column_names == ["prediction", "environment", "confidence", *(f"probability_{i}" for i in range(4))]
    assert f"`{shlex.join(GOOD[2:])}`" in page


def test_demo_is_called_as_asked(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from perdure.experiments import demo, runner

    asked = []

    def stands_in(seeds: list[int], out: Path) -> dict[str, list[runner.Run]]:
        asked.append((seeds, out))
        print("a table")
        return {"method": [runner.Run("method", "digits", {}, {}, (1.0,))]}

    monkeypatch.setattr(demo, "demo", stands_in)
    assert run("demo") == (0, "a table\n", "")
    content = run("demo", "--seeds", "3", "4", "--out", tmp_path / "p.svg", "--json").json
    assert asked == [([0, 1, 2], Path("perdure-demo.png")), ([3, 4], tmp_path / "p.svg")]
    assert content["methods"]["method"][0]["scenario"] == "digits"


# -- interrupted ----------------------------------------------------------------------------------------------------------


class Running(NamedTuple):
    """A long `perdure learn` in a process of its own."""

    process: subprocess.Popen[str]
    home: Path
    command: list[str]


@pytest.fixture
def running(files: Files, tmp_path: Path) -> Iterator[Running]:
    folder = tmp_path / "running"
    words = ["learn", folder, *lesson(files, "a", ".csv"), "--label-column", "kind", *LONG, "--checkpoint-every", "25"]
    command = [str(word) for word in words]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "error"}
    process = subprocess.Popen(
        [sys.executable, "-m", "perdure.cli", *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )
    for _ in range(30_000):
        state = folder / "state.json"
        if process.poll() is not None or (state.exists() and b'"step":' in state.read_bytes()):
            break
        time.sleep(0.002)
    process.send_signal(signal.SIGSTOP)  # it holds its breath, so that no test has to hurry
    yield Running(process, folder, command)
    process.kill()
    process.communicate()


@pytest.fixture(scope="session")
def never_stopped(files: Files, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """What learning without a stop leaves."""
    folder = tmp_path_factory.mktemp("never") / "stopped"
    words = ["learn", folder, *lesson(files, "a", ".csv"), "--label-column", "kind", *LONG]
    assert main([str(word) for word in words]) == 0
    content = contents(folder)
    assert content is not None
    return content


def test_ctrl_c_leaves_a_state_that_the_same_command_continues(
    run: Run, files: Files, running: Running, never_stopped: dict[str, bytes]
) -> None:
    busy = run("learn", running.home, *lesson(files, "b"))
    assert busy.code == 5
    assert f"{running.home} is being changed by another perdure (process {running.process.pid})." in busy.err
    assert run("forget", running.home, "a").code == 5
    assert run("status", running.home).code == 0
    running.process.send_signal(signal.SIGINT)
    running.process.send_signal(signal.SIGCONT)
    out, err = running.process.communicate(timeout=60)
    assert running.process.returncode == 130, err
    saved = run("status", running.home, "--json").json["in_progress"]
    assert 25 <= saved["step"] < 400
    assert (saved["environment"], saved["steps"], out) == ("a", 400, "")
    command = "perdure " + " ".join(running.command)
    assert (
        err
        == f'perdure: stopped; "a" is saved at step {saved["step"]} of 400. To go on, run the same command again:\n  {command}\n'
    )
    early = run("predict", running.home, files["aq.csv"], "--environment", "a")
    assert early.code == 3
    other = run("learn", running.home, *lesson(files, "b"))
    assert other.code == 2
    assert '"a" is under way' in other.err
    went_on = run(*running.command)
    assert went_on.code == 0, went_on.err
    assert contents(running.home) == never_stopped


def test_a_killed_process_is_continued_to_the_same_bytes(run: Run, running: Running, never_stopped: dict[str, bytes]) -> None:
    running.process.kill()
    running.process.wait()
    saved = run("status", running.home, "--json").json["in_progress"]
    assert saved["step"] % 25 == 0
    assert 25 <= saved["step"] < 400
    went_on = run("learn", running.home, "--environment", "a")  # the home knows its files
    assert went_on.code == 0, went_on.err
    assert contents(running.home) == never_stopped


@variational
def test_other_data_do_not_continue_an_interrupted_environment(run: Run, files: Files, interrupted: Path) -> None:
    before = contents(interrupted)
    result = run("learn", interrupted, *lesson(files, "a")[:-1], "b")
    assert result.code == 2
    assert "begun with other data" in result.err
    assert contents(interrupted) == before


@variational
def test_what_is_under_way_can_be_forgotten(run: Run, files: Files, interrupted: Path) -> None:
    assert f"`perdure forget {interrupted} b`" in run("learn", interrupted, *lesson(files, "a")[:-1], "c").err
    assert run("forget", interrupted, "b", "--json").json["environments"] == ["a"]
    assert run("status", interrupted, "--json").json["in_progress"] is None
    assert run("learn", interrupted, *lesson(files, "b", ".csv")).code == 0


def test_ctrl_c_before_the_first_step_leaves_nothing(
    run: Run, files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def pressed(*args: object, **kwargs: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(home, "read_input", pressed)
    result = run("learn", tmp_path / "h", *lesson(files, "a"), "--label-column", "kind")
    assert result.code == 130
    assert "nothing was learned" in result.err
    assert not (tmp_path / "h").exists()


@variational
def test_killed_before_the_first_checkpoint_begins_again(run: Run, files: Files, learned: Path, tmp_path: Path) -> None:
    folder = tmp_path / "h"
    words = [*lesson(files, "a", ".csv"), "--label-column", "kind", *SMALL]
    assert run("learn", folder, *words).code == 0
    memory = home.Memory.read(folder)
    halves: dict[Any, home.Source] = {
        "support": home.Source.of(files["a.csv"], "kind"),
        "query": home.Source.of(files["aq.parquet"], None),
    }
    for name in ("state.json", "tensors.safetensors"):
        (folder / name).unlink()
    replace(memory, pending={"a": halves}, learner=None).write(folder)  # as homes once were, until a learner was saved
    assert "a stopped before its first save; learn it again" in run("status", folder).out
    asked = run("predict", folder, files["aq.csv"], "--environment", "a")
    assert (asked.code, f'"a" was stopped before its first save. Go on with `perdure learn {folder} …`' in asked.err) == (3, True)
    assert run("learn", folder, *words).code == 0
    assert contents(folder) == contents(learned)


KILLED_AT_ANY_MOMENT = """
import os, sys
from perdure import cli

def lives(n):
    # Whether a learn that is killed as it gives a file its n-th final name comes to its end.
    if (child := os.fork()) == 0:
        replace, left = os.replace, [n]
        def killing(*names):
            left[0] -= 1
            if left[0] == 0:
                os._exit(9)
            replace(*names)
        os.replace = killing
        os.dup2(2, 1)
        os._exit(cli.main([words.replace("HOME", f"{n}") for words in sys.argv[1:]]))
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0

n = 1
while not lives(n):
    n += 1
print(n)
"""


def test_killed_at_any_moment_the_same_command_ends_the_same(
    run: Run, files: Files, learned: Path, tmp_path: Path, small: list[str]
) -> None:
    words = ["learn", "HOME", *lesson(files, "a", ".csv"), "--label-column", "kind", *small]
    command = [sys.executable, "-W", "error", "-c", KILLED_AT_ANY_MOMENT, *map(str, words)]
    driven = subprocess.run(
        command, cwd=tmp_path, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, check=True
    )
    lived = int(driven.stdout)
    assert lived == 7, driven.stderr  # the empty learner, home.json, what was learned (two files each), home.json again
    for n in range(1, lived + 1):
        folder = tmp_path / str(n)
        if n < lived:
            assert contents(folder) != contents(learned)
            again = run("learn", folder, *words[2:])
            assert again.code == 0, (n, again.err)
        assert checkpoint.load(folder)[1] == checkpoint.load(learned)[1], n  # the digest of the tensors is in it
        assert (folder / "home.json").read_bytes() == (learned / "home.json").read_bytes()
        assert {path.name for path in folder.iterdir()} - {"tensors.safetensors.next"} == {
            path.name for path in learned.iterdir()
        }


@pytest.mark.parametrize("existing", [True, False], ids=["home", "no home"])
@pytest.mark.parametrize("at", ["learning", "saving"])
@analytic
def test_ctrl_c_leaves_what_was_there(
    run: Run, files: Files, learned: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, existing: bool, at: str
) -> None:
    folder = learned if existing else tmp_path / "new"
    before, write, written = contents(folder), checkpoint._write, list[Path]()

    def pressed(*args: object) -> None:
        raise KeyboardInterrupt

    def pressed_as_it_is_written(file: Path, data: bytes) -> None:
        write(file, data)
        written.append(file)
        if len(written) == (2 if existing else 4):  # the empty learner of a new home comes first
            raise KeyboardInterrupt

    if at == "learning":
        monkeypatch.setattr(AnalyticLearner, "learn", pressed)
    else:
        monkeypatch.setattr(checkpoint, "_write", pressed_as_it_is_written)
    stopped = run("learn", folder, *lesson(files, "b"), "--label-column", "kind")
    assert (stopped.code, stopped.out) == (130, "")
    assert "stopped; nothing was learned. To go on, run the same command again:" in stopped.err
    assert contents(folder) == before


def test_killed_after_the_last_step_is_done(run: Run, files: Files, learned: Path) -> None:
    before = contents(learned)
    memory = home.Memory.read(learned)
    halves: dict[Any, home.Source] = {
        "support": home.Source.of(files["a.csv"], "kind"),
        "query": home.Source.of(files["aq.parquet"], None),
    }
    for words in (lesson(files, "a", ".csv"), ["--environment", "a"]):
        replace(memory, pending={"a": halves}).write(learned)
        assert run("status", learned, "--json").json["queued"] == []
        result = run("learn", learned, *words)
        assert (result.code, result.out) == (0, '"a" was already learned when the last run was killed.\n')
        assert contents(learned) == before


@pytest.mark.parametrize(("half", "other"), [("support", "b.csv"), ("query", "bq.parquet")])
def test_killed_after_the_last_step_other_files_are_not_taken_for_learned(
    run: Run, files: Files, learned: Path, half: str, other: str
) -> None:
    halves: dict[Any, home.Source] = {
        "support": home.Source.of(files["a.csv"], "kind"),
        "query": home.Source.of(files["aq.parquet"], None),
    }
    replace(home.Memory.read(learned), pending={"a": halves}).write(learned)
    before = contents(learned)
    given = {"support": files["a.csv"], "query": files["aq.parquet"], half: files[other]}
    result = run("learn", learned, "--support", given["support"], "--query", given["query"], "--environment", "a")
    assert (result.code, result.out) == (2, "")
    assert f'Environment "a" is learned already, and {files[other]} is not the {half} that it was learned from.' in result.err
    assert f"Give the new data a new name, or `perdure forget {learned} a` first." in result.err
    assert contents(learned) == before


def test_the_lock_of_a_killed_process_holds_nobody_up(run: Run, files: Files, learned: Path) -> None:
    (learned / ".lock").write_text("99999999")
    assert run("learn", learned, "--query", files["bq.parquet"], "--environment", "b").code == 0
    assert not (learned / ".lock").exists()


# -- quiet ----------------------------------------------------------------------------------------------------------------


@variational
def test_a_bar_is_shown_on_a_terminal_and_nowhere_else(
    run: Run, files: Files, learned: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    assert run("learn", Path(shutil.copytree(learned, tmp_path / "quiet")), *lesson(files, "b")).err == ""
    assert run("predict", learned, files["aq.csv"]).err == ""
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    run("learn", learned, *lesson(files, "b"))
    assert "/20 [" in terminal.getvalue()
