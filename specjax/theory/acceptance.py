"""How often one drafted token is accepted, from the laws p (target) and q (draft) of its place.

Leviathan et al., "Fast Inference from Transformers via Speculative Decoding" (2211.17192), section 3. Coupled sampling:
Daliri, Musco, Suresh, "Coupling without Communication and Drafter-Invariant Speculative Decoding" (2408.07978).
"""

from __future__ import annotations

import numpy as np


def overlap(p_V, q_V) -> float:
    """alpha = sum_x min(p, q) = 1 - TV(p, q): acceptance of the p/q rule (2211.17192, theorem 3.5)."""
    p_V, q_V = _pair(p_V, q_V)
    return float(np.minimum(p_V, q_V).sum())


def lenient_acceptance(p_V, q_V, lenience: float) -> float:
    """sum_x min(q, p / l): acceptance with lenience 0 < l <= 1 (2211.17192, appendix A.5)."""
    if not 0 < lenience <= 1:
        raise ValueError(f"lenience={lenience} must be above 0 and at most 1")
    p_V, q_V = _pair(p_V, q_V)
    return float(np.minimum(q_V, p_V / lenience).sum())


def sample_and_match(p_V, q_V) -> float:
    """sum_x p q: a draft from q is kept when an independent draw from p equals it."""
    p_V, q_V = _pair(p_V, q_V)
    return float(p_V @ q_V)


def one_hot(p_V, token: int) -> float:
    """p(token): acceptance of a draft that was certain (n-gram, greedy draft)."""
    return float(np.asarray(p_V, np.float64)[token])


def coupled_agreement(p_V, q_V) -> float:
    """P(argmax(log p + g) = argmax(log q + g)) under one Gumbel noise g: sum_i 1 / sum_j max(p_j / p_i, q_j / q_i).

    A token that either law excludes cannot be agreed on and adds nothing.
    """
    p_V, q_V = _pair(p_V, q_V)
    shared = np.flatnonzero((p_V > 0) & (q_V > 0))
    return float(sum(1 / np.maximum(p_V / p_V[i], q_V / q_V[i]).sum() for i in shared))


def coupled_lower_bound(p_V, q_V) -> float:
    """(1 - TV) / (1 + TV), which `coupled_agreement` never falls under (2408.07978)."""
    alpha = overlap(p_V, q_V)
    return alpha / (2 - alpha)


def _pair(p_V, q_V) -> tuple[np.ndarray, np.ndarray]:
    p_V, q_V = np.asarray(p_V, np.float64), np.asarray(q_V, np.float64)
    if p_V.ndim != 1 or p_V.shape != q_V.shape:
        raise ValueError(f"p has shape {p_V.shape}, q {q_V.shape}: both must be laws over one vocabulary, shape (V,)")
    return p_V, q_V
