"""A decoder-only transformer steered by `ModelConfig` (Llama, 2302.13971). Layers are unrolled: `scan` costs 26 to 43% a token on a CPU."""

from __future__ import annotations

import jax.numpy as jnp
from flax import nnx

from specjax.models.cache import visible
from specjax.models.config import ModelConfig
from specjax.models.layers import Block, _normal, rms_norm, rotary
from specjax.types import Cache


class Transformer(nnx.Module):
    """Parameters of the model, and its two functions: `forward` to hidden states, `head` to logits."""

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs, dtype=jnp.float32):
        c = config
        self.config = c
        self.embed_VD = nnx.Param(_normal(rngs(), (c.vocab, c.width), c.width, dtype))
        self.layers = nnx.List([Block(c, rngs=rngs, dtype=dtype) for _ in range(c.layers)])
        self.norm_D = nnx.Param(jnp.ones(c.width, dtype))
        if not c.tied:
            self.head_DV = nnx.Param(_normal(rngs(), (c.width, c.vocab), c.width, dtype))

    def forward(self, token_BT, cache: Cache, cursor_B, *, position_BT=None, mask=None, layers=None, taps=()):
        """See `specjax.types.Model`. The hidden state is the residual stream, before the final norm."""
        c = self.config
        x_BTD = self.embed_VD[...][token_BT]
        if position_BT is None:
            position_BT = cursor_B[:, None] + jnp.arange(token_BT.shape[1])
        rope = rotary(position_BT, c.head_size, c.rope_theta, jnp.promote_types(x_BTD.dtype, jnp.float32))
        visible_BTS = visible(cursor_B, token_BT.shape[1], cache.k[0].shape[-2], mask)
        k, v, tapped = list(cache.k), list(cache.v), {}
        for i in range(c.layers) if layers is None else layers:
            x_BTD, k[i], v[i] = self.layers[i](x_BTD, k[i], v[i], cursor_B, rope, visible_BTS)
            if i in taps:
                tapped[i] = x_BTD
        return x_BTD, tuple(tapped[i] for i in taps), Cache(tuple(k), tuple(v))

    def head(self, hidden):
        """Final norm and logits, in at least float32: [..., D] to [..., V]."""
        h = rms_norm(hidden, self.norm_D[...], self.config.norm_eps)
        kernel_DV = self.embed_VD[...].T if self.config.tied else self.head_DV[...]
        flat = h.reshape(-1, h.shape[-1])
        logits = jnp.dot(flat, kernel_DV, preferred_element_type=jnp.promote_types(h.dtype, jnp.float32))
        return logits.reshape(*h.shape[:-1], kernel_DV.shape[1])
