"""Traversal verification: a tree is judged from its leaves to its root (Weng et al., 2505.12398)."""

from __future__ import annotations

import jax.numpy as jnp

from specjax.rules import tree as trees
from specjax.rules.sample_and_match import match
from specjax.types import Law, Tree, struct


@struct
class Traversal:
    """Block verification on a tree: a node is judged after all that hang below it, and after its elder siblings with all below them.

    Child c of v, drawn from d, starts with w_c = min(w_v r_v(c) / d(c), 1) and r_c = p. When it and all below it were refused, v is left
    with L = (w_v r_v - d)_+ of mass l: r_v := norm L and w_v := l / (l + 1 - w_v). After its last child v is accepted with probability w_v,
    and then the round ends there and emits from r_v. The root has w = 1.

    On a chain this is block verification. Fixed children gain nothing, as there: theirs is `sample_and_match`'s law.
    """

    name = "traversal"
    exact = True
    one_hot_only = False
    trees = True
    drawn = ("without_replacement", "iid", "fixed")
    needs = "stored q, sampled drafts"
    paper = "Weng et al. 2025, 2505.12398"
    equation = "w_c = min(w r/d, 1); c refused: L = (w r - d)_+, r = norm L, w = sum L / (sum L + 1 - w); then accept iff u < w, emit r"

    def __call__(self, tree: Tree, token_M, p_MV, q_MV) -> Law:
        trees.check_drawn(self, tree)
        if tree.drawn == "fixed":
            return match(tree, token_M, p_MV)
        _, weight_M, emit_MV = trees.refuse_in_turn(tree, token_M, p_MV, q_MV, inherit=True)
        accept_M = jnp.where(tree.valid_M, weight_M, 0)
        return Law(accept_M * trees.product(judged_before(tree), 1 - accept_M), emit_MV)


def judged_before(tree: Tree):
    """before_MM[u, v]: u is judged before v, because it hangs below v, or below (or is) an elder sibling of one on the path to v."""
    path_MM = trees.paths(tree)
    below_MM = path_MM.T & ~jnp.eye(len(path_MM), dtype=bool)
    return below_MM | trees.both(path_MM.T, trees.both(trees.elders(tree), path_MM))
