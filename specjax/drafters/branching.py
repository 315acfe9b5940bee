"""What drafts of a language model that branch have in common: a cache that holds a tree until its accepted path is known.

Fed nodes stand in slots from the root's on, and see their ancestors among them (`specjax.ancestry`). After the round the path that was
committed is found by its tokens, and its fed nodes are gathered into a contiguous prefix; a leaf was drawn but never fed, so after it
the cache lags by one token, as a chain's does.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from specjax import ancestry, ingest
from specjax.types import Array, Draft, PyTree, View


class BranchingState(NamedTuple):
    cache: PyTree
    cursor_B: Array  # committed tokens in the draft's cache
    target_B: Array  # in the target's
    token_BM: Array  # the last draft
    parent_BM: Array
    valid_BM: Array  # of a row that drafted nothing, no node
    slot_BM: Array  # where each node was fed, counted from the root's slot; -1: it was not


def init(model, params, view: View, nodes: int, fed: int, chunk: int) -> BranchingState:
    """After the target's prefill. fed: slots of a draft from the root's on."""
    batch, size = view.token_BS.shape
    cache = model.init_cache(batch, size + fed, jax.tree.leaves(params)[0].dtype)
    cache, _ = ingest.prefill(model, params, cache, view.token_BS, view.cursor_B, chunk)
    empty_BM = jnp.zeros((batch, nodes), jnp.int32)
    return BranchingState(cache, view.cursor_B, view.cursor_B, empty_BM, empty_BM, empty_BM.astype(bool), empty_BM)


def drafted(state: BranchingState, view: View, draft: Draft, ask_B, slot_BM, cache) -> BranchingState:
    """The state between a draft and its round.

    A row's deepest nodes count as never fed, though they were where another row went deeper: nothing may depend on its batch.
    """
    asked_B, depth_BM = ask_B > 0, draft.tree.depth_M
    length_B1 = jnp.max(jnp.where(draft.tree.valid_M, depth_BM, 0), axis=1, keepdims=True)
    return BranchingState(
        cache=cache,
        cursor_B=jnp.where(asked_B, view.cursor_B, state.cursor_B),
        target_B=view.cursor_B,
        token_BM=draft.token_BM,
        parent_BM=draft.tree.parent_M,
        valid_BM=draft.tree.valid_M & asked_B[:, None],
        slot_BM=jnp.where(depth_BM < length_B1, slot_BM, -1),
    )


def observe(model, state: BranchingState, committed: View, most: int, fed: int) -> BranchingState:
    """Keep of the last draft what was committed and fed. fed: as `init` takes it."""
    slot_BT, kept_B = _committed(state, committed, most)
    cache = model.gather(state.cache, state.target_B, slot_BT, fed)
    cursor_B = jnp.minimum(state.cursor_B + kept_B, committed.cursor_B)
    return state._replace(cache=cache, cursor_B=cursor_B, target_B=committed.cursor_B, valid_BM=jnp.zeros_like(state.valid_BM))


def _committed(state: BranchingState, committed: View, most: int):
    """(slot_BT, kept_B): the slots of the root and of the nodes whose tokens follow it in the text, and how many of them were fed."""
    node_M = jnp.arange(state.token_BM.shape[1], dtype=jnp.int32)
    node_B, on_B = jnp.zeros_like(state.cursor_B), state.valid_BM[:, 0]
    slots, kept_B = [jnp.zeros_like(state.cursor_B)], on_B.astype(jnp.int32)
    for depth in range(1, most + 1):
        said_B = jnp.take_along_axis(committed.token_BS, (state.target_B + depth)[:, None], axis=1)
        next_BM = state.valid_BM & (state.parent_BM == node_B[:, None]) & (state.token_BM == said_B) & (node_M > 0)[None]
        node_B = jnp.argmax(next_BM, axis=-1).astype(jnp.int32)
        slot_B = ancestry.along(state.slot_BM, node_B[:, None])[:, 0]
        on_B &= jnp.any(next_BM, axis=-1) & (slot_B >= 0)
        slots.append(jnp.where(on_B, slot_B, depth))
        kept_B += on_B.astype(jnp.int32)
    return jnp.stack(slots, axis=1), kept_B
