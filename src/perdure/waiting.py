"""Halves of environments that wait for the other half: a query before its support, or a support before its query."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from perdure.errors import CheckpointError, InputError
from perdure.streams import Environment, Label, Rows

Half = Literal["support", "query"]


@dataclass(frozen=True)
class Queued:
    """The environment cannot be learned yet; it is kept until the missing half arrives."""

    environment: str
    missing: Half


class WaitingRoom:
    """Keeps what has arrived in memory. Only names are ever saved: data must be handed in again after loading."""

    def __init__(self) -> None:
        self._halves: dict[str, Environment | None] = {}
        self._missing: dict[str, Half] = {}

    @property
    def missing(self) -> dict[str, Half]:
        """Environment → the half it waits for."""
        return dict(self._missing)

    def join(self, environment: Environment) -> Environment | Queued:
        """The whole environment, if this completes it; otherwise what it still waits for. Changes nothing."""
        name = environment.name
        if environment.support is not None and environment.query is not None:
            return environment
        missing: Half = "query" if environment.query is None else "support"
        if name not in self._missing:
            return Queued(name, missing)
        other = self._halves[name]
        if self._missing[name] == missing:
            if other is None:
                return Queued(name, missing)
            arrived = "support" if missing == "query" else "query"
            raise InputError(
                f'"{name}" already has a {arrived} and waits for its {missing}. '
                f'Give the {missing}, or drop it with forget("{name}").'
            )
        if other is None:
            raise InputError(
                f'The {missing} of "{name}" arrived before this learner was saved, and data are never saved; '
                f"give support and query together."
            )
        return replace(environment, **{missing: getattr(other, missing)})

    def admit(self, environment: Environment, queued: Queued) -> None:
        """Keep this half."""
        self._halves[queued.environment] = environment
        self._missing[queued.environment] = queued.missing

    def dismiss(self, name: str) -> None:
        """Stop waiting, because the environment is whole or no longer wanted."""
        self._halves.pop(name, None)
        self._missing.pop(name, None)

    def to_json(self) -> dict[str, Half]:
        """Names and missing halves."""
        return self.missing

    @classmethod
    def from_json(cls, values: Any, where: str) -> WaitingRoom:
        """A room that knows who waited for what, but has none of their data."""
        if not isinstance(values, Mapping) or not all(half in ("support", "query") for half in values.values()):
            raise CheckpointError(f"{where} has a damaged queue.")
        room = cls()
        room._missing = {str(name): half for name, half in values.items()}
        room._halves = dict.fromkeys(room._missing)
        return room


# -- what cannot be learned -----------------------------------------------------------------------------------------------


def refuse_misfits(environment: Environment, row_shape: tuple[int, ...] | None, classes: Sequence[Label]) -> None:
    """Rows of another shape, or labels of another kind, than those of earlier environments."""
    name = environment.name
    for half, what in ((environment.support, "support"), (environment.query, "query")):
        if half is not None and row_shape is not None and half.x.shape[1:] != row_shape:
            raise InputError(
                f'Rows of the {what} of "{name}" have shape {half.x.shape[1:]}, those of earlier environments {row_shape}; '
                "every environment needs the same features."
            )
    if environment.support is not None and classes and kind_of(environment.support.classes[0]) != kind_of(classes[0]):
        raise InputError(
            f'The labels of "{name}" are {kind_of(environment.support.classes[0])}, those of earlier environments '
            f"{kind_of(classes[0])}; use one kind throughout."
        )


def refuse_one_row(name: str, what: Half, x: Rows) -> None:
    """A half that is one row, repeated or not: the mean of a stream is kept, and must not be a row."""
    if all(np.array_equal(row, x[0]) for row in x):  # one after another: most streams show a second row soon
        raise only_row(name, what, len(x))


def only_row(name: str, what: Half, times: int) -> InputError:
    """Says so."""
    holds = "has one single row" if times == 1 else f"holds the same row {times} times"
    return InputError(f'The {what} of "{name}" {holds}; adapting needs at least two different ones, better dozens.')


def refuse_one_class(name: str, classes: Sequence[Label]) -> None:
    """A support with nothing to tell apart."""
    if len(classes) < 2:
        raise InputError(
            f'The support of "{name}" holds one class only ({classes[0]!r}); there is nothing to tell apart. Give at least two.'
        )


def kind_of(label: Label) -> str:
    """What all labels of a learner are."""
    return "strings" if isinstance(label, str) else "integers"
