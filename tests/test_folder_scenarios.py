"""Scenarios from folders of pictures: any domains and classes, and the published data sets as they come."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from stand_in import OFFICE31, OFFICE_HOME
from tiny_backbones import Colours, save

from perdure import InputError
from perdure.experiments.ledger import Place
from perdure.scenarios import folder, frozen, layouts, office31, office_home
from perdure.scenarios.pictures import centre, office_home_domains


def draw(file: Path, colour: tuple[int, int, int] | int = (10, 20, 30), size: tuple[int, int] = (9, 8)) -> Path:
    """A picture of one colour."""
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, (colour,) * 3 if isinstance(colour, int) else colour).save(file)
    return file


def touch(root: Path, *names: str) -> None:
    """Files that have no more than a name."""
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()


@pytest.fixture
def sites(tmp_path: Path) -> Path:
    """Two domains laid out as Office-31 (with `images`) and Office-Home (without); a picture's grey is its number."""
    root = tmp_path / "sites"
    for number, (label, name) in enumerate([("cat", "1.png"), ("cat", "2.png"), ("dog", "1.png"), ("dog", "2.png")]):
        draw(root / "amazon" / "images" / label / name, 10 * number)
        draw(root / "Real World" / label / name, 100 + 10 * number)
    return root


# Pixels


def test_domains_are_environments_of_pixels(sites: Path) -> None:
    scenario = folder(sites, "amazon", ["Real World"], size=4)
    (environment,) = scenario.environments
    assert (scenario.name, environment.name) == ("sites amazon→Real World", "amazon→Real World")
    assert environment.support.x.shape == environment.query.x.shape == (4, 3, 4, 4)
    assert environment.support.y.tolist() == scenario.answers.transductive[environment.name].tolist() == ["cat"] * 2 + ["dog"] * 2
    np.testing.assert_array_equal(environment.support.x[:, 0, 0, 0], np.float32([0, 10, 20, 30]) / np.float32(255))
    np.testing.assert_array_equal(environment.query.x[:, 2, 3, 3], np.float32([100, 110, 120, 130]) / np.float32(255))


def test_channels_are_red_green_blue(sites: Path) -> None:
    draw(sites / "amazon" / "images" / "cat" / "1.png", (51, 102, 255))
    x = folder(sites, "amazon", "Real World", size=2).environments[0].support.x
    np.testing.assert_allclose(x[0, :, 1, 1], [0.2, 0.4, 1.0], rtol=1e-6)


def test_the_middle_is_shown_and_a_cameras_note_is_not_followed(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (8, 13, 3), dtype=np.uint8)
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(pixels).save(tmp_path / "x.png", exif=exif)
    np.testing.assert_array_equal(centre(tmp_path / "x.png", short=8, crop=6), pixels[1:7, 3:9])


# Features


def test_with_a_backbone_the_rows_are_features_and_kept(sites: Path) -> None:
    backbone = Colours()
    (environment,) = folder(sites, "amazon", ["Real World"], backbone=backbone, progress=False).environments
    assert environment.support.x.tolist() == [[grey] * 3 for grey in (0, 10, 20, 30)]
    assert environment.query.x.tolist() == [[grey] * 3 for grey in (100, 110, 120, 130)]
    again = Colours()
    folder(sites, "Real World", ["amazon"], tasks=2, backbone=again, progress=False)
    assert (backbone.count, again.count) == (8, 0)


def test_a_backbone_may_be_named(sites: Path, tmp_path: Path) -> None:
    network = save(tmp_path / "resnet", "ResNet")
    (environment,) = folder(
        sites, "amazon", ["Real World"], backbone=network, cache=tmp_path / "cache", progress=False
    ).environments
    assert environment.support.x.shape == (4, 8)
    assert len(list((tmp_path / "cache").glob("*/0000.rows"))) == 1


# Classes and tasks


def test_classes_can_be_chosen_and_must_be_in_every_domain(sites: Path) -> None:
    draw(sites / "amazon" / "images" / "yak" / "1.png")
    with pytest.raises(InputError, match=r"Real World has no pictures of the classes \['yak'\]\. Name `classes`"):
        folder(sites, "amazon", ["Real World"], size=4)
    for classes in (["dog", "cat"], "shared"):
        chosen = folder(sites, "Real World", ["amazon"], classes=classes, size=4).environments[0]
        assert (chosen.support.classes, len(chosen.query.x)) == (["cat", "dog"], 4)
    with pytest.raises(InputError, match=r"has no pictures of a domain 'dslr'; it has Real World, amazon\."):
        folder(sites, "dslr", ["amazon"], size=4)
    with pytest.raises(InputError, match=r"has no pictures of the classes \['gnu'\] in any domain"):
        folder(sites, "amazon", ["Real World"], classes=["gnu"], size=4)
    with pytest.raises(InputError, match="`classes` must be a list of names or \"shared\", got 'cat'"):
        folder(sites, "amazon", ["Real World"], classes="cat", size=4)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="`size` must be positive, got 0"):
        folder(sites, "amazon", ["Real World"], classes="shared", size=0)
    with pytest.raises(InputError, match="names an environment twice"):
        folder(sites, "amazon", ["Real World"] * 2, classes="shared", size=4)
    with pytest.raises(InputError, match="`queries` names no domain"):
        folder(sites, "amazon", [], size=4)
    touch(sites, "empty/gnu/1.png")
    with pytest.raises(InputError, match="no class is in all of amazon, empty"):
        folder(sites, "amazon", ["empty"], classes="shared", size=4)


def test_tasks_take_the_classes_one_after_another(sites: Path) -> None:
    for label in ("ant", "bee", "yak"):
        for domain in ("amazon/images", "Real World"):
            draw(sites / domain / label / "1.png")
    scenario = folder(sites, "amazon", ["Real World"], tasks=2, backbone=Colours(), progress=False)
    assert [environment.name for environment in scenario.environments] == [f"amazon→Real World task {i}" for i in (1, 2)]
    assert [environment.support.classes for environment in scenario.environments] == [["ant", "bee"], ["cat", "dog", "yak"]]
    assert {name: y.tolist() for name, y in scenario.answers.transductive.items()} == {
        "amazon→Real World task 1": ["ant", "bee"],
        "amazon→Real World task 2": ["cat", "cat", "dog", "dog", "yak"],
    }
    chosen = folder(sites, "amazon", ["Real World"], tasks=[["yak"], ["bee", "ant"]], backbone=Colours(), progress=False)
    assert [environment.support.classes for environment in chosen.environments] == [["yak"], ["ant", "bee"]]
    for tasks in (0, 6):
        with pytest.raises(InputError, match=f"`tasks` must be a number from 1 to 5, that of the classes, got {tasks}"):
            folder(sites, "amazon", ["Real World"], tasks=tasks, size=4)
    with pytest.raises(InputError, match=r"at least one a task; got \[1\]"):
        folder(sites, "amazon", ["Real World"], tasks=[["yak"], []], size=4)
    with pytest.raises(InputError, match=r"that all domains have, at least one a task; got \['yak'\]"):
        folder(sites, "amazon", ["Real World"], tasks=[["yak"], ["cat"]], classes=["cat", "dog"], size=4)


def test_environments_with_the_same_classes_share_their_support(sites: Path) -> None:
    draw(sites / "dslr" / "cat" / "1.png")
    draw(sites / "dslr" / "dog" / "1.png")
    one, two = folder(sites, "amazon", ["Real World", "dslr"], size=4).environments
    assert one.support is two.support


def test_the_same_halves_are_kept_aside_as_of_features_of_the_same_pictures(tmp_path: Path) -> None:
    numbers = np.arange(24, dtype=np.float32)
    labels, places = np.array(["cat", "dog"]).repeat(6), np.array(["Art", "Clipart"]).repeat(12)
    for number in range(24):
        draw(tmp_path / "Art Clipart".split()[number // 12] / ["cat", "dog"][number // 6 % 2] / f"{number:02}.png", number)
    features = frozen.FrozenFeatures(numbers[:, None], np.tile(labels, 2), places)
    for seed in (0, 1):
        step = frozen.Step("e", "Art", "Clipart", ["cat", "dog"])
        expected = frozen.scenario("features", features, [step], inductive=True, seed=seed)
        scenario = folder(tmp_path, "Art", ("Clipart",), size=2, inductive=True, seed=seed)
        shown, aside = scenario.environments[0].query.x, scenario.answers.inductive["Art→Clipart"]
        assert (255 * shown[:, 0, 0, 0]).round().tolist() == expected.environments[0].query.x[:, 0].tolist()
        assert (255 * aside.x[:, 0, 0, 0]).round().tolist() == expected.answers.inductive["e"].x[:, 0].tolist()
        assert aside.y.tolist() == expected.answers.inductive["e"].y.tolist()
        assert scenario.answers.transductive["Art→Clipart"].tolist() == expected.answers.transductive["e"].tolist()


# Published data sets


def test_office_31_has_the_papers_tasks(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    touch(tmp_path, *(f"{domain}/images/{label}/frame_0001.jpg" for domain in ("amazon", "dslr") for label in OFFICE31))
    with caplog.at_level(logging.WARNING, logger="perdure"):
        layout = layouts.read(tmp_path)
    assert layout.published is not None
    assert layout.published.name == "Office-31"
    wrong = "amazon has 31 pictures instead of 2817, dslr has 31 pictures instead of 498"
    assert caplog.messages == [f"{tmp_path} is laid out as Office-31, but {wrong}."]
    features = frozen.FrozenFeatures(np.zeros((31, 1), np.float32), np.array(OFFICE31), np.array(["amazon"] * 31))
    monkeypatch.setattr(office31, "features", lambda: features)
    from perdure.scenarios.pictures import _tasks

    assert _tasks(layout, 5, layout.classes) == office31.task_classes()


@pytest.mark.parametrize("spelled", [("Art", "Clipart", "Product", "Real World"), ("art", "clipart", "product", "RealWorld")])
def test_office_home_has_the_supplements_order_however_it_is_spelled(tmp_path: Path, spelled: tuple[str, ...]) -> None:
    touch(tmp_path, *(f"{domain}/{label}/00001.jpg" for domain in spelled for label in OFFICE_HOME))
    touch(tmp_path, "Art/Push_Pin/00002.jpg")
    layout = layouts.read(tmp_path)
    assert layout.published is not None
    assert layout.published.name == "Office-Home"
    assert [layouts.plain(name) for name in layout.classes] == [
        layouts.plain(name) for task in office_home.TASKS for name in task
    ]
    assert set(layout.classes) == set(OFFICE_HOME)
    for asked in ("Real World", "RealWorld", "real_world"):
        assert layout.domain(asked) == spelled[3]
    assert len(layout.classes_of(spelled[3])) == 65


def test_a_class_spelled_in_two_ways_is_one_class(tmp_path: Path) -> None:
    for domain, label in (("Art", "Alarm_Clock"), ("Product", "alarm clock")):
        draw(tmp_path / domain / label / "1.png")
    (environment,) = folder(tmp_path, "Art", ["Product"], size=2).environments
    assert (environment.support.classes, len(environment.query.x)) == (["Alarm_Clock"], 1)


def test_whole_data_sets_are_not_warned_about(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    touch(tmp_path, *(f"kfold/{domain}/dog/pic_{i:03}.jpg" for domain in ("photo", "sketch") for i in range(4)))
    pacs = layouts.Published("PACS", {"photo": 4, "sketch": 4}, frozenset({"dog"}))
    monkeypatch.setattr(layouts, "PUBLISHED", (pacs,))
    assert layouts.read(tmp_path).published is pacs
    assert caplog.messages == []
    touch(tmp_path, "kfold/photo/dog/one_more.jpg")
    assert layouts.read(tmp_path).published is pacs
    assert caplog.messages == [f"{tmp_path} is laid out as PACS, but photo has 5 pictures instead of 4."]


def test_what_only_looks_alike_is_taken_as_it_is(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    touch(tmp_path, "train/cat/1.jpg", "validation/cat/1.jpg", "validation/Ant/1.jpg")  # as VisDA's domains, but not its classes
    layout = layouts.read(tmp_path)
    assert (layout.published, layout.classes) == (None, ["Ant", "cat"])
    with pytest.raises(InputError, match="has no pictures of a domain 'Train'; it has train, validation"):
        layout.domain("Train")
    assert caplog.messages == []


def test_published_numbers_are_those_of_the_papers() -> None:
    totals = {kind.name: sum(kind.pictures.values()) for kind in layouts.PUBLISHED}
    assert totals == {"Office-31": 4110, "Office-Home": 15_588, "PACS": 9991, "VisDA-2017": 280_157, "DomainNet": 586_575}
    classes = {kind.name: kind.classes if isinstance(kind.classes, int) else len(kind.classes) for kind in layouts.PUBLISHED}
    assert classes == {"Office-31": 31, "Office-Home": 65, "PACS": 7, "VisDA-2017": 12, "DomainNet": 345}


@pytest.fixture
def visda(tmp_path: Path) -> Path:
    """VisDA's lists; its test pictures lie in numbered folders."""
    for domain, names in (
        ("train", ("horse/1.png 4", "aeroplane/1.png 0", "aeroplane/2.png 0")),
        ("validation", ("aeroplane/7.png 0", "horse/7.png 4")),
        ("test", ("trunk00/a.png 4", "trunk00/b.png 0", "trunk01/c.png 0")),
    ):
        (tmp_path / domain).mkdir()
        (tmp_path / domain / "image_list.txt").write_text("\n".join(names) + "\n\n")
        for i, name in enumerate(names):
            draw(tmp_path / domain / name.split()[0], 10 * i)
    draw(tmp_path / "train" / "bicycle" / "not listed.png")
    return tmp_path


def test_visdas_lists_decide(visda: Path, caplog: pytest.LogCaptureFixture) -> None:
    layout = layouts.read(visda)
    assert layout.published is not None
    assert (layout.published.name, layout.classes) == ("VisDA-2017", ["aeroplane", "horse"])
    assert [(each.domain, each.label, each.file.name) for each in layout.pictures if each.domain == "test"] == [
        ("test", "horse", "a.png"), ("test", "aeroplane", "b.png"), ("test", "aeroplane", "c.png"),
    ]  # fmt: skip
    assert "train has 3 pictures instead of 152397" in caplog.messages[0]
    scenario = folder(visda, "train", ["validation", "test"], backbone=Colours(), progress=False)
    assert scenario.environments[0].support.y.tolist() == ["horse", "aeroplane", "aeroplane"]
    assert scenario.environments[1].query.x[:, 0].tolist() == [0, 10, 20]
    assert scenario.answers.transductive["train→test"].tolist() == ["horse", "aeroplane", "aeroplane"]


def test_a_folder_of_two_classes_names_neither(visda: Path) -> None:
    for domain in ("train", "validation"):
        (visda / domain / "image_list.txt").unlink()
    (visda / "test" / "image_list.txt").write_text("trunk00/a.png 4\ntrunk00/b.png 0\n")
    assert layouts.read(visda).classes == ["0", "4"]


@pytest.mark.parametrize("where", ["", "image_list", "splits"])
def test_domainnets_lists_keep_its_test_pictures_aside(tmp_path: Path, where: str) -> None:
    (tmp_path / where).mkdir(exist_ok=True)
    for domain in ("real", "sketch"):
        for part, names in (
            ("train", ("zebra/2.png 1", "ant/1.png 0")),
            ("test", ("ant/9.png 0", "zebra/9.png 1", "ant/8.png 0")),
        ):
            (tmp_path / where / f"{domain}_{part}.txt").write_text("\n".join(f"{domain}/{name}" for name in names))
            for i, name in enumerate(names):
                draw(tmp_path / domain / name.split()[0], 10 * i + (100 if part == "test" else 0))
    (tmp_path / where / "clipart_train.txt").write_text("clipart/ant/1.png 0")  # its pictures were not downloaded
    layout = layouts.read(tmp_path)
    assert (layout.domains, layout.classes) == (["real", "sketch"], ["ant", "zebra"])
    scenario = folder(tmp_path, "real", ["sketch"], inductive=True, backbone=Colours(), progress=False)
    (environment,) = scenario.environments
    assert (environment.support.y.tolist(), environment.query.x[:, 0].tolist()) == (["zebra", "ant"], [0, 10])
    aside = scenario.answers.inductive["real→sketch"]
    assert (aside.x[:, 0].tolist(), aside.y.tolist()) == ([100, 110, 120], ["ant", "zebra", "ant"])


def test_domainnet_is_recognised_by_its_345_classes_and_in_their_order(tmp_path: Path) -> None:
    names = [
        "tent",
        "The_Eiffel_Tower",
        "tiger",
        "trumpet",
        "t-shirt",
        "umbrella",
        "cello",
        "cell_phone",
        "paintbrush",
        "paint_can",
    ]
    names += [f"zz{i:03}" for i in range(335)]
    touch(tmp_path, *(f"{domain}/{name}/1.png" for domain in ("real", "quickdraw") for name in names))
    layout = layouts.read(tmp_path)
    assert layout.published is not None
    assert layout.published.name == "DomainNet"
    order = [
        "cello",
        "cell_phone",
        "paintbrush",
        "paint_can",
        "tent",
        "The_Eiffel_Tower",
        "tiger",
        "trumpet",
        "t-shirt",
        "umbrella",
    ]
    assert layout.classes[:10] == order


def test_a_damaged_list_is_named_with_its_line(visda: Path) -> None:
    (visda / "train" / "image_list.txt").write_text("horse/1.png 4\nhorse/2.png\n")
    with pytest.raises(
        InputError, match=r"image_list\.txt, line 2: expected a path and the number of a class, got 'horse/2\.png'"
    ):
        layouts.read(visda)


def test_a_listed_picture_that_is_not_there_is_named(visda: Path) -> None:
    (visda / "train" / "aeroplane" / "2.png").unlink()
    with pytest.raises(InputError, match=r"train/aeroplane/2\.png cannot be read \(No such file"):
        folder(visda, "train", ["validation"], backbone=Colours(), progress=False)


def test_office_home_is_found_by_its_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PERDURE_PICTURES", raising=False)
    with pytest.raises(InputError, match="set PERDURE_PICTURES to the folder that holds Art, Clipart, Product, Real World"):
        office_home_domains("Ar", ("Cl",))
    with pytest.raises(InputError, match=r"No domains of Office-Home are called \['Art'\]\. Known: Ar, Cl, Pr, Rw\."):
        office_home_domains("Art", ("Cl",))
    monkeypatch.setenv("PERDURE_PICTURES", str(tmp_path))
    for number, domain in enumerate(("Art", "Clipart", "Product", "RealWorld")):
        draw(tmp_path / domain / "Alarm_Clock" / "00001.jpg", number)
        draw(tmp_path / domain / "Bed" / "00001.jpg", 100 + number)
    scenario = Place("pictures.office_home_domains", ("Ar", ("Rw", "Cl"))).scenario(inductive=False)
    assert [environment.name for environment in scenario.environments] == ["Ar→Rw", "Ar→Cl"]
    assert scenario.environments[0].support is scenario.environments[1].support
    assert scenario.environments[0].query.x.shape == (2, 3, 224, 224)
    assert (255 * scenario.environments[0].query.x.mean(axis=(1, 2, 3))).round().tolist() == [3, 103]
