"""What a round leaves behind: its row of the trace, and what a length policy learns from it."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from specjax import price
from specjax.ancestry import children
from specjax.state import Setup, State, Trace
from specjax.types import Draft, Verdict
from specjax.verify import Judged, drafted


def row_of(setup: Setup, draft: Draft, known: Draft, judged: Judged, p_BMV, root_B, cursor_B) -> Trace:
    """The round as the trace keeps it. known: what of the draft was judged."""
    p_BM, q_BM, overlap_BM = _compare(known, p_BMV)
    tree = draft.tree
    return Trace(
        root_BN=root_B,
        drafted_BN=drafted(draft),
        stop_BN=judged.stop_B,
        committed_BN=cursor_B - root_B,
        expected_BN=jnp.sum(judged.law_BM * tree.depth_M.astype(judged.law_BM.dtype), axis=-1),
        token_BNM=jnp.where(tree.valid_M, draft.token_BM, 0),  # what pads a row must not depend on its batch
        up_BNM=jnp.where(tree.valid_M, jnp.arange(tree.parent_M.shape[1], dtype=jnp.int32)[None] - tree.parent_M, 0),
        emitted_BN=judged.emitted_B,
        p_BNM=p_BM,
        q_BNM=q_BM,
        overlap_BNM=overlap_BM,
        law_BNM=judged.law_BM,
        kl_BNM=price.kl(setup.rule, known, p_BMV, judged.stop_B, judged.emit_BV) if setup.kl else None,
    )


def verdict(draft: Draft, judged: Judged, row: Trace, nodes: int, most: int) -> Verdict:
    """What a length policy learns; one shape for all rungs."""
    length_B = jnp.max(jnp.where(draft.tree.valid_M, draft.tree.depth_M, 0), axis=-1)
    overlap_BM = jnp.pad(row.overlap_BNM, ((0, 0), (0, nodes - row.overlap_BNM.shape[1])))
    return Verdict(length_B, judged.accepted_B, row.committed_BN, row.expected_BN, overlap_BM, most)


def _compare(draft: Draft, p_BMV):
    """(p_BM, q_BM, overlap_BM): both laws at each drafted token, and 1 - TV of each node whose child was drafted.

    Where children are certain q is 1 at each, and the overlap is what p gives them together.
    """
    tree, child_BMM = draft.tree, children(draft.tree)
    drafted_BM = tree.valid_M.at[:, 0].set(False)
    at_token = lambda law_BMV: jnp.where(drafted_BM, _parents_law(law_BMV, tree.parent_M, draft.token_BM), 0)
    p_BM = at_token(p_BMV)
    if draft.q_BMV is None:
        overlap_BM = jnp.sum(jnp.where(child_BMM, p_BM[:, None, :], 0), axis=-1)
        return p_BM, drafted_BM.astype(p_BM.dtype), overlap_BM
    overlap_BM = jnp.sum(jnp.minimum(p_BMV, draft.q_BMV), axis=-1)
    return p_BM, at_token(draft.q_BMV), jnp.where(jnp.any(child_BMM, axis=-1), overlap_BM, 0)


def _parents_law(law_BMV, parent_BM, token_BM):
    """The law after each node's parent at the node's token: a gather of single numbers."""
    return jax.vmap(lambda law_MV, parent_M, token_M: law_MV[parent_M, token_M])(law_BMV, parent_BM, token_BM)


def record(state: State, row: Trace, running_B) -> State:
    """Write one round into the trace, zero for rows that had finished."""

    def put(all_BN, new_B):
        new_B = jnp.where(running_B.reshape(-1, *[1] * (new_B.ndim - 1)), new_B, 0).astype(all_BN.dtype)
        if new_B.ndim == 2:
            new_B = jnp.pad(new_B, ((0, 0), (0, all_BN.shape[2] - new_B.shape[1])))
        return jax.lax.dynamic_update_slice_in_dim(all_BN, new_B[:, None], state.turn % all_BN.shape[1], axis=1)

    if state.trace.up_BNM is None:
        row = row._replace(up_BNM=None)
    return state._replace(trace=jax.tree.map(put, state.trace, row), turn=state.turn + 1)
