"""The automaton of stop strings against a naive search, and what is left of the text."""

import numpy as np
import pytest

from specjax import stops

TOKENS = [b"a", b"b", b"ab", b"", b"bca", "é".encode()[:1], "é".encode()[1:], b"\n"]
STOPS = [b"ab", b"bca", b"a\n", b"bb", "é".encode(), b"abcab"]


def walk(table, state, tokens):
    state_M, hit_M = table.walk(np.asarray([state], np.int32), np.asarray([tokens], np.int32))
    return np.asarray(state_M)[0], np.asarray(hit_M)[0]


def ends_in_last(tokens, strings):
    """Whether one of the strings ends in the last token: any search of the whole text."""
    text, before = b"".join(TOKENS[t] for t in tokens), len(b"".join(TOKENS[t] for t in tokens[:-1]))
    return any(text.endswith(s, 0, end) for s in strings for end in range(before + 1, len(text) + 1))


@pytest.mark.parametrize("count", [1, 2, len(STOPS)])
def test_a_walk_finds_what_a_search_finds(count):
    rng = np.random.default_rng(count)
    table = stops.table(STOPS[:count], TOKENS, len(TOKENS))
    hits = 0
    for _ in range(60):
        tokens = rng.integers(len(TOKENS), size=12).tolist()
        split = int(rng.integers(12))
        _, hit_M = walk(table, stops.start(table, tokens[:split]), tokens[split:])
        assert hit_M.tolist() == [ends_in_last(tokens[: i + 1], STOPS[:count]) for i in range(split, 12)]
        hits += hit_M.sum()
    assert hits > 20


def test_a_long_string_takes_another_bucket_of_states():
    assert stops.table([b"a" * 31], TOKENS, 9).next_VQ.shape == (9, 32)
    assert stops.table([b"a" * 32], TOKENS, 9).next_VQ.shape == (9, 64)
    _, hit_M = walk(stops.table([b"a" * 40], TOKENS, 8), 0, [0] * 45)
    assert hit_M.tolist() == [False] * 39 + [True] * 6


@pytest.mark.parametrize(
    ("prompt", "output", "text", "left"),
    [
        ([0], [1], "b", ""),  # a|b: begins in the prompt
        ([1], [0, 0, 7], "aa\n", "a"),
        ([], [1, 5, 6], "bé", "b"),
        ([], [0, 4], "abca", ""),  # ab ends first
        ([], [7, 4], "\nbca", "\n"),
        ([], [5, 5, 6], "\ufffd" * 3, "\ufffd"),  # a decoder that gives up the whole of a run of bytes for one that is no character
    ],
)
def test_the_text_is_cut_before_the_string_that_ends_first(prompt, output, text, left):
    assert stops.cut(text, TOKENS, STOPS, prompt, output) == left
