"""The target drafts for itself: its first layers, then its own final norm and head (LayerSkip, Elhoushi et al., 2404.16710; Draft & Verify,
Zhang et al., 2309.08168, skips layers in the middle instead).

Parameters are the target's, and so is the cache: those layers hold what a pass of the whole model would have left there, so the draft
reads all that is committed without a prefill of its own, and writes its tokens where verification writes them again, the same for an
accepted token and garbage past the cursor for a refused one. It pays on checkpoints trained to exit early; others refuse most drafts.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from specjax.drafters.chain import draft_chain, speaker
from specjax.types import View, static, struct


@struct
class EarlyExit:
    """model: the target's. exit_layer: how many of its layers draft, 1 to all. most: largest draft.

    Raises:
      ValueError: exit_layer is out of range, or the model has no layers.
    """

    model: object = static()
    exit_layer: int = static()
    most: int = static(default=7)
    params: None = None
    name = "early_exit"
    taps = ()

    def __post_init__(self):
        layers = getattr(getattr(self.model, "config", None), "layers", None)
        if layers is None:
            raise ValueError(f"drafter early_exit needs a model of several layers: {type(self.model).__name__} has no config.layers")
        if not 1 <= self.exit_layer <= layers:
            raise ValueError(f"drafter.exit_layer={self.exit_layer} must be at least 1 and at most {layers}, the target's layers")
        if self.most < 1:
            raise ValueError(f"drafter.most={self.most} must be at least 1")

    def init(self, params, view: View):
        """The offer, which never changes: there is nothing to catch up with."""
        return jnp.full_like(view.cursor_B, self.most)

    def offer(self, state):
        return state

    def propose(self, params, state, view: View, root_B, ask_B, draw):
        say = speaker(self.model, view.params, view.cursor_B, range(self.exit_layer))
        dtype = jax.tree.leaves(view.params)[0].dtype
        draft, _, cache = draft_chain(say, view.cache, self.model.vocab, dtype, root_B, ask_B, draw, most=self.most)
        return draft, state, view._replace(cache=cache)

    def observe(self, params, state, committed: View, features):
        return state
