"""The length that gains most by what was accepted so far and what rounds cost: the K of Leviathan et al. (2211.17192, section 3.5), with
one running rate for each place in the stead of one alpha, chosen anew every round.

    K = argmax over k = 0 .. offer of (1 + sum_{j <= k} reach_j) / (v_k + k c + catch_up reach_k),    reach_k = rate_1 ... rate_k

K = 0 is plain decoding: where drafting does not pay, a row stands aside, and tries again when that cannot cost it much. Each row weighs its
own draft as if it were alone; of a batch, whose rows all pay for the widest draft, see `goodput`.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from specjax.lengths.costs import Costs, aside
from specjax.lengths.numbers import EVERYTHING, real
from specjax.types import Array, struct


class Tries(NamedTuple):
    """judged, accepted: discounted counts of each place's drafts. aside: tokens said since the row last drafted."""

    judged_BK: Array
    accepted_BK: Array
    aside_B: Array


@struct
class Optimal(Costs):
    """v, c, catch_up, share: see `Costs`; a run of a config measures the first three.

    The rate of a place is (weight r + accepted) / (weight + judged), where r is the rate of the place before it, at the first place
    `rate`: so a place that was never reached is taken to be as good as the one before. memory: what is left of both counts each time the
    place is judged again. Only what a rule judged is learnt from, never drafts that were discarded. The usual numbers suit drafts that
    cost next to nothing; where c is a tenth or more, a weight of about 6 gives up less easily.

    A row that stands aside drafts the best length other than 0 once in a while: as soon as `share` of the tokens said in the meantime
    pays for it, should all be refused. share 0: never.

    Raises:
      ValueError: a number is out of its range; from `init`, without costs.
    """

    rate: float | Array = 0.7
    weight: float | Array = 2.0
    memory: float | Array = 0.9
    name = "optimal"

    def __post_init__(self):
        super().__post_init__()
        real(self, rate=(0, 1), weight=(1e-3, EVERYTHING), memory=(0, 1))

    def init(self, batch: int):
        self.required()
        zero_BK = jnp.zeros((batch, len(self.v) - 1), jnp.float32)
        return Tries(zero_BK, jnp.copy(zero_BK), jnp.zeros(batch, jnp.float32))

    def expected(self, state: Tries):
        """(reach_BM, tokens_BM), for k = 0, 1, ...: how likely the k-th token of a draft is accepted, and how many a draft of k gives."""
        one_B = jnp.ones_like(state.aside_B)

        def place(carry, x):
            rate_B, reach_B, tokens_B = carry
            judged_B, accepted_B = x
            rate_B = (self.weight * rate_B + accepted_B) / (self.weight + judged_B)
            reach_B = reach_B * rate_B
            tokens_B = tokens_B + reach_B
            return (rate_B, reach_B, tokens_B), (reach_B, tokens_B)

        _, of_KB = jax.lax.scan(place, (self.rate * one_B, one_B, one_B), (state.judged_BK.T, state.accepted_BK.T), unroll=8)
        return tuple(jnp.concatenate([one_B[:, None], x_KB.T], axis=1) for x_KB in of_KB)

    def gains(self, state: Tries):
        """gain_BM: expected tokens over cost of a round that drafts k = 0, 1, ... tokens."""
        reach_BM, tokens_BM = self.expected(state)
        late_BM = (self.catch_up * reach_BM).at[:, 0].set(0)
        return tokens_BM / (self.cost_M[None] + late_BM)

    def choose(self, state: Tries, offer_B):
        k_1M = jnp.arange(len(self.v), dtype=jnp.int32)[None]
        gain_BM = jnp.where(k_1M <= offer_B[:, None], self.gains(state), -jnp.inf)
        best_B = jnp.argmax(gain_BM, axis=-1).astype(jnp.int32)
        other_B = 1 + jnp.argmax(gain_BM[:, 1:], axis=-1).astype(jnp.int32)
        return jnp.where((best_B == 0) & self.may_try(other_B, state.aside_B), jnp.minimum(other_B, offer_B), best_B)

    def keep_going(self, state: Tries, q_BV, depth):
        return jnp.ones(q_BV.shape[0], bool)

    def observe(self, state: Tries, verdict):
        place_1K = jnp.arange(1, len(self.v), dtype=jnp.int32)[None]
        running_B = verdict.committed_B > 0
        reached_BK = place_1K <= jnp.minimum(verdict.accepted_B + 1, verdict.drafted_B)[:, None]
        judged_BK = reached_BK & running_B[:, None]
        kept_BK = (place_1K <= verdict.accepted_B[:, None]).astype(jnp.float32)
        count = lambda old_BK, new: jnp.where(judged_BK, self.memory * old_BK + new, old_BK)
        return Tries(count(state.judged_BK, 1), count(state.accepted_BK, kept_BK), aside(state.aside_B, verdict))
