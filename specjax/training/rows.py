"""Training rows, and the one written convention for shift and mask.

A row is T tokens: texts packed one after the other, padding behind them. **Row t of a law, of logits or of a loss speaks of token t + 1**:
it is the law of the token that stands after token t. It counts iff token t + 1 belongs to the same text and its mask is true; the mask
says which tokens a draft should learn to say (an answer, not its prompt). All else follows from here, and is computed here only.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from specjax.training.targets import TargetLaw
from specjax.types import Array


class Batch(NamedTuple):
    """What a step trains on, and an evaluation measures."""

    token_BT: Array  # int32, target ids; any at padding
    mask_BT: Array  # bool: is this token one that the draft should learn to say
    segment_BT: Array  # int32: the texts of a row are 1, 2, ..., each in one piece; 0 is padding
    position_BT: Array  # int32: place within its text, from 0
    features: tuple[Array, ...] = ()  # [B, T, D], one a tap: the target's hidden state after reading token t
    law: TargetLaw | None = None  # over [B, T], in target ids: the law of token t + 1; None: only the text says what comes


def counts(batch: Batch):
    """counts_BT: whether row t counts, see above. False in the last column, whose next token is not here."""
    same_BT = (batch.segment_BT[:, 1:] == batch.segment_BT[:, :-1]) & (batch.segment_BT[:, 1:] > 0)
    return jnp.pad(same_BT & batch.mask_BT[:, 1:], ((0, 0), (0, 1)))


def following(batch: Batch):
    """The token t + 1 of each row t, [B, T]; in the last column token 0, which never counts."""
    return jnp.pad(batch.token_BT[:, 1:], ((0, 0), (0, 1)))


def visible(batch: Batch):
    """bool [B, T, T]: token t sees the tokens s <= t of its own text. Padding sees padding, so that no row of it is empty."""
    before_TT = jnp.tril(jnp.ones((batch.token_BT.shape[1],) * 2, bool))
    return (batch.segment_BT[:, :, None] == batch.segment_BT[:, None, :]) & before_TT[None]


def positions(segment_BT):
    """position_BT of packed rows: how many tokens of its own piece stand before each token."""
    index_BT = jnp.broadcast_to(jnp.arange(segment_BT.shape[1], dtype=jnp.int32), segment_BT.shape)
    begins_BT = jnp.pad(segment_BT[:, 1:] != segment_BT[:, :-1], ((0, 0), (1, 0)), constant_values=True)
    return index_BT - jax.lax.cummax(jnp.where(begins_BT, index_BT, 0), axis=1)
