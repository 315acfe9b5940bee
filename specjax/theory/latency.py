"""From acceptance rates to tokens per round, and from tokens and costs to speedup.

Leviathan et al., "Fast Inference from Transformers via Speculative Decoding" (2211.17192), sections 3.1 to 3.4. Costs
are in plain target steps: c of one draft step, v of one verification. The paper's formula takes acceptance to be
independent and alike at every place; measured runs are neither, so `predict` works with one conditional rate per place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np


def expected_tokens(alpha: float, k: int) -> float:
    """E[N] = 1 + alpha + ... + alpha^k, committed tokens of a round of k drafts (2211.17192, equation 1)."""
    check_alpha(alpha)
    if k < 0:
        raise ValueError(f"k={k} must be at least 0")
    return float(np.sum(float(alpha) ** np.arange(k + 1)))


def expected_tokens_from_rates(rate_K: Sequence[float]) -> float:
    """1 + a1 + a1 a2 + ...; a_i is the rate at place i given that place i was reached."""
    return 1.0 + float(np.cumprod(np.asarray(rate_K, np.float64)).sum())


def speedup(tokens: float, v: float, k: int, c: float) -> float:
    """tokens / (v + k c): against plain decoding, where a token costs one step (2211.17192, theorem 3.8, with v)."""
    return tokens / (v + k * c)


def ops_factor(alpha: float, k: int, c_ops: float) -> float:
    """Growth of total arithmetic, (k c_ops + k + 1) / E[N] (theorem 3.11); c_ops: a draft step's over a plain one's."""
    return (k * c_ops + k + 1) / expected_tokens(alpha, k)


def lower_bound(alpha: float, c: float) -> float:
    """(1 + alpha) / (1 + c): where alpha > c some draft length gains at least this (2211.17192, corollary 3.9)."""
    check_alpha(alpha)
    return (1 + alpha) / (1 + c)


def width(drafted: int, ladder: Sequence[int]) -> int:
    """The rung that verifies `drafted` tokens: the narrowest with room for them and their root."""
    for rung in sorted(ladder):
        if rung >= drafted + 1:
            return rung
    raise ValueError(f"ladder={tuple(ladder)} has no rung for {drafted} drafts: add one of {drafted + 1} or more")


def rates_from_rounds(drafted_N, accepted_N, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Counts of N rounds -> (share_M, rate_K), M = k + 1.

    drafted_N, accepted_N: ints, a round's drafts and those its rule accepted, before any cut at EOS or budget.
    share_M[n]: share of the rounds that drafted n. rate_K[i - 1]: share accepted at place i among the rounds, of whatever
    length, that drafted and reached it; NaN at a place that no round reached.
    """
    drafted_N, accepted_N = _counts(drafted_N, accepted_N, k)
    rate_K = np.full(k, np.nan)
    for place in range(1, k + 1):
        reached_N = (drafted_N >= place) & (accepted_N >= place - 1)
        if reached_N.any():
            rate_K[place - 1] = np.mean(accepted_N[reached_N] >= place)
    return np.bincount(drafted_N, minlength=k + 1) / len(drafted_N), rate_K


class Prediction(NamedTuple):
    """What the latency model expects of a mean round."""

    tokens: float  # committed
    cost: float  # plain target steps

    @property
    def speedup(self) -> float:
        return self.tokens / self.cost


def predict(share_M, rate_K, v: Mapping[int, float], c: float, ladder: Sequence[int], catch_up: float = 0.0) -> Prediction:
    """Tokens and cost of a mean round, at batch 1.

        tokens = sum_n share[n] (1 + sum_{j <= n} prod_{i <= j} rate[i])
        cost   = sum_n share[n] (v[width(n)] + n c) + catch_up sum_{n >= 1} share[n] prod_{i <= n} rate[i]

    share_M, rate_K: as `rates_from_rounds` makes them; a rate that is not known counts as 0. A place has one rate whatever was
    drafted: that is what the model claims, and what a run can contradict. v: cost of a pass by its width, c: of drafting one
    token, catch_up: what a drafter takes in late after a round whose drafts were all accepted (n >= 1), all measured apart and in
    plain target steps. ladder: the widths a pass can have.
    """
    rate_K, tokens, cost = np.nan_to_num(rate_K), 0.0, 0.0
    for n in np.flatnonzero(share_M):
        rung = width(n, ladder)
        if rung not in v:
            raise ValueError(f"v has no cost for width {rung}, only for {sorted(v)}: measure it, a round drafted {n}")
        late = catch_up * np.prod(rate_K[:n]) if n else 0.0
        tokens += share_M[n] * expected_tokens_from_rates(rate_K[:n])
        cost += share_M[n] * (v[rung] + n * c + late)
    return Prediction(float(tokens), float(cost))


def check_alpha(alpha: float) -> None:
    if not 0 <= alpha <= 1:
        raise ValueError(f"alpha={alpha} must be between 0 and 1")


def _counts(drafted_N, accepted_N, k: int) -> tuple[np.ndarray, np.ndarray]:
    drafted_N, accepted_N = np.asarray(drafted_N, int), np.asarray(accepted_N, int)
    if drafted_N.ndim != 1 or drafted_N.shape != accepted_N.shape or not drafted_N.size:
        raise ValueError(f"drafted has shape {drafted_N.shape}, accepted {accepted_N.shape}: one count a round, at least one round")
    wrong = np.flatnonzero((accepted_N < 0) | (accepted_N > drafted_N) | (drafted_N > k))
    if wrong.size:
        n = wrong[0]
        raise ValueError(f"round {n}: drafted={drafted_N[n]}, accepted={accepted_N[n]}; must be 0 <= accepted <= drafted <= k={k}")
    return drafted_N, accepted_N
