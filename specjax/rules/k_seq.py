"""K-SEQ: one threshold for all children of a node, drawn i.i.d. (SpecTr, Sun et al., 2310.15141)."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from specjax.rules import tree as trees
from specjax.rules.speculative import ratio
from specjax.types import Law, Tree, struct


@struct
class KSeq:
    """Each of k children is accepted with min(1, p / (rho q)), and rho is the least that leaves no token emitted too often.

    With b = sum min(p / rho, q), rho in [1, k] solves 1 - (1 - b)^k = rho b. Where all were refused, emit from
    norm (p - min(p / rho, q) (1 - (1 - b)^k) / b)_+. At least (1 - 1/e) of what the best transport of the draft to p accepts; with one
    child it is the p/q rule. Sibling tokens may be equal.
    """

    name = "k_seq"
    exact = True
    one_hot_only = False
    trees = True
    drawn = ("iid",)
    needs = "stored q, i.i.d. children"
    paper = "Sun et al. 2023, 2310.15141"
    equation = "b = sum min(p/rho, q), rho b = 1 - (1 - b)^k; accept each of k iff u rho q < p; else emit norm (p - rho min(p/rho, q))_+"

    def __call__(self, tree: Tree, token_M, p_MV, q_MV) -> Law:
        trees.check_drawn(self, tree)
        count_M = jnp.sum(trees.children(tree), axis=0, dtype=p_MV.dtype)
        rho_M, taken_M = jax.lax.map(lambda node: threshold(count_M[node], p_MV[node], q_MV[node]), jnp.arange(len(token_M)))
        accept_M = ratio(trees.at_parent(tree, token_M, p_MV), rho_M[tree.parent_M] * trees.at_parent(tree, token_M, q_MV))
        left_MV = jnp.maximum(p_MV - taken_M[:, None] * jnp.minimum(p_MV / rho_M[:, None], q_MV), 0)
        return Law(trees.in_turn(tree, accept_M), trees.emit(tree, left_MV, p_MV))


def threshold(k, p_V, q_V):
    """(rho, taken) for k children: the root to float precision, from above, and (1 - (1 - b)^k) / b there. Both are 1 where k <= 1.

    Any rho above the root is exact, one below is not. taken(rho) falls between rho and the root, so that a step of this bisection moves the
    end it has found at least as far as the middle.
    """
    precision = jnp.finfo(p_V.dtype)

    def taken(rho):
        b = jnp.minimum(jnp.sum(jnp.minimum(p_V / rho, q_V)), 1)
        return jnp.where(b > 0, -jnp.expm1(k * jnp.log1p(-b)) / jnp.where(b > 0, b, 1), k)

    def wide(state):
        step, low, high = state
        return (step <= precision.nmant) & (high - low > 2 * precision.eps * high)

    def halve(state):
        step, low, high = state
        middle = (low + high) / 2
        there = taken(middle)
        above = there <= middle
        return step + 1, jnp.where(above, low, there), jnp.where(above, there, high)

    one = jnp.ones_like(k)
    _, _, rho = jax.lax.while_loop(wide, halve, (0, one, jnp.maximum(k, 1)))
    return rho, jnp.where(k > 1, taken(rho), 1)
