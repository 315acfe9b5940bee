"""No drafts: with this drafter the loop is plain decoding."""

from __future__ import annotations

import jax.numpy as jnp

from specjax.drafters.chain import chain
from specjax.types import Draft, View, struct


@struct
class NoDraft:
    """Offers nothing."""

    params: None = None
    name = "none"
    most = 0
    drawn = "fixed"
    taps = ()

    def init(self, params, view: View):
        return jnp.zeros_like(view.cursor_B)

    def offer(self, state):
        return state

    def propose(self, params, state, view: View, root_B, ask_B, draw):
        return Draft(chain(ask_B, 1, self.drawn), root_B[:, None], None), state, view

    def observe(self, params, state, committed: View, features):
        return state
