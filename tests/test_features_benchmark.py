"""The benchmark of features measures all of extraction beside the whole forward pass."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest
from PIL import Image
from tiny_backbones import save

from perdure.inputs import PictureBackbone
from perdure.inputs.folders import photos


@pytest.fixture(scope="module")
def benchmark() -> ModuleType:
    place = Path(__file__).resolve().parents[1] / "benchmarks" / "features.py"
    spec = importlib.util.spec_from_file_location("features_benchmark", place)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where its dataclass looks for its module
    spec.loader.exec_module(module)
    return module


def test_every_picture_passes_as_often_on_both_sides(
    benchmark: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for i in range(7):
        (tmp_path / "p").mkdir(exist_ok=True)
        Image.new("RGB", (40, 40), (i, 0, 0)).save(tmp_path / "p" / f"{i}.png")
    network = save(tmp_path / "resnet", "ResNet")
    passed = list[int]()
    pooled = PictureBackbone.network.fget
    backbone_of = benchmark.PictureBackbone

    def watched(self: PictureBackbone) -> object:
        made = pooled(self)
        if not hasattr(made, "watched"):
            made.network.register_forward_pre_hook(
                lambda module, args, kwargs: passed.append(len(kwargs["pixel_values"])), with_kwargs=True
            )
            made.watched = True
        return made

    monkeypatch.setattr(backbone_of, "network", property(watched))
    words = [str(tmp_path / "p"), "--backbone", str(network), "--batch", "3", "--rounds", "2", "--device", "cpu", "--json"]
    monkeypatch.setattr(sys, "argv", ["features.py", *words])
    benchmark.main()
    said = json.loads(capsys.readouterr().out)
    assert passed == [3, 3, 1] * (1 + 2 * 2)  # once before, then both in each round; what is known does not pass again
    assert (said["pictures"], said["device"], said["batch"]) == (7, "cpu", 3)
    assert said["ratio"] == pytest.approx(said["extraction"] / said["forward"])
    assert said["again"] > said["extraction"]


@pytest.mark.slow
def test_extraction_reaches_most_of_the_networks_own_speed(benchmark: ModuleType, data: Path) -> None:
    backbone = PictureBackbone(data / "backbones" / "resnet50-imagenet", device="cpu")
    speeds = benchmark.measure(photos(data / "office31_images_small").files[:64], backbone, rounds=3)
    assert speeds.ratio > 0.85
    assert speeds.again > 20 * speeds.extraction
