"""Table models and short ways to run the decode loop on them."""

from __future__ import annotations

import dataclasses
import functools

import jax
import numpy as np

import specjax
from specjax import sampling
from specjax.models import toy
from specjax.state import RUNNING
from specjax.types import struct

VOCAB = 7


def lm(law, order=1) -> specjax.LM:
    """A language model from a table of laws."""
    model, params = toy.table(law, order)
    return specjax.LM(model, params, None, "table")


@functools.cache
def random_lm(seed: int, order: int = 2, vocab: int = VOCAB, flat: float = 0.5) -> specjax.LM:
    """Random laws over contexts of `order` tokens; a small `flat` makes them peaked."""
    rng = np.random.default_rng(seed)
    return lm(rng.dirichlet([flat] * vocab, size=(vocab,) * order), order)


def mixed(target: specjax.LM, seed: int, share: float = 0.5) -> specjax.LM:
    """A draft whose laws are the target's mixed with noise, so that some drafts pass."""
    law = np.exp(target.params)
    noise = np.random.default_rng(seed).dirichlet([1.0] * law.shape[-1], size=law.shape[:-1])
    return lm((1 - share) * law + share * noise, target.model.order)


def counting(vocab=VOCAB) -> specjax.LM:
    """The token after t is t + 1, surely."""
    return lm(np.roll(np.eye(vocab), 1, axis=1))


def drafter(draft: specjax.LM, most=5):
    return specjax.ModelDrafter(model=draft.model, params=draft.params, most=most)


def fixed(k) -> specjax.Fixed:
    return specjax.Fixed(k=np.int32(k))


@struct
class UpAndDown:
    """One more after full acceptance, one less otherwise, between 1 and 3: a policy with a state of its own."""

    def init(self, batch):
        return jax.numpy.ones(batch, jax.numpy.int32)

    def choose(self, state, offer_B):
        return jax.numpy.minimum(state, offer_B)

    def keep_going(self, state, q_BV, depth):
        return jax.numpy.ones(q_BV.shape[0], bool)

    def observe(self, state, verdict):
        full = verdict.accepted_B == verdict.drafted_B
        return jax.numpy.clip(jax.numpy.where(full, state + 1, state - 1), 1, 3)


def rounds(decoder: specjax.Decoder, prompts, budget, ids=None):
    """The state after prefill, then after each round."""
    state = decoder.prefill(decoder.start(prompts, budget, ids))
    yield keep(state)
    while (state.finish_B == RUNNING).any():
        state = decoder.step(state)
        yield keep(state)


def keep(state):
    """A copy on the host: the state itself is donated."""
    return jax.device_get(state)


def replace(thing, **changes):
    return dataclasses.replace(thing, **changes)


class Coins:
    """The loop's own randomness for one prompt, as `reference.speculative_decode` asks for it."""

    def __init__(self, seed: int, prompt_id: int, vocab: int = VOCAB):
        self.drawn = jax.device_get(_coins(jax.random.key(seed), np.uint32(prompt_id), vocab))

    def __call__(self, purpose, *place):
        coin = self.drawn[purpose][place]
        return coin if purpose == "stop" else -np.log(coin.astype(np.float64))


@functools.partial(jax.jit, static_argnames="vocab")
def _coins(seed, prompt_id, vocab):
    """By purpose and place: for the first positions of a text, and the first nodes of a draft."""
    position, node = np.arange(64), np.arange(9)
    key = functools.partial(sampling.key, seed)
    return {
        "draft": sampling.noise(key(sampling.DRAFT, prompt_id, position[:, None], node[None]), vocab),
        "emit": sampling.noise(key(sampling.EMIT, prompt_id, position), vocab),
        "noise": sampling.noise(key(sampling.NOISE, prompt_id, position), vocab),
        "stop": jax.vmap(functools.partial(jax.random.uniform, dtype=np.float32))(key(sampling.STOP, prompt_id, position)),
    }


class Texts:
    """A tokenizer that only knows what its tokens say."""

    eos_ids = ()

    def __init__(self, texts: list[bytes]):
        self.texts = texts

    def token_bytes(self) -> list[bytes]:
        return self.texts

    def token(self, i: int) -> str:
        return f"<{i}>"

    def decode(self, ids) -> str:
        return b"".join(self.texts[i] for i in ids).decode()
