"""A fixed draft length (Leviathan et al., 2211.17192), and the length that takes whatever is offered."""

from __future__ import annotations

import jax.numpy as jnp

from specjax.lengths.numbers import EVERYTHING
from specjax.types import Array, struct


@struct
class Fixed:
    """Ask for k tokens whenever that many are offered. k is a number: another one compiles nothing."""

    k: int | Array
    name = "fixed"

    def init(self, batch: int):
        return None

    def choose(self, state, offer_B):
        return jnp.minimum(jnp.asarray(self.k, jnp.int32), offer_B)

    def keep_going(self, state, q_BV, depth):
        return jnp.ones(q_BV.shape[0], bool)

    def observe(self, state, verdict):
        return state


def match() -> Fixed:
    """As many tokens as the drafter offers: an n-gram offers what its match is good for, and nothing without one."""
    return Fixed(k=EVERYTHING)
