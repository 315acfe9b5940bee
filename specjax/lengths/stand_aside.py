"""Any policy, with plain decoding where its drafts do not pay: a row whose rounds with drafts gave fewer tokens than plain steps of their
cost stops drafting, and tries again when that cannot cost it much (as engines turn speculation off; Liu et al., 2406.14066, size it by
goodput)."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp

from specjax.lengths.costs import Costs, aside
from specjax.lengths.numbers import EVERYTHING, real
from specjax.types import Array, PyTree, struct


class Account(NamedTuple):
    """tokens, cost: of rounds that drafted, discounted. aside: tokens said since the row last drafted."""

    policy: PyTree
    tokens_B: Array
    cost_B: Array
    aside_B: Array


@struct
class StandAside(Costs):
    """policy: decides how much to draft. v, c, catch_up, share: see `Costs`; a run of a config measures the first three.

    A row drafts while (weight gain + tokens) / (weight + cost) >= 1, in which memory is what is left of both sums after each round that
    drafted. gain: tokens per plain step that drafting is taken to give before anything is known; weight: plain steps of it.

    A draft that its policy stops (`confidence`, `entropy`) is charged for its tokens, not for the step whose law stopped it.

    Raises:
      ValueError: a number is out of its range, or the policy stands aside by itself; from `init`, without costs.
    """

    policy: PyTree
    gain: float | Array = 2.0
    weight: float | Array = 2.0
    memory: float | Array = 0.98
    name = "stand_aside"

    def __post_init__(self):
        super().__post_init__()
        if hasattr(self.policy, "needs_costs"):
            raise ValueError(f"length.policy={self.policy.name} stands aside by itself: take it alone")
        real(self, gain=(0, EVERYTHING), weight=(1e-3, EVERYTHING), memory=(0, 1))

    def init(self, batch: int):
        self.required()
        return Account(self.policy.init(batch), *(jnp.zeros(batch, jnp.float32) for _ in range(3)))

    def choose(self, state: Account, offer_B):
        wanted_B = jnp.minimum(self.policy.choose(state.policy, offer_B), len(self.v) - 1)
        pays_B = self.weight * self.gain + state.tokens_B >= self.weight + state.cost_B
        return jnp.where(pays_B | self.may_try(wanted_B, state.aside_B), wanted_B, 0)

    def keep_going(self, state: Account, q_BV, depth):
        return self.policy.keep_going(state.policy, q_BV, depth)

    def observe(self, state: Account, verdict):
        drafted_B, full_B = verdict.drafted_B, verdict.accepted_B == verdict.drafted_B
        cost_M = self.cost_M
        cost_B = cost_M[jnp.minimum(drafted_B, len(cost_M) - 1)] + jnp.where(full_B, self.catch_up, 0)
        judged_B = (drafted_B > 0) & (verdict.committed_B > 0)
        add = lambda old_B, new_B: jnp.where(judged_B, self.memory * old_B + new_B, old_B)
        tokens_B = add(state.tokens_B, (verdict.accepted_B + 1).astype(jnp.float32))
        return Account(self.policy.observe(state.policy, verdict), tokens_B, add(state.cost_B, cost_B), aside(state.aside_B, verdict))
