"""The draft length that pays most, and the most that any choice of length could give.

Leviathan et al., "Fast Inference from Transformers via Speculative Decoding" (2211.17192), section 3.5.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from specjax.theory.latency import check_alpha, expected_tokens, speedup


def best_k(alpha: float, c: float, v: float | Callable[[int], float] = 1.0, k_max: int = 100) -> tuple[int, float]:
    """(k, speedup) of the best draft length in 0..k_max; the shortest one on ties. 0: drafting does not pay.

    v: cost of a verification in plain steps, a number or a function of the tokens verified (k + 1).
    """
    best = (0, 1.0)
    for k in range(1, k_max + 1):
        cost = v(k + 1) if callable(v) else v
        gain = speedup(expected_tokens(alpha, k), cost, k, c)
        if gain > best[1]:
            best = (k, gain)
    return best


def oracle_tokens(alpha: float) -> float:
    """1 / (1 - alpha): tokens per round of an oracle that drafts up to the first rejection, never past it."""
    check_alpha(alpha)
    return math.inf if alpha == 1 else 1 / (1 - alpha)
