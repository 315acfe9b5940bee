"""The law of the loop itself, draws and keys included: 10^6 rows over several rounds against exact enumeration (chi-squared), and each
known mistake, planted, is told apart by the exact wrong law it gives."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from loop import UpAndDown, drafter, fixed, lm
from scipy import stats

import specjax
from specjax import Lenient, Sampling, reference, sampling
from specjax.types import struct

P, Q = np.array([0.3, 0.5, 0.2]), np.array([0.6, 0.3, 0.1])  # case B
TARGET = np.array([[0.3, 0.5, 0.2], [0.1, 0.2, 0.7], [0.55, 0.25, 0.2]])  # laws that depend on the last token
DRAFT = np.array([[0.6, 0.3, 0.1], [0.3, 0.3, 0.4], [0.2, 0.6, 0.2]])
SAMPLED = Sampling(temperature=1.0)


def frequencies(decoder, tokens, rows, batch=20_000):
    """How often each sequence of new tokens came out, over `rows` prompts with ids of their own; the prompt is token 0."""
    counts = np.zeros((3,) * tokens, np.int64)
    for first in range(0, rows, batch):
        state = decoder.prefill(decoder.start([[0]] * batch, tokens, ids=range(first, first + batch)))
        new = np.asarray(decoder.generate(state).token_BS[:, 1 : tokens + 1])
        np.add.at(counts, tuple(new.T), 1)
    return counts


def p_value(counts, law):
    """Of Pearson's chi-squared over the cells; those that expect fewer than ten are taken as one."""
    expected, counts = (law * counts.sum()).ravel(), counts.ravel()
    assert counts[expected == 0].sum() == 0
    few = expected < 10
    join = lambda cells: [*cells[~few], *([cells[few].sum()] if expected[few].sum() else [])]
    return stats.chisquare(join(counts), join(expected)).pvalue


def loop_law(rule, tokens, choose, observe, state, most=3):
    """The exact law of the first tokens of the loop: round after round, each with the drafts its policy asks for."""

    @functools.cache
    def rest(last, left, state):
        """Law of the next `left` tokens, [3] * left, at a round whose root is `last`."""
        law = np.zeros((3,) * left)
        k = min(choose(state), most, left - 1)
        for draft in itertools.product(range(3), repeat=k):
            before = (last, *draft)
            q = [DRAFT[b] for b in before[:-1]]
            chance = np.prod([q[i][x] for i, x in enumerate(draft)])
            stop_M, emit_MV = rule(draft, [TARGET[b] for b in before], q)
            for stop, emit in itertools.product(range(k + 1), range(3)):
                if (mass := chance * stop_M[stop] * emit_MV[stop][emit]) > 0:
                    after = rest(emit, left - stop - 1, observe(state, stop == k)) if left > stop + 1 else 1.0
                    law[(*draft[:stop], emit)] += mass * after
        return law

    return rest(0, tokens, state)


POLICIES = {
    "fixed": (fixed(2), lambda s: 2, lambda s, full: s, None),
    "adaptive": (UpAndDown(), lambda s: s, lambda s, full: min(max(s + 1 if full else s - 1, 1), 3), 1),
}


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("rule", ["speculative", "lenient"])
def test_law_of_the_loop_over_several_rounds(rule, policy):
    """7 tokens, which are at least three rounds at K = 2, and at 1, 2, 3; a million rows."""
    ours = specjax.Speculative() if rule == "speculative" else Lenient(lenience=0.5)
    oracle = reference.speculative if rule == "speculative" else reference.lenient(0.5)
    length, *model = POLICIES[policy]
    law = loop_law(oracle, 7, *model)
    if rule == "speculative":
        np.testing.assert_allclose(law, chain_law(7), atol=1e-12)
    decoder = specjax.Decoder(lm(TARGET), drafter=drafter(lm(DRAFT), 3), rule=ours, length=length, sampling=SAMPLED, ladder=(1, 3, 4))
    counts = frequencies(decoder, 7, 1_000_000)
    assert p_value(counts, law) > 1e-3
    if rule == "lenient":
        assert p_value(counts, chain_law(7)) < 1e-30  # lenience is not exact, and this test would see it


def chain_law(tokens):
    """The target's own law of the next tokens after token 0."""
    law = TARGET[0]
    for _ in range(tokens - 1):
        law = law[..., None] * TARGET
    return law


def first_token(decoder, rows=200_000):
    return frequencies(decoder, 2, rows).sum(axis=1) / rows


def one_round(rule=None, draft=None):
    """Case B, K = 1; two tokens, so that one is drafted."""
    return specjax.Decoder(lm(P), drafter=draft or drafter(lm(Q), 1), rule=rule, sampling=SAMPLED)


def close(law, wrong):
    """Within five standard deviations of 200,000 rows, and that far from the right law."""
    assert np.abs(law - wrong).max() < 0.006 < np.abs(law - P).max()


def test_the_right_law_of_one_round():
    assert np.abs(first_token(one_round()) - P).max() < 0.006


def test_trap_argmax_draft_scored_with_soft_q():
    class Argmax(specjax.ModelDrafter):
        def propose(self, params, state, view, root_B, ask_B, draw):
            draft, state, view = super().propose(params, state, view, root_B, ask_B, draw)
            token_BM = draft.token_BM.at[:, 1].set(sampling.first_argmax(draft.q_BMV[:, 0]))
            return draft._replace(token_BM=token_BM), state, view

    draft = drafter(lm(Q), 1)
    close(first_token(one_round(draft=struct(Argmax)(model=draft.model, params=draft.params, most=1))), [0.5, 1 / 3, 1 / 6])


def test_trap_resampling_from_p():
    @struct
    class FromP(specjax.Speculative):
        def __call__(self, tree, token_M, p_MV, q_MV):
            law = specjax.Speculative()(tree, token_M, p_MV, q_MV)
            return law._replace(emit_MV=p_MV)

    close(first_token(one_round(FromP())), [0.39, 0.45, 0.16])


def inverse(u_B, law_BV):
    return jnp.sum(jnp.cumsum(law_BV, axis=-1) < u_B[:, None], axis=-1).astype(jnp.int32)


@pytest.mark.parametrize(("shared", "wrong"), [("accept and residual", [0.3, 0.4, 0.3]), ("draft and accept", [0.5, 11 / 30, 2 / 15])])
def test_trap_one_coin_for_two_draws(monkeypatch, shared, wrong):
    """One uniform serves two draws, each by the inverse of its cumulative law: u < p / q accepts."""
    uniform = lambda keys: jax.vmap(jax.random.uniform)(keys)
    other = sampling.EMIT if shared == "accept and residual" else sampling.DRAFT
    right = sampling.key
    coin = lambda purpose: sampling.STOP if purpose == other else purpose
    monkeypatch.setattr(sampling, "key", lambda seed, purpose, id_B, *place: right(seed, coin(purpose), id_B))
    monkeypatch.setattr(sampling, "draw", lambda keys, law: inverse(uniform(keys), law))
    # the coin of acceptance is u < accepted mass, so the node is 1 below it and 0 above
    monkeypatch.setattr(sampling, "draw_node", lambda keys, stop_BM: jnp.where(uniform(keys) < stop_BM[:, -1], stop_BM.shape[1] - 1, 0))
    jax.clear_caches()
    law = first_token(one_round())
    jax.clear_caches()
    close(law, wrong)


def test_trap_draft_noise_keyed_by_position_only(monkeypatch):
    """Without the root's position in the draft's key, a policy that reads discarded drafts biases even the p/q rule."""

    @struct
    class Reads:
        """Drafts three tokens, and stands aside for a round where the laws after the second draft, kept or not, were far apart."""

        def init(self, batch):
            return jnp.full(batch, 3, jnp.int32)

        def choose(self, state, offer_B):
            return jnp.minimum(state, offer_B)

        def keep_going(self, state, q_BV, depth):
            return jnp.ones(q_BV.shape[0], bool)

        def observe(self, state, verdict):
            far = (verdict.drafted_B == 3) & (verdict.overlap_BM[:, 2] < 0.68)
            return jnp.where(far, 0, 3)

    def counts():
        jax.clear_caches()
        decoder = specjax.Decoder(lm(TARGET), drafter=drafter(lm(DRAFT), 3), length=Reads(), sampling=SAMPLED)
        return frequencies(decoder, 5, 1_000_000)

    assert p_value(counts(), chain_law(5)) > 1e-3
    right = sampling.key

    def without_root(seed, purpose, id_B, *place):
        if purpose == sampling.DRAFT:
            place = (place[0] + place[1],)  # the token's absolute position alone
        return right(seed, purpose, id_B, *place)

    monkeypatch.setattr(sampling, "key", without_root)
    wrong = counts()
    jax.clear_caches()
    assert p_value(wrong, chain_law(5)) < 1e-6


def test_draft_and_target_filtered_differently_stay_exact():
    """q is the law that was sampled, whatever its filters: temperature and top-k on the draft, top-p on the target."""
    decoder = specjax.Decoder(
        lm(TARGET), drafter=drafter(lm(DRAFT), 2), sampling=Sampling(temperature=1.0, top_p=0.75),
        draft_sampling=Sampling(temperature=2.0, top_k=2),
    )  # fmt: skip
    filtered = np.array([reference.law(np.log(row), 1.0, top_p=0.75) for row in TARGET])
    law = filtered[0][:, None, None] * filtered[:, :, None] * filtered[None]
    assert p_value(frequencies(decoder, 3, 200_000), law) > 1e-3
