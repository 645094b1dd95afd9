"""Pictures and a network: what it expects of them, what it makes of real ones, how it is trained along."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from perdure import InputError, VariationalConfig, VariationalLearner
from perdure.experiments import backbones, reproduce
from perdure.experiments.ledger import Planned
from perdure.inputs.extraction import extract
from perdure.inputs.folders import find
from perdure.inputs.pictures import PictureBackbone, Preprocessing, PretrainedNetwork, open_picture
from perdure.scenarios import folder as folder_scenario

BACKBONE, SMALL, STORED = "backbones/resnet50-imagenet", "office31_images_small", "office31_resnet50.npz"
PREPROCESSING: dict[str, Any] = {
    "image_processor_type": "BitImageProcessor",
    "size": {"shortest_edge": 8},
    "crop_size": {"height": 6, "width": 6},
    "resample": 2,
    "rescale_factor": 1 / 255,
    "image_mean": [0.5, 0.25, 0.0],
    "image_std": [0.5, 0.25, 0.125],
}


# What a network expects


@pytest.fixture
def backbone(tmp_path: Path) -> Path:
    """A folder that looks like a pretrained network's."""
    made = tmp_path / "backbone"
    made.mkdir()
    (made / "config.json").write_text("{}")
    (made / "preprocessor_config.json").write_text(json.dumps(PREPROCESSING))
    (made / "model.safetensors").write_bytes(b"weights")
    return made


def test_preprocessing_is_read(backbone: Path) -> None:
    assert Preprocessing.read(backbone) == Preprocessing(8, (6, 6), 2, (0.5, 0.25, 0.0), (0.5, 0.25, 0.125))


def test_mean_and_deviation_are_of_pixels_from_0_to_1_whatever_they_are_stored_for(backbone: Path) -> None:
    stored = {**PREPROCESSING, "rescale_factor": 2 / 255}  # from 0 to 2
    (backbone / "preprocessor_config.json").write_text(json.dumps(stored))
    assert Preprocessing.read(backbone).mean == (0.25, 0.125, 0.0)
    assert Preprocessing.read(backbone).std == (0.25, 0.125, 0.0625)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"image_processor_type": "DetrImageProcessor"}, "DetrImageProcessor is none of those known: Bit, CLIP, ConvNext, ViT"),
        ({"image_processor_type": None}, "None is none of those known"),
        ({"do_center_crop": False}, "pictures would differ in size"),
        ({"do_rescale": False}, "it leaves out rescaling"),
        ({"crop_size": {"height": 9, "width": 9}}, r"a crop of \(9, 9\) does not fit into a size of 8"),
        ({"crop_size": {"height": 0, "width": 6}}, "does not fit"),
        ({"image_std": [0.5, 0.5]}, "three numbers each"),
        ({"image_std": [0.5, 0.5, 0.0]}, "deviations above zero"),
        ({"rescale_factor": 0}, "ZeroDivisionError"),
        ({"size": {"longest_edge": 8}}, "KeyError"),
    ],
)
def test_preprocessing_of_another_kind_is_refused(backbone: Path, change: dict[str, Any], why: str) -> None:
    (backbone / "preprocessor_config.json").write_text(json.dumps({**PREPROCESSING, **change}))
    with pytest.raises(InputError, match=f"preprocessor_config.json does not say how to resize.* in a way that is known .*{why}"):
        Preprocessing.read(backbone)


def test_preprocessing_beside_that_of_text_is_found(backbone: Path) -> None:
    (backbone / "preprocessor_config.json").unlink()
    with pytest.raises(InputError, match=r"does not say what its network expects: it has no preprocessor_config\.json"):
        Preprocessing.read(backbone)
    (backbone / "processor_config.json").write_text(json.dumps({"image_processor": PREPROCESSING, "processor_class": "X"}))
    assert Preprocessing.read(backbone).resize == 8


def test_colours_may_be_left_as_they_are(backbone: Path) -> None:
    (backbone / "preprocessor_config.json").write_text(json.dumps({**PREPROCESSING, "do_normalize": False}))
    assert (Preprocessing.read(backbone).mean, Preprocessing.read(backbone).std) == ((0.0,) * 3, (1.0,) * 3)


class Corners(nn.Module):
    """Stands in for a network: its features are colours in the corners. Counts the pictures it sees."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(3)
        self.seen = 0

    def forward(self, pixel_values: Tensor) -> SimpleNamespace:
        self.seen += len(pixel_values)
        return SimpleNamespace(pooler_output=self.norm(pixel_values)[:, :, [0, -1]][..., [0, -1]])


def test_colours_are_normalised_as_is_said() -> None:
    network = PretrainedNetwork(Corners(), Preprocessing(8, (6, 6), 2, (0.5, 0.25, 0.0), (0.5, 0.25, 0.125)))
    x = torch.ones(1, 3, 6, 6) * torch.tensor([1.0, 0.0, 0.25])[:, None, None]
    expected = torch.tensor([1.0, -1.0, 2.0]).repeat_interleave(4)  # (1 - 1/2) / (1/2); (0 - 1/4) / (1/4); (1/4 - 0) / (1/8)
    torch.testing.assert_close(network(x)[0], expected, atol=1e-4, rtol=0)


def test_rows_do_not_influence_each_other_while_learning() -> None:
    network = PretrainedNetwork(Corners(), Preprocessing(8, (6, 6), 2, (0.5,) * 3, (0.5,) * 3)).train()
    x = torch.rand(5, 3, 6, 6, generator=torch.Generator().manual_seed(0))
    assert network.training
    torch.testing.assert_close(network(x)[:1], network(x[:1]))
    assert network.network.norm.num_batches_tracked == 0
    network(x).sum().backward()
    assert network.network.norm.weight.grad.abs().sum() > 0


# The real network


@pytest.fixture(scope="session")
def resnet50(data: Path) -> Path:
    pytest.importorskip("transformers", reason="transformers is not installed: pip install 'perdure[images]'")
    for name in (BACKBONE, SMALL, STORED):
        if not (data / name).exists():
            pytest.skip(f"{data / name} is absent")
    return data / BACKBONE


def test_features_are_close_to_those_of_the_larger_originals(data: Path, resnet50: Path) -> None:
    some = find(data / SMALL).pictures[::163]
    x = extract([each.file for each in some], PictureBackbone(resnet50, device="cpu"), progress=False).x
    with np.load(data / STORED) as theirs:
        place = {path: row for row, path in enumerate(theirs["paths"].tolist())}
        originals = theirs["X"].astype(float)[[place[each.path] for each in some]]
    cosine = (x @ originals.T) / np.linalg.norm(x, axis=1)[:, None] / np.linalg.norm(originals, axis=1)
    assert np.diag(cosine).mean() > 0.9  # 0.94 over all 651; that of different pictures is 0.35
    assert cosine.argmax(axis=1).tolist() == list(range(len(x)))


def test_features_are_those_of_transformers_own_pipeline(data: Path, resnet50: Path) -> None:
    processor = pytest.importorskip("transformers.models.bit.image_processing_pil_bit").BitImageProcessorPil.from_pretrained(
        resnet50
    )
    backbone = PictureBackbone(resnet50, device="cpu")
    files = [each.file for each in find(data / SMALL).pictures[::330]]
    ours = backbone.encode([backbone.prepare(backbone.content(file), file) for file in files])
    with torch.inference_mode():
        pixels = processor([open_picture(file, file) for file in files], return_tensors="pt")["pixel_values"]
        theirs = backbone.network.network(pixel_values=pixels).pooler_output.flatten(1)
    torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)


def test_a_resnet50_is_fine_tuned_on_pictures(
    data: Path, resnet50: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PERDURE_BACKBONE", str(resnet50))
    for domain in ("amazon", "webcam"):
        for label in ("bike", "mug"):
            files = [each.file for each in find(data / SMALL).pictures if (each.domain, each.label) == (domain, label)]
            for file in files[:3]:
                (tmp_path / domain / label).mkdir(parents=True, exist_ok=True)
                (tmp_path / domain / label / file.name).symlink_to(file)
    (environment,) = folder_scenario(tmp_path, "amazon", ["webcam"], size=64).environments
    config = VariationalConfig(latent=8, features=16, width=16, warm_up=1, steps=2, batch=4, replay_batch=4)
    learner = VariationalLearner(config, backbone=backbones.BACKBONES["resnet50"])
    learned = learner.learn(environment, progress=False)
    assert learned.steps == 3
    assert all(np.isfinite(value) for value in learned.losses.values())
    networks = (backbones.resnet50(), learner.snapshots[0].inference.encode.backbone)
    before, after = ({**dict(each.named_parameters()), **dict(each.named_buffers())} for each in networks)
    same = {name for name in before if torch.equal(before[name], after[name])}
    statistics = {name for name in before if name.endswith(("running_mean", "running_var", "num_batches_tracked"))}
    assert len(statistics) == 3 * 53  # the batch norms of a ResNet-50
    assert same == statistics | {"mean", "std"}  # all else has learned
    together = learner.predict_proba(environment.query.x)
    alone = np.concatenate([learner.predict_proba(row[None]) for row in environment.query.x])
    np.testing.assert_allclose(together, alone, atol=1e-5)


def test_nothing_is_imported_before_it_is_needed() -> None:
    code = "import sys, perdure.experiments.ledger, perdure.inputs, perdure.scenarios, perdure.cli; "
    code += "print({'PIL', 'transformers', 'huggingface_hub', 'datasets'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "set()\n"


def test_resnet50_without_a_folder_says_where_it_is_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PERDURE_BACKBONE", raising=False)
    monkeypatch.setenv("PERDURE_DATA", str(tmp_path))
    with pytest.raises(InputError, match=rf"backbones/resnet50-imagenet is not in {tmp_path}\. Set PERDURE_DATA"):
        backbones.resnet50()


def test_the_papers_table_on_pictures_is_the_papers_budget() -> None:
    table = reproduce.load(reproduce.find_folder(), "office-home-domains-fine-tuned")
    runs = [task.planned for _, task in table.tasks()]
    for run in runs:
        assert Planned.from_json(json.loads(json.dumps(run.to_json()))).key == run.key
        assert (run.method.backbone, run.place.source) == ("resnet50", "pictures.office_home_domains")
        assert (run.method.config.warm_up, run.method.config.steps, run.method.config.hypothesis_rate) == (500, 5000, 4e-3)
        assert run.updates == 3 * 5500
    assert len({run.key for run in runs}) == 8 * 3 + 4 + 8  # three rows in both orders, one that has none, and ours inductive
