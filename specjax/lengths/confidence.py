"""Draft on while the draft is sure of its next token: `assistant_confidence_threshold` of Hugging Face's assisted generation, and the early
exit from drafting of Kangaroo (Liu et al., 2404.18911, section 3.2)."""

from __future__ import annotations

import jax.numpy as jnp

from specjax.lengths.numbers import real
from specjax.types import Array, struct


@struct
class Confidence:
    """threshold: the draft goes on while the largest probability of its law q is at least this. A number: another compiles nothing.

    The decision is taken from the law, before its token is drawn, so a token once seen is always verified and every exact rule stays
    exact. It may come before the first token: the round is then a plain one. A draft that is stopped has cost one step more than it has
    tokens. At temperature 0 the law is the draft's at temperature 1. Drafts of an n-gram have none, and it never stops one.

    Raises:
      ValueError: not 0 <= threshold <= 1.
    """

    threshold: float | Array = 0.4
    name = "confidence"

    def __post_init__(self):
        real(self, threshold=(0, 1))

    def init(self, batch: int):
        return None

    def choose(self, state, offer_B):
        return offer_B

    def keep_going(self, state, q_BV, depth):
        return ~(jnp.max(q_BV, axis=-1) < jnp.asarray(self.threshold).astype(q_BV.dtype))  # NaN goes on: the loop names such a draft

    def observe(self, state, verdict):
        return state
