"""Sample and match: draw from the target and keep the draft if it is the same token. Exact, and weaker than the p/q rule."""

from __future__ import annotations

from specjax.rules import chain
from specjax.sampling import one_hot, residual
from specjax.types import Law, Tree, struct


@struct
class SampleAndMatch:
    """Draw y from p; accept x iff y = x; always emit y. As a law: accept with p(x), else emit p with x removed. q is not used."""

    name = "sample_and_match"
    exact = True
    one_hot_only = False
    paper = "the naive baseline of Miao et al. 2023, 2305.09781"
    equation = "accept iff y = x, y ~ p; emit y"

    def __call__(self, tree: Tree, token_M, p_MV, q_MV) -> Law:
        child_M = chain.child(token_M)
        return chain.law(tree, chain.at_child(token_M, p_MV), residual(p_MV, one_hot(child_M, p_MV)), p_MV)
