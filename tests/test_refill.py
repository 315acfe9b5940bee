"""Rows refilled as they finish: the same tokens, counts and traces as one large batch."""

import numpy as np
import pytest
from loop import drafter, fixed, mixed, random_lm

import specjax
from specjax import Sampling, decode, refill

PROMPTS = [[1, 2, 3], [4], [5] * 30, [0, 1, 2, 3, 4], [6, 6], [2], [3, 1, 4, 1, 5]]
BUDGETS = [20, 3, 9, 0, 31, 1, 12]
MODES = {"greedy": {}, "coupled": {"sampling": Sampling(temperature=0.8, coupled=True)}, "p/q": {"sampling": Sampling(temperature=0.8)}}


@pytest.mark.parametrize(("mode", "batch"), [("greedy", 2), ("coupled", 1), ("coupled", 2), ("p/q", 2), ("p/q", 7), ("p/q", 99)])
def test_refilled_rows_say_the_same(mode, batch):
    target = random_lm(13, flat=1.0)
    options = {"drafter": drafter(mixed(target, 6, 0.4)), "length": fixed(3), "eos": [4], "seed": 3, "logprobs": True, **MODES[mode]}
    whole = specjax.generate(target, PROMPTS, max_new_tokens=BUDGETS, **options)
    parts = specjax.generate(target, PROMPTS, max_new_tokens=BUDGETS, batch=batch, **options)
    assert parts.token_ids == whole.token_ids and parts.finish_reasons == whole.finish_reasons
    assert {"eos", "length"} <= set(whole.finish_reasons)
    for name, count in whole.counts.items():
        assert parts.counts[name].tolist() == count.tolist(), name
    for name, x in ((name, x) for name, x in whole.trace._asdict().items() if x is not None):
        np.testing.assert_allclose(getattr(parts.trace, name), x, rtol=1e-6, err_msg=name)
    for got, want in zip(parts.logprobs, whole.logprobs, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-6)


def test_a_transformer_with_its_caches_is_refilled():
    target, draft = specjax.load("toy://tiny"), specjax.load("toy://tiny/1")
    prompts = ["abcabc", "x", "some longer text", "y" * 40]
    options = {"drafter": draft, "max_new_tokens": [12, 3, 20, 9]}
    whole = specjax.generate(target, prompts, **options)
    assert specjax.generate(target, prompts, batch=2, **options).token_ids == whole.token_ids


def test_rows_come_as_they_finish_and_none_waits():
    """Two rows, budgets 30 and 1, 1, 1: plain decoding takes 30 rounds, not 30 + 1 + 1."""
    decoder = specjax.Decoder(random_lm(0))
    order = [(i, len(out.token_ids[0])) for i, out in refill.decode_all(decoder, [[1]] * 4, [30, 1, 1, 1], range(4), 2)]
    assert order == [(1, 1), (2, 1), (3, 1), (0, 30)]


def test_a_trace_longer_than_its_ring_is_unrolled():
    """140 rounds in all through a ring of 128."""
    target = random_lm(2)
    options = {"max_new_tokens": [100, 70, 100, 100], "sampling": Sampling(temperature=1.0)}
    whole = specjax.generate(target, [[1], [2], [3], [4]], **options)
    parts = specjax.generate(target, [[1], [2], [3], [4]], batch=2, **options)
    assert parts.trace.root_BN.tolist() == whole.trace.root_BN.tolist()
    assert parts.trace.emitted_BN.tolist() == whole.trace.emitted_BN.tolist()


def test_refilling_compiles_one_loop():
    target = random_lm(0)
    specjax.generate(target, [[1]] * 3, max_new_tokens=[9, 2, 5], batch=2)
    before = decode.generate._cache_size(), decode.put_row._cache_size()
    specjax.generate(target, [[1, 2], [3], [4], [5]], max_new_tokens=[3, 8, 1, 2], batch=2)
    assert (decode.generate._cache_size(), decode.put_row._cache_size()) == before


def test_a_refilled_prompt_that_does_not_fit_is_refused_before_any_compute():
    with pytest.raises(ValueError, match=r"prompts\[2\] is empty"):
        specjax.generate(random_lm(0), [[1], [2], []], batch=1)
    with pytest.raises(ValueError, match="batch=0 must be at least 1"):
        specjax.generate(random_lm(0), [[1], [2]], batch=0)


def test_samples_of_a_prompt_have_coins_of_their_own():
    target = random_lm(3, flat=3.0)
    options = {"max_new_tokens": 12, "sampling": Sampling(temperature=1.0), "ids": ["a", "b"]}
    one = specjax.generate(target, [[1], [1]], **options)
    many = specjax.generate(target, [[1], [1]], samples=3, **options)
    assert [many.token_ids[0], many.token_ids[3]] == one.token_ids
    assert len({tuple(ids) for ids in many.token_ids}) == 6
    assert specjax.generate(target, [[1], [1]], samples=3, batch=4, **options).token_ids == many.token_ids
    with pytest.raises(ValueError, match="samples=0 must be between 1 and"):
        specjax.generate(target, [[1]], samples=0)
    with pytest.raises(ValueError, match="samples=2 at temperature 0 would all be equal"):
        specjax.generate(target, [[1]], samples=2)
