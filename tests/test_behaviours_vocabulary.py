"""Vocabularies padded beyond their tokens: padding is never said and never drafted, even with the largest logits."""

import dataclasses

import jax.numpy as jnp
import pytest
from loop import VOCAB, drafter, mixed, random_lm

import specjax
from specjax import Sampling
from specjax.models import toy
from specjax.models.border import LanguageModel

MODES = {"greedy": Sampling(), "p/q": Sampling(temperature=0.7)}


@dataclasses.dataclass(frozen=True)
class Padded(toy.TableModel):
    """A table whose head is wider than its vocabulary; logits of the padding are larger than any other."""

    padding: int = 0

    def head(self, params, hidden):
        logits = super().head(params, hidden)
        return jnp.concatenate([logits, jnp.full((*logits.shape[:-1], self.padding), 100.0, logits.dtype)], axis=-1)


def padded(lm, padding):
    return dataclasses.replace(lm, model=Padded(lm.model.vocab, lm.model.order, padding))


@pytest.mark.parametrize("mode", MODES)
def test_padding_is_never_emitted(mode):
    """Target and draft padded to different sizes say, and draft, what they do without padding."""
    target = random_lm(1)
    draft = mixed(target, 2)
    options = {"sampling": MODES[mode], "max_new_tokens": 16, "seed": 1, "logprobs": True, "ladder": (6,)}
    bare = specjax.generate(target, [[3, 1], [5]], drafter=drafter(draft), **options)
    out = specjax.generate(padded(target, 2), [[3, 1], [5]], drafter=drafter(padded(draft, 9)), **options)
    assert out.token_ids == bare.token_ids and out.logprobs == bare.logprobs
    assert (out.trace.token_BNM == bare.trace.token_BNM).all() and (out.trace.q_BNM == bare.trace.q_BNM).all()


def test_padding_is_no_prompt():
    with pytest.raises(ValueError, match=r"prompts\[0\] has token ids outside 0 .. 6"):
        specjax.generate(padded(random_lm(0), 2), [[VOCAB]])


def test_a_transformers_padding_is_not_of_its_vocabulary():
    model = LanguageModel(dataclasses.replace(toy.TINY, real_vocab=200))
    assert (model.vocab, model.config.vocab) == (200, 257)
    assert LanguageModel(toy.TINY).vocab == 257


def test_padding_does_not_make_vocabularies_differ_and_tokens_do():
    assert specjax.Decoder(padded(random_lm(0), 2), drafter=drafter(padded(random_lm(0), 9))).setup.drafter.model.vocab == VOCAB
    with pytest.raises(ValueError, match="draft vocabulary of 9 tokens, target's has 7"):
        specjax.Decoder(padded(random_lm(0), 2), drafter=drafter(random_lm(0, vocab=9)))
