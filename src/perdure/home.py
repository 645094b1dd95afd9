"""A home: a folder in which the command line keeps a learner, and beside it what a learner does not know of files.

That is which columns are features, and where the halves of unfinished environments are to be read again. It is one small
`home.json` next to the learner's own files, and no data are in it. `learn`, `predict`, `status` and `forget` are what the
commands of the same names do.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from perdure import checkpoint
from perdure.analytic import Adapted, AnalyticLearner
from perdure.answers import abstaining
from perdure.errors import CheckpointError, InputError, NotSolvableYet, PerdureError, UnknownEnvironment
from perdure.inputs.backbones import Backbone, Identity, lasting_name
from perdure.inputs.folders import photos
from perdure.inputs.showing import (
    Showing,
    Through,
    check_kind,
    differing_folders,
    digest_of,
    is_of_pictures,
    one_level_too_high,
    read_input,
)
from perdure.inputs.tables import Features, Table, check_readable, replacing
from perdure.progress import Progress
from perdure.streams import Environment, Label, Query, Support
from perdure.variational import Learned, VariationalConfig, VariationalLearner
from perdure.waiting import Half, Queued

FORMAT = 1
FILE = "home.json"
LOCK = ".lock"
HALVES: tuple[Half, Half] = ("support", "query")
ROWS_AT_ONCE = 65_536
EVERY = 200
"""Steps between two saves of a learner that makes steps."""
RULES = 0.8
"""A column of more than this part of the rows' squared length leaves the others next to nothing once rows have length one."""

Note = Callable[[str], object]
Kind = Literal["analytic", "variational"]
Learner: TypeAlias = AnalyticLearner | VariationalLearner


class Busy(PerdureError):
    """Another process is changing this home."""


# -- what is remembered ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Source:
    """A file, or a folder of pictures, that half an environment was read from: where it is, never what is in it."""

    path: str
    sha256: str
    label_column: str | None = None

    @classmethod
    def of(cls, path: Path, label_column: str | None) -> Source:
        """The file as it is now."""
        if not is_of_pictures(path):
            check_readable(path)
        return cls(str(path.absolute()), _digest(path), label_column)

    def unchanged(self, environment: str, half: Half) -> Path:
        """Its path, if it still holds what it held."""
        path = Path(self.path)
        if not path.exists():
            raise InputError(f'The {half} of "{environment}" was {path}, which is gone; put it back or give `--{half}` again.')
        if _digest(path) != self.sha256:
            raise InputError(f'The {half} of "{environment}" was {path}, which has changed since; give `--{half}` again.')
        return path


@dataclass(frozen=True)
class Memory:
    """What `home.json` holds."""

    features: Features | None = None
    """The columns that every table must have."""
    label_columns: tuple[str, ...] = ()
    """Every column that ever held labels: never read as a feature."""
    ignored: tuple[str, ...] = ()
    """Columns to leave out wherever they turn up."""
    pending: Mapping[str, Mapping[Half, Source]] = field(default_factory=dict)
    """The files of environments that are not learned yet."""
    through: Through | None = None
    """The backbone that sees all pictures or texts; `None` where tables of features are learned from."""
    learner: Kind | None = None
    """Which learner is saved beside it; `None` if that was not written down, as it once was not."""

    @classmethod
    def read(cls, folder: Path) -> Memory:
        """What is remembered in `folder`: nothing, if it is new."""
        if not folder.exists():
            return cls()
        if not folder.is_dir():
            raise InputError(f"{folder} is a file, not the folder of a perdure home.")
        path = folder / FILE
        try:
            if not path.exists():
                # A learner saved from Python is a home too: one whose columns have no names.
                if not _is_saved_learner(folder) and not all(_is_left_behind(entry.name) for entry in folder.iterdir()):
                    raise InputError(f"{folder} is not a perdure home: it has files in it, but no {FILE}. Give a new folder.")
                return cls()
            memory = _from_json(json.loads(path.read_text(encoding="utf-8")))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            if isinstance(error, InputError):
                raise
            raise CheckpointError(f"{path} is damaged: {type(error).__name__}: {error}. Restore it from a copy.") from error
        if not _is_saved_learner(folder) and (memory.learner is not None or (folder / checkpoint.TENSORS).exists()):
            raise CheckpointError(
                f"{folder} is damaged: {checkpoint.STATE}, a part of its learner, is gone; restore it from a copy."
            )
        return memory

    def write(self, folder: Path) -> None:
        """Keep it in `folder`, all of it or what was there before."""
        content = {
            "format": FORMAT,
            "features": None if self.features is None else asdict(self.features),
            "label_columns": self.label_columns,
            "ignored": self.ignored,
            "pending": {name: {half: asdict(of) for half, of in halves.items()} for name, halves in self.pending.items()},
            "through": None if self.through is None else asdict(self.through),
            "learner": self.learner,
        }
        with replacing(folder / FILE) as file:
            file.write(json.dumps(content, indent=1, ensure_ascii=False).encode())

    def without(self, environment: str) -> Memory:
        """The same, with nothing pending for this environment."""
        return replace(self, pending={name: halves for name, halves in self.pending.items() if name != environment})


# -- what the commands do -------------------------------------------------------------------------------------------------


def learn(
    folder: Path,
    environment: str,
    support: Path | None = None,
    query: Path | None = None,
    *,
    label_column: str | None = None,
    ignore: Sequence[str] = (),
    kind: Kind | None = None,
    settings: Mapping[str, Any] | None = None,
    showing: Showing | None = None,
    device: str | None = None,
    every: int | None = None,
    progress: Progress = None,
    note: Note = print,
) -> tuple[Adapted | Learned | Queued | None, Learner]:
    """Learn an environment from tables, folders of pictures or texts, or go on where an interrupted run of the same stopped.

    A new home gets the analytic learner unless `kind` says otherwise, and keeps the one it has. `settings` and `every` are of
    the variational learner. `None` is returned if an interrupted run had stopped after the last step. On any error the folder is
    what it was before.
    """
    with locked(folder):
        memory, showing = Memory.read(folder), showing or Showing()
        learner = _learner_to_teach(folder, kind, settings or {}, every, device)
        _say_what_is_not_remembered(note, folder, memory, learner)
        given: dict[Half, Path] = {half: path for half, path in zip(HALVES, (support, query), strict=True) if path is not None}
        if environment in learner.environments and environment in memory.pending:  # killed between its last two writes
            _refuse_other_files(environment, given, memory.pending[environment])
            memory.without(environment).write(folder)
            return None, learner
        pending = {name: halves for name, halves in memory.pending.items() if name not in learner.environments}
        memory = replace(memory, pending=pending)
        _refuse_idle_device(learner, memory, showing, device)
        read, after = _read_halves(folder, learner, memory, environment, given, label_column, ignore, showing, progress, note)
        outcome: Adapted | Learned | Queued
        with _undone_on_failure(folder, learner):
            after.write(folder)
            if isinstance(learner, VariationalLearner):
                outcome = learner.learn(read, checkpoint=folder, every=every or EVERY, progress=progress)
            else:
                outcome = learner.learn(read)
                if isinstance(outcome, Adapted):
                    learner.save(folder)
        if not isinstance(outcome, Queued):
            after.without(environment).write(folder)
        return outcome, learner


def predict(
    folder: Path,
    path: Path,
    environment: str | None = None,
    *,
    proba: bool = False,
    abstain_below: float | None = None,
    ignore: Sequence[str] = (),
    showing: Showing | None = None,
    device: str | None = None,
    progress: bool | None = None,
    note: Note = print,
) -> dict[str, NDArray[Any]]:
    """Columns of answers, one a row of the table and in its order, or one a picture. Changes nothing."""
    from tqdm import tqdm

    (memory, learner), showing = _opened(folder, device), showing or Showing()
    _say_what_is_not_remembered(note, folder, memory, learner)
    _refuse_idle_device(learner, memory, showing, device)
    if abstain_below is not None and isinstance(learner, VariationalLearner):
        raise InputError(
            f"--abstain-below is an option of the analytic learner, and {folder} has the variational one. Leave it out."
        )
    _refuse_pending(memory, learner, environment)
    leave_out = {*memory.ignored, *memory.label_columns, *ignore}
    through = _through(folder, memory, showing, bound=True)
    read = read_input(
        path,
        through,
        showing,
        label=None,
        labelled=False,
        leave_out=leave_out,
        like=memory.features,
        progress=progress,
        note=note,
    )
    _say(note, path, read, memory.label_columns)
    if through is None and isinstance(learner, AnalyticLearner):
        _say_what_rules(note, path, read)
    _refuse_unused(ignore, [read])
    parts: dict[str, list[NDArray[Any]]] = {}
    infers = environment is None
    disable = None if progress is None else not progress
    starts = range(0, len(read.x), ROWS_AT_ONCE)
    for start in tqdm(starts, desc="predict", unit="block", disable=disable, leave=False):
        rows = read.x[start : start + ROWS_AT_ONCE]
        probabilities = learner.predict_proba(rows, environment)
        columns: dict[str, NDArray[Any]] = {"prediction": abstaining(np.array(learner.classes), probabilities, abstain_below)}
        if infers:
            try:
                inferred = learner.inferred_environment(rows)
                columns |= {"environment": inferred.names, "confidence": inferred.confidence}
            except NotSolvableYet as error:
                note(str(error))
                infers = False
        if proba:
            columns |= {f"probability_{label}": probabilities[:, i] for i, label in enumerate(learner.classes)}
        for name, column in columns.items():
            parts.setdefault(name, []).append(column)
    answers = {name: np.concatenate(part) for name, part in parts.items()}
    return answers if read.names is None else {"picture": np.array(read.names), **answers}


@dataclass(frozen=True)
class Waiting:
    """An environment that was not learned yet, and why."""

    environment: str
    missing: Half | None
    """`None`: its two files are known, but it was stopped before its first checkpoint."""
    files: Mapping[Half, str]


@dataclass(frozen=True)
class InProgress:
    """An environment whose learning was interrupted."""

    environment: str
    step: int
    steps: int


@dataclass(frozen=True)
class Status:
    """What a home holds."""

    learner: Kind
    environments: list[str]
    adapted: Mapping[str, bool] | None
    """Whether the guard let each adaptation pass; only the analytic learner has one."""
    classes: list[Label]
    queued: list[Waiting]
    in_progress: InProgress | None
    features: Features | None
    backbone: str | None
    """The name of the one that pictures or texts go through."""
    bytes_held: Mapping[str, int]
    config: Mapping[str, Any] | None


def status(folder: Path) -> Status:
    """What is learned, what waits and what is under way."""
    memory, learner = _opened(folder)
    missing: dict[str, Half | None] = {**learner.queued}
    for name, halves in memory.pending.items():
        if name not in (*learner.environments, _in_progress(learner)):
            missing[name] = _missing(halves)
    queued = [
        Waiting(name, half, {which: source.path for which, source in memory.pending.get(name, {}).items()})
        for name, half in missing.items()
    ]
    return Status(
        learner=_kind(learner),
        environments=learner.environments,
        adapted=learner.adapted if isinstance(learner, AnalyticLearner) else None,
        classes=learner.classes,
        queued=queued,
        in_progress=in_progress(folder),
        features=memory.features,
        backbone=None if memory.through is None else memory.through.name,
        bytes_held=learner.bytes_held,
        config=asdict(learner.config) if _is_saved_learner(folder) else None,
    )


def in_progress(folder: Path) -> InProgress | None:
    """What a saved learner was doing when it was stopped."""
    if not _is_saved_learner(folder):
        return None
    state = checkpoint.read_state(folder)
    lesson, config = state.get("lesson"), state.get("config")
    if not lesson or not config:
        return None
    return InProgress(lesson["name"], lesson["step"], config["warm_up"] + config["steps"])


def forget(folder: Path, environment: str) -> Learner:
    """Drop an environment, whether it is learned, queued or under way."""
    _refuse_absent(folder)
    with locked(folder):
        memory, learner = _opened(folder)
        known = [name for name in (*learner.environments, *learner.queued, _in_progress(learner)) if name]
        if environment not in known and environment not in memory.pending:
            names = list(dict.fromkeys((*known, *memory.pending)))
            raise UnknownEnvironment(f'No environment is called "{environment}". {folder} knows {names}.')
        if environment in known:
            learner.forget(environment)
            learner.save(folder)
        memory.without(environment).write(folder)
        return learner


# -- from files to an environment -----------------------------------------------------------------------------------------


def _read_halves(
    folder: Path,
    learner: Learner,
    before: Memory,
    name: str,
    given: Mapping[Half, Path],
    label_column: str | None,
    ignore: Sequence[str],
    showing: Showing,
    progress: Progress,
    note: Note,
) -> tuple[Environment, Memory]:
    """The environment with every half that is known, and what is to be remembered from then on."""
    known = {half: source for half, source in before.pending.get(name, {}).items() if half not in given}
    if len(known) < 2 and not given:
        wanted = " and ".join(f"`--{half}`" for half in HALVES if half not in known)
        raise InputError(f'Learning "{name}" needs files: give {wanted}.')
    for path in given.values():
        if not path.exists():
            raise InputError(f"{path} does not exist.")
    paths = {**{half: source.unchanged(name, half) for half, source in known.items()}, **given}

    # While nothing was made of them yet, columns and the backbone are free to change.
    bound = bool(learner.environments or _in_progress(learner) or known or any(other != name for other in before.pending))
    through = _through(folder, before, showing, bound=bound)
    pictures = through is not None and through[0].text_column is None
    for path in paths.values():
        check_kind(path, through)
    if pictures and "support" in paths and (doubt := one_level_too_high(paths["support"])) is not None:
        note(doubt)
    if pictures and len(paths) == 2:
        for sentence in differing_folders(paths["support"], paths["query"]):
            note(sentence)

    column = None
    if pictures and label_column is not None:
        raise InputError("The classes of pictures are their folders; leave `--label-column` out.")
    if "support" in paths and not pictures and not is_of_pictures(paths["support"]):
        column = _label_column(before, paths["support"], label_column, known.get("support"))
    named = [label_column, None if "support" not in paths or _is_npz(paths["support"]) else column]
    labels = tuple(dict.fromkeys((*before.label_columns, *(name for name in named if name is not None))))
    ignored = tuple(dict.fromkeys((*before.ignored, *ignore)))
    features = before.features if bound else None
    for taken in {*labels, *ignored} & set((features and features.names) or ()):
        raise InputError(f'"{taken}" is a feature of what was learned before: it can be neither left out nor the label.')

    tables: dict[Half, Table] = {}
    for half, path in sorted(paths.items(), reverse=True):  # the support first
        label, also = column if half == "support" else None, ("y",) if _is_npz(path) else ()
        leave_out = {*ignored, *labels, *also}.difference(() if label is None else (label,))
        tables[half] = read_input(
            path,
            through,
            showing,
            label=label,
            labelled=half == "support",
            leave_out=leave_out,
            like=features,
            progress=progress,
            note=note,
        )
        if half in given:
            known[half] = Source.of(path, label)
        features = features or tables[half].features
        _say(note, path, tables[half], (*labels, *also))
        if through is None and isinstance(learner, AnalyticLearner):
            _say_what_rules(note, path, tables[half])
        copies = len(tables[half].x) - len({hash(row.tobytes()) for row in tables[half].x})
        if copies:
            note(f"{path}: {copies} of {len(tables[half].x)} rows are copies of an earlier one; each counts like any other row.")
    _refuse_unused(ignore, tables.values())

    support, query = tables.get("support"), tables.get("query")
    environment = Environment(
        name,
        None if support is None or support.y is None else Support(support.x, support.y),
        None if query is None else Query(query.x),
    )
    pending = {**before.pending, name: known}
    return environment, Memory(features, labels, ignored, pending, None if through is None else through[0], _kind(learner))


def _through(folder: Path, memory: Memory, showing: Showing, *, bound: bool) -> tuple[Through, Backbone] | None:
    """The backbone that inputs go through: the one that is remembered once something was made of it, or the one asked for."""
    before = memory.through if bound else None
    if before is None and showing.backbone is None:
        if showing.text_column is not None:
            raise InputError("Texts need a pretrained network that reads them; name it with `--backbone`.")
        return None
    if before is None and bound:
        raise InputError(f"{folder} learned from tables of features, without a backbone; leave `--backbone` out.")
    text_column = showing.text_column if showing.text_column is not None or before is None else before.text_column
    name = showing.backbone or (before.name if before is not None else "")
    try:
        backbone = showing.open(name, text_column)
    except InputError as error:
        if showing.backbone is not None:
            raise
        raise InputError(
            f"{folder} learned through a backbone that cannot be used now. {error} Or name it with `--backbone`."
        ) from error
    through = Through(lasting_name(name), backbone.identity, text_column)
    if before is not None and (difference := before.mismatch(through)) is not None:
        raise InputError(
            f"{folder} learned through {before.name}; {name} {difference}. Leave `--backbone` out, or use another home."
        )
    return through, backbone


def _refuse_other_files(environment: str, given: Mapping[Half, Path], learned: Mapping[Half, Source]) -> None:
    """Of an environment that is learned nothing is learned again, and no other file is taken for what it was learned from."""
    for half, path in given.items():
        if half not in learned or Source.of(path, None).sha256 != learned[half].sha256:
            raise InputError(
                f'Environment "{environment}" is learned already, and {path} is not the {half} that it was learned from. Give '
                f'the new data a new name, or forget("{environment}") first.'
            )


def _label_column(memory: Memory, path: Path, given: str | None, known: Source | None) -> str:
    if known is not None and known.label_column is not None:
        return known.label_column
    if given is not None:
        return given
    if _is_npz(path):
        return "y"
    if memory.label_columns:
        return memory.label_columns[-1]
    raise InputError(f"Which column of {path} holds the labels? Name it with `--label-column`.")


def _say(note: Note, path: Path, table: Table, labels: Iterable[str]) -> None:
    for name in table.left_out:
        if name in labels:
            note(f'{path}: "{name}" holds labels; it is left out, neither a feature nor looked at.')
    for name in table.counting:
        note(f'{path}: "{name}" only counts the rows, yet it is read as a feature; if it is none, `--ignore-column {name}`.')
    if table.by_place:
        note(f"{path}: columns are matched by their place, because an NPZ array has no names for them.")


def _say_what_rules(note: Note, path: Path, table: Table) -> None:
    squares = np.einsum("ij,ij->j", table.x, table.x, dtype=np.float64)
    first, part = int(squares.argmax()), float(squares.max() / max(squares.sum(), 1e-30))
    if part > RULES:
        name = f'"{table.features.names[first]}"' if table.features.names else f"column {first + 1}"
        note(
            f"{path}: {name} makes up {part:.0%} of the squared length of the rows. The analytic learner brings rows to length "
            "one, so that other columns hardly count; bring all to one scale, the query's by the support's mean and spread."
        )


def _say_what_is_not_remembered(note: Note, folder: Path, memory: Memory, learner: Learner) -> None:
    """Of a learner that was saved from Python, or whose `home.json` is lost."""
    if memory == Memory() and learner.environments:
        note(
            f"{folder} has a learner but no {FILE}, as one saved from Python: the names of its features, its label column and "
            "its backbone are not known, and columns are matched by their place. If there was one, restore it from a copy."
        )


def _refuse_unused(ignore: Iterable[str], tables: Iterable[Table]) -> None:
    there = {name for table in tables for name in table.left_out}
    for name in ignore:
        if name not in there:
            raise InputError(f'`--ignore-column {name}`: no table has a column "{name}".')


# -- the folder -----------------------------------------------------------------------------------------------------------


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Be the only process that changes this home. The system opens the lock of a process that was killed.

    A folder that was not there is made, and taken away again if nothing came of it.
    """
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise InputError(f"{folder} is a file, not the folder of a perdure home.") from None
    lock = folder / LOCK
    handle = _acquire(lock)
    try:
        for unfinished in folder.glob(f".{FILE}.*.tmp"):  # of a process that was killed
            unfinished.unlink()
        yield
    finally:
        lock.unlink(missing_ok=True)  # before letting go of it, so that nobody can hold a lock that has lost its name
        os.close(handle)
        with suppress(OSError):  # something was kept
            for path in made:
                path.rmdir()


def _acquire(lock: Path) -> int:
    while True:
        handle = os.open(lock, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(handle, 32).decode(errors="replace").strip()
            os.close(handle)
            raise Busy(
                f"{lock.parent} is being changed by another perdure{f' (process {holder})' if holder else ''}. "
                "Wait until it is done, or stop it; then run the same command again."
            ) from None
        except BaseException:
            os.close(handle)
            raise
        with suppress(FileNotFoundError):
            if os.fstat(handle).st_ino == lock.stat().st_ino:
                os.ftruncate(handle, 0)
                with suppress(OSError):  # a full disk: the lock holds, it only cannot say whose it is
                    os.write(handle, str(os.getpid()).encode())
                return handle
        os.close(handle)  # its last holder took the name away between our opening and our locking


@contextmanager
def _undone_on_failure(folder: Path, learner: Learner) -> Iterator[None]:
    """Put the folder back as it was, unless the learner in it has moved on and needs the new `home.json`.

    A new home is given its learner, which has learned nothing yet: killed from here on, it knows which one it has.
    """
    path, new, stamp = folder / FILE, not _is_saved_learner(folder), _stamp(folder)
    before = path.read_bytes() if path.exists() else None
    try:
        if new:
            learner.save(folder)
            stamp = _stamp(folder)
        yield
    except BaseException:
        if _stamp(folder) == stamp:
            with suppress(OSError):  # a full disk: the new one knows of one more pending file, which does no harm
                if before is None:
                    path.unlink(missing_ok=True)
                elif path.read_bytes() != before:
                    with replacing(path) as file:
                        file.write(before)
                for name in (checkpoint.STATE, checkpoint.TENSORS) if new else ():  # last: `home.json` may say that it is there
                    (folder / name).unlink(missing_ok=True)
        raise


def _learner_to_teach(
    folder: Path, kind: Kind | None, settings: Mapping[str, Any], every: int | None, device: str | None
) -> Learner:
    """The learner of this home, or a new one; refuses what does not belong to it."""
    learner = _load(folder, device) if _is_saved_learner(folder) else None
    if learner is not None and kind not in (None, _kind(learner)):
        raise InputError(
            f"{folder} has the {_kind(learner)} learner, as chosen at its first learn; got --learner {kind}. "
            "Leave it out, or use another home."
        )
    kind = kind or (_first_kind(folder) if learner is None else _kind(learner))
    steers_steps = [*settings, *([] if every is None else ["checkpoint_every"])]
    if kind == "analytic" and steers_steps:
        raise InputError(
            f"{_option(steers_steps[0])} is an option of the variational learner, and {folder} has the analytic one. "
            "Leave it out, or begin a new home with --learner variational."
        )
    if learner is None:
        return _new(kind, settings, device)
    saved = asdict(learner.config)
    for name, value in settings.items():
        if value != saved[name]:
            raise InputError(
                f"{folder} learns with {_option(name)} {saved[name]}, as set at its first learn; got {_option(name)} {value}. "
                "Leave it out, or use another home."
            )
    return learner


def _opened(folder: Path, device: str | None = None) -> tuple[Memory, Learner]:
    _refuse_absent(folder)
    memory = Memory.read(folder)
    if _is_saved_learner(folder):
        return memory, _load(folder, device)
    if memory == Memory():
        raise InputError(f"{folder} is empty; begin with `perdure learn {folder} …`.")
    return memory, _new(_first_kind(folder), {}, device)


def _refuse_absent(folder: Path) -> None:
    if not folder.exists():
        raise InputError(f"There is no home at {folder}; begin one with `perdure learn {folder} …`.")


def _new(kind: Kind, settings: Mapping[str, Any], device: str | None) -> Learner:
    if kind == "analytic":
        return AnalyticLearner()
    return VariationalLearner(VariationalConfig(**settings), device=_usable(device))


def _first_kind(folder: Path) -> Kind:
    """Of a home without a saved learner: there was one kind only when homes were left so."""
    return "variational" if (folder / FILE).exists() else "analytic"


def _kind(learner: Learner) -> Kind:
    return "analytic" if isinstance(learner, AnalyticLearner) else "variational"


def _in_progress(learner: Learner) -> str | None:
    """The environment that it was interrupted in; the analytic learner is never half-way."""
    return learner.in_progress if isinstance(learner, VariationalLearner) else None


def _missing(halves: Mapping[Half, Source]) -> Half | None:
    return None if len(halves) == 2 else "query" if "support" in halves else "support"


def _refuse_pending(memory: Memory, learner: Learner, environment: str | None) -> None:
    """A learner that was saved knows nothing of files that wait."""
    if environment is None or environment not in memory.pending or environment in (*learner.environments, _in_progress(learner)):
        return
    missing = _missing(memory.pending[environment])
    what = f"waits for its {missing}; it is queued. Add the {missing}" if missing else "was stopped before its first save. Go on"
    raise NotSolvableYet(f'"{environment}" {what} with `learn(...)` or drop it with `forget("{environment}")`.')


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")


def _refuse_idle_device(learner: Learner, memory: Memory, showing: Showing, device: str | None) -> None:
    """Where nothing would compute on it."""
    seen = memory.through is not None or showing.backbone is not None
    if device not in (None, "cpu") and isinstance(learner, AnalyticLearner) and not seen:
        raise InputError(
            "--device is for backbones and for the variational learner; the analytic one computes on the processor. Leave it out."
        )


def _load(folder: Path, device: str | None) -> Learner:
    """The saved learner. Another process may be saving at this very moment, so that a mismatch deserves a second look."""
    looks = 3
    while True:
        before = _stamp(folder)
        try:
            if checkpoint.read_state(folder).get("learner") == AnalyticLearner.__name__:
                return AnalyticLearner.load(folder)
            return VariationalLearner.load(folder, device=_usable(device))
        except CheckpointError:
            looks -= _stamp(folder) == before
            if looks == 0:
                raise
            time.sleep(0.02)


def _usable(device: str | None) -> str:
    import torch

    device = device or "cpu"
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise InputError(f"`--device {device}` cannot be used here: {str(error).splitlines()[0]}") from error
    return device


def _stamp(folder: Path) -> tuple[int, int] | None:
    """Changes whenever a learner is saved in the folder."""
    try:
        state = (folder / checkpoint.STATE).stat()
    except FileNotFoundError:
        return None
    return state.st_ino, state.st_mtime_ns


def _is_left_behind(name: str) -> bool:
    """By a process that was killed before its first save."""
    return name in (LOCK, f"{checkpoint.TENSORS}.next", f"{checkpoint.STATE}.next")


def _is_saved_learner(folder: Path) -> bool:
    return (folder / checkpoint.STATE).exists()


def _is_npz(path: Path) -> bool:
    return path.suffix.lower() == ".npz"


def _digest(path: Path) -> str:
    if path.is_dir():
        return digest_of(photos(path), _digest)
    digest = hashlib.sha256()
    try:
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}.") from error
    return digest.hexdigest()


def _from_json(content: Any) -> Memory:
    if content["format"] != FORMAT:
        raise ValueError(f"format {content['format']!r} instead of {FORMAT}")
    if (learner := content.get("learner")) not in (None, "analytic", "variational"):
        raise ValueError(f"a learner {learner!r}")
    features = content["features"]
    return Memory(
        features=None if features is None else _features(features["width"], features["names"]),
        label_columns=_strings(content["label_columns"]),
        ignored=_strings(content["ignored"]),
        pending={name: _sources(halves) for name, halves in content["pending"].items()},
        through=None if content.get("through") is None else _seen_through(content["through"]),
        learner=learner,
    )


def _seen_through(content: Any) -> Through:
    identity, column = content["identity"], content["text_column"]
    _strings(
        [content["name"], *(identity[key] for key in ("kind", "network", "preparation")), *([] if column is None else [column])]
    )
    if identity["kind"] != ("pictures" if column is None else "text") or type(identity["revision"]) is not int:
        raise ValueError(f"a backbone of {identity!r}")
    return Through(content["name"], Identity(**identity), column)


def _features(width: Any, names: Any) -> Features:
    if type(width) is not int or width < 1 or (names is not None and len(_strings(names)) != width):
        raise ValueError(f"{width!r} features are called {names!r}")
    return Features(width, None if names is None else _strings(names))


def _sources(halves: Mapping[str, Mapping[str, Any]]) -> dict[Half, Source]:
    if not set(halves) <= set(HALVES):
        raise ValueError(f"expected {HALVES}, got {set(halves)}")
    sources: dict[Half, Source] = {}
    for half in HALVES:
        if half in halves:
            entry = halves[half]
            path, sha256, label = entry["path"], entry["sha256"], entry["label_column"]
            _strings([path, sha256, *([] if label is None else [label])])
            sources[half] = Source(path, sha256, label)
    return sources


def _strings(values: Any) -> tuple[str, ...]:
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise TypeError(f"expected strings, got {values!r}")
    return tuple(values)
