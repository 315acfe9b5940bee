"""What a certificate says, whatever it was asked about: a rule, a drafter or the loop."""

from __future__ import annotations

from typing import Any, NamedTuple


class Verdict(NamedTuple):
    """why: one line, empty where it passed. numbers: what was computed on the way, ready for JSON."""

    name: str
    passed: bool
    why: str
    numbers: dict[str, Any]
