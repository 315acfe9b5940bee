"""Who is whose ancestor in the tree of a draft, and what follows: which slots a node sees, and the path to where a round ended.

Tree attention (SpecInfer, Miao et al., 2305.09781): a node's place is the root's plus its depth, and of the fed nodes it sees its
ancestors and itself. Nodes stand by depth, so the slots a node sees hold its path in order.
"""

from __future__ import annotations

import jax.numpy as jnp

from specjax.types import Tree


def ancestors(parent_BM):
    """bool [B, M, M]: the nodes on the way from the root to each node, itself included."""
    nodes = parent_BM.shape[1]
    seen_BMM = jnp.broadcast_to(jnp.eye(nodes, dtype=bool), (*parent_BM.shape, nodes))
    up_BM = parent_BM
    for _ in range((nodes - 1).bit_length()):  # twice as far up in each turn
        seen_BMM |= jnp.take_along_axis(seen_BMM, up_BM[..., None], axis=1)
        up_BM = jnp.take_along_axis(up_BM, up_BM, axis=1)
    return seen_BMM


def over_slots(start_B, seen_BTN, size: int):
    """bool [B, T, S]: what fed tokens see of `size` slots: all before the row's start, and from there on what `seen_BTN` says."""
    slot_BS = jnp.arange(size, dtype=start_B.dtype)[None] - start_B[:, None]
    nodes = seen_BTN.shape[-1]
    inside_BS = (slot_BS >= 0) & (slot_BS < nodes)
    index_BTS = jnp.broadcast_to(jnp.clip(slot_BS, 0, nodes - 1)[:, None], (*seen_BTN.shape[:2], size))
    return (slot_BS < 0)[:, None] | (inside_BS[:, None] & jnp.take_along_axis(seen_BTN, index_BTS, axis=2))


def path(tree: Tree, node_B):
    """[B, M]: at place d the node of depth d on the way to `node_B`, which may stand at no greater depth than M - 1; then d itself."""
    place_1M = jnp.arange(tree.parent_M.shape[1], dtype=jnp.int32)[None]
    if tree.chain:
        return jnp.broadcast_to(place_1M, tree.parent_M.shape)
    on_BM = jnp.take_along_axis(ancestors(tree.parent_M), node_B[:, None, None], axis=1)[:, 0]
    at_BMM = on_BM[:, None, :] & (tree.depth_M[:, None, :] == place_1M[..., None])
    return jnp.where(jnp.any(at_BMM, axis=-1), jnp.argmax(at_BMM, axis=-1).astype(jnp.int32), place_1M)


def children(tree: Tree):
    """bool [B, M, M]: [b, m, n] whether n is a valid child of m."""
    node_M = jnp.arange(tree.parent_M.shape[1], dtype=jnp.int32)
    return (tree.parent_M[:, None, :] == node_M[None, :, None]) & (tree.valid_M & (node_M > 0)[None])[:, None, :]


def along(x_BM, node_BT):
    """Entries of x [B, M] or [B, M, X] at nodes [B, T]."""
    return jnp.take_along_axis(x_BM, node_BT.reshape(*node_BT.shape, *[1] * (x_BM.ndim - 2)), axis=1)
