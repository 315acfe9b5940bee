"""Recursive rejection: the children of a node are judged one by one, each against what the ones before it left.

SpecInfer's multi-step verification (Miao et al., 2305.09781) for i.i.d. children; Recursive Speculative Decoding (Jeon et al., 2402.14160)
and Sequoia (Chen et al., 2402.12374) for children without replacement; EAGLE-2's code (Li et al., 2406.16858) for certain ones.
"""

from __future__ import annotations

from specjax.rules import tree as trees
from specjax.rules.sample_and_match import match
from specjax.types import Law, Tree, struct


@struct
class RecursiveRejection:
    """r := p. Accept child x, drawn from d, with probability min(1, r(x) / d(x)); after a refusal r := norm (r - d)_+. Then emit from r.

    d is q for i.i.d. children, equal ones among them judged again; q without the elder siblings' tokens, over its sum, without
    replacement; certain of the child when children are fixed: that is `sample_and_match`'s law. On a chain this is the p/q rule.
    """

    name = "recursive_rejection"
    exact = True
    one_hot_only = False
    trees = True
    drawn = ("without_replacement", "iid", "fixed")
    needs = "stored q"
    paper = "Miao et al. 2023, 2305.09781; Jeon et al. 2024, 2402.14160; Chen et al. 2024, 2402.12374; Li et al. 2024, 2406.16858"
    equation = "r = p; each child x ~ d: accept iff u d < r, else r = norm (r - d)_+; after the last emit r"

    def __call__(self, tree: Tree, token_M, p_MV, q_MV) -> Law:
        trees.check_drawn(self, tree)
        if tree.drawn == "fixed":
            return match(tree, token_M, p_MV)
        accept_M, _, emit_MV = trees.refuse_in_turn(tree, token_M, p_MV, q_MV, inherit=False)
        return Law(trees.in_turn(tree, accept_M), emit_MV)
