"""The range of a rule's number, checked where the rule is made; a traced one never is (see `types.struct`)."""

from __future__ import annotations


def within(name: str, value, low, high, *, above: bool = False):
    """Raises ValueError unless low <= value <= high, or low < value if `above`. NaN is not."""
    try:
        fits = bool((low < value if above else low <= value) and value <= high)
    except (TypeError, ValueError):  # a text, or several numbers
        fits = False
    if not fits:
        bounds = f"above {low} and at most {high}" if above else f"between {low} and {high}"
        raise ValueError(f"rule.{name}={value} must be {bounds}")
