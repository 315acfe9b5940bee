"""Hypothesis strategies for damage: to nested dicts and lists, as JSON and configs are, and to the bytes of a file."""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence

from hypothesis import strategies as st

NUMBERS = st.sampled_from([0, 1, -1, 2, 7, 255, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1, 10**30, 10**400])
REALS = st.floats() | st.sampled_from([1e-300, 1e300, -0.0])
NAMES = st.sampled_from(
    [
        "none",
        "ngram",
        "model",
        "early_exit",
        "fixed",
        "match",
        "heuristic",
        "greedy",
        "speculative",
        "lenient",
        "nothing",
        "own",
        "humaneval",
    ]
    + ["specjax.drafters:NGram", "specjax:nothing", "specjax.lengths:Fixed", "math:pi", "math:sqrt", "builtins:int", "no.such:Thing"]
    + ["collections:OrderedDict", ":", ".", "a.", ".a", "math:", "ngram:ngram", "float32", "float16", "int8", "toy://tiny", "pypi://"]
)
TEXTS = st.text(max_size=8) | NAMES
JUNK = st.recursive(
    st.none() | st.booleans() | NUMBERS | REALS | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=5,
)


class Blob(bytes):
    """Bytes that do not fill the screen when an example of them fails; `fuzz` keeps that one in a file."""

    def __repr__(self):
        return f"{len(self)} bytes"


def places(tree, path=()):
    """Paths of all nodes of nested dicts and lists."""
    yield path
    for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ():
        yield from places(value, (*path, key))


def another(value):
    """Another value of the same kind, which may well be right."""
    if isinstance(value, bool) or value is None:
        return st.booleans() | st.none()
    if isinstance(value, int):
        return st.integers(-1, 9) | NUMBERS
    if isinstance(value, float):
        return st.floats(-0.5, 2) | REALS
    return TEXTS if isinstance(value, str) else JUNK


@st.composite
def damaged_tree(draw, tree):
    """A copy of nested dicts and lists with one to four values replaced, keys dropped or keys added."""
    tree = json.loads(json.dumps(tree))
    for _ in range(draw(st.integers(1, 4))):
        path = draw(st.sampled_from(sorted(places(tree), key=len, reverse=True)))  # what shrinks goes down to a leaf
        if not path:
            return draw(JUNK)
        node = functools.reduce(lambda n, key: n[key], path[:-1], tree)
        what = draw(st.sampled_from(["other", "other", "junk", "drop", "add"]))
        if what == "other":
            node[path[-1]] = draw(another(node[path[-1]]))
        elif what == "junk":
            node[path[-1]] = draw(JUNK)
        elif what == "drop":
            del node[path[-1]]
        elif isinstance(node, dict):
            node[draw(TEXTS)] = draw(JUNK)
        else:
            node.append(draw(JUNK))
    return tree


@st.composite
def damaged_bytes(draw, data: bytes, marks: Sequence[int] = (), region: int | None = None):
    """A copy with one to four changes: numbers at the marks, bytes and pieces anywhere in the first `region` bytes; or cut short."""
    data, region = bytearray(data), min(region or len(data), len(data))
    places = draw(st.randoms(use_true_random=True))  # evenly spread, which hypothesis' own numbers are not
    for _ in range(draw(st.integers(1, 4))):
        what = draw(st.sampled_from(["number", "number", "number", "byte", "insert", "remove", "repeat", "cut"]))
        at = places.choice(marks) if marks and what == "number" else places.randrange(max(min(region, len(data)), 1))
        if what == "number":
            size = draw(st.sampled_from([4, 8]))
            data[at : at + size] = (draw(NUMBERS | st.integers(0, 40)) % 2 ** (8 * size)).to_bytes(size, "little")
        elif what == "byte":
            data[at : at + 1] = bytes([draw(st.integers(0, 255))])
        elif what == "insert":
            data[at:at] = draw(st.binary(max_size=16))
        elif what == "remove":
            del data[at : at + draw(st.integers(1, 16))]
        elif what == "repeat":
            data[at:at] = data[at : at + draw(st.integers(1, 64))]
        else:
            del data[at:]
    return Blob(data)
