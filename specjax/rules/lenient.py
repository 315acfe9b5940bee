"""Lenience: the p/q rule with q made smaller by a factor (Leviathan et al., 2211.17192, appendix A.5)."""

from __future__ import annotations

import jax.numpy as jnp

from specjax.rules import chain
from specjax.rules.numbers import within
from specjax.rules.speculative import ratio
from specjax.sampling import residual
from specjax.types import Array, Law, Tree, static, struct


@struct
class Lenient:
    """Accept x with probability min(1, p(x) / (l q(x))): nothing is emitted with more than p(x) / l. Exact only at l = 1.

    scaled_residual: emit from norm (p - l q)_+ where a draft was refused (True), or from norm (p - q)_+ (False).

    Raises:
      ValueError: lenience is not above 0 and at most 1.
    """

    lenience: float | Array
    scaled_residual: bool = static(default=True)

    name = "lenient"
    exact = False
    one_hot_only = False
    trees = False
    drawn = ("iid", "without_replacement", "fixed")
    needs = "stored q"
    paper = "Leviathan et al. 2022, 2211.17192, A.5"
    equation = "accept iff u l q < p; else emit norm (p - l q)_+"

    def __post_init__(self):
        within("lenience", self.lenience, 0, 1, above=True)

    def __call__(self, tree: Tree, token_M, p_MV, q_MV) -> Law:
        q_MV = chain.draft_law(tree, token_M, q_MV)
        accept_M = ratio(chain.at_child(token_M, p_MV), self.number(p_MV) * chain.at_child(token_M, q_MV))
        return chain.law(tree, accept_M, self.refused(p_MV, q_MV), p_MV)

    def number(self, like):
        return jnp.asarray(self.lenience).astype(like.dtype)

    def refused(self, p_MV, q_MV):
        """The law of what is emitted where a draft was refused."""
        return residual(p_MV, self.number(p_MV) * q_MV if self.scaled_residual else q_MV)

    def token_law(self, p_MV, q_MV):
        return chain.token_law(q_MV * ratio(p_MV, self.number(p_MV) * q_MV), self.refused(p_MV, q_MV))
