"""Typical acceptance: keep what the target finds likely enough for how uncertain it is (Medusa, Cai et al., 2401.10774)."""

from __future__ import annotations

import jax.numpy as jnp

from specjax.rules import chain
from specjax.rules import tree as trees
from specjax.rules.numbers import within
from specjax.sampling import first_argmax, one_hot
from specjax.types import Array, Law, Tree, struct


@struct
class Typical:
    """Accept x iff p(x) > min(epsilon, delta exp(-H(p))); take the longest path that is accepted, of equals the likeliest; emit from p.

    H is in nats, with log(p + 1e-5), as in Medusa's code. That code takes the token after the path greedily; here it is drawn from p, so
    that temperature keeps its meaning. Not exact; greedy at temperature 0. q is not used.

    Raises:
      ValueError: epsilon or delta is not between 0 and 1.
    """

    epsilon: float | Array = 0.09
    delta: float | Array = 0.3

    name = "typical"
    exact = False
    one_hot_only = False
    trees = True
    drawn = ("fixed", "iid", "without_replacement")
    needs = "nothing"
    paper = "Cai et al. 2024, 2401.10774"
    equation = "accept iff p > min(eps, delta exp(-H(p))); the longest path, then the likeliest; emit p"

    def __post_init__(self):
        within("epsilon", self.epsilon, 0, 1)
        within("delta", self.delta, 0, 1)

    def __call__(self, tree: Tree, token_M, p_MV, q_MV) -> Law:
        p_M = trees.at_parent(tree, token_M, p_MV)
        refused_M = trees.born(tree) & ~(p_M > self.threshold(p_MV)[tree.parent_M])
        path_MM = trees.paths(tree)
        whole_M = tree.valid_M & ~jnp.any(path_MM & refused_M[:, None], axis=0)
        depth_M = jnp.where(whole_M, jnp.sum(path_MM, axis=0, dtype=jnp.int32), 0)
        likelihood_M = jnp.where(depth_M == jnp.max(depth_M), trees.product(path_MM & trees.born(tree)[:, None], p_M), -1)
        return Law(one_hot(first_argmax(likelihood_M), p_M), jnp.where(tree.valid_M[:, None], p_MV, 0))

    def threshold(self, p_MV):
        """threshold_M: what a child of each node must exceed."""
        epsilon, delta = (jnp.asarray(x).astype(p_MV.dtype) for x in (self.epsilon, self.delta))
        return jnp.minimum(epsilon, delta * jnp.exp(jnp.sum(p_MV * jnp.log(p_MV + 1e-5), axis=-1)))

    def token_law(self, p_MV, q_MV):
        return chain.token_law(jnp.where(p_MV > self.threshold(p_MV)[:, None], q_MV, 0), p_MV)
