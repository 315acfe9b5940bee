"""Draft on while the draft is sure of its next token: `assistant_confidence_threshold` of Hugging Face's assisted generation, and the early
exit from drafting of Kangaroo (Liu et al., 2404.18911, section 3.2)."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from specjax.lengths.numbers import array, real
from specjax.types import Array, struct


@struct
class Confidence:
    """threshold: the draft goes on while the largest probability of its law q is at least this. Or several, one a place of the draft, the
    last for all later ones too: where the first drafted token makes a pass dearer than the next ones do, it should ask for more. How many
    there are is structure; as numbers, others compile nothing.

    The decision is taken from the law, before its token is drawn, so a token once seen is always verified and every exact rule stays
    exact. It may come before the first token: the round is then a plain one. A draft that is stopped has cost one step more than it has
    tokens. At temperature 0 the law is the draft's at temperature 1. Drafts of an n-gram have none, and it never stops one.

    Raises:
      ValueError: not 0 <= threshold <= 1.
    """

    threshold: float | tuple[float, ...] | Array = 0.4
    name = "confidence"

    def __post_init__(self):
        if np.ndim(self.threshold):
            array(self, "threshold", np.float32, lambda x: x.ndim == 1 and ((x >= 0) & (x <= 1)).all(), "at least 0 and at most 1, each")
        else:
            real(self, threshold=(0, 1))

    def init(self, batch: int):
        return None

    def choose(self, state, offer_B):
        return offer_B

    def keep_going(self, state, q_BV, depth):
        threshold = jnp.asarray(self.threshold)
        if threshold.ndim:
            threshold = threshold[jnp.minimum(depth, len(threshold)) - 1]
        return ~(jnp.max(q_BV, axis=-1) < threshold.astype(q_BV.dtype))  # NaN goes on: the loop names such a draft

    def observe(self, state, verdict):
        return state
