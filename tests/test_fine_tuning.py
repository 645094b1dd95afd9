"""A pretrained network is trained along by its name: what is trained and kept, what it is shown, how it is saved and found."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from tiny import TINY, anatomy, assert_same, differences
from tiny_backbones import MAKERS, SIDE, save
from torch import nn

from perdure import CheckpointError, Environment, InputError, Query, Support, VariationalConfig, VariationalLearner, variational
from perdure.generative import Rehearsal
from perdure.inputs import pictures
from perdure.inputs.folders import Picture, find
from perdure.inputs.pictures import PictureBackbone, PretrainedNetwork, pretrained
from perdure.streams import as_rows

TOTAL = TINY.warm_up + TINY.steps


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One network of each architecture."""
    root = tmp_path_factory.mktemp("backbones")
    return {name: save(root / name, name) for name in MAKERS}


@pytest.fixture
def resnet(folders: dict[str, Path]) -> Path:
    """One of two stages with batch norm."""
    return folders["ResNet"]


def tuned(folder: Path, finetune: str = "last 1", **settings: Any) -> VariationalConfig:
    return replace(TINY, backbone=str(folder), finetune=finetune, **settings)


def noise(rows: int, seed: int, side: int = SIDE) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (rows, 3, side, side), dtype=np.uint8)


def scenes(name: str, seed: int, side: int = SIDE) -> Environment:
    """Pictures of two classes, one of which is darker."""
    y = np.arange(12) % 2
    x, query = noise(12, seed, side), noise(12, seed + 100, side)
    x[y == 0] //= 4
    query[y == 0] //= 4
    return Environment(name, Support(x, np.array(["night", "day"])[y]), Query(query))


def two() -> list[Environment]:
    return [scenes("street", 1), scenes("harbour", 2)]


def learner_of(config: VariationalConfig, environments: list[Environment] | None = None) -> VariationalLearner:
    learner = VariationalLearner(config)
    for environment in two() if environments is None else environments:
        learner.learn(environment, progress=False)
    return learner


def network_of(learner: VariationalLearner, number: int = 0) -> PretrainedNetwork:
    inference = learner.snapshots[number].inference
    assert inference is not None
    assert isinstance(inference.encode.backbone, PretrainedNetwork)
    return inference.encode.backbone


def weights(network: nn.Module) -> dict[str, torch.Tensor]:
    """Whether they are trained or not."""
    return {**dict(network.named_parameters()), **dict(network.named_buffers())}


# What is trained


@pytest.mark.parametrize(
    ("name", "finetune", "expected"),
    [
        ("ResNet", "last 1", ["encoder.stages.1"]),
        ("ResNet", "last 2", ["encoder.stages.0", "encoder.stages.1"]),
        ("ConvNeXt", "last 1", ["encoder.stages.1", "layernorm"]),
        ("ViT", "last 1", ["layers.1", "layernorm", "pooler"]),
        ("CLIP", "last 1", ["encoder.layers.1", "post_layernorm"]),
        ("SigLIP", "last 1", ["encoder.layers.1", "post_layernorm", "head"]),
    ],
)
def test_the_last_blocks_and_all_that_follows_them_are_trained(
    folders: dict[str, Path], name: str, finetune: str, expected: list[str]
) -> None:
    whole, part = pretrained(folders[name]), pretrained(folders[name], finetune)
    names = [(key, key.removeprefix("network.").replace("encoder.layer.", "layers.")) for key, _ in whole.named_parameters()]
    assert {key for key, _ in part.named_parameters()} == {key for key, at in names if at.startswith(tuple(expected))}
    assert weights(part).keys() == weights(whole).keys()
    for key, weight in weights(part).items():
        assert torch.equal(weight, weights(whole)[key])


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("finetune", ["all", "none", "last 1"])
def test_what_is_trained_changes_and_nothing_else(folders: dict[str, Path], name: str, finetune: str) -> None:
    learner, before = learner_of(tuned(folders[name], finetune), two()[:1]), weights(pretrained(folders[name]))
    network = network_of(learner)
    trained = {key for key, _ in network.named_parameters()}
    unused = {
        key for key in trained if key.endswith(("mask_token", "q_proj.bias", "k_proj.bias", "key.bias", "attention.key.bias"))
    }
    changed = {key for key, weight in weights(network).items() if not torch.equal(weight, before[key])}
    assert changed <= trained
    assert trained - unused <= changed | unused
    assert (not trained) == (finetune == "none")
    assert set(network.state_dict()) == trained  # what a save holds
    statistics = [key for key in before if key.endswith(("running_mean", "running_var", "num_batches_tracked"))]
    assert bool(statistics) == (name == "ResNet")
    assert not changed & set(statistics)


def test_more_blocks_than_there_are_and_networks_without_blocks_are_refused(resnet: Path) -> None:
    with pytest.raises(InputError, match=r'`finetune="last 3"` asks for more blocks than the 2 of ResNetModel\.'):
        pretrained(resnet, "last 3")
    with pytest.raises(InputError, match="asks for more blocks than the 0 of Linear"):
        PretrainedNetwork(nn.Linear(2, 2), PictureBackbone(resnet).preprocessing, "last 1")


@pytest.mark.parametrize("name", MAKERS)
def test_more_blocks_than_there_are_are_refused_before_weights_are_loaded(
    folders: dict[str, Path], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pictures, "load_network", lambda *args: pytest.fail("loaded"))
    with pytest.raises(InputError, match=r'`finetune="last 9"` asks for more blocks than the 2 of'):
        VariationalLearner(tuned(folders[name], "last 9"))
    VariationalLearner(tuned(folders[name], "last 2"))


@pytest.mark.parametrize("finetune", ["last", "last 0", "last -1", "some", "", "last 1\n", "ALL"])
def test_what_is_to_be_trained_is_spelled_one_way(finetune: str) -> None:
    with pytest.raises(InputError, match="`finetune` must be"):
        VariationalConfig(backbone="x", finetune=finetune)


def test_settings_of_no_backbone_are_refused(resnet: Path) -> None:
    with pytest.raises(InputError, match=r'`precision="bfloat16"` is of a backbone, and there is none; leave it out\.'):
        VariationalLearner(VariationalConfig(precision="bfloat16"))
    assert VariationalLearner(VariationalConfig(precision="float32")).config.precision == "float32"
    with pytest.raises(InputError, match=r'`finetune="none"` needs a `backbone` by name'):
        VariationalConfig(finetune="none")
    with pytest.raises(InputError, match="`backbone` must be a string, got ''"):
        VariationalConfig(backbone="")
    with pytest.raises(InputError, match=r"names the backbone .* already; leave `backbone` out"):
        VariationalLearner(tuned(resnet), backbone=lambda: nn.Flatten())
    with pytest.raises(InputError, match="There is no backbone nowhere/at/all"):
        VariationalLearner(VariationalConfig(backbone="nowhere/at/all"))


# What is kept


def test_frozen_weights_are_there_once_and_trained_ones_in_every_snapshot(resnet: Path) -> None:
    learner = learner_of(tuned(resnet))
    first, second = network_of(learner, 0), network_of(learner, 1)
    for (name, one), other in zip(first.named_buffers(), second.buffers(), strict=True):
        assert one.data_ptr() == other.data_ptr(), name
    for (name, one), other in zip(first.named_parameters(), second.parameters(), strict=True):
        assert one.data_ptr() != other.data_ptr(), name
        assert not torch.equal(one, other) or name.endswith("convolution.bias"), name


@pytest.mark.parametrize("finetune", ["all", "none", "last 1"])
def test_bytes_held_are_the_trained_weights_of_each_and_the_whole_network_once(resnet: Path, finetune: str) -> None:
    learner = learner_of(tuned(resnet, finetune))
    original = sum(weight.nbytes for weight in weights(pretrained(resnet)).values())
    trained = sum(weight.numel() for weight in pretrained(resnet, finetune).parameters())
    rest = (8 * 16 + 16) + (8 * 16 + 16) + 4 * 16 + (16 * 16 + 16 + 16 * 2 + 2) + 2 * 2 * 8  # to z, decoder, f, priors
    centring = 2 * 2
    assert learner.bytes_held["street"] == learner.bytes_held["harbour"] == 4 * (trained + rest + centring) + 8
    assert learner.bytes_held["(shared)"] == original + 4 * (16 * 16 + 16 + 16 * 2 + 2)


def test_a_snapshot_never_moves_while_another_environment_is_learned(resnet: Path) -> None:
    for finetune in ("all", "last 1"):
        learner = VariationalLearner(tuned(resnet, finetune))
        learner.learn(two()[0], progress=False)
        kept, x = anatomy(learner.snapshots[0]), two()[0].query.x  # type: ignore[union-attr]
        h = learner.transform(x, "street")
        learner.learn(two()[1], progress=False)
        assert differences(anatomy(learner.snapshots[0]), kept) == []
        np.testing.assert_array_equal(learner.transform(x, "street"), h)


def test_every_environment_begins_with_the_pretrained_weights(resnet: Path) -> None:
    learner = learner_of(tuned(resnet, "all"))
    assert learner._pretrained is not None
    made, original = learner._pretrained(), pretrained(resnet)
    assert differences(anatomy(weights(made)), anatomy(weights(original))) == []


# What it is shown


def test_bytes_and_fractions_teach_the_same(resnet: Path) -> None:
    bytes_of = scenes("street", 1)
    assert bytes_of.support is not None
    assert bytes_of.query is not None
    assert bytes_of.query.x.dtype == np.uint8
    fractions = Environment(
        "street",
        Support(torch.from_numpy(bytes_of.support.x).float() / 255, bytes_of.support.y),
        Query(torch.from_numpy(bytes_of.query.x).float() / 255),
    )
    one, other = (learner_of(tuned(resnet), [environment]) for environment in (bytes_of, fractions))
    assert_same(one, other)
    np.testing.assert_array_equal(one.predict_proba(bytes_of.query.x), other.predict_proba(fractions.query.x))  # type: ignore[union-attr]


def test_pictures_of_another_size_are_prepared_as_the_network_asks(resnet: Path) -> None:
    large = scenes("street", 1, side=50)
    rows = PictureBackbone(resnet).rows
    assert large.support is not None
    assert large.query is not None
    prepared = Environment("street", Support(rows(large.support.x), large.support.y), Query(rows(large.query.x)))
    assert prepared.query is not None
    assert prepared.query.x.shape == (12, 3, SIDE, SIDE)
    one, other = (learner_of(tuned(resnet), [environment]) for environment in (large, prepared))
    np.testing.assert_array_equal(one.predict_proba(large.query.x), other.predict_proba(prepared.query.x))
    assert one._row_shape == (3, 50, 50)
    with pytest.raises(InputError, match=r"Rows of the query have shape \(3, 32, 32\), what was learned has \(3, 50, 50\)"):
        one.predict(prepared.query.x)


def test_rows_of_files_are_what_becomes_features(resnet: Path, tmp_path: Path) -> None:
    backbone = PictureBackbone(resnet, device="cpu")
    files = [tmp_path / f"{i}.png" for i in range(3)]
    for i, file in enumerate(files):
        Image.fromarray(noise(1, i, side=45 + i)[0].transpose(1, 2, 0)).save(file)
    rows = backbone.rows(files)
    assert (rows.shape, rows.dtype) == ((3, 3, SIDE, SIDE), np.uint8)
    features = backbone.encode([backbone.prepare(backbone.content(file), file) for file in files])
    with torch.no_grad():
        torch.testing.assert_close(pretrained(resnet).eval()(torch.from_numpy(rows).float() / 255), features)
    np.testing.assert_array_equal(backbone.rows([file.read_bytes() for file in files]), rows)
    np.testing.assert_array_equal(backbone.rows([Image.open(file) for file in files]), rows)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda x: (x / 255 - 0.4) / 0.2, "Pictures of fractions must go from 0 to 1; undo their normalisation, or give bytes"),
        (lambda x: x.astype(np.int64), "or give bytes"),
        (lambda x: np.concatenate([x[:-1] / 255, 2 + x[-1:]]), "or give bytes"),
        (lambda x: x[:, :2, :, :2], r"An array of shape \(2, 32, 2\) is no picture"),
        (lambda x: x[:, 0, 0].astype(float) / 255, r"An array of shape \(32,\) is no picture"),
    ],
    ids=["normalised", "integers", "one row", "two colours", "vectors"],
)
def test_what_is_no_picture_is_refused_before_anything_changes(resnet: Path, change: Any, why: str) -> None:
    learner, environment = VariationalLearner(tuned(resnet)), scenes("street", 1)
    assert environment.support is not None
    assert environment.query is not None
    support, query = Support(change(environment.support.x), environment.support.y), Query(change(environment.query.x))
    before = anatomy(learner)
    with pytest.raises(InputError, match=why):
        learner.learn(Environment("street", support, query), progress=False)
    assert differences(anatomy(learner), before) == []
    learner.learn(environment, progress=False)
    with pytest.raises(InputError):
        learner.predict(change(environment.query.x))


def test_only_pictures_stay_bytes() -> None:
    assert as_rows(noise(2, 0), "support").dtype == np.uint8
    assert as_rows(noise(2, 0)[:, 0], "support").dtype == np.uint8
    assert as_rows(noise(2, 0)[:, 0, 0], "support").dtype == np.float32
    assert as_rows(noise(2, 0).astype(np.int64), "support").dtype == np.float32
    assert as_rows(noise(2, 0)[..., ::2], "support").flags.c_contiguous


def test_a_network_of_your_own_is_given_bytes_as_the_numbers_they_are() -> None:
    seen: list[torch.Tensor] = []

    class Own(nn.Flatten):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            seen.append(x)
            return super().forward(x)[:, :5] / 255

    learner = VariationalLearner(TINY, backbone=Own)
    learner.learn(scenes("street", 1), progress=False)
    assert {x.dtype for x in seen} == {torch.float32}
    assert max(x.max().item() for x in seen) == 255


def test_few_pictures_are_answered_at_a_time_however_many_are_asked_for(resnet: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    learner, x = learner_of(tuned(resnet)), noise(40, 7)
    expected, seen = learner.predict_proba(x), list[int]()
    monkeypatch.setattr(variational, "NUMBERS_AT_ONCE", 8 * x[0].size + 1)
    for number in range(2):
        network_of(learner, number).register_forward_pre_hook(lambda module, args: seen.append(len(args[0])))
    np.testing.assert_allclose(learner.predict_proba(x), expected, atol=1e-6)
    assert seen == [8] * 5 * 2  # five times, through either snapshot once
    monkeypatch.setattr(variational, "NUMBERS_AT_ONCE", 1)
    np.testing.assert_allclose(learner.predict_proba(x[:3]), expected[:3], atol=1e-6)


def test_small_pictures_are_answered_as_few_at_a_time_as_they_become_large(resnet: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    learner, x, seen = learner_of(tuned(resnet), [scenes("street", 1, side=8)]), noise(40, 7, side=8), list[int]()
    expected = learner.predict_proba(x)
    monkeypatch.setattr(variational, "NUMBERS_AT_ONCE", 8 * 3 * SIDE * SIDE)
    network_of(learner).register_forward_pre_hook(lambda module, args: seen.append(len(args[0])))
    np.testing.assert_allclose(learner.predict_proba(x), expected, atol=1e-6)
    assert seen == [8] * 5


# Mixed precision


@pytest.mark.parametrize("finetune", ["all", "last 1"])
def test_in_mixed_precision_the_backbone_alone_multiplies_in_half(resnet: Path, finetune: str) -> None:
    learner, seen = VariationalLearner(tuned(resnet, finetune, precision="bfloat16")), dict[str, set[torch.dtype]]()

    def look(name: str) -> Any:
        return lambda module, args, out: seen.setdefault(name, set()).add(out.dtype)

    def begin(step: int, total: int) -> None:
        inference = learner.inference
        assert inference is not None
        if step == 1:
            stage = inference.encode.backbone.network.encoder.stages[1].layers[0].layer[0].convolution
            for name, module in (
                ("inside", stage),
                ("to z", inference.encode.to_posterior),
                ("decoder", inference.decode.linear),
            ):
                module.register_forward_hook(look(name))
        assert {weight.dtype for weight in inference.parameters()} == {torch.float32}
        assert {weight.grad.dtype for weight in inference.parameters() if weight.grad is not None} == {torch.float32}

    learner.learn(two()[0], progress=begin)
    learner.predict(noise(3, 0))
    assert seen == {"inside": {torch.bfloat16}, "to z": {torch.float32}, "decoder": {torch.float32}}
    assert {weight.dtype for weight in weights(network_of(learner)).values()} <= {torch.float32, torch.int64}


def test_half_precision_is_close_to_full_and_not_equal_to_it(resnet: Path) -> None:
    x = noise(6, 0)
    full, half = (learner_of(tuned(resnet, precision=precision)).predict_proba(x) for precision in ("float32", "bfloat16"))
    assert not np.array_equal(full, half)
    np.testing.assert_allclose(full, half, atol=0.05)


def test_a_network_of_your_own_may_multiply_in_half_too() -> None:
    seen = set[torch.dtype]()

    def own() -> nn.Module:
        network = nn.Sequential(nn.Flatten(), nn.Linear(3 * SIDE * SIDE, 5))
        network.register_forward_hook(lambda module, args, out: seen.add(out.dtype))
        return network

    learner = VariationalLearner(replace(TINY, precision="bfloat16"), backbone=own)
    learner.learn(scenes("street", 1), progress=False)
    assert torch.bfloat16 in seen
    assert learner.predict_proba(noise(2, 0)).dtype == np.float32


def test_precision_follows_the_device_unless_it_is_set(resnet: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def chosen(device: str, **settings: Any) -> torch.dtype | None:
        learner = VariationalLearner(tuned(resnet, **settings))
        learner.device = torch.device(device)
        return learner._precision

    for supported in (True, False):
        monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation, supported=supported: supported)
        assert chosen("cuda") == (torch.bfloat16 if supported else None)
        assert chosen("cuda", precision="float32") is None
        assert chosen("cpu") is None
        assert chosen("cpu", precision="bfloat16") == torch.bfloat16
    assert learner_of(tuned(resnet), two()[:1]).snapshots[0].inference.encode.precision is None  # type: ignore[union-attr]


def test_a_network_of_your_own_is_exact_on_every_device_unless_half_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kept runs of such networks do not name their precision, and were computed in float32."""
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: True)
    for device in ("cpu", "cuda"):
        for precision, expected in (("auto", None), ("float32", None), ("bfloat16", torch.bfloat16)):
            learner = VariationalLearner(replace(TINY, precision=precision), backbone=nn.Flatten)
            learner.device = torch.device(device)
            assert learner._precision == expected


# Saved and found again


def test_a_save_names_its_backbone_and_holds_nothing_of_what_is_frozen(resnet: Path, tmp_path: Path) -> None:
    learner = learner_of(tuned(resnet))
    learner.save(tmp_path)
    state, tensors = json.loads((tmp_path / "state.json").read_text()), load_file(tmp_path / "tensors.safetensors")
    assert (state["config"]["backbone"], state["config"]["finetune"]) == (str(resnet), "last 1")
    assert state["backbone"] == PictureBackbone(resnet).identity.to_json()
    stages = {name.split(".network.")[1][:16] for name in tensors if ".network." in name}
    assert stages == {"encoder.stages.1"}
    assert not [name for name in tensors if "running" in name and "normalization" in name]
    loaded = VariationalLearner.load(tmp_path)
    assert loaded.config == learner.config
    assert loaded.bytes_held == learner.bytes_held
    assert_same(loaded, learner)
    np.testing.assert_array_equal(loaded.predict_proba(noise(5, 3)), learner.predict_proba(noise(5, 3)))


def test_a_save_of_features_says_nothing_of_backbones_and_older_ones_load(tmp_path: Path) -> None:
    learner = VariationalLearner(TINY)
    learner.save(tmp_path)
    state = json.loads((tmp_path / "state.json").read_text())
    assert {"backbone", "finetune", "precision"}.isdisjoint({*state, *state["config"]})
    assert VariationalLearner.load(tmp_path).config == TINY


def test_a_folder_named_from_here_is_found_from_elsewhere(resnet: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(resnet.parent)
    learner = VariationalLearner(tuned(Path(resnet.name)))
    monkeypatch.chdir(tmp_path)
    learner.learn(two()[0], progress=False)
    learner.save("saved")
    assert json.loads(Path("saved/state.json").read_text())["config"]["backbone"] == str(resnet)
    loaded = VariationalLearner.load("saved")
    np.testing.assert_array_equal(loaded.predict_proba(noise(5, 3)), learner.predict_proba(noise(5, 3)))


@pytest.mark.parametrize("finetune", ["all", "last 1"])
def test_a_pretrained_network_of_your_own_is_saved_whole(resnet: Path, finetune: str, tmp_path: Path) -> None:
    """Nobody would notice that it is made with other weights when it is loaded."""
    learner = VariationalLearner(TINY, backbone=lambda: pretrained(resnet, finetune))
    environment, x = scenes("street", 1), noise(5, 3) / 255
    assert environment.support is not None
    assert environment.query is not None
    support, query = Support(environment.support.x / 255, environment.support.y), Query(environment.query.x / 255)
    learner.learn(Environment("street", support, query), progress=False)
    learner.save(tmp_path / "learner")
    other = Path(shutil.copytree(resnet, tmp_path / "other"))
    stored = {
        name: weight + 1 if weight.is_floating_point() else weight
        for name, weight in load_file(other / "model.safetensors").items()
    }
    save_file(stored, other / "model.safetensors", {"format": "pt"})
    loaded = VariationalLearner.load(tmp_path / "learner", backbone=lambda: pretrained(other, finetune))
    h = learner.transform(x, "street")
    assert (h[0] != h[1]).any()
    np.testing.assert_array_equal(loaded.transform(x, "street"), h)


@pytest.fixture
def saved(resnet: Path, tmp_path: Path) -> tuple[Path, Path]:
    """A learner and the folder of its backbone, both to be tampered with."""
    backbone = Path(shutil.copytree(resnet, tmp_path / "backbone"))
    learner_of(tuned(backbone), two()[:1]).save(tmp_path / "learner")
    return tmp_path / "learner", backbone


def test_a_backbone_that_moved_is_named_anew(saved: tuple[Path, Path], tmp_path: Path) -> None:
    folder, backbone = saved
    expected = VariationalLearner.load(folder).predict_proba(noise(5, 3))
    backbone.rename(tmp_path / "elsewhere")
    with pytest.raises(CheckpointError) as caught:
        VariationalLearner.load(folder)
    assert str(caught.value) == (
        f"{folder} was learned with {backbone}, which cannot be used now. There is no backbone {backbone}: it is no folder, and "
        "no name on the Hugging Face hub. Say where its backbone is: load(..., backbone=FOLDER)."
    )
    loaded = VariationalLearner.load(folder, backbone=tmp_path / "elsewhere")
    np.testing.assert_array_equal(loaded.predict_proba(noise(5, 3)), expected)
    loaded.save(folder)
    assert VariationalLearner.load(folder).config.backbone == str(tmp_path / "elsewhere")


@pytest.mark.parametrize(("what", "said"), [("frozen weights", "network"), ("preprocessing", "preparation")])
def test_another_backbone_in_its_place_is_refused(saved: tuple[Path, Path], what: str, said: str) -> None:
    folder, backbone = saved
    if what == "preprocessing":
        file = backbone / "preprocessor_config.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), "resample": 0}))
    else:
        stored = load_file(backbone / "model.safetensors")
        stored["embedder.embedder.convolution.weight"][0, 0, 0, 0] += 1e-3
        save_file(stored, backbone / "model.safetensors", {"format": "pt"})
    with pytest.raises(CheckpointError) as caught:
        VariationalLearner.load(folder)
    assert str(caught.value) == (
        f"{folder} was learned with {backbone}, but {backbone} is now another backbone (its {said} differs). "
        "Say where its backbone is: load(..., backbone=FOLDER)."
    )


def test_backbones_are_not_mixed_up_when_loading(saved: tuple[Path, Path], tmp_path: Path) -> None:
    folder, backbone = saved
    with pytest.raises(InputError, match=r"names the backbone .* already"):
        VariationalLearner.load(folder, backbone=lambda: nn.Flatten())
    VariationalLearner(TINY).save(tmp_path / "features")
    with pytest.raises(CheckpointError, match=r"has no pretrained backbone to be found in .*backbone; leave `backbone` out\."):
        VariationalLearner.load(tmp_path / "features", backbone=backbone)
    state = json.loads((folder / "state.json").read_text())
    for wrong in (None, [], {**state["backbone"], "network": "0"}):
        (folder / "state.json").write_text(json.dumps({**state, "backbone": wrong}))
        with pytest.raises(CheckpointError, match="is now another backbone"):
            VariationalLearner.load(folder)


# Stopped and taken up again


@pytest.fixture
def _blocks_end_within_a_lesson(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Rehearsal, "block", 2)


@pytest.mark.parametrize("finetune", ["all", "none", "last 1"])
@pytest.mark.usefixtures("_blocks_end_within_a_lesson")
def test_resuming_equals_never_stopping(resnet: Path, finetune: str, tmp_path: Path) -> None:
    config, copies = tuned(resnet, finetune), list[Path]()
    never_stopped = VariationalLearner(config)

    def keep(step: int, total: int) -> None:
        if (tmp_path / "now" / "state.json").exists():
            copies.append(Path(shutil.copytree(tmp_path / "now", tmp_path / f"{len(copies)}")))

    for environment in two():
        never_stopped.learn(environment, checkpoint=tmp_path / "now", every=1, progress=keep)
    assert len(copies) == 2 * TOTAL - 1
    for each in copies:
        assert_same(go_on(VariationalLearner.load(each)), never_stopped)


def go_on(learner: VariationalLearner) -> VariationalLearner:
    for environment in two():
        if environment.name not in learner.environments:
            learner.learn(environment, progress=False)
    return learner


@pytest.mark.parametrize("at", [1, 4])
def test_ctrl_c_saves_where_it_was(resnet: Path, at: int, tmp_path: Path) -> None:
    learner = learner_of(tuned(resnet), two()[:1])

    def press(step: int, total: int) -> None:
        if step == at:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        learner.learn(two()[1], checkpoint=tmp_path, every=1000, progress=press)
    loaded = VariationalLearner.load(tmp_path)
    assert loaded.in_progress == learner.in_progress == "harbour"
    expected = learner_of(tuned(resnet))
    assert_same(go_on(loaded), expected)
    assert_same(go_on(learner), expected)


def test_a_process_that_was_killed_is_continued_by_another(resnet: Path, tmp_path: Path) -> None:
    code = (
        f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        "import torch; torch.set_num_threads(1)\n"
        "from pathlib import Path\n"
        "from test_fine_tuning import VariationalLearner, tuned, two\n"
        f"learner = VariationalLearner(tuned(Path({str(resnet)!r})))\n"
        "for i, environment in enumerate(two()):\n"
        f"    learner.learn(environment, checkpoint={str(tmp_path)!r}, every=1,"
        " progress=lambda step, total: print(i, step, flush=True))\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    for line in process.stdout:
        if line.split() == ["1", "4"]:
            process.kill()
            break
    assert process.wait() == -signal.SIGKILL
    process.stdout.close()
    loaded = VariationalLearner.load(tmp_path)
    assert loaded.environments == ["street"]
    assert_same(go_on(loaded), learner_of(tuned(resnet)))


# The benchmark


@pytest.fixture(scope="module")
def benchmark() -> ModuleType:
    place = Path(__file__).resolve().parents[1] / "benchmarks" / "fine_tuning.py"
    spec = importlib.util.spec_from_file_location("fine_tuning_benchmark", place)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where its dataclasses look for their module
    spec.loader.exec_module(module)
    return module


def test_the_benchmark_says_what_fine_tuning_costs_and_brings(
    benchmark: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    save(tmp_path / benchmark.BACKBONE, "ResNet")
    for number, domain in enumerate((benchmark.SUPPORT, *benchmark.QUERIES)):
        for label in ("day", "night"):
            folder = tmp_path / benchmark.PICTURES / domain / label
            folder.mkdir(parents=True)
            for i in range(4):
                pixels = noise(1, 10 * number + i, side=40)[0].transpose(1, 2, 0) // (1 if label == "day" else 4)
                Image.fromarray(pixels).save(folder / f"{i}.png")
    words = ["fine_tuning.py", str(tmp_path), "--steps", "4", "--count", "6", "--batch", "4", "--device", "cpu"]
    monkeypatch.setattr(sys, "argv", [*words, "--json"])
    benchmark.main()
    said = json.loads(capsys.readouterr().out)
    assert said["pictures"] == {"dslr": 6, "amazon": 6, "webcam": 6}
    assert [(each["finetune"], each["precision"]) for each in said["speeds"]] == [
        (part, precision) for part in ("last 1", "all") for precision in ("float32", "bfloat16")
    ]
    assert all(each["steps_a_second"] > 0 for each in said["speeds"])
    assert set(said["learned"]) == {"frozen features", "fine-tuned, last 1", "fine-tuned, all"}
    for scores in said["learned"].values():
        assert scores["replay"]["first"] == scores["no replay"]["first"]
    held = {name: of["dslr→amazon"] for name, of in said["bytes"].items()}
    differ = {
        part: sum(w.nbytes for w in pretrained(tmp_path / benchmark.BACKBONE, part).parameters()) for part in ("last 1", "all")
    }
    assert held["fine-tuned, all"] - held["fine-tuned, last 1"] == differ["all"] - differ["last 1"]
    monkeypatch.setattr(sys, "argv", [*words, "--finetune", "none"])
    benchmark.main()
    printed = capsys.readouterr().out
    (of_rows,) = re.findall(r"^ +steps .*$", printed, flags=re.MULTILINE)
    assert re.split("   +", of_rows.strip()) == [
        "steps", "amazon, given", "amazon after webcam, given", "webcam, given", "both, unknown", "seconds",
    ]  # fmt: skip
    assert re.search(r"^fine-tuned, none, no replay +4 ( +[0-9.]+){5}$", printed, flags=re.MULTILINE)
    assert "transductive, scored at the last step, seed 0" in printed


def test_the_benchmark_prints_the_steps_of_each_row_where_they_differ(benchmark: ModuleType) -> None:
    scores = {"first": 0.5, "first_after_second": 0.4, "second": 0.3, "unknown": 0.2}
    said = {
        "device": "cpu", "torch": "2", "pictures": {}, "steps": 300, "speeds": [], "backbone alone": {}, "bytes": {},
        "protocol": {"queries": "transductive", "selection": "last step", "seeds": [0]},
        "source-only": {"a": 0.1, "b": 0.2}, "learned": {"frozen": {"replay": scores}, "tuned": {"replay": scores}},
        "updates": {"frozen": 1500, "tuned": 300}, "seconds": {"frozen": 1.0, "tuned": 2.0},
    }  # fmt: skip
    rows = {line.split(",")[0]: line.split()[2] for line in benchmark.told(said) if line.startswith(("frozen", "tuned"))}
    assert rows == {"frozen": "1500", "tuned": "300"}


def test_a_small_domain_leaves_the_others_of_the_benchmark_whole(benchmark: ModuleType) -> None:
    counts = {"dslr": 2, "amazon": 9, "webcam": 5}
    pictures = [Picture(Path(f"{i}.png"), domain, "day") for domain, count in counts.items() for i in range(count)]
    chosen = benchmark.some_of(pictures, 6)
    assert Counter(each.domain for each in chosen) == {"dslr": 2, "amazon": 6, "webcam": 5}


# The real network


def test_the_last_stage_of_a_resnet50_is_fine_tuned_on_real_pictures(data: Path, tmp_path: Path) -> None:
    backbone, pictures = data / "backbones" / "resnet50-imagenet", data / "office31_images_small"
    for folder in (backbone, pictures):
        if not folder.exists():
            pytest.skip(f"{folder} is absent")
    files = {
        domain: [each for each in find(pictures).pictures if each.domain == domain and each.label in ("bike", "mug", "monitor")]
        for domain in ("dslr", "amazon")
    }
    rows = {domain: PictureBackbone(backbone).rows([each.file for each in some]) for domain, some in files.items()}
    y = np.array([each.label for each in files["dslr"]])
    environment = Environment("D→A", Support(rows["dslr"], y), Query(rows["amazon"]))
    config = VariationalConfig(
        backbone=str(backbone), finetune="last 1", warm_up=1, steps=3, batch=4, latent=64, features=128, width=64
    )
    learner = VariationalLearner(config)
    learner.learn(environment, checkpoint=tmp_path, every=2, progress=False)
    network, before = network_of(learner), weights(pretrained(backbone))
    changed = {name for name, weight in weights(network).items() if not torch.equal(weight, before[name])}
    assert changed == {name for name in before if name.startswith("network.encoder.stages.3.") and "running" not in name} - {
        name for name in before if name.endswith("num_batches_tracked")
    }
    trained = sum(parameter.nbytes for parameter in network.parameters())
    assert trained == 4 * 14_964_736  # of 94 MB
    assert 0 < learner.bytes_held["D→A"] - trained < 2e6
    together = learner.predict_proba(rows["amazon"])
    np.testing.assert_allclose(together[:1], learner.predict_proba(rows["amazon"][:1]), atol=1e-4)
    np.testing.assert_array_equal(VariationalLearner.load(tmp_path).predict_proba(rows["amazon"]), together)
