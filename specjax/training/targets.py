"""The target's laws as training holds them: whole, or the m likeliest tokens with the mass of all others.

Laws are at temperature 1 and float32 (float64 when x64 is on). A top-m law is a law over m + 1 outcomes, the named tokens and "any other";
what merges outcomes never makes two laws easier to tell apart (data processing), so losses on it bound those on the whole law from below.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from specjax.types import Array


class TargetLaw(NamedTuple):
    """The law of the next token at places X: p of N named tokens, and the mass of all others."""

    p_XN: Array
    id_XN: Array | None  # int32, no id twice; None: N is the vocabulary in order. In draft ids U (one past the last) names nothing
    rest_X: Array
    lost_X: Array | None = None  # mass of named tokens that the draft cannot say; None: of none. It is no part of the rest


def full(logits_XV) -> TargetLaw:
    """The whole law, from logits of the real tokens only (a padded head is cut before). Nothing rests."""
    p_XV = _law(logits_XV)
    return TargetLaw(p_XV, None, jnp.zeros_like(p_XV[..., 0]))


def top(logits_XV, m: int) -> TargetLaw:
    """The m likeliest tokens, likeliest first, the lower id first among equals. The rest is summed, not 1 minus the others."""
    p_XV = _law(logits_XV)
    if not 1 <= m <= p_XV.shape[-1]:
        raise ValueError(f"top={m} must be between 1 and {p_XV.shape[-1]}, the tokens of the vocabulary")
    p_XN, id_XN = jax.lax.top_k(p_XV, m)
    others_XV = jnp.put_along_axis(p_XV, id_XN, jnp.zeros_like(p_XN), axis=-1, inplace=False)
    return TargetLaw(p_XN, id_XN.astype(jnp.int32), jnp.sum(others_XV, axis=-1))


def reduced(law: TargetLaw, place_V, size: int) -> TargetLaw:
    """The law in the draft's vocabulary of `size` = U tokens. What the draft cannot say is lost: no part of the rest of a law that names
    some tokens, which is compared with what the draft puts on others. (How much of the rest the draft can say, nobody knows.)

    place_V: int32, the draft's index of each target id, U where it has none; every draft index has its target id.
    """
    place_V = jnp.asarray(place_V)
    if law.id_XN is None:
        id_U = jnp.zeros(size, jnp.int32).at[place_V].set(jnp.arange(len(place_V), dtype=jnp.int32), mode="drop")
        lost_X = jnp.sum(jnp.where(place_V < size, 0, law.p_XN), axis=-1)
        return TargetLaw(law.p_XN[..., id_U], None, law.rest_X + lost_X)
    id_XN = place_V[law.id_XN].astype(jnp.int32)
    lost_XN = jnp.where(id_XN < size, 0, law.p_XN)
    return TargetLaw(law.p_XN - lost_XN, id_XN, law.rest_X, jnp.sum(lost_XN, axis=-1))


def place_of(id_U, vocab: int) -> np.ndarray:
    """place_V of a reduced vocabulary: id_U are its target ids, None all of them."""
    id_U = np.arange(vocab) if id_U is None else np.asarray(id_U)
    place_V = np.full(vocab, len(id_U), np.int32)
    place_V[id_U] = np.arange(len(id_U), dtype=np.int32)
    return place_V


def _law(logits_XV):
    return jax.nn.softmax(logits_XV.astype(np.promote_types(logits_XV.dtype, jnp.float32)), axis=-1)
