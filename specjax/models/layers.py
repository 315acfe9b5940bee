"""The layers of a decoder-only transformer, as Flax NNX modules that hold parameters and nothing else.

Llama's block (Touvron et al., 2302.13971): RMSNorm, rotary positions in half-split order, grouped-query attention, gated SiLU. Kernels are
stored (in, out) and fused where one input feeds several products (q, k, v; gate, up): on a CPU both are worth several percent.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx

from specjax.models.cache import lead, write
from specjax.models.config import ModelConfig


def _normal(key, shape, fan_in, dtype):
    return jax.random.normal(key, shape, dtype) * jnp.asarray(fan_in**-0.5, dtype)


def matmul(x_BTX, kernel, width: int):
    """x times a kernel seen as [X, width]; rows are flattened so that XLA sees a two-dimensional product."""
    batch, tokens, inner = x_BTX.shape
    return (x_BTX.reshape(batch * tokens, inner) @ kernel.reshape(inner, width)).reshape(batch, tokens, width)


def rms_norm(x, scale_D, eps: float):
    """RMSNorm over the last axis, in at least float32."""
    wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    mean = jnp.mean(jnp.square(wide), axis=-1, keepdims=True)
    return (wide * jax.lax.rsqrt(mean + eps)).astype(x.dtype) * scale_D


def rotary(position_BT, head_size: int, theta: float, dtype):
    """(cos, sin), each [B, T, C / 2] (RoFormer, 2104.09864)."""
    rate = theta ** (-jnp.arange(0, head_size, 2, dtype=dtype) / head_size)
    angle = position_BT[..., None].astype(dtype) * rate
    return jnp.cos(angle), jnp.sin(angle)


def rotate(x_BTGRC, cos, sin):
    """Turn each pair (c, c + C / 2) of x by its position's angle."""
    cos, sin = (a[:, :, None, None, :].astype(x_BTGRC.dtype) for a in (cos, sin))
    low, high = jnp.split(x_BTGRC, 2, axis=-1)
    return jnp.concatenate([low * cos - high * sin, high * cos + low * sin], axis=-1)


def attend(q_BTGRC, k, v, visible_BTS):
    """Softmax attention of every query over the slots it may see, [B, T, H * C]; k and v as in `specjax.models.cache`.

    One batched product over (row, key-value head), with (query, group) folded into its rows: the quickest form on a CPU.
    """
    B, T, G, R, C = q_BTGRC.shape
    q = q_BTGRC.transpose(0, 2, 1, 3, 4).reshape(*lead(B, G), T * R, C) * jnp.asarray(C**-0.5, q_BTGRC.dtype)
    wide = jnp.promote_types(q.dtype, jnp.float32)
    score = jnp.einsum("...xc,...sc->...xs", q, k, preferred_element_type=wide)
    visible_BGXS = jnp.broadcast_to(visible_BTS[:, None, :, None, :], (B, G, T, R, visible_BTS.shape[-1]))
    score = jnp.where(visible_BGXS.reshape(score.shape), score, jnp.finfo(wide).min)
    weight = jax.nn.softmax(score, axis=-1).astype(v.dtype)
    out = jnp.einsum("...xs,...sc->...xc", weight, v)
    return out.reshape(B, G, T, R, C).transpose(0, 2, 1, 3, 4).reshape(B, T, G * R * C)


class Block(nnx.Module):
    """One layer: x + attention(norm(x)), then x + mlp(norm(x))."""

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs, dtype=jnp.float32):
        c = config
        self.config = c
        self.attn_norm_D = nnx.Param(jnp.ones(c.width, dtype))
        self.qkv_DGJC = nnx.Param(_normal(rngs(), (c.width, c.kv_heads, c.group + 2, c.head_size), c.width, dtype))
        self.out_HCD = nnx.Param(_normal(rngs(), (c.heads, c.head_size, c.width), c.heads * c.head_size, dtype))
        self.mlp_norm_D = nnx.Param(jnp.ones(c.width, dtype))
        self.up_DUF = nnx.Param(_normal(rngs(), (c.width, 2, c.ff), c.width, dtype))  # U: gate, up
        self.down_FD = nnx.Param(_normal(rngs(), (c.ff, c.width), c.ff, dtype))

    def __call__(self, x_BTD, k, v, cursor_B, rope, visible_BTS):
        """Returns (x_BTD, k, v), the new keys and values written at the cursor."""
        c = self.config
        h = rms_norm(x_BTD, self.attn_norm_D[...], c.norm_eps)
        qkv = matmul(h, self.qkv_DGJC[...], c.kv_heads * (c.group + 2) * c.head_size)
        qkv = qkv.reshape(*x_BTD.shape[:2], c.kv_heads, c.group + 2, c.head_size)
        qk = rotate(qkv[..., : c.group + 1, :], *rope)
        k = write(k, qk[..., c.group, :], cursor_B)
        v = write(v, qkv[..., c.group + 1, :], cursor_B)
        out = attend(qk[..., : c.group, :], k, v, visible_BTS)
        x_BTD = x_BTD + matmul(out, self.out_HCD[...], c.width)
        h = rms_norm(x_BTD, self.mlp_norm_D[...], c.norm_eps)
        gate, up = jnp.split(matmul(h, self.up_DUF[...], 2 * c.ff), 2, axis=-1)
        return x_BTD + matmul(jax.nn.silu(gate) * up, self.down_FD[...], c.width), k, v
