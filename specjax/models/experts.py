"""A mixture of experts: each token goes through the few feed-forwards its router chooses (Mixtral, 2401.04088; Qwen3, 2505.09388).

Which experts wake is known only while the program runs; how many tokens there are is known when it is compiled, and decides the form:

- few tokens (fewer choices than experts): the kernels that were chosen are gathered, and each is used once. A pass then costs what it
  wakes, so a longer block of drafts costs more than one token by nearly its length: the curve v(n) of a mixture is not that of a dense
  model. This is the form of decoding and of verification.
- many tokens (prefill): all experts on all tokens, those not chosen weighted out. With as many choices as experts nearly all of them wake
  anyway, and plain products read each kernel once.

A third form, sorting the tokens by expert (`jax.lax.ragged_dot`), is the best of both on a TPU; on a CPU it multiplies by all experts.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np


def choose(logits_NE, per_token: int, norm: bool):
    """(weight_NK, expert_NK): the likeliest experts of each token and their probabilities, in at least float32."""
    wide = np.promote_types(logits_NE.dtype, jnp.float32)
    weight_NK, expert_NK = jax.lax.top_k(jax.nn.softmax(logits_NE.astype(wide), axis=-1), per_token)
    return weight_NK / jnp.sum(weight_NK, axis=-1, keepdims=True) if norm else weight_NK, expert_NK


def mixture(x_ND, router_DE, up_EDUX, down_EXD, activation, per_token: int, norm: bool):
    """The weighted sum of each token's experts, [N, D]."""
    weight_NK, expert_NK = choose(x_ND @ router_DE, per_token, norm)
    weight_NK = weight_NK.astype(x_ND.dtype)
    form = _gathered if expert_NK.size < down_EXD.shape[0] else _all
    return form(x_ND, weight_NK, expert_NK, up_EDUX, down_EXD, activation)


def _gathered(x_ND, weight_NK, expert_NK, up_EDUX, down_EXD, activation):
    gate_up_NKUX = jnp.einsum("nd,nkdux->nkux", x_ND, up_EDUX[expert_NK])
    inner_NKX = activation(gate_up_NKUX[..., 0, :]) * gate_up_NKUX[..., 1, :] * weight_NK[..., None]
    return jnp.einsum("nkx,nkxd->nd", inner_NKX, down_EXD[expert_NK])


def _all(x_ND, weight_NK, expert_NK, up_EDUX, down_EXD, activation):
    chosen_NKE = expert_NK[..., None] == jnp.arange(down_EXD.shape[0], dtype=expert_NK.dtype)[None, None, :]
    weight_NE = jnp.sum(jnp.where(chosen_NKE, weight_NK[..., None], 0), axis=1)
    gate_up_ENUX = jnp.einsum("nd,edux->enux", x_ND, up_EDUX)
    inner_ENX = activation(gate_up_ENUX[..., 0, :]) * gate_up_ENUX[..., 1, :]
    inner_ENX = jnp.where(jnp.any(chosen_NKE, axis=1).T[..., None], inner_ENX * weight_NE.T[..., None], 0)  # not 0 x infinity
    return jnp.einsum("enx,exd->nd", inner_ENX, down_EXD)
