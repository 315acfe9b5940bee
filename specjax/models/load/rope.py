"""Rotary positions stretched beyond the length a model was trained at: what each way does to the rates at which pairs turn.

All of them divide pair i's rate by a number of its own, and some scale cos and sin ("gain"), so a checkpoint's choice is a row of numbers,
computed once here. Whatever changes the rates while tokens come in (`dynamic`) is refused: keys in the cache would be of two kinds.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from specjax.models.load.fields import Fields

MOST_CHANNELS = 2**16  # of a head: far past any model, and a list of them still fits


class Lengths(NamedTuple):
    """In positions: what the model was trained at before it was stretched, and what it is made for now."""

    original: int
    longest: int


Stretch = tuple[np.ndarray, float]  # each pair's divisor, gain


def _linear(place: Fields, theta: float, pairs: int, lengths: Lengths) -> Stretch:
    """Position interpolation (2306.15595)."""
    return np.full(pairs, place.number("factor")), 1.0


def _llama3(place: Fields, theta: float, pairs: int, lengths: Lengths) -> Stretch:
    """Llama 3.1: slow pairs are divided by the factor, quick ones are not, those between by something between."""
    factor, low, high = (place.number(name) for name in ("factor", "low_freq_factor", "high_freq_factor"))
    if low >= high:
        raise ValueError(f"{place.where}low_freq_factor={low} should be below high_freq_factor={high}")
    turns = lengths.original * theta ** (-np.arange(pairs) / pairs) / (2 * math.pi)  # of each pair over the original length
    quick = np.clip((turns - low) / (high - low), 0, 1)
    return 1 / ((1 - quick) / factor + quick), 1.0


def _yarn(place: Fields, theta: float, pairs: int, lengths: Lengths) -> Stretch:
    """YaRN (2309.00071): as llama3, but the ramp is straight in i, and cos and sin are scaled."""
    factor = place.number("factor", lengths.longest / lengths.original)

    def pair_that_turns(times: float) -> float:
        return pairs * math.log(lengths.original / (times * 2 * math.pi)) / math.log(theta)

    low, high = pair_that_turns(place.number("beta_fast", 32)), pair_that_turns(place.number("beta_slow", 1))
    if place.flag("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, 2 * pairs - 1)
    slow = np.clip((np.arange(pairs) - low) / (high - low or 0.001), 0, 1)
    return 1 / (slow / factor + 1 - slow), place.number("attention_factor", _yarn_gain(place, factor))


def _yarn_gain(place: Fields, factor: float) -> float:
    def gain(scale: float) -> float:
        return 0.1 * scale * math.log(factor) + 1 if factor > 1 else 1.0

    scales = place.number("mscale", None), place.number("mscale_all_dim", None)
    return gain(scales[0]) / gain(scales[1]) if None not in scales else gain(1)


def _longrope(place: Fields, theta: float, pairs: int, lengths: Lengths) -> Stretch:
    """LongRoPE (2402.13753): searched divisors, one row for short texts and one for long ones.

    Transformers changes from one to the other when a text grows past the original length, which leaves keys of both kinds in a cache. Here
    a checkpoint has one row for all texts: the long one if it is made for more positions than the original length, else the short one.
    """
    name = "long_factor" if lengths.longest > lengths.original else "short_factor"
    divisors = place.list(name)
    if len(divisors) != pairs or not all(type(d) in (int, float) and 0 < d < math.inf for d in divisors):
        raise ValueError(f"{place.where}{name} should be a list of {pairs} positive numbers")
    factor = place.number("factor", lengths.longest / lengths.original)
    gain = math.sqrt(1 + math.log(factor) / math.log(lengths.original)) if factor > 1 else 1.0
    return np.array(divisors, np.float64), place.number("attention_factor", gain)


class Kind(NamedTuple):
    keys: tuple[str, ...]  # what it reads
    stretch: Callable[[Fields, float, int, Lengths], Stretch] | None  # None: nothing is stretched


KINDS = {
    "default": Kind((), None),
    "linear": Kind(("factor",), _linear),
    "llama3": Kind(("factor", "low_freq_factor", "high_freq_factor"), _llama3),
    "yarn": Kind(("factor", "attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate"), _yarn),
    "longrope": Kind(("factor", "attention_factor", "short_factor", "long_factor"), _longrope),
}


def stretched(kind: str, place: Fields, theta: float, size: int, lengths: Lengths) -> dict:
    """ModelConfig's rope_theta, rope_stretch and rope_gain for `size` turning channels, from the fields of one `rope_scaling`.

    ValueError names a kind that is not supported or a field that is not as it should be.
    """
    if kind not in KINDS:
        raise ValueError(f"{place.where}rope_type={kind!r} is not supported; supported: {', '.join(KINDS)}")
    if size > MOST_CHANNELS:  # before a list is made of them all
        raise ValueError(f"{place.where}{size} turning channels in a head are more than there can be")
    if theta <= 1 or lengths.original < 2:
        raise ValueError(f"{place.where}rope_theta={theta} and an original length of {lengths.original} should be above 1")
    if KINDS[kind].stretch is None:
        return {"rope_theta": theta}
    with np.errstate(all="ignore"):  # looked at below
        divisors, gain = KINDS[kind].stretch(place, theta, size // 2, lengths)
    if not (np.isfinite(divisors).all() and (divisors > 0).all() and math.isfinite(gain)):
        raise ValueError(f"{place.where}{kind} gives pairs that turn infinitely fast or not at all: a number in it is out of range")
    return {"rope_theta": theta, "rope_stretch": tuple(divisors.tolist()), "rope_gain": float(gain)}
