"""Pixels in, answers out: a backbone trained end to end keeps what it learned, and raw digits are what they say."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from perdure import Environment, InputError, Query, Support, VariationalConfig, VariationalLearner
from perdure.experiments import reproduce, run
from perdure.experiments.backbones import small_convolutional
from perdure.experiments.runner import PROTOCOLS
from perdure.metrics import AccuracyMatrix
from perdure.scenarios import raw_digits

GIVEN = PROTOCOLS[0]
SMALL = {"latent": 64, "features": 128, "width": 128, "warm_up": 30, "steps": 90}
TINY = {"latent": 8, "features": 16, "width": 16, "warm_up": 2, "steps": 3}


@pytest.fixture
def real(data: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    if not (data / raw_digits.FILE).exists():
        pytest.skip(f"{raw_digits.FILE} is not in {data}")
    monkeypatch.setenv("PERDURE_DATA", str(data))
    return data


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """As many rows as a scenario needs, of pictures that say which domain and which row they are."""
    stored = {}
    for number, (domain, rows) in enumerate((("mnist", 2100), ("usps", 2000), ("mnistm", 2050))):
        for part, count in (("train", rows), ("test", 1000)):
            i = np.arange(count)
            x = np.zeros((count, 28, 28), dtype=np.uint8)
            x[:, 0, 0], x[:, 0, 1], x[:, 0, 2] = number, i // 256, i % 256
            stored[f"{domain}_x_{part}"] = np.repeat(x[..., None], 3, axis=3) if domain == "mnistm" else x
            stored[f"{domain}_y_{part}"] = (i % 10).astype(np.uint8)
    np.savez(tmp_path / raw_digits.FILE, **stored)
    monkeypatch.setenv("PERDURE_DATA", str(tmp_path))
    return tmp_path


def row_of_the_table(label: str, **smaller: int) -> VariationalConfig:
    """The configuration that `reproduce/raw-digits.py` runs, made smaller."""
    table = reproduce.load(reproduce.find_folder(), "raw-digits", "quick")
    (row,) = (row for row in table.rows if row.label == label)
    config = row.method.at(table.columns[0].setting, seed=0).config
    return replace(config, **smaller)


def noise(seed: int, name: str = "e", support: int = 0) -> Environment:
    """Pictures of nothing; those of the support depend on `support` alone."""
    x_s, x_q = (np.random.default_rng((each, 28)).random((40, 3, 28, 28), dtype=np.float32) for each in (support, 100 + seed))
    return Environment(name, Support(x_s, np.arange(40) % 4), Query(x_q))


def weights(network: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in network.named_parameters()}


# Learning


def test_ours_keeps_what_a_backbone_learned_end_to_end_and_without_replay_it_is_lost(real: Path) -> None:
    scenario = raw_digits.domains("mnist", ("usps", "mnistm"))
    firsts: list[dict[str, Tensor]] = []

    def backbone() -> nn.Module:
        made = small_convolutional()
        firsts.append(weights(made))
        return made

    def accuracy(label: str) -> tuple[VariationalLearner, AccuracyMatrix]:
        learner = VariationalLearner(row_of_the_table(label, **SMALL), backbone=backbone)
        return learner, run(scenario, learner, progress=False, every_stage=[GIVEN]).accuracy[GIVEN]

    (learner, ours), (_, without) = accuracy("ours"), accuracy("without replay")
    assert without.when_learned[0] == ours.when_learned[0] > 0.65  # a first environment has nothing to replay
    assert ours.forgetting < 0.05
    assert without.forgetting > 0.5
    assert ours.average - without.average > 0.3
    for first, snapshot in zip(firsts, learner.snapshots, strict=False):
        trained = weights(snapshot.inference.encode.backbone)
        assert all((trained[name] != first[name]).any() for name in first)


@pytest.mark.parametrize("label", ["ours", "ours, continued"])
def test_the_backbone_of_a_snapshot_never_moves_while_later_environments_are_learned(label: str) -> None:
    learner = VariationalLearner(row_of_the_table(label, **TINY), backbone=small_convolutional)
    learner.learn(noise(0, "first"), progress=False)
    probe = noise(0).query.x
    kept, h = copy.deepcopy(learner.snapshots[0].tensors()), learner.transform(probe, "first")
    for seed in (1, 2):
        learner.learn(noise(seed, f"later {seed}", support=seed), progress=False)
    assert any(name.startswith("inference.encode.backbone.") for name in kept)
    assert all(torch.equal(tensor, kept[name]) for name, tensor in learner.snapshots[0].tensors().items())
    np.testing.assert_array_equal(learner.transform(probe, "first"), h)
    for later in learner.snapshots[1:]:  # while these were learned, a backbone did move
        assert not torch.equal(later.tensors()["inference.encode.backbone.1.weight"], kept["inference.encode.backbone.1.weight"])


def test_what_is_not_aligned_learns_nothing_from_a_query() -> None:
    def learned(label: str, seed: int) -> dict[str, Tensor]:
        learner = VariationalLearner(row_of_the_table(label, **TINY), backbone=small_convolutional)
        learner.learn(noise(seed), progress=False)
        return {**weights(learner.snapshots[0].inference), **weights(learner.solver)}

    one, other = (learned("not aligned (domain split)", seed) for seed in (0, 1))
    assert all(torch.equal(one[name], other[name]) for name in one)
    one, other = (learned("upper bound (domain split)", seed) for seed in (0, 1))
    assert not torch.equal(one["encode.backbone.1.weight"], other["encode.backbone.1.weight"])


def test_rows_of_the_table_differ_from_ours_in_what_they_are_called_after() -> None:
    table = reproduce.load(reproduce.find_folder(), "raw-digits")
    assert [column.label for column in table.columns] == [
        "MNIST→USPS,MNIST-M",
        "MNIST→MNIST-M,USPS",
        "USPS→MNIST,MNIST-M",
        "MNIST-M→MNIST,USPS",
    ]
    methods = {row.label: row.method for row in table.rows if row.method.config is not None}
    ours = asdict(methods["ours"].config)
    differ = {
        label: {name: value for name, value in asdict(method.config).items() if value != ours[name]}
        for label, method in methods.items()
    }
    assert ours["fresh_solver"]
    assert {method.backbone for method in methods.values()} == {"small convolutional"}
    assert differ == {
        "joint training": {},
        "upper bound (domain split)": {},
        "not aligned (domain split)": {"beta": 0.0, "kl_weight": 0.0},
        "without replay": {"replay": "none"},
        "without replay, continued": {"replay": "none", "fresh_inference": False},
        "without encoder snapshot": {"snapshot": "decoder"},
        "without encoder snapshot, continued": {"snapshot": "decoder", "fresh_inference": False},
        "ours": {},
        "ours, continued": {"fresh_inference": False},
    }


def test_an_answer_does_not_depend_on_the_rows_beside_it() -> None:
    backbone, x = small_convolutional().train(), torch.from_numpy(noise(0).query.x)
    with torch.no_grad():
        torch.testing.assert_close(backbone(x)[:1], backbone(x[:1]))
        torch.testing.assert_close(backbone(0.5 * x + 0.2), backbone(x), atol=2e-3, rtol=0)  # nor on light and contrast


# What is learned


def test_domains_arrive_in_turn_on_one_support(stand_in: Path) -> None:
    scenario = raw_digits.domains("usps", ("mnistm", "mnist"), inductive=True)
    assert [environment.name for environment in scenario.environments] == ["USPS→MNIST-M", "USPS→MNIST"]
    for environment, domain in zip(scenario.environments, (2, 0), strict=True):
        assert environment.support.x.shape == environment.query.x.shape == (2000, 3, 28, 28)
        assert environment.support.classes == list(range(10))
        np.testing.assert_array_equal(environment.support.x, scenario.environments[0].support.x)
        assert np.unique(255 * environment.support.x[:, :, 0, 0]).round().tolist() == [1]  # USPS and nothing else
        assert np.unique(255 * environment.query.x[:, :, 0, 0]).round().tolist() == [domain]
        assert scenario.answers.inductive[environment.name].x.shape == (1000, 3, 28, 28)


@pytest.mark.parametrize("domain", raw_digits.DOMAINS)
def test_every_picture_keeps_its_digit_and_comes_once(domain: str, stand_in: Path) -> None:
    x, y = raw_digits.pictures(domain, "train", 2000, seed=0)
    numbers = 256 * (255 * x[:, 0, 0, 1]).round() + (255 * x[:, 0, 0, 2]).round()
    assert len(np.unique(numbers)) == 2000
    np.testing.assert_array_equal(numbers % 10, y)


def test_the_seed_draws_the_rows(stand_in: Path) -> None:
    first, same, other = (raw_digits.pictures("mnist", "train", 2000, seed)[0] for seed in (0, 0, 1))
    np.testing.assert_array_equal(first, same)
    assert (first != other).any()


def test_colours_stay_colours_and_grey_has_three_equal_channels(real: Path) -> None:
    coloured, _ = raw_digits.pictures("mnistm", "train", 100, seed=0)
    grey, _ = raw_digits.pictures("usps", "train", 100, seed=0)
    assert (coloured[:, 0] != coloured[:, 2]).mean() > 0.5
    assert (grey == grey[:, :1]).all()
    for x in (coloured, grey):
        assert x.dtype == np.float32
        assert 0 <= x.min() < 0.1 < 0.9 < x.max() <= 1


REFUSED: list[tuple[Callable[[], object], str]] = [
    (
        lambda: raw_digits.domains("mnist", ("svhn",)),
        r"No domains of raw digits are called \['svhn'\]. Known: mnist, usps, mnistm.",
    ),
    (
        lambda: raw_digits.pictures("usps", "train", 9000, seed=0),
        f"USPS has 2000 train pictures in {raw_digits.FILE}, fewer than the 9000 asked for.",
    ),
]


@pytest.mark.parametrize(("ask", "sentence"), REFUSED)
def test_what_is_not_there_is_refused_in_a_sentence(ask: Callable[[], object], sentence: str, stand_in: Path) -> None:
    with pytest.raises(InputError, match=sentence):
        ask()
