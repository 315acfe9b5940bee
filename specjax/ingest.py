"""Feeding committed tokens to a model without asking for logits: prefill of a prompt, and catching up after standing aside."""

from __future__ import annotations

import jax
import jax.numpy as jnp


def prefill(model, params, cache, token_BS, stop_B, chunk: int, taps: tuple[int, ...] = ()):
    """Feed tokens 0 .. stop of each row, `chunk` at a time; returns (cache, features), of each tap [B, S, D].

    All rows go in step, so a short row is fed garbage past its stop: those slots are past its cursor, masked and overwritten. S must be
    a multiple of `chunk`, or the last write would be clamped onto live slots.
    """
    if token_BS.shape[1] % chunk:
        raise ValueError(f"buffer of {token_BS.shape[1]} slots is not a multiple of the prefill chunk {chunk}")

    def feed(carry):
        at, cache, features = carry
        token_BT = jax.lax.dynamic_slice_in_dim(token_BS, at, chunk, axis=1)
        _, tapped, cache = model.forward(params, token_BT, cache, jnp.full(token_BS.shape[:1], at), taps=taps)
        put = lambda all_BSD, new_BTD: jax.lax.dynamic_update_slice_in_dim(all_BSD, new_BTD, at, axis=1)
        return at + chunk, cache, jax.tree.map(put, features, tapped)

    features = ()
    if taps:
        start_B = jnp.zeros(token_BS.shape[:1], jnp.int32)
        tapped = jax.eval_shape(lambda: model.forward(params, token_BS[:, :chunk], cache, start_B, taps=taps)[1])
        features = tuple(jnp.zeros((*token_BS.shape, x.shape[-1]), x.dtype) for x in tapped)
    _, cache, features = jax.lax.while_loop(lambda c: jnp.any(c[0] < stop_B), feed, (jnp.int32(0), cache, features))
    return cache, features


def level(model, params, cache, token_BS, cursor_B, target_B, chosen_B, width: int):
    """Make the chosen rows level with the target: `width` tokens at a time while far behind, then the one token that a full acceptance
    leaves behind; returns the cache. cursor_B, target_B: tokens in this cache and in the target's."""
    stop_B = jnp.where(chosen_B, target_B, cursor_B)
    near_B = jnp.where(stop_B - cursor_B > 1, stop_B, cursor_B)
    cache = catch_up(model, params, cache, token_BS, cursor_B, near_B, width)
    return catch_up(model, params, cache, token_BS, near_B, stop_B, 1)


def catch_up(model, params, cache, token_BS, start_B, stop_B, width: int):
    """Feed tokens start .. stop of each row, at its own cursor, at most `width` at a time; returns the cache.

    A row that is level is fed garbage at its stop. Needs stop + width <= S.
    """

    def feed(carry):
        at_B, cache = carry
        token_BT = jax.vmap(lambda row, at: jax.lax.dynamic_slice_in_dim(row, at, width))(token_BS, at_B)
        _, _, cache = model.forward(params, token_BT, cache, at_B)
        return jnp.minimum(at_B + width, stop_B), cache

    start_B = jnp.minimum(start_B, stop_B)
    _, cache = jax.lax.while_loop(lambda c: jnp.any(c[0] < stop_B), feed, (start_B, cache))
    return cache
