"""What the rules on a chain share: acceptance token by token, then one emission."""

from __future__ import annotations

import jax.numpy as jnp

from specjax.sampling import one_hot
from specjax.types import Law, Tree


def drafted(tree: Tree):
    """has_M: whether node m has a child. On a chain that is whether the next node is valid."""
    return jnp.concatenate([tree.valid_M[1:], jnp.zeros(1, bool)])


def child(token_M):
    """The token of each node's child (the last node has none and gets the root's)."""
    return jnp.concatenate([token_M[1:], token_M[:1]])


def at_child(token_M, law_MV):
    """law_M: each node's law at the token of its child."""
    return jnp.take_along_axis(law_MV, child(token_M)[:, None], axis=-1)[:, 0]


def draft_law(tree: Tree, token_M, q_MV):
    """The law that each node's child was drawn from: certain of that child where children are fixed, whatever q says."""
    return one_hot(child(token_M), q_MV) if tree.drawn == "fixed" else q_MV


def law(tree: Tree, accept_M, rejected_MV, p_MV) -> Law:
    """The law of accepting the child of node m with probability accept_M[m] while none was refused before.

    rejected_MV: law of the token emitted where the child of m was refused. After the last draft the bonus token comes from p.
    """
    has_M = drafted(tree)
    accept_M = jnp.where(has_M, accept_M, 0)
    reach_M = jnp.concatenate([jnp.ones(1, accept_M.dtype), jnp.cumprod(accept_M)[:-1]])
    stop_M = reach_M * (1 - accept_M)
    emit_MV = jnp.where(has_M[:, None], rejected_MV, p_MV)
    return Law(stop_M, jnp.where(tree.valid_M[:, None], emit_MV, 0))


def token_law(kept_MV, emit_MV):
    """The law of a place whose draft is kept with mass kept_MV, and refused with the rest, for a token of emit_MV."""
    return kept_MV + (1 - jnp.sum(kept_MV, axis=-1, keepdims=True)) * emit_MV
