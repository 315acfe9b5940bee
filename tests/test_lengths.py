"""Length policies on their own, and those that learn in the loop against the oracle. See test_lengths_optimal.py too."""

import functools

import jax
import numpy as np
import pytest
from loop import VOCAB, drafter, fixed, mixed, random_lm
from test_decode_oracle import BUDGETS, PROMPTS, SEED, oracle

import specjax
from specjax import Heuristic, Sampling, decode, parts, reference
from specjax.lengths import BatchTable, Confidence, Entropy, Goodput, Optimal, StandAside, Tiers
from specjax.types import Verdict

MODES = {"greedy": Sampling(), "coupled": Sampling(temperature=0.9, coupled=True), "p/q": Sampling(temperature=0.9)}


def verdict(drafted, accepted, committed, most=7):
    zero_BM = np.zeros((len(drafted), most + 1), np.float32)
    return Verdict(*(np.array(x, np.int32) for x in (drafted, accepted, committed)), zero_BM[:, 0], zero_BM, most)


def lengths(policy, rounds, most=7):
    """What one row asks for, round after round, of a drafter that offers `most`; rounds: how many of its drafts are accepted."""
    state, asked = policy.init(1), []
    for accepted in rounds:
        [ask] = policy.choose(state, np.array([most], np.int32)).tolist()
        asked.append(ask)
        accepted = min(accepted, ask)
        state = policy.observe(state, verdict([ask], [accepted], [accepted + 1], most))
    return asked


def test_fixed_takes_what_is_offered_up_to_k():
    assert fixed(3).choose(None, np.array([0, 2, 5], np.int32)).tolist() == [0, 2, 3]
    assert specjax.match().choose(None, np.array([0, 2, 500], np.int32)).tolist() == [0, 2, 500]


@pytest.mark.parametrize(
    ("policy", "rounds", "asked"),
    [
        (Heuristic(start=1), [9, 9, 9, 9, 9], [1, 3, 5, 7, 7]),  # two more each time, up to the drafter's largest draft
        (Heuristic(start=2, most=5), [9, 9, 9, 4, 9], [2, 4, 5, 5, 4]),  # or its own limit
        (Heuristic(start=3), [0, 0, 0, 0], [3, 2, 1, 1]),  # one less, but never nothing
        (Heuristic(start=2), [1, 1, 0, 1], [2, 1, 3, 2]),  # one of two is not all, one of one is
        (Heuristic(), [4, 4, 3], [5, 4, 6]),
        (Heuristic(start=50), [0, 9], [7, 6]),  # what cannot be drafted is not counted down through
        (Tiers(memory=0.5), [3, 3, 0, 0, 0, 9], [3, 3, 7, 3, 3, 1]),  # averages 1, 2, 2.5, 1.25, 0.625, 0.3125; from one half on, up
        (Tiers(tiers=(2, 9), start=1.5, memory=0), [7, 1, 0], [7, 7, 2]),
    ],
)
def test_heuristic_goes_up_by_two_and_down_by_one(policy, rounds, asked):
    assert lengths(policy, rounds) == asked


def test_rows_that_had_finished_or_drafted_nothing_keep_their_length():
    """Accepted whole, refused, drafted nothing, finished before with a whole and with a refused draft."""
    seen = verdict([4, 4, 0, 4, 4], [4, 3, 0, 4, 0], [5, 4, 1, 0, 0])
    assert Heuristic(start=4).observe(Heuristic(start=4).init(5), seen).tolist() == [6, 3, 4, 4, 4]
    assert Tiers(memory=0.5).observe(Tiers().init(5), seen).tolist() == [2.5, 2, 1, 1, 1]


def test_on_a_tree_the_longest_draft_is_its_depth():
    """Not its number of nodes, from which refusals would take many rounds to come down to."""
    seen = verdict([3], [3], [4], 10)._replace(most=3)
    assert Heuristic(start=2).observe(Heuristic(start=2).init(1), seen).tolist() == [3]


def test_a_draft_cut_short_by_the_offer_counts_as_whole_if_all_of_it_was_accepted():
    assert Heuristic(start=4).observe(Heuristic(start=4).init(2), verdict([2, 2], [2, 1], [3, 2])).tolist() == [6, 3]


@pytest.mark.parametrize(
    ("policy", "numbers", "message"),
    [
        (Heuristic, dict(start=0), "length.start=0 must be a whole number of at least 1"),
        (Heuristic, dict(start=2.5), "length.start=2.5 must be a whole number of at least 1"),
        (Heuristic, dict(start=float("nan")), "length.start=nan must be"),
        (Heuristic, dict(start=1, most=0), "length.most=0 must be a whole number of at least 1"),
        (Heuristic, dict(most=2**40), "length.most=1099511627776 must be a whole number of at least 1 and at most 1073741824"),
        (Heuristic, dict(start=6, most=5), "length.start=6 must be at most 5, length.most"),
        (Confidence, dict(threshold=1.01), "length.threshold=1.01 must be at least 0 and at most 1"),
        *[(Confidence, dict(threshold=bad), "length.threshold=.* must be at least 0 and at most 1") for bad in ("a", None, np.ones(2))],
        (Heuristic, dict(start="a"), "length.start=a must be a whole number"),
        (Optimal, dict(catch_up=1), "length.catch_up=1.0 changes nothing without length.v"),
        (Entropy, dict(gamma=-0.1), "length.gamma=-0.1 must be at least 0"),
        (Entropy, dict(goal=float("nan")), "length.goal=nan must be at least 0 and at most 1"),
        (Tiers, dict(memory=2), "length.memory=2 must be at least 0 and at most 1"),
        *[
            (Tiers, dict(tiers=bad), "must be whole numbers that ascend from at least 1")
            for bad in ((), (0, 1), (1, 1), (3, 2), (1.5,), ((1, 2),), "ab", (1, float("nan")))
        ],
        *[
            (BatchTable, dict(table=bad), "must be pairs of whole numbers: rows, which ascend from 1, and a draft length of at least 0")
            for bad in ((), ((2, 3),), ((1, -1),), ((1, 3), (1, 2)), ((1, 3), (2,)), (1, 3), ((1, 2.5),))
        ],
        (Optimal, dict(v=(1.0,)), "length.v=.* must be at least two costs, each above 0"),
        (Optimal, dict(v=(1.0, 0.0)), "length.v=.* must be at least two costs, each above 0"),
        (Optimal, dict(v=(1.0, 1e300)), "length.v=.* and at most 1073741824"),
        (Optimal, dict(v=(1e-300, 1.0)), "length.v=.* must be at least two costs, each above 0"),
        (Optimal, dict(weight=0), "length.weight=0 must be at least 0.001"),
        (Optimal, dict(share=-1), "length.share=-1 must be at least 0 and at most 1"),
        (StandAside, dict(policy=Tiers(), catch_up=-1), "length.catch_up=-1 must be at least 0"),
        (StandAside, dict(policy=Optimal()), "length.policy=optimal stands aside by itself: take it alone"),
    ],
)
def test_numbers_out_of_range_are_refused(policy, numbers, message):
    with pytest.raises(ValueError, match=message):
        policy(**numbers)


def test_confidence_is_the_largest_probability_of_the_law():
    q_BV = np.array([[0.5, 0.3, 0.2], [0.4, 0.4, 0.2], [0.39, 0.31, 0.3], [np.nan] * 3], np.float32)
    for depth in (1, 5):
        assert Confidence(threshold=0.4).keep_going(None, q_BV, depth).tolist() == [True, True, False, True]
    assert Confidence(threshold=1).keep_going(None, np.eye(3, dtype=np.float32), 1).all()
    assert Confidence().choose(None, np.array([0, 9], np.int32)).tolist() == [0, 9]


def test_entropy_bounds_acceptance_by_what_the_draft_does_not_know():
    """Two equal tokens: 1 - sqrt(0.2 log 2) = 0.6277; four: 1 - sqrt(0.2 log 4) = 0.4735. A certain law passes every threshold."""
    half, quarter = np.array([0.5, 0.5, 0, 0], np.float32), np.full(4, 0.25, np.float32)
    q_BV = np.stack([half, half, quarter, quarter, np.eye(4, dtype=np.float32)[0], half * np.nan])
    policy = Entropy(gamma=0.2)
    state = policy.init(6)._replace(threshold_B=np.array([0.62, 0.63, 0.47, 0.48, 1.0, 0.5], np.float32))
    assert policy.keep_going(state, q_BV, 1).tolist() == [True, False, True, False, True, True]


def test_the_threshold_of_entropy_follows_acceptance():
    """Of rows: below the goal, above it, exactly on it, nothing drafted, finished."""
    policy = Entropy(threshold=0.4, goal=0.5, follow=0.5, smooth=0.9, step=0.1)
    state = policy.observe(policy.init(5), verdict([4, 4, 4, 0, 4], [0, 4, 2, 0, 4], [1, 5, 3, 1, 0]))
    np.testing.assert_allclose(state.acceptance_B, [0.25, 0.75, 0.5, 0.5, 0.5])
    np.testing.assert_allclose(state.threshold_B, [0.41, 0.39, 0.41, 0.4, 0.4], rtol=1e-6)
    state = policy.observe(state, verdict([2] * 5, [2] * 5, [3] * 5))
    np.testing.assert_allclose(state.acceptance_B, [0.625, 0.875, 0.75, 0.75, 0.75])
    np.testing.assert_allclose(state.threshold_B, [0.40, 0.38, 0.40, 0.39, 0.39], rtol=1e-6)


def test_the_size_of_the_batch_chooses_its_length():
    table = BatchTable(table=((1, 7), (4, 3), (16, 0)))
    assert [table.choose(None, np.full(rows, 9, np.int32)).max() for rows in (1, 3, 4, 15, 16, 40)] == [7, 7, 3, 3, 0, 0]
    assert table.choose(None, np.array([0, 2, 9], np.int32)).tolist() == [0, 2, 7]


def next_length(rounds, start, most):
    """The policy again, slowly: what is asked after these rounds of (drafted, accepted)."""
    k = start
    for drafted, accepted in rounds:
        if drafted:
            k = min(k + 2, most) if accepted == drafted else max(k - 1, 1)
    return k


@pytest.mark.parametrize("mode", MODES)
def test_tokens_and_counters_are_the_oracles(mode):
    """Every row asks by its own history, alone as beside others, and other numbers are no other program."""
    sampling, slow = MODES[mode], reference.speculative if mode == "p/q" else reference.greedy
    target = random_lm(46, flat=1.0)
    draft = mixed(target, 22)
    options = {"drafter": drafter(draft, 5), "sampling": sampling, "eos": [3], "seed": SEED}

    def run(numbers, prompts=PROMPTS, ids=(5, 6, 7, 8), budgets=BUDGETS):
        return specjax.generate(target, prompts, length=Heuristic(**numbers), ids=ids, max_new_tokens=budgets, **options)

    out = run(dict(start=2))
    before = decode.generate._cache_size()
    for numbers in (dict(start=2), dict(start=4, most=5), dict(start=1, most=3)):
        out = run(numbers)
        for row in range(4):
            k = functools.partial(next_length, start=numbers["start"], most=numbers.get("most", 5))
            check_row(out, row, k, target, draft, sampling, slow)
    assert len(set(out.trace.drafted_BN[out.trace.committed_BN > 0].tolist())) > 2  # 1, 2, 3
    others = run(numbers, [[6, 6], [1], PROMPTS[3], [2]], [1, 2, 8, 3], [9, 30, BUDGETS[3], 0])  # the last row, in other company
    rounds = others.counts["passes"][2]
    assert others.token_ids[2] == out.token_ids[3]
    assert others.trace.drafted_BN[2, :rounds].tolist() == out.trace.drafted_BN[3, :rounds].tolist()
    assert decode.generate._cache_size() == before


def check_row(out, row, k, target, draft, sampling, slow):
    """Tokens, end and counters of the slow decoder; tokens are those of plain decoding too, where drafts change nothing."""
    filters = {"temperature": 0.9 if sampling.temperature else 0.0}
    model = target, draft, filters, PROMPTS[row], BUDGETS[row]
    right = oracle(*model, k, slow, 5 + row, sampling.coupled)
    assert out.token_ids[row] == list(right.tokens) and out.finish_reasons[row] == right.finish
    got = [int(out.counts[name][row]) for name in ("passes", "drafted", "accepted", "rejected", "cut")]
    assert got == [right.rounds, right.drafted, right.accepted, right.rejected, right.cut]
    if sampling.one_hot:
        assert right.tokens == oracle(*model, 0, slow, 5 + row, sampling.coupled).tokens


def test_numbers_are_leaves():
    one, other = (jax.tree.flatten(Heuristic(start=s, most=m)) for s, m in ((1, 2), (3, VOCAB)))
    assert one[1] == other[1] and one[0] == [1, 2] and other[0] == [3, 7]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Confidence(threshold=0), Confidence(threshold=0.9)),
        (Entropy(gamma=1), Entropy(step=0.5)),
        (Tiers(tiers=(1, 2)), Tiers(tiers=[3, 7], start=2)),
        (BatchTable(table=((1, 2), (3, 4))), BatchTable(table=[[1, 3], [9, 0]])),
        (Optimal(v=(1, 2)), Optimal(v=(1.0, 1.5), c=1, rate=1)),
        (Goodput(v=(1, 2)), Goodput(v=(1.0, 1.5), c=1, rate=1)),
        (StandAside(policy=Tiers(), v=(1, 2)), StandAside(policy=Tiers(start=3), v=(1.0, 1.5), gain=2)),
    ],
)
def test_other_numbers_are_no_other_program(one, other):
    shapes = lambda policy: jax.tree.map(lambda x: (x.shape, x.dtype), parts.numbers(policy))
    assert shapes(one) == shapes(other)
