"""What a JSON or GGUF file says, each value of the kind it should be; ValueError, in one line, names file, field and value."""

from __future__ import annotations

import collections
import dataclasses
import json
import reprlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

REQUIRED = object()


def parse(text: str | bytes, where: str) -> dict[str, Any]:
    """A JSON object. ValueError begins with `where`, the name of the file or file:line."""
    try:
        value = json.loads(text, object_pairs_hook=_object, parse_constant=_refuse)
    except json.JSONDecodeError as error:
        raise ValueError(f"{where}: not JSON: {error.msg} at character {error.pos + 1}") from None
    except (ValueError, RecursionError) as error:  # no text, a number of too many digits, too deep a nest, or one of the two below
        raise ValueError(f"{where}: not JSON: {error}") from None
    if not isinstance(value, dict):
        raise ValueError(f"{where}: must be a JSON object, not {type(value).__name__}")
    return value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(made := dict(pairs)) < len(pairs):
        [(twice, _)] = collections.Counter(key for key, _ in pairs).most_common(1)
        raise ValueError(f"key {reprlib.repr(twice)} stands twice in one object")
    return made


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no number of JSON's")


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file of the checkpoint's folder."""
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        raise ValueError(f"no {path.name} in the folder") from None
    except OSError as error:
        raise ValueError(f"{path.name} cannot be read: {error.strerror}") from None
    return parse(text, path.name)


@dataclasses.dataclass(frozen=True)
class Fields:
    """Values by name. Each method gives one of its kind; the default where the file has none or null."""

    get: Callable[[str], Any]  # None where there is none
    where: str = ""  # what errors begin with

    def count(self, name: str, default: Any = REQUIRED) -> int:
        return self._take(name, default, "a whole number of at least 1", lambda v: type(v) is int and 1 <= v < 2**63)

    def index(self, name: str, default: Any = REQUIRED) -> int:
        return self._take(name, default, "a whole number of at least 0", lambda v: type(v) is int and 0 <= v < 2**63)

    def number(self, name: str, default: Any = REQUIRED) -> float:
        largest = sys.float_info.max
        value = self._take(name, default, "a positive number", lambda v: type(v) in (int, float) and 0 < v <= largest)
        return value if value is None else float(value)

    def flag(self, name: str, default: Any = REQUIRED) -> bool:
        return self._take(name, default, "true or false", lambda v: type(v) is bool)

    def text(self, name: str, default: Any = REQUIRED) -> str:
        return self._take(name, default, "a string", lambda v: type(v) is str)

    def list(self, name: str, default: Any = REQUIRED) -> list:
        return self._take(name, default, "a list", lambda v: type(v) is list)

    def object(self, name: str, default: Any = REQUIRED) -> dict:
        return self._take(name, default, "an object", lambda v: type(v) is dict)

    def within(self, name: str) -> Fields:
        """The fields of an object in this one; none if it is not there."""
        return Fields(self.object(name, {}).get, f"{self.where}{name}.")

    def _take(self, name: str, default: Any, kind: str, holds: Callable[[Any], bool]) -> Any:
        value = self.get(name)
        if value is None and default is not REQUIRED:
            return default
        if value is None:
            raise ValueError(f"{self.where}{name} is missing or null, should be {kind}")
        if not holds(value):
            raise ValueError(f"{self.where}{name}={reprlib.repr(value)} should be {kind}")
        return value
