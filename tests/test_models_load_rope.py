"""Stretched rotary positions: exact at the ends of each ramp, and what is refused. Whole models are compared in test_parity_live.py."""

import numpy as np
import pytest

from specjax.models.load import rope
from specjax.models.load.fields import Fields

LENGTHS = rope.Lengths(original=64, longest=256)


def stretched(kind, fields, theta=10_000.0, size=16, lengths=LENGTHS):
    return rope.stretched(kind, Fields(fields.get, "rope_scaling."), theta, size, lengths)


def test_default_stretches_nothing():
    assert stretched("default", {}) == {"rope_theta": 10_000.0}


def test_linear_divides_every_pair():
    assert stretched("linear", {"factor": 4}, size=6) == {"rope_theta": 10_000.0, "rope_stretch": (4.0, 4.0, 4.0), "rope_gain": 1.0}


def test_llama3_divides_slow_pairs_only():
    fields = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    divisors = stretched("llama3", fields)["rope_stretch"]
    turns = 64 * 10_000.0 ** (-np.arange(8) / 8) / (2 * np.pi)  # 10.2, 3.2, 1.02, .3, ...
    assert divisors[0] == 1.0 and set(divisors[3:]) == {8.0}
    between = (turns[1] - 1) / 3
    np.testing.assert_allclose(divisors[1], 1 / ((1 - between) / 8 + between))


def test_yarn_ramps_over_pairs():
    """theta = 2 ** 8 over 8 pairs: pair i turns at rate 2 ** -i, over the original length 64 / 2 ** i / 2 pi times."""
    fields = {"factor": 4.0, "beta_fast": 7 / (2 * np.pi), "beta_slow": 1.1 / (2 * np.pi)}
    got = stretched("yarn", fields, theta=2.0**8)
    ramp = np.clip((np.arange(8) - 3) / 3, 0, 1)
    np.testing.assert_allclose(got["rope_stretch"], 1 / (ramp / 4 + 1 - ramp))
    assert got["rope_gain"] == 0.1 * np.log(4.0) + 1


@pytest.mark.parametrize(("longest", "divisors"), [(256, (5.0, 6.0)), (64, (1.0, 2.0))])
def test_longrope_has_one_row_for_all_texts(longest, divisors):
    fields = {"long_factor": [5, 6.0], "short_factor": [1, 2.0]}
    got = stretched("longrope", fields, size=4, lengths=rope.Lengths(64, longest))
    assert got["rope_stretch"] == divisors
    assert got["rope_gain"] == (np.sqrt(1 + np.log(4) / np.log(64)) if longest == 256 else 1.0)


@pytest.mark.parametrize(
    ("kind", "fields", "message"),
    [
        (
            "dynamic",
            {"factor": 2.0},
            r"^rope_scaling\.rope_type='dynamic' is not supported; supported: default, linear, llama3, yarn, longrope$",
        ),
        ("linear", {}, r"^rope_scaling\.factor is missing or null, should be a positive number$"),
        (
            "llama3",
            {"factor": 2.0, "low_freq_factor": 4, "high_freq_factor": 4},
            r"low_freq_factor=4\.0 should be below high_freq_factor=4\.0",
        ),
        ("longrope", {"long_factor": [1.0], "short_factor": [1.0]}, r"^rope_scaling\.long_factor should be a list of 8 positive numbers$"),
        ("longrope", {"long_factor": [1.0] * 7 + [0], "short_factor": []}, "a list of 8 positive numbers"),
        ("llama3", {"factor": 5e-324, "low_freq_factor": 1, "high_freq_factor": 4}, "a number in it is out of range"),
    ],
)
def test_refusals(kind, fields, message):
    with pytest.raises(ValueError, match=message):
        stretched(kind, fields)


@pytest.mark.parametrize("change", [{"theta": 1.0}, {"lengths": rope.Lengths(1, 1)}])
def test_lengths_and_bases_that_have_no_logarithm(change):
    with pytest.raises(ValueError, match="should be above 1"):
        stretched("yarn", {"factor": 2.0}, **change)


def test_heads_without_end():
    with pytest.raises(ValueError, match="1099511627776 turning channels in a head are more than there can be"):
        stretched("linear", {"factor": 2.0}, size=2**40)
