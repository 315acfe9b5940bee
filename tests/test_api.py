"""The Python interface: what it returns, and what it refuses in one line."""

import numpy as np
import pytest
from loop import counting, drafter, fixed, mixed, random_lm

import specjax
from specjax import Greedy, Lenient, Sampling, Speculative


@pytest.fixture(scope="module")
def tiny():
    return specjax.load("toy://tiny")


def test_texts_in_texts_out(tiny):
    out = specjax.generate(tiny, ["hello hello", "a"], drafter=specjax.NGram(), max_new_tokens=[6, 3])
    assert [len(t) for t in out.token_ids] == [6, 3] and out.finish_reasons == ["length", "length"]
    assert out.texts == [tiny.tokenizer.decode(t) for t in out.token_ids]
    same = specjax.generate(tiny, [tiny.tokenizer.encode("hello hello")], max_new_tokens=6)
    assert same.token_ids[0] == out.token_ids[0]


def test_another_seed_of_the_toy_is_another_model(tiny):
    other = specjax.load("toy://tiny/1")
    assert other.model == tiny.model and not np.array_equal(other.params["embed_VD"], tiny.params["embed_VD"])


def test_seeds_and_ids_decide_the_draws():
    target, options = random_lm(0), {"sampling": Sampling(temperature=1.0), "max_new_tokens": 20}
    run = lambda **more: specjax.generate(target, [[1]], **options, **more).token_ids
    assert run(seed=1, ids=["a"]) == run(seed=1, ids=["a"])
    assert len({str(run(seed=s, ids=[i])) for s in (1, 2) for i in ("a", "b", 0)}) == 6
    assert run(ids=["a"]) == run(ids=[0xE8B7BE43])  # crc32 of "a"


def test_a_model_can_be_the_drafter(tiny):
    out = specjax.generate(tiny, ["abc"], drafter=tiny, max_new_tokens=16)
    assert out.counts["passes"].tolist() == [2] and out.counts["accepted"].tolist() == [14]


class Plain:
    """A length policy that is no pytree."""

    init = choose = keep_going = observe = None


REFUSED = {
    "prompts must be a list": lambda t: specjax.generate(t, "abc"),
    r"prompts\[1\] is empty": lambda t: specjax.generate(t, ["a", ""]),
    r"prompts\[0\] has token ids outside 0 .. 256": lambda t: specjax.generate(t, [[300]]),
    r"max_new_tokens=-1 of prompts\[0\] must be at least 0": lambda t: specjax.generate(t, ["a"], max_new_tokens=-1),
    r"prompts\[0\]: 1000 tokens \+ max_new_tokens=64 exceed the model's 1024 positions": lambda t: specjax.generate(t, ["a" * 1000]),
    "ids has 1 entries for 2 prompts": lambda t: specjax.generate(t, ["a", "b"], ids=["x"]),
    "has no chat template": lambda t: specjax.generate(t, ["a"], chat=True),
    "sampling.temperature=-1 must be between 0 and inf": lambda t: specjax.Decoder(t, sampling=Sampling(temperature=-1)),
    "draft_sampling.top_p=2 must be between 0 and 1": lambda t: specjax.Decoder(t, draft_sampling=Sampling(temperature=1.0, top_p=2)),
    "rule=speculative with coupled sampling": lambda t: specjax.Decoder(
        t, rule=Speculative(), sampling=Sampling(temperature=1.0, coupled=True)
    ),
    "rule=greedy at temperature 0.5: it needs temperature 0 or coupled": lambda t: specjax.Decoder(
        t, rule=Greedy(), sampling=Sampling(temperature=0.5)
    ),
    r"ladder=\(1, 4\) must ascend from at least 1 to the drafter's largest draft and its root, 8": lambda t: specjax.Decoder(
        t, drafter=specjax.NGram(), ladder=(1, 4)
    ),
    "max_new_tokens has 3 entries for 2 prompts": lambda t: specjax.generate(t, ["a", "b"], max_new_tokens=[1, 2, 3]),
    "max_new_tokens=1.5 must be whole numbers": lambda t: specjax.generate(t, ["a"], max_new_tokens=1.5),
    "length.k=10 must be between 0 and 7, the drafter's largest draft": lambda t: specjax.Decoder(
        t, drafter=specjax.NGram(), length=fixed(10)
    ),
    "length.k=9 must be between 0 and 7": lambda t: specjax.Decoder(
        t, drafter=specjax.NGram(), length=specjax.lengths.StandAside(policy=fixed(9), v=(1.0, 1.0))
    ),
    "length.k=2.5 must be a whole number": lambda t: specjax.Decoder(t, drafter=specjax.NGram(), length=specjax.Fixed(k=2.5)),
    "drafter.most=2.5 must be a whole number": lambda t: specjax.Decoder(t, drafter=specjax.NGram(most=2.5)),
    "length.k=-3 must be between 0 and 0": lambda t: specjax.Decoder(t, length=fixed(-3)),
    "rule.lenience=-1.0 must be above 0": lambda t: specjax.Decoder(t, rule=Lenient(lenience=-1.0), sampling=Sampling(temperature=1.0)),
    "sampling.top_k=2.9 must be a whole number": lambda t: specjax.Decoder(t, sampling=Sampling(temperature=1.0, top_k=2.9)),
    "drafter=object has no init, offer, propose, observe, params, most, taps": lambda t: specjax.Decoder(t, drafter=object()),
    "rule=function has no exact": lambda t: specjax.Decoder(t, rule=lambda *args: None),
    "length=Plain is no pytree of numbers": lambda t: specjax.Decoder(t, length=Plain()),
    r"prompts\[0\]=1 must be a text or a list of token ids": lambda t: specjax.generate(t, [1, 2]),
    "ids: -1 must be between 0 and": lambda t: specjax.generate(t, ["a"], ids=[-1]),
    "seed=4294967296 must be between": lambda t: specjax.Decoder(t, seed=2**32),
    "dtype=float64 needs jax_enable_x64": lambda t: specjax.load("toy://tiny", dtype="float64"),
    "chunk=0 must divide 128": lambda t: specjax.Decoder(t, chunk=0),
    "chunk=100 must divide 128": lambda t: specjax.Decoder(t, chunk=100),
    r"ladder=\(\) must ascend": lambda t: specjax.Decoder(t, ladder=()),
    "max_new_tokens=4294967299 must be under": lambda t: specjax.generate(t, ["a"], max_new_tokens=2**32 + 3),
    "dtype='floaty' is not a dtype": lambda t: specjax.load("toy://tiny", dtype="floaty"),
    "dtype=int8 must be": lambda t: specjax.load("toy://tiny", dtype="int8"),
    "'toy://tinyfoo' should be toy://tiny": lambda t: specjax.load("toy://tinyfoo"),
    "rule.lenience=nan must be above 0": lambda t: specjax.Decoder(t, rule=Lenient(lenience=np.nan), sampling=Sampling(temperature=1.0)),
    r"drafter=NGram\(.* needs most >= 1, 1 <= min_n <= max_n": lambda t: specjax.Decoder(t, drafter=specjax.NGram(min_n=9, max_n=2)),
    "drafter=NGram is a class: give an object": lambda t: specjax.Decoder(t, drafter=specjax.NGram),
    "drafter=str has no init": lambda t: specjax.Decoder(t, drafter="ngram"),
    "needs at least one prompt": lambda t: specjax.generate(t, []),
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_does_not_fit_is_refused_in_one_line(tiny, message):
    with pytest.raises(ValueError, match=message) as error:
        REFUSED[message](tiny)
    assert "\n" not in str(error.value)


def test_other_vocabularies_are_refused_with_three_ids_shown(tiny):
    class Shifted(type(tiny.tokenizer)):
        def token(self, i):
            return super().token(i) if i < 200 else f"other{i}"

    draft = specjax.LM(tiny.model, tiny.params, Shifted(), "shifted")
    with pytest.raises(ValueError, match=r"other vocabularies: id 200 is .* id 201 .* id 202 is [^,]*$"):
        specjax.Decoder(tiny, drafter=draft)


@pytest.mark.parametrize("ladder", [(1, 6), (6,), (2, 3, 6)])
def test_every_ladder_gives_the_same_tokens(ladder):
    target = random_lm(1)
    draft = drafter(mixed(target, 2))
    options = {"drafter": draft, "length": fixed(4), "sampling": Sampling(temperature=0.9), "max_new_tokens": 30, "seed": 4}
    assert specjax.generate(target, [[1], [2, 3]], ladder=ladder, **options).token_ids == specjax.generate(
        target, [[1], [2, 3]], **options
    ).token_ids  # fmt: skip


def test_a_stream_refuses_bad_input_at_once(tiny):
    with pytest.raises(ValueError, match="is empty"):
        specjax.stream(tiny, [])


def test_one_eos_may_be_given_as_a_number():
    assert specjax.generate(counting(), [[0]], eos=3, max_new_tokens=9).token_ids == [[1, 2, 3]]


def test_a_long_draft(tiny):
    """K = 16 over rungs 1, 4, 8, 16, 17; draft = target accepts it whole."""
    draft = specjax.ModelDrafter(model=tiny.model, params=tiny.params, most=16)
    out = specjax.generate(tiny, ["abc"], drafter=draft, max_new_tokens=34)
    assert out.counts["passes"].tolist() == [2] and out.token_ids == specjax.generate(tiny, ["abc"], max_new_tokens=34).token_ids
