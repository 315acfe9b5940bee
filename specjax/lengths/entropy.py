"""Draft on while a lower bound of the next token's acceptance is high: AdaEDL (Agrawal et al., 2410.18351).

    go on while 1 - sqrt(gamma H(q)) >= threshold,    H(q) = -sum q log q in nats

Its threshold follows acceptance as in Draft & Verify (Zhang et al., 2309.08168, section 3.3), in every round that drafted:

    acceptance <- follow acceptance + (1 - follow) accepted / drafted
    threshold  <- smooth threshold + (1 - smooth) (threshold + step), with - step where acceptance is above its goal
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from specjax.lengths.numbers import real
from specjax.types import Array, struct


class Threshold(NamedTuple):
    threshold_B: Array
    acceptance_B: Array


@struct
class Entropy:
    """gamma: how fast doubt grows with entropy. threshold: in a row's first round. goal, follow, smooth, step: see the equations; step 0
    keeps the threshold. All are numbers: others compile nothing.

    As `Confidence` it decides before a token is drawn, possibly before the first. A round in which nothing was drafted leaves its row's
    threshold as it is.

    Raises:
      ValueError: a number is out of its range.
    """

    gamma: float | Array = 0.2
    threshold: float | Array = 0.4
    goal: float | Array = 0.9
    follow: float | Array = 0.5
    smooth: float | Array = 0.9
    step: float | Array = 0.01
    name = "entropy"

    def __post_init__(self):
        real(self, gamma=(0, 100), threshold=(-10, 1), goal=(0, 1), follow=(0, 1), smooth=(0, 1), step=(0, 1))

    def init(self, batch: int):
        return Threshold(jnp.full(batch, self.threshold, jnp.float32), jnp.full(batch, self.goal, jnp.float32))

    def choose(self, state: Threshold, offer_B):
        return offer_B

    def keep_going(self, state: Threshold, q_BV, depth):
        bound_B = 1 - jnp.sqrt(self.gamma * jnp.sum(jax.scipy.special.entr(q_BV), axis=-1).astype(jnp.float32))
        return ~(bound_B < state.threshold_B)  # NaN goes on: the loop names such a draft

    def observe(self, state: Threshold, verdict):
        share_B = verdict.accepted_B.astype(jnp.float32) / jnp.maximum(verdict.drafted_B, 1).astype(jnp.float32)
        acceptance_B = self.follow * state.acceptance_B + (1 - self.follow) * share_B
        step_B = jnp.where(acceptance_B > self.goal, -self.step, self.step)
        threshold_B = state.threshold_B + (1 - self.smooth) * step_B
        drafted_B = (verdict.drafted_B > 0) & (verdict.committed_B > 0)
        return jax.tree.map(lambda new, old: jnp.where(drafted_B, new, old), Threshold(threshold_B, acceptance_B), state)
