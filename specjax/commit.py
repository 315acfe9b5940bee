"""What a row gains in a round: accepted drafts and the emitted token, up to the first EOS or stop string. Nothing after it exists."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from specjax.ancestry import along
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
    append,
)  # fmt: skip
from specjax.types import Draft
from specjax.verify import Judged, Verified, drafted


def commit(setup: Setup, state: State, draft: Draft, judged: Judged, verified: Verified) -> State:
    """Append the accepted drafts and the emitted token, cut at the first EOS or stop and at the budget, and set the cursor."""
    running_B, stop_B, accepted_B = state.finish_B == RUNNING, judged.stop_B, judged.accepted_B
    place_1M = jnp.arange(draft.token_BM.shape[1], dtype=jnp.int32)[None]
    drafts_BM = jnp.roll(along(draft.token_BM, judged.path_BM), -1, axis=1)
    block_BM = jnp.where(place_1M < accepted_B[:, None], drafts_BM, judged.emitted_B[:, None])
    known_B = _at(verified.usable_BM, stop_B)  # is there a law to emit from
    real_B = accepted_B + known_B.astype(jnp.int32)
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
        token_BS=append(state.token_BS, start_B, block_BM, count_B),
        cursor_B=cursor_B,
        finish_B=jnp.where(running_B, finish_B, state.finish_B).astype(jnp.int32),
        counts=_count(state.counts, running_B, draft, accepted_B, count_B),
    )
    if setup.stop is not None:
        last_B = _at(automaton_BM, jnp.maximum(count_B - 1, 0))
        state = state._replace(stop_B=jnp.where(count_B > 0, last_B, state.stop_B))
    if setup.logprobs:
        logits_BMV = verified.logits_BMV if draft.tree.chain else along(verified.logits_BMV, judged.path_BM)
        state = state._replace(logprob_BS=append(state.logprob_BS, start_B, _logprob(logits_BMV, block_BM), count_B))
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


def _count(counts: Counts, running_B, draft: Draft, accepted_B, count_B) -> Counts:
    kept_B = jnp.minimum(accepted_B, count_B)
    new = Counts(rounds_B=running_B.astype(jnp.int32), drafted_B=drafted(draft), accepted_B=kept_B, cut_B=accepted_B - kept_B)
    return jax.tree.map(lambda old, more: old + jnp.where(running_B, more, 0), counts, new)
