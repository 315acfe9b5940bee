"""Two tokens more after a draft that was accepted whole, one less otherwise: assisted generation in Hugging Face transformers (Gante 2023,
`num_assistant_tokens_schedule="heuristic"`)."""

from __future__ import annotations

import jax.numpy as jnp

from specjax.lengths.numbers import EVERYTHING, between
from specjax.types import Array, struct


@struct
class Heuristic:
    """start: tokens asked for in the first round. most: it grows no further than this. A drafter's largest draft bounds both.

    Both are numbers: others compile nothing. Each row has its own length, which a round without a draft leaves as it is.

    Raises:
      ValueError: not 1 <= start <= most, or not whole numbers.
    """

    start: int | Array = 5
    most: int | Array = EVERYTHING
    name = "heuristic"

    def __post_init__(self):
        for name, value in (("start", self.start), ("most", self.most)):
            if not between(value, 1, EVERYTHING) or value % 1:
                raise ValueError(f"length.{name}={value} must be a whole number of at least 1 and at most {EVERYTHING}")
        if self.start > self.most:
            raise ValueError(f"length.start={self.start} must be at most {self.most}, length.most")

    def init(self, batch: int):
        return jnp.full(batch, self.start, jnp.int32)

    def choose(self, state, offer_B):
        return jnp.minimum(state, offer_B)

    def keep_going(self, state, q_BV, depth):
        return jnp.ones(q_BV.shape[0], bool)

    def observe(self, state, verdict):
        most = jnp.minimum(jnp.asarray(self.most, jnp.int32), verdict.most)
        asked_B = jnp.minimum(state, most)
        full_B = verdict.accepted_B == verdict.drafted_B
        changed_B = jnp.where(full_B, jnp.minimum(asked_B + 2, most), jnp.maximum(asked_B - 1, 1))
        return jnp.where((verdict.drafted_B > 0) & (verdict.committed_B > 0), changed_B, state)
