"""Halves of environments that wait for the other half: a query before its support, or a support before its query."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from perdure.errors import CheckpointError, InputError
from perdure.streams import Environment

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
