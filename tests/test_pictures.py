"""Pictures: found in folders, turned into features that can be stopped and continued, or shown as pixels to a network."""

from __future__ import annotations

import fcntl
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from perdure import InputError, VariationalConfig, VariationalLearner
from perdure.experiments import backbones, reproduce
from perdure.experiments.ledger import Place, Planned
from perdure.inputs import pictures as inputs
from perdure.inputs.pictures import Preprocessing, PretrainedNetwork, extract, kept, partial_file, pretrained
from perdure.scenarios import frozen
from perdure.scenarios.pictures import centre, domains, find, office_home_domains

BACKBONE, SMALL, STORED = "backbones/resnet50-imagenet", "office31_images_small", "office31_resnet50.npz"
PREPROCESSING: dict[str, Any] = {
    "size": {"shortest_edge": 8},
    "crop_size": {"height": 6, "width": 6},
    "resample": 2,
    "rescale_factor": 1 / 255,
    "image_mean": [0.5, 0.25, 0.0],
    "image_std": [0.5, 0.25, 0.125],
}


def draw(file: Path, colour: tuple[int, int, int] | int = (10, 20, 30), size: tuple[int, int] = (9, 8)) -> Path:
    """A picture of one colour."""
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, (colour,) * 3 if isinstance(colour, int) else colour).save(file)
    return file


def noise(file: Path, height: int, width: int) -> np.ndarray:
    """A picture that nothing was lost of, and its pixels."""
    pixels = np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(file)
    return pixels


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two domains laid out as Office-31 (with `images`) and Office-Home (without); a picture's grey is its number."""
    root = tmp_path / "pictures"
    for number, (label, name) in enumerate([("cat", "1.png"), ("cat", "2.png"), ("dog", "1.png"), ("dog", "2.png")]):
        draw(root / "amazon" / "images" / label / name, 10 * number)
        draw(root / "Real World" / label / name, 100 + 10 * number)
    return root


# Folders


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
    with pytest.raises(InputError, match=r"nowhere is not a folder\."):
        find(folder / "nowhere")


# Pixels


@pytest.mark.parametrize(
    ("height", "width", "rows", "columns"),
    [(8, 13, slice(1, 7), slice(3, 9)), (13, 8, slice(3, 9), slice(1, 7)), (8, 8, slice(1, 7), slice(1, 7))],
)
def test_the_middle_is_cut_out(tmp_path: Path, height: int, width: int, rows: slice, columns: slice) -> None:
    pixels = noise(tmp_path / "x.png", height, width)
    seen = centre(tmp_path / "x.png", short=8, crop=6)  # the short side is 8 already, so that nothing is resized
    np.testing.assert_array_equal(seen, pixels[rows, columns])


def test_the_short_side_is_resized_and_the_other_in_proportion(tmp_path: Path) -> None:
    file = draw(tmp_path / "x.png", 0, (40, 20))  # left half black, right half white
    picture = Image.open(file)
    picture.paste((255, 255, 255), (20, 0, 40, 20))
    picture.save(file)
    seen = centre(file, short=10, crop=10)  # 20 x 10, of which columns 5 to 15 are kept: five black, five white
    assert (seen[:, :4] == 0).all()
    assert (seen[:, 6:] == 255).all()


@pytest.mark.parametrize("content", [b"", b"no picture", b"\x89PNG\r\n\x1a\n cut off", b"\xff\xd8\xff\xe0"])
def test_an_unreadable_picture_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "bad.png").write_bytes(content)
    with pytest.raises(InputError, match=rf"^{tmp_path}/bad\.png cannot be read as a picture \(.*Replace it or take it out"):
        centre(tmp_path / "bad.png", short=8, crop=8)


def test_a_picture_that_breaks_off_is_named(tmp_path: Path) -> None:
    noise(tmp_path / "whole.jpg", 64, 64)
    (tmp_path / "half.jpg").write_bytes((tmp_path / "whole.jpg").read_bytes()[:900])
    with pytest.raises(InputError, match=r"half\.jpg cannot be read as a picture \(OSError: .*truncated"):
        centre(tmp_path / "half.jpg", short=8, crop=8)


# Scenarios of pixels


def test_domains_are_environments_of_pixels(folder: Path) -> None:
    scenario = domains(folder, "amazon", ("Real World",), size=4)
    (environment,) = scenario.environments
    assert environment.name == "amazon→Real World"
    assert environment.support.x.shape == environment.query.x.shape == (4, 3, 4, 4)
    assert environment.support.y.tolist() == scenario.answers.transductive[environment.name].tolist() == ["cat"] * 2 + ["dog"] * 2
    np.testing.assert_array_equal(environment.support.x[:, 0, 0, 0], np.float32([0, 10, 20, 30]) / np.float32(255))
    np.testing.assert_array_equal(environment.query.x[:, 2, 3, 3], np.float32([100, 110, 120, 130]) / np.float32(255))


def test_channels_are_red_green_blue(folder: Path) -> None:
    draw(folder / "amazon" / "images" / "cat" / "1.png", (51, 102, 255))
    x = domains(folder, "amazon", ("Real World",), size=2).environments[0].support.x
    np.testing.assert_allclose(x[0, :, 1, 1], [0.2, 0.4, 1.0], rtol=1e-6)


def test_classes_can_be_chosen_and_must_be_in_every_domain(folder: Path) -> None:
    draw(folder / "amazon" / "images" / "yak" / "1.png")
    with pytest.raises(InputError, match=r"Real World has no pictures of the classes \['yak'\]\. Name `classes`"):
        domains(folder, "amazon", ("Real World",), size=4)
    chosen = domains(folder, "Real World", ("amazon",), ["cat", "dog"], size=4).environments[0]
    assert (chosen.support.classes, len(chosen.query.x)) == (["cat", "dog"], 4)
    with pytest.raises(InputError, match=r"no pictures of the domains \['dslr'\]; it has Real World, amazon\."):
        domains(folder, "dslr", ("amazon",), size=4)
    with pytest.raises(InputError, match="`size` must be positive, got 0"):
        domains(folder, "amazon", ("Real World",), ["cat"], size=0)
    with pytest.raises(InputError, match="names an environment twice"):
        domains(folder, "amazon", ("Real World",) * 2, ["cat", "dog"], size=4)


def test_the_same_halves_are_kept_aside_as_of_features_of_the_same_pictures(tmp_path: Path) -> None:
    numbers = np.arange(24, dtype=np.float32)
    labels, places = np.array(["cat", "dog"]).repeat(6), np.array(["Art", "Clipart"]).repeat(12)
    for number in range(24):
        draw(tmp_path / "Art Clipart".split()[number // 12] / ["cat", "dog"][number // 6 % 2] / f"{number:02}.png", number)
    features = frozen.FrozenFeatures(numbers[:, None], np.tile(labels, 2), places)
    for seed in (0, 1):
        step = frozen.Step("e", "Art", "Clipart", ["cat", "dog"])
        expected = frozen.scenario("features", features, [step], inductive=True, seed=seed)
        scenario = domains(tmp_path, "Art", ("Clipart",), size=2, inductive=True, seed=seed)
        shown, aside = scenario.environments[0].query.x, scenario.answers.inductive["Art→Clipart"]
        assert (255 * shown[:, 0, 0, 0]).round().tolist() == expected.environments[0].query.x[:, 0].tolist()
        assert (255 * aside.x[:, 0, 0, 0]).round().tolist() == expected.answers.inductive["e"].x[:, 0].tolist()
        assert aside.y.tolist() == expected.answers.inductive["e"].y.tolist()
        assert scenario.answers.transductive["Art→Clipart"].tolist() == expected.answers.transductive["e"].tolist()


def test_office_home_is_found_by_its_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PERDURE_PICTURES", raising=False)
    with pytest.raises(InputError, match="set PERDURE_PICTURES to the folder that holds Art, Clipart, Product, Real World"):
        office_home_domains("Ar", ("Cl",))
    with pytest.raises(InputError, match=r"No domains of Office-Home are called \['Art'\]\. Known: Ar, Cl, Pr, Rw\."):
        office_home_domains("Art", ("Cl",))
    monkeypatch.setenv("PERDURE_PICTURES", str(tmp_path))
    for number, domain in enumerate(("Art", "Clipart", "Product", "Real World")):
        draw(tmp_path / domain / "Alarm_Clock" / "00001.jpg", number)
        draw(tmp_path / domain / "Bed" / "00001.jpg", 100 + number)
    scenario = Place("pictures.office_home_domains", ("Ar", ("Rw", "Cl"))).scenario(inductive=False)
    assert [environment.name for environment in scenario.environments] == ["Ar→Rw", "Ar→Cl"]
    assert scenario.environments[0].support is scenario.environments[1].support
    assert scenario.environments[0].query.x.shape == (2, 3, 224, 224)
    assert (255 * scenario.environments[0].query.x.mean(axis=(1, 2, 3))).round().tolist() == [3, 103]


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
    assert Preprocessing.read(backbone) == Preprocessing(8, 6, 2, (0.5, 0.25, 0.0), (0.5, 0.25, 0.125))


def test_mean_and_deviation_are_of_pixels_from_0_to_1_whatever_they_are_stored_for(backbone: Path) -> None:
    stored = {**PREPROCESSING, "rescale_factor": 2 / 255}  # from 0 to 2
    (backbone / "preprocessor_config.json").write_text(json.dumps(stored))
    assert Preprocessing.read(backbone).mean == (0.25, 0.125, 0.0)
    assert Preprocessing.read(backbone).std == (0.25, 0.125, 0.0625)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"size": {"height": 8, "width": 8}}, "KeyError: 'shortest_edge'"),
        ({"do_center_crop": False}, "it leaves out one of resize, center_crop"),
        ({"crop_size": {"height": 9, "width": 9}}, "does not fit into a short side of 8"),
        ({"image_std": [0.5, 0.5]}, "three numbers each"),
        ({"rescale_factor": 0}, "ZeroDivisionError"),
    ],
)
def test_preprocessing_of_another_kind_is_refused(backbone: Path, change: dict[str, Any], why: str) -> None:
    (backbone / "preprocessor_config.json").write_text(json.dumps({**PREPROCESSING, **change}))
    with pytest.raises(InputError, match=f"preprocessor_config.json does not say how to resize .*{why}"):
        Preprocessing.read(backbone)


class Corners(nn.Module):
    """Stands in for a network: its features are colours in the corners. Counts the pictures it sees."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(3)
        self.seen = 0

    def forward(self, pixel_values: Tensor) -> SimpleNamespace:
        self.seen += len(pixel_values)
        return SimpleNamespace(pooler_output=self.norm(pixel_values)[:, :, [0, -1]][..., [0, -1]])


@pytest.fixture
def corners(monkeypatch: pytest.MonkeyPatch) -> Corners:
    network = Corners()
    monkeypatch.setattr(inputs, "pretrained", lambda path: PretrainedNetwork(network, Preprocessing.read(path)))
    return network


def test_colours_are_normalised_as_is_said() -> None:
    network = PretrainedNetwork(Corners(), Preprocessing(8, 6, 2, (0.5, 0.25, 0.0), (0.5, 0.25, 0.125)))
    x = torch.ones(1, 3, 6, 6) * torch.tensor([1.0, 0.0, 0.25])[:, None, None]
    expected = torch.tensor([1.0, -1.0, 2.0]).repeat_interleave(4)  # (1 - 1/2) / (1/2); (0 - 1/4) / (1/4); (1/4 - 0) / (1/8)
    torch.testing.assert_close(network(x)[0], expected, atol=1e-4, rtol=0)


def test_rows_do_not_influence_each_other_while_learning() -> None:
    network = PretrainedNetwork(Corners(), Preprocessing(8, 6, 2, (0.5,) * 3, (0.5,) * 3)).train()
    x = torch.rand(5, 3, 6, 6, generator=torch.Generator().manual_seed(0))
    assert network.training
    torch.testing.assert_close(network(x)[:1], network(x[:1]))
    assert network.network.norm.num_batches_tracked == 0
    network(x).sum().backward()
    assert network.network.norm.weight.grad.abs().sum() > 0


def test_answers_do_not_depend_on_how_many_go_through_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inputs, "AT_ONCE", 2)
    network = PretrainedNetwork(Corners(), Preprocessing(8, 6, 2, (0.5,) * 3, (0.5,) * 3))
    x = torch.rand(5, 3, 6, 6, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        torch.testing.assert_close(network(x), network(x[:, :]).clone())
        assert network(x).shape == (5, 12)
    torch.testing.assert_close(network(x).detach(), torch.cat([network(x[i : i + 1]).detach() for i in range(5)]))


# From a folder to a file


def stop_after(pictures: int) -> Callable[[int, int], None]:
    def report(done: int, total: int) -> None:
        if done >= pictures:
            raise KeyboardInterrupt

    return report


def test_features_are_written_in_the_form_that_is_read(folder: Path, backbone: Path, corners: Corners, tmp_path: Path) -> None:
    out = tmp_path / "out.npz"
    done = extract(folder, out, backbone=backbone, batch=3, progress=False)
    assert (done.pictures, done.features, done.domains, done.classes) == (8, 12, ["Real World", "amazon"], ["cat", "dog"])
    with np.load(out, allow_pickle=False) as stored:
        assert {name: stored[name].dtype.str for name in stored.files} == {
            "X": "<f2", "y": "<i2", "domain": "|i1", "domain_names": "<U10", "class_names": "<U3", "paths": "<U20",
        }  # fmt: skip
        assert stored["paths"].tolist() == [picture.path for picture in find(folder).pictures]
        assert stored["y"].tolist() == [0, 0, 1, 1] * 2
        assert stored["domain"].tolist() == [0] * 4 + [1] * 4
    features = frozen.load(out)
    # a red of 100 is (100 / 255 - 0.5) / 0.5 normalised, and the same in all four corners
    np.testing.assert_allclose(features.x[0, :4], (100 / 255 - 0.5) / 0.5, rtol=1e-3)
    assert features.rows("amazon", ["dog"]).tolist() == [6, 7]
    assert not partial_file(out).exists()


@pytest.mark.parametrize("stopped_at", [3, 6])
def test_stopped_and_continued_is_the_same_file_and_nothing_is_done_twice(
    folder: Path, backbone: Path, corners: Corners, tmp_path: Path, stopped_at: int
) -> None:
    whole, out = tmp_path / "whole.npz", tmp_path / "out.npz"
    extract(folder, whole, backbone=backbone, batch=3, progress=False)
    with pytest.raises(KeyboardInterrupt):
        extract(folder, out, backbone=backbone, batch=3, progress=stop_after(stopped_at))
    assert not out.exists()
    assert kept(out) == stopped_at
    corners.seen, reports = 0, list[tuple[int, int]]()
    extract(folder, out, backbone=backbone, batch=3, progress=lambda *step: reports.append(step))
    assert corners.seen == 1 + 8 - stopped_at  # one to see how many features there are
    assert reports[-1] == (8, 8)
    assert reports[0][0] > stopped_at
    assert out.read_bytes() == whole.read_bytes()
    assert kept(out) == 0


def test_what_a_kill_left_of_a_record_is_done_again(folder: Path, backbone: Path, corners: Corners, tmp_path: Path) -> None:
    whole, out = tmp_path / "whole.npz", tmp_path / "out.npz"
    extract(folder, whole, backbone=backbone, batch=2, progress=False)
    with pytest.raises(KeyboardInterrupt):
        extract(folder, out, backbone=backbone, batch=2, progress=stop_after(4))
    with open(partial_file(out), "r+b") as file:
        file.truncate(file.seek(0, 2) - 5)
    assert kept(out) == 3
    with pytest.raises(KeyboardInterrupt):
        extract(folder, out, backbone=backbone, batch=2, progress=stop_after(5))
    corners.seen = 0
    extract(folder, out, backbone=backbone, batch=2, progress=False)
    assert corners.seen == 1 + 3
    assert out.read_bytes() == whole.read_bytes()


def test_an_unreadable_picture_costs_nothing_that_was_done(
    folder: Path, backbone: Path, corners: Corners, tmp_path: Path
) -> None:
    out, bad = tmp_path / "out.npz", folder / "amazon" / "images" / "dog" / "1.png"
    bad.write_bytes(b"broken")
    with pytest.raises(InputError, match=rf"^{bad} cannot be read"):
        extract(folder, out, backbone=backbone, batch=2, progress=False)
    assert (out.exists(), kept(out)) == (False, 6)
    bad.unlink()
    corners.seen = 0
    assert extract(folder, out, backbone=backbone, batch=2, progress=False).pictures == 7
    assert corners.seen == 1 + 1


def test_a_picture_that_was_replaced_is_done_again(folder: Path, backbone: Path, corners: Corners, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        extract(folder, tmp_path / "out.npz", backbone=backbone, batch=8, progress=stop_after(8))
    noise(folder / "amazon" / "images" / "cat" / "1.png", 30, 30)
    corners.seen = 0
    extract(folder, tmp_path / "out.npz", backbone=backbone, progress=False)
    assert corners.seen == 1 + 1


def test_features_of_two_networks_are_not_mixed(folder: Path, backbone: Path, corners: Corners, tmp_path: Path) -> None:
    out = tmp_path / "out.npz"
    with pytest.raises(KeyboardInterrupt):
        extract(folder, out, backbone=backbone, batch=3, progress=stop_after(3))
    before = partial_file(out).read_bytes()
    (backbone / "model.safetensors").write_bytes(b"others")
    with pytest.raises(InputError, match=r"out\.npz\.partial was begun with another network"):
        extract(folder, out, backbone=backbone, progress=False)
    assert partial_file(out).read_bytes() == before


def test_two_do_not_write_one_file(folder: Path, backbone: Path, corners: Corners, tmp_path: Path) -> None:
    with open(partial_file(tmp_path / "out.npz"), "wb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(BlockingIOError, match="another process is writing it"):
            extract(folder, tmp_path / "out.npz", backbone=backbone, progress=False)


def test_features_that_are_no_numbers_are_not_kept(folder: Path, backbone: Path, corners: Corners, tmp_path: Path) -> None:
    nn.init.constant_(corners.norm.weight, float("nan"))
    with pytest.raises(InputError, match=r"Real World/cat/1\.png gets features that are no numbers"):
        extract(folder, tmp_path / "out.npz", backbone=backbone, progress=False)
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == []


def test_what_cannot_be_written_is_said_before_anything_is_computed(folder: Path, backbone: Path, tmp_path: Path) -> None:
    (tmp_path / "there.npz").write_bytes(b"mine")
    for name, message in (
        ("there.npz", "is there already; remove it"),
        ("out.csv", "written to an .npz file, not to 'out.csv'"),
        ("none/out.npz", "The folder of .*none/out.npz does not exist"),
    ):
        with pytest.raises(InputError, match=message):
            extract(folder, tmp_path / name, backbone=backbone)
    with pytest.raises(InputError, match="`batch` must be at least 1 picture, got 0"):
        extract(folder, tmp_path / "out.npz", backbone=backbone, batch=0)
    assert (tmp_path / "there.npz").read_bytes() == b"mine"


def test_a_folder_that_is_no_network_is_said_to_be_none(folder: Path, backbone: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"is not the folder of a pretrained network: it has no config\.json and no preproc"):
        extract(folder, tmp_path / "out.npz", backbone=folder)
    (backbone / "model.safetensors").rename(backbone / "pytorch_model.bin")
    with pytest.raises(InputError, match=r"it has no \*\.safetensors\."):
        pretrained(backbone)


@pytest.fixture
def tiny_resnet(backbone: Path) -> Path:
    """A ResNet of a few thousand weights, saved as any other."""
    transformers = pytest.importorskip("transformers", reason="transformers is not installed: pip install 'perdure[pictures]'")
    sizes = {"embedding_size": 4, "hidden_sizes": [4, 8], "depths": [1, 1], "layer_type": "basic"}
    transformers.ResNetModel(transformers.ResNetConfig(**sizes)).save_pretrained(backbone)
    return backbone


def test_a_saved_network_is_read_whole_and_gives_its_pooled_output(folder: Path, tiny_resnet: Path, tmp_path: Path) -> None:
    assert extract(folder, tmp_path / "out.npz", backbone=tiny_resnet, progress=False).features == 8
    stored = load_file(tiny_resnet / "model.safetensors")
    name = min(name for name in stored if name.endswith("convolution.weight"))
    save_file({key: value for key, value in stored.items() if key != name}, tiny_resnet / "model.safetensors", {"format": "pt"})
    with pytest.raises(InputError, match=rf"lacks some of its network's weights, such as {name}\."):
        pretrained(tiny_resnet)
    (tiny_resnet / "model.safetensors").write_bytes(b"damaged")
    with pytest.raises(InputError, match="holds no network that can be used: "):
        pretrained(tiny_resnet)


@pytest.mark.parametrize("absent", ["transformers", "PIL"])
def test_without_its_packages_it_says_what_to_install(
    folder: Path, backbone: Path, monkeypatch: pytest.MonkeyPatch, absent: str
) -> None:
    monkeypatch.setitem(sys.modules, absent, None)
    with pytest.raises(InputError, match=r"need.* [Pp]illow.*pip install 'perdure\[pictures\]'"):
        pretrained(backbone) if absent == "transformers" else centre(find(folder).pictures[0].file, short=8, crop=8)


def test_nothing_is_imported_before_it_is_needed() -> None:
    code = "import sys, perdure.experiments.ledger, perdure.cli; print({'PIL', 'transformers'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "set()\n"


# The real network


@pytest.fixture(scope="session")
def resnet50(data: Path) -> Path:
    pytest.importorskip("transformers", reason="transformers is not installed: pip install 'perdure[pictures]'")
    for name in (BACKBONE, SMALL, STORED):
        if not (data / name).exists():
            pytest.skip(f"{data / name} is absent")
    return data / BACKBONE


def test_pixels_are_those_of_the_networks_own_preprocessing(data: Path, resnet50: Path, tmp_path: Path) -> None:
    theirs = pytest.importorskip("transformers.models.bit.image_processing_pil_bit").BitImageProcessorPil.from_pretrained(
        resnet50
    )
    ours = Preprocessing.read(resnet50)
    noise(tmp_path / "tall.png", 411, 301)
    noise(tmp_path / "wide.png", 250, 333)
    for file in (tmp_path / "tall.png", tmp_path / "wide.png", find(data / SMALL).pictures[0].file):
        seen = centre(file, short=ours.short, crop=ours.crop, resample=ours.resample).transpose(2, 0, 1) / 255
        normalised = (seen - np.array(ours.mean)[:, None, None]) / np.array(ours.std)[:, None, None]
        np.testing.assert_allclose(normalised, theirs(Image.open(file), return_tensors="np")["pixel_values"][0], atol=1e-3)


def test_features_are_close_to_those_of_the_larger_originals(data: Path, resnet50: Path, tmp_path: Path) -> None:
    for picture in find(data / SMALL).pictures[::163]:
        copy = tmp_path / "few" / picture.path
        copy.parent.mkdir(parents=True)
        copy.symlink_to(picture.file)
    extract(tmp_path / "few", tmp_path / "few.npz", backbone=resnet50, progress=False)
    with np.load(tmp_path / "few.npz") as ours, np.load(data / STORED) as theirs:
        assert {name: ours[name].dtype.kind for name in ours.files} == {name: theirs[name].dtype.kind for name in theirs.files}
        place = {path: row for row, path in enumerate(theirs["paths"].tolist())}
        originals = theirs["X"].astype(float)[[place[path] for path in ours["paths"].tolist()]]
        x = ours["X"].astype(float)
        cosine = (x @ originals.T) / np.linalg.norm(x, axis=1)[:, None] / np.linalg.norm(originals, axis=1)
        assert np.diag(cosine).mean() > 0.9  # 0.94 over all 651; that of different pictures is 0.35
        assert cosine.argmax(axis=1).tolist() == list(range(len(x)))


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
    (environment,) = domains(tmp_path, "amazon", ("webcam",), size=64).environments
    config = VariationalConfig(latent=8, features=16, width=16, warm_up=1, steps=2, batch=4, replay_batch=4)
    learner = VariationalLearner(config, backbone=backbones.BACKBONES["resnet50"])
    learned = learner.learn(environment, progress=False)
    assert learned.steps == 3
    assert all(np.isfinite(value) for value in learned.losses.values())
    before, after = (dict(each.state_dict()) for each in (backbones.resnet50(), learner.snapshots[0].inference.encode.backbone))
    same = {name for name in before if torch.equal(before[name], after[name])}
    statistics = {name for name in before if name.endswith(("running_mean", "running_var", "num_batches_tracked"))}
    assert len(statistics) == 3 * 53  # the batch norms of a ResNet-50
    assert same == statistics | {"mean", "std"}  # all else has learned
    together = learner.predict_proba(environment.query.x)
    alone = np.concatenate([learner.predict_proba(row[None]) for row in environment.query.x])
    np.testing.assert_allclose(together, alone, atol=1e-5)


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
