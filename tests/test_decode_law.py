"""The law of the loop itself, draws and keys included: many rows over several rounds against exact enumeration (chi-squared), and known
mistakes, planted, are told apart by the exact wrong law they give. What exact rules owe the loop: `specjax.certify.loop`."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from loop import UpAndDown, drafter, fixed, lm, replace

import specjax
from specjax import Lenient, Sampling, reference, sampling
from specjax.certify import loop as certified
from specjax.certify.loop import fit, plain_law
from specjax.types import struct

P, Q = np.array([0.3, 0.5, 0.2]), np.array([0.6, 0.3, 0.1])  # case B
TARGET = np.array([[0.3, 0.5, 0.2], [0.1, 0.2, 0.7], [0.55, 0.25, 0.2]])  # laws that depend on the last token
DRAFT = np.array([[0.6, 0.3, 0.1], [0.3, 0.3, 0.4], [0.2, 0.6, 0.2]])
SAMPLED = Sampling(temperature=1.0)


def frequencies(decoder, tokens, rows):
    """How often each sequence of new tokens came out; half of the rows may go on for one token more."""
    return certified.frequencies(certified.runs(decoder, tokens, rows), tokens, 3)


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
    """7 tokens, which are at least three rounds at K = 2, and at 1, 2, 3; a quarter of a million rows."""
    ours = specjax.Speculative() if rule == "speculative" else Lenient(lenience=0.5)
    oracle = reference.speculative if rule == "speculative" else reference.lenient(0.5)
    length, *model = POLICIES[policy]
    law = (loop_law(oracle, 7, *model) + loop_law(oracle, 8, *model).sum(axis=-1)) / 2
    if rule == "speculative":
        np.testing.assert_allclose(law, plain_law(TARGET, 7), atol=1e-12)
    draft = replace(drafter(lm(DRAFT), 3), chunk=32)
    decoder = specjax.Decoder(lm(TARGET), drafter=draft, rule=ours, length=length, sampling=SAMPLED, ladder=(1, 3, 4), chunk=32)
    counts = frequencies(decoder, 7, 250_000)
    assert fit(counts, law) > 1e-3
    if rule == "lenient":
        assert fit(counts, plain_law(TARGET, 7)) < 1e-30  # lenience is not exact, and this test would see it


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
    monkeypatch.setattr(sampling, "scores", lambda keys, law: sampling.one_hot(inverse(uniform(keys), law), law))
    # the coin of acceptance is u < accepted mass, so the node is 1 below it and 0 above
    monkeypatch.setattr(sampling, "draw_node", lambda keys, stop_BM: jnp.where(uniform(keys) < stop_BM[:, -1], stop_BM.shape[1] - 1, 0))
    jax.clear_caches()
    law = first_token(one_round())
    jax.clear_caches()
    close(law, wrong)


def test_draft_and_target_filtered_differently_stay_exact():
    """q is the law that was sampled, whatever its filters: temperature and top-k on the draft, top-p on the target."""
    decoder = specjax.Decoder(
        lm(TARGET), drafter=drafter(lm(DRAFT), 2), sampling=Sampling(temperature=1.0, top_p=0.75),
        draft_sampling=Sampling(temperature=2.0, top_k=2),
    )  # fmt: skip
    filtered = np.array([reference.law(np.log(row), 1.0, top_p=0.75) for row in TARGET])
    assert fit(frequencies(decoder, 3, 200_000), plain_law(filtered, 3)) > 1e-3
