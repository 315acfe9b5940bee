"""The tree of a draft without branches."""

from __future__ import annotations

import jax.numpy as jnp

from specjax.types import Tree


def chain(drafted_B, nodes: int, drawn: str) -> Tree:
    """A chain of `nodes` nodes a row of which the root and the next drafted_B are valid."""
    node_BM = jnp.broadcast_to(jnp.arange(nodes, dtype=jnp.int32), (drafted_B.shape[0], nodes))
    return Tree(
        parent_M=jnp.maximum(node_BM - 1, 0),
        depth_M=node_BM,
        rank_M=jnp.zeros_like(node_BM),
        valid_M=node_BM <= drafted_B[:, None],
        drawn=drawn,
        chain=True,
    )
