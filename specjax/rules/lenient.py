"""Lenience: the p/q rule with q made smaller by a factor (Leviathan et al., 2211.17192, appendix A.5)."""

from __future__ import annotations

import jax.numpy as jnp

from specjax.rules import chain
from specjax.rules.speculative import ratio
from specjax.sampling import residual
from specjax.types import Array, Law, Tree, static, struct


@struct
class Lenient:
    """Accept x with probability min(1, p(x) / (l q(x))): nothing is emitted with more than p(x) / l. Exact only at l = 1.

    scaled_residual: emit from norm (p - l q)_+ where a draft was refused (True), or from norm (p - q)_+ (False).
    """

    lenience: float | Array
    scaled_residual: bool = static(default=True)

    name = "lenient"
    exact = False
    one_hot_only = False
    paper = "Leviathan et al. 2022, 2211.17192, A.5"
    equation = "accept iff u l q < p; else emit norm (p - l q)_+"

    def __call__(self, tree: Tree, token_M, p_MV, q_MV) -> Law:
        lenience = jnp.asarray(self.lenience).astype(p_MV.dtype)
        accept_M = ratio(chain.at_child(token_M, p_MV), lenience * chain.at_child(token_M, q_MV))
        refused_MV = residual(p_MV, lenience * q_MV if self.scaled_residual else q_MV)
        return chain.law(tree, accept_M, refused_MV, p_MV)
