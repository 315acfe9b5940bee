"""Policies that weigh what a round costs: the best length by brute force, standing aside and coming back, and both in the loop."""

import functools

import jax
import numpy as np
import pytest
from loop import drafter, mixed, random_lm
from test_decode_oracle import BUDGETS, PROMPTS, SEED
from test_lengths import check_row, verdict

import specjax
from specjax import Fixed, Heuristic, Sampling, decode, reference
from specjax.bench.measure import Costs
from specjax.lengths import Optimal, StandAside
from specjax.lengths.optimal import Tries

choose = jax.jit(lambda policy, state, offer_B: policy.choose(state, offer_B))
observe = jax.jit(lambda policy, state, verdict: policy.observe(state, verdict))


def tries(judged, accepted, said=0):
    return Tries(*(np.asarray(x, np.float32)[None] for x in (judged, accepted, said)))


class Slow:
    """`Optimal` again, for one row, slowly."""

    def __init__(self, v, c=0.0, catch_up=0.0, share=0.015, rate=0.7, weight=2.0, memory=0.9):
        self.v, self.c, self.catch_up, self.share, self.rate, self.weight, self.memory = v, c, catch_up, share, rate, weight, memory
        self.judged, self.accepted, self.aside = [0.0] * (len(v) - 1), [0.0] * (len(v) - 1), 0

    def gain(self, k):
        tokens, reach, rate = 1.0, 1.0, self.rate
        for judged, accepted in zip(self.judged[:k], self.accepted[:k], strict=True):
            rate = (self.weight * rate + accepted) / (self.weight + judged)
            reach *= rate
            tokens += reach
        return tokens / (self.v[k] + k * self.c + (reach * self.catch_up if k else 0))

    def choose(self, offer):
        best = max(range(min(offer, len(self.v) - 1) + 1), key=self.gain)  # the first of equals
        if best or not offer:
            return best
        other = max(range(1, min(offer, len(self.v) - 1) + 1), key=self.gain)
        lost = self.v[other] + other * self.c - self.v[0] + self.catch_up * self.aside / len(self.v)
        return other if self.share * self.aside >= lost else 0

    def observe(self, drafted, accepted):
        for place in range(min(accepted + 1, drafted)):
            self.judged[place] = self.memory * self.judged[place] + 1
            self.accepted[place] = self.memory * self.accepted[place] + (place < accepted)
        self.aside = 0 if drafted else self.aside + accepted + 1


def test_the_best_length_is_that_of_brute_force():
    rng, rows, most = np.random.default_rng(0), 400, 5
    judged_BK = rng.uniform(0, 9, (rows, most)).astype(np.float32)
    state = Tries(judged_BK, (judged_BK * rng.random((rows, most)) ** 0.2).astype(np.float32), rng.uniform(0, 200, rows).astype(np.float32))
    offer_B = rng.integers(0, most + 3, rows).astype(np.int32)
    seen = set()
    for numbers in (
        dict(v=(1, 1.2, 1.4, 1.4, 1.6, 1.6), share=0.02),
        dict(v=(1, 1.1, 1.2, 1.3, 1.4, 1.5), c=0.1, catch_up=0.1, share=0.05, rate=0.3, weight=8.0),
    ):
        ask_B = choose(specjax.parts.numbers(Optimal(**numbers)), state, offer_B)
        for row in range(rows):
            slow = Slow(**numbers)
            slow.judged, slow.accepted, slow.aside = state.judged_BK[row], state.accepted_BK[row], state.aside_B[row]
            assert ask_B[row] == slow.choose(offer_B[row]), (row, numbers)
        seen |= set(ask_B.tolist())
    assert seen == set(range(most + 1))


def test_counts_are_of_judged_places_alone():
    """Rows: the second of three refused, all of two accepted, the first refused, nothing drafted, finished."""
    policy = Optimal(v=(1, 1, 1, 1), memory=0.5)
    start = Tries(np.full((5, 3), 4, np.float32), np.full((5, 3), 2, np.float32), np.full(5, 6, np.float32))
    state = observe(policy, start, verdict([3, 2, 1, 0, 3], [1, 2, 0, 0, 3], [2, 3, 1, 1, 0]))
    assert state.judged_BK.tolist() == [[3, 3, 4], [3, 3, 4], [3, 4, 4], [4, 4, 4], [4, 4, 4]]
    assert state.accepted_BK.tolist() == [[2, 1, 2], [2, 2, 2], [1, 2, 2], [2, 2, 2], [2, 2, 2]]
    assert state.aside_B.tolist() == [0, 0, 0, 7, 0]


def asked(policy, rounds):
    """What one row asks for; rounds: (offered, accepted if so many are asked for)."""
    state, asks = policy.init(1), []
    for offer, accepted in rounds:
        [ask] = choose(policy, state, np.array([offer], np.int32)).tolist()
        accepted = min(accepted, ask)
        state = observe(policy, state, verdict([ask], [accepted], [accepted + 1]))
        asks.append(ask)
    return asks


def test_a_row_stands_aside_and_comes_back():
    """Refused, it waits until an eighth of what it said pays for the cheapest try, 0.5 steps: four tokens. Refused again, four more. Then
    all is accepted, and it drafts as before."""
    numbers = dict(v=(1, 1.5, 1.75, 2), rate=0.875, weight=0.5, memory=0.5)
    policy = Optimal(share=0.125, **numbers)
    assert asked(policy, [(3, 0)] + [(3, 0)] * 5 + [(3, 9)] * 7) == [3] + [0] * 4 + [1] + [0] * 4 + [1, 2, 3]
    assert asked(policy, [(3, 0)] + [(0, 0)] * 9 + [(2, 0)]) == [3] + [0] * 9 + [1]  # nothing is tried where nothing is offered
    assert asked(Optimal(share=0.0, **numbers), [(3, 0)] + [(3, 9)] * 30) == [3] + [0] * 30


def test_a_drafter_that_lags_behind_is_tried_later_or_never():
    """Taking in n tokens costs n / 4 times catch_up: of the eighth of a token that pays for a try a half is left, or nothing."""
    numbers = dict(v=(1, 1.5, 1.75, 2), share=0.125, rate=0.875, weight=0.5, memory=0.5)
    assert asked(Optimal(catch_up=0.25, **numbers), [(3, 0)] + [(3, 0)] * 9) == [3] + [0] * 8 + [1]
    assert asked(Optimal(catch_up=0.5, **numbers), [(3, 0)] + [(3, 0)] * 60) == [3] + [0] * 60


def test_lengths_that_cannot_pay_are_never_asked_for():
    """Two tokens for 2.1 steps at best."""
    assert asked(Optimal(v=(1, 1.1), c=1.0, share=1.0), [(1, 1)] * 5) == [0, 0, 1, 0, 0]  # but tried, where that is allowed
    assert asked(Optimal(v=(1, 1.1), c=1.0), [(1, 1)] * 50) == [0] * 50


def test_any_policy_stands_aside():
    """A round that drafts two tokens costs 2 steps and gives 1 token or 3. Tokens over steps are 2.4 / 2 at the start, 3.4 / 4 after a
    refusal: aside, until a quarter of four tokens pays for a try. 3.9 / 5 when that is refused too, 6.15 / 5.5 when the next is not."""
    policy = StandAside(policy=Fixed(k=2), v=(1, 1.5, 1.8), c=0.1, share=0.25, gain=1.2, weight=2.0, memory=0.5)
    assert asked(policy, [(2, 0)] + [(9, 0)] * 5 + [(9, 2)] * 8) == [2] + [0] * 4 + [2] + [0] * 4 + [2, 2, 2, 2]
    learning = StandAside(policy=Heuristic(start=1), v=(1, 1.5, 1.8), c=0.1)
    assert asked(learning, [(2, 2)] * 3) == [1, 2, 2]  # what it wraps learns, and asks for no more than costs are known of


def test_what_is_drafted_late_is_paid_for():
    policy = StandAside(policy=Fixed(k=1), v=(1, 2), catch_up=0.5, memory=0.5)
    state = observe(policy, policy.init(4), verdict([1, 1, 0, 1], [1, 0, 0, 1], [2, 1, 1, 0]))
    assert state.tokens_B.tolist() == [2, 1, 0, 0] and state.cost_B.tolist() == [2.5, 2, 0, 0]
    state = observe(policy, state, verdict([1] * 4, [1] * 4, [2] * 4))
    assert state.tokens_B.tolist() == [3, 2.5, 2, 2] and state.cost_B.tolist() == [3.75, 3.5, 2.5, 2.5]


@pytest.mark.parametrize("policy", [Optimal(), StandAside(policy=Heuristic())])
def test_without_costs_nothing_runs(policy):
    decoder = specjax.Decoder(random_lm(0), drafter=specjax.NGram(), length=policy)
    with pytest.raises(ValueError, match=rf"length={policy.name} has no costs: give it v, c and catch_up \(a run of a config measures"):
        decoder.start([[1, 2]], 4)


def test_costs_are_of_the_rung_that_holds_a_draft():
    costs = Costs(v={1: 1.0, 2: 1.25, 4: 1.5, 8: 2.0}, c=0.125, catch_up=0.25, step_seconds=1.0)
    chain = Optimal(share=0.5).priced(costs, (1, 2, 4))
    assert chain.v.tolist() == [1, 1.25, 1.5, 1.5] and (chain.c, chain.catch_up, chain.share) == (0.125, 0.25, 0.5)
    assert not chain.needs_costs and chain.cost_M.tolist() == [1, 1.375, 1.75, 1.875]
    tree = StandAside(policy=Fixed(k=2)).priced(costs, (1, 4, 8), (1, 3, 7))  # six drafted tokens on two levels
    assert tree.v.tolist() == [1, 1.5, 2] and tree.c == 0.375 and tree.policy == Fixed(k=2)


def test_tokens_and_counters_are_the_oracles():
    """Every row asks by its own history, alone as beside others, and other costs are no other program."""
    target = random_lm(46, flat=1.0)
    draft = mixed(target, 22)
    sampling, slow = Sampling(temperature=0.9), reference.speculative

    def run(numbers, prompts=PROMPTS, ids=(5, 6, 7, 8), budgets=BUDGETS):
        return specjax.generate(
            target, prompts, drafter=drafter(draft, 5), sampling=sampling, length=Optimal(**numbers), ids=ids,
            max_new_tokens=budgets, eos=[3], seed=SEED,
        )  # fmt: skip

    def length(numbers, rounds):
        policy = Slow(**numbers)
        for drafted, accepted in rounds:
            policy.observe(drafted, accepted)
        return policy.choose(5)

    asks, before = set(), None
    for numbers in (
        dict(v=(1, 1.2, 1.4, 1.4, 2, 2), c=0.05, catch_up=0.05, share=0.2, weight=1.0),
        dict(v=(1, 1.5, 1.6, 1.7, 1.8, 1.9), share=0.31, weight=0.5, rate=0.6),
    ):
        out = run(numbers)
        for row in range(4):
            check_row(out, row, functools.partial(length, numbers), target, draft, sampling, slow)
        asks |= set(out.trace.drafted_BN[out.trace.committed_BN > 0].tolist())
        before = before or decode.generate._cache_size()
    others = run(numbers, [[6, 6], [1], PROMPTS[3], [2]], [1, 2, 8, 3], [9, 30, BUDGETS[3], 0])  # the last row, in other company
    assert others.token_ids[2] == out.token_ids[3] and len(asks) > 2
    assert decode.generate._cache_size() == before
