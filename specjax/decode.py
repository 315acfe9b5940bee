"""One round of speculative decoding, and its two drivers: `generate`, a compiled loop, and `stream`, the same round from the host.

The cache holds every committed token except the newest, the root of the next round, which stands at token_BS[b, cursor_B[b]]. To roll back
is to set the cursor. Plain decoding is this loop with a drafter that offers nothing.

A row's number of drafts is its own: min(policy, offer, budget left - 1). Nothing a row does depends on the rung or a clock,
nor on the batch, unless its length policy looks there (`goodput`, `batch_table`).
"""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp

from specjax import ingest, processors, sampling
from specjax.ancestry import along
from specjax.commit import commit
from specjax.sampling import DRAFT, NOISE
from specjax.sharding import pin
from specjax.state import RUNNING, Setup, State, pinned
from specjax.trace import record, row_of, verdict
from specjax.types import Draft, View
from specjax.verify import cut_unknown, judge, path_to, paths_to, verify


def prefill(setup: Setup, params, state: State) -> State:
    """Feed every prompt but its newest token, and let the drafter take in the prompt: one program for all rules and samplings."""
    fed = params, state.cache, state.token_BS, state.cursor_B
    cache, drafter = feed_prompts(setup.model, setup.chunk, setup.drafter, *fed, layouts=setup.layouts)
    return state._replace(cache=cache, drafter=drafter)


@functools.partial(jax.jit, static_argnames=("model", "chunk", "layouts"), donate_argnames="cache")
def feed_prompts(model, chunk, drafter, params, cache, token_BS, cursor_B, layouts=(None, None)):
    """(cache, drafter's state) after tokens 0 .. cursor of each row."""
    cache, features = ingest.prefill(model, params, cache, token_BS, cursor_B, chunk, drafter.taps)
    view = View(params, cache, token_BS, cursor_B)
    state = drafter.init(drafter.params, view)
    state = drafter.observe(drafter.params, state, view, features) if drafter.taps else state
    return tuple(pin(layout, len(cursor_B), x) for layout, x in zip(layouts, (cache, state), strict=True))


@functools.partial(jax.jit, donate_argnames="state")
def generate(setup: Setup, params, state: State, until) -> State:
    """Rounds until at most `until` rows are running, as one program."""
    more = lambda s: jnp.sum(s.finish_B == RUNNING, dtype=jnp.int32) > until
    return jax.lax.while_loop(more, functools.partial(decode_round, setup, params), state)


@functools.partial(jax.jit, static_argnames="layouts", donate_argnames="state")
def put_row(state: State, one: State, row, layouts=(None, None)) -> State:
    """The state with row `row` replaced by that of a state of one row, after its prefill."""

    def put(old, new):  # reshape, because a cache leaves out axes of size 1
        at = (row, *(jnp.zeros((), row.dtype),) * (old.ndim - 1))
        return jax.lax.dynamic_update_slice(old, new.reshape(1, *old.shape[1:]), at)

    kept = {"trace": state.trace, "turn": state.turn}
    rest = jax.tree.map(put, state._replace(trace=None, turn=None), one._replace(trace=None, turn=None, began_B=state.turn[None]))
    return pinned(layouts, rest._replace(**kept))


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
    _check_nodes(setup, draft)
    asked_BM = draft.tree.valid_M & (draft.tree.depth_M <= ask_B[:, None])  # whatever a drafter does, no row passes its budget
    valid_BM = asked_BM.at[:, 0].set(True)  # and the root is there
    draft = draft._replace(tree=dataclasses.replace(draft.tree, valid_M=valid_BM))
    state = state._replace(cache=view.cache, drafter=drafter)
    if len(setup.ladder) == 1:
        return pinned(setup.layouts, _finish_round(setup, params, draft, setup.ladder[0], state))
    node_1M = jnp.arange(valid_BM.shape[1], dtype=jnp.int32)[None]
    needed = jnp.max(jnp.where(valid_BM, node_1M, 0)) + 1
    below = 0
    for width in setup.ladder:
        turns = (needed > below) & (needed <= width)
        body = functools.partial(_finish_round, setup, params, draft, width)
        _, state = jax.lax.while_loop(lambda c: c[0], lambda c, body=body: (jnp.zeros((), bool), body(c[1])), (turns, state))
        below = width
    return pinned(setup.layouts, state)


def _check_nodes(setup: Setup, draft: Draft) -> None:
    """While the loop is compiled: no rung would hold a larger draft, and the loop never end."""
    nodes, widest = draft.token_BM.shape[1], setup.ladder[-1]
    if nodes > widest:
        name = getattr(setup.drafter, "name", type(setup.drafter).__name__)
        raise ValueError(f"drafter={name} made a draft of {nodes} nodes, its `nodes` (without it `most` + 1) says {widest}")


def _ask(setup: Setup, state: State):
    """ask_B: what the policy wants of the offer, which is never more than budget left - 1 or the deepest draft, and of finished rows 0."""
    left_B = state.limit_B - state.cursor_B - 1
    offer_B = jnp.minimum(jnp.minimum(setup.drafter.offer(state.drafter), left_B - 1), setup.drafter.most)
    offer_B = jnp.where(state.finish_B == RUNNING, jnp.maximum(offer_B, 0), 0)
    return jnp.clip(setup.length.choose(state.length, offer_B), 0, offer_B)


class Draw:
    """The loop's coin as a drafter sees it (`types.Draw`). Keyed by the root's position and the node: noise that a rule has looked at is
    never drawn again. Under coupled sampling it is the position's own noise, which the target uses too."""

    def __init__(self, setup: Setup, state: State, ids_U=None):
        self.setup, self.state, self.ids_U = setup, state, ids_U

    def within(self, ids_U):
        return Draw(self.setup, self.state, ids_U)

    def spread(self, q_BMV, token_BM):
        if self.ids_U is None:
            return q_BMV
        vocab = self.setup.model.vocab
        nothing_BMV = jnp.zeros((*q_BMV.shape[:2], vocab), q_BMV.dtype)
        if self.certain:  # quicker than a scatter; what was no law stays none
            return sampling.one_hot(jnp.roll(token_BM, -1, axis=1), nothing_BMV) + 0 * q_BMV[..., :1]
        return nothing_BMV.at[:, :, self.ids_U].set(q_BMV)

    @property
    def certain(self) -> bool:
        """Whether nothing is left to chance, so that noise is spared."""
        return self.setup.sampling.temperature is None and self.setup.draft_sampling.temperature is None

    def law(self, logits_BV, token_BM, depth):
        path = path_to(self.state, token_BM, jnp.broadcast_to(depth, (token_BM.shape[0], 1)))
        return self._law(logits_BV[:, None], path, self.setup.draft_sampling)[:, 0]

    def laws(self, logits_BTV, token_BTM, depth, ranked=False):
        path = paths_to(self.state, token_BTM, jnp.broadcast_to(depth, token_BTM.shape[:2]))
        how = self.setup.draft_sampling
        return self._law(logits_BTV, path, sampling.Sampling(**how.penalties, temperature=1.0) if ranked else how)

    def _law(self, logits_BTV, path, how):
        setup, ids_U, logits_BTV = self.setup, self.ids_U, logits_BTV[..., : self.setup.model.vocab]
        if alone := ids_U is not None and (setup.processors or how.penalties):  # these speak of the target's ids
            lowest = jnp.full((*logits_BTV.shape[:-1], setup.model.vocab), jnp.finfo(logits_BTV.dtype).min)
            logits_BTV = lowest.at[..., ids_U].set(logits_BTV)
        law_BTV, usable_BT = processors.law(setup.processors, how, logits_BTV, path)
        if alone:  # a processor may have given mass to what the draft cannot say
            law_BTV = law_BTV[..., ids_U]
            mass_BT1 = jnp.sum(law_BTV, axis=-1, keepdims=True)
            first_V = jnp.arange(len(ids_U), dtype=jnp.int32) == 0  # where it can say nothing, any law: all of it is refused
            law_BTV = jnp.where(mass_BT1 > 0, law_BTV / jnp.where(mass_BT1 > 0, mass_BT1, 1), first_V[None, None].astype(law_BTV.dtype))
        return jnp.where(usable_BT[..., None], law_BTV, jnp.nan)  # the loop names a draft without a law

    def __call__(self, law_BV, node, depth=None):
        return self._named(sampling.first_argmax(self._scores(law_BV, node, depth)))

    def several(self, law_BV, node, count, depth):
        return self._named(jax.lax.top_k(self._scores(law_BV, node, depth), count)[1])

    def _named(self, token):
        """The target's ids of what was drawn."""
        return token if self.ids_U is None else self.ids_U[token]

    def _scores(self, law_BV, node, depth):
        """What the best token of is drawn: the law over noise of its place, [B, V] or for several nodes [B, T, V]."""
        setup, state, lone = self.setup, self.state, law_BV.ndim == 2
        row = (slice(None), *(None,) * (not lone))
        if setup.sampling.coupled:
            place = (state.cursor_B[row] + (node if depth is None else depth),)
            purpose = NOISE
        elif self.certain:
            return law_BV
        else:
            purpose, place = DRAFT, (state.cursor_B[row], node if lone else node[None])
        keys = jnp.broadcast_to(sampling.key(setup.seed, purpose, state.id_B[row], *place), law_BV.shape[:-1])
        if self.ids_U is None or not setup.sampling.coupled:
            return sampling.scores(keys, law_BV)
        return law_BV / sampling.noise(keys, setup.model.vocab)[..., self.ids_U].astype(law_BV.dtype)  # the target's noise, by its ids

    def keep_going(self, q_BV, depth):
        return self.setup.length.keep_going(self.state.length, q_BV, depth)


def _finish_round(setup: Setup, params, draft: Draft, width: int, state: State) -> State:
    """Verify, judge, commit and roll back at one width."""
    draft = jax.tree.map(lambda x: x[:, :width], draft)
    verified, features, cache = verify(setup, params, draft, state)
    known = cut_unknown(draft, verified.usable_BM)
    judged = judge(setup, state, known, verified.p_BMV)
    before = state
    if not draft.tree.chain and width > 1:
        cache = setup.model.gather(cache, state.cursor_B, judged.path_BM, width)
        features = features and jax.tree.map(lambda x: along(x, judged.path_BM), features)
    state = commit(setup, state._replace(cache=cache), draft, judged, verified)
    view = View(params, cache, state.token_BS, state.cursor_B)
    drafter = setup.drafter.observe(setup.drafter.params, state.drafter, view, features)
    row = row_of(setup, draft, known, judged, verified.p_BMV, before.cursor_B, state.cursor_B)
    length = setup.length.observe(state.length, verdict(draft, judged, row, setup.ladder[-1], setup.drafter.most))
    return record(state._replace(drafter=drafter, length=length), row, before.finish_B == RUNNING)
