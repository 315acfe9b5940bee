"""Dataclasses from mappings of plain values, as a config or a JSON file gives them: keys, types and ranges are checked.

Every error is a ValueError of one line that names the field, the value and what would be right.
"""

from __future__ import annotations

import dataclasses
import difflib
import types
import typing
from collections.abc import Mapping

import jax


def make(cls, given, where, **parts):
    """An instance of a dataclass, its keys and their types checked; `parts` make the fields that are not numbers or texts."""
    hints = typing.get_type_hints(cls)
    fields = {f.name: f for f in dataclasses.fields(cls) if f.init and hints[f.name] is not type(None)}
    if not isinstance(given, Mapping):
        raise ValueError(f"{where}={given!r} must be a mapping of {', '.join(fields)}")
    for key in given:
        if key not in fields:
            raise ValueError(f"{where}.{key} is not a key: {where} has {', '.join(fields) or 'none'}{nearest(key, fields)}")
    for name, field in fields.items():
        if name not in given and field.default is field.default_factory is dataclasses.MISSING:
            raise ValueError(f"{where}.{name} is missing")
    return cls(**{key: _value(value, f"{where}.{key}", hints[key], parts.get(key)) for key, value in given.items()})


def _value(value, where, hint, part):
    if part is not None and not (value is None and _fits(None, hint)):
        return part(value, where.removeprefix("config."))
    if not _fits(value, hint):
        raise ValueError(f"{where}={value!r} must be {_hint_name(hint)}, not {type(value).__name__}")
    return tuple(value) if isinstance(value, list) else value


def _fits(value, hint) -> bool:
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        return any(_fits(value, option) for option in typing.get_args(hint))
    if typing.get_origin(hint) is tuple:
        return isinstance(value, list) and all(_fits(x, typing.get_args(hint)[0]) for x in value)
    if hint in (int, float):
        return isinstance(value, int if hint is int else int | float) and not isinstance(value, bool)
    return value is not None if hint is typing.Any else isinstance(value, hint)


def _hint_name(hint) -> str:
    names = [_hint_name(h) for h in typing.get_args(hint) if h is not jax.Array and h is not ...]
    if typing.get_origin(hint) is tuple:
        return f"a list of {names[0]}"
    return " or ".join(names) if names else {type(None): "None"}.get(hint, getattr(hint, "__name__", str(hint)))


def nearest(key, known) -> str:
    """The end of an error message: what a misspelt key may have meant."""
    close = difflib.get_close_matches(str(key), known, n=1, cutoff=0.5)
    return f"; did you mean {close[0]!r}?" if close else ""


def within(where, value, low, high=None):
    """Raises ValueError unless low <= value <= high."""
    if not (value >= low and (high is None or value <= high)):  # NaN is within nothing
        raise ValueError(f"{where}={value} must be at least {low}" + ("" if high is None else f" and at most {high}"))
