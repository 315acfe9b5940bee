"""The law of the compiled loop itself, draws and keys included: real rows over at least three rounds against exact enumeration.

A rule may be right and the loop around it wrong: a coin that serves two draws, or draft noise that an earlier round has looked at, shows
only where draws are made. The latter shows only under a policy that reads what was discarded, so each rule runs under a fixed length and
under one that reads overlaps. Everything is compared at a false alarm in a million, and the rows are the same in every run.
"""

from __future__ import annotations

import collections
import concurrent.futures
import functools
import itertools
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
from scipy import special

from specjax import Decoder, ModelDrafter, Sampling, drafters, shapes
from specjax.certify.chi_squared import p_value
from specjax.certify.law import exact_law
from specjax.certify.verdict import Verdict
from specjax.drafters import NoDraft
from specjax.lm import LM
from specjax.models import toy
from specjax.state import State, new_state
from specjax.types import Array, Rule, static, struct

TARGET = np.array([[0.45, 0.2, 0.35], [0.2, 0.5, 0.3], [0.1, 0.3, 0.6]])  # row x: the law after token x
DRAFT = np.array([[0.25, 0.5, 0.25], [0.2, 0.55, 0.25], [0.4, 0.4, 0.2]])  # overlaps .7, .95 and .6
MOST = 3  # depth of a draft
TREE = shapes.parse([(0,), (1,), (0, 0), (1, 0), (0, 0, 0)])
TOKENS = 2 * (MOST + 1) + 1  # at least three rounds
RUN = 4  # tokens in a row whose joint law is compared wherever they stand
FALSE_ALARM = 1e-6
CHUNK = 32  # small buffers: most of the time goes to memory


def check(rule: Rule, rows: int = 40_000) -> Verdict:
    """Certify the loop around an exact rule, on a table model: the law of nine tokens is the target's, and as many drafts are accepted as
    `exact_law` says. A rule that needs one-hot laws must give plain decoding's tokens instead.

    Raises:
      ValueError: the rule does not claim to be exact.
    """
    if not rule.exact:
        raise ValueError(f"rule {rule.name} is not exact: the loop is certified around exact rules")
    return _equal_to_plain(rule) if rule.one_hot_only else _law_of_plain(rule, rows)


@struct
class Reading:
    """Drafts all it can, but nothing in the round after one whose laws overlapped less than `least` at `node`, kept or not; 0: never."""

    least: float | Array
    node: int = static()
    name = "reading"

    def init(self, batch):
        return jnp.zeros(batch, bool)

    def choose(self, aside_B, offer_B):
        return jnp.where(aside_B, 0, offer_B)

    def keep_going(self, aside_B, q_BV, depth):
        return jnp.ones(q_BV.shape[0], bool)

    def observe(self, aside_B, verdict):
        return (verdict.drafted_B == MOST) & (verdict.overlap_BM[:, self.node] < self.least)


POLICIES = {"fixed": 0.0, "adaptive": 0.825}  # stands aside after two tokens of three


# ---------------------------------------------------------------- rows of the loop


def lm(law, order: int = 1) -> LM:
    """A language model from a table of laws."""
    model, params = toy.table(law, order)
    return LM(model, params, None, "table")


def runs(decoder: Decoder, tokens: int, rows: int, batch: int = 10_000) -> Iterator[State]:
    """The final states of so many rows, a batch at a time, each row with an id of its own.

    Batches are ragged: prompts of 1, 2 and 3 tokens, all of which end with token 0, and budgets of `tokens` or one more.
    """
    width = 3 + tokens + 1 + decoder.setup.ladder[-1]
    row_B = np.arange(batch, dtype=np.int32)
    token_BS = np.zeros((batch, -(-width // decoder.setup.chunk) * decoder.setup.chunk), np.int32)
    token_BS[row_B % 3 > 0, 0] = 1  # not the last token
    for first in range(0, rows, batch):
        given = map(jnp.asarray, (token_BS, 1 + row_B % 3, tokens + row_B % 2, (first + row_B).astype(np.uint32)))
        yield decoder.generate(decoder.prefill(new_state(decoder.setup, *given, None, tokens + 1, decoder.target.dtype)))


def new_tokens(state: State, tokens: int) -> np.ndarray:
    """The first new tokens of each row, [B, tokens]."""
    place_BN = np.asarray(state.prompt_B)[:, None] + np.arange(tokens)
    return np.take_along_axis(np.asarray(state.token_BS), place_BN, axis=1)


def frequencies(states, tokens: int, vocab: int) -> np.ndarray:
    """How often each sequence of new tokens came out, [V] * tokens."""
    count = np.zeros((vocab,) * tokens, np.int64)
    for state in states:
        np.add.at(count, tuple(new_tokens(state, tokens).T), 1)
    return count


def plain_law(law, tokens: int) -> np.ndarray:
    """The law of the tokens after token 0 when they are drawn one by one, [V] * tokens."""
    joint = law[0]
    for _ in range(tokens - 1):
        joint = joint[..., None] * law
    return joint


def fit(count, law, run: int = RUN) -> float:
    """p-value of the counts under the law: the least of those of the whole and of every run of `run` tokens, times their number."""
    law, tokens = law * count.sum(), range(count.ndim)
    others = [tuple(t for t in tokens if not first <= t < first + run) for first in range(count.ndim - run + 1)]
    values = [p_value(*(x.sum(axis=axes).reshape(1, -1) for x in (count, law))) for axes in {(), *others}]
    return min(1.0, len(values) * min(values))


# ---------------------------------------------------------------- exact rules: the law


def _law_of_plain(rule: Rule, rows: int) -> Verdict:
    numbers = _each_way(functools.partial(_law_of_way, rule, rows), rule, lm(DRAFT))
    what, least = min(numbers.items(), key=lambda item: item[1])
    passed = least >= FALSE_ALARM
    why = f"{what} is not what plain decoding or exact_law gives: p-value {least:.1e} over {rows} rows of {TOKENS} tokens"
    return Verdict(f"loop {rule.name}", passed, "" if passed else why, numbers)


def _law_of_way(rule: Rule, rows: int, way: str, drafter) -> dict[str, float]:
    """p-values of one way of drawing."""
    values, law, target = {}, plain_law(TARGET, TOKENS), lm(TARGET)
    for policy in POLICIES:
        decoder = _decoder(rule, target, drafter, policy, Sampling(temperature=1.0))
        states = list(map(_keep, runs(decoder, TOKENS, rows)))
        values[f"{way}, {policy}: law"] = fit(frequencies(states, TOKENS, len(TARGET)), law)
        if policy == "fixed":
            values[f"{way}, {policy}: accepted"] = _as_expected(states, _expected(rule, way))
    return values


def _each_way(measure, rule: Rule, draft: LM) -> dict:
    """What is measured for each way of drawing, two at a time: most of the time is compilation, on one core each."""
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        return dict(collections.ChainMap(*pool.map(lambda case: measure(*case), _drafters(rule, draft))))


def _drafters(rule: Rule, draft: LM):
    """(how its children are drawn, a drafter) for each way that the rule judges; chains for a rule that judges no trees."""
    if not rule.trees:
        yield "chain", ModelDrafter(model=draft.model, params=draft.params, most=MOST, chunk=CHUNK)
        return
    for drawn in rule.drawn:
        yield drawn, drafters.TreeDrafter(model=draft.model, params=draft.params, shape=TREE, drawn=drawn, chunk=CHUNK)


def _decoder(rule: Rule, target: LM, drafter, policy: str, sampling: Sampling) -> Decoder:
    node = 3 if rule.trees else 2  # the first one at depth 2
    length = Reading(least=POLICIES[policy], node=node)
    ladder = (getattr(drafter, "nodes", drafter.most + 1),) if rule.trees else None  # one width of trees: they take long to compile
    return Decoder(target, drafter=drafter, rule=rule, length=length, sampling=sampling, ladder=ladder, chunk=CHUNK)


def _keep(state: State) -> State:
    """What is read of a state, on the host."""
    return jax.device_get(state._replace(cache=None, drafter=None, length=None))


def _expected(rule: Rule, way: str) -> np.ndarray:
    """Mean accepted drafts of a round, by the token of its root."""
    after = lambda law, root: lambda context: law[(root, *context)[-1]]
    how = {} if way == "chain" else {"tree": TREE, "drawn": way}
    each = [exact_law(rule, after(TARGET, root), after(DRAFT, root), MOST, **how) for root in range(len(TARGET))]
    return np.asarray([exact.expected_tokens - 1 for exact in each])


def _as_expected(states: list[State], expected_V) -> float:
    """p-value of the accepted drafts, and of what the trace says of their mean, in rounds that had room for a whole draft."""
    drawn, told = zip(*(_excess(state, expected_V) for state in states), strict=True)
    return min(1.0, 2 * min(map(_centred, map(np.concatenate, (drawn, told)))))


def _excess(state: State, expected_V):
    """(accepted drafts, their mean by the trace), less what is expected after the token of the root: one entry a round."""
    trace, round_1N = state.trace, np.arange(state.trace.root_BN.shape[1])[None]
    room_BN = state.limit_B[:, None] - trace.root_BN - 2 >= MOST
    whole_BN = room_BN & (round_1N < state.counts.rounds_B[:, None])
    expected_BN = expected_V[np.take_along_axis(state.token_BS, trace.root_BN, axis=1)]
    return (trace.committed_BN - 1 - expected_BN)[whole_BN], (trace.expected_BN - expected_BN)[whole_BN]


def _centred(x) -> float:
    """p-value of a mean of zero, which rounding may miss by 1e-5."""
    if abs(x.mean()) < 1e-5:
        return 1.0
    return float(2 * special.ndtr(-abs(x.sum()) / np.sqrt(np.sum(x**2))))


# ---------------------------------------------------------------- rules for one-hot laws: the tokens


CERTAIN = {"greedy": Sampling(), "coupled": Sampling(temperature=1.0, coupled=True)}
ROWS = 30


def _equal_to_plain(rule: Rule, tables: int = 4) -> Verdict:
    """The tokens of plain decoding, greedy and coupled, on random tables."""
    numbers = collections.Counter()
    for seed in range(tables):
        target, draft = _pair(seed)
        numbers.update(_each_way(functools.partial(_rows_that_differ, rule, target), rule, draft))
    worst, count = max(numbers.items(), key=lambda item: item[1])
    why = f"{worst}: {count} of {ROWS * tables} rows have other tokens than plain decoding" if count else ""
    return Verdict(f"loop {rule.name}", not count, why, dict(numbers))


def _rows_that_differ(rule: Rule, target: LM, way: str, drafter) -> dict[str, int]:
    counts = {}
    for (what, sampling), policy in itertools.product(CERTAIN.items(), POLICIES):
        if sampling.coupled and way == "iid":  # equal noise, equal siblings: refused
            continue
        one, plain = (_tokens(_decoder(rule, target, beside, policy, sampling)) for beside in (drafter, NoDraft()))
        counts[f"{way}, {policy}, {what}"] = int((one != plain).any(axis=1).sum())
    return counts


def _pair(seed: int, vocab: int = 7) -> tuple[LM, LM]:
    """Random tables of the last two tokens, and a draft whose best token is often the target's."""
    rng = np.random.default_rng(seed)
    law, noise = rng.dirichlet([0.5] * vocab, size=(2, vocab, vocab))
    return lm(law, 2), lm((law + noise) / 2, 2)


def _tokens(decoder: Decoder, tokens: int = 24) -> np.ndarray:
    [state] = runs(decoder, tokens, ROWS, ROWS)
    return new_tokens(state, tokens)
