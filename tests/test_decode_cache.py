"""After every round both caches hold every committed token except the newest, and equal a fresh prefill."""

import jax
import numpy as np
import pytest
from loop import drafter, fixed, mixed, random_lm, rounds

import specjax
from specjax import Sampling, ingest
from specjax.types import View

PROMPTS = [[1, 2, 3, 1, 2], [4], [5, 6] * 9]


@pytest.fixture(scope="module")
def tiny():
    """A tiny transformer, and a draft near enough to be accepted 0 .. K times."""
    target, other = specjax.load("toy://tiny"), specjax.load("toy://tiny/1")
    near = jax.tree.map(lambda a, b: 0.93 * a + 0.07 * b, target.params, other.params)
    return target, specjax.ModelDrafter(model=target.model, params=near, most=3)


def fresh(model, params, state):
    """A cache filled from scratch with the committed tokens."""
    cache = model.init_cache(*state.token_BS.shape)
    return ingest.prefill(model, params, cache, np.asarray(state.token_BS), state.cursor_B, 64)[0]


def assert_holds(cache, model, params, state, cursor_B):
    """Every slot before the row's cursor, in every layer."""
    for one, other in zip(jax.tree.leaves(cache), jax.tree.leaves(fresh(model, params, state)), strict=True):
        slots = one.ndim - 2 if one.ndim > 2 else 1  # [B, G, S, C] of a transformer, [B, S] of a table
        for row, cursor in enumerate(cursor_B):
            cut = [row, *[slice(None)] * (slots - 1), slice(0, cursor)]
            np.testing.assert_allclose(np.asarray(one)[tuple(cut)], np.asarray(other)[tuple(cut)], atol=2e-5)


def check(target, draft, options, budget=24):
    decoder = specjax.Decoder(target, drafter=draft, seed=2, **options)
    seen = set()
    for state in rounds(decoder, PROMPTS, budget, ids=["a", "b", "c"]):
        assert_holds(state.cache, target.model, target.params, state, state.cursor_B)
        lag_B = state.cursor_B - state.drafter.cursor_B
        assert ((lag_B == 0) | (lag_B == 1)).all()
        assert_holds(state.drafter.cache, draft.model, draft.params, state, state.drafter.cursor_B)
        turn = int(state.turn) - 1
        if turn >= 0:
            now = state.trace.committed_BN[:, turn] > 0
            stop_B, drafted_B = state.trace.stop_BN[now, turn], state.trace.drafted_BN[now, turn]
            assert (lag_B[now] == (stop_B == drafted_B)).all()  # one to ingest after full acceptance
            seen |= set(stop_B.tolist())
    return seen


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=0.7)], ids=["greedy", "p/q"])
def test_both_caches_of_transformers(tiny, sampling):
    assert check(*tiny, {"sampling": sampling}) >= {0, 1, 3}


def test_several_full_acceptances_in_a_row(tiny):
    target, _ = tiny
    same = specjax.ModelDrafter(model=target.model, params=target.params, most=3)
    assert check(target, same, {}) == {3}


def test_tables_of_second_order():
    target = random_lm(3)
    assert check(target, drafter(mixed(target, 4, 0.3), 3), {"sampling": Sampling(temperature=1.0)}) == {0, 1, 2, 3}


def test_a_drafter_that_stood_aside_catches_up(tiny):
    """Asked for nothing for 1, 2 or 20 rounds: it lags by as many, and drafts the same as one that never did."""
    target, draft = tiny
    for rest in (1, 2, 20):
        idle = specjax.Decoder(target, drafter=draft, length=fixed(0))
        state = idle.prefill(idle.start(PROMPTS, 40))
        for _ in range(rest):
            state = idle.step(state)
        assert (state.cursor_B - state.drafter.cursor_B == rest).all()
        busy = specjax.Decoder(target, drafter=draft)
        state = jax.device_get(busy.step(state))
        assert_holds(state.drafter.cache, draft.model, draft.params, state, state.drafter.cursor_B)
        view = View(target.params, None, np.asarray(state.token_BS), state.cursor_B - state.trace.committed_BN[:, rest])
        begun = draft.init(draft.params, view)
        root_B = np.take_along_axis(view.token_BS, view.cursor_B[:, None], 1)[:, 0]
        again, _, _ = draft.propose(draft.params, begun, view, root_B, np.full(3, 3), Greedy())
        assert (again.token_BM == state.trace.token_BNM[:, rest]).all()


class Greedy:
    """The loop's coin under greedy sampling, as policies without a `keep_going` of their own see it."""

    certain = False

    def law(self, logits, token_BM, depth):
        return specjax.sampling.law(logits, Sampling())

    def within(self, ids_U):
        return self

    def spread(self, q_BMV, token_BM):
        return q_BMV

    def keep_going(self, q_BV, depth):
        return np.ones(len(q_BV), bool)

    def __call__(self, law_BV, node):
        return specjax.sampling.first_argmax(law_BV)
