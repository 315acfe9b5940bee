"""One round of speculative decoding, and its two drivers: `generate`, a compiled loop, and `stream`, the same round from the host.

The cache holds every committed token except the newest, the root of the next round, which stands at token_BS[b, cursor_B[b]]. To roll back
is to set the cursor. Plain decoding is this loop with a drafter that offers nothing.

A row's number of drafts is its own: min(policy, offer, budget left - 1). Nothing a row does depends on the rung, the batch or a clock.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from specjax import ingest, processors, sampling
from specjax.sampling import DRAFT, EMIT, NOISE, STOP
from specjax.state import (
    BAD_DRAFT,
    BAD_PROCESSOR,
    BAD_RULE,
    EOS,
    LENGTH,
    NONFINITE,
    RUNNING,
    STOP_STRING,
    Counts,
    Setup,
    State,
    Trace,
)  # fmt: skip
from specjax.types import Array, Draft, Path, Verdict, View


def prefill(setup: Setup, params, state: State) -> State:
    """Feed every prompt but its newest token, and let the drafter take in the prompt: one program for all rules and samplings."""
    cache, drafter = feed_prompts(setup.model, setup.chunk, setup.drafter, params, state.cache, state.token_BS, state.cursor_B)
    return state._replace(cache=cache, drafter=drafter)


@functools.partial(jax.jit, static_argnames=("model", "chunk"), donate_argnames="cache")
def feed_prompts(model, chunk, drafter, params, cache, token_BS, cursor_B):
    """(cache, drafter's state) after tokens 0 .. cursor of each row."""
    cache = ingest.prefill(model, params, cache, token_BS, cursor_B, chunk)
    return cache, drafter.init(drafter.params, View(params, cache, token_BS, cursor_B))


@functools.partial(jax.jit, donate_argnames="state")
def generate(setup: Setup, params, state: State, until) -> State:
    """Rounds until at most `until` rows are running, as one program."""
    more = lambda s: jnp.sum(s.finish_B == RUNNING, dtype=jnp.int32) > until
    return jax.lax.while_loop(more, functools.partial(decode_round, setup, params), state)


@functools.partial(jax.jit, donate_argnames="state")
def put_row(state: State, one: State, row) -> State:
    """The state with row `row` replaced by that of a state of one row, after its prefill."""

    def put(old, new):  # reshape, because a cache leaves out axes of size 1
        at = (row, *(jnp.zeros((), row.dtype),) * (old.ndim - 1))
        return jax.lax.dynamic_update_slice(old, new.reshape(1, *old.shape[1:]), at)

    kept = {"trace": state.trace, "turn": state.turn}
    rest = jax.tree.map(put, state._replace(trace=None, turn=None), one._replace(trace=None, turn=None, began_B=state.turn[None]))
    return rest._replace(**kept)


@functools.partial(jax.jit, donate_argnames="state")
def step(setup: Setup, params, state: State) -> State:
    """One round, for a driver on the host."""
    return decode_round(setup, params, state)


def decode_round(setup: Setup, params, state: State) -> State:
    """Offer and ask, draft, then verify, judge and commit at the narrowest rung that holds what was drafted.

    A `while_loop` that turns 0 or 1 times is a switch that copies no cache; `lax.switch` would copy all of it every round.
    """
    ask_B = _ask(setup, state)
    root_B = jnp.take_along_axis(state.token_BS, state.cursor_B[:, None], axis=1)[:, 0]
    view = View(params, state.cache, state.token_BS, state.cursor_B)
    draw = Draw(setup, state)
    draft, drafter, view = setup.drafter.propose(setup.drafter.params, state.drafter, view, root_B, ask_B, draw)
    asked_BM = draft.tree.valid_M & (draft.tree.depth_M <= ask_B[:, None])  # whatever a drafter does, no row passes its budget
    valid_BM = asked_BM.at[:, 0].set(True)  # and the root is there
    draft = draft._replace(tree=dataclasses.replace(draft.tree, valid_M=valid_BM))
    state = state._replace(cache=view.cache, drafter=drafter)
    if len(setup.ladder) == 1:
        return _finish_round(setup, params, draft, setup.ladder[0], state)
    needed = jnp.max(jnp.sum(draft.tree.valid_M, axis=-1))
    below = 0
    for width in setup.ladder:
        turns = (needed > below) & (needed <= width)
        body = functools.partial(_finish_round, setup, params, draft, width)
        _, state = jax.lax.while_loop(lambda c: c[0], lambda c, body=body: (jnp.zeros((), bool), body(c[1])), (turns, state))
        below = width
    return state


def _ask(setup: Setup, state: State):
    """ask_B: what the policy wants of the offer, never more than budget left - 1 or the widest rung; finished rows ask 0."""
    offer_B = setup.drafter.offer(state.drafter)
    left_B = state.limit_B - state.cursor_B - 1
    most_B = jnp.minimum(jnp.minimum(offer_B, left_B - 1), setup.ladder[-1] - 1)
    ask_B = jnp.clip(setup.length.choose(state.length, offer_B), 0, jnp.maximum(most_B, 0))
    return jnp.where(state.finish_B == RUNNING, ask_B, 0)


class Draw:
    """The loop's coin as a drafter sees it (`types.Draw`). Keyed by the root's position and the node: noise that a rule has looked at is
    never drawn again. Under coupled sampling it is the position's own noise, which the target uses too."""

    def __init__(self, setup: Setup, state: State):
        self.setup, self.state = setup, state

    def law(self, logits_BV, token_BM, depth):
        setup, state = self.setup, self.state
        logits_B1V = logits_BV[:, None, : setup.model.vocab]
        path = _path(state, token_BM, jnp.broadcast_to(depth, (token_BM.shape[0], 1)))
        law_B1V, usable_B1 = processors.law(setup.processors, setup.draft_sampling, logits_B1V, path)
        return jnp.where(usable_B1, law_B1V[:, 0], jnp.nan)  # the loop names a draft without a law

    def __call__(self, law_BV, node, depth=None):
        setup, state = self.setup, self.state
        if setup.sampling.coupled:
            place = (state.cursor_B + (node if depth is None else depth),)
            return sampling.draw(sampling.key(setup.seed, NOISE, state.id_B, *place), law_BV)
        if setup.sampling.temperature is None and setup.draft_sampling.temperature is None:  # the law is certain: spare the noise
            return sampling.first_argmax(law_BV)
        return sampling.draw(sampling.key(setup.seed, DRAFT, state.id_B, state.cursor_B, node), law_BV)

    def keep_going(self, q_BV, depth):
        return self.setup.length.keep_going(self.state.length, q_BV, depth)


def _finish_round(setup: Setup, params, draft: Draft, width: int, state: State) -> State:
    """Verify, judge, commit and roll back at one width."""
    draft = jax.tree.map(lambda x: x[:, :width], draft)
    if not draft.tree.chain:
        raise NotImplementedError("only chains can be verified yet: the draft's tree must have chain=True")
    verified, features, cache = _verify(setup, params, draft, state)
    known = _known(draft, verified.usable_BM)
    judged = _judge(setup, state, known, verified.p_BMV)
    before = state
    state = _commit(setup, state._replace(cache=cache), draft, judged, verified)
    view = View(params, cache, state.token_BS, state.cursor_B)
    drafter = setup.drafter.observe(setup.drafter.params, state.drafter, view, features)
    row = _row(draft, known, judged, verified.p_BMV, before.cursor_B, state.cursor_B)
    length = setup.length.observe(state.length, _verdict(row, setup.ladder[-1]))
    return _record(state._replace(drafter=drafter, length=length), row, before.finish_B == RUNNING)


class Verified(NamedTuple):
    """What one pass of the target says. Where a law is not usable it is any that is finite."""

    logits_BMV: Array
    finite_BM: Array  # are the logits
    usable_BM: Array  # is what processors left of them
    p_BMV: Array


def _path(state: State, token_BM, depth_BM) -> Path:
    """The path to the node at each depth of a chain; leaves [B, S], [B, M] and [B]."""
    behind_B = jnp.full_like(state.cursor_B, token_BM.shape[1] - 1)
    token_BS = _append(state.token_BS, state.cursor_B + 1, token_BM[:, 1:], behind_B) if token_BM.shape[1] > 1 else state.token_BS
    return Path(token_BS, state.cursor_B[:, None] + 1 + depth_BM, state.prompt_B)


def _verify(setup: Setup, params, draft: Draft, state: State):
    """One pass of the target: (Verified, taps or None, cache)."""
    hidden, taps, cache = setup.model.forward(
        params,
        draft.token_BM,
        state.cache,
        state.cursor_B,
        position_BT=state.cursor_B[:, None] + draft.tree.depth_M,
        taps=setup.drafter.taps,
    )
    logits_BMV = setup.model.head(params, hidden)[..., : setup.model.vocab]
    path = _path(state, draft.token_BM, draft.tree.depth_M)
    p_BMV, usable_BM = processors.law(setup.processors, setup.sampling, logits_BMV, path)
    finite_BM = jnp.all(jnp.isfinite(logits_BMV), axis=-1) if setup.processors or setup.sampling.penalties else usable_BM
    return Verified(logits_BMV, finite_BM, usable_BM, p_BMV), taps or None, cache


class Judged(NamedTuple):
    """One draw from the rule's law, and whether the law and the draft were any."""

    law_BM: Array
    stop_B: Array
    emitted_B: Array
    good_rule_B: Array
    good_draft_B: Array


def _known(draft: Draft, usable_BM) -> Draft:
    """The draft up to the first node without a law of the target: nothing after it can be judged."""
    known_BM = jnp.cumprod(jnp.pad(usable_BM[:, :-1], ((0, 0), (1, 0)), constant_values=True), axis=1).astype(bool)
    return draft._replace(tree=dataclasses.replace(draft.tree, valid_M=draft.tree.valid_M & known_BM))


def _judge(setup: Setup, state: State, draft: Draft, p_BMV) -> Judged:
    """Ask the rule, and draw where the round ends and what is emitted there."""
    tree, q_BMV = draft.tree, draft.q_BMV
    if setup.sampling.coupled:  # the target's own choice at every place; the rule sees it as a one-hot law
        p_BMV = sampling.one_hot(sampling.draw(_key(setup, state, NOISE, tree.depth_M), p_BMV), p_BMV)
    if q_BMV is None or setup.sampling.coupled:
        q_BMV = sampling.one_hot(jnp.roll(draft.token_BM, -1, axis=1), p_BMV)
    law = jax.vmap(setup.rule)(tree, draft.token_BM, p_BMV, q_BMV)
    stop_B = sampling.draw_node(sampling.key(setup.seed, STOP, state.id_B, state.cursor_B), law.stop_M)
    emit_BV = jax.vmap(lambda emit_MV, stop: emit_MV[stop])(law.emit_MV, stop_B)
    if setup.sampling.one_hot:
        emitted_B = sampling.first_argmax(emit_BV)
    else:
        emitted_B = sampling.draw(_key(setup, state, EMIT, stop_B), emit_BV)
    good_rule_B = _is_law(law.stop_M) & _is_law(emit_BV)
    return Judged(law.stop_M, stop_B, emitted_B, good_rule_B, _good_draft(draft, setup.model.vocab))


def _is_law(law_BX):
    """Whether each row is non-negative and sums to one, up to rounding; NaN is not."""
    return (jnp.abs(jnp.sum(law_BX, axis=-1) - 1) < 1e-3) & (jnp.min(law_BX, axis=-1) >= -1e-6)


def _good_draft(draft: Draft, vocab: int):
    """Whether every drafted token exists, and stands in a finite law."""
    good_BM = (draft.token_BM >= 0) & (draft.token_BM < vocab)
    if draft.q_BMV is not None:
        parent_q_BM = jnp.all(jnp.isfinite(draft.q_BMV), axis=-1)
        good_BM &= jnp.pad(parent_q_BM[:, :-1], ((0, 0), (1, 0)), constant_values=True)
    return jnp.all(good_BM | ~draft.tree.valid_M, axis=-1)


def _key(setup: Setup, state: State, purpose: int, depth):
    """Keys of the tokens that follow nodes at depth [B] or [B, M]: their absolute position is the place."""
    row = (slice(None),) + (None,) * (depth.ndim - 1)
    return sampling.key(setup.seed, purpose, state.id_B[row], state.cursor_B[row] + depth + 1)


def _commit(setup: Setup, state: State, draft: Draft, judged: Judged, verified: Verified) -> State:
    """Append the accepted drafts and the emitted token, cut at the first EOS or stop and at the budget, and set the cursor."""
    running_B, stop_B = state.finish_B == RUNNING, judged.stop_B
    place_1M = jnp.arange(draft.token_BM.shape[1], dtype=jnp.int32)[None]
    block_BM = jnp.where(place_1M < stop_B[:, None], jnp.roll(draft.token_BM, -1, axis=1), judged.emitted_B[:, None])
    known_B = _at(verified.usable_BM, stop_B)  # is there a law to emit from
    real_B = stop_B + known_B.astype(jnp.int32)
    real_BM = place_1M < real_B[:, None]
    eos_BM = jnp.any(block_BM[..., None] == setup.eos_E[None, None], axis=-1) & real_BM
    automaton_BM, string_BM = _walk(setup, state, block_BM)
    end_BM = eos_BM | (string_BM & real_BM)
    ended_B, end_B = jnp.any(end_BM, axis=-1), jnp.argmax(end_BM, axis=-1).astype(jnp.int32)
    count_B = jnp.where(ended_B, end_B + 1, real_B)
    count_B = jnp.where(running_B, count_B, 0).astype(jnp.int32)
    start_B, cursor_B = state.cursor_B + 1, state.cursor_B + count_B

    finish_B = jnp.where(cursor_B + 1 >= state.limit_B, LENGTH, RUNNING)
    finish_B = jnp.where(known_B, finish_B, jnp.where(_at(verified.finite_BM, stop_B), BAD_PROCESSOR, NONFINITE))
    finish_B = jnp.where(ended_B, jnp.where(_at(eos_BM, end_B), EOS, STOP_STRING), finish_B)
    finish_B = jnp.where(judged.good_rule_B, finish_B, BAD_RULE)
    finish_B = jnp.where(judged.good_draft_B, finish_B, BAD_DRAFT)
    state = state._replace(
        token_BS=_append(state.token_BS, start_B, block_BM, count_B),
        cursor_B=cursor_B,
        finish_B=jnp.where(running_B, finish_B, state.finish_B).astype(jnp.int32),
        counts=_count(state.counts, running_B, draft, stop_B, count_B),
    )
    if setup.stop is not None:
        last_B = _at(automaton_BM, jnp.maximum(count_B - 1, 0))
        state = state._replace(stop_B=jnp.where(count_B > 0, last_B, state.stop_B))
    if setup.logprobs:
        state = state._replace(logprob_BS=_append(state.logprob_BS, start_B, _logprob(verified.logits_BMV, block_BM), count_B))
    return state


def _at(x_BM, place_B):
    return jnp.take_along_axis(x_BM, place_B[:, None], axis=1)[:, 0]


def _walk(setup: Setup, state: State, block_BM):
    """(state of the automaton, whether a stop string ended) after each token of the block; none ends before its time."""
    if setup.stop is None:
        return None, jnp.zeros(block_BM.shape, bool)
    automaton_BM, string_BM = setup.stop.walk(state.stop_B, block_BM)
    place_1M = jnp.arange(block_BM.shape[1], dtype=jnp.int32)[None]
    new_BM = (state.cursor_B - state.prompt_B)[:, None] + 2 + place_1M  # new tokens, this one too
    return automaton_BM, string_BM & (new_BM >= setup.least)


def _logprob(logits_BMV, block_BM):
    """log softmax of the logits of each node at the token that followed it."""
    logits_BMV = logits_BMV.astype(np.promote_types(logits_BMV.dtype, jnp.float32))
    chosen_BM = jnp.take_along_axis(logits_BMV, block_BM[..., None], axis=-1)[..., 0]
    return chosen_BM - jax.nn.logsumexp(logits_BMV, axis=-1)


def _append(token_BS, start_B, block_BM, count_B):
    """Write the first count_B tokens of each row's block at start_B; nothing else changes."""
    at_BS = jnp.arange(token_BS.shape[1], dtype=jnp.int32)[None] - start_B[:, None]
    new_BS = jnp.take_along_axis(block_BM, jnp.clip(at_BS, 0, block_BM.shape[1] - 1), axis=1)
    return jnp.where((at_BS >= 0) & (at_BS < count_B[:, None]), new_BS, token_BS)


def _count(counts: Counts, running_B, draft: Draft, stop_B, count_B) -> Counts:
    kept_B = jnp.minimum(stop_B, count_B)
    new = Counts(rounds_B=running_B.astype(jnp.int32), drafted_B=_drafted(draft), accepted_B=kept_B, cut_B=stop_B - kept_B)
    return jax.tree.map(lambda old, more: old + jnp.where(running_B, more, 0), counts, new)


def _drafted(draft: Draft):
    return jnp.sum(draft.tree.valid_M, axis=-1, dtype=jnp.int32) - 1


def _row(draft: Draft, known: Draft, judged: Judged, p_BMV, root_B, cursor_B) -> Trace:
    """The round as the trace keeps it. known: what of the draft was judged."""
    p_BM, q_BM, overlap_BM = _compare(known, p_BMV)
    return Trace(
        root_BN=root_B,
        drafted_BN=_drafted(draft),
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


def _verdict(row: Trace, nodes: int) -> Verdict:
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


def _record(state: State, row: Trace, running_B) -> State:
    """Write one round into the trace, zero for rows that had finished."""

    def put(all_BN, new_B):
        new_B = jnp.where(running_B.reshape(-1, *[1] * (new_B.ndim - 1)), new_B, 0).astype(all_BN.dtype)
        if new_B.ndim == 2:
            new_B = jnp.pad(new_B, ((0, 0), (0, all_BN.shape[2] - new_B.shape[1])))
        return jax.lax.dynamic_update_slice_in_dim(all_BN, new_B[:, None], state.turn % all_BN.shape[1], axis=1)

    return state._replace(trace=jax.tree.map(put, state.trace, row), turn=state.turn + 1)
