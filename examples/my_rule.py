"""A rule of one's own: the p/q rule, made cautious. `docs/writing_a_rule.md` goes through it line by line.

    python -m specjax.certify --rule=examples.my_rule:MyRule
    python -m specjax.run --config=examples/sweep_my_rule.py

Whatever a(x) a rule accepts its draft x ~ q with, it is exact if a(x) q(x) <= p(x) and if a refused draft is replaced by a token from
norm (p - a q). The p/q rule takes the largest such a. This one asks for c times as much of the target, so it accepts 1 / c as often where
that matters, and is exact all the same: what it refuses too often comes back with the replacement.
"""

from __future__ import annotations

import jax.numpy as jnp

from specjax.rules import chain
from specjax.rules.speculative import ratio
from specjax.sampling import residual
from specjax.types import Array, Law, Tree, struct


@struct
class MyRule:
    """Accept x with probability min(1, p(x) / (c q(x))); emit from norm (p - min(p / c, q)) where it was refused. caution: c >= 1."""

    caution: float | Array = 2.0

    name = "cautious"
    exact = True
    one_hot_only = False
    trees = False
    drawn = ("iid", "without_replacement", "fixed")
    needs = "stored q"
    paper = "examples/my_rule.py"
    equation = "accept iff u c q < p; else emit norm (p - min(p / c, q))"

    def __post_init__(self):
        if not self.caution >= 1:
            raise ValueError(f"rule.caution={self.caution} must be at least 1")

    def __call__(self, tree: Tree, token_M, p_MV, q_MV) -> Law:
        caution = jnp.asarray(self.caution).astype(p_MV.dtype)
        q_MV = chain.draft_law(tree, token_M, q_MV)
        accept_M = ratio(chain.at_child(token_M, p_MV), caution * chain.at_child(token_M, q_MV))
        refused_MV = residual(p_MV, jnp.minimum(p_MV / caution, q_MV))
        return chain.law(tree, accept_M, refused_MV, p_MV)
