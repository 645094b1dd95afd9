"""Pretrained networks: found by name, told apart by what they hold, run where and how it is sensible."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from PIL import Image
from safetensors.torch import load_file, save_file
from tiny_backbones import MAKERS, SIDE, save

from perdure import InputError
from perdure.inputs import backbones
from perdure.inputs.backbones import Running, find_files, identify
from perdure.inputs.pictures import PictureBackbone, pretrained


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One network of each architecture."""
    root = tmp_path_factory.mktemp("backbones")
    return {name: save(root / name, name) for name in MAKERS}


@pytest.fixture
def vit(folders: dict[str, Path], tmp_path: Path) -> Path:
    """A copy to change."""
    return Path(shutil.copytree(folders["ViT"], tmp_path / "vit"))


def noise(height: int = 50, width: int = 61, seed: int = 0) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8))


# Architectures


@pytest.mark.parametrize("name", MAKERS)
def test_features_are_those_of_transformers_own_pipeline(folders: dict[str, Path], name: str) -> None:
    pictures = [noise(), noise(70, 44, seed=1)]
    backbone = PictureBackbone(folders[name], device="cpu")
    ours = backbone.encode([backbone.prepare(b"", picture) for picture in pictures])
    with backbones.quiet_transformers():
        processor = transformers.AutoImageProcessor.from_pretrained(folders[name])
        model = transformers.AutoModel.from_pretrained(folders[name]).eval()
    pixels = processor(pictures, return_tensors="pt")["pixel_values"]
    assert pixels.shape == (2, 3, SIDE, SIDE)
    with torch.no_grad():
        theirs = getattr(model, "vision_model", model)(pixel_values=pixels).pooler_output.flatten(1)
    assert ours.dtype == torch.float32
    assert theirs.std(dim=0).max() > 1e-2  # it can tell the two pictures apart
    torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("kind", ["Bit", "CLIP", "ConvNext", "ViT", "DeiT", "Beit", "Siglip"])
def test_what_a_file_does_not_say_is_what_transformers_does(vit: Path, kind: str) -> None:
    said = {"image_processor_type": f"{kind}ImageProcessor", "image_mean": [0.5] * 3, "image_std": [0.5] * 3}
    said["size"] = (
        40 if kind in ("Bit", "CLIP", "ViT") else {"shortest_edge": 40} if kind == "ConvNext" else {"height": 40, "width": 44}
    )
    if kind in ("Bit", "CLIP", "DeiT"):
        said["crop_size"] = 36
    (vit / "preprocessor_config.json").write_text(json.dumps(said))
    with backbones.quiet_transformers():
        processor = transformers.AutoImageProcessor.from_pretrained(vit)
    for picture in (noise(), noise(44, 80), noise(80, 44)):
        theirs = processor(picture, return_tensors="np")["pixel_values"][0]
        ours = PictureBackbone(vit).preprocessing.pixels(picture).transpose(2, 0, 1) / 127.5 - 1
        np.testing.assert_allclose(ours, theirs, atol=1e-5)


def test_a_large_convnext_squeezes_instead_of_cropping(vit: Path) -> None:
    said = {"image_processor_type": "ConvNextImageProcessor", "image_mean": [0.5] * 3, "image_std": [0.5] * 3, "size": 384}
    (vit / "preprocessor_config.json").write_text(json.dumps(said))
    with backbones.quiet_transformers():
        theirs = transformers.AutoImageProcessor.from_pretrained(vit)(noise(), return_tensors="np")["pixel_values"][0]
    ours = PictureBackbone(vit).preprocessing.pixels(noise()).transpose(2, 0, 1) / 127.5 - 1
    np.testing.assert_allclose(ours, theirs, atol=1e-5)


def test_without_a_pooler_of_its_own_a_vit_gives_its_class_token(vit: Path) -> None:
    stored = load_file(vit / "model.safetensors")
    kept = {name: tensor for name, tensor in stored.items() if not name.startswith("pooler.")}
    assert len(kept) < len(stored)
    save_file(kept, vit / "model.safetensors", {"format": "pt"})
    network = pretrained(vit).eval()
    x = torch.rand(2, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        token = network.network(pixel_values=(x - network.mean) / network.std).last_hidden_state[:, 0]
        torch.testing.assert_close(network(x), token)


def test_of_clip_only_the_half_that_sees_is_kept(folders: dict[str, Path]) -> None:
    assert type(pretrained(folders["CLIP"]).network).__name__ == "CLIPVisionModel"
    assert type(pretrained(folders["SigLIP"]).network).__name__ == "SiglipVisionModel"


def test_a_network_that_is_not_whole_or_damaged_is_refused(vit: Path) -> None:
    stored = load_file(vit / "model.safetensors")
    name = "layernorm.weight"
    for also in ("none", "pooler."):
        kept = {key: value for key, value in stored.items() if key != name and not key.startswith(also)}
        save_file(kept, vit / "model.safetensors", {"format": "pt"})
        with pytest.raises(InputError, match=rf"lacks some of its network's weights, such as {name}\."):
            pretrained(vit)
    (vit / "model.safetensors").write_bytes(b"damaged")
    with pytest.raises(InputError, match="holds no network that can be used: "):
        pretrained(vit)


def test_half_precision_is_close_and_exact_is_exact(folders: dict[str, Path]) -> None:
    exact, half = (PictureBackbone(folders["DINOv2"], device="cpu", precision=p) for p in ("float32", "bfloat16"))
    prepared = [exact.prepare(b"", noise(seed=seed)) for seed in range(3)]
    full = exact.encode(prepared)
    assert half.encode(prepared).dtype == torch.float32
    assert not torch.equal(half.encode(prepared), full)
    torch.testing.assert_close(half.encode(prepared), full, atol=0.1, rtol=0.1)
    torch.testing.assert_close(half.encode(prepared, exact=True), full)


# By name


def test_a_folder_that_is_no_network_is_said_to_be_none(tmp_path: Path, vit: Path) -> None:
    (tmp_path / "empty").mkdir()
    lacks = r"it has no config\.json and no preprocessor_config\.json and no model\.safetensors\."
    with pytest.raises(InputError, match=rf"empty is not the folder of a network for pictures: {lacks}"):
        find_files(tmp_path / "empty", "pictures")
    (vit / "model.safetensors").rename(vit / "pytorch_model.bin")
    with pytest.raises(InputError, match=r"it has no model\.safetensors\."):
        find_files(vit, "pictures")


@pytest.mark.parametrize("name", ["facebook/no-such-model", "no-such-model"])
def test_a_name_that_is_not_here_offline_is_one_sentence(name: str) -> None:
    with pytest.raises(InputError) as caught:
        PictureBackbone(name)
    assert str(caught.value).startswith(f"There is no backbone {name}: no folder has this name here, and it could not be fetched")
    assert str(caught.value).endswith("Check its spelling and your network, or give a folder.")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["no/such/folder", "./backbone", "/nowhere/backbone"])
def test_what_can_only_be_a_folder_is_not_looked_for_elsewhere(name: str) -> None:
    with pytest.raises(InputError, match="it is no folder, and no name on the Hugging Face hub"):
        find_files(name, "pictures")


def test_what_was_fetched_once_is_found_without_a_network(vit: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub
    from huggingface_hub import constants

    place = tmp_path / "hub" / "models--someone--vit"
    shutil.copytree(vit, place / "snapshots" / "0123456789abcdef")
    (place / "refs").mkdir()
    (place / "refs" / "main").write_text("0123456789abcdef")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    fetch, asked = huggingface_hub.snapshot_download, list[bool]()

    def watched(name: str, *, allow_patterns: list[str], local_files_only: bool = False) -> str:
        asked.append(local_files_only)
        return str(fetch(name, allow_patterns=allow_patterns, local_files_only=local_files_only))

    monkeypatch.setattr(huggingface_hub, "snapshot_download", watched)
    backbone = PictureBackbone("someone/vit")
    assert backbone.name == "someone/vit"
    assert backbone.folder == place / "snapshots" / "0123456789abcdef"
    assert backbone.identity == PictureBackbone(vit).identity
    assert asked == [True]
    (place / "snapshots" / "0123456789abcdef" / "model.safetensors").unlink()  # of what is not whole, the rest is fetched
    with pytest.raises(InputError, match=r"someone/vit|has no model\.safetensors"):
        PictureBackbone("someone/vit")
    assert asked == [True, True, False]


# What tells them apart


def test_the_same_files_elsewhere_are_the_same_backbone(vit: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(vit, tmp_path / "copy"))
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps({**config, "transformers_version": "4.50.0", "_name_or_path": "x"}, indent=7))
    (copy / "README.md").write_text("about it")
    assert identify(copy, "pictures") == identify(vit, "pictures")


@pytest.mark.parametrize("what", ["weights", "config", "preprocessing"])
def test_any_other_weight_size_or_preprocessing_is_another_backbone(vit: Path, what: str) -> None:
    before = identify(vit, "pictures")
    if what == "weights":
        stored = load_file(vit / "model.safetensors")
        stored["layernorm.bias"][3] += 1e-6
        save_file(stored, vit / "model.safetensors", {"format": "pt"})
    else:
        file = vit / ("config.json" if what == "config" else "preprocessor_config.json")
        said = json.loads(file.read_text())
        said |= {"layer_norm_eps": 1e-5} if what == "config" else {"resample": 0}
        file.write_text(json.dumps(said))
    after = identify(vit, "pictures")
    assert (before.network == after.network) == (what == "preprocessing")
    assert (before.preparation == after.preparation) == (what != "preprocessing")


def test_weights_in_parts_are_all_told_apart(vit: Path) -> None:
    stored = load_file(vit / "model.safetensors")
    (vit / "model.safetensors").unlink()
    names = sorted(stored)
    for number, part in enumerate((names[:9], names[9:]), 1):
        save_file({name: stored[name] for name in part}, vit / f"model-0000{number}-of-00002.safetensors", {"format": "pt"})
    places = {name: f"model-0000{1 if name in names[:9] else 2}-of-00002.safetensors" for name in names}
    (vit / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))
    before = identify(vit, "pictures").network
    pretrained(vit)  # is one that can be read
    stored[names[-1]] += 1
    save_file({name: stored[name] for name in names[9:]}, vit / "model-00002-of-00002.safetensors", {"format": "pt"})
    assert identify(vit, "pictures").network != before


# Where and how


def test_a_cpu_computes_in_full_precision_and_small_batches_unless_told_otherwise() -> None:
    assert Running.chosen("cpu", "auto", None, on_cpu=32, on_gpu=256) == Running("cpu", "float32", 32)
    assert Running.chosen("cpu", "bfloat16", 5, on_cpu=32, on_gpu=256) == Running("cpu", "bfloat16", 5)


def test_a_gpu_is_taken_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "empty", lambda *size, device: None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert Running.chosen("auto", "auto", None, on_cpu=32, on_gpu=256) == Running("mps", "float32", 256)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    for supported, precision in ((True, "bfloat16"), (False, "float16")):
        monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda supported=supported: supported)
        assert Running.chosen("auto", "auto", None, on_cpu=32, on_gpu=256) == Running("cuda", precision, 256)
    assert Running.chosen("cpu", "auto", None, on_cpu=32, on_gpu=256).device == "cpu"


def test_what_cannot_be_is_said() -> None:
    with pytest.raises(InputError, match=r"The device 'abacus' cannot be used here: "):
        Running.chosen("abacus", "auto", None, on_cpu=1, on_gpu=1)
    with pytest.raises(InputError, match="`batch` must be at least 1, got 0"):
        Running.chosen("cpu", "auto", 0, on_cpu=1, on_gpu=1)
    with pytest.raises(InputError, match="`precision` must be auto, float32, bfloat16 or float16, got 'int8'"):
        Running.chosen("cpu", "int8", None, on_cpu=1, on_gpu=1)  # type: ignore[arg-type]


@pytest.mark.parametrize("absent", ["transformers", "huggingface_hub"])
def test_without_its_packages_it_says_what_to_install(vit: Path, monkeypatch: pytest.MonkeyPatch, absent: str) -> None:
    monkeypatch.setitem(sys.modules, absent, None)
    with pytest.raises(InputError, match=r"need transformers .*pip install 'perdure\[images\]'"):
        pretrained(vit) if absent == "transformers" else PictureBackbone("facebook/dinov2-small")
