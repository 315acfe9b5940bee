"""The best draft length, against a table computed in rational arithmetic."""

import math

import pytest

from specjax.theory import latency, optimum


@pytest.mark.parametrize(
    ("alpha", "c", "k", "gain"),
    [
        (0.5, 0.05, 3, 1.630435),
        (0.6, 0.02, 6, 2.169657),
        (0.8, 0.1, 6, 2.46964),
        (0.8, 0.02, 11, 3.816723),
        (0.9, 0.05, 13, 4.674134),
        (0.9, 0.01, 24, 7.485566),
    ],
)
def test_best_k(alpha, c, k, gain):
    assert optimum.best_k(alpha, c) == (k, pytest.approx(gain, abs=5e-7))


def test_best_k_on_a_curve_is_the_best_of_all_lengths():
    def v(tokens):
        return {1: 1.0, 4: 1.2, 8: 1.5}[latency.width(tokens - 1, (1, 4, 8))]

    gains = [latency.speedup(latency.expected_tokens(0.7, k), v(k + 1), k, 0.05) for k in range(8)]
    assert optimum.best_k(0.7, 0.05, v, k_max=7) == (3, pytest.approx(max(gains), rel=1e-15))


@pytest.mark.parametrize(("alpha", "c"), [(0.3, 0.3), (0.2, 0.5), (0.0, 0.0)])
def test_drafting_does_not_pay_unless_alpha_is_above_c(alpha, c):
    assert optimum.best_k(alpha, c) == (0, 1.0)


def test_a_small_gain_is_enough():
    assert optimum.best_k(0.31, 0.3) == (1, pytest.approx(1.31 / 1.3, rel=1e-12))


def test_oracle_tokens():
    assert optimum.oracle_tokens(0.8) == pytest.approx(5.0, rel=1e-12)
    assert optimum.oracle_tokens(1) == math.inf
