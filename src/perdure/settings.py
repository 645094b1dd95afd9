"""Checks that a configuration holds what its fields say, whoever wrote it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from perdure.errors import CheckpointError, InputError

Config = TypeVar("Config")
LATER = {"later": True}
"""The metadata of a field that came after learners were saved and results stored. It is left out of JSON at its default, so that
those stay what they were; which is why its default must never move."""


def checked_settings(config: Any, *, may_be_zero: frozenset[str]) -> None:
    """Raise `InputError` unless each field has its type, and each number is finite and positive (or zero where allowed)."""
    hints = get_type_hints(type(config))
    for field in fields(config):
        name, value, hint = field.name, getattr(config, field.name), hints[field.name]
        if get_origin(hint) is Literal:
            if value not in get_args(hint):
                choices = ", ".join(repr(choice) for choice in get_args(hint))
                raise InputError(f"`{name}` must be one of {choices}, got {value!r}.")
            continue
        if hint in (str, str | None):
            if not isinstance(value, hint) or value == "":
                raise InputError(f"`{name}` must be a string, got {value!r}.")
            continue
        fits = isinstance(value, (int, float)) if hint is float else isinstance(value, hint)
        if not fits or (hint is not bool and isinstance(value, bool)):
            raise InputError(f"`{name}` must be {'a number' if hint is float else f'of type {hint.__name__}'}, got {value!r}.")
        if hint is bool:
            continue
        if not _finite(value) or value < 0 or (value == 0 and name not in may_be_zero):
            raise InputError(f"`{name}` must be {'zero or more' if name in may_be_zero else 'positive'}, got {value!r}.")


def _finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number beyond every float
        return False


def settings_to_json(config: Any) -> dict[str, Any]:
    """Plain values that `settings_from_json` reads: every field by name, so that defaults may move, but not what is stored.

    Only a `LATER` field is left out at its default, which must therefore stay.
    """
    values = asdict(config)
    left_out = [field.name for field in fields(config) if field.metadata == LATER and values[field.name] == field.default]
    return {name: value for name, value in values.items() if name not in left_out}


def settings_from_json(kind: type[Config], values: Any, where: str) -> Config:
    """The configuration of this kind that `settings_to_json` gave."""
    if not isinstance(values, Mapping):
        raise CheckpointError(f"{where} has no configuration.")
    known = {field.name: field.metadata == LATER for field in fields(kind)}  # type: ignore[arg-type]
    odd = sorted(str(name) for name in set(values) ^ set(known) if not known.get(name))
    if odd:
        raise CheckpointError(f"{where} has a configuration of another version: it differs in {', '.join(odd)}.")
    try:
        return kind(**values)
    except InputError as error:
        raise CheckpointError(f"{where} has an impossible configuration: {error}") from error
