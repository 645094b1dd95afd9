"""`perdure reproduce` in a folder like a checkout: what is run, what is shared, what is written, and what a stop leaves."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import stand_in

from perdure import VariationalConfig
from perdure.errors import InputError
from perdure.experiments import reproduce
from perdure.experiments.ledger import Result, Store
from perdure.experiments.methods import Setting
from perdure.experiments.pool import Failure, Task
from perdure.experiments.reproduce import Experiment, RunsFailed
from perdure.report.studies import Figure
from perdure.report.tables import Table

CHECKOUT = Path(__file__).resolve().parents[1]
TABLE = '''
"""{about}

More of it."""

from dataclasses import replace

from perdure import VariationalConfig
from perdure.experiments.ledger import Place
from perdure.experiments.methods import LOWER_BOUNDS, Setting, continual
from perdure.report.figures import average_curves
from perdure.report.tables import Column, Row, Table

TINY = VariationalConfig(latent=8, features=16, width=16, batch=8, replay_batch=6)
SETTING = Setting(features=16, gamma=4.0, warm_up=2, steps={steps}, joint_steps=5)


def table(seeds, setting):
    place = Place("office31.tasks", ("D", "A"))
    rows = [
        Row({label!r}, continual(TINY), seeds),
        Row("nearest", LOWER_BOUNDS["nearest class mean"], inductive_seeds=(0,), paper="12.5", tier=3),
    ]
    return Table({name!r}, "Title of {name}", [Column("D→A", place, setting)], rows[{rows}], average_curves)


FULL = table({seeds}, SETTING)
QUICK = table((0,), replace(SETTING, steps=1))
'''


def write_table(folder: Path, name: str, *, rows: str = ":", seeds: str = "(0, 1)", steps: int = 2, **more: str) -> None:
    """Two rows: ours with each seed, and a lower bound, transductive and inductive."""
    values = {"about": f"About {name}.", "name": name, "rows": rows, "seeds": seeds, "steps": steps, "label": "ours", **more}
    (folder / "reproduce" / f"{name}.py").write_text(TABLE.lstrip("\n").format(**values), encoding="utf-8")


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder like a checkout, with one table "alpha", as the current folder; nothing is written to the real one."""
    for part in ("data", "reproduce", "src/perdure"):
        (tmp_path / part).mkdir(parents=True)
    write_table(tmp_path, "alpha")
    monkeypatch.setenv("PERDURE_DATA", str(stand_in.write(tmp_path / "data")))
    monkeypatch.chdir(tmp_path)
    assert reproduce.find_folder() == tmp_path / "reproduce"
    return tmp_path


@pytest.fixture
def carried_out(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The labels of the runs, which are carried out here, one after another; `test_pool` has them in processes."""
    labels: list[str] = []

    def execute(tasks: Sequence[Task], *, finished: Callable[[Task, Result], object], **_: Any) -> list[Failure]:
        for task in tasks:
            labels.append(task.label)
            finished(task, task.planned.carry_out(progress=False))
        return []

    monkeypatch.setattr(reproduce, "execute", execute)
    return labels


def files(folder: Path) -> set[str]:
    """Everything in it, without what Python leaves."""
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts}


OURS = ["ours, office31.tasks D A, seed 0", "ours, office31.tasks D A, seed 1"]
NEAREST = ["nearest, office31.tasks D A", "nearest, office31.tasks D A, inductive"]


# -- what is written ---------------------------------------------------------------------------------------------------------


def test_a_full_run_writes_results_picture_and_its_section(checkout: Path, carried_out: list[str]) -> None:
    docs = checkout / "docs"
    docs.mkdir()
    (docs / "ledger.md").write_text("# Ledger\n\nA person's words.\n", encoding="utf-8")
    before = files(checkout)
    (done,) = reproduce.reproduce("alpha")
    assert carried_out == [*OURS, *NEAREST]
    written = {"reproduce/results/alpha.json", "reproduce/results/alpha.png"}
    assert files(checkout) == before | written  # nor is a lock left behind
    assert (done.name, done.runs, done.missing) == ("alpha", 4, 0)
    assert (done.results, done.picture) == tuple(checkout / name for name in sorted(written))
    assert done.picture.read_bytes().startswith(b"\x89PNG")
    ledger = (docs / "ledger.md").read_text(encoding="utf-8")
    begin = "<!-- begin alpha (written by `perdure reproduce alpha`) -->\n## Title of alpha\n"
    assert ledger.startswith(f"# Ledger\n\nA person's words.\n\n{begin}")
    assert ledger.endswith("Command: `perdure reproduce alpha`.\n<!-- end alpha -->\n")
    row = next(line for line in ledger.splitlines() if line.startswith("| nearest"))
    cell = row.split("|")[2].strip()
    stored = [result for key, result in Store(done.results).results().items()]
    assert cell in {f"{100 * matrix.average:.1f}" for result in stored for matrix in result.accuracy.values()}
    assert re.search(rf"nearest +{re.escape(cell)}", done.text)


def test_a_quick_run_writes_beside_and_never_to_the_ledger(checkout: Path, carried_out: list[str]) -> None:
    before = files(checkout)
    (done,) = reproduce.reproduce("alpha", budget="quick")
    assert carried_out == [OURS[0], *NEAREST]
    assert files(checkout) == before | {"reproduce/results/quick/alpha.json", "reproduce/results/quick/alpha.png"}
    assert (done.runs, done.missing) == (3, 0)


def test_the_rule_of_selection_is_the_last_step_wherever_numbers_stand(checkout: Path, carried_out: list[str]) -> None:
    """That no label of a query chooses anything is seen bit for bit in `test_methods`."""
    (done,) = reproduce.reproduce("alpha")
    entries = json.loads(done.results.read_text(encoding="utf-8"))["runs"]
    assert [entry["result"]["selection"] for entry in entries] == ["last step"] * 4
    for text in (done.text, (checkout / "docs" / "ledger.md").read_text(encoding="utf-8")):
        assert "scored at the last step, nothing selected" in text


def test_show_runs_nothing_and_writes_what_is_there(checkout: Path, carried_out: list[str]) -> None:
    (nothing,) = reproduce.reproduce("alpha", show=True)
    assert (nothing.runs, nothing.missing) == (4, 4)
    assert not (checkout / "docs").exists()
    reproduce.reproduce("alpha", only="nearest")
    ledger = checkout / "docs" / "ledger.md"
    text = ledger.read_text(encoding="utf-8")
    ledger.unlink()
    carried_out.clear()
    (some,) = reproduce.reproduce("alpha", show=True)
    assert carried_out == []
    assert (some.runs, some.missing) == (4, 2)
    assert ledger.read_text(encoding="utf-8") == text


# -- what is run -------------------------------------------------------------------------------------------------------------


def test_what_is_there_is_not_run_again(checkout: Path, carried_out: list[str]) -> None:
    reproduce.reproduce("alpha")
    stored = (checkout / "reproduce/results/alpha.json").read_bytes()
    carried_out.clear()
    reproduce.reproduce("alpha")
    assert carried_out == []
    assert (checkout / "reproduce/results/alpha.json").read_bytes() == stored
    write_table(checkout, "alpha", seeds="(0, 1, 2)")
    reproduce.reproduce("alpha")
    assert carried_out == ["ours, office31.tasks D A, seed 2"]


def test_a_run_that_two_tables_want_is_done_once_and_stands_in_both(checkout: Path, carried_out: list[str]) -> None:
    write_table(checkout, "beta", seeds="(1, 2)")
    done = reproduce.reproduce(["alpha", "beta", "alpha"])
    assert carried_out == [*OURS, "ours, office31.tasks D A, seed 2", *NEAREST]
    assert [(each.name, each.missing) for each in done] == [("alpha", 0), ("beta", 0)]
    alpha, beta = (Store(each.results).read() for each in done)
    assert len(alpha) == len(beta) == 4
    shared = alpha.keys() & beta.keys()
    assert len(shared) == 3
    assert all(alpha[key] == beta[key] for key in shared)


def test_the_papers_budget_is_the_ledgers_unless_a_file_states_another(checkout: Path, carried_out: list[str]) -> None:
    before = files(checkout)
    reproduce.reproduce("alpha", budget="paper")
    assert carried_out == [task.label for _, task in _load("alpha").tasks()]
    assert files(checkout) == before | {"reproduce/results/paper/alpha.json", "reproduce/results/paper/alpha.png"}
    assert reproduce.load(CHECKOUT / "reproduce", "office31-tasks", "paper").tasks() == _steps_of(
        "office31-tasks", "ledger", 1000
    )
    _steps_of("office-home-tasks", "ledger", 1000)
    _steps_of("office-home-tasks", "paper", 5000)


def _steps_of(name: str, budget: reproduce.Budget, steps: int) -> list[tuple[int, Task]]:
    tasks = reproduce.load(CHECKOUT / "reproduce", name, budget).tasks()
    configs = [task.planned.method.config for _, task in tasks if task.planned.method.kind == "continual"]
    assert {config.steps for config in configs if config is not None and config.warm_up} == {steps}
    return tasks


@pytest.mark.parametrize("quick", [False, True])
def test_a_run_that_another_table_has_done_is_copied(quick: bool, checkout: Path, carried_out: list[str]) -> None:
    """From `results/quick`, too: what is the same at both budgets has one key."""
    (first,) = reproduce.reproduce("alpha", budget="quick" if quick else "ledger")
    write_table(checkout, "beta")
    carried_out.clear()
    (second,) = reproduce.reproduce("beta")
    assert carried_out == (OURS if quick else [])
    assert second.missing == 0
    before, after = Store(first.results).read(), Store(second.results).read()
    for key in before.keys() & after.keys():
        assert after[key] == before[key]
    assert len(before.keys() & after.keys()) == (2 if quick else 4)


def test_only_chooses_by_label(checkout: Path, carried_out: list[str]) -> None:
    (done,) = reproduce.reproduce("alpha", only="seed 1")
    assert carried_out == OURS[1:]
    assert (done.runs, done.missing) == (4, 3)
    with pytest.raises(InputError) as raised:
        reproduce.reproduce("alpha", only="seed 7")
    assert str(raised.value) == f"No run is called 'seed 7'. They are called like {OURS[0]!r} and {NEAREST[1]!r}."
    assert carried_out == OURS[1:]
    reproduce.reproduce("alpha", only="seed 1")  # there is such a run, it is just done already
    assert carried_out == OURS[1:]


def test_the_longest_of_the_most_important_runs_come_first(checkout: Path, carried_out: list[str]) -> None:
    write_table(checkout, "beta", steps=9, seeds="(0,)", label="longer")
    reproduce.reproduce(["alpha", "beta"])
    assert carried_out == ["longer, office31.tasks D A, seed 0", *OURS, *NEAREST]
    alpha, beta = (Store(checkout / f"reproduce/results/{name}.json").read() for name in ("alpha", "beta"))
    assert len(alpha) == 4
    assert len(beta) == 3
    times = [entry["run"]["method"]["config"]["steps"] for entry in beta.values() if entry["run"]["method"]["config"]]
    assert times == [9]


def test_a_failed_run_is_told_and_the_others_are_kept(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def execute(tasks: Sequence[Task], *, finished: Callable[[Task, Result], object], **_: Any) -> list[Failure]:
        for task in tasks[1:]:
            finished(task, task.planned.carry_out(progress=False))
        return [Failure(tasks[0], "Traceback\n  somewhere\nValueError: too warm\n")]

    monkeypatch.setattr(reproduce, "execute", execute)
    with pytest.raises(RunsFailed) as raised:
        reproduce.reproduce("alpha")
    assert str(raised.value) == (
        f"1 run failed; what is done is kept, and the same call tries again:\n  {OURS[0]}: ValueError: too warm"
    )
    assert "somewhere" in str(raised.value.__cause__)
    assert len(Store(checkout / "reproduce/results/alpha.json").read()) == 3
    assert "3 of 4 runs are there" in (checkout / "docs/ledger.md").read_text(encoding="utf-8")


# -- what is refused ---------------------------------------------------------------------------------------------------------


def test_unknown_names_are_refused_before_anything_is_run_or_written(checkout: Path, carried_out: list[str]) -> None:
    write_table(checkout, "beta")
    before = files(checkout)
    with pytest.raises(InputError, match=r"^Nothing is called 'gamma'\. There are: alpha, beta\.$"):
        reproduce.reproduce(["alpha", "gamma"])
    with pytest.raises(InputError, match=r"^Nothing is called '\.\./alpha'\."):
        reproduce.reproduce("../alpha")
    assert carried_out == []
    assert files(checkout) == before


def test_a_file_that_states_another_name_is_refused(checkout: Path) -> None:
    (checkout / "reproduce" / "alpha.py").rename(checkout / "reproduce" / "beta.py")
    with pytest.raises(InputError, match=r"beta\.py states the name 'alpha'; it must be 'beta'\.$"):
        reproduce.reproduce("beta")


def test_absent_data_and_devices_are_said_once_and_at_once(checkout: Path, carried_out: list[str], tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"^office31_resnet50\.npz is not in .*nowhere\. Set PERDURE_DATA"):
        reproduce.reproduce("alpha", data=tmp_path / "nowhere")
    assert os.environ["PERDURE_DATA"] == str(checkout / "data")
    with pytest.raises(InputError, match=r"^The device 'moon' cannot be used here: "):
        reproduce.reproduce("alpha", device="moon")
    assert carried_out == []


def test_damaged_results_are_said_and_left_alone(checkout: Path, carried_out: list[str]) -> None:
    reproduce.reproduce("alpha")
    path = checkout / "reproduce/results/alpha.json"
    half = path.read_bytes()[:500]
    path.write_bytes(half)
    with pytest.raises(InputError, match=r"alpha\.json is not a file of results .* Restore it, or remove it to begin anew\.$"):
        reproduce.reproduce("alpha")
    assert path.read_bytes() == half


def test_the_folder_is_found_from_below_and_beside_an_editable_install(
    checkout: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    deeper = checkout / "src" / "perdure"
    monkeypatch.chdir(deeper)
    assert reproduce.find_folder() == checkout / "reproduce"
    assert reproduce.names(checkout / "reproduce") == ["alpha"]
    assert reproduce.about(checkout / "reproduce", "alpha") == "About alpha."
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    monkeypatch.chdir(elsewhere)
    assert reproduce.find_folder() == Path(reproduce.__file__).resolve().parents[3] / "reproduce"
    monkeypatch.setattr(reproduce, "__file__", str(elsewhere / "a" / "b" / "c" / "d.py"))
    with pytest.raises(InputError, match=r"^There is no folder `reproduce` from .* upwards\. Run this inside a checkout of perd"):
        reproduce.find_folder()


# -- stopped -----------------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def command(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """`perdure reproduce ...` in a session of its own, as a terminal has it."""
    process = subprocess.Popen(
        [sys.executable, "-m", "perdure", "reproduce", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def test_ctrl_c_keeps_what_is_done_and_the_same_command_goes_on(checkout: Path) -> None:
    write_table(checkout, "alpha", rows=":1", seeds="(0, 1, 2, 3, 4)", steps=30)
    path = checkout / "reproduce/results/alpha.json"
    arguments = ("alpha", "--workers", "1", "--json")
    with command(*arguments) as first:
        deadline = time.monotonic() + 60
        while not path.exists() and first.poll() is None and time.monotonic() < deadline:
            time.sleep(0.01)
        os.killpg(first.pid, signal.SIGINT)
        out, said = first.communicate(timeout=30)
    assert first.returncode == 130
    again = "stopped; finished runs are kept. To go on, run the same command again:\n  perdure reproduce alpha --workers 1 --json"
    assert said == f"perdure: {again}\n"  # and nothing of a worker's
    assert json.loads(out)["error"]["message"] == again
    kept = Store(path).read()
    assert 1 <= len(kept) < 5
    assert f"{len(kept)} of 5 runs are there" in (checkout / "docs/ledger.md").read_text(encoding="utf-8")

    # Marked, so that one that was computed again would be seen, however equal its numbers.
    path.write_text(path.read_text(encoding="utf-8").replace('"device": "cpu', '"device": "kept, cpu'), encoding="utf-8")
    marked = [line.rstrip(",") for line in path.read_text(encoding="utf-8").splitlines()]
    with command(*arguments) as second:
        out, said = second.communicate(timeout=60)
    assert (second.returncode, said) == (0, "")
    told = json.loads(out)["reproduced"]["alpha"]
    assert (told["runs"], told["missing"]) == (5, 0)
    lines = [line.rstrip(",") for line in path.read_text(encoding="utf-8").splitlines()]
    assert set(marked) <= set(lines)
    assert [line for line in lines if '"device": "kept, cpu' in line] == marked[1:-1]
    assert Store(path).read().keys() == {task.planned.key for _, task in _load("alpha").tasks()}


def _load(name: str) -> Experiment:
    return reproduce.load(reproduce.find_folder(), name)


# -- the files of the checkout -----------------------------------------------------------------------------------------------

NAMES = reproduce.names(CHECKOUT / "reproduce")


@pytest.mark.parametrize("name", NAMES)
def test_every_file_states_its_name_and_a_quick_budget_that_costs_less(name: str) -> None:
    full, quick = (reproduce.load(CHECKOUT / "reproduce", name, budget) for budget in ("ledger", "quick"))
    assert full.name == quick.name == name
    assert reproduce.about(CHECKOUT / "reproduce", name).endswith((".", "?"))
    runs, few = ([task.planned for _, task in experiment.tasks()] for experiment in (full, quick))
    assert 0 < len(few) <= len(runs)
    assert 0 < sum(run.cost for run in few) < sum(run.cost for run in runs)
    assert len({run.key for run in runs}) == len(runs)
    assert {run.place.unordered() for run in few} <= {run.place.unordered() for run in runs}
    assert len({task.label for _, task in full.tasks()}) == len(runs)  # `only` can tell them apart


SECONDS_PER_COST = 0.015
"""Of one process beside another on two cores: a step of h 1024 took 28 ms there, one of h 2048 took 45 ms."""


@pytest.mark.parametrize("name", sorted({*NAMES} - {"office-home-domains-fine-tuned"}))  # needs a GPU
def test_a_quick_budget_takes_less_than_ten_minutes_on_two_cores(name: str) -> None:
    tasks = reproduce.load(CHECKOUT / "reproduce", name, "quick").tasks()
    assert sum(task.planned.cost for _, task in tasks) * SECONDS_PER_COST / 2 < 9 * 60  # and a minute for what is no step


@pytest.mark.parametrize("name", NAMES)
def test_every_seed_of_a_row_is_among_those_that_its_table_names(name: str) -> None:
    experiment = reproduce.load(CHECKOUT / "reproduce", name)
    rows = [row.seeds for row in experiment.rows if row.method.config is not None] if isinstance(experiment, Table) else []
    longest = max(rows, key=len, default=())
    assert all(tuple(seeds) == tuple(longest[: len(seeds)]) for seeds in rows)


@pytest.mark.parametrize("name", NAMES)
def test_every_file_is_named_where_its_place_in_the_paper_stands(name: str) -> None:
    assert f"`reproduce/{name}.py`" in (CHECKOUT / "docs" / "paper.md").read_text(encoding="utf-8")


def test_there_is_something_to_reproduce() -> None:
    assert {"office31-tasks", "office-home-tasks", "ablation", "domain-curves"} <= set(NAMES)


@pytest.mark.parametrize("name", reproduce.names(CHECKOUT / "reproduce"))
def test_no_method_states_what_its_setting_overwrites(name: str) -> None:
    """A rate in a row's configuration would be read by people and by nothing else."""
    experiment = reproduce.load(CHECKOUT / "reproduce", name)
    stating = experiment.rows if isinstance(experiment, Table) else [experiment] if isinstance(experiment, Figure) else []
    methods = [each.method for each in stating]
    overwritten = [field.name for field in fields(Setting) if field.name != "joint_steps"]
    for config in (method.config for method in methods if method.config is not None):
        stated = {field: getattr(config, field) for field in overwritten if field not in ("steps", "warm_up")}
        assert stated == {field: getattr(VariationalConfig(), field) for field in stated}
