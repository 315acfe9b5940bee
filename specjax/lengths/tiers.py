"""A running average of accepted tokens chooses among a few draft lengths: adaptive speculative steps of SGLang, without its hysteresis."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from specjax.lengths.numbers import EVERYTHING, array, real, whole
from specjax.types import Array, struct


@struct
class Tiers:
    """Ask for the shortest of `tiers` that has room for one token more than are accepted on average, or for the longest.

    tiers: draft lengths; how many there are is structure. start: the average before the first round. memory: weight of the old average
    in the new one, taken of every round that drafted. Numbers: others compile nothing.

    Raises:
      ValueError: a number is out of its range, or tiers do not ascend from at least 1.
    """

    tiers: tuple[int, ...] | Array = (1, 3, 7)
    start: float | Array = 1.0
    memory: float | Array = 0.8
    name = "tiers"

    def __post_init__(self):
        ascend = lambda x: x.ndim == 1 and whole(x, 1) and (np.diff(x) > 0).all()
        array(self, "tiers", np.int32, ascend, "whole numbers that ascend from at least 1")
        real(self, start=(0, EVERYTHING), memory=(0, 1))

    def init(self, batch: int):
        return jnp.full(batch, self.start, jnp.float32)

    def choose(self, state, offer_B):
        tiers = jnp.asarray(self.tiers)
        wanted_B = jnp.floor(state + 0.5).astype(jnp.int32) + 1
        place_B = jnp.sum(tiers[None] < wanted_B[:, None], axis=-1, dtype=jnp.int32)
        return jnp.minimum(tiers[jnp.minimum(place_B, len(tiers) - 1)], offer_B)

    def keep_going(self, state, q_BV, depth):
        return jnp.ones(q_BV.shape[0], bool)

    def observe(self, state, verdict):
        mean_B = self.memory * state + (1 - self.memory) * verdict.accepted_B.astype(jnp.float32)
        return jnp.where((verdict.drafted_B > 0) & (verdict.committed_B > 0), mean_B, state)
