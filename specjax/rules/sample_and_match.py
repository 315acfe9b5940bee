"""Sample and match: draw from the target and keep the draft if it is the same token. Exact, and weaker than the p/q rule.

On a tree this is naive multi-draft, the baseline of SpecInfer (Miao et al., 2305.09781).
"""

from __future__ import annotations

import jax.numpy as jnp

from specjax.rules import tree as trees
from specjax.types import Law, Tree, struct


@struct
class SampleAndMatch:
    """Draw y from p; go on to the child that is y, the first by rank among equals; always emit y. q is not used.

    As a law: a child x is taken with p(x), and where none is, the round ends and emits p without the children's tokens.
    """

    name = "sample_and_match"
    exact = True
    one_hot_only = False
    trees = True
    drawn = ("iid", "without_replacement", "fixed")
    needs = "nothing"
    paper = "the naive baseline of Miao et al. 2023, 2305.09781"
    equation = "accept the child x = y, y ~ p; emit y"

    def __call__(self, tree: Tree, token_M, p_MV, q_MV) -> Law:
        return match(tree, token_M, p_MV)


def match(tree: Tree, token_M, p_MV) -> Law:
    return Law(matches(tree, token_M, p_MV), trees.emit(tree, trees.without_children(tree, token_M, p_MV), p_MV))


def matches(tree: Tree, token_M, p_MV):
    """stop_M, when the round goes on from each node to the first child that is y, for y ~ p."""
    equal_MM = trees.elders(tree) & (token_M[:, None] == token_M[None])
    pick_M = jnp.where(jnp.any(equal_MM, axis=0), 0, trees.at_parent(tree, token_M, p_MV))
    picked_M = jnp.sum(jnp.where(trees.children(tree), pick_M[:, None], 0), axis=0)
    return trees.stop(tree, pick_M, jnp.maximum(1 - picked_M, 0))
