"""Stop strings and the minimum length in the loop: inside a block, over rounds, over the edge of the prompt."""

import dataclasses

import jax
import numpy as np
import pytest
from loop import VOCAB, Texts, counting, drafter, fixed, lm, mixed, random_lm

import specjax
from specjax import Sampling, decode

LETTERS = [b"a", b"b", b"c", b"d", b"e", b"f", b"g"]
MODES = {
    "greedy": {},
    "coupled": {"sampling": Sampling(temperature=0.8, coupled=True)},
    "p/q": {"sampling": Sampling(temperature=0.8)},
}


def speaking(target, texts=LETTERS):
    return dataclasses.replace(target, tokenizer=Texts(texts))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("last", range(1, VOCAB))
def test_a_stop_at_every_offset_of_a_block(mode, last):
    """Draft = target counting 0, 1, 2, ... with K = 5: the stop is every draft, and the bonus, in turn."""
    target = speaking(counting())
    out = specjax.generate(target, [[0]], drafter=drafter(target), stop=chr(97 + last), max_new_tokens=30, **MODES[mode])
    assert out.token_ids == [list(range(1, last + 1))] and out.finish_reasons == ["stop"]
    assert out.texts == ["abcdefg"[1:last]]
    kept = min(last, 5)
    counts = {name: int(c[0]) for name, c in out.counts.items()}
    assert counts == {"tokens": last, "passes": 1, "drafted": 5, "accepted": kept, "rejected": 0, "cut": 5 - kept}
    assert out.trace.committed_BN[0].sum() == last


@pytest.mark.parametrize("size", [2, 3, 5])
@pytest.mark.parametrize("start", range(5))
def test_a_stop_that_spans_rounds(start, size):
    """Blocks of three: bcd efg abc def ..."""
    target, said = speaking(counting()), "bcdefgabcdefg"
    stop = said[start : start + size]
    out = specjax.generate(target, [[0]], drafter=drafter(target), length=fixed(2), stop=[stop, "xyz"], max_new_tokens=13)
    assert out.texts == [said[:start]] and out.finish_reasons == ["stop"]
    assert len(out.token_ids[0]) == start + size and out.counts["passes"].tolist() == [-(-(start + size) // 3)]


@pytest.mark.parametrize("k", [0, 4])
def test_a_stop_may_begin_in_the_prompt_but_not_end_there(k):
    target = speaking(counting())
    options = {"drafter": drafter(target), "length": fixed(k), "max_new_tokens": 9}
    over = specjax.generate(target, [[1, 2, 3], [2, 3], [3], [4]], stop="cde", **options)
    assert over.token_ids == [[4], [4], [4, 5, 6, 0, 1, 2, 3, 4], [5, 6, 0, 1, 2, 3, 4]]
    assert over.texts == ["", "", "efgab", "fgab"] and over.finish_reasons == ["stop"] * 4
    inside = specjax.generate(target, [[1, 2, 3]], stop="cd", **options)
    assert inside.texts == ["efgab"]


def test_a_stop_that_ends_inside_a_token():
    target = speaking(counting(), [b"a", b"b", b"xyz", b"d", b"e", b"f", b"g"])
    for stop, text in (("y", "bx"), ("by", None), ("bx", ""), ("zd", "bxy")):
        out = specjax.generate(target, [[0]], drafter=drafter(target), stop=stop, max_new_tokens=4)
        assert out.texts == [text or "bxyzde"[: 6 if text is None else len(text)]], stop
        assert out.finish_reasons == ["length" if text is None else "stop"]


def test_a_stop_of_several_bytes_in_other_tokens():
    target = speaking(counting(), [b"a", b"b", "é".encode()[:1], "é".encode()[1:], b"e", b"f", b"g"])
    assert specjax.generate(target, [[0]], stop="é", max_new_tokens=6).texts == ["b"]


@pytest.mark.parametrize("k", [0, 1, 5])
def test_a_stop_inside_the_budget_beats_the_length_limit(k):
    target = speaking(counting())
    for budget, finish, text in ((2, "length", "bc"), (3, "stop", "b"), (4, "stop", "b")):
        out = specjax.generate(target, [[0]], drafter=drafter(target), length=fixed(k), stop="cd", max_new_tokens=budget)
        assert out.finish_reasons == [finish] and out.texts == [text]


def test_an_eos_that_ends_a_stop_string_is_an_eos_finish():
    target = speaking(counting())
    assert specjax.generate(target, [[0]], eos=[3], stop="cd", max_new_tokens=9).finish_reasons == ["eos"]


@pytest.mark.parametrize("k", [0, 2, 5])
@pytest.mark.parametrize("least", range(9))
def test_no_stop_before_the_minimum(k, least):
    """The text is bcdefga bcdefga: a stop at d, new token 3 and 10."""
    target = speaking(counting())
    out = specjax.generate(target, [[0]], drafter=drafter(target), length=fixed(k), stop="d", min_new_tokens=least, max_new_tokens=20)
    assert len(out.token_ids[0]) == (3 if least <= 3 else 10)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("k", [0, 1, 2, 5])
@pytest.mark.parametrize("least", [0, 1, 2, 3, 4, 7])
def test_no_eos_before_the_minimum_at_any_place_of_a_block(mode, k, least):
    """Left to itself the model says EOS (token 0) at once; forbidden, it says 1."""
    target = lm([1 - 1e-7, 1e-7, 0])
    drafts = [drafter(target), drafter(lm([0, 1, 0]))]  # one program
    for draft in [*drafts, specjax.NGram(most=5, max_n=2, min_n=1)] if mode == "greedy" else drafts:
        out = specjax.generate(
            target, [[2, 1], [1, 1, 1]], drafter=draft, length=fixed(k), eos=[0], min_new_tokens=least, max_new_tokens=[9, 3], **MODES[mode]
        )
        assert out.token_ids[0] == [1] * least + [0] and out.finish_reasons[0] == "eos"
        assert out.token_ids[1] == ([1] * least + [0] if least < 3 else [1] * 3)


@pytest.mark.parametrize("mode", ["greedy", "p/q"])
def test_a_row_with_stops_in_a_batch_is_the_row_alone(mode):
    target = speaking(random_lm(13, flat=1.0))
    options = {"drafter": drafter(mixed(target, 6, 0.4)), "length": fixed(3), "stop": ["ab", "ccf", "eg"], "seed": 3, **MODES[mode]}
    prompts, names = [[1, 2, 3], [4], [0] * 30, [4, 0]], ["a", "b", "c", "d"]
    together = specjax.generate(target, prompts, ids=names, max_new_tokens=[30, 9, 30, 30], **options)
    assert "stop" in together.finish_reasons
    for i, budget in enumerate([30, 9, 30, 30]):
        alone = specjax.generate(target, [prompts[i]], ids=[names[i]], max_new_tokens=budget, **options)
        assert (alone.token_ids[0], alone.finish_reasons[0]) == (together.token_ids[i], together.finish_reasons[i])
        assert {n: int(c[0]) for n, c in alone.counts.items()} == {n: int(c[i]) for n, c in together.counts.items()}
        if mode == "p/q":
            streamed = specjax.stream(target, prompts[i], id=names[i], max_new_tokens=budget, **options)
            assert [t for block in streamed for t in block] == alone.token_ids[0]


def test_other_stops_and_minima_compile_nothing():
    target = speaking(random_lm(0))
    run = lambda stop, least, forbidden: specjax.generate(
        target, [[1]], stop=stop, min_new_tokens=least, eos=[2], forbidden=forbidden, max_new_tokens=5
    )
    run("ab", 1, [3])
    before = decode.generate._cache_size()
    run(["cd", "efg"], 3, [4, 5])
    assert decode.generate._cache_size() == before


def test_the_cache_ends_with_the_stop():
    target = speaking(counting())
    decoder = specjax.Decoder(target, drafter=drafter(target), stop="c")
    state = decoder.generate(decoder.prefill(decoder.start([[0]], 20)))
    assert int(state.cursor_B[0]) == 2 and np.asarray(state.cache)[0, :2].tolist() == [0, 1]
    assert jax.device_get(state.token_BS)[0, :3].tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("stop", "text"),
    [
        ([""], "must be a text of at least one character"),
        ([3], "must be a text of at least one character"),
        (["x<end>"], "holds the special token '<end>', which has no text: give its id, eos=256"),
        (["x" * 499, "yy"], "stop strings of 501 bytes in all: at most 500"),
    ],
)
def test_stops_that_can_not_be_found_are_refused(stop, text):
    with pytest.raises(ValueError, match=text):
        specjax.generate(specjax.load("toy://tiny"), ["a"], stop=stop)


def test_stops_need_a_tokenizer():
    with pytest.raises(ValueError, match="table has no tokenizer, so its output has no text"):
        specjax.generate(counting(), [[1]], stop="a")
