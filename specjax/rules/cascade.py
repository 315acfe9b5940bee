"""Speculative cascades: defer to the target only where the draft is less sure of itself (Narasimhan et al., 2405.19261)."""

from __future__ import annotations

import jax.numpy as jnp

from specjax.rules import chain
from specjax.rules.numbers import within
from specjax.rules.speculative import ratio
from specjax.sampling import residual
from specjax.types import Array, Law, Tree, struct


@struct
class Cascade:
    """The p/q rule for another target: m = q where max q >= max p - delta (the draft is kept), and m = p elsewhere.

    Exact for m at every place that was drafted; the token after the last draft, where no q is known, comes from p. delta may be negative:
    the draft must then be surer than the target.

    Raises:
      ValueError: delta is not between -1 and 1.
    """

    delta: float | Array

    name = "cascade"
    exact = False
    own_exact = True  # K + 1 tokens have token_law where a draft is judged, and p after the last
    one_hot_only = False
    trees = False
    drawn = ("iid", "without_replacement", "fixed")
    needs = "stored q"
    paper = "Narasimhan et al. 2024, 2405.19261"
    equation = "m = q if max q >= max p - delta, else p; accept iff u q < m; else emit norm (m - q)_+; after the last draft p"

    def __post_init__(self):
        within("delta", self.delta, -1, 1)

    def __call__(self, tree: Tree, token_M, p_MV, q_MV) -> Law:
        q_MV = chain.draft_law(tree, token_M, q_MV)
        m_MV = self.token_law(p_MV, q_MV)
        accept_M = ratio(chain.at_child(token_M, m_MV), chain.at_child(token_M, q_MV))
        return chain.law(tree, accept_M, residual(m_MV, q_MV), p_MV)

    def token_law(self, p_MV, q_MV):
        top = lambda law_MV: jnp.max(law_MV, axis=-1, keepdims=True)
        return jnp.where(top(q_MV) >= top(p_MV) - jnp.asarray(self.delta).astype(p_MV.dtype), q_MV, p_MV)
