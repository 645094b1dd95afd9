"""The paper's scenarios: which pictures, which classes, which domains, in what order, and what is kept aside."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import stand_in

from perdure import InputError, Scenario
from perdure.scenarios import frozen, office31, office_home

OFFICE31_SPLIT = (
    "back pack, bike, bike helmet, bookcase, bottle, calculator",
    "desk chair, desk lamp, desktop computer, file cabinet, headphones, keyboard",
    "laptop computer, letter tray, mobile phone, monitor, mouse, mug",
    "paper notebook, pen, phone, printer, projector, punchers",
    "ring binder, ruler, scissors, speaker, stapler, tape dispenser, trash can",
)
OFFICE_HOME_SPLIT = (
    "Drill, Exit Sign, Bottle, Glasses, Computer",
    "File Cabinet, Shelf, Toys, Sink, Laptop",
    "Kettle, Folder, Keyboard, Flipflops, Pencil",
    "Bed, Hammer, Toothbrush, Couch, Bike",
    "Postit Notes, Mug, Webcam, Desk Lamp, Telephone",
    "Helmet, Mouse, Pen, Monitor, Mop",
    "Sneakers, Notebook, Backpack, Alarm Clock, Push Pin",
    "Paper Clip, Batteries, Radio, Fan, Ruler",
    "Pan, Screwdriver, Trash Can, Printer, Speaker",
    "Eraser, Bucket, Chair, Calendar, Calculator",
    "Flowers, Lamp Shade, Spoon, Candles, Clipboards",
    "Scissors, TV, Curtains, Fork, Soda",
    "Table, Knives, Oven, Refrigerator, Marker",
)
"""The supplement's tables of task splits, typed from it."""
SETUP = {
    office31: ("D A W D W", "A W D W A"),
    office_home: ("Ar Cl Pr Rw Ar Rw Pr Ar Pr Rw Cl Ar Cl", "Cl Pr Rw Ar Rw Pr Cl Pr Rw Cl Ar Cl Rw"),
}
"""The supplement's set-up table of the combined scenarios: support stream, target stream."""
OFFICE31_PICTURES = {"amazon": 2817, "dslr": 498, "webcam": 795}
OFFICE_HOME_PICTURES = {"Art": 2427, "Clipart": 4365, "Product": 4439, "Real World": 4357}


@pytest.fixture
def stand_ins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PERDURE_DATA", str(stand_in.write(tmp_path)))
    return tmp_path


@pytest.fixture
def real(data: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PERDURE_DATA", str(data))
    return data


def plain(name: str) -> str:
    return re.sub("[^a-z]", "", name.lower())


def split_of(scenario: Scenario) -> list[list[str]]:
    return [sorted(map(plain, environment.support.classes)) for environment in scenario.environments]


def as_printed(split: tuple[str, ...]) -> list[list[str]]:
    return [sorted(map(plain, task.split(", "))) for task in split]


# Classes and their order


@pytest.mark.parametrize("files", ["stand_ins", "real"])
def test_tasks_are_the_supplements(files: str, request: pytest.FixtureRequest) -> None:
    request.getfixturevalue(files)
    for scenario in (office31.tasks("A", "W"), office31.combined()):
        assert split_of(scenario) == as_printed(OFFICE31_SPLIT)
    for scenario in (office_home.tasks("Ar", "Cl"), office_home.combined()):
        assert split_of(scenario) == as_printed(OFFICE_HOME_SPLIT)


@pytest.mark.parametrize("files", ["stand_ins", "real"])
def test_classes_are_spelled_as_they_are_stored(files: str, request: pytest.FixtureRequest) -> None:
    request.getfixturevalue(files)
    names = [name for task in office_home.task_classes() for name in task]
    assert {"ToothBrush", "Alarm_Clock", "TV"} <= set(names)
    assert sorted(names) == sorted(stand_in.OFFICE_HOME)
    assert sorted(name for task in office31.task_classes() for name in task) == sorted(stand_in.OFFICE31)


def test_a_stored_file_that_lacks_classes_is_refused(stand_ins: Path) -> None:
    path = stand_ins / "officehome_resnet50.npz"
    with np.load(path) as stored:
        parts = dict(stored)
    parts["class_names"] = np.char.replace(parts["class_names"], "Radio", "Wireless")
    np.savez(path, **parts)
    frozen.load.cache_clear()
    with pytest.raises(InputError, match=r"lack the classes \['Radio'\]"):
        office_home.tasks("Ar", "Cl")


# Domains and their order


@pytest.mark.parametrize("module", SETUP, ids=["office31", "office_home"])
def test_combined_scenarios_follow_the_set_up_table(module: object, stand_ins: Path) -> None:
    assert module in (office31, office_home)
    supports, targets = (line.split() for line in SETUP[module])
    stored = module.features()
    names = module.DOMAINS
    for i, environment in enumerate(module.combined().environments):
        assert environment.name == f"task {i + 1} {supports[i]}→{targets[i]}"
        for rows, domain in ((environment.support.x, supports[i]), (environment.query.x, targets[i])):
            expected = stored.x[stored.rows(names[domain], environment.support.classes)]
            np.testing.assert_array_equal(rows, expected)
            assert len(rows) == stand_in.ROWS * len(environment.support.classes)


def test_domains_come_in_the_papers_order_of_difficulty() -> None:
    ascending = ("Rw", "Pr", "Ar", "Cl")
    for support in office_home.DOMAINS:
        assert office_home.ASCENDING[support] == tuple(domain for domain in ascending if domain != support)
        assert office_home.DESCENDING[support] == tuple(domain for domain in ascending[::-1] if domain != support)


def test_where_the_domain_drifts_all_classes_are_there_from_the_beginning(stand_ins: Path) -> None:
    scenario = office_home.domains("Ar", ("Cl", "Pr", "Rw"))
    assert [environment.name for environment in scenario.environments] == ["Ar→Cl", "Ar→Pr", "Ar→Rw"]
    stored = office_home.features()
    for environment, domain in zip(scenario.environments, ("Clipart", "Product", "Real World"), strict=True):
        assert len(environment.support.classes) == 65
        np.testing.assert_array_equal(environment.support.x, stored.x[stored.domains == "Art"])
        np.testing.assert_array_equal(environment.query.x, stored.x[stored.domains == domain])
        np.testing.assert_array_equal(scenario.answers.transductive[environment.name], stored.classes[stored.domains == domain])


def test_pairs_are_those_of_the_papers_tables() -> None:
    assert "A→W D→W W→D A→D D→A W→A".split() == [f"{s}→{q}" for s, q in office31.PAIRS]
    assert [f"{s}→{q}" for s, q in office_home.PAIRS] == (
        "Ar→Cl Ar→Pr Ar→Rw Cl→Ar Cl→Pr Cl→Rw Pr→Ar Pr→Cl Pr→Rw Rw→Ar Rw→Cl Rw→Pr".split()
    )


# Pictures


@pytest.mark.parametrize(
    ("module", "pictures", "pairs"),
    [(office31, OFFICE31_PICTURES, office31.PAIRS), (office_home, OFFICE_HOME_PICTURES, (("Ar", "Cl"), ("Pr", "Rw")))],
    ids=["office31", "office_home"],
)
def test_every_picture_of_a_domain_is_in_exactly_one_task(
    module: object, pictures: dict[str, int], pairs: tuple[tuple[str, str], ...], real: Path
) -> None:
    assert module in (office31, office_home)
    stored = module.features()
    assert {str(name): int(count) for name, count in zip(*np.unique(stored.domains, return_counts=True), strict=True)} == pictures
    assert stored.x.shape == (sum(pictures.values()), 2048)
    for support, query in pairs:
        scenario = module.tasks(support, query)
        assert sum(len(e.support.x) for e in scenario.environments) == pictures[module.DOMAINS[support]]
        assert sum(len(e.query.x) for e in scenario.environments) == pictures[module.DOMAINS[query]]
        for environment in scenario.environments:
            assert sorted(set(scenario.answers.transductive[environment.name])) == environment.support.classes


# What is kept aside

INDUCTIVE: list[Callable[..., Scenario]] = [
    partial(office31.tasks, "D", "A"),
    office31.combined,
    partial(office_home.tasks, "Ar", "Cl"),
    office_home.combined,
    partial(office_home.domains, "Ar", ("Rw", "Cl")),
]


@pytest.mark.parametrize("make", INDUCTIVE)
def test_half_of_each_query_set_is_kept_aside_and_never_adapted_to(make: Callable[..., Scenario], stand_ins: Path) -> None:
    whole, split = make(), make(inductive=True)
    assert not whole.answers.inductive
    for before, after in zip(whole.environments, split.environments, strict=True):
        aside = split.answers.inductive[after.name]
        adapted, kept = ({row.tobytes() for row in rows} for rows in (after.query.x, aside.x))
        assert adapted | kept == {row.tobytes() for row in before.query.x}
        assert not adapted & kept
        assert len(aside.x) == len(before.query.x) // 2
        np.testing.assert_array_equal(after.support.x, before.support.x)
        answer = dict(zip((row.tobytes() for row in before.query.x), whole.answers.transductive[before.name], strict=True))
        assert [answer[row.tobytes()] for row in aside.x] == aside.y.tolist()
        assert [answer[row.tobytes()] for row in after.query.x] == split.answers.transductive[after.name].tolist()


def test_the_seed_decides_what_is_kept_aside(stand_ins: Path) -> None:
    one, same, other = (office31.tasks("D", "A", inductive=True, seed=seed).answers.inductive for seed in (0, 0, 1))
    assert all(np.array_equal(one[name].x, same[name].x) for name in one)
    assert not all(np.array_equal(one[name].x, other[name].x) for name in one)


# Absent data


def test_absent_data_are_asked_for_in_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERDURE_DATA", str(tmp_path))
    sentence = re.escape(f"officehome_resnet50.npz is not in {tmp_path}. Set PERDURE_DATA to the folder that holds it.")
    with pytest.raises(InputError, match=sentence):
        office_home.combined()
    monkeypatch.delenv("PERDURE_DATA")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=r"office31_resnet50.npz is not in \.\./shared/data. Set PERDURE_DATA"):
        office31.combined()


def test_a_domain_without_the_classes_is_refused(stand_ins: Path) -> None:
    with pytest.raises(InputError, match=r"no picture of domain 'amazon' with classes \['unicorn'\]"):
        office31.features().rows("amazon", ["unicorn"])
