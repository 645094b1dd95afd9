"""What a run is, under which key its numbers are kept, and that the files they are kept in lose nothing."""

from __future__ import annotations

import fcntl
import json
import re
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import numpy as np
import pytest
import stand_in
from tiny import TINY

from perdure import VariationalConfig
from perdure.errors import InputError
from perdure.experiments import ledger
from perdure.experiments.backbones import BACKBONES
from perdure.experiments.ledger import Place, Planned, Result, Store, canonical, entry, locked, put_section
from perdure.experiments.methods import LOWER_BOUNDS, Method, continual, joint_training, upper_bound
from perdure.experiments.runner import PROTOCOLS, Protocol
from perdure.metrics import AccuracyMatrix

GIVEN, GIVEN_ASIDE, UNKNOWN, UNKNOWN_ASIDE = PROTOCOLS
D_A = Place("office31.tasks", ("D", "A"))
DRIFT = Place("office_home.domains", ("Ar", ("Rw", "Pr", "Cl")))
RUN = Planned(continual(TINY), D_A)
NAN = np.nan


def another(config: VariationalConfig, name: str) -> Any:
    """A value of this field that it does not have."""
    value, hint = getattr(config, name), get_type_hints(VariationalConfig)[name]
    if name == "snapshot":  # "none" would go with no replay only
        return "decoder"
    if name in ("backbone", "finetune"):
        return {"backbone": "a folder", "finetune": "last 2"}[name]
    if get_origin(hint) is Literal:
        return next(choice for choice in get_args(hint) if choice != value)
    return not value if hint is bool else value + 1


def result_of(average: float = 0.5, **changed: Any) -> Result:
    """Two environments, of which the first was forgotten a little."""
    values: dict[str, Any] = {
        "accuracy": {
            GIVEN: AccuracyMatrix(("task 1", "task 2"), np.array([[1.0, NAN], [average, average]])),
            UNKNOWN: AccuracyMatrix(("task 1", "task 2"), np.array([[NAN, NAN], [1 / 3, 0.1]])),
        },
        "own": {"task 1": 0.25, "task 2": 1.0},
        "recognised": {"transductive": 2 / 3},
        "seconds": [1.25, 0.5],
        "bytes": 12,
        "computed_with": {"device": "cpu", "torch": "0"},
        **changed,
    }
    return Result(**values)


def runs(number: int) -> list[Planned]:
    """Different ones."""
    return [Planned(continual(replace(TINY, seed=seed)), D_A) for seed in range(number)]


# -- the key -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [field.name for field in fields(VariationalConfig)])
def test_every_field_of_the_configuration_changes_the_key(name: str) -> None:
    config = replace(TINY, backbone="another folder") if name == "finetune" else TINY  # which says what of one is trained
    changed = replace(config, **{name: another(config, name)})
    assert changed != config
    assert Planned(continual(changed), D_A).key != Planned(continual(config), D_A).key


def test_everything_else_that_numbers_follow_from_changes_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    others = [
        RUN,
        Planned(joint_training(TINY), D_A),
        Planned(upper_bound(TINY), D_A),
        *(Planned(bound, D_A) for bound in LOWER_BOUNDS.values()),
        *(Planned(continual(TINY, backbone=name), D_A) for name in BACKBONES),
        Planned(continual(TINY), Place("office31.tasks", ("A", "D"))),
        Planned(continual(TINY), Place("office_home.tasks", ("D", "A"))),
        Planned(continual(TINY), DRIFT),
        Planned(continual(TINY), Place("office_home.domains", ("Ar", ("Pr", "Rw", "Cl")))),
        Planned(continual(TINY), Place("office_home.domains", ("Ar", ("Rw", "Pr")))),
        Planned(continual(TINY), D_A, inductive=True),
        *(Planned(continual(TINY), D_A, study=name) for name, study in ledger.STUDIES.items() if study.kind == "continual"),
    ]
    assert len({run.key for run in others}) == len(others)
    before = RUN.key
    monkeypatch.setattr(ledger, "REVISION", ledger.REVISION + 1)
    assert Planned(continual(TINY), D_A).key != before


def test_the_key_is_the_hash_of_one_text_for_equal_values() -> None:
    assert canonical({"b": [1, {"d": None, "c": 0.1}], "a": "é"}) == '{"a":"\\u00e9","b":[1,{"c":0.1,"d":null}]}'
    assert canonical(_turned_round(RUN.to_json())) == canonical(RUN.to_json())
    assert list(_turned_round(RUN.to_json())) != list(RUN.to_json())
    assert Planned.from_json(_turned_round(RUN.to_json())).key == RUN.key


def _turned_round(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _turned_round(value[key]) for key in reversed(list(value))}
    return [_turned_round(each) for each in value] if isinstance(value, list) else value


def test_the_key_of_a_run_that_is_stored_does_not_move(monkeypatch: pytest.MonkeyPatch) -> None:
    """Worked out by `sha256sum` from the text; hours of stored results stand under such keys."""
    monkeypatch.setattr(ledger, "REVISION", 1)
    run = Planned(LOWER_BOUNDS["LDA"], DRIFT, inductive=True)
    text = (
        '{"inductive":true,"method":{"config":null,"kind":"LDA"},'
        '"place":{"arguments":["Ar",["Cl","Pr","Rw"]],"source":"office_home.domains"},"revision":1}'
    )
    assert canonical(run.to_json()) == text
    assert run.key == "9e6d960bec1b94bdd8f57988251a629dc2a406b8510c0f17a2335e9cd5ee946d"


def test_a_method_without_an_order_is_one_run_for_all_orders() -> None:
    other = replace(DRIFT, arguments=("Ar", ("Cl", "Rw", "Pr")))
    for method in (upper_bound(TINY), joint_training(TINY), *LOWER_BOUNDS.values()):
        assert Planned(method, DRIFT).key == Planned(method, other).key
        assert Planned(method, DRIFT).place.arguments == ("Ar", ("Cl", "Pr", "Rw"))
    assert Planned(continual(TINY), DRIFT).key != Planned(continual(TINY), other).key
    assert Planned(upper_bound(TINY), D_A).place == D_A  # support and query are no order


def test_order_says_where_each_environment_stands_in_the_shared_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert DRIFT.order == (2, 1, 0)
    assert Place("office_home.domains", ("Cl", ("Pr", "Rw", "Ar"))).order == (1, 2, 0)
    assert D_A.order == (0, 1, 2, 3, 4)
    monkeypatch.setenv("PERDURE_DATA", str(stand_in.write(tmp_path)))
    shared = [environment.name for environment in DRIFT.unordered().scenario(inductive=False).environments]
    assert [shared[i] for i in DRIFT.order] == [e.name for e in DRIFT.scenario(inductive=False).environments]


@pytest.mark.parametrize("source", ["office31.tasks", "office31.combined", "office_home.tasks", "office_home.combined"])
def test_a_place_has_as_many_environments_as_it_says(source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERDURE_DATA", str(stand_in.write(tmp_path)))
    pair = {"office31.tasks": ("D", "A"), "office_home.tasks": ("Ar", "Cl")}
    place = Place(source, pair.get(source, ()))
    assert len(place.scenario(inductive=True).environments) == place.environments
    file = {"office31": "office31_resnet50.npz", "office_home": "officehome_resnet50.npz"}[source.partition(".")[0]]
    assert ledger.SOURCES[source].data() == tmp_path / file
    assert len(DRIFT.scenario(inductive=True).environments) == DRIFT.environments == 3


def test_impossible_runs_are_refused() -> None:
    with pytest.raises(InputError, match=r"^No scenarios are called 'office32'. Known: office31.tasks, "):
        Place("office32")
    with pytest.raises(InputError, match=r"^A study is one of 'bound' of 'continual', .*; got 'tea' of 'continual'.$"):
        Planned(continual(TINY), D_A, study="tea")
    with pytest.raises(InputError, match="got 'bound' of 'split'"):
        Planned(upper_bound(TINY), D_A, study="bound")


def test_updates_and_cost_follow_from_steps_environments_and_features() -> None:
    config = replace(TINY, warm_up=10, steps=20, features=512)
    assert Planned(continual(config), D_A).updates == Planned(upper_bound(config), D_A).updates == 5 * 30
    assert Planned(joint_training(config), D_A).updates == 30
    assert Planned(continual(config), D_A).cost == 150 * 1.5
    assert Planned(LOWER_BOUNDS["LDA"], D_A).cost == Planned(LOWER_BOUNDS["LDA"], D_A).updates == 0
    assert Planned(continual(config), DRIFT, study="augmentation").updates == (1 + 2 * 2) * 30


# -- to JSON and back --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "planned",
    [
        RUN,
        Planned(continual(replace(TINY, replay="none", snapshot="none", gamma=2.0)), DRIFT, inductive=True),
        Planned(upper_bound(TINY), DRIFT),
        Planned(LOWER_BOUNDS["source-only"], Place("office31.combined"), inductive=True),
        Planned(continual(TINY), DRIFT, study="augmentation"),
        *(
            Planned(continual(TINY, backbone=name), Place("raw_digits.domains", ("mnist", ("usps", "mnistm"))))
            for name in BACKBONES
        ),
    ],
    ids=str,
)
def test_a_planned_run_survives_json(planned: Planned) -> None:
    again = Planned.from_json(json.loads(json.dumps(planned.to_json())))
    assert again == planned
    assert again.key == planned.key


def test_a_result_survives_json_to_the_last_digit() -> None:
    found = result_of(
        accuracy={protocol: AccuracyMatrix(("a", "b"), np.array([[0.1, NAN], [1 / 3, 1.0]])) for protocol in PROTOCOLS}
    )
    again = Result.from_json(json.loads(json.dumps(found.to_json(), allow_nan=False)))
    assert list(again.accuracy) == list(PROTOCOLS)
    for protocol in PROTOCOLS:
        assert again.accuracy[protocol].environments == ("a", "b")
        np.testing.assert_array_equal(again.accuracy[protocol].values, found.accuracy[protocol].values)
    for name in ("own", "recognised", "seconds", "bytes", "computed_with", "numbers"):
        assert getattr(again, name) == getattr(found, name), name
    assert again.to_json() == found.to_json()
    studied = result_of(accuracy={}, own={}, recognised={}, numbers={"stages": [1, {"x": 0.1}]})
    assert Result.from_json(json.loads(json.dumps(studied.to_json()))).numbers == {"stages": [1, {"x": 0.1}]}


def test_what_is_stored_says_that_nothing_was_selected_and_where_nothing_was_scored() -> None:
    stored = result_of().to_json()
    assert stored["selection"] == "last step"
    assert stored["accuracy"]["environment unknown, transductive"]["values"] == [[None, None], [1 / 3, 0.1]]
    assert "numbers" not in stored


# -- the store ---------------------------------------------------------------------------------------------------------------


def test_what_is_added_is_read_again(tmp_path: Path) -> None:
    store = Store(tmp_path / "results" / "table.json")
    assert store.read() == {}
    first, second = runs(2)
    store.add({first.key: entry(first, result_of(0.5))})
    store.add({second.key: entry(second, result_of(0.75))})
    found = store.results()
    assert found.keys() == {first.key, second.key}
    assert found[second.key].accuracy[GIVEN].average == 0.75
    assert Planned.from_json(store.read()[first.key]["run"]) == first
    lines = store.path.read_text(encoding="utf-8").splitlines()
    assert [lines[0], lines[-1], len(lines)] == ['{"runs": [', "]}", 4]  # one run a line, so that a change shows as one line
    assert [json.loads(line.rstrip(","))["key"] for line in lines[1:-1]] == sorted(found)
    assert [path.name for path in store.path.parent.iterdir()] == ["table.json"]  # neither a lock nor half a file is left


def test_adding_leaves_every_other_line_as_it_was(tmp_path: Path) -> None:
    store = Store(tmp_path / "table.json")
    planned = runs(4)
    for run in planned[:3]:
        store.add({run.key: entry(run, result_of(1 / 3))})
    before = [line.rstrip(",") for line in store.path.read_text(encoding="utf-8").splitlines()]
    store.add({planned[3].key: entry(planned[3], result_of(0.1))})
    after = [line.rstrip(",") for line in store.path.read_text(encoding="utf-8").splitlines()]
    assert [line for line in after if planned[3].key not in line] == before


def test_adding_keeps_what_another_process_wrote_meanwhile(tmp_path: Path) -> None:
    ours, theirs = Store(tmp_path / "table.json"), Store(tmp_path / "table.json")
    first, second, third = runs(3)
    ours.add({first.key: entry(first, result_of())})
    ours.read()
    theirs.add({second.key: entry(second, result_of())})
    ours.add({third.key: entry(third, result_of())})
    assert ours.read().keys() == {first.key, second.key, third.key}


def test_of_many_writers_at_once_none_loses_a_run(tmp_path: Path) -> None:
    planned = runs(24)

    def write(some: list[Planned]) -> None:
        for run in some:
            Store(tmp_path / "table.json").add({run.key: entry(run, result_of())})

    writers = [threading.Thread(target=write, args=(planned[i::4],)) for i in range(4)]  # a lock is one of its open file
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert Store(tmp_path / "table.json").read().keys() == {run.key for run in planned}
    assert [path.name for path in tmp_path.iterdir()] == ["table.json"]


def test_results_of_another_revision_are_ignored_and_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(tmp_path / "table.json")
    store.add({RUN.key: entry(RUN, result_of())})
    monkeypatch.setattr(ledger, "REVISION", ledger.REVISION + 1)
    assert store.read() == {}
    assert store.results() == {}
    now = Planned(continual(TINY), D_A)
    store.add({now.key: entry(now, result_of())})
    assert list(store.read()) == [now.key]
    assert len(json.loads(store.path.read_text(encoding="utf-8"))["runs"]) == 1


GOOD = entry(RUN, result_of())


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('{"runs": [', "JSONDecodeError: Expecting value"),
        ("", "JSONDecodeError"),
        ('{"runs": [\n<<<<<<< ours\n]}', "JSONDecodeError"),
        ("[]", "TypeError"),
        ('{"results": []}', "KeyError: 'runs'"),
        ('{"runs": [{"key": "k"}]}', "KeyError: 'run'"),
        ('{"runs": [{"key": "k", "run": {}}]}', "KeyError: 'revision'"),
        ('{"runs": ["k"]}', "TypeError"),
    ],
)
def test_a_damaged_file_of_results_is_named_with_what_to_do(text: str, why: str, tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    path.write_text(text, encoding="utf-8")
    message = f"^{re.escape(str(path))} is not a file of results \\({why}.*\\). Restore it, or remove it to begin anew.$"
    for use in (Store(path).read, Store(path).results, lambda: Store(path).add({RUN.key: GOOD})):
        with pytest.raises(InputError, match=message):
            use()
    assert path.read_text(encoding="utf-8") == text


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        ({"result": None}, "TypeError"),
        (
            {"result": {**GOOD["result"], "accuracy": {"environment given": {"environments": ["a"], "values": [[1.0]]}}}},
            "KeyError: 'environment given'",
        ),
        ({"result": {name: value for name, value in GOOD["result"].items() if name != "own"}}, "KeyError: 'own'"),
        ({"result": {**GOOD["result"], "accuracy": {str(GIVEN): {"environments": ["a"], "values": [[2.0]]}}}}, "between 0 and 1"),
        ({"result": {**GOOD["result"], "accuracy": [1]}}, "AttributeError"),
    ],
)
def test_damaged_numbers_are_named_with_what_to_do(damage: dict[str, Any], why: str, tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    path.write_text(json.dumps({"runs": [{**GOOD, **damage}]}), encoding="utf-8")
    with pytest.raises(InputError, match=f"^{re.escape(str(path))} is not a file of results .*{why}.* Restore it, or remove it"):
        Store(path).results()


def test_a_number_that_is_none_is_never_written(tmp_path: Path) -> None:
    store = Store(tmp_path / "table.json")
    first, second = runs(2)
    store.add({first.key: entry(first, result_of())})
    before = store.path.read_bytes()
    with pytest.raises(ValueError, match="Out of range float values are not JSON compliant"):
        store.add({second.key: entry(second, result_of(own={"task 1": NAN}))})
    assert store.path.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["table.json"]


# -- the ledger --------------------------------------------------------------------------------------------------------------

WRITTEN = """# Ledger

A person wrote this.

<!-- begin table (written by `perdure reproduce table`) -->
old
<!-- end table -->

And this.

<!-- begin table-two (written by `perdure reproduce table-two`) -->
other
<!-- end table-two -->
"""


def test_a_section_replaces_only_itself(tmp_path: Path) -> None:
    path = tmp_path / "ledger.md"
    path.write_text(WRITTEN, encoding="utf-8")
    put_section(path, "table", "\nnew, with \\1 and \\g<0>\n\n")
    assert path.read_text(encoding="utf-8") == WRITTEN.replace("old", "new, with \\1 and \\g<0>")
    assert [each.name for each in tmp_path.iterdir()] == ["ledger.md"]


def test_a_new_section_stands_at_the_end_of_a_new_or_old_ledger(tmp_path: Path) -> None:
    path = tmp_path / "docs" / "ledger.md"
    put_section(path, "first", "1")
    put_section(path, "second", "2")
    assert path.read_text(encoding="utf-8") == (
        "# Ledger\n\n"
        "<!-- begin first (written by `perdure reproduce first`) -->\n1\n<!-- end first -->\n\n"
        "<!-- begin second (written by `perdure reproduce second`) -->\n2\n<!-- end second -->\n"
    )


def test_the_same_section_again_does_not_touch_the_file(tmp_path: Path) -> None:
    path = tmp_path / "ledger.md"
    put_section(path, "table", "text")
    before = path.stat()
    put_section(path, "table", "text")
    assert (path.stat().st_ino, path.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_where_the_end_of_a_section_was_lost_nothing_is_swallowed(tmp_path: Path) -> None:
    path = tmp_path / "ledger.md"
    path.write_text(WRITTEN.replace("<!-- end table -->", ""), encoding="utf-8")
    for text in ("new", "newer"):
        put_section(path, "table", text)
    left = path.read_text(encoding="utf-8")
    for kept in ("A person wrote this.", "old", "And this.", "\nother\n<!-- end table-two -->", "\nnewer\n<!-- end table -->"):
        assert left.count(kept) == 1, kept
    assert "new\n" not in left


# -- locks -------------------------------------------------------------------------------------------------------------------


def test_a_lock_is_held_against_others_and_leaves_nothing(tmp_path: Path) -> None:
    path, order = tmp_path / "table.json", []

    def other() -> None:
        with locked(path):
            order.append("other")

    with locked(path):
        waiting = threading.Thread(target=other)
        waiting.start()
        time.sleep(0.1)
        with open(tmp_path / ".table.json.lock") as file, pytest.raises(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        order.append("first")
    waiting.join()
    assert order == ["first", "other"]
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(KeyError), locked(path):
        raise KeyError
    assert list(tmp_path.iterdir()) == []


def test_a_lock_that_was_removed_while_waited_for_is_made_anew(tmp_path: Path) -> None:
    """Of two that wait for the same file, the second must not go by the one that the first has removed."""
    path, inside, most = tmp_path / "table.json", 0, 0

    def use() -> None:
        nonlocal inside, most
        for _ in range(30):
            with locked(path):
                inside += 1
                most = max(most, inside)
                time.sleep(0.0002)
                inside -= 1

    users = [threading.Thread(target=use) for _ in range(4)]
    for user in users:
        user.start()
    for user in users:
        user.join()
    assert (most, inside) == (1, 0)


@pytest.fixture
def features(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stand-ins for the stored features."""
    monkeypatch.setenv("PERDURE_DATA", str(stand_in.write(tmp_path)))
    return tmp_path


def test_carrying_out_a_run_gives_the_numbers_that_are_kept(features: Path) -> None:
    result = Planned(LOWER_BOUNDS["nearest class mean"], D_A, inductive=True).carry_out()
    assert set(result.accuracy) == set(PROTOCOLS)
    assert result.accuracy[Protocol("given", "transductive")].environments == tuple(f"task {i}" for i in range(1, 6))
    assert result.computed_with["device"].startswith("cpu")
    assert len(result.seconds) == 5


def test_the_same_run_gives_the_same_numbers_again(features: Path) -> None:
    run = Planned(continual(TINY), DRIFT)
    one, other = (run.carry_out(progress=False).to_json() for _ in range(2))
    assert one["accuracy"] == other["accuracy"]
    assert one["own"] == other["own"]
    assert one["recognised"] == other["recognised"]


def test_a_stored_run_names_every_field_so_that_no_default_can_move_under_it() -> None:
    later = {"backbone": None, "finetune": "all", "precision": "auto"}  # came after runs were stored, and stay out at these
    assert {**RUN.to_json()["method"]["config"], **later} == asdict(TINY)
    assert later.keys().isdisjoint(RUN.to_json()["method"]["config"])
    named = {"backbone": "a folder", "finetune": "none", "precision": "float32"}
    run = Planned(continual(replace(TINY, **named)), D_A)
    assert run.to_json()["method"]["config"] == {**asdict(TINY), **named}
    assert Planned.from_json(run.to_json()) == run
    assert Method("LDA").to_json() == {"kind": "LDA", "config": None}
