"""Greedy matching: keep drafts while they are the target's most likely token (Stern et al., 1811.03115)."""

from __future__ import annotations

import jax.numpy as jnp

from specjax.rules.sample_and_match import matches
from specjax.sampling import first_argmax, one_hot
from specjax.types import Law, Tree, struct


@struct
class Greedy:
    """Accept x iff x = argmax p (first index); always emit argmax p. Exact where p is one-hot: greedy or coupled sampling.

    On a tree it goes on to the child that is argmax p, the first by rank among equals.
    """

    name = "greedy"
    exact = True
    one_hot_only = True
    trees = True
    drawn = ("fixed", "iid", "without_replacement")
    needs = "temperature 0, or coupled sampling"
    paper = "Stern et al. 2018, 1811.03115"
    equation = "accept iff x = argmax p; emit argmax p"

    def __call__(self, tree: Tree, token_M, p_MV, q_MV) -> Law:
        best_MV = one_hot(first_argmax(p_MV), p_MV)
        return Law(matches(tree, token_M, best_MV), jnp.where(tree.valid_M[:, None], best_MV, 0))
