"""The cases of a certificate: pairs of laws, and shapes of drafts for each. All have four tokens, so that a rule compiles once.

A, B and the toy are worked by hand in many papers' notation. A catches what the others do not: a residual of block verification
without its factor.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from specjax import shapes
from specjax.shapes import Shape

VOCAB, DEPTH = 4, 3
HAND = {
    "A": ([0.5, 0.3, 0.15, 0.05], [0.4, 0.4, 0.1, 0.1]),
    "B": ([0.3, 0.5, 0.2, 0], [0.6, 0.3, 0.1, 0]),
    "toy": ([1 / 3, 2 / 3, 0, 0], [2 / 3, 1 / 3, 0, 0]),
}
CHAINS = "1", "1x1", "1x1x1"
TREES = "2", "3", "2x1", "1x2", "2x2"
CUT = {  # paths that are drafted, of a shape that would hold more
    "1x1x1 cut to 0": ("1x1x1", ()),
    "1x1x1 cut to 1": ("1x1x1", ((0,),)),
    "2x2 cut to depth 1": ("2x2", ((0,), (1,))),
    "2x2 ragged": ("2x2", ((0,), (1,), (1, 0), (1, 1))),
    "2x1 ragged": ("2x1", ((0,), (1,), (0, 0))),
}


class Case(NamedTuple):
    """One pair of laws and one shape of draft."""

    laws: str
    draft: str
    p: object
    q: object
    shape: Shape
    valid_M: np.ndarray

    @property
    def name(self) -> str:
        return f"{self.laws}, {self.draft}"

    @property
    def depth(self) -> int:
        """Of the deepest draft."""
        return int(self.shape.depth_M[self.valid_M].max())


def all_cases(one_hot_only: bool, trees: bool) -> list[Case]:
    """Those that a rule must pass: with certain targets only, or any; with trees, or chains only."""
    pairs = {name: laws for name, laws in PAIRS.items() if not one_hot_only or name.startswith("one-hot p")}
    drafts = {name: (name, None) for name in (*CHAINS, *TREES)} | CUT
    shapes_ = {name: _shape(*draft) for name, draft in drafts.items()}
    return [
        Case(laws, draft, p, q, *shape) for laws, (p, q) in pairs.items() for draft, shape in shapes_.items() if trees or shape[0].chain
    ]


def nodes(trees: bool) -> int:
    """M of the one buffer that holds each of them."""
    return max(shapes.parse(name).nodes for name in (CHAINS + TREES if trees else CHAINS))


def _shape(name: str, kept) -> tuple[Shape, np.ndarray]:
    shape = shapes.parse(name)
    return shape, np.asarray([True, *(kept is None or path in kept for path in shape.paths)])


# ---------------------------------------------------------------- pairs of laws


def by_context(make, seed: int):
    """A law for each context of at most DEPTH tokens."""
    law_NV = make(np.random.default_rng(seed), sum(VOCAB**depth for depth in range(DEPTH + 1)))
    return lambda context: law_NV[sum((token + 1) * VOCAB**place for place, token in enumerate(context))]


def markov(seed: int):
    """A law for each last token, and one for none."""
    law_NV = dirichlet(np.random.default_rng(seed), VOCAB + 1)
    return lambda context: law_NV[context[-1] if context else VOCAB]


def dirichlet(rng, count):
    return rng.dirichlet(np.full(VOCAB, 0.7), count)


def with_zeros(rng, count):
    law_NV = dirichlet(rng, count) * (rng.random((count, VOCAB)) < 0.6)
    law_NV[np.arange(count), rng.integers(0, VOCAB, count)] += 0.1
    return law_NV / law_NV.sum(1, keepdims=True)


def tied(rng, count):
    """Halves, quarters and zeros: equal in float32 too."""
    return rng.permuted(np.asarray([[0.5, 0.25, 0.25, 0], [0.25, 0.25, 0.25, 0.25], [0.5, 0.5, 0, 0]])[rng.integers(0, 3, count)], axis=1)


def one_hot(rng, count):
    return np.eye(VOCAB)[rng.integers(0, VOCAB, count)]


PAIRS = {
    **HAND,
    "Markov 1": (markov(1), markov(2)),
    "Markov 2": (markov(3), markov(4)),
    "zeros": (by_context(with_zeros, 5), by_context(with_zeros, 6)),
    "ties": (by_context(tied, 7), by_context(tied, 8)),
    "one-hot p": (by_context(one_hot, 9), by_context(dirichlet, 10)),
    "one-hot p and q": (by_context(one_hot, 11), by_context(one_hot, 12)),
    "one-hot q": (by_context(dirichlet, 13), by_context(one_hot, 14)),
    "p = q": (by_context(with_zeros, 15), by_context(with_zeros, 15)),
    "disjoint": ([0.25, 0.75, 0, 0], [0, 0, 0.5, 0.5]),
}
