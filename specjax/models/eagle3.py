"""The module of an EAGLE-3 draft (Li et al., 2503.01840): one decoder layer over the target's features and the text.

Low, middle and high features of the target are joined and projected to one (`fuse`). A *cell* reads the feature of one token and the
embedding of the token after it, and says what comes next: its attention sees both, each under a norm of its own, and its residual
stream is the feature's. Where the target has not read a token yet, the hidden state of the cell before takes the feature's place.
"""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp
import numpy as np
from flax import nnx

from specjax.models.cache import causal
from specjax.models.config import ModelConfig
from specjax.models.layers import Block, _normal, add_norm, matmul, norm, rotary
from specjax.types import Cache


@dataclasses.dataclass(frozen=True)
class Eagle3Config:
    """base: the layer and its ends; `head_vocab` of it says how many tokens the draft can say.

    taps: layers of the target whose output is fused. target_width: D of the target. norm_before_residual: the residual stream begins
    with the feature after its norm (some published checkpoints), not before.
    """

    base: ModelConfig
    taps: tuple[int, ...]
    target_width: int
    norm_before_residual: bool = False

    def __post_init__(self):
        b = self.base
        if b.layers != 1 or b.sparse or b.parallel or b.post_norms or b.learned_positions or b.sliding or b.tied:
            raise ValueError("an EAGLE-3 draft is one plain decoder layer with rotary positions and a head of its own")

    @property
    def max_positions(self) -> int:
        return self.base.max_positions


class FusedBlock(Block):
    """A layer that attends over embedding and feature side by side; E = 2 D."""

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs, dtype=jnp.float32):
        c = config
        super().__init__(c, 0, rngs=rngs, dtype=dtype)
        add_norm(self, "feature_norm", c, dtype)
        self.qkv_DGJC = nnx.Param(_normal(rngs(), (2 * c.width, c.kv_heads, c.group + 2, c.head_size), 2 * c.width, dtype))

    def fused(self, token_BTD, feature_BTD, k, v, cursor_B, rope, visible_BTS, norm_before_residual: bool):
        """As `Block.__call__`, from the embeddings of the tokens and the features beside them."""
        feature = norm(self, "feature_norm", feature_BTD)
        h_BTE = jnp.concatenate([norm(self, "attn_norm", token_BTD), feature], axis=-1)
        out, k, v = self._attention(h_BTE, k, v, cursor_B, rope, visible_BTS)
        x_BTD = (feature if norm_before_residual else feature_BTD) + out
        return x_BTD + self._mlp(norm(self, "mlp_norm", x_BTD)), k, v


class Eagle3(nnx.Module):
    """Parameters of the draft, and its three functions; see the top of the file."""

    def __init__(self, config: Eagle3Config, *, rngs: nnx.Rngs, dtype=jnp.float32):
        c, joined = config.base, len(config.taps) * config.target_width
        self.config, self.eagle = c, config
        self.embed_VD = nnx.Param(_normal(rngs(), (c.vocab, c.width), c.width, dtype))
        self.fc_XD = nnx.Param(_normal(rngs(), (joined, c.width), joined, dtype))
        self.layer = FusedBlock(c, rngs=rngs, dtype=dtype)
        add_norm(self, "norm", c, dtype)
        self.head_DV = nnx.Param(_normal(rngs(), (c.width, c.head_vocab or c.vocab), c.width, dtype))

    def fuse(self, features):
        """feature_BTD of the target's features, one [B, T, D] a tap."""
        return matmul(jnp.concatenate(features, axis=-1), self.fc_XD[...], self.config.width)

    def cell(self, feature_BTD, token_BT, cache: Cache, cursor_B, *, position_BT=None, mask=None):
        """(hidden_BTD, cache) of T cells a row, written at the row's cursor. token_BT: the tokens after those whose features are given.

        position_BT: of the cells, default cursor + t. mask: bool [B, T, S], which cells each sees, default those up to its own.
        hidden_BTD is the residual stream: the head's input, and in a feature's place the next cell's.
        """
        c = self.config
        if position_BT is None:
            position_BT = cursor_B[:, None] + jnp.arange(token_BT.shape[1], dtype=cursor_B.dtype)[None, :]
        token_BTD = self.embed_VD[...][token_BT].astype(feature_BTD.dtype)
        real = np.promote_types(feature_BTD.dtype, jnp.float32)
        rope = rotary(position_BT, c.turned, c.rope_theta, real, c.rope_stretch, c.rope_gain)
        seen_BTS = causal(cursor_B, token_BT.shape[1], cache.k[0].shape[-2]) if mask is None else mask
        x_BTD, k, v = self.layer.fused(
            token_BTD, feature_BTD, cache.k[0], cache.v[0], cursor_B, rope, seen_BTS, self.eagle.norm_before_residual
        )
        return x_BTD, Cache((k,), (v,))

    def head(self, hidden):
        """Final norm and logits over what the draft can say, in at least float32: [..., D] to [..., U]."""
        h, kernel_DU = norm(self, "norm", hidden), self.head_DV[...]
        logits = jnp.dot(h.reshape(-1, h.shape[-1]), kernel_DU, preferred_element_type=np.promote_types(h.dtype, jnp.float32))
        return logits.reshape(*h.shape[:-1], kernel_DU.shape[1])
