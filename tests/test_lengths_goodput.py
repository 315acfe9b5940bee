"""One length for a batch: by brute force, of one row the same as `Optimal`, standing aside together, and in the loop."""

import numpy as np
import pytest
from loop import drafter, mixed, random_lm
from test_lengths import verdict
from test_lengths_optimal import Slow, choose, observe

import specjax
from specjax import Sampling, parts
from specjax.lengths import Goodput, Optimal
from specjax.lengths.goodput import Crew
from specjax.lengths.optimal import Tries

COSTS = dict(v=(1, 1.2, 1.4, 1.4, 1.6, 1.6), c=0.05, catch_up=0.1, share=0.05)


class SlowBatch:
    """`Goodput` again, slowly: `Slow` rows whose counts are added up."""

    def __init__(self, rows, **numbers):
        self.rows, self.running, self.numbers = [Slow(**numbers) for _ in range(rows)], [True] * rows, numbers

    def gain(self, ceiling, offers):
        total, here = Slow(**self.numbers), [row for row, runs in zip(self.rows, self.running, strict=True) if runs]
        total.judged, total.accepted = (list(np.sum([getattr(row, x) for row in here], axis=0)) for x in ("judged", "accepted"))
        drafts = [min(ceiling, offer) for offer, runs in zip(offers, self.running, strict=True) if runs]
        reach = [1.0]
        rate = total.rate
        for judged, accepted in zip(total.judged, total.accepted, strict=True):
            rate = (total.weight * rate + accepted) / (total.weight + judged)
            reach.append(reach[-1] * rate)
        late = 1 - np.prod([1 - reach[d] for d in drafts if d])
        width = max(drafts)
        return sum(sum(reach[: d + 1]) for d in drafts) / (total.v[width] + width * total.c + late * total.catch_up), width

    def choose(self, offers):
        if not any(self.running):
            return [0] * len(offers)
        most = len(self.rows[0].v) - 1
        gain = [self.gain(ceiling, offers)[0] for ceiling in range(most + 1)]
        best, other = int(np.argmax(gain)), 1 + int(np.argmax(gain[1:]))
        width, one = self.gain(other, offers)[1], self.rows[0]
        aside = sum(row.aside for row, runs in zip(self.rows, self.running, strict=True) if runs) / sum(self.running)
        lost = one.v[width] + width * one.c - one.v[0] + one.catch_up * aside / len(one.v)
        ceiling = other if not best and width and one.share * aside >= lost else best
        return [min(ceiling, offer) for offer in offers]

    def observe(self, drafted, accepted, committed):
        for row, d, a, n in zip(self.rows, drafted, accepted, committed, strict=True):
            if n:
                row.observe(d, a)
            row.aside *= not any(drafted)
        self.running = [n > 0 for n in committed]


def test_the_best_length_is_that_of_brute_force():
    rng, rows, most, seen = np.random.default_rng(0), 4, 5, set()
    policy = parts.numbers(Goodput(**COSTS, rate=0.3, weight=8.0))
    for _ in range(200):
        judged_BK = rng.uniform(0, 9, (rows, most)).astype(np.float32)
        accepted_BK = (judged_BK * rng.random((1, most)) ** rng.uniform(0.2, 3)).astype(np.float32)
        aside_B, offer_B = rng.uniform(0, 30, rows).astype(np.float32), rng.integers(0, most + 3, rows).astype(np.int32)
        running_B = rng.random(rows) < 0.7
        slow = SlowBatch(rows, **COSTS, rate=0.3, weight=8.0)
        slow.running = running_B.tolist()
        for row, judged, accepted, aside in zip(slow.rows, judged_BK, accepted_BK, aside_B, strict=True):
            row.judged, row.accepted, row.aside = judged, accepted, aside
        asked = choose(policy, Crew(Tries(judged_BK, accepted_BK, aside_B), running_B), offer_B)
        assert np.where(running_B, asked, 0).tolist() == np.where(running_B, slow.choose(offer_B), 0).tolist()
        seen.add(int(max(asked)))
    assert len(seen) > 3 and 0 in seen


def test_of_one_row_it_is_optimal():
    rng, one, other = np.random.default_rng(1), Optimal(**COSTS), Goodput(**COSTS)
    mine, theirs, asks = one.init(1), other.init(1), []
    for _ in range(60):
        offer_B, luck = rng.integers(0, 6, 1).astype(np.int32), int(rng.choice([0, 0, 1, 5]))
        ask_B = choose(one, mine, offer_B)
        assert choose(other, theirs, offer_B).tolist() == ask_B.tolist()
        [ask] = ask_B.tolist()
        said = verdict([ask], [min(luck, ask)], [min(luck, ask) + 1], 5)
        mine, theirs = observe(one, mine, said), observe(other, theirs, said)
        asks.append(ask)
    assert len(set(asks)) > 3


@pytest.mark.parametrize(("rows", "asks"), [(1, 7), (2, 7), (4, 3), (16, 0)])
def test_one_row_that_likes_its_chances_does_not_widen_the_pass_of_all(rows, asks):
    """All drafts are accepted. One row is offered 7 tokens, the others none: rows + k tokens for 1.3 steps (k to 3) or 2.1, or rows for 1.
    Of 4 rows 7 / 1.3 = 5.38 is the best, 11 / 2.1 = 5.24; of 16 rows 16 is, 19 / 1.3 = 14.6."""
    costs = dict(v=(1, 1.3, 1.3, 1.3, 2.1, 2.1, 2.1, 2.1), rate=1.0)
    offer_B = np.array([7] + [0] * (rows - 1), np.int32)
    assert choose(Goodput(**costs), Goodput(**costs).init(rows), offer_B).tolist() == [asks] + [0] * (rows - 1)
    assert choose(Optimal(**costs), Optimal(**costs).init(rows), offer_B).tolist() == [7] + [0] * (rows - 1)


def test_rows_that_ended_do_not_count():
    """Four rows of which three have ended: the last is a row alone."""
    policy = Goodput(v=(1, 1.3, 1.3, 1.3, 2.1, 2.1, 2.1, 2.1), rate=1.0)
    state = observe(policy, policy.init(4), verdict([0] * 4, [0] * 4, [1, 0, 0, 0]))
    assert choose(policy, state, np.array([7, 7, 0, 7], np.int32))[0] == 7
    assert choose(policy, policy.init(4), np.array([7, 0, 0, 0], np.int32))[0] == 3
    assert choose(policy, state._replace(running_B=np.zeros(4, bool)), np.full(4, 7, np.int32)).shape == (4,)


def test_a_batch_stands_aside_and_comes_back_together():
    """Drafts of one token cost 1.25 steps and are refused: the rate is .5, after four refusals 1 / 6, and 1.17 tokens do not pay. A try
    loses .25 steps: an eighth of the two tokens that each row says in the meantime pays for it."""
    policy = Goodput(v=(1, 1.25), rate=0.5, weight=2.0, memory=1.0, share=0.125)
    state, asks = policy.init(4), []
    for _ in range(8):
        ask_B = choose(policy, state, np.full(4, 1, np.int32))
        asks.append(ask_B.tolist())
        state = observe(policy, state, verdict(ask_B, [0] * 4, [1] * 4, 1))
    assert [a[0] for a in asks] == [1, 0, 0, 1, 0, 0, 1, 0] and all(len(set(a)) == 1 for a in asks)


def test_trying_costs_no_more_than_its_share_where_most_rows_have_nothing_to_try():
    """One row of four is offered a token, which is refused. A try loses .25 steps, 2% of 13 tokens of a row."""
    policy = Goodput(v=(1, 1.25), share=0.02)
    state, offer_B, asks = policy.init(4), np.array([1, 0, 0, 0], np.int32), []
    for _ in range(100):
        ask_B = choose(policy, state, offer_B)
        asks.append(int(ask_B[0]))
        state = observe(policy, state, verdict(ask_B, [0] * 4, [1] * 4, 1))
    tries = np.flatnonzero(asks)
    assert np.diff(tries[1:]).tolist() == [14] * (len(tries) - 2) and len(tries) > 6


def test_a_row_counts_for_what_its_budget_leaves_it():
    """Both rows are offered 3 tokens, all of which would be accepted. With room for them 8 tokens cost 2.5 steps, 2 one. Next to a row
    whose next token is its last it is 5 for 2.5, no more than 2 for one, and at once the batch is plain."""
    target = random_lm(46, flat=1.0)
    options = dict(drafter=drafter(target, 3), length=Goodput(v=(1, 2.5, 2.5, 2.5), rate=1.0), ladder=(1, 4))
    both = specjax.generate(target, [[1, 2], [3]], max_new_tokens=[9, 9], **options)
    beside = specjax.generate(target, [[1, 2], [3]], max_new_tokens=[9, 1], **options)
    assert both.trace.drafted_BN[:, 0].tolist() == [3, 3] and beside.trace.drafted_BN[:, 0].tolist() == [0, 0]


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=0.9), Sampling(temperature=0.9, coupled=True)], ids=str)
def test_in_the_loop_a_batch_asks_as_the_slow_policy_does(sampling):
    """Round after round, with rows that end early; greedy and coupled tokens are plain's."""
    target, most = random_lm(46, flat=1.0), 5
    prompts, budgets = [[1, 2], [3], [4, 0, 1], [2, 2]], [30, 7, 18, 24]
    numbers = dict(v=(1, 1.5, 1.6, 1.7, 1.8, 1.9), share=0.31, weight=0.5, rate=0.6)
    options = dict(max_new_tokens=budgets, sampling=sampling, seed=3)
    out = specjax.generate(target, prompts, drafter=drafter(mixed(target, 22), most), length=Goodput(**numbers), **options)
    slow, said, trace = SlowBatch(4, **numbers), [0] * 4, out.trace
    for n in range(trace.root_BN.shape[1]):
        asked = slow.choose([max(min(most, budget - s - 1), 0) for budget, s in zip(budgets, said, strict=True)])
        committed = trace.committed_BN[:, n].tolist()
        assert [d for d, c in zip(trace.drafted_BN[:, n].tolist(), committed, strict=True) if c] == [
            a for a, c in zip(asked, committed, strict=True) if c
        ]
        slow.observe(trace.drafted_BN[:, n].tolist(), trace.stop_BN[:, n].tolist(), committed)
        said = [s + c for s, c in zip(said, committed, strict=True)]
    assert said == budgets and len(set(trace.drafted_BN.ravel().tolist())) > 3
    if sampling.temperature is None or sampling.coupled:
        assert out.token_ids == specjax.generate(target, prompts, **options).token_ids
