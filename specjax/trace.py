"""What a round leaves behind: its row of the trace, and what a length policy learns from it."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from specjax.state import State, Trace
from specjax.types import Draft, Verdict
from specjax.verify import Judged, drafted


def row_of(draft: Draft, known: Draft, judged: Judged, p_BMV, root_B, cursor_B) -> Trace:
    """The round as the trace keeps it. known: what of the draft was judged."""
    p_BM, q_BM, overlap_BM = _compare(known, p_BMV)
    return Trace(
        root_BN=root_B,
        drafted_BN=drafted(draft),
        stop_BN=judged.stop_B,
        committed_BN=cursor_B - root_B,
        expected_BN=jnp.sum(judged.law_BM * draft.tree.depth_M.astype(judged.law_BM.dtype), axis=-1),
        token_BNM=jnp.where(draft.tree.valid_M, draft.token_BM, 0),  # what pads a row must not depend on its batch
        emitted_BN=judged.emitted_B,
        p_BNM=p_BM,
        q_BNM=q_BM,
        overlap_BNM=overlap_BM,
        law_BNM=judged.law_BM,
    )


def verdict(row: Trace, nodes: int) -> Verdict:
    """What a length policy learns; one shape for all rungs."""
    overlap_BM = jnp.pad(row.overlap_BNM, ((0, 0), (0, nodes - row.overlap_BNM.shape[1])))
    return Verdict(row.drafted_BN, row.stop_BN, row.committed_BN, row.expected_BN, overlap_BM)


def _compare(draft: Draft, p_BMV):
    """(p_BM, q_BM, overlap_BM): both laws at each drafted token, and 1 - TV of each node whose child was drafted."""
    has_BM = jnp.pad(draft.tree.valid_M[:, 1:], ((0, 0), (0, 1)))
    child_BM1 = jnp.roll(draft.token_BM, -1, axis=1)[..., None]
    p_BM = jnp.take_along_axis(p_BMV, child_BM1, axis=-1)[..., 0]
    if draft.q_BMV is None:  # a certain draft: q is 1 at its token, and the overlap is p there
        q_BM, overlap_BM = jnp.ones_like(p_BM), p_BM
    else:
        q_BM = jnp.take_along_axis(draft.q_BMV, child_BM1, axis=-1)[..., 0]
        overlap_BM = jnp.sum(jnp.minimum(p_BMV, draft.q_BMV), axis=-1)
    p_BM, q_BM, overlap_BM = (jnp.where(has_BM, x, 0) for x in (p_BM, q_BM, overlap_BM))
    return jnp.roll(p_BM, 1, axis=1), jnp.roll(q_BM, 1, axis=1), overlap_BM


def record(state: State, row: Trace, running_B) -> State:
    """Write one round into the trace, zero for rows that had finished."""

    def put(all_BN, new_B):
        new_B = jnp.where(running_B.reshape(-1, *[1] * (new_B.ndim - 1)), new_B, 0).astype(all_BN.dtype)
        if new_B.ndim == 2:
            new_B = jnp.pad(new_B, ((0, 0), (0, all_BN.shape[2] - new_B.shape[1])))
        return jax.lax.dynamic_update_slice_in_dim(all_BN, new_B[:, None], state.turn % all_BN.shape[1], axis=1)

    return state._replace(trace=jax.tree.map(put, state.trace, row), turn=state.turn + 1)
