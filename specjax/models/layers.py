"""The layers of a decoder-only transformer, as Flax NNX modules that hold parameters and nothing else.

Llama's block (Touvron et al., 2302.13971) is the plain form: RMSNorm, rotary positions in half-split order, grouped-query attention, gated
SiLU. `ModelConfig` says what a family has besides or instead. Kernels are stored (in, out) and fused where one input feeds several products
(q, k, v; gate, up): on a CPU both are worth several percent.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from specjax.models.cache import lead, write
from specjax.models.config import ModelConfig
from specjax.models.experts import mixture

ACTIVATE = {
    "silu": jax.nn.silu,
    "gelu": functools.partial(jax.nn.gelu, approximate=False),
    "gelu_tanh": functools.partial(jax.nn.gelu, approximate=True),
}


def _normal(key, shape, fan_in, dtype):
    return jax.random.normal(key, shape, dtype) * jnp.asarray(fan_in**-0.5, dtype)


def matmul(x_BTX, kernel, width: int):
    """x times a kernel seen as [X, width]; rows are flattened so that XLA sees a two-dimensional product."""
    batch, tokens, inner = x_BTX.shape
    return (x_BTX.reshape(batch * tokens, inner) @ kernel.reshape(inner, width)).reshape(batch, tokens, width)


def to_parts(x_BTX, kernel_XUF):
    """x times each of U kernels, [B, T, U, F]. The kernel keeps its axes: over a mesh F may be split, U * F as one axis could not be."""
    batch, tokens, inner = x_BTX.shape
    flat = jax.lax.dot_general(x_BTX.reshape(batch * tokens, inner), kernel_XUF, (((1,), (0,)), ((), ())))
    return flat.reshape(batch, tokens, *kernel_XUF.shape[1:])


def _under(small, x):
    """An array of x's last axes, spread over the others, in x's dtype."""
    return small.reshape((1,) * (x.ndim - small.ndim) + small.shape).astype(x.dtype)


def rms_norm(x, scale_D, eps: float):
    """RMSNorm over the last axis, in at least float32."""
    wide = x.astype(np.promote_types(x.dtype, jnp.float32))
    mean = jnp.mean(jnp.square(wide), axis=-1, keepdims=True)
    return (wide * jax.lax.rsqrt(mean + eps) * _under(scale_D, wide)).astype(x.dtype)


def layer_norm(x, scale_D, bias_D, eps: float):
    """LayerNorm (Ba et al., 1607.06450) over the last axis, in at least float32."""
    wide = x.astype(np.promote_types(x.dtype, jnp.float32))
    wide = wide - jnp.mean(wide, axis=-1, keepdims=True)
    spread = jnp.mean(jnp.square(wide), axis=-1, keepdims=True)
    return (wide * jax.lax.rsqrt(spread + eps) * _under(scale_D, wide) + _under(bias_D, wide)).astype(x.dtype)


def add_norm(module, name: str, config: ModelConfig, dtype) -> None:
    """Give a module the parameters of one norm, `name`_D and where the norm has one `name`_bias_D."""
    setattr(module, f"{name}_D", nnx.Param(jnp.ones(config.width, dtype)))
    if config.norm == "layer":
        setattr(module, f"{name}_bias_D", nnx.Param(jnp.zeros(config.width, dtype)))


def norm(module, name: str, x):
    """The norm of that name, of the module's config's kind."""
    c, scale_D = module.config, getattr(module, f"{name}_D")[...]
    if c.norm == "rms":
        return rms_norm(x, scale_D, c.norm_eps)
    return layer_norm(x, scale_D, getattr(module, f"{name}_bias_D")[...], c.norm_eps)


def rotary(position_BT, size: int, theta: float, dtype, stretch: tuple[float, ...] = (), gain: float = 1.0):
    """(cos, sin), each [B, T, size / 2] (RoFormer, 2104.09864). Every way to stretch rotary positions beyond the length they were trained
    at (linear, llama3, yarn, longrope) slows each pair's turning by a number of its own, and some give cos and sin a gain."""
    rate = theta ** (-jnp.arange(0, size, 2, dtype=dtype) / size)
    if stretch:
        rate = rate / jnp.asarray(stretch, dtype)
    angle = position_BT[..., None].astype(dtype) * rate[None, None, :]
    cos, sin = jnp.cos(angle), jnp.sin(angle)
    return (cos, sin) if gain == 1 else (cos * gain, sin * gain)


def rotate(x_BTGRC, cos, sin):
    """Turn each pair (c, c + n) of the first 2 n channels of x by its position's angle; the other channels stay."""
    turned = 2 * cos.shape[-1]
    cos, sin = (a[:, :, None, None, :].astype(x_BTGRC.dtype) for a in (cos, sin))
    low, high = jnp.split(x_BTGRC[..., :turned], 2, axis=-1)
    rest = [x_BTGRC[..., turned:]] if turned < x_BTGRC.shape[-1] else []
    return jnp.concatenate([low * cos - high * sin, high * cos + low * sin, *rest], axis=-1)


def soft_cap(x, cap: float | None):
    """Values kept within (-cap, cap) (Gemma 2, 2408.00118); None: as they are."""
    return x if cap is None else jnp.tanh(x / cap) * cap


def attend(q_BTGRC, k, v, visible_BTS, scale: float | None = None, cap: float | None = None):
    """Softmax attention of every query over the slots it may see, [B, T, H * C]; k and v as in `specjax.models.cache`.

    One batched product over (row, key-value head), with (query, group) folded into its rows: the quickest form on a CPU.
    """
    B, T, G, R, C = q_BTGRC.shape
    wide = np.promote_types(q_BTGRC.dtype, jnp.float32)
    q = q_BTGRC.transpose(0, 2, 1, 3, 4).reshape(*lead(B, G), T * R, C)
    scale = jnp.asarray(C**-0.5 if scale is None else scale, wide)  # in bfloat16 it would be off by up to 0.25% (C = 112)
    q = (q.astype(wide) * scale).astype(q.dtype)
    score = soft_cap(jnp.einsum("...xc,...sc->...xs", q, k, preferred_element_type=wide), cap)
    visible_BGXS = jnp.broadcast_to(visible_BTS[:, None, :, None, :], (B, G, T, R, visible_BTS.shape[-1]))
    score = jnp.where(visible_BGXS.reshape(score.shape), score, jnp.finfo(wide).min)
    weight = jax.nn.softmax(score, axis=-1).astype(v.dtype)
    out = jnp.einsum("...xs,...sc->...xc", weight, v)
    return out.reshape(B, G, T, R, C).transpose(0, 2, 1, 3, 4).reshape(B, T, G * R * C)


def finite(x):
    """x with zero for what is not finite. A slot that nobody sees has weight 0, and 0 x NaN in the sum over slots would be NaN: nothing
    that is not finite may enter the cache."""
    return jnp.where(jnp.isfinite(x), x, jnp.zeros((), x.dtype))


class Block(nnx.Module):
    """One layer: x + attention(norm(x)), then x + mlp(norm(x)); or both from the same x."""

    def __init__(self, config: ModelConfig, layer: int, *, rngs: nnx.Rngs, dtype=jnp.float32):
        c = config
        self.config = c
        add_norm(self, "attn_norm", c, dtype)
        self.qkv_DGJC = nnx.Param(_normal(rngs(), (c.width, c.kv_heads, c.group + 2, c.head_size), c.width, dtype))
        self.out_HCD = nnx.Param(_normal(rngs(), (c.heads, c.head_size, c.width), c.heads * c.head_size, dtype))
        if c.qkv_bias:
            self.qkv_bias_GJC = nnx.Param(jnp.zeros((c.kv_heads, c.group + 2, c.head_size), dtype))
        if c.out_bias:
            self.out_bias_D = nnx.Param(jnp.zeros(c.width, dtype))
        if c.qk_norm:
            self.q_norm_C, self.k_norm_C = (nnx.Param(jnp.ones(c.head_size, dtype)) for _ in "qk")
        add_norm(self, "mlp_norm", c, dtype)
        if c.post_norms:
            add_norm(self, "attn_post_norm", c, dtype)
            add_norm(self, "mlp_post_norm", c, dtype)
        add_rest = self._add_experts if layer in c.sparse else self._add_mlp
        add_rest(c, rngs, dtype)

    def _add_mlp(self, c: ModelConfig, rngs: nnx.Rngs, dtype):
        parts = 1 + c.gated
        self.up_DUF = nnx.Param(_normal(rngs(), (c.width, parts, c.ff), c.width, dtype))  # U: gate, up
        self.down_FD = nnx.Param(_normal(rngs(), (c.ff, c.width), c.ff, dtype))
        if c.mlp_bias:
            self.up_bias_UF = nnx.Param(jnp.zeros((parts, c.ff), dtype))
            self.down_bias_D = nnx.Param(jnp.zeros(c.width, dtype))

    def _add_experts(self, c: ModelConfig, rngs: nnx.Rngs, dtype):
        self.router_DE = nnx.Param(_normal(rngs(), (c.width, c.experts), c.width, dtype))
        self.up_EDUX = nnx.Param(_normal(rngs(), (c.experts, c.width, 2, c.expert_ff), c.width, dtype))
        self.down_EXD = nnx.Param(_normal(rngs(), (c.experts, c.expert_ff, c.width), c.expert_ff, dtype))

    def __call__(self, x_BTD, k, v, cursor_B, rope, visible_BTS):
        """Returns (x_BTD, k, v), the new keys and values written at the cursor. `rope` is None for learned positions."""
        out, k, v = self._attention(norm(self, "attn_norm", x_BTD), k, v, cursor_B, rope, visible_BTS)
        if self.config.parallel:
            return x_BTD + out + self._mlp(norm(self, "mlp_norm", x_BTD)), k, v
        x_BTD = x_BTD + self._after("attn_post_norm", out)
        return x_BTD + self._after("mlp_post_norm", self._mlp(norm(self, "mlp_norm", x_BTD))), k, v

    def _after(self, name: str, x):
        return norm(self, name, x) if self.config.post_norms else x

    def _attention(self, h, k, v, cursor_B, rope, visible_BTS):
        c = self.config
        qkv = self._plus("qkv_bias_GJC", matmul(h, self.qkv_DGJC[...], c.kv_heads * (c.group + 2) * c.head_size))
        qkv = qkv.reshape(*h.shape[:2], c.kv_heads, c.group + 2, c.head_size)
        qk, new_v = qkv[..., : c.group + 1, :], qkv[..., c.group + 1, :]
        if c.qk_norm:
            q_norm_RC = jnp.broadcast_to(self.q_norm_C[...][None, :], (c.group, c.head_size))
            scale_JC = jnp.concatenate([q_norm_RC, self.k_norm_C[...][None, :]])
            qk = rms_norm(qk, scale_JC, c.norm_eps)
        if rope is not None:
            qk = rotate(qk, *rope)
        q, new_k = qk[..., : c.group, :], qk[..., c.group, :]
        k, v = write(k, finite(new_k), cursor_B), write(v, finite(new_v), cursor_B)
        q = q + (0 * (new_k + new_v))[..., None, :]  # adds zero, or NaN: what `finite` replaced still shows in this token's own logits
        out = attend(q, k, v, visible_BTS, c.attn_scale, c.attn_cap)
        return self._plus("out_bias_D", matmul(out, self.out_HCD[...], c.width)), k, v

    def _mlp(self, h):
        c = self.config
        if hasattr(self, "router_DE"):
            kernels = (self.router_DE[...], self.up_EDUX[...], self.down_EXD[...])
            flat = mixture(h.reshape(-1, c.width), *kernels, ACTIVATE[c.activation], c.experts_per_token, c.norm_topk)
            return flat.reshape(h.shape)
        up_BTUF = to_parts(h, self.up_DUF[...])
        if c.mlp_bias:
            up_BTUF = up_BTUF + _under(self.up_bias_UF[...], up_BTUF)
        inner = ACTIVATE[c.activation](up_BTUF[..., 0, :])
        if c.gated:
            inner = inner * up_BTUF[..., 1, :]
        return self._plus("down_bias_D", matmul(inner, self.down_FD[...], c.width))

    def _plus(self, bias: str, x):
        """x and the bias of that name, where this model has it."""
        return x + _under(getattr(self, bias)[...].reshape(-1), x) if hasattr(self, bias) else x
