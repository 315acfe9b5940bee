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

from specjax import ingest, sampling
from specjax.sampling import DRAFT, EMIT, NOISE, STOP
from specjax.state import BAD_DRAFT, BAD_RULE, EOS, LENGTH, NONFINITE, RUNNING, Counts, Setup, State, Trace
from specjax.types import Array, Draft, Verdict, View


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
def generate(setup: Setup, params, state: State) -> State:
    """Rounds until every row has finished, as one program."""
    return jax.lax.while_loop(lambda s: jnp.any(s.finish_B == RUNNING), functools.partial(decode_round, setup, params), state)


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

    def law(self, logits):
        return sampling.law(logits[..., : self.setup.model.vocab], self.setup.draft_sampling)

    def __call__(self, law_BV, node, depth=None):
        setup, state = self.setup, self.state
        if setup.sampling.coupled:
            place = (state.cursor_B + (node if depth is None else depth),)
            return sampling.draw(sampling.key(setup.seed, NOISE, state.id_B, *place), law_BV)
        if setup.sampling.temperature is None:  # no draft can change what is said: spare the noise
            return sampling.first_argmax(law_BV)
        return sampling.draw(sampling.key(setup.seed, DRAFT, state.id_B, state.cursor_B, node), law_BV)

    def keep_going(self, q_BV, depth):
        return self.setup.length.keep_going(self.state.length, q_BV, depth)


def _finish_round(setup: Setup, params, draft: Draft, width: int, state: State) -> State:
    """Verify, judge, commit and roll back at one width."""
    draft = jax.tree.map(lambda x: x[:, :width], draft)
    if not draft.tree.chain:
        raise NotImplementedError("only chains can be verified yet: the draft's tree must have chain=True")
    p_BMV, finite_BM, features, cache = _verify(setup, params, draft, state)
    judged = _judge(setup, state, draft, p_BMV, finite_BM)
    before = state
    state = _commit(setup, state._replace(cache=cache), draft, judged, finite_BM)
    view = View(params, cache, state.token_BS, state.cursor_B)
    drafter = setup.drafter.observe(setup.drafter.params, state.drafter, view, features)
    row = _row(draft, judged, p_BMV, before.cursor_B, state.cursor_B)
    length = setup.length.observe(state.length, _verdict(row, setup.ladder[-1]))
    return _record(state._replace(drafter=drafter, length=length), row, before.finish_B == RUNNING)


def _verify(setup: Setup, params, draft: Draft, state: State):
    """One pass of the target: (p_BMV, finite_BM, taps or None, cache). Where logits are not finite p is anything that is."""
    hidden, taps, cache = setup.model.forward(
        params,
        draft.token_BM,
        state.cache,
        state.cursor_B,
        position_BT=state.cursor_B[:, None] + draft.tree.depth_M,
        taps=setup.drafter.taps,
    )
    logits = setup.model.head(params, hidden)[..., : setup.model.vocab]
    finite_BM = jnp.all(jnp.isfinite(logits), axis=-1)
    return sampling.law(jnp.where(finite_BM[..., None], logits, 0), setup.sampling), finite_BM, taps or None, cache


class Judged(NamedTuple):
    """One draw from the rule's law, and whether the law and the draft were any."""

    law_BM: Array
    stop_B: Array
    emitted_B: Array
    good_rule_B: Array
    good_draft_B: Array


def _judge(setup: Setup, state: State, draft: Draft, p_BMV, finite_BM) -> Judged:
    """Ask the rule, and draw where the round ends and what is emitted there."""
    # nothing can be judged by a law that does not exist: the chain ends at its first node without finite logits
    known_BM = jnp.cumprod(jnp.pad(finite_BM[:, :-1], ((0, 0), (1, 0)), constant_values=True), axis=1).astype(bool)
    tree = dataclasses.replace(draft.tree, valid_M=draft.tree.valid_M & known_BM)
    q_BMV = draft.q_BMV
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


def _commit(setup: Setup, state: State, draft: Draft, judged: Judged, finite_BM) -> State:
    """Append the accepted drafts and the emitted token, cut at the first EOS and at the budget, and set the cursor."""
    running_B, stop_B = state.finish_B == RUNNING, judged.stop_B
    place = jnp.arange(draft.token_BM.shape[1])
    block_BM = jnp.where(place < stop_B[:, None], jnp.roll(draft.token_BM, -1, axis=1), judged.emitted_B[:, None])
    known_B = jnp.take_along_axis(finite_BM, stop_B[:, None], axis=1)[:, 0]  # is there a law to emit from
    eos_BM = jnp.any(block_BM[..., None] == setup.eos_E, axis=-1) & (place < (stop_B + known_B)[:, None])
    ended_B = jnp.any(eos_BM, axis=-1)
    count_B = jnp.where(ended_B, jnp.argmax(eos_BM, axis=-1) + 1, stop_B + known_B)
    count_B = jnp.where(running_B, count_B, 0).astype(jnp.int32)
    cursor_B = state.cursor_B + count_B

    finish_B = jnp.where(cursor_B + 1 >= state.limit_B, LENGTH, RUNNING)
    finish_B = jnp.where(known_B, finish_B, NONFINITE)
    finish_B = jnp.where(ended_B, EOS, finish_B)
    finish_B = jnp.where(judged.good_rule_B, finish_B, BAD_RULE)
    finish_B = jnp.where(judged.good_draft_B, finish_B, BAD_DRAFT)
    return state._replace(
        token_BS=_append(state.token_BS, state.cursor_B + 1, block_BM, count_B),
        cursor_B=cursor_B,
        finish_B=jnp.where(running_B, finish_B, state.finish_B).astype(jnp.int32),
        counts=_count(state.counts, running_B, draft, stop_B, count_B),
    )


def _append(token_BS, start_B, block_BM, count_B):
    """Write the first count_B tokens of each row's block at start_B; nothing else changes."""
    at_BS = jnp.arange(token_BS.shape[1]) - start_B[:, None]
    new_BS = jnp.take_along_axis(block_BM, jnp.clip(at_BS, 0, block_BM.shape[1] - 1), axis=1)
    return jnp.where((at_BS >= 0) & (at_BS < count_B[:, None]), new_BS, token_BS)


def _count(counts: Counts, running_B, draft: Draft, stop_B, count_B) -> Counts:
    kept_B = jnp.minimum(stop_B, count_B)
    new = Counts(rounds_B=running_B, drafted_B=_drafted(draft), accepted_B=kept_B, cut_B=stop_B - kept_B)
    return jax.tree.map(lambda old, more: old + jnp.where(running_B, more, 0), counts, new)


def _drafted(draft: Draft):
    return jnp.sum(draft.tree.valid_M, axis=-1, dtype=jnp.int32) - 1


def _row(draft: Draft, judged: Judged, p_BMV, root_B, cursor_B) -> Trace:
    """The round as the trace keeps it."""
    p_BM, q_BM, overlap_BM = _compare(draft, p_BMV)
    return Trace(
        root_BN=root_B,
        drafted_BN=_drafted(draft),
        stop_BN=judged.stop_B,
        committed_BN=cursor_B - root_B,
        expected_BN=jnp.sum(judged.law_BM * draft.tree.depth_M, axis=-1),
        token_BNM=draft.token_BM,
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
        return jax.lax.dynamic_update_slice_in_dim(all_BN, new_B[:, None], state.turn, axis=1)

    return state._replace(trace=jax.tree.map(put, state.trace, row), turn=state.turn + 1)
