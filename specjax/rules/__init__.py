"""Acceptance rules, one paper a file. Each is a `Law` of (where the round ends, what is emitted there), without randomness."""

from specjax.rules.greedy import Greedy
from specjax.rules.lenient import Lenient
from specjax.rules.sample_and_match import SampleAndMatch
from specjax.rules.speculative import Speculative

ALL = (Greedy, Speculative, Lenient, SampleAndMatch)


def by_name(name: str, **numbers):
    """A rule by its name, with its numbers, e.g. by_name("lenient", lenience=0.5)."""
    known = {rule.name: rule for rule in ALL}
    if name not in known:
        raise ValueError(f"rule {name!r} is not one of {', '.join(known)}")
    return known[name](**numbers)
