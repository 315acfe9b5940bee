"""The key-value cache: full length, one cursor a row, rolled back by moving the cursor.

An array of the cache is [B, G, S, C], with B or G left out where it is 1. With an axis of size one XLA's CPU compiler writes through
two views of the array, and copies all of it in every layer of every step.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from specjax.types import Cache

UNROLLED_ROWS = 8  # up to here one update a row on a CPU, where a vmapped one becomes a scatter: 14% of a step at batch 4


def lead(batch: int, kv_heads: int) -> tuple[int, ...]:
    """The leading axes of a cache array."""
    return tuple(n for n in (batch, kv_heads) if n > 1)


def empty(layers: int, batch: int, kv_heads: int, size: int, head_size: int, dtype) -> Cache:
    """A cache of `size` slots a row."""
    shape = (*lead(batch, kv_heads), size, head_size)
    return Cache(*(tuple(jnp.zeros(shape, dtype) for _ in range(layers)) for _ in "kv"))


def write(cache, new_BTGC, cursor_B):
    """Write T tokens a row at the row's cursor. The caller keeps cursor + T <= S: a clamped update would hit live slots."""
    B, T, G, C = new_BTGC.shape
    new = new_BTGC.transpose(0, 2, 1, 3).reshape(*lead(B, G), T, C)
    zero = jnp.zeros((), cursor_B.dtype)  # indices of one dtype, with 64-bit numbers too
    heads = (zero,) * (G > 1)

    def vmapped(cache, new, cursor_B):
        return jax.vmap(lambda c, n, at: jax.lax.dynamic_update_slice(c, n, (*heads, at, zero)))(cache, new, cursor_B)

    def unrolled(cache, new, cursor_B):
        for b in range(B):
            cache = jax.lax.dynamic_update_slice(cache, new[b : b + 1], (zero + b, *heads, cursor_B[b], zero))
        return cache

    if B == 1:
        return jax.lax.dynamic_update_slice(cache, new, (*heads, cursor_B[0], zero))
    if B > UNROLLED_ROWS:
        return vmapped(cache, new, cursor_B)
    return jax.lax.platform_dependent(cache, new, cursor_B, cpu=unrolled, default=vmapped)


def gather(cache: Cache, batch: int, kv_heads: int, cursor_B, slot_BT, span: int) -> Cache:
    """Slot cursor + t gets what was in slot cursor + slot_BT[:, t], under cursor + `span`: a tree's path becomes contiguous.

    Read by a product with a 0/1 matrix, which is exact: XLA would fuse an indexed read with the write, and copy the whole cache for it.
    """
    chosen_BTN = slot_BT[..., None] == jnp.arange(span, dtype=slot_BT.dtype)[None, None]

    def moved(array):
        rows_BGSC = array.reshape(batch, kv_heads, *array.shape[-2:])
        near_BGNC = jax.vmap(lambda row_GSC, at: jax.lax.dynamic_slice_in_dim(row_GSC, at, span, axis=1))(rows_BGSC, cursor_B)
        near_BGNC = jnp.where(jnp.isfinite(near_BGNC), near_BGNC, 0)  # 0 times what overflowed on another branch is NaN
        path_BTGC = jnp.einsum("btn,bgnc->btgc", chosen_BTN.astype(array.dtype), near_BGNC, precision=jax.lax.Precision.HIGHEST)
        return write(array, path_BTGC, cursor_B)

    return jax.tree.map(moved, cache)


def causal(cursor_B, tokens: int, size: int):
    """visible_BTS: each of T fed tokens sees the slots up to its own."""
    return _from_cursor(cursor_B, size)[:, None, :] <= jnp.arange(tokens, dtype=cursor_B.dtype)[None, :, None]


def near(cursor_B, position_BT, size: int, window: int):
    """near_BTS: which slots hold one of the `window` positions that end with each fed token's own.

    By position, not by slot: a slot before the cursor holds the position of its number, but the fed tokens may be a tree's. (Nodes of a
    tree that were fed in earlier calls count as later than they are, so none of a node's ancestors is lost.)
    """
    slot = _from_cursor(cursor_B, size)
    fed_BS = jnp.take_along_axis(position_BT, jnp.clip(slot, 0, position_BT.shape[1] - 1), axis=1)
    place_BS = jnp.where(slot < 0, slot + cursor_B[:, None], fed_BS.astype(slot.dtype))
    return position_BT.astype(slot.dtype)[:, :, None] - place_BS[:, None, :] < window


def _from_cursor(cursor_B, size: int):
    """[B, S]: each slot's number relative to the first fed token."""
    return jnp.arange(size, dtype=cursor_B.dtype)[None, :] - cursor_B[:, None]
