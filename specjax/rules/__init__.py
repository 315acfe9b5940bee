"""Acceptance rules, one paper a file. Each is a `Law` of (where the round ends, what is emitted there), without randomness."""

import dataclasses

from specjax.rules.argmax_lenience import ArgmaxLenience
from specjax.rules.block import Block
from specjax.rules.cascade import Cascade
from specjax.rules.greedy import Greedy
from specjax.rules.k_seq import KSeq
from specjax.rules.lenient import Lenient
from specjax.rules.recursive_rejection import RecursiveRejection
from specjax.rules.relaxed import Relaxed
from specjax.rules.sample_and_match import SampleAndMatch
from specjax.rules.speculative import Speculative
from specjax.rules.synthetic import Synthetic
from specjax.rules.traversal import Traversal
from specjax.rules.typical import Typical

EXACT = (Greedy, Speculative, SampleAndMatch, Block, RecursiveRejection, KSeq, Traversal)
LOSSY = (Lenient, ArgmaxLenience, Typical, Relaxed, Cascade, Synthetic)
ALL = EXACT + LOSSY


def by_name(name: str, **numbers):
    """A rule by its name, with its numbers, e.g. by_name("lenient", lenience=0.5).

    Raises:
      ValueError: no rule has that name, or it takes other numbers.
    """
    known = {rule.name: rule for rule in ALL}
    if name not in known:
        raise ValueError(f"rule {name!r} is not one of {', '.join(known)}")
    fields = {field.name: field.default is dataclasses.MISSING for field in dataclasses.fields(known[name])}
    for number in numbers.keys() - fields.keys():
        raise ValueError(f"rule {name!r} has no number {number!r}: it takes {', '.join(fields) or 'none'}")
    for number in (number for number, needed in fields.items() if needed and number not in numbers):
        raise ValueError(f"rule {name!r} needs its number {number!r}")
    return known[name](**numbers)
