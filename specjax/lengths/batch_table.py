"""A draft length for each size of the batch, found beforehand: a full batch leaves no idle arithmetic for long drafts (Su et al.,
2310.18813)."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from specjax.lengths.numbers import array, whole
from specjax.types import Array, struct


@struct
class BatchTable:
    """table: pairs (rows, k): a batch of at least so many rows drafts k tokens, until the next pair. The first is of 1 row. How many
    pairs there are is structure, what they say is not.

    It looks at the size of the batch, finished rows included. What a row samples (not coupled) then depends on how many rows its batch has;
    its law does not, and greedy and coupled tokens do not.

    Raises:
      ValueError: the table is none.
    """

    table: tuple[tuple[int, ...], ...] | Array
    name = "batch_table"

    def __post_init__(self):
        pairs = lambda x: x.ndim == 2 and x.shape[1] == 2 and whole(x, 0) and x[0, 0] == 1 and (np.diff(x[:, 0]) > 0).all()
        array(self, "table", np.int32, pairs, "pairs of whole numbers: rows, which ascend from 1, and a draft length of at least 0")

    def init(self, batch: int):
        return None

    def choose(self, state, offer_B):
        table = jnp.asarray(self.table)
        place = jnp.sum(table[:, 0] <= offer_B.shape[0], dtype=jnp.int32) - 1
        return jnp.minimum(table[place, 1], offer_B)

    def keep_going(self, state, q_BV, depth):
        return jnp.ones(q_BV.shape[0], bool)

    def observe(self, state, verdict):
        return state
