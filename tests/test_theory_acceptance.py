"""Acceptance of single tokens, against values computed in rational arithmetic."""

import numpy as np
import pytest

from specjax.theory import acceptance

A = (0.5, 0.3, 0.15, 0.05), (0.4, 0.4, 0.1, 0.1)
B = (0.3, 0.5, 0.2), (0.6, 0.3, 0.1)
TOY = (1 / 3, 2 / 3), (2 / 3, 1 / 3)


def exactly(value):
    return pytest.approx(value, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize(("case", "alpha"), [(A, 0.85), (B, 0.7), (TOY, 2 / 3)])
def test_overlap(case, alpha):
    assert acceptance.overlap(*case) == exactly(alpha)


@pytest.mark.parametrize(("case", "rate"), [(A, 0.34), (B, 0.35), (TOY, 4 / 9)])
def test_sample_and_match(case, rate):
    assert acceptance.sample_and_match(*case) == exactly(rate)


@pytest.mark.parametrize(("case", "rate"), [(A, 0.5), (B, 0.3), (TOY, 1 / 3)])
def test_one_hot_draft_at_the_drafts_argmax(case, rate):
    p_V, q_V = case
    assert acceptance.one_hot(p_V, int(np.argmax(q_V))) == exactly(rate)


@pytest.mark.parametrize(("lenience", "rate"), [(1.0, 0.7), (0.8, 0.775), (0.5, 1.0), (0.2, 1.0)])
def test_lenience(lenience, rate):
    assert acceptance.lenient_acceptance(*B, lenience) == exactly(rate)


@pytest.mark.parametrize("lenience", [0, -1, 1.5])
def test_lenience_out_of_range_is_refused(lenience):
    with pytest.raises(ValueError, match=f"lenience={lenience} must be above 0"):
        acceptance.lenient_acceptance(*B, lenience)


@pytest.mark.parametrize(("case", "rate"), [(A, 0.8348397896), (B, 0.6941176471), (TOY, 2 / 3)])
def test_coupled_agreement(case, rate):
    assert acceptance.coupled_agreement(*case) == exactly(rate)


@pytest.mark.parametrize(
    ("p_V", "q_V", "rate"),
    [
        ((0.5, 0.5, 0), (0.5, 0.5, 0), 1.0),  # equal laws with a zero
        ((1, 0), (0, 1), 0.0),  # nothing in common
        ((0, 1, 0), (0.2, 0.5, 0.3), 0.5),  # one-hot target: the draft must hit it
        ((0.5, 0.5, 0), (0, 0.5, 0.5), 1 / 3),  # one shared token: 1 / (1 + 1 + 1)
    ],
)
def test_coupled_agreement_with_zeros(p_V, q_V, rate):
    assert acceptance.coupled_agreement(p_V, q_V) == exactly(rate)


def test_coupled_agreement_is_the_frequency_of_equal_argmax():
    rng = np.random.default_rng(0)
    noise = rng.gumbel(size=(200_000, 3))
    equal = np.argmax(np.log(B[0]) + noise, 1) == np.argmax(np.log(B[1]) + noise, 1)
    assert abs(equal.mean() - acceptance.coupled_agreement(*B)) < 0.004  # four standard deviations


@pytest.mark.parametrize(("case", "bound"), [(A, 0.85 / 1.15), (B, 0.7 / 1.3), (TOY, 0.5)])
def test_coupled_lower_bound(case, bound):
    assert acceptance.coupled_lower_bound(*case) == exactly(bound)


def test_coupled_agreement_lies_between_its_bound_and_the_overlap():
    rng = np.random.default_rng(1)
    for _ in range(200):
        p_V, q_V = rng.dirichlet(np.full(6, 0.3), size=2)
        agreement = acceptance.coupled_agreement(p_V, q_V)
        assert acceptance.coupled_lower_bound(p_V, q_V) - 1e-12 <= agreement <= acceptance.overlap(p_V, q_V) + 1e-12


def test_laws_of_two_vocabularies_are_refused():
    with pytest.raises(ValueError, match=r"p has shape \(3,\), q \(4,\)"):
        acceptance.overlap(B[0], A[1])
