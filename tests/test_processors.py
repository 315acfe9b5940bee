"""Penalties, forbidden tokens and processors of one's own: the same in plain and speculative rounds, because they see the path."""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from loop import VOCAB, counting, drafter, fixed, lm, mixed, random_lm

import specjax
from specjax import Sampling, decode, processors
from specjax.types import Path, struct

LOGITS = np.asarray([2.0, -1.0, 0.5, 3.0], np.float32)
PATH = Path(jnp.asarray([0, 1, 3, 3, 2, 2], jnp.int32), jnp.int32(4), jnp.int32(2))  # prompt 0 1, output 3 3; 2 2 is garbage


@pytest.mark.parametrize(
    ("penalties", "expected"),
    [
        ({"repetition": 2.0}, [1.0, -2.0, 0.5, 1.5]),
        ({"presence": 0.5}, [2.0, -1.0, 0.5, 2.5]),
        ({"frequency": 0.5}, [2.0, -1.0, 0.5, 2.0]),
        ({"repetition": 2.0, "presence": 0.25, "frequency": 0.5}, [1.0, -2.0, 0.5, 0.25]),
        ({"frequency": -1.0}, [2.0, -1.0, 0.5, 5.0]),
    ],
)
def test_penalties(penalties, expected):
    np.testing.assert_array_equal(processors.Penalties(**penalties)(jnp.asarray(LOGITS), PATH), np.float32(expected))


def test_penalties_come_before_processors_and_those_before_temperature():
    """Logits 2, 1 after token 1: repetition 2 halves the 1; doubling makes 4, 1; at temperature 2 the law is softmax (2, .5)."""
    double = jax.tree_util.Partial(lambda logits_V, path: logits_V * 2)
    law, usable = processors.law(
        (double,), Sampling(temperature=2.0, repetition=2.0), jnp.asarray([[[2.0, 1.0]]]),
        Path(jnp.ones((1, 4), jnp.int32), jnp.ones((1, 1), jnp.int32), jnp.ones(1, jnp.int32)),
    )  # fmt: skip
    np.testing.assert_allclose(law[0, 0], np.exp([2, 0.5]) / np.exp([2, 0.5]).sum(), rtol=1e-6)
    assert usable.all()


def no_echo(logits_V, path):
    """Not the token before."""
    return logits_V.at[path.token_S[path.length - 1]].set(-jnp.inf)


@struct
class Favour:
    """More of one token, the later the more."""

    token: int
    by: float

    def __call__(self, logits_V, path):
        return logits_V.at[self.token].add(self.by * (path.length - path.prompt).astype(logits_V.dtype))


OPTIONS = {
    "repetition": {"repetition": 1.7},
    "presence and frequency": {"presence": 0.8, "frequency": 0.4},
}


@pytest.mark.parametrize(("penalty", "temperature"), [("presence and frequency", None), ("repetition", 0.8)])
def test_penalised_output_is_plains_for_every_k(penalty, temperature):
    target = random_lm(1)
    sampling = Sampling(temperature=temperature, coupled=temperature is not None, **OPTIONS[penalty])
    options = {"sampling": sampling, "max_new_tokens": [25, 11], "processors": [Favour(token=3, by=0.1)], "forbidden": [0]}
    prompts = [[1, 2, 3], [5]]
    plain = specjax.generate(target, prompts, **options)
    assert all(0 not in ids for ids in plain.token_ids)
    assert plain.token_ids != specjax.generate(target, prompts, max_new_tokens=[25, 11]).token_ids
    for draft in (drafter(mixed(target, 2, 0.2)), specjax.NGram(most=5, max_n=2, min_n=1)):
        for k in (1, 2, 5):
            out = specjax.generate(target, prompts, drafter=draft, length=fixed(k), **options)
            assert out.token_ids == plain.token_ids
    assert out.counts["accepted"].sum() > 0


@pytest.mark.parametrize("temperature", [None, 0.8])
@pytest.mark.parametrize("k", [1, 5])
def test_a_draft_that_is_the_target_is_accepted_whole_under_processors(temperature, k):
    """So the draft's law sees the same path as the target's, drafted tokens included."""
    target = random_lm(0)
    out = specjax.generate(
        target, [[1, 2, 3], [4]], drafter=drafter(target), length=fixed(k), max_new_tokens=18,
        processors=[no_echo, Favour(token=2, by=0.2)], sampling=Sampling(temperature=temperature, repetition=1.5, frequency=0.3),
    )  # fmt: skip
    assert (out.counts["rejected"] == 0).all() and out.counts["passes"].tolist() == [-(-18 // (k + 1))] * 2
    assert all(a != b for ids in out.token_ids for a, b in itertools.pairwise(ids))


def test_the_law_under_a_penalty_is_exact():
    """Presence 100 makes a permutation of the rest: after one token, the other two with their odds. 20,000 rows, K = 2."""
    target = lm([0.5, 0.3, 0.2])
    decoder = specjax.Decoder(target, drafter=drafter(lm([0.2, 0.2, 0.6]), 2), sampling=Sampling(temperature=1.0, presence=100.0))
    state = decoder.generate(decoder.prefill(decoder.start([[0]] * 20_000, 2)))
    pairs = np.asarray(state.token_BS[:, 1:3]) @ [3, 1]
    law = np.bincount(pairs, minlength=9).reshape(3, 3) / 20_000
    np.testing.assert_allclose(law, [[0, 0.3, 0.2], [0.3 * 5 / 7, 0, 0.3 * 2 / 7], [0.2 * 5 / 8, 0.2 * 3 / 8, 0]], atol=0.015)


def test_numbers_of_penalties_and_processors_compile_nothing():
    target = random_lm(0)
    run = lambda number: specjax.generate(
        target, [[1]], sampling=Sampling(repetition=1 + number), processors=[Favour(token=1, by=number)], max_new_tokens=5
    )
    run(0.1)
    before = decode.generate._cache_size()
    run(0.2)
    assert decode.generate._cache_size() == before


@pytest.mark.parametrize("draft", [None, drafter(random_lm(0))])
@pytest.mark.parametrize(
    "bad", [lambda x, path: jnp.full_like(x, -jnp.inf), lambda x, path: x * jnp.nan, lambda x, path: x.at[0].set(jnp.inf)]
)
def test_processors_that_leave_nothing_to_say_are_an_error(bad, draft):
    late = lambda x, path: jnp.where(path.length - path.prompt > 2, bad(x, path), x)
    with pytest.raises(RuntimeError, match="row 0: processors and forbidden tokens left no token to say"):
        specjax.generate(random_lm(0), [[1]], drafter=draft, processors=[late], max_new_tokens=9)


@pytest.mark.parametrize("mode", [Sampling(), Sampling(temperature=1.0, coupled=True), Sampling(temperature=1.0)])
def test_a_path_that_ends_in_nothing_to_say_does_no_harm_unless_it_is_taken(mode):
    """The draft likes token 2, after which nothing may be said; the target never says it."""
    target = lm([0.6, 0.4, 0])
    dead_end = lambda x, path: jnp.where(path.token_S[path.length - 1] == 2, -jnp.inf, x)
    out = specjax.generate(target, [[1]], drafter=drafter(lm([0.1, 0.1, 0.8])), processors=[dead_end], max_new_tokens=20, sampling=mode)
    assert len(out.token_ids[0]) == 20 and 2 not in out.token_ids[0] and out.counts["rejected"][0] > 0
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(out.trace))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"forbidden": [VOCAB]}, "forbidden=.* must be token ids, 0 .. 6"),
        ({"forbidden": [-1]}, "forbidden=.* must be token ids"),
        ({"forbidden": range(VOCAB)}, "forbidden names every token"),
        ({"eos": [1, VOCAB]}, "eos=7 must be between 0 and 6"),
        ({"eos": [2.5]}, "eos=2.5 must be a whole number"),
        ({"forbidden": 3}, "forbidden=3 must be a list"),
        ({"processors": None}, "processors=None must be a list"),
        ({"seed": 2.5}, "seed=2.5 must be a whole number"),
        ({"samples": 1.5}, "samples=1.5 must be a whole number"),
        ({"min_new_tokens": -1}, "min_new_tokens=-1 must be between 0 and"),
        ({"processors": ["ban"]}, r"processors\[0\]='ban' must be a function"),
        ({"processors": [processors.Penalties]}, "must be a function"),
        ({"sampling": Sampling(repetition=0.0)}, "sampling.repetition=0.0 must be between"),
        ({"sampling": Sampling(presence=float("nan"))}, "sampling.presence=nan must be between"),
    ],
)
def test_bad_numbers_are_refused(options, text):
    with pytest.raises(ValueError, match=text):
        specjax.generate(random_lm(0), [[1]], **options)


@pytest.mark.parametrize("other", [lambda x, path: x[:3], lambda x, path: x.max(), lambda x, path: None])
def test_a_processor_returns_as_many_logits_as_it_was_given(other):
    with pytest.raises(ValueError, match=r"processors\[1\]=.* made .* of logits of 7 tokens"):
        specjax.Decoder(random_lm(0), processors=[no_echo, other])


@pytest.mark.parametrize("broken", [lambda x: x, lambda x, path: x + path.nothing, math.sin])
def test_a_processor_that_fails_is_named_before_anything_is_compiled(broken):
    with pytest.raises(ValueError, match=r"processors\[0\]=.* fails on logits of 7 tokens: "):
        specjax.Decoder(random_lm(0), processors=[broken])


@pytest.mark.parametrize("k", [0, 3])
def test_logprobs_are_the_models_own(k):
    target = random_lm(5, order=1)
    out = specjax.generate(
        target, [[3], [2, 1]], drafter=drafter(mixed(target, 2)), length=fixed(k), max_new_tokens=[9, 4], logprobs=True,
        sampling=Sampling(temperature=0.7, top_k=3), forbidden=[0],
    )  # fmt: skip
    law = np.exp(target.params.astype(np.float64))
    for prompt, ids, got in zip([[3], [2, 1]], out.token_ids, out.logprobs, strict=True):
        before = [prompt[-1], *ids[:-1]]
        np.testing.assert_allclose(got, [np.log(law[b, t]) for b, t in zip(before, ids, strict=True)], rtol=1e-5)
    assert specjax.generate(counting(), [[1]], max_new_tokens=2).logprobs is None
