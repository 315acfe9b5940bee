import dataclasses
from typing import Any

import jax
import pytest

from specjax.bench.schema import make, nearest, within


@dataclasses.dataclass(frozen=True)
class Thing:
    count: int
    share: float | jax.Array = 0.5
    names: tuple[str, ...] | None = None
    part: Any | None = None
    whole: Any = 0
    params: None = None  # not for a config


def test_a_mapping_becomes_an_object():
    assert make(Thing, {"count": 2, "share": 1, "names": ["a"]}, "x") == Thing(2, 1, ("a",))
    assert make(Thing, {"count": 2, "part": 3}, "x", part=lambda value, where: (value, where)).part == (3, "x.part")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"count": 2.0}, "x.count=2.0 must be int, not float"),
        ({"count": True}, "x.count=True must be int, not bool"),
        ({"count": 1, "share": "1"}, "x.share='1' must be float, not str"),
        ({"count": 1, "names": ["a", 1]}, r"x.names=\['a', 1\] must be a list of str or None, not list"),
        ({"count": 1, "shar": 1}, "x.shar is not a key: x has count, share, names, part, whole; did you mean 'share'?"),
        ({"count": 1, "whole": None}, "x.whole=None must be Any, not NoneType"),
        ({}, "x.count is missing"),
        ({"count": 1, "params": None}, "x.params is not a key"),
        (3, "x=3 must be a mapping of count, share, names, part, whole"),
    ],
)
def test_what_does_not_fit_is_named(given, message):
    with pytest.raises(ValueError, match=message):
        make(Thing, given, "x")


def test_nearest_and_within():
    assert nearest("qqq", ["count"]) == "" and nearest("cuont", ["count"]) == "; did you mean 'count'?"
    within("x", 1, 1)
    within("x", 2, 1, 2)
    with pytest.raises(ValueError, match="x=3 must be at least 1 and at most 2"):
        within("x", 3, 1, 2)
