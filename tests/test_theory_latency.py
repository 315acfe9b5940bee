"""Tokens, speedup and predictions, against values computed in rational arithmetic."""

import numpy as np
import pytest

from specjax.theory import latency

LADDER = (1, 4, 8)
V = {1: 1.0, 4: 1.2, 8: 1.5}


def exactly(value):
    return pytest.approx(value, rel=1e-12, abs=1e-12)


@pytest.mark.parametrize(
    ("alpha", "k", "tokens"),
    [
        (0.8, 4, 3.3616),
        (0.5, 3, 1.875),
        (0.9, 7, 5.6953279),
        (1, 4, 5.0),
        (0, 4, 1.0),
        (0.85, 3, 3.186625),  # case A, token rule
        (0.7, 3, 2.533),  # case B, token rule
        (2 / 3, 4, 1 + 130 / 81),  # toy, token rule
        (0.7, 0, 1.0),
    ],
)
def test_expected_tokens(alpha, k, tokens):
    assert latency.expected_tokens(alpha, k) == exactly(tokens)


@pytest.mark.parametrize(("rates", "tokens"), [((0.9, 0.8, 0.7), 3.124), ((), 1.0), ((0, 1, 1), 1.0)])
def test_expected_tokens_from_rates(rates, tokens):
    assert latency.expected_tokens_from_rates(rates) == exactly(tokens)


@pytest.mark.parametrize(
    ("alpha", "k", "c", "v", "value"),
    [(0.8, 4, 0.1, 1, 2.4011428571428572), (0.8, 4, 0.1, 1.2, 2.101), (0.2, 3, 0, 1, 1.248)],
)
def test_speedup(alpha, k, c, v, value):
    assert latency.speedup(latency.expected_tokens(alpha, k), v, k, c) == exactly(value)


def test_ops_factor():
    assert latency.ops_factor(0.8, 4, 0.1) == exactly(1.6063779152784388)


def test_lower_bound():
    assert latency.lower_bound(0.8, 0.1) == exactly(1.6363636363636362)


@pytest.mark.parametrize(("drafted", "rung"), [(0, 1), (1, 4), (3, 4), (4, 8), (7, 8)])
def test_width_is_the_narrowest_rung_with_room_for_the_root(drafted, rung):
    assert latency.width(drafted, (8, 1, 4)) == rung


def test_a_draft_too_long_for_the_ladder_is_refused():
    with pytest.raises(ValueError, match=r"ladder=\(1, 4, 8\) has no rung for 8 drafts: add one of 9 or more"):
        latency.width(8, LADDER)


def test_rates_are_pooled_over_lengths():
    drafted = [0, 0, 1, 2, 2, 2, 2, 3, 3]
    accepted = [0, 0, 1, 0, 1, 2, 2, 0, 0]
    share, rate = latency.rates_from_rounds(drafted, accepted, 4)
    np.testing.assert_array_equal(share, [2 / 9, 1 / 9, 4 / 9, 2 / 9, 0])
    np.testing.assert_array_equal(rate, [4 / 7, 2 / 3, np.nan, np.nan])  # the round of one draft did not reach place 2


RATES = 0.5, 0.8, 0.9, np.nan


def test_predict():
    share = [0.25, 0, 0.5, 0.25, 0]
    tokens = 0.25 + 0.5 * (1 + 0.5 + 0.4) + 0.25 * (1 + 0.5 + 0.4 + 0.36)
    cost = 0.25 * 1.0 + 0.5 * (1.2 + 2 * 0.1) + 0.25 * (1.2 + 3 * 0.1)
    prediction = latency.predict(share, RATES, V, 0.1, LADDER)
    assert prediction == (exactly(tokens), exactly(cost))
    assert prediction.speedup == exactly(tokens / cost)


def test_a_round_after_full_acceptance_pays_for_catching_up():
    share = [0.25, 0, 0.5, 0.25, 0]
    level, late = (latency.predict(share, RATES, V, 0.1, LADDER, catch_up) for catch_up in (0.0, 0.3))
    assert late.tokens == level.tokens
    assert late.cost - level.cost == exactly(0.3 * (0.5 * 0.5 * 0.8 + 0.25 * 0.5 * 0.8 * 0.9))  # nothing drafted: nothing to catch up


def test_a_rate_that_is_not_known_adds_nothing():
    assert latency.predict([0, 0, 0, 0, 1], RATES, V, 0.0, LADDER).tokens == exactly(1 + 0.5 + 0.4 + 0.36)


def test_predict_of_one_length_and_equal_rates_is_the_papers_formula():
    share, rate = np.eye(5)[4], np.full(4, 0.8)
    assert latency.predict(share, rate, {8: 1.2}, 0.1, LADDER).speedup == exactly(2.101)


def test_plain_decoding_is_predicted_to_gain_nothing():
    assert latency.predict(*latency.rates_from_rounds([0, 0], [0, 0], 0), V, 0.1, LADDER).speedup == 1.0


def test_rounds_of_one_rate_are_predicted_and_rounds_whose_rate_goes_with_their_length_are_not():
    """The prediction is a model: it does not give back the mean of whatever it was fed."""
    even = [2] * 4, [2, 1, 0, 0]
    share, rate = latency.rates_from_rounds(*even, 2)
    assert latency.predict(share, rate, V, 0.0, LADDER).tokens == exactly(1 + 3 / 4)
    drafted, accepted = [1, 1, 2, 2], [0, 0, 2, 2]  # long drafts are good ones: a1 = 1/2, a2 = 1
    tokens, _ = latency.predict(*latency.rates_from_rounds(drafted, accepted, 2), V, 0.0, LADDER)
    assert tokens == exactly(0.5 * 1.5 + 0.5 * 2.0) and 1 + np.mean(accepted) == 2.0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: latency.expected_tokens(1.2, 3), "alpha=1.2 must be between 0 and 1"),
        (lambda: latency.lower_bound(-0.1, 0.1), "alpha=-0.1 must be between 0 and 1"),
        (lambda: latency.expected_tokens(0.5, -1), "k=-1 must be at least 0"),
        (lambda: latency.rates_from_rounds([], [], 2), "at least one round"),
        (lambda: latency.rates_from_rounds([1, 2], [1], 2), r"drafted has shape \(2,\), accepted \(1,\)"),
        (lambda: latency.rates_from_rounds([2, 1], [0, 2], 2), "round 1: drafted=1, accepted=2"),
        (lambda: latency.rates_from_rounds([3], [0], 2), "round 0: drafted=3, accepted=0; .* k=2"),
        (lambda: latency.predict([0, 0, 0, 1], [0.5] * 3, {1: 1.0}, 0, LADDER), r"no cost for width 4, only for \[1\]"),
    ],
)
def test_bad_input_is_refused_in_one_line(call, message):
    with pytest.raises(ValueError, match=message):
        call()
