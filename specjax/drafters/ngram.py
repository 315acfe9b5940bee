"""Prompt lookup: propose what followed the last occurrence of the newest n tokens (Saxena 2023; Yang et al., 2304.04487).

The longest match of n = max_n .. min_n over prompt and output wins, then the most recent one. Each draft is certain: q is one-hot.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp

from specjax.drafters.chain import chain
from specjax.types import Array, Draft, View, static, struct


class Match(NamedTuple):
    start_B: Array  # where the continuation starts
    offer_B: Array  # how many tokens of it are offered, 0 without a match


@struct
class NGram:
    """most: largest draft. max_n, min_n: longest and shortest match.

    A match of n tokens offers what follows it in the committed text, at most `per_match` * n tokens (SuffixDecoding's alpha, 2411.04975).
    """

    most: int = static(default=7)
    max_n: int = static(default=6)
    min_n: int = static(default=2)
    per_match: float | Array = math.inf
    params: None = None
    name = "ngram"
    taps = ()

    def init(self, params, view: View):
        return self._look_up(view)

    def offer(self, state: Match):
        return state.offer_B

    def propose(self, params, state: Match, view: View, root_B, ask_B, draw):
        take = lambda row, at: jax.lax.dynamic_slice_in_dim(row, at, self.most)
        draft_BK = jax.vmap(take)(view.token_BS, state.start_B)
        token_BM = jnp.concatenate([root_B[:, None], draft_BK], axis=1)
        return Draft(chain(ask_B, self.most + 1, "fixed"), token_BM, None), state, view

    def observe(self, params, state, committed: View, features):
        return self._look_up(committed)

    def _look_up(self, view: View) -> Match:
        return Match(*jax.vmap(self._match)(view.token_BS, view.cursor_B))

    def _match(self, token_S, cursor):
        """For one row: compare every place with the newest tokens, longest run first, most recent among equals."""
        S = token_S.shape[0]
        place_S = jnp.arange(S, dtype=jnp.int32)
        run_S, alive_S = jnp.zeros(S, jnp.int32), place_S < cursor  # a match ends before the newest token
        for back in range(self.max_n):
            newest = token_S[jnp.maximum(cursor - back, 0)]
            alive_S &= (jnp.roll(token_S, back) == newest) & (place_S >= back) & (cursor >= back)
            run_S += alive_S.astype(jnp.int32)
        score_S = jnp.where(run_S >= self.min_n, run_S * S + place_S, -1)
        best = jnp.argmax(score_S).astype(jnp.int32)
        matched = jnp.where(score_S[best] >= 0, run_S[best], 0)
        trusted = jnp.floor(jnp.where(matched > 0, self.per_match * matched.astype(jnp.float32), 0))
        follows = jnp.minimum(cursor - best, self.most)
        return best + 1, jnp.minimum(follows.astype(jnp.float32), trusted).astype(jnp.int32)
