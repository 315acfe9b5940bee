"""What a drafter owes the loop: q is the law it draws from, and what it remembers is what a fresh start would know.

A real loop runs over random texts with a rule that ends anywhere in the draft, so that every acceptance comes up. Before each round the
drafter proposes twice with the same coins, from its own state and from a fresh `init` on the committed text: both must be equal. Each
drafted token is then a draw from the law that the draft reports; where it stands in that law's order is compared with it by chi-squared,
each node for itself, as a whole and given the token of each node before it.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from specjax import Decoder, Sampling, decode
from specjax.certify.tally import Tally, child_laws, elders
from specjax.certify.verdict import Verdict
from specjax.lm import LM
from specjax.state import RUNNING, Setup, State, Trace
from specjax.types import Array, Draft, Drafter, Law, View, struct

CLOSE = 1e-5  # in q, between a state and a fresh one
BUDGET = 40


def check(drafter: Drafter, target: LM, *, sampling=None, rows: int = 256, rounds: int = 8, seed: int = 0) -> Verdict:
    """Certify a drafter beside a target of its vocabulary, under this sampling (default: temperature 1).

    Of the first fault it finds, one line. What is drawn is judged at a false alarm in a million, and is the same in every run.
    """
    nodes = getattr(drafter, "nodes", drafter.most + 1)
    sampling = sampling or Sampling(temperature=1.0)
    decoder = Decoder(target, drafter=drafter, rule=Anywhere(), length=Wandering(), sampling=sampling, ladder=(nodes,), seed=seed)
    prompts, tally = _prompts(rows, target.model.vocab), Tally(nodes)
    why, trace = _watch(decoder, prompts, rounds, tally)
    why = why or tally.fault() or _alone(decoder, prompts, rounds, trace)
    numbers = {"draws": tally.draws, "p_value": tally.p_value()}
    return Verdict(f"drafter {getattr(drafter, 'name', type(drafter).__name__)}", not why, why, numbers)


def _watch(decoder: Decoder, prompts, rounds: int, tally: Tally) -> tuple[str, Trace]:
    """The first fault, and the trace of so many rounds; what was drawn goes into the tally."""
    state = decoder.prefill(decoder.start(prompts, BUDGET))
    for turn in range(rounds):
        seen = _twice(decoder, state, _wish(turn, len(prompts), decoder.setup.drafter.most))
        if why := next(faults(seen, decoder.target.model.vocab), ""):
            return f"round {turn + 1}: {why}", state.trace
        tally.add(seen.draft)
        state = decoder.step(state)
    return "", jax.device_get(state.trace)


def _alone(decoder: Decoder, prompts, rounds: int, batch: Trace, rows: int = 3) -> str:
    """Why one of the first rows is drafted otherwise while all others have finished, '' where none is."""
    for row in range(rows):
        state = decoder.prefill(decoder.start(prompts, np.where(np.arange(len(prompts)) == row, BUDGET, 0)))
        for _ in range(rounds):
            state = decoder.step(state)
        for one, other in ((batch.drafted_BN, state.trace.drafted_BN), (batch.token_BNM, state.trace.token_BNM)):
            if (one[row] != np.asarray(other[row])).any():
                return f"row {row} is drafted otherwise alone than in a batch"
    return ""


# ---------------------------------------------------------------- a loop in which everything happens


@struct
class Anywhere:
    """A rule that ends the round at any node, each as likely as the others."""

    name = "anywhere"
    exact = False
    one_hot_only = False
    trees = True
    drawn = ("iid", "without_replacement", "fixed")

    def __call__(self, tree, token_M, p_MV, q_MV):
        valid_M = tree.valid_M.astype(p_MV.dtype)
        return Law(valid_M / jnp.sum(valid_M), p_MV)


@struct
class Wandering:
    """Asks for some, all or none of what is offered, by how many tokens the row has; in some rounds all rows stand aside."""

    name = "wandering"

    def init(self, batch):
        return jnp.zeros((batch, 2), jnp.int32)  # tokens and rounds

    def choose(self, so_far_B2, offer_B):
        tokens_B, rounds_B = so_far_B2.T
        return jnp.where(rounds_B % 4 >= 2, 0, jnp.minimum((tokens_B + 1) % (offer_B + 2), offer_B))

    def keep_going(self, so_far_B2, q_BV, depth):
        return jnp.ones(q_BV.shape[0], bool)

    def observe(self, so_far_B2, verdict):
        return so_far_B2 + jnp.stack([verdict.committed_B, jnp.ones_like(verdict.committed_B)], axis=1)


def _prompts(rows: int, vocab: int) -> list[list[int]]:
    """Ragged, and half of them repeat themselves."""
    rng = np.random.default_rng(0)
    prompts = [rng.integers(0, vocab, rng.integers(1, 9)).tolist() for _ in range(rows)]
    return [prompt * (1 + 2 * (row % 2)) for row, prompt in enumerate(prompts)]


def _wish(turn: int, rows: int, most: int) -> np.ndarray:
    """wish_B: up to `most` drafts, all of them most often."""
    return np.minimum(np.random.default_rng(turn).integers(0, most + 3, rows), most).astype(np.int32)


class Seen(NamedTuple):
    """What a drafter said before a round, and what it says from a fresh `init`."""

    root_B: Array
    ask_B: Array  # 0 for rows that have finished
    offer_B: Array
    fresh_offer_B: Array
    draft: Draft
    fresh: Draft


def _twice(decoder: Decoder, state: State, wish_B) -> Seen:
    setup, params = decoder.setup, decoder.target.params
    empty = jax.tree.map(jnp.zeros_like, state.cache)
    _, fresh = decode.feed_prompts(setup.model, setup.chunk, setup.drafter, params, empty, state.token_BS, state.cursor_B)
    running_B = np.asarray(state.finish_B) == RUNNING
    offer_B, fresh_offer_B = (np.where(running_B, setup.drafter.offer(mine), 0) for mine in (state.drafter, fresh))
    ask_B = np.minimum(wish_B, np.minimum(offer_B, fresh_offer_B))
    draft, other = (_propose(setup, params, state._replace(drafter=mine), ask_B) for mine in (state.drafter, fresh))
    return jax.device_get(Seen(_root(state), ask_B, offer_B, fresh_offer_B, draft, other))


def _root(state: State):
    return jnp.take_along_axis(state.token_BS, state.cursor_B[:, None], axis=1)[:, 0]


@jax.jit
def _propose(setup: Setup, params, state: State, ask_B) -> Draft:
    view = View(params, state.cache, state.token_BS, state.cursor_B)
    draft, _, _ = setup.drafter.propose(setup.drafter.params, state.drafter, view, _root(state), ask_B, decode.Draw(setup, state))
    parent_M = jnp.clip(draft.tree.parent_M, 0, draft.token_BM.shape[1] - 1)  # those of invalid nodes may be anything
    return draft._replace(tree=dataclasses.replace(draft.tree, parent_M=parent_M))


# ---------------------------------------------------------------- what a draft must be


def faults(seen: Seen, vocab: int):
    """Lines that say what is wrong, the gravest first."""
    (tree, token_BM, q_BMV), ask_B = seen.draft, seen.ask_B
    node_1M, valid_BM = np.arange(token_BM.shape[1])[None], tree.valid_M
    parent = lambda x_BM: np.take_along_axis(x_BM, tree.parent_M, axis=1)
    child_BM, orphan_BM = valid_BM & (node_1M > 0), ~parent(valid_BM) | (tree.parent_M >= node_1M)
    wrong = {
        "it drafts deeper than it was asked to": child_BM & (tree.depth_M > ask_B[:, None]),
        "node 0 is not the root": (node_1M == 0) & (~valid_BM | (token_BM != seen.root_B[:, None])),
        "a node is valid and its parent is not, or stands after it": child_BM & orphan_BM,
        "depth_M is not the parent's plus one": child_BM & (tree.depth_M != parent(tree.depth_M) + 1),
        "rank_M is not the place among the siblings": child_BM & (tree.rank_M != elders(tree).sum(-1)),
        "it drafts a token outside the vocabulary": child_BM & ((token_BM < 0) | (token_BM >= vocab)),
        "siblings are drawn 'fixed' and equal": (tree.drawn == "fixed") & np.any(elders(tree) & _same(token_BM), axis=-1),
    }
    yield from (f"{what}: {_first(place_BM)}" for what, place_BM in wrong.items() if place_BM.any())
    if (tree.drawn == "fixed") != (q_BMV is None):
        yield f"drawn={tree.drawn!r} and q is {'None' if q_BMV is None else 'a law'}: q is None where children are fixed, and only there"
    elif q_BMV is not None:
        yield from _law_faults(seen.draft, child_BM)
    yield from _stale(seen, child_BM)


def _same(token_BM):
    return token_BM[:, :, None] == token_BM[:, None, :]


def _first(place_BM) -> str:
    row, node = np.argwhere(place_BM)[0]
    return f"row {row}, node {node}"


def _law_faults(draft: Draft, child_BM):
    law_BMV = child_laws(draft)
    sum_BM = law_BMV.sum(axis=-1)
    if (wrong := child_BM & ~((law_BMV.min(axis=-1) >= 0) & (np.abs(sum_BM - 1) < 1e-3))).any():
        yield f"q of a drafted token is no law: {_first(wrong)}"
    elif (wrong := child_BM & (np.take_along_axis(law_BMV, draft.token_BM[..., None] * child_BM[..., None], -1)[..., 0] == 0)).any():
        yield f"it drafts a token to which q gives no probability: {_first(wrong)}"


def _stale(seen: Seen, child_BM):
    """Where the drafter's own state and a fresh one on the same text say different things."""
    if (other_B := seen.offer_B != seen.fresh_offer_B).any():
        row = int(np.argmax(other_B))
        yield f"its state is not that of a fresh init: row {row} offers {seen.offer_B[row]}, fresh {seen.fresh_offer_B[row]}"
    differ_BM = seen.draft.tree.valid_M != seen.fresh.tree.valid_M
    for one, other in ((x, y) for x, y in zip(*((d.token_BM, d.tree.parent_M) for d in (seen.draft, seen.fresh)), strict=True)):
        differ_BM = differ_BM | (child_BM & (one != other))
    if seen.draft.q_BMV is not None:
        far_BM = np.abs(child_laws(seen.draft) - child_laws(seen.fresh)).max(axis=-1)
        differ_BM = differ_BM | (child_BM & ~(far_BM < CLOSE))
    if differ_BM.any():
        yield f"its state is not that of a fresh init: the next draft differs at {_first(differ_BM)}"
