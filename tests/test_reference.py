"""The oracle itself: its laws against values computed in rational arithmetic, its decoder on small tables."""

from collections import Counter

import numpy as np
import pytest

from specjax import reference as ref

A = np.array([0.5, 0.3, 0.15, 0.05]), np.array([0.4, 0.4, 0.1, 0.1])
B = np.array([0.3, 0.5, 0.2]), np.array([0.6, 0.3, 0.1])
TOY = np.array([1, 2]) / 3, np.array([2, 1]) / 3
EXACT = {"speculative": ref.speculative, "lenient l=1": ref.lenient(1.0), "sample_and_match": ref.sample_and_match}


def always(law_V):
    return lambda context: np.asarray(law_V, float)


def first_token(law):
    marginal = Counter()
    for path, weight in law.items():
        marginal[path[0]] += weight
    return [marginal[x] for x in range(max(marginal) + 1)]


def one_round(rule, case, k=1):
    """Law of the next token after one round of k drafts."""
    return first_token(ref.exact_law(rule, always(case[0]), always(case[1]), k))


# ---------------------------------------------------------------- laws


LOGITS = np.log([0.1, 0.4, 0.2, 0.2, 0.1])  # ties at places 2, 3 and at 0, 4


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ({}, [0.1, 0.4, 0.2, 0.2, 0.1]),
        ({"temperature": 0.5}, np.array([1, 16, 4, 4, 1]) / 26),
        ({"temperature": 0}, [0, 1, 0, 0, 0]),
        ({"temperature": 9e-6}, [0, 1, 0, 0, 0]),
        ({"top_k": 1}, [0, 1, 0, 0, 0]),
        ({"top_k": 2}, [0, 0.5, 0.25, 0.25, 0]),  # the second is tied with the third
        ({"top_k": 9}, [0.1, 0.4, 0.2, 0.2, 0.1]),
        ({"top_p": 0}, [0, 1, 0, 0, 0]),
        ({"top_p": 0.39}, [0, 1, 0, 0, 0]),
        ({"top_p": 0.5}, [0, 0.5, 0.25, 0.25, 0]),
        ({"top_p": 0.81}, [0.1, 0.4, 0.2, 0.2, 0.1]),
        ({"top_p": 1}, [0.1, 0.4, 0.2, 0.2, 0.1]),
        ({"min_p": 0.45}, [0, 0.5, 0.25, 0.25, 0]),
        ({"min_p": 1}, [0, 1, 0, 0, 0]),
        ({"top_k": 2, "top_p": 0.49}, [0, 1, 0, 0, 0]),  # of what top-k left: .5 reaches .49
        ({"temperature": 0.5, "top_p": 0.6}, [0, 1, 0, 0, 0]),  # after temperature: 16/26 reaches .6
        ({"top_p": 0.5, "min_p": 0.6}, [0, 1, 0, 0, 0]),
    ],
)
def test_law(filters, expected):
    np.testing.assert_allclose(ref.law(LOGITS, **filters), expected, atol=1e-15)


def test_law_of_tied_maxima():
    np.testing.assert_array_equal(ref.law([1, 3, 3], 0), [0, 1, 0])
    np.testing.assert_array_equal(ref.law([1, 3, 3], 9e-6), [0, 1, 0])
    np.testing.assert_array_equal(ref.law([1, 3, 3], 2e-5), [0, 0.5, 0.5])
    np.testing.assert_array_equal(ref.law([1, 3, 3], top_k=1), [0, 0.5, 0.5])
    np.testing.assert_array_equal(ref.law([1, 3, 3], top_p=0), [0, 0.5, 0.5])


def test_top_p_that_is_reached_exactly_keeps_no_more():
    np.testing.assert_array_equal(ref.law([np.log(2), 0, 0], top_p=0.5), [1, 0, 0])


def test_law_with_forbidden_tokens():
    np.testing.assert_allclose(ref.law([0.0, -np.inf, 0.0], top_p=1, min_p=0), [0.5, 0, 0.5])


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ({}, [2, -2, 1, -1, 4]),
        ({"repetition": 2}, [1, -4, 0.5, -1, 4]),  # 0, 1 and 2 were seen
        ({"repetition": 0.5}, [4, -1, 2, -1, 4]),
        ({"presence": 0.5}, [2, -2.5, 0.5, -1, 4]),  # 1 and 2 were written
        ({"frequency": 0.5}, [2, -3, 0.5, -1, 4]),  # 1 twice
        ({"repetition": 2, "presence": 1, "frequency": 0.25}, [1, -5.5, -0.75, -1, 4]),
        ({"forbidden": [4, 0]}, [-np.inf, -2, 1, -1, -np.inf]),
        ({"eos": [3, 4], "least": 3}, [2, -2, 1, -1, 4]),  # three were written
        ({"eos": [3, 4], "least": 4}, [2, -2, 1, -np.inf, -np.inf]),
    ],
)
def test_processed(how, expected):
    logits = np.array([2.0, -2.0, 1.0, -1.0, 4.0])
    np.testing.assert_array_equal(ref.processed(logits, (0, 1, 1, 2, 1), 2, **how), expected)
    np.testing.assert_array_equal(logits, [2, -2, 1, -1, 4])  # left as they were


@pytest.mark.parametrize(
    ("p", "q", "expected"),
    [
        (*A, [2 / 3, 0, 1 / 3, 0]),
        (*B, [0, 2 / 3, 1 / 3]),
        (B[0], ref.one_hot(0, 3), [0, 0.7142857142857143, 0.2857142857142857]),
        (B[0], B[0], B[0]),
    ],
)
def test_residual(p, q, expected):
    np.testing.assert_allclose(ref.residual(p, q), expected, atol=1e-12)


# ---------------------------------------------------------------- rules


@pytest.mark.parametrize("rule", EXACT.values(), ids=EXACT)
@pytest.mark.parametrize("case", [A, B, TOY])
@pytest.mark.parametrize("k", [1, 2, 3])
def test_exact_rules_keep_the_targets_law(rule, case, k):
    law = ref.exact_law(rule, always(case[0]), always(case[1]), k)
    assert ref.total_variation(law, ref.path_law(always(case[0]), k + 1)) < 1e-12


@pytest.mark.parametrize("rule", EXACT.values(), ids=EXACT)
def test_exact_rules_keep_the_law_of_tables_with_memory_and_zeros(rule):
    rng = np.random.default_rng(0)
    target_VVV, draft_VVV = rng.dirichlet(np.full(3, 0.5), (2, 3, 3))
    target_VVV[0, 1], draft_VVV[1, 0], draft_VVV[2, 2] = [0, 1, 0], [0, 0, 1], target_VVV[2, 2]
    target, draft = (lambda c: target_VVV[c[-2:]]), (lambda c: draft_VVV[c[-2:]])
    law = ref.exact_law(rule, target, draft, 3, prefix=(2, 0))
    assert ref.total_variation(law, ref.path_law(target, 4, prefix=(2, 0))) < 1e-12
    assert sum(law.values()) == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize("case", [A, B])
def test_greedy_is_exact_where_the_target_is_one_hot_and_not_elsewhere(case):
    p, q = case
    one_hot = always(ref.one_hot(np.argmax(p), len(p)))
    assert ref.exact_law(ref.greedy, one_hot, always(q), 2) == {(int(np.argmax(p)),) * 3: pytest.approx(1, abs=1e-12)}
    law = ref.exact_law(ref.greedy, always(p), always(q), 1)
    assert ref.total_variation(law, ref.path_law(always(p), 2)) > 0.1


@pytest.mark.parametrize(
    ("lenience", "alpha", "unscaled", "scaled", "most"),
    [
        (1.0, 0.7, [0.3, 0.5, 0.2], [0.3, 0.5, 0.2], 1.0),
        (0.8, 0.775, [0.375, 0.45, 0.175], [0.375, 0.4539473684, 0.1710526316], 1.0),
        (0.5, 1.0, [0.6, 0.3, 0.1], [0.6, 0.3, 0.1], 1.0),
        (0.2, 1.0, [0.6, 0.3, 0.1], [0.6, 0.3, 0.1], 0.4),
    ],
)
@pytest.mark.parametrize("subtract", ["p-q", "p-lq"])
def test_lenience(lenience, alpha, unscaled, scaled, most, subtract):
    rule = ref.lenient(lenience, subtract)
    law = one_round(rule, B)
    np.testing.assert_allclose(law, scaled if subtract == "p-lq" else unscaled, atol=1e-10)
    assert ref.expected_tokens(rule, always(B[0]), always(B[1]), 1) == pytest.approx(1 + alpha, abs=1e-12)
    assert max(law / (B[0] / lenience)) == pytest.approx(most, abs=1e-9)


@pytest.mark.parametrize(
    ("case", "k", "tokens"),
    [
        (TOY, 1, 1 + 2 / 3),
        (TOY, 2, 1 + 10 / 9),
        (TOY, 3, 1 + 38 / 27),
        (TOY, 4, 1 + 130 / 81),
        (A, 2, 1 + 1.5725),
        (A, 3, 3.186625),
        (B, 2, 1 + 1.19),
        (B, 3, 2.533),
        *[(A, k, sum(0.85**i for i in range(k + 1))) for k in (1, 4)],
        *[(B, k, sum(0.7**i for i in range(k + 1))) for k in (1, 4)],
    ],
)
def test_expected_tokens_of_the_token_rule(case, k, tokens):
    assert ref.expected_tokens(ref.speculative, *map(always, case), k) == pytest.approx(tokens, abs=1e-12)


@pytest.mark.parametrize(("case", "alpha"), [(A, 0.34), (B, 0.35)])
def test_expected_tokens_of_sample_and_match(case, alpha):
    tokens = ref.expected_tokens(ref.sample_and_match, *map(always, case), 2)
    assert tokens == pytest.approx(1 + alpha + alpha**2, abs=1e-12)


@pytest.mark.parametrize(("case", "accepted"), [(A, 0.5), (B, 0.3)])
def test_expected_tokens_of_a_one_hot_draft(case, accepted):
    draft = always(ref.one_hot(np.argmax(case[1]), len(case[1])))
    assert ref.expected_tokens(ref.speculative, always(case[0]), draft, 1) == pytest.approx(1 + accepted, abs=1e-12)


def test_a_token_that_neither_law_allows_is_never_accepted_and_a_forced_one_is_when_the_target_allows_it():
    p, q = np.array([0.0, 0.4, 0.6]), np.array([0.0, 0.0, 1.0])
    stop_0 = [ref.speculative((x,), [p, p], [q])[0][0] for x in range(3)]
    np.testing.assert_allclose(stop_0, [1, 0, 0.4], atol=1e-15)


# ---------------------------------------------------------------- known mistakes, each with its exact wrong law


def scored_with(q, rule=ref.speculative):
    """The mistake of judging drafts by a law they were not drawn from."""
    return lambda token_K, p_MV, q_KV: rule(token_K, p_MV, [q] * len(token_K))


def test_trap_argmax_draft_scored_with_soft_q():
    law = one_round(scored_with(B[1]), (B[0], ref.one_hot(0, 3)))
    np.testing.assert_allclose(law, [0.5, 1 / 3, 1 / 6], atol=1e-12)


def test_trap_top_p_draft_scored_with_unfiltered_q():
    filtered = ref.law(np.log(B[1]), top_p=0.8)
    np.testing.assert_allclose(one_round(scored_with(B[1]), (B[0], filtered)), [1 / 3, 5 / 9, 1 / 9], atol=1e-12)
    np.testing.assert_allclose(one_round(ref.speculative, (B[0], filtered)), B[0], atol=1e-12)


def test_trap_resampling_from_p():
    law = one_round(ref.chain_rule(ref.ratio, lambda x, p, q: p), B)
    np.testing.assert_allclose(law, [0.39, 0.45, 0.16], atol=1e-12)


def test_trap_a_token_dropped_after_it_was_seen():
    p, q = [0.7, 0.3], [0.5, 0.5]  # token 1 never reaches the verification, and the target is asked instead
    law = one_round(ref.chain_rule(lambda x, p, q: float(x == 0), lambda x, p, q: p), (p, q))
    np.testing.assert_allclose(law, [0.85, 0.15], atol=1e-12)


CELLS = (np.arange(30) + 0.5) / 30  # every edge of case B is a multiple of 1/30: one point a cell is the exact integral


def inverse(law_V, u):
    return int(np.searchsorted(np.cumsum(law_V), u, side="right"))


@pytest.mark.parametrize("mistake", ["accept and residual", "draft and accept"])
def test_trap_one_coin_for_two_draws(mistake):
    p, q = B
    law = np.zeros(3)
    for u in CELLS:
        for x in range(3):
            accepted = u * q[x] < p[x]
            if mistake == "accept and residual":
                law += q[x] / 30 * ref.one_hot(x if accepted else inverse(ref.residual(p, q), u), 3)
            elif x == inverse(q, u):
                law += (ref.one_hot(x, 3) if accepted else ref.residual(p, q)) / 30
    expected = {"accept and residual": [0.3, 0.4, 0.3], "draft and accept": [0.5, 11 / 30, 4 / 30]}
    np.testing.assert_allclose(law, expected[mistake], atol=1e-12)


# ---------------------------------------------------------------- decoding


class Coins:
    """Independent draws, each from its own seed."""

    def __init__(self, seed, vocab):
        self.seed, self.vocab, self.asked = seed, vocab, []

    def __call__(self, purpose, *place):
        self.asked.append((purpose, *place))
        rng = np.random.default_rng([self.seed, ["draft", "stop", "emit", "noise"].index(purpose), *place])
        return rng.random() if purpose == "stop" else rng.gumbel(size=self.vocab)


def table(seed, vocab=5):
    """A model that looks at the last two tokens."""
    law_VVV = np.random.default_rng(seed).dirichlet(np.full(vocab, 0.5), (vocab, vocab))
    return lambda context: law_VVV[(context[-2], context[-1])]


TARGET, DRAFT = table(1), table(2)


def drafts(model):
    return lambda committed, drafted: model(committed + drafted)


def nothing(committed, drafted):
    return None


def likeliest(model):
    return lambda context: ref.one_hot(np.argmax(model(context)), 5)


def emit(coins):
    return lambda p, position: ref.pick(p, coins("emit", position))


def test_pick():
    assert ref.pick(np.array([0.0, 0.5, 0.5]), np.array([9.0, 1.0, 1.0])) == 1  # zeros never, the first of equals
    assert ref.pick(np.array([0.1, 0.2, 0.7]), np.array([3.0, 0.0, 0.0])) == 0


def test_the_stop_is_the_first_node_that_passes_u():
    assert [ref._stop([0.25, 0.0, 0.75], u) for u in (0, 0.24, 0.25, 0.999)] == [0, 0, 2, 2]
    assert ref._stop([0.5, 0.5 - 1e-9, 0.0], 1 - 1e-10) == 1  # rounding never reaches an impossible node


def test_nothing_offered_is_plain_decoding_with_the_same_coins():
    one, other = Coins(3, 5), Coins(3, 5)
    plain = ref.plain(TARGET, (0, 1), 20, (), emit(one))
    assert ref.speculative_decode(TARGET, nothing, (0, 1), 20, (), 4, ref.speculative, other) == plain
    assert plain.rounds == len(plain.tokens) == 20


@pytest.mark.parametrize("k", [1, 2, 5])
@pytest.mark.parametrize("rule", [ref.speculative, ref.greedy, "coupled"])
def test_draft_equal_to_target_is_accepted_whole(k, rule):
    target = likeliest(TARGET) if rule is ref.greedy else TARGET
    coupled = rule == "coupled"
    out = ref.speculative_decode(target, drafts(target), (0, 1), 4 * (k + 1), (), k, ref.greedy if coupled else rule, Coins(0, 5), coupled)
    assert out[2:] == (4 * k, 4 * k, 0, 0, 4)


@pytest.mark.parametrize("k", [0, 1, 3, 7])
def test_greedy_output_is_plains(k):
    target = likeliest(TARGET)
    plain = ref.plain(target, (0, 1), 24, (), lambda p, position: int(np.argmax(p)))
    out = ref.speculative_decode(target, drafts(likeliest(DRAFT)), (0, 1), 24, (), k, ref.greedy, Coins(0, 5))
    assert out.tokens == plain.tokens


@pytest.mark.parametrize("k", [0, 1, 3, 7])
@pytest.mark.parametrize("seed", range(5))
def test_coupled_output_is_plains_with_the_same_noise(k, seed):
    coins = Coins(seed, 5)
    plain = ref.plain(TARGET, (0, 1), 24, (3,), lambda p, position: ref.pick(p, coins("noise", position)))
    out = ref.speculative_decode(TARGET, drafts(DRAFT), (0, 1), 24, (3,), k, ref.greedy, coins, coupled=True)
    assert (out.tokens, out.finish) == (plain.tokens, plain.finish)
    assert out.drafted == out.accepted + out.rejected + out.cut


def test_coupled_sampling_refuses_another_rule():
    with pytest.raises(ValueError, match="its rule must be greedy"):
        ref.speculative_decode(TARGET, nothing, (0, 1), 4, (), 2, ref.speculative, Coins(0, 5), coupled=True)


def test_no_coin_is_asked_twice():
    coins = Coins(0, 5)
    ref.speculative_decode(TARGET, drafts(DRAFT), (0, 1), 40, (), 3, ref.speculative, coins)
    assert max(Counter(coins.asked).values()) == 1
    assert {("draft", 1, 1), ("stop", 1)} <= set(coins.asked)  # the first root is the prompt's last token


@pytest.mark.parametrize("rule", [ref.speculative, ref.sample_and_match])
def test_law_of_the_decoder_over_several_rounds(rule):
    target, draft = always(B[0]), drafts(always(B[1]))
    runs = [ref.speculative_decode(target, draft, (0,), 3, (), 1, rule, Coins(seed, 3)).tokens for seed in range(4000)]
    expected = ref.path_law(target, 3)
    seen = Counter(runs)
    chi2 = sum((seen[path] - 4000 * p) ** 2 / (4000 * p) for path, p in expected.items())
    assert chi2 < 54  # 26 degrees of freedom, p = .001


def counting(prompt=1):
    """The target says 0, 1, 2, ... whatever happened before."""
    return lambda context: ref.one_hot(len(context) - prompt, 20)


def wrong_at(place, prompt=1):
    """Drafts the counting target's tokens, except at one place of the output."""

    def draft(committed, drafted):
        position = len(committed) + len(drafted) - prompt
        return ref.one_hot(19 if position == place else position, 20)

    return draft


def count(max_new, eos=(), k=3, place=None, stop=ref.no_stop):
    draft, coins = wrong_at(place), Coins(0, 20)
    return ref.speculative_decode(counting(), draft, (0,), max_new, eos, k, ref.speculative, coins, stop=stop)


@pytest.mark.parametrize(
    ("eos", "drafted", "accepted", "cut", "rounds"),
    [
        (0, 3, 1, 2, 1),  # first draft
        (1, 3, 2, 1, 1),
        (2, 3, 3, 0, 1),  # last draft: the bonus is dropped
        (3, 3, 3, 0, 1),  # the bonus
        (4, 6, 4, 2, 2),
        (5, 6, 5, 1, 2),
        (6, 6, 6, 0, 2),
        (7, 6, 6, 0, 2),
    ],
)
def test_eos_at_every_offset_of_a_block(eos, drafted, accepted, cut, rounds):
    expected = ref.Decoded(tuple(range(eos + 1)), "eos", drafted, accepted, 0, cut, rounds)
    assert count(12, eos=(eos, 18)) == expected


@pytest.mark.parametrize(
    ("place", "accepted", "rejected", "rounds", "drafted"),
    [(0, 0, 3, 1, 3), (1, 1, 2, 1, 3), (2, 2, 1, 1, 3), (3, 3, 0, 1, 3)],
)
def test_eos_as_the_token_that_replaces_a_refused_draft(place, accepted, rejected, rounds, drafted):
    expected = ref.Decoded(tuple(range(place + 1)), "eos", drafted, accepted, rejected, 0, rounds)
    assert count(12, eos=(place,), place=place) == expected


def test_a_drafted_eos_that_the_target_refuses_ends_nothing():
    assert count(4, eos=(19,), place=1) == ref.Decoded((0, 1, 2, 3), "length", 4, 2, 2, 0, 2)


@pytest.mark.parametrize(
    ("max_new", "drafted", "rounds"),
    [(0, 0, 0), (1, 0, 1), (2, 1, 1), (3, 2, 1), (4, 3, 1), (5, 3, 2), (6, 4, 2), (7, 5, 2), (8, 6, 2), (9, 6, 3)],
)
def test_budget_at_every_offset_of_a_block(max_new, drafted, rounds):
    assert count(max_new) == ref.Decoded(tuple(range(max_new)), "length", drafted, drafted, 0, 0, rounds)


def test_eos_on_the_budgets_last_token_is_an_eos_finish_and_beyond_it_a_length_finish():
    assert count(4, eos=(3,)).finish == "eos"
    assert count(4, eos=(4,)).finish == "length"


@pytest.mark.parametrize("end", range(8))
def test_a_stop_at_every_offset_of_a_block_ends_it_as_an_eos_would(end):
    stop = ref.stop_on(LETTERS, [LETTERS[end]])
    assert count(12, stop=stop) == count(12, eos=(end,))._replace(finish="stop")
    choose = lambda p, position: int(np.argmax(p))
    assert ref.plain(counting(), (0,), 12, (), choose, stop) == ref.Decoded(tuple(range(end + 1)), "stop", rounds=end + 1)


def test_eos_before_stop_and_stop_before_length():
    assert count(4, eos=(3,), stop=ref.stop_on(LETTERS, [b"d"])).finish == "eos"
    assert count(4, stop=ref.stop_on(LETTERS, [b"cd"])).finish == "stop"
    assert count(4, stop=ref.stop_on(LETTERS, [b"de"])).finish == "length"


LETTERS = [bytes([97 + x]) for x in range(20)]


@pytest.mark.parametrize(
    ("prompt", "out", "least", "fires"),
    [
        ((0, 1), (2,), 0, True),  # over the edge of the prompt
        ((0, 1, 2), (3,), 0, False),  # in the prompt alone
        ((0, 1, 2), (3, 0, 1, 2), 0, True),
        ((0,), (4, 4), 0, False),
        ((0,), (0, 4), 0, True),  # ends inside a token
        ((0,), (1, 5, 2), 0, True),  # a token without text inside
        ((0,), (1, 2, 5), 0, False),  # it ended one token before
        ((0, 1), (2,), 1, True),
        ((0, 1), (2,), 2, False),  # too early, and it does not fire later
        ((0, 1), (2, 5), 2, False),
        ((0, 1), (2, 0, 1, 2), 2, True),
    ],
)
def test_stop_on(prompt, out, least, fires):
    texts = [b"a", b"b", b"c", b"d", b"bxy", b""]
    assert ref.stop_on(texts, [b"abc", b"aabx"], least)(prompt, out) == fires


def test_a_draft_length_that_depends_on_the_rounds_so_far():
    seen = []
    lengths = iter([0, 3, 1])
    out = ref.speculative_decode(
        counting(), wrong_at(2), (0,), 5, (), lambda rounds: seen.append([*rounds]) or next(lengths), ref.speculative, Coins(0, 20)
    )
    assert seen == [[], [(0, 0)], [(0, 0), (3, 1)]]
    assert out == ref.Decoded((0, 1, 2, 3, 4), "length", 4, 2, 2, 0, 3)


# ---------------------------------------------------------------- n-gram lookup


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        ([1, 2, 3, 4, 1, 2, 3], (3, 4, 3)),  # the longest: what followed 1 2 3
        ([1, 2, 3, 9, 2, 3, 8, 2, 3], (6, 3, 2)),  # most recent of two matches of 2 3
        ([1, 2, 3, 8, 7, 3, 9, 1, 2, 3], (3, 7, 3)),  # long and old before short and new
        ([5, 6, 7, 5], (1, 3, 1)),
        ([4, 4, 4, 4], (3, 1, 3)),  # an occurrence may overlap the end, and one token follows it
        ([1, 2, 3], (3, 0, 0)),
        ([7], (1, 0, 0)),  # shorter than the n-gram
    ],
)
def test_lookup(tokens, expected):
    assert ref.lookup(tokens, 1, 3) == expected


def test_lookup_of_matches_below_the_minimum():
    assert ref.lookup([5, 6, 7, 5], 2, 3) == (4, 0, 0)


def test_an_n_gram_drafter_offers_only_committed_tokens():
    def draft(committed, drafted):
        start, follow, _ = ref.lookup(committed, 1, 2)
        return ref.one_hot(committed[start + len(drafted)], 20) if len(drafted) < follow else None

    def loop(context):  # says 0 1 2 3 0 1 2 3 ...
        return ref.one_hot(len(context) % 4, 20)

    out = ref.speculative_decode(loop, draft, (0, 1, 2, 3, 0, 1), 12, (), 7, ref.speculative, Coins(0, 20))
    assert out == ref.Decoded((2, 3, 0, 1) * 3, "length", 9, 9, 0, 0, 3)
