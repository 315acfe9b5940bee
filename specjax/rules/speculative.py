"""Speculative sampling: the p/q rule (Leviathan et al., 2211.17192; Chen et al., 2302.01318)."""

from __future__ import annotations

import jax.numpy as jnp

from specjax.rules import chain
from specjax.sampling import residual
from specjax.types import Law, Tree, struct


def ratio(p, q):
    """min(1, p / q), the probability that u q < p: never p / q where q may be 0. A NaN stays one."""
    return jnp.where(p >= q, (p > 0).astype(p.dtype), p / jnp.where(q == 0, 1, q))


@struct
class Speculative:
    """Accept x with probability min(1, p(x) / q(x)); emit from norm (p - q)_+ where it was refused, from p after the last draft."""

    name = "speculative"
    exact = True
    one_hot_only = False
    trees = False
    drawn = ("iid", "without_replacement", "fixed")
    needs = "stored q"
    paper = "Leviathan et al. 2022, 2211.17192; Chen et al. 2023, 2302.01318"
    equation = "accept iff u q < p; else emit norm (p - q)_+"

    def __call__(self, tree: Tree, token_M, p_MV, q_MV) -> Law:
        q_MV = chain.draft_law(tree, token_M, q_MV)
        accept_M = ratio(chain.at_child(token_M, p_MV), chain.at_child(token_M, q_MV))
        return chain.law(tree, accept_M, residual(p_MV, q_MV), p_MV)
