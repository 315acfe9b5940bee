"""EAGLE-3 drafts in the loop: plain's tokens, the law they were drawn from, and a memory that equals a fresh start's."""

import dataclasses
import functools

import jax
import loop
import numpy as np
import pytest
import tiny_eagle

import specjax
from specjax import Combined, NGram, Sampling, decode, sampling
from specjax.certify.drafter import Anywhere, check
from specjax.drafters.combined import CombinedState
from specjax.types import struct

PROMPTS = [[1, 2, 3, 1, 2, 4, 1, 2], [4, 5, 4, 5, 6], [7]]
PENALISED = {"repetition": 1.5}


@functools.cache
def plain(how):
    return specjax.generate(tiny_eagle.target(), PROMPTS, sampling=how, max_new_tokens=24).token_ids


def combined(**options):
    return Combined(first=NGram(most=5, min_n=1), second=tiny_eagle.drafter(**options))


DRAFTERS = {
    "eagle3": tiny_eagle.drafter,
    "reduced": lambda: tiny_eagle.drafter(reduced=100),
    "combined": lambda: combined(reduced=100),
    "reduced model": tiny_eagle.reduced_model,
}


@pytest.mark.parametrize("name", DRAFTERS)
@pytest.mark.parametrize("how", [Sampling(), Sampling(temperature=0.8, coupled=True), Sampling(**PENALISED)], ids=str)
def test_greedy_and_coupled_output_equals_plain(name, how):
    drafter = DRAFTERS[name]()
    out = specjax.generate(tiny_eagle.target(), PROMPTS, drafter=drafter, sampling=how, max_new_tokens=24, ladder=(drafter.most + 1,))
    assert out.token_ids == plain(how)
    assert (out.counts["drafted"] > 0).all()


@pytest.mark.parametrize("name", DRAFTERS)
def test_certified(name):
    """The reported q is the law that was drawn from, and the state after any round drafts as a fresh one does."""
    verdict = check(DRAFTERS[name](), tiny_eagle.target(), sampling=Sampling(temperature=0.8), rows=128, rounds=6)
    assert verdict.passed, verdict.why


def test_a_reduced_draft_says_its_own_tokens_only():
    drafter = tiny_eagle.drafter(reduced=100)
    out = specjax.generate(tiny_eagle.target(), PROMPTS, drafter=drafter, sampling=Sampling(temperature=1.0), max_new_tokens=24)
    node_M = np.arange(drafter.most + 1)
    drafted = out.trace.token_BNM[(node_M > 0) & (node_M <= out.trace.drafted_BN[..., None])]
    assert len(drafted) > 100
    assert set(drafted.tolist()) <= set(np.asarray(drafter.ids_U).tolist())


@pytest.mark.parametrize("name", ["eagle3", "combined"])
def test_the_memory_equals_a_fresh_start(name):
    """After every round: features of all that the target has read, and the cells made so far, are those of one prefill. The texts end near
    the end of the buffers, where a write that is too wide would be moved onto live cells."""
    target, made = tiny_eagle.target(), tiny_eagle.drafter() if name == "eagle3" else combined()
    prompts = [[i % 50 for i in range(90)], [i * i % 60 for i in range(80)]]
    decoder = specjax.Decoder(target, drafter=made, rule=Anywhere(), sampling=Sampling(temperature=1.5), ladder=(made.most + 1,))
    ends = set()
    for state in loop.rounds(decoder, prompts, 30):
        texts = [ids[: n + 1] for ids, n in zip(state.token_BS.tolist(), state.cursor_B, strict=True)]
        fresh = decoder.prefill(decoder.start(texts, 1, size=state.token_BS.shape[1])).drafter
        mine, fresh = (getattr(x, "second", x) for x in (state.drafter, fresh))
        assert (mine.target_B == state.cursor_B).all() and state.token_BS.shape[1] == 128
        for row, cells in enumerate(mine.cursor_B):
            for one, other in zip(mine.features, fresh.features, strict=True):
                np.testing.assert_allclose(one[row, : state.cursor_B[row]], other[row, : state.cursor_B[row]], atol=2e-5)
            known = min(cells, state.cursor_B[row] - 1)
            for one, other in zip(jax.tree.leaves(mine.cache), jax.tree.leaves(fresh.cache), strict=True):
                np.testing.assert_allclose(one[row, :, :known], other[row, :, :known], atol=2e-5)
        ends |= set(state.trace.committed_BN[state.trace.drafted_BN == 3].tolist())
    assert ends == {1, 2, 3, 4}


@struct
class Smoothed:
    """A processor that gives some mass to every token, also to those that a draft cannot say."""

    share: float = 0.3

    def __call__(self, logits_V, path):
        return jax.numpy.logaddexp(jax.nn.log_softmax(logits_V), jax.numpy.full_like(logits_V, np.log(self.share / logits_V.shape[0])))


def test_a_reduced_q_is_the_law_that_is_drawn_from_whatever_processors_do():
    target, drafter = tiny_eagle.target(), tiny_eagle.drafter(reduced=100)
    decoder = specjax.Decoder(target, drafter=drafter, sampling=Sampling(temperature=1.0), processors=(Smoothed(),), ladder=(4,))
    state = decoder.prefill(decoder.start(PROMPTS[:2], 16))
    draw = decode.Draw(decoder.setup, state).within(drafter.ids_U)
    q_BU = draw.law(jax.random.normal(jax.random.key(0), (2, 100)), np.zeros((2, 4), np.int32), 0)
    np.testing.assert_allclose(q_BU.sum(-1), 1, atol=1e-5)


def test_a_draft_that_can_say_nothing_still_has_a_law():
    target, drafter = tiny_eagle.target(), tiny_eagle.drafter(reduced=100)
    rest = np.setdiff1d(np.arange(target.model.vocab), drafter.ids_U)
    options = dict(sampling=Sampling(temperature=1.0), forbidden=np.asarray(drafter.ids_U).tolist(), ladder=(4,))
    out = specjax.generate(target, PROMPTS, drafter=drafter, max_new_tokens=12, **options)
    assert set(out.token_ids[0]) <= set(rest.tolist()) and out.counts["accepted"].sum() == 0
    assert out.trace.q_BNM[0, 0, 1] == 1


def test_a_reduced_draft_takes_the_coupled_noise_by_the_targets_ids():
    """Its token is that of the largest law over noise among those that it can say."""
    target, drafter = tiny_eagle.target(), tiny_eagle.drafter(reduced=100)
    decoder = specjax.Decoder(target, drafter=drafter, sampling=Sampling(temperature=1.0, coupled=True), seed=5)
    state = decoder.prefill(decoder.start(PROMPTS[:2], 16, [3, 4]))
    law_BU = jax.nn.softmax(jax.random.normal(jax.random.key(0), (2, 100)), axis=-1)
    drawn_B = decode.Draw(decoder.setup, state).within(drafter.ids_U)(law_BU, 1)
    keys = sampling.key(jax.random.key(5), sampling.NOISE, np.asarray([3, 4], np.uint32), state.cursor_B + 1)
    score_BU = np.log(law_BU) - np.log(np.asarray(sampling.noise(keys, target.model.vocab))[:, drafter.ids_U])
    assert drawn_B.tolist() == np.asarray(drafter.ids_U)[score_BU.argmax(-1)].tolist()


def test_each_row_of_a_combined_draft_asks_its_own_drafter():
    target, drafter = tiny_eagle.target(), combined()
    prompts = [[5, 6, 7, 8, 5, 6], [5, 6, 7, 8, 9, 10]]
    decoder = specjax.Decoder(target, drafter=drafter)
    state = decoder.prefill(decoder.start(prompts, 16))
    assert isinstance(state.drafter, CombinedState)
    alone = specjax.Decoder(target, drafter=drafter.second)
    expected = decode.step(alone.setup, target.params, alone.prefill(alone.start(prompts, 16)))
    trace = jax.device_get(decoder.step(state).trace)
    assert trace.drafted_BN[:, 0].tolist() == [4, 3]  # the match offers what follows it, the trained draft its most
    assert trace.token_BNM[0, 0, 1:5].tolist() == [7, 8, 5, 6]
    np.testing.assert_array_equal(trace.token_BNM[1, 0, 1:4], expected.trace.token_BNM[1, 0, 1:4])


def test_a_draft_of_a_shorter_context_stops_drafting_at_its_end():
    drafter = tiny_eagle.drafter()
    short = dataclasses.replace(drafter.model.config, base=dataclasses.replace(drafter.model.config.base, max_positions=16))
    drafter = dataclasses.replace(drafter, model=dataclasses.replace(drafter.model, config=short))
    out = specjax.generate(tiny_eagle.target(), PROMPTS, drafter=drafter, max_new_tokens=24, ladder=(4,))
    assert out.token_ids == plain(Sampling())
    ends = (out.trace.root_BN + out.trace.drafted_BN)[out.trace.drafted_BN > 0]
    assert ends.max() == 16  # drawn after position 15, and never read


def test_what_does_not_fit_is_refused_in_a_line():
    target, drafter = tiny_eagle.target(), tiny_eagle.drafter(reduced=100)
    wrong = lambda **parts: dataclasses.replace(drafter, model=dataclasses.replace(drafter.model, config=tiny_eagle.config(**parts)))
    with pytest.raises(ValueError, match=r"drafter reads layers \[0, 2\] of the target, which has 2"):
        specjax.Decoder(target, drafter=wrong(taps=(0, 2), head_vocab=100))
    with pytest.raises(ValueError, match=r"drafter.ids_U of shape .100,. must name the target's token of each of the draft's 99"):
        specjax.Decoder(target, drafter=wrong(head_vocab=99))
    with pytest.raises(ValueError, match=r"drafter.ids_U must ascend within the target's ids, 0 .. 256"):
        specjax.Decoder(target, drafter=dataclasses.replace(drafter, ids_U=drafter.ids_U[::-1]))
    with pytest.raises(ValueError, match=r"drafter reads layers .* of the target, which has None"):
        specjax.Decoder(loop.random_lm(0, vocab=257), drafter=drafter)
    with pytest.raises(ValueError, match=r"drafter.first=ngram branches: a combined draft is a chain"):
        Combined(first=NGram(branches=2), second=drafter)
