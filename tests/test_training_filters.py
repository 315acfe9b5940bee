"""Filters: each drops exactly what it should, and counts it."""

import pytest

from specjax.models.toy import ByteTokenizer
from specjax.training import filters
from specjax.training.filters import Filters, Sieve

LONG = list(range(100, 120))  # says nothing twice


def sieve(held=frozenset(), seen=(), **settings):
    return Sieve(Filters(**settings), held, seen)


def test_length():
    s = sieve(min_tokens=3, max_tokens=5)
    kept = [s.admit(LONG[:n], str(n)) is not None for n in (2, 3, 5, 6)]
    assert kept == [False, True, True, False] and s.dropped == {"short": 1, "long": 1}


def test_unfinished():
    s = sieve()
    assert s.admit(LONG, "a", finished=False) is None and s.admit(LONG, "a") is not None
    assert s.admit([1], "b", finished=False) is None  # the reason is that it was cut, not how long it is
    assert s.dropped == {"unfinished": 2}


def test_repetition():
    # 'abcd' + 'abcd' + ...: eight tokens have five 4-grams, of which the last is the first again
    assert filters.repetition([1, 2, 3, 4] * 2) == pytest.approx(1 / 5)
    assert filters.repetition([1] * 8) == pytest.approx(4 / 5)
    assert [filters.repetition(x) for x in ([1] * 3, [1] * 4, LONG)] == [0, 0, 0]
    assert sieve(repeated=0.5).passes([1] * 5)  # just half
    s = sieve(repeated=0.19)
    assert not s.passes([1, 2, 3, 4] * 2) and s.admit([1, 2, 3, 4] * 2, "x") is None
    assert s.dropped == {"repetitive": 2}


def test_duplicates():
    s = sieve(near=4)
    assert s.admit([1, 2, 3, 4], "Tell me, please!") is not None
    assert s.admit([9, 2, 3, 4], "tell  me -- PLEASE") is None
    assert s.admit([1, 2, 3, 4, 5], "another end") is not None  # the first was no longer than `near`: only its whole text is known
    assert s.admit([1, 2, 3, 4, 6], "yet another") is None
    assert s.admit([0, 1, 2, 3, 4], "moved by one") is not None
    assert s.admit([5, 2, 3, 4, 5], "another beginning") is not None
    assert s.dropped == {"duplicate": 1, "near duplicate": 1}
    assert [s.admit([7, 7, 8, 8], text) is not None for text in ("?!", "!?", "?!")] == [True, True, False]  # no words: as they are


def test_duplicates_of_what_was_there_before():
    key = sieve(near=4).admit(LONG, "one")
    s = sieve(near=4, seen=key)
    assert s.admit(LONG[::-1], "One") is None and s.admit([*LONG[:4], 0], "two") is None
    assert s.dropped == {"duplicate": 1, "near duplicate": 1}


def test_what_is_dropped_is_not_known_later():
    s = sieve()
    assert s.admit(LONG, "a", finished=False) is None and s.admit(LONG, "a") is not None


def test_held_out(tmp_path):
    (tmp_path / "held.jsonl").write_text('{"turns": ["0123456789", "tiny?"]}\n')
    held = filters.held_out(ByteTokenizer(), [str(tmp_path / "held.jsonl")])
    assert held == {tuple(b"01234567"), tuple(b"12345678"), tuple(b"23456789"), tuple(b"tiny?")}
    s = sieve(held)
    kept = [s.passes(list(x)) for x in (b"abc12345678", b"abc1234567", b"tiny?", b"tiny? no")]
    assert kept == [False, True, False, True] and s.dropped == {"held out": 2}
    assert filters.held_out(ByteTokenizer(), []) == frozenset()


def test_own_prompts_are_known_whole():
    from specjax.prompts import load

    s = sieve(filters.held_out(ByteTokenizer(), ["own"]), max_tokens=10_000, repeated=1.0)
    prompts = [turn for p in load("own") for turn in p.turns]
    assert all(s.admit(list(turn.encode()), turn) is None for turn in prompts)
    assert s.dropped == {"held out": len(prompts)}


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"min_tokens": 0}, r"min_tokens=0 must be between 1 and"),
        ({"min_tokens": 9, "max_tokens": 8}, r"max_tokens=8 must be between 9 and"),
        ({"near": 0}, r"near=0 must be between"),
        ({"repeated": 1.5}, r"repeated=1.5 must be between 0 and 1"),
    ],
)
def test_bad_settings(settings, said):
    with pytest.raises(ValueError, match=said):
        Filters(**settings)
