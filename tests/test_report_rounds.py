"""Rounds of a trace in words, from a loop whose every token is known."""

import numpy as np
import pytest

import specjax
from specjax.models import toy
from specjax.report import rounds
from specjax.report.rounds import Round

WORDS = "abcdefgh"


def in_a_ring(**mistake):
    """After each letter the next one; a draft may be mistaken about some."""
    after = {letter: WORDS[(i + 1) % 8] for i, letter in enumerate(WORDS)} | mistake
    return specjax.LM(*toy.table([[float(after[a] == b) for b in WORDS] for a in WORDS]), None, "ring")


def decoded(draft, budget=7):
    out = specjax.generate(in_a_ring(), [[0]], drafter=draft, length=draft and specjax.Fixed(k=3), max_new_tokens=budget)
    return {name: x[0] for name, x in out.trace._asdict().items() if x is not None}


def test_the_three_outcomes_and_an_end():
    assert list(rounds.read(decoded(in_a_ring(c="a")), WORDS.__getitem__)) == [
        Round(0, "a", ("b", "c", "a"), 2, "d", ("b", "c", "d")),
        Round(3, "d", ("e", "f", "g"), 3, "h", ("e", "f", "g", "h")),
    ]
    first, *_ = rounds.read(decoded(in_a_ring(a="e")), WORDS.__getitem__)
    assert first == Round(0, "a", ("e", "f", "g"), 0, "b", ("b",))
    kinds = [one.outcome for draft in (in_a_ring(c="a"), in_a_ring(a="e")) for one in rounds.read(decoded(draft), WORDS.__getitem__)][:3]
    assert kinds == ["refused in the middle", "all accepted", "first refused"]


def test_a_round_that_drafted_nothing():
    [one] = rounds.read(decoded(None, budget=1), WORDS.__getitem__)
    assert one == Round(0, "a", (), 0, "b", ("b",)) and one.outcome == "none drafted"


def test_what_stood_past_the_end_was_not_said():
    trace = {name: np.asarray([x]) for name, x in {"root_BN": 4, "drafted_BN": 2, "stop_BN": 2, "committed_BN": 1, "emitted_BN": 3}.items()}
    [one] = rounds.read({**trace, "token_BNM": np.asarray([[0, 1, 2, 9]])}, WORDS.__getitem__)
    assert one == Round(4, "a", ("b", "c"), 2, "d", ("b",))


def test_drafts_that_branch_are_refused():
    with pytest.raises(ValueError, match="this trace is of drafts that branch: take an arm that drafts chains"):
        list(rounds.read({"up_BNM": np.zeros((1, 1))}, WORDS.__getitem__))
