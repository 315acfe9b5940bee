"""Ask a cheap drafter first, and another one where it has nothing to say: an n-gram copies what was said before, a trained draft says the
rest (as vertical cascades do: Chen et al., 2312.11462). Each row of a batch decides for itself.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import jax.numpy as jnp

from specjax.drafters.chain import chain
from specjax.drafters.ngram import NGram
from specjax.sampling import one_hot
from specjax.types import Draft, Drafter, PyTree, View, struct


class CombinedState(NamedTuple):
    first: PyTree
    second: PyTree


@struct
class Combined:
    """first: an n-gram of one branch. second: a drafter of chains; it drafts where the n-gram offers no token.

    Raises:
      ValueError: one of them branches.
    """

    first: NGram
    second: Drafter
    name = "combined"

    def __post_init__(self):
        for part, drafter in (("first", self.first), ("second", self.second)):
            if getattr(drafter, "nodes", drafter.most + 1) > drafter.most + 1:
                raise ValueError(f"drafter.{part}={drafter.name} branches: a combined draft is a chain")

    @property
    def params(self):
        return self.second.params

    @property
    def most(self) -> int:
        return max(self.first.most, self.second.most)

    @property
    def taps(self) -> tuple[int, ...]:
        return self.second.taps

    def init(self, params, view: View) -> CombinedState:
        return CombinedState(self.first.init(None, view), self.second.init(params, view))

    def offer(self, state: CombinedState):
        first_B = self.first.offer(state.first)
        return jnp.where(first_B > 0, first_B, self.second.offer(state.second))

    def propose(self, params, state: CombinedState, view: View, root_B, ask_B, draw):
        copies_B = self.first.offer(state.first) > 0
        one, first, view = self.first.propose(None, state.first, view, root_B, jnp.where(copies_B, ask_B, 0), draw)
        other, second, view = self.second.propose(params, state.second, view, root_B, jnp.where(copies_B, 0, ask_B), draw)
        return self._joined(copies_B, one, other), CombinedState(first, second), view

    def observe(self, params, state: CombinedState, committed: View, features):
        first = self.first.observe(None, state.first, committed, None)
        return CombinedState(first, self.second.observe(params, state.second, committed, features))

    def _joined(self, copies_B, one: Draft, other: Draft) -> Draft:
        """Each row's own draft; the shorter chain is padded."""
        long = lambda x_BM: jnp.pad(x_BM, [(0, 0), (0, self.most + 1 - x_BM.shape[1]), *[(0, 0)] * (x_BM.ndim - 2)])
        valid_BM = jnp.where(copies_B[:, None], long(one.tree.valid_M), long(other.tree.valid_M))
        token_BM = jnp.where(copies_B[:, None], long(one.token_BM), long(other.token_BM))
        drawn, q_BMV = other.tree.drawn, other.q_BMV
        if q_BMV is not None:
            q_BMV = long(q_BMV)
            q_BMV = jnp.where(copies_B[:, None, None], one_hot(jnp.roll(token_BM, -1, axis=1), q_BMV), q_BMV)
        tree = chain(jnp.sum(valid_BM, axis=1, dtype=jnp.int32) - 1, self.most + 1, drawn)
        return Draft(dataclasses.replace(tree, valid_M=valid_BM), token_BM, q_BMV)
