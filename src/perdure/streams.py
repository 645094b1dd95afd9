"""What arrives: support, query, environment, scenario.

Everything is checked here, once, so that no other file has to ask whether its arrays are sound.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from perdure.errors import InputError

Label: TypeAlias = str | int
Rows: TypeAlias = NDArray[np.float32]
Inputs: TypeAlias = NDArray[Any]
"""Rows; or pictures, whose colours may stay bytes."""
Labels: TypeAlias = NDArray[Any]
AT_ONCE = 1 << 22
"""Numbers that are checked at once."""


@dataclass(frozen=True, eq=False)
class Support:
    """A labelled set from the support stream."""

    x: Inputs
    y: Labels

    def __post_init__(self) -> None:
        x, y = as_rows(self.x, "support"), as_labels(self.y)
        if len(x) != len(y):
            raise InputError(f"The support has {len(x)} rows but {len(y)} labels; give one label a row.")
        object.__setattr__(self, "x", x)
        object.__setattr__(self, "y", y)

    @property
    def classes(self) -> list[Label]:
        """The classes that occur, in sorted order."""
        return [as_label(label) for label in np.unique(self.y)]


@dataclass(frozen=True, eq=False)
class Query:
    """An unlabelled set from the query stream. There is no place for labels."""

    x: Inputs

    def __post_init__(self) -> None:
        object.__setattr__(self, "x", as_rows(self.x, "query"))


@dataclass(frozen=True, eq=False)
class Environment:
    """One step of the two streams. A half that has not arrived yet is `None`."""

    name: str
    support: Support | None = None
    query: Query | None = None
    domain: str | None = None
    """Where the query comes from, by a name that other environments may share: a hospital, a camera."""

    def __post_init__(self) -> None:
        if not (self.domain is None or (isinstance(self.domain, str) and self.domain.strip())):
            raise InputError(
                f'The domain of environment "{self.name}" is called by a string that says something, got {self.domain!r}.'
            )
        if not isinstance(self.name, str) or not self.name.strip():
            raise InputError(f"An environment needs a name to be asked for by, got {self.name!r}.")
        for value, kind in ((self.support, Support), (self.query, Query)):
            if value is not None and not isinstance(value, kind):
                raise InputError(
                    f'The {kind.__name__.lower()} of environment "{self.name}" must be a perdure.{kind.__name__}, '
                    f"got {type(value).__name__}."
                )
        if self.support is None and self.query is None:
            raise InputError(f'Environment "{self.name}" has neither support nor query; give at least one.')
        if self.support is not None and self.query is not None:
            s, q = self.support.x.shape[1:], self.query.x.shape[1:]
            if s != q:
                hint = " Does the query still hold its label column?" if _one_wider(q, s) else ""
                raise InputError(
                    f'Environment "{self.name}": a support row has shape {s} and a query row {q}; '
                    f"both streams must have the same features.{hint}"
                )

    @cached_property
    def digest(self) -> str:
        """A fingerprint of the data: enough to recognise them, nothing to restore them from."""
        digest = hashlib.sha256()
        for half in (self.support, self.query):
            if half is not None:
                digest.update(repr(half.x.shape).encode())
                digest.update(half.x.data)
        if self.support is not None:
            digest.update("\0".join(map(str, self.support.y.tolist())).encode())
        return digest.hexdigest()


@dataclass(frozen=True, eq=False)
class Answers:
    """Held-out labels, used for scoring and for nothing else; no learner ever receives this object."""

    transductive: Mapping[str, Labels]
    """Environment → labels of the very queries that are adapted to."""

    inductive: Mapping[str, Support] = field(default_factory=dict)
    """Environment → query rows that were kept aside, with their labels."""


@dataclass(frozen=True, eq=False)
class Scenario:
    """An ordered, named list of environments; the labels to score against stand apart in `answers`."""

    name: str
    environments: Sequence[Environment]
    answers: Answers

    def __post_init__(self) -> None:
        names = [environment.name for environment in self.environments]
        if len(set(names)) != len(names):
            raise InputError(f'Scenario "{self.name}" names an environment twice: {names}.')
        missing = [name for name in names if name not in self.answers.transductive]
        if missing:
            raise InputError(f'Scenario "{self.name}" has no held-out labels for {missing}.')


def as_rows(x: Any, what: str) -> Inputs:
    """`x` as finite float32 rows, or a sentence that says why not. Not copied if it already is. Pictures of bytes stay bytes."""
    array = _as_array(x)
    if array.dtype.kind not in "fiub":
        array = _numbers_from_objects(array, what)
    if array.ndim < 2:
        raise InputError(
            f"The {what} must have one row an example, got shape {array.shape}; "
            "use x.reshape(1, -1) for one example or x.reshape(-1, 1) for one feature."
        )
    if array.shape[0] == 0:
        raise InputError(f"The {what} is empty: got shape {array.shape}; give at least one row.")
    if 0 in array.shape:
        raise InputError(f"The {what} has no features: got shape {array.shape}.")
    if array.dtype == np.uint8 and array.ndim > 2:  # in a quarter of the room
        return np.ascontiguousarray(array)
    with np.errstate(over="ignore"):
        rows = np.ascontiguousarray(array, dtype=np.float32)
    finite = np.ones(len(rows), dtype=bool)
    step = max(1, AT_ONCE // rows[0].size)
    for start in range(0, len(rows), step):  # rows that lie in a file may be more than memory has room for
        block = rows[start : start + step]
        finite[start : start + step] = np.isfinite(block.reshape(len(block), -1)).all(axis=1)
    if not finite.all():
        raise InputError(
            f"The {what} holds NaN or infinite values in {int((~finite).sum())} of {len(rows)} rows "
            f"(the first is row {int(finite.argmin())}); drop or impute them."
        )
    return rows


def as_labels(y: Any) -> Labels:
    """`y` as a vector of strings or of integers."""
    array = _as_array(y)
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim != 1:
        raise InputError(f"Labels must be one value a row, got shape {array.shape}.")
    if array.dtype.kind == "O":
        kinds = {type(label) for label in array.tolist()}
        if kinds <= {str, np.str_}:
            array = array.astype(str)
        elif kinds <= {int, bool, np.int64, np.int32, np.bool_}:
            array = array.astype(np.int64)
        else:
            names = ", ".join(sorted(kind.__name__ for kind in kinds))
            raise InputError(f"Labels must be all strings or all integers and never missing, got {names}.")
    if array.dtype.kind == "f":
        if not (np.isfinite(array).all() and (array == array.round()).all()):
            raise InputError("Labels are classes: strings or integers, never missing; got fractions or NaN.")
        array = array.astype(np.int64)
    if array.dtype.kind in "biu":
        array = array.astype(np.int64)
    elif array.dtype.kind != "U":
        raise InputError(f"Labels must be strings or integers, got dtype {array.dtype}.")
    return array


def as_label(label: Any) -> Label:
    """A label as plain Python, so that it can stand in JSON."""
    return str(label) if isinstance(label, str) else int(label)


def _as_array(values: Any) -> NDArray[Any]:
    if hasattr(values, "detach"):  # a torch tensor, wherever it lives
        values = values.detach().cpu()
        values = values.float().numpy() if values.is_floating_point() else values.numpy()
    try:
        return np.asarray(values)
    except ValueError as error:
        raise InputError(f"Expected rows of equal length, got {type(values).__name__}: {error}.") from None


def _numbers_from_objects(array: NDArray[Any], what: str) -> NDArray[Any]:
    try:
        if array.dtype.kind != "O":
            raise ValueError
        return array.astype(np.float64)
    except (TypeError, ValueError):
        raise InputError(f"The {what} must be numbers, got dtype {array.dtype}; encode text and categories first.") from None


def _one_wider(wide: tuple[int, ...], narrow: tuple[int, ...]) -> bool:
    return len(wide) == len(narrow) == 1 and wide[0] == narrow[0] + 1
