"""A smaller language model of the same vocabulary drafts token by token (Leviathan et al., 2211.17192; Chen et al., 2302.01318).

Its cache follows the target's invariant: every committed token except the newest. After full acceptance the last drafted token was
drawn but never fed, so the cache lags by one; while the drafter stands aside it lags by more. Either way it catches up when next asked.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from specjax import ingest
from specjax.drafters.chain import draft_chain, speaker
from specjax.types import Array, PyTree, View, static, struct


def room(model, target_B, most: int):
    """Drafts, at most `most`, that fit into a model's own context after the target_B tokens that are committed."""
    context = getattr(getattr(model, "config", None), "max_positions", None)
    room_B = most if context is None else context - target_B
    return jnp.clip(jnp.broadcast_to(room_B, target_B.shape), 0, most)


class ModelState(NamedTuple):
    cache: PyTree
    cursor_B: Array  # committed tokens in the draft's cache
    target_B: Array  # in the target's


@struct
class ModelDrafter:
    """model, params: the draft, through the border. most: largest draft; chunk: tokens of a prefill pass. ids_U: the target's ids,
    ascending, of the tokens that the draft's head can say (FR-Spec, Zhao et al., 2502.14856); None: all."""

    model: object = static()
    params: PyTree
    ids_U: Array | None = None
    most: int = static(default=7)
    chunk: int = static(default=64)
    name = "model"
    taps = ()

    def init(self, params, view: View):
        dtype = jax.tree.leaves(params)[0].dtype
        cache = self.model.init_cache(*view.token_BS.shape, dtype)
        cache, _ = ingest.prefill(self.model, params, cache, view.token_BS, view.cursor_B, self.chunk)
        return ModelState(cache, view.cursor_B, view.cursor_B)

    def offer(self, state: ModelState):
        """As many as it can, while they fit into the draft's own context, which may be shorter than the target's."""
        return room(self.model, state.target_B, self.most)

    def propose(self, params, state: ModelState, view: View, root_B, ask_B, draw):
        level = ingest.level(self.model, params, state.cache, view.token_BS, state.cursor_B, view.cursor_B, ask_B > 0, self.most + 1)
        say, dtype, draw = speaker(self.model, params, view.cursor_B), jax.tree.leaves(params)[0].dtype, draw.within(self.ids_U)
        draft, drafted_B, cache = draft_chain(say, level, self.model.vocab, dtype, root_B, ask_B, draw, most=self.most)
        level_B = jnp.where(ask_B > 0, view.cursor_B + drafted_B, state.cursor_B)
        return draft, ModelState(cache, level_B, view.cursor_B), view

    def observe(self, params, state: ModelState, committed: View, features):
        return state._replace(cursor_B=jnp.minimum(state.cursor_B, committed.cursor_B), target_B=committed.cursor_B)
