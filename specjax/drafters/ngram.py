"""Prompt lookup: propose what followed the last occurrence of the newest n tokens (Saxena 2023; Yang et al., 2304.04487).

The longest match of n = max_n .. min_n over prompt and output wins, then the most recent one. Each draft is certain: q is one-hot. With
several branches the next best matches that go on differently are drafted beside it (REST, He et al., 2311.08252, keeps a trie of them).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp

from specjax.drafters.chain import chain
from specjax.types import Array, Draft, Tree, View, static, struct


class Match(NamedTuple):
    start_BJ: Array  # where each branch's continuation starts
    offer_BJ: Array  # how many tokens of it are offered, 0 without a match


@struct
class NGram:
    """most: longest draft. max_n, min_n: longest and shortest match. branches: matches that are drafted at once; their first tokens differ.

    A match of n tokens offers what follows it in the committed text, at most `per_match` * n tokens (SuffixDecoding's alpha, 2411.04975).
    """

    most: int = static(default=7)
    max_n: int = static(default=6)
    min_n: int = static(default=2)
    per_match: float | Array = math.inf
    branches: int = static(default=1)
    params: None = None
    name = "ngram"
    drawn = "fixed"
    taps = ()

    @property
    def nodes(self) -> int:
        return 1 + self.branches * self.most

    def init(self, params, view: View):
        return self._look_up(view)

    def offer(self, state: Match):
        return jnp.max(state.offer_BJ, axis=1)

    def propose(self, params, state: Match, view: View, root_B, ask_B, draw):
        take = lambda row, at: jax.lax.dynamic_slice_in_dim(row, at, self.most)
        draft_BJK = jax.vmap(jax.vmap(take, in_axes=(None, 0)))(view.token_BS, state.start_BJ)
        draft_BKJ = draft_BJK.transpose(0, 2, 1).reshape(len(root_B), self.nodes - 1)
        token_BM = jnp.concatenate([root_B[:, None], draft_BKJ], axis=1)
        tree = chain(ask_B, self.nodes, "fixed") if self.branches == 1 else self._star(jnp.minimum(ask_B[:, None], state.offer_BJ))
        return Draft(tree, token_BM, None), state, view

    def observe(self, params, state, committed: View, features):
        return self._look_up(committed)

    def _look_up(self, view: View) -> Match:
        return Match(*jax.vmap(self._matches)(view.token_BS, view.cursor_B))

    def _star(self, drafted_BJ) -> Tree:
        """Branches side by side: the node of branch j at depth d is 1 + (d - 1) branches + j."""
        node_M = jnp.arange(self.nodes, dtype=jnp.int32)
        branch_M, depth_M = (node_M - 1) % self.branches, (node_M - 1) // self.branches + 1
        depth_M = jnp.where(node_M > 0, depth_M, 0)
        spread = lambda x_M: jnp.broadcast_to(x_M[None], (drafted_BJ.shape[0], self.nodes))
        return Tree(
            parent_M=spread(jnp.maximum(node_M - self.branches, 0)),
            depth_M=spread(depth_M),
            rank_M=spread(jnp.where(depth_M == 1, branch_M, 0)),
            valid_M=depth_M[None] <= drafted_BJ[:, branch_M],
            drawn=self.drawn,
            chain=False,
        )

    def _matches(self, token_S, cursor):
        """For one row: compare every place with the newest tokens, longest run first, most recent among equals."""
        S = token_S.shape[0]
        place_S = jnp.arange(S, dtype=jnp.int32)
        run_S, alive_S = jnp.zeros(S, jnp.int32), place_S < cursor  # a match ends before the newest token
        for back in range(self.max_n):
            newest = token_S[jnp.maximum(cursor - back, 0)]
            alive_S &= (jnp.roll(token_S, back) == newest) & (place_S >= back) & (cursor >= back)
            run_S += alive_S.astype(jnp.int32)
        score_S, next_S, found = jnp.where(run_S >= self.min_n, run_S * S + place_S, -1), jnp.roll(token_S, -1), []
        for _ in range(self.branches):
            best = jnp.argmax(score_S).astype(jnp.int32)
            matched = jnp.where(score_S[best] >= 0, run_S[best], 0)
            trusted = jnp.floor(jnp.where(matched > 0, self.per_match * matched.astype(jnp.float32), 0))
            follows = jnp.minimum(cursor - best, self.most)
            found.append((best + 1, jnp.minimum(follows.astype(jnp.float32), trusted).astype(jnp.int32)))
            score_S = jnp.where(next_S == next_S[best], -1, score_S)  # the next branch begins with another token
        return tuple(jnp.stack(column) for column in zip(*found, strict=True))
