"""The numbers of a policy, checked when it is made: each fault is one line that names the number, its value and what would be right."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

EVERYTHING = 2**30  # more than any drafter offers


def real(policy, **bounds: tuple[float, float]) -> None:
    """Numbers within bounds, both included; they become floats, so that 1 and 1.0 are one program."""
    for name, (low, high) in bounds.items():
        value = getattr(policy, name)
        if not between(value, low, high):
            raise ValueError(f"length.{name}={value} must be at least {low} and at most {high}")
        object.__setattr__(policy, name, float(value))


def between(value, low, high) -> bool:
    """Whether it is one number within bounds, both included."""
    try:
        return bool(low <= value <= high)  # NaN is not
    except (TypeError, ValueError):  # a text, or several numbers
        return False


def array(policy, name: str, dtype, fits: Callable[[np.ndarray], bool], right: str) -> None:
    """A list becomes an array: its length is structure, what stands in it is not. fits: of the array; right: what it must be."""
    given = getattr(policy, name)
    try:
        value = np.asarray(given, np.float64)
    except (TypeError, ValueError):  # of other things, or of other lists
        value = np.empty(0)
    if not (value.size and fits(value)):
        raise ValueError(f"length.{name}={given} must be {right}")
    object.__setattr__(policy, name, value.astype(dtype))


def whole(value: np.ndarray, low: int) -> bool:
    return bool(((value >= low) & (value <= EVERYTHING) & (value % 1 == 0)).all())
