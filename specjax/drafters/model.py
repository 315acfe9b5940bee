"""A smaller language model of the same vocabulary drafts token by token (Leviathan et al., 2211.17192; Chen et al., 2302.01318).

Its cache follows the target's invariant: every committed token except the newest. After full acceptance the last drafted token was
drawn but never fed, so the cache lags by one; while the drafter stands aside it lags by more. Either way it catches up when next asked.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from specjax import ingest
from specjax.drafters.chain import chain
from specjax.types import Array, Draft, PyTree, View, static, struct


class ModelState(NamedTuple):
    cache: PyTree
    cursor_B: Array  # committed tokens in the draft's cache
    target_B: Array  # in the target's


@struct
class ModelDrafter:
    """model, params: the draft, through the border. most: largest draft; chunk: tokens of a prefill pass."""

    model: object = static()
    params: PyTree
    most: int = static(default=7)
    chunk: int = static(default=64)
    name = "model"
    taps = ()

    def init(self, params, view: View):
        dtype = jax.tree.leaves(params)[0].dtype
        cache = self.model.init_cache(*view.token_BS.shape, dtype)
        cache = ingest.prefill(self.model, params, cache, view.token_BS, view.cursor_B, self.chunk)
        return ModelState(cache, view.cursor_B, view.cursor_B)

    def offer(self, state: ModelState):
        """As many as it can, while they fit into the draft's own context, which may be shorter than the target's."""
        context = getattr(getattr(self.model, "config", None), "max_positions", None)
        room_B = self.most if context is None else context - state.target_B
        return jnp.clip(jnp.broadcast_to(room_B, state.target_B.shape), 0, self.most)

    def propose(self, params, state: ModelState, view: View, root_B, ask_B, draw):
        cache = self._catch_up(params, state, view, ask_B)
        B, V = root_B.shape[0], self.model.vocab
        token_BM = jnp.zeros((B, self.most + 1), jnp.int32).at[:, 0].set(root_B)
        q_BMV = jnp.zeros((B, self.most + 1, V), self._law_dtype(params))

        def wants(depth, asked_B):
            return jnp.any(depth < asked_B)

        def feed(carry):
            depth, asked_B, token_BM, q_BMV, cache = carry
            token_B1 = jax.lax.dynamic_slice_in_dim(token_BM, depth, 1, axis=1)
            hidden, _, cache = self.model.forward(params, token_B1, cache, view.cursor_B + depth)
            q_BV = draw.law(self.model.head(params, hidden)[:, 0])
            more_B = draw.keep_going(q_BV, depth + 1)
            asked_B = jnp.where((depth < asked_B) & ~more_B, depth, asked_B)
            token_BM = jax.lax.dynamic_update_slice_in_dim(token_BM, draw(q_BV, depth + 1)[:, None], depth + 1, axis=1)
            q_BMV = jax.lax.dynamic_update_slice_in_dim(q_BMV, q_BV[:, None].astype(q_BMV.dtype), depth, axis=1)
            return depth + 1, asked_B, token_BM, q_BMV, cache

        carry = (jnp.int32(0), ask_B, token_BM, q_BMV, cache)
        _, drafted_B, token_BM, q_BMV, cache = jax.lax.while_loop(lambda c: wants(c[0], c[1]), feed, carry)
        level_B = jnp.where(ask_B > 0, view.cursor_B + drafted_B, state.cursor_B)
        return Draft(chain(drafted_B, self.most + 1, "iid"), token_BM, q_BMV), ModelState(cache, level_B, view.cursor_B), view

    def observe(self, params, state: ModelState, committed: View, features):
        return state._replace(cursor_B=jnp.minimum(state.cursor_B, committed.cursor_B), target_B=committed.cursor_B)

    def _catch_up(self, params, state: ModelState, view: View, ask_B):
        """Rows that were asked are made level with the target: in chunks while far behind, then the one token of a full acceptance."""
        stop_B = jnp.where(ask_B > 0, view.cursor_B, state.cursor_B)
        near_B = jnp.where(stop_B - state.cursor_B > 1, stop_B, state.cursor_B)
        args = (self.model, params)
        cache = ingest.catch_up(*args, state.cache, view.token_BS, state.cursor_B, near_B, self.most + 1)
        return ingest.catch_up(*args, cache, view.token_BS, near_B, stop_B, 1)

    def _law_dtype(self, params):
        return jnp.promote_types(jax.tree.leaves(params)[0].dtype, jnp.float32)
