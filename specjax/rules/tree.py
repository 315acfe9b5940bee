"""What the rules on trees share: who is whose child, children asked one by one, and a node's law after some of them were refused.

Relations are small bool matrices [M, M]; invalid nodes stand in none of them.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp

from specjax.rules.speculative import ratio
from specjax.types import Tree


def check_drawn(rule, tree: Tree):
    if tree.drawn not in rule.drawn:
        raise ValueError(f"rule={rule.name} does not judge children drawn {tree.drawn!r}: it judges {', '.join(rule.drawn)}")


def indices(tree: Tree):
    return jnp.arange(len(tree.parent_M), dtype=tree.parent_M.dtype)


def born(tree: Tree):
    """born_M: was drafted, so it is valid and not the root."""
    return tree.valid_M & (indices(tree) > 0)


def children(tree: Tree):
    """child_MM[c, v]: c is a valid child of v."""
    return (tree.parent_M[:, None] == indices(tree)[None]) & born(tree)[:, None]


def elders(tree: Tree):
    """elder_MM[e, c]: e and c are valid siblings, and e comes first."""
    siblings_MM = (tree.parent_M[:, None] == tree.parent_M[None]) & born(tree)[:, None] & born(tree)[None]
    return siblings_MM & (tree.rank_M[:, None] < tree.rank_M[None])


def paths(tree: Tree):
    """path_MM[a, v]: a stands on the path from the root to v, or is v."""
    nodes = len(tree.parent_M)
    path_MM = children(tree).T | jnp.eye(nodes, dtype=bool)
    for _ in range(math.ceil(math.log2(max(nodes - 1, 1)))):
        path_MM = both(path_MM, path_MM)
    return path_MM


def both(one_MM, other_MM):
    """[a, b]: some node is in `one` after a and in `other` before b."""
    return one_MM.astype(jnp.float32) @ other_MM.astype(jnp.float32) > 0


def product(mask_MM, x_M):
    """[v]: the product of x over the nodes in column v of the mask."""
    return jnp.prod(jnp.where(mask_MM, x_M[:, None], 1), axis=0)


def at_parent(tree: Tree, token_M, law_MV):
    """law_M: the law of each node's parent at the node's token; anything at nodes that were not drafted."""
    return law_MV[tree.parent_M, token_M]


def without_children(tree: Tree, token_M, law_MV):
    """Each node's law with its children's tokens set to 0."""
    nowhere = law_MV.shape[-1]
    return law_MV.at[tree.parent_M, jnp.where(born(tree), token_M, nowhere)].set(0, mode="drop")


def stop(tree: Tree, pick_M, stay_M):
    """stop_M, when the round goes on to node m from its parent with probability pick_M[m] and ends where it is with stay_M[m]."""
    pick_M = jnp.where(indices(tree) == 0, 1, pick_M)
    return jnp.where(tree.valid_M, product(paths(tree), pick_M) * stay_M, 0)


def in_turn(tree: Tree, accept_M):
    """stop_M, when the children of a node are asked by rank and the first that is accepted, with probability accept_M, is taken."""
    refuse_M = 1 - accept_M
    return stop(tree, accept_M * product(elders(tree), refuse_M), product(children(tree), refuse_M))


def emit(tree: Tree, left_MV, p_MV):
    """emit_MV: what is left of p after a node's children were refused, over its sum; p where nothing is left, or nothing was drafted."""
    mass_M1 = jnp.sum(left_MV, axis=-1, keepdims=True)
    some_M1 = jnp.any(children(tree), axis=0)[:, None] & (mass_M1 > 0)
    return jnp.where(tree.valid_M[:, None], jnp.where(some_M1, left_MV / jnp.where(some_M1, mass_M1, 1), p_MV), 0)


def refuse_in_turn(tree: Tree, token_M, p_MV, q_MV, *, inherit: bool):
    """Ask each node's children by rank, and take from what the node may emit what each was offered: (accept_M, weight_M, emit_MV).

    A node starts with weight w = 1, or with the probability its own acceptance had (`inherit`), and with m = w p. A child drawn from d is
    accepted with probability min(1, m / d) at its token; being refused leaves L = (m - d)_+, of mass l, and then w := l / (l + 1 - w) and
    m := L / (l + 1 - w). weight_M and emit_MV = norm m are those after the last child.

    Two numbers a node hold all of m, which is always (a p - b q)_+: d is q over its mass on the tokens not drawn before, and where a token
    was drawn before and refused, m is 0 already.
    """
    index_M, born_M, one_M = indices(tree), born(tree), jnp.ones_like(p_MV[:, 0])
    scale_M = 1 / undrawn(tree, token_M, q_MV) if tree.drawn == "without_replacement" else one_M

    def ask(child, state):
        accept_M, weight_M, a_M, b_M = state
        node, x = tree.parent_M[child], token_M[child]
        w, a, b, d = weight_M[node], a_M[node], b_M[node], scale_M[child]
        accept = ratio(jnp.maximum(a * p_MV[node, x] - b * q_MV[node, x], 0), d * q_MV[node, x])
        left = jnp.sum(jnp.maximum(a * p_MV[node] - (b + d) * q_MV[node], 0))
        total = left + (1 - w)
        own = (index_M == child) & born_M[child]
        known = (index_M == node) & born_M[child] & (total > 0)  # where a refusal is impossible all stays as it is
        new = lambda old_M, start, after: jnp.where(own, start, jnp.where(known, after / total, old_M))
        start = accept if inherit else jnp.ones_like(accept)
        return jnp.where(own, accept, accept_M), new(weight_M, start, left), new(a_M, start, a), new(b_M, 0, b + d)

    start = jnp.zeros_like(one_M), one_M, one_M, jnp.zeros_like(one_M)
    accept_M, weight_M, a_M, b_M = jax.lax.fori_loop(jnp.ones_like(index_M[0]), len(index_M), ask, start)
    return accept_M, weight_M, emit(tree, jnp.maximum(a_M[:, None] * p_MV - b_M[:, None] * q_MV, 0), p_MV)


def undrawn(tree: Tree, token_M, q_MV):
    """mass_M: what the elder siblings of each node left of their parent's q; 1 for the eldest.

    A sum of what is left, never 1 minus the rest: that would round a small mass away.
    """
    later_MM = children(tree)[:, tree.parent_M] & ~elders(tree)  # [s, c]: s is c or a younger sibling
    later_M = jnp.sum(jnp.where(later_MM, at_parent(tree, token_M, q_MV)[:, None], 0), axis=0)
    mass_M = jnp.sum(without_children(tree, token_M, q_MV), axis=-1)[tree.parent_M] + later_M
    return jnp.where((tree.rank_M > 0) & (mass_M > 0), mass_M, 1)
