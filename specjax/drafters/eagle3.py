"""A draft that reads the target's features (EAGLE-3, Li et al., 2503.01840; EAGLE, 2401.15077), a chain.

A cell joins the feature of one token with the embedding of the next (`specjax.models.eagle3`). The target gives the features of all it
has read, that is of every committed token but the newest, the root; so the first cell of a draft is the last one whose feature is the
target's own, and reads the root's embedding beside it. Later cells read the draft's own hidden state in its place.

Features are kept as the target gives them, and cells are made when a draft is next asked for: standing aside costs nothing.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from specjax.drafters.chain import draft_chain
from specjax.drafters.model import room
from specjax.models.cache import empty, write
from specjax.types import Array, PyTree, View, static, struct


class Eagle3State(NamedTuple):
    features: tuple[Array, ...]  # one [B, S, D] a tap, of the target_B tokens that the target has read (see models/cache.py for B = 1)
    cache: PyTree  # of cells; cell s joins feature s and token s + 1
    cursor_B: Array  # cells of committed tokens, made of the target's features
    target_B: Array  # tokens in the target's cache


@struct
class Eagle3Drafter:
    """model, params: the draft, through the border, with the embedding that it shares with the target. most: largest draft.

    ids_U: the target's ids, ascending, of the tokens that its head can say; None: all. chunk: cells of a prefill pass.
    """

    model: object = static()
    params: PyTree
    ids_U: Array | None = None
    most: int = static(default=4)
    chunk: int = static(default=64)
    name = "eagle3"

    @property
    def taps(self) -> tuple[int, ...]:
        return self.model.config.taps

    @property
    def dtype(self):
        return self.params["fc_XD"].dtype

    def init(self, params, view: View) -> Eagle3State:
        """Of a text that has not begun: its features are observed next."""
        batch, size = view.token_BS.shape
        config, none_B = self.model.config, jnp.zeros_like(view.cursor_B)
        features = empty(len(self.taps), batch, 1, size, config.target_width, self.dtype).k
        return Eagle3State(features, self.model.init_cache(batch, size, self.dtype), none_B, none_B)

    def offer(self, state: Eagle3State):
        """As many as it can once the target has read a token, while they fit into the draft's own context."""
        return jnp.where(state.target_B > 0, room(self.model, state.target_B, self.most), 0)

    def propose(self, params, state: Eagle3State, view: View, root_B, ask_B, draw):
        asked_B, last_B = ask_B > 0, jnp.maximum(view.cursor_B - 1, 0)
        stop_B = jnp.where(asked_B, last_B, state.cursor_B)
        cache = self._catch_up(params, state, view.token_BS, stop_B, self.most)

        def say(memory, token_B, depth):
            feature_BTD, cache = memory
            hidden_BTD, cache = self.model.cell(params, feature_BTD, token_B[:, None], cache, last_B + depth)
            return self.model.head(params, hidden_BTD)[:, 0], (hidden_BTD, cache)

        memory = self.model.fuse(params, self._features(state, last_B, 1)), cache
        draw = draw.within(self.ids_U)
        draft, _, (_, cache) = draft_chain(say, memory, self.model.vocab, self.dtype, root_B, ask_B, draw, most=self.most)
        return draft, state._replace(cache=cache, cursor_B=jnp.where(asked_B, view.cursor_B, state.cursor_B)), view

    def observe(self, params, state: Eagle3State, committed: View, features):
        if features is None:  # back to an earlier place of a text that was read whole: all that is needed there is kept
            return state._replace(cursor_B=jnp.minimum(state.cursor_B, committed.cursor_B), target_B=committed.cursor_B)
        kept = (write(old, new[:, :, None, :].astype(old.dtype), state.target_B) for old, new in zip(state.features, features, strict=True))
        cursor_B = jnp.minimum(state.cursor_B, committed.cursor_B)
        state = state._replace(features=tuple(kept), cursor_B=cursor_B, target_B=committed.cursor_B)
        if features[0].shape[1] < committed.token_BS.shape[1]:
            return state
        stop_B = jnp.maximum(committed.cursor_B - 1, 0)  # of a prompt there are features of all S slots, and it is taken in at once
        cache = self._catch_up(params, state, committed.token_BS, stop_B, self.chunk)
        return state._replace(cache=cache, cursor_B=jnp.maximum(state.cursor_B, stop_B))

    def _catch_up(self, params, state: Eagle3State, token_BS, stop_B, width: int):
        """The cache with all cells before stop_B, `width` of them at a time; what a row has already is made again or garbage past it."""

        def feed(carry):
            at_B, cache = carry
            next_BT = at_B[:, None] + 1 + jnp.arange(width, dtype=at_B.dtype)[None]  # past S they are garbage, and the last token will do
            token_BT = jnp.take_along_axis(token_BS, jnp.minimum(next_BT, token_BS.shape[1] - 1), axis=1)
            feature_BTD = self.model.fuse(params, self._features(state, at_B, width))
            _, cache = self.model.cell(params, feature_BTD, token_BT, cache, at_B)
            return jnp.minimum(at_B + width, stop_B), cache

        start_B = jnp.minimum(state.cursor_B, stop_B)
        return jax.lax.while_loop(lambda c: jnp.any(c[0] < stop_B), feed, (start_B, state.cache))[1]

    def _features(self, state: Eagle3State, at_B, width: int):
        """Of each tap [B, width, D] from at_B on."""
        rows = [x.reshape(len(at_B), *x.shape[-2:]) for x in state.features]
        read = jax.vmap(lambda row_SD, at: jax.lax.dynamic_slice_in_dim(row_SD, at, width))
        return tuple(read(x, at_B) for x in rows)
