"""One length for all rows of a batch, the one that gives most tokens for what their pass costs: goodput (Liu et al., 2406.14066).

    C = argmax over C = 0, 1, ... of sum_b (1 + sum_{j <= min(C, offer_b)} reach_j) / cost(max_b min(C, offer_b))

Rows share a pass, and all pay for the widest draft. `optimal` lets each row weigh its own draft alone, so in a batch one row that likes its
chances widens the pass of all.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from specjax.lengths.optimal import Optimal, Tries
from specjax.types import Array, struct


class Crew(NamedTuple):
    """running: rows that said something in the last round."""

    tries: Tries
    running_B: Array


@struct
class Goodput(Optimal):
    """All numbers as `Optimal` has them, with the costs of a batch of as many rows. Of one row it asks for the same.

    A place has one rate for all rows that run, of what was judged in any. C = 0 is plain decoding for the whole batch: where that gains
    most, the batch stands aside, and tries again as soon as a share of the tokens of a row pays for it.

    It looks at the rows beside: how much a row drafts, and so what it samples (not coupled), depends on its batch. The law of a row's
    tokens does not, as a length is decided before anything is drawn; greedy and coupled tokens do not either.

    Raises:
      ValueError: a number is out of its range; from `init`, without costs.
    """

    name = "goodput"

    def init(self, batch: int):
        return Crew(super().init(batch), jnp.ones(batch, bool))

    def choose(self, state: Crew, offer_B):
        running_B = state.running_B
        here = lambda x_B: jnp.where(running_B.reshape(-1, *[1] * (x_B.ndim - 1)), x_B, 0)
        total = jax.tree.map(lambda x_B: jnp.sum(here(x_B), axis=0, keepdims=True), state.tries)
        (reach_M,), (tokens_M,) = self.expected(total)
        ceiling_M = jnp.arange(len(self.v), dtype=jnp.int32)
        draft_BM = here(jnp.minimum(offer_B[:, None], ceiling_M[None]))
        deepest_M = jnp.max(draft_BM, axis=0)
        whole_BM = jnp.where(draft_BM > 0, reach_M[draft_BM], 0)
        late_M = self.catch_up * (1 - jnp.prod(1 - whole_BM, axis=0))  # of any row
        gain_M = jnp.sum(here(tokens_M[draft_BM]), axis=0) / (self.cost_M[deepest_M] + late_M)
        best, other = jnp.argmax(gain_M).astype(jnp.int32), 1 + jnp.argmax(gain_M[1:]).astype(jnp.int32)
        aside = total.aside_B[0] / jnp.maximum(jnp.sum(running_B, dtype=jnp.float32), 1)
        ceiling = jnp.where((best == 0) & self.may_try(deepest_M[other], aside), other, best)
        return jnp.minimum(offer_B, ceiling)

    def observe(self, state: Crew, verdict):
        tries = super().observe(state.tries, verdict)
        drafted = jnp.any(verdict.drafted_B > 0)  # a row without an offer paid for the pass too
        return Crew(tries._replace(aside_B=jnp.where(drafted, 0, tries.aside_B)), verdict.committed_B > 0)
