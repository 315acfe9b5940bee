"""One pass of the target over a draft, and one draw from the rule's law: where the round ends, and what is emitted there."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp

from specjax import ancestry, processors, sampling
from specjax.sampling import EMIT, NOISE, STOP
from specjax.state import Setup, State, append
from specjax.types import Array, Draft, Path


class Verified(NamedTuple):
    """What one pass of the target says. Where a law is not usable it is any that is finite."""

    logits_BMV: Array
    finite_BM: Array  # are the logits
    usable_BM: Array  # is what processors left of them
    p_BMV: Array


def path_to(state: State, token_BM, depth_BM) -> Path:
    """The path to the node at each depth of a chain; leaves [B, S], [B, M] and [B]."""
    behind_B = jnp.full_like(state.cursor_B, token_BM.shape[1] - 1)
    token_BS = append(state.token_BS, state.cursor_B + 1, token_BM[:, 1:], behind_B) if token_BM.shape[1] > 1 else state.token_BS
    return Path(token_BS, state.cursor_B[:, None] + 1 + depth_BM, state.prompt_B)


def paths_to(state: State, token_BTM, depth_BT) -> Path:
    """The same for nodes with paths of their own, token_BTM from the root on; leaves [B, T, S], [B, T] and [B]."""
    each = jax.vmap(lambda token_BM: path_to(state, token_BM, depth_BT).token_S, in_axes=1, out_axes=1)
    return Path(each(token_BTM), state.cursor_B[:, None] + 1 + depth_BT, state.prompt_B)


def _paths_in(state: State, draft: Draft) -> Path:
    """The path to each node of a draft."""
    tree, token_BM = draft.tree, draft.token_BM
    if tree.chain:
        return path_to(state, token_BM, tree.depth_M)
    rows = jnp.arange(token_BM.shape[1], dtype=jnp.int32)
    each = jax.vmap(lambda node: ancestry.path(tree, jnp.full_like(state.cursor_B, node)), out_axes=1)
    token_BMM = jax.vmap(ancestry.along, in_axes=(None, 1), out_axes=1)(token_BM, each(rows))
    return paths_to(state, token_BMM, tree.depth_M)


def verify(setup: Setup, params, draft: Draft, state: State):
    """One pass of the target: (Verified, taps or None, cache)."""
    tree, mask = draft.tree, None
    if not tree.chain:
        mask = ancestry.over_slots(state.cursor_B, ancestry.ancestors(tree.parent_M), state.token_BS.shape[1])
    hidden, taps, cache = setup.model.forward(
        params,
        draft.token_BM,
        state.cache,
        state.cursor_B,
        position_BT=state.cursor_B[:, None] + tree.depth_M,
        mask=mask,
        taps=setup.drafter.taps,
    )
    logits_BMV = setup.model.head(params, hidden)[..., : setup.model.vocab]
    path = _paths_in(state, draft)
    p_BMV, usable_BM = processors.law(setup.processors, setup.sampling, logits_BMV, path)
    finite_BM = jnp.all(jnp.isfinite(logits_BMV), axis=-1) if setup.processors or setup.sampling.penalties else usable_BM
    return Verified(logits_BMV, finite_BM, usable_BM, p_BMV), taps or None, cache


class Judged(NamedTuple):
    """One draw from the rule's law, and whether the law and the draft were any."""

    law_BM: Array
    stop_B: Array  # the node where the round ends
    accepted_B: Array  # its depth
    path_BM: Array  # the way to it, see `ancestry.path`
    emit_BV: Array  # the law of the token emitted there
    emitted_B: Array
    good_rule_B: Array
    good_draft_B: Array


def cut_unknown(draft: Draft, usable_BM) -> Draft:
    """The draft up to the first node without a law of the target: nothing after it can be judged."""
    if draft.tree.chain:
        known_BM = jnp.cumprod(jnp.pad(usable_BM[:, :-1], ((0, 0), (1, 0)), constant_values=True), axis=1).astype(bool)
    else:
        above_BMM = ancestry.ancestors(draft.tree.parent_M) & ~jnp.eye(usable_BM.shape[1], dtype=bool)[None]
        known_BM = ~jnp.any(above_BMM & ~usable_BM[:, None, :], axis=-1)
    return draft._replace(tree=dataclasses.replace(draft.tree, valid_M=draft.tree.valid_M & known_BM))


def judge(setup: Setup, state: State, draft: Draft, p_BMV) -> Judged:
    """Ask the rule, and draw where the round ends and what is emitted there."""
    tree, q_BMV = draft.tree, draft.q_BMV
    if setup.sampling.coupled:  # the target's own choice at every place; the rule sees it as a one-hot law
        p_BMV = sampling.one_hot(sampling.draw(_key(setup, state, NOISE, tree.depth_M), p_BMV), p_BMV)
    if q_BMV is None or setup.sampling.coupled:
        first_BM = jnp.argmax(ancestry.children(tree), axis=-1)  # of several children that are certain no law is
        q_BMV = sampling.one_hot(ancestry.along(draft.token_BM, first_BM), p_BMV)
    law = jax.vmap(setup.rule)(tree, draft.token_BM, p_BMV, q_BMV)
    stop_B = sampling.draw_node(sampling.key(setup.seed, STOP, state.id_B, state.cursor_B), law.stop_M)
    accepted_B = ancestry.along(tree.depth_M, stop_B[:, None])[:, 0]
    emit_BV = jax.vmap(lambda emit_MV, stop: emit_MV[stop])(law.emit_MV, stop_B)
    if setup.sampling.one_hot:
        emitted_B = sampling.first_argmax(emit_BV)
    else:
        emitted_B = sampling.draw(_key(setup, state, EMIT, accepted_B), emit_BV)
    inside_BM = jnp.where(tree.valid_M, law.stop_M, 0)  # no round ends at a node that was not drafted
    good_rule_B = _is_law(law.stop_M) & _is_law(inside_BM) & _is_law(emit_BV)
    path_BM = ancestry.path(tree, stop_B)
    return Judged(law.stop_M, stop_B, accepted_B, path_BM, emit_BV, emitted_B, good_rule_B, _good_draft(draft, setup.model.vocab))


def _is_law(law_BX):
    """Whether each row is non-negative and sums to one, up to rounding; NaN is not."""
    return (jnp.abs(jnp.sum(law_BX, axis=-1) - 1) < 1e-3) & (jnp.min(law_BX, axis=-1) >= -1e-6)


def _good_draft(draft: Draft, vocab: int):
    """Whether every drafted token exists, and stands in a finite law."""
    good_BM = (draft.token_BM >= 0) & (draft.token_BM < vocab)
    if draft.q_BMV is not None:
        drawn_BM = ancestry.along(jnp.all(jnp.isfinite(draft.q_BMV), axis=-1), draft.tree.parent_M)
        good_BM &= drawn_BM.at[:, 0].set(True)  # the root was not drafted
    return jnp.all(good_BM | ~draft.tree.valid_M, axis=-1)


def _key(setup: Setup, state: State, purpose: int, depth):
    """Keys of the tokens that follow nodes at depth [B] or [B, M]: their absolute position is the place."""
    row = (slice(None),) + (None,) * (depth.ndim - 1)
    return sampling.key(setup.seed, purpose, state.id_B[row], state.cursor_B[row] + depth + 1)


def drafted(draft: Draft):
    return jnp.sum(draft.tree.valid_M, axis=-1, dtype=jnp.int32) - 1
