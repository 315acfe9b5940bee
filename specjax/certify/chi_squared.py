"""Pearson's chi-squared test: do counts come from the law that they should?"""

from __future__ import annotations

import numpy as np
from scipy import special

FEW = 10  # cells that expect fewer are taken together


def p_value(count_GX, expected_GX) -> float:
    """Chance of counts so far from what is expected, if that is right; 0 where something came that never should.

    Each of G groups has cells [X]; its sum is given, and the same in both.
    """
    total = freedom = 0
    for count_X, expected_X in zip(count_GX, expected_GX, strict=True):
        if np.any(count_X[expected_X == 0]):
            return 0.0
        count_X, expected_X = _joined(count_X, expected_X)
        total += np.sum((count_X - expected_X) ** 2 / expected_X)
        freedom += max(len(expected_X) - 1, 0)
    return float(special.chdtrc(freedom, total)) if freedom else 1.0


def _joined(count_X, expected_X):
    """The cells with anything expected, the small ones as one that is not small."""
    order = np.argsort(expected_X, kind="stable")[np.sum(expected_X == 0) :]
    count_X, expected_X = count_X[order], expected_X[order]
    small, sums = int(np.searchsorted(expected_X, FEW)), np.cumsum(expected_X)
    if small and sums[small - 1] < FEW:
        small = min(small + 1, len(expected_X))
    if small == 0:
        return count_X, expected_X
    return (np.concatenate([[x[:small].sum()], x[small:]]) for x in (count_X, expected_X))
