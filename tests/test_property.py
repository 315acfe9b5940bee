"""The compiled loop against the slow decoder on whatever hypothesis draws: tokens, finish reasons and counts, on the same coins.

A handful of `Shape`s fix what programs depend on; all else is numbers, drawn freely. Logits are multiples of a quarter and penalties are
powers of two or multiples of a quarter, so that sums are exact and ties are frequent. SPECJAX_EXAMPLES=2000 in the environment is the
large run, on other examples each time.
"""

from __future__ import annotations

import collections
import dataclasses
import math
import os

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from loop import Coins, Texts, UpAndDown

import specjax
from specjax import Lenient, Sampling, Speculative, reference, refill
from specjax.lengths import EVERYTHING, Confidence, Fixed, Heuristic
from specjax.models.toy import TableModel
from specjax.types import struct

LARGE = os.environ.get("SPECJAX_EXAMPLES")
TEXTS = [b"a", b"b", b"ab", b"", b"c", b"ba", b"aa", b"bca"]  # stops end inside tokens, span them, and pass through an empty one
EVERY = frozenset({"eos", "stop", "least", "forbidden", "penalties", "own", "logprobs"})


@dataclasses.dataclass(frozen=True)
class Shape:
    """What the compiled programs depend on."""

    drafter: str
    mode: str
    ladder: tuple[int, ...]
    rows: int
    order: int  # tokens that the target's law depends on; the draft's is one
    vocab: int
    length: str = "fixed"
    parts: frozenset[str] = EVERY
    batch: int | None = None  # rows decoded at a time, if refilled


SHAPES = {
    "plain": Shape("none", "greedy", (1,), 3, 2, 8),
    "ngram, greedy": Shape("ngram", "greedy", (1, 3, 6), 3, 1, 5),
    "model, greedy": Shape("model", "greedy", (1, 4), 4, 2, 5, "heuristic"),
    "model, greedy, refilled": Shape("model", "greedy", (4,), 4, 1, 8, "up and down", frozenset({"eos", "stop"}), batch=2),
    "model, coupled": Shape("model", "coupled", (6,), 4, 1, 8, "confidence"),
    "ngram, coupled": Shape("ngram", "coupled", (1, 4), 1, 2, 5, "up and down", EVERY - {"eos", "penalties"}),
    "model, p/q": Shape("model", "p/q", (1, 5), 3, 1, 5, "heuristic"),
    "ngram, lenient": Shape("ngram", "lenient", (3,), 4, 1, 8, "fixed", frozenset({"eos", "penalties"})),
}


@dataclasses.dataclass(frozen=True)
class Case:
    """Numbers. `how` and `draft_how` are the sampling of target and draft."""

    seed: int
    target: np.ndarray
    draft: np.ndarray
    prompts: list[list[int]]
    budgets: list[int]
    ids: list[int]
    k: int
    start: int
    threshold: float
    per_match: float
    lenience: float
    how: dict
    draft_how: dict
    eos: list[int]
    stop: list[str]
    least: int
    forbidden: list[int]
    cost: float


@struct
class Tired:
    """A user's processor: the newest token costs something if it is said again."""

    cost: float

    def __call__(self, logits_V, path):
        return logits_V.at[path.token_S[path.length - 1]].add(-self.cost)


def table(seed: int, order: int, vocab: int, scale: int, near: np.ndarray | None = None, share: float = 1.0) -> np.ndarray:
    """Logits, some of them as good as minus infinity; with `near`, a `share` of the rows is new and the others are its."""
    rng = np.random.default_rng(seed)
    logits = rng.integers(-8, 9, (vocab,) * (order + 1)) / 4 * scale
    logits = np.where(rng.random(logits.shape) < 0.1, -64, logits).astype(np.float32)
    return logits if near is None else np.where(rng.random((vocab, 1)) < share, logits, near)


@st.composite
def samplings(draw, shape: Shape):
    among = lambda *values: draw(st.sampled_from(values))
    penalties = {"repetition": among(1.0, 1.0, 2.0, 0.5), "presence": among(0.0, 0.0, 0.5, -1.0), "frequency": among(0.0, 0.0, 0.25, -0.5)}
    filters = {"temperature": among(1.0, 0.5, 1.3), "top_k": among(99, 1, 2, 3), "top_p": among(1.0, 0.9, 0.0), "min_p": among(0.0, 0.3)}
    return (penalties if "penalties" in shape.parts else {}) | ({} if shape.mode == "greedy" else filters)


@st.composite
def cases(draw, shape: Shape):
    token, scale, most = st.integers(0, shape.vocab - 1), draw(st.sampled_from([1, 2, 4])), shape.ladder[-1] - 1
    rows = lambda each, **options: draw(st.lists(each, min_size=shape.rows, max_size=shape.rows, **options))
    given_if = lambda part, value, default: draw(value) if part in shape.parts else default
    some = lambda each, most: st.lists(each, min_size=1, max_size=most, unique=True)
    target = table(draw(st.integers(0, 999)), shape.order, shape.vocab, scale)
    how = draw(samplings(shape))
    near = target.reshape(-1, shape.vocab, shape.vocab)[0]  # right where the target saw token 0 before
    return Case(
        seed=draw(st.integers(0, 2**32 - 1)),
        target=target,
        draft=table(draw(st.integers(0, 999)), 1, shape.vocab, scale, near, draw(st.sampled_from([0.0, 0.3, 1.0]))),
        prompts=rows(st.lists(token, min_size=1, max_size=12)),
        budgets=rows(st.integers(0, 16) | st.just(16)),
        ids=rows(st.integers(0, 2**32 - 1), unique=True),
        k=draw(st.sampled_from([*range(most + 1), EVERYTHING])),
        start=draw(st.integers(1, 6)),
        threshold=draw(st.sampled_from([0.0, 0.37, 0.61, 0.83])),  # no law of these tables has one of them as its largest number
        per_match=draw(st.sampled_from([math.inf, 1.0, 0.5])),
        lenience=draw(st.sampled_from([1.0, 0.5, 0.25])),
        how=how,
        draft_how=how if draw(st.booleans()) else draw(samplings(shape)),
        eos=given_if("eos", some(token, 2), []),
        stop=given_if("stop", some(st.text("abc", min_size=2, max_size=4), 4), []),
        least=given_if("least", st.integers(1, 8), 0),
        forbidden=given_if("forbidden", some(token, 2), []),
        cost=given_if("own", st.sampled_from([0.0, 0.5, -1.0]), 0.0),
    )


# ---------------------------------------------------------------- the loop


TOKENIZERS = {vocab: Texts(TEXTS[:vocab]) for vocab in (5, 8)}


def decoder(shape: Shape, case: Case) -> specjax.Decoder:
    most = shape.ladder[-1] - 1
    target = specjax.LM(TableModel(shape.vocab, shape.order), case.target, TOKENIZERS[shape.vocab], "table")
    coupled = shape.mode == "coupled"
    return specjax.Decoder(
        target,
        drafter={
            "none": None,
            "ngram": specjax.NGram(most=most, max_n=3, min_n=1, per_match=case.per_match),
            "model": specjax.ModelDrafter(model=TableModel(shape.vocab), params=case.draft, most=most),
        }[shape.drafter],
        rule={"p/q": Speculative(), "lenient": Lenient(lenience=case.lenience)}.get(shape.mode),
        length={
            "fixed": Fixed(k=case.k),
            "confidence": Confidence(threshold=case.threshold),
            "heuristic": Heuristic(start=case.start),
            "up and down": UpAndDown(),
        }[shape.length],
        ladder=shape.ladder,
        sampling=Sampling(coupled=coupled, **case.how),
        draft_sampling=Sampling(coupled=coupled, **case.draft_how),
        eos=(case.eos * 3)[:3],
        stop=case.stop,
        min_new_tokens=case.least,
        forbidden=case.forbidden,
        processors=[Tired(cost=case.cost)] if "own" in shape.parts else (),
        logprobs="logprobs" in shape.parts,
        seed=case.seed,
    )  # fmt: skip


def decode(shape: Shape, case: Case) -> specjax.Output:
    loop = decoder(shape, case)
    if shape.batch:
        return refill.decode_together(loop, case.prompts, case.budgets, case.ids, shape.batch)
    state = loop.generate(loop.prefill(loop.start(case.prompts, case.budgets, case.ids)))
    out = loop.output(state)
    for row, (prompt, said) in enumerate(zip(case.prompts, out.token_ids, strict=True)):
        whole = [*prompt, *said]
        assert state.cursor_B[row] == len(whole) - 1
        np.testing.assert_array_equal(state.cache[row, : len(whole) - 1], whole[:-1])
    return out


def row_of(out: specjax.Output, row: int) -> reference.Decoded:
    counts = [int(out.counts[name][row]) for name in ("drafted", "accepted", "rejected", "cut", "passes")]
    assert out.trace.committed_BN[row].sum() == len(out.token_ids[row])
    return reference.Decoded(tuple(out.token_ids[row]), out.finish_reasons[row], *counts)


# ---------------------------------------------------------------- the oracle


def law_of(case: Case, logits: np.ndarray, how: dict, prompt: int):
    """The law after a context whose first `prompt` tokens were given."""
    how = {name: float(np.float32(x)) if name != "top_k" else x for name, x in how.items()}
    penalties = {name: how.pop(name) for name in ("repetition", "presence", "frequency") if name in how}

    def law(context):
        order = logits.ndim - 1
        before = (*[0] * order, *context)[-order:]
        logits_V = reference.processed(
            logits[before], context, prompt, forbidden=case.forbidden, eos=case.eos, least=case.least, **penalties
        )  # fmt: skip
        logits_V[context[-1]] -= case.cost
        return reference.law(logits_V, **({"temperature": 0} | how))

    return law


def draft_of(shape: Shape, case: Case, prompt: int):
    most = shape.ladder[-1] - 1
    q = law_of(case, case.draft, case.draft_how, prompt)

    def look_up(committed, drafted):
        start, follow, n = reference.lookup(committed, 1, 3)
        offer = min(follow, most, case.per_match * n if n else 0)
        return reference.one_hot(committed[start + len(drafted)], shape.vocab) if len(drafted) + 1 <= offer else None

    def model(committed, drafted):
        law = q(committed + drafted)
        return law if shape.length != "confidence" or law.max() >= case.threshold else None

    return {"none": lambda *_: None, "ngram": look_up, "model": model}[shape.drafter]


def length_of(shape: Shape, case: Case):
    most = shape.ladder[-1] - 1

    def heuristic(rounds):
        k = min(case.start, most)
        for drafted, accepted in rounds:
            if drafted:
                k = min(k + 2, most) if accepted == drafted else max(k - 1, 1)
        return k

    def up_and_down(rounds):
        k = 1
        for drafted, accepted in rounds:
            k = min(k + 1, 3) if accepted == drafted else max(k - 1, 1)
        return k

    return {"fixed": min(case.k, most), "confidence": most, "heuristic": heuristic, "up and down": up_and_down}[shape.length]


def oracle(shape: Shape, case: Case, row: int) -> reference.Decoded:
    prompt, budget = tuple(case.prompts[row]), case.budgets[row]
    rule = {"p/q": reference.speculative, "lenient": reference.lenient(case.lenience)}.get(shape.mode, reference.greedy)
    target, coins = law_of(case, case.target, case.how, len(prompt)), Coins(case.seed, case.ids[row], shape.vocab)
    stop = reference.stop_on(TEXTS, [s.encode() for s in case.stop], case.least)
    out = reference.speculative_decode(
        target, draft_of(shape, case, len(prompt)), prompt, budget, case.eos, length_of(shape, case), rule, coins,
        coupled=shape.mode == "coupled", stop=stop,
    )  # fmt: skip
    if rule is reference.greedy:
        choose = {"greedy": lambda p, at: int(np.argmax(p)), "coupled": lambda p, at: reference.pick(p, coins("noise", at))}[shape.mode]
        plain = reference.plain(target, prompt, budget, case.eos, choose, stop)
        assert (out.tokens, out.finish) == (plain.tokens, plain.finish)
    return out


def logprobs(case: Case, row: int, said) -> np.ndarray:
    """log p of each token in the target's own law."""
    order, whole = case.target.ndim - 1, (*[0] * case.target.ndim, *case.prompts[row], *said)
    ends = range(len(whole) - len(said), len(whole))
    return np.array([np.log(reference.law(case.target[whole[end - order : end]])[whole[end]]) for end in ends])


# ---------------------------------------------------------------- the property


@pytest.mark.parametrize("name", SHAPES)
def test_tokens_finish_reasons_and_counts_are_the_oracles(name):
    shape, seen = SHAPES[name], collections.Counter()

    @settings(
        max_examples=math.ceil(int(LARGE or 160) / len(SHAPES)), derandomize=not LARGE, deadline=None, database=None,
        phases=[Phase.generate, Phase.shrink], suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(cases(shape))
    def check(case):
        out = decode(shape, case)
        for row in range(shape.rows):
            right = oracle(shape, case, row)
            assert row_of(out, row) == right
            if out.logprobs:
                np.testing.assert_allclose(out.logprobs[row], logprobs(case, row, right.tokens), atol=1e-4)
            seen.update([right.finish])
            seen.update(name for name in ("accepted", "rejected", "cut") if getattr(right, name))

    check()
    assert seen["length"] and seen["eos"] + seen["stop"]  # the examples showed every kind of end,
    assert shape.drafter == "none" or (seen["accepted"] and seen["rejected"])  # and drafts of both kinds
