"""A decoder-only transformer steered by `ModelConfig`. Layers are unrolled: `scan` costs 26 to 43% a token on a CPU."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from flax import nnx

from specjax.models.cache import causal, near
from specjax.models.config import ModelConfig
from specjax.models.layers import Block, _normal, add_norm, norm, rotary, soft_cap
from specjax.types import Cache


class Transformer(nnx.Module):
    """Parameters of the model, and its two functions: `forward` to hidden states, `head` to logits."""

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs, dtype=jnp.float32):
        c = config
        self.config = c
        self.embed_VD = nnx.Param(_normal(rngs(), (c.vocab, c.width), c.width, dtype))
        self.layers = nnx.List([Block(c, i, rngs=rngs, dtype=dtype) for i in range(c.layers)])
        add_norm(self, "norm", c, dtype)
        if c.learned_positions:
            self.position_PD = nnx.Param(_normal(rngs(), (c.max_positions, c.width), c.width, dtype))
        if not c.tied:
            self.head_DV = nnx.Param(_normal(rngs(), (c.width, c.head_vocab or c.vocab), c.width, dtype))

    def forward(self, token_BT, cache: Cache, cursor_B, *, position_BT=None, mask=None, layers=None, taps=()):
        """See `specjax.types.Model`. The hidden state is the residual stream, before the final norm."""
        c = self.config
        if position_BT is None:
            position_BT = cursor_B[:, None] + jnp.arange(token_BT.shape[1], dtype=cursor_B.dtype)[None, :]
        x_BTD = self._embed(token_BT, position_BT)
        rope, window_rope = self._ropes(position_BT, x_BTD.dtype)
        size = cache.k[0].shape[-2]
        seen_BTS = causal(cursor_B, token_BT.shape[1], size) if mask is None else mask
        near_BTS = seen_BTS & near(cursor_B, position_BT, size, c.window) if c.sliding else None
        k, v, tapped = list(cache.k), list(cache.v), {}
        for i in range(c.layers) if layers is None else layers:
            place = (window_rope, near_BTS) if i in c.sliding else (rope, seen_BTS)
            x_BTD, k[i], v[i] = self.layers[i](x_BTD, k[i], v[i], cursor_B, *place)
            if i in taps:
                tapped[i] = x_BTD
        return x_BTD, tuple(tapped[i] for i in taps), Cache(tuple(k), tuple(v))

    def _embed(self, token_BT, position_BT):
        c = self.config
        x_BTD = self.embed_VD[...][token_BT]
        if c.embed_scale != 1:
            x_BTD = x_BTD * jnp.asarray(c.embed_scale, x_BTD.dtype)
        return x_BTD + self.position_PD[...][position_BT] if c.learned_positions else x_BTD

    def _ropes(self, position_BT, dtype):
        """(cos, sin) of the layers that see everything, and of those that slide."""
        c, dtype = self.config, np.promote_types(dtype, jnp.float32)
        if c.learned_positions:
            return None, None
        rope = rotary(position_BT, c.turned, c.rope_theta, dtype, c.rope_stretch, c.rope_gain)
        return rope, rope if c.window_theta is None else rotary(position_BT, c.turned, c.window_theta, dtype)

    def head(self, hidden):
        """Final norm and logits, in at least float32: [..., D] to [..., V]."""
        c, h = self.config, norm(self, "norm", hidden)
        kernel_DV = self.embed_VD[...].T if c.tied else self.head_DV[...]
        flat = h.reshape(-1, h.shape[-1])
        logits = jnp.dot(flat, kernel_DV, preferred_element_type=np.promote_types(h.dtype, jnp.float32))
        return soft_cap(logits, c.logit_cap).reshape(*h.shape[:-1], kernel_DV.shape[1])
