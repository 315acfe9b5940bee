"""Argmax lenience: greedy matching that lets near-ties pass (Leviathan et al., 2211.17192, appendix A.5)."""

from __future__ import annotations

import jax.numpy as jnp

from specjax.rules import chain
from specjax.rules.numbers import within
from specjax.sampling import first_argmax, one_hot
from specjax.types import Array, Law, Tree, struct


@struct
class ArgmaxLenience:
    """Accept x iff p(x) >= l max p; else, and after the last draft, emit argmax p (first index). At l = 1 this is greedy up to ties.

    Raises:
      ValueError: lenience is not above 0 and at most 1.
    """

    lenience: float | Array

    name = "argmax_lenience"
    exact = False
    one_hot_only = False
    trees = False
    drawn = ("iid", "without_replacement", "fixed")
    needs = "nothing"
    paper = "Leviathan et al. 2022, 2211.17192, A.5"
    equation = "accept iff p >= l max p; else emit argmax p"

    def __post_init__(self):
        within("lenience", self.lenience, 0, 1, above=True)

    def __call__(self, tree: Tree, token_M, p_MV, q_MV) -> Law:
        accept_M = (chain.at_child(token_M, p_MV) >= self.threshold(p_MV)[:, 0]).astype(p_MV.dtype)
        best_MV = one_hot(first_argmax(p_MV), p_MV)
        return chain.law(tree, accept_M, best_MV, best_MV)

    def threshold(self, p_MV):
        """[M, 1]: what the child of each node must reach."""
        return jnp.asarray(self.lenience).astype(p_MV.dtype) * jnp.max(p_MV, axis=-1, keepdims=True)

    def token_law(self, p_MV, q_MV):
        return chain.token_law(jnp.where(p_MV >= self.threshold(p_MV), q_MV, 0), one_hot(first_argmax(p_MV), p_MV))
