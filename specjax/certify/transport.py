"""What no rule can pass at one place (the dual of the transport problem: SpecTr, 2310.15141; Hu et al., 2502.18779)."""

from __future__ import annotations

import numpy as np

from specjax import shapes
from specjax.certify import drafts
from specjax.certify.tables import MOST, table


def bound(p, q, children: int, drawn: str) -> float:
    """The largest probability that a token with law p is one of the drafts: 1 + min_H [P(H) - Pr(all drafts in H)].

    p, q: laws [V] of one place; `children` siblings are drawn from q in the way `drawn`. All 2^V sets H are tried.

    Raises:
      ValueError: the vocabulary is too large for that.
    """
    (p_1V,), (q_1V,) = table(p, 1, "p"), table(q, 1, "q")
    vocab = p_1V.size
    if 2**vocab > MOST:
        raise ValueError(f"p has {vocab} tokens: the bound tries all sets of them, for at most {MOST.bit_length() - 1}")
    shape = shapes.parse((children,))
    every = drafts.every(shape, [q_1V], drawn, np.ones(shape.nodes, bool))
    inside_HV = (np.arange(2**vocab)[:, None] >> np.arange(vocab)) & 1 > 0
    lies_HD = np.all(inside_HV[:, every.token_DM[:, 1:]] | ~every.valid_DM[:, 1:], axis=-1)
    return float(1 + np.min(inside_HV @ p_1V[0] - lies_HD @ every.weight_D))
