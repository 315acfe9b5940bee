"""Doubles that need no download: a table model with a known law, and a tiny random transformer with a byte tokenizer."""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

from specjax.models.border import border, init
from specjax.models.config import ModelConfig


@dataclasses.dataclass(frozen=True)
class TableModel:
    """Next-token logits looked up by the last `order` tokens. See `specjax.types.Model`.

    Its parameters are one array [V] * order + [V] of logits. The earlier tokens are read from the cache, which holds token ids, [B, S]:
    a loop that leaves a wrong token in the cache gets a wrong law. Before position order - 1 the missing tokens count as token 0.
    """

    vocab: int
    order: int = 1

    def init_cache(self, batch: int, size: int, dtype=None):
        return jnp.zeros((batch, size), jnp.int32)

    def forward(self, params, token_BT, cache, cursor_B, *, position_BT=None, mask=None, layers=None, taps=()):
        """hidden_BTD is the index of the context, [B, T, 1]."""
        B, T = token_BT.shape
        slot_BT = cursor_B[:, None] + jnp.arange(T, dtype=cursor_B.dtype)[None]
        cache = cache.at[jnp.arange(B)[:, None], slot_BT].set(token_BT, mode="promise_in_bounds")
        before = functools.partial(_before, cache, slot_BT) if mask is None else functools.partial(_before_seen, cache, mask)
        context_BT = jnp.zeros_like(token_BT)
        for back in reversed(range(self.order)):
            context_BT = context_BT * self.vocab + before(back)
        return context_BT[..., None], (), cache

    def gather(self, cache, cursor_B, slot_BT, span: int):
        new_BT = jnp.take_along_axis(cache, cursor_B[:, None] + slot_BT, axis=1)
        return jax.vmap(lambda row, new, at: jax.lax.dynamic_update_slice(row, new, (at,)))(cache, new_BT, cursor_B)

    def head(self, params, hidden):
        return params.reshape(-1, self.vocab)[hidden[..., 0]]


def _before(cache, slot_BT, back: int):
    """The token `back` places before each fed one, 0 where there is none."""
    return jnp.where(slot_BT >= back, jnp.take_along_axis(cache, jnp.maximum(slot_BT - back, 0), axis=1), 0)


def _before_seen(cache, mask_BTS, back: int):
    """The same among the slots that each fed token sees, its own the last."""
    count_BTS = jnp.cumsum(mask_BTS, axis=-1, dtype=jnp.int32)
    wanted_BTS = mask_BTS & (count_BTS == count_BTS[..., -1:] - back)
    return jnp.sum(jnp.where(wanted_BTS, cache[:, None, :], 0), axis=-1, dtype=cache.dtype)


def table(law, order: int = 1) -> tuple[TableModel, np.ndarray]:
    """A table model from laws: `law` is [V] (the same everywhere) or [V] * order + [V]; zeros become logits of -1e9."""
    law = np.asarray(law, np.float64)
    vocab = law.shape[-1]
    logits = np.where(law > 0, np.log(np.where(law > 0, law, 1)), -1e9)
    return TableModel(vocab, order), np.ascontiguousarray(np.broadcast_to(logits, (vocab,) * (order + 1)), np.float32)


class ByteTokenizer:
    """Ids 0 .. 255 are bytes, 256 is the end of the text. Has the interface of `specjax.models.load.tokenizer.Tokenizer`."""

    vocab_size = 257
    eos_ids = (256,)
    bos_id = None
    has_template = False

    def encode(self, text: str) -> list[int]:
        return list(text.encode("utf-8"))

    def decode(self, ids) -> str:
        return bytes(i for i in ids if i < 256).decode("utf-8", errors="replace")

    def token(self, i: int) -> str:
        return "<end>" if i == 256 else repr(bytes([i]))[2:-1]

    def token_bytes(self) -> list[bytes]:
        return [*(bytes([i]) for i in range(256)), b""]


TINY = ModelConfig(
    vocab=257, width=32, layers=2, heads=4, kv_heads=2, head_size=8, ff=64, tied=True, max_positions=1024, rope_theta=10_000.0
)


def tiny(seed: int = 0, dtype=jnp.float32, scale: float = 1.0, config: ModelConfig = TINY):
    """(model, params) of a tiny random transformer; `scale` multiplies the head, so that its laws are less flat."""
    model, params = border(config, init(config, seed, dtype))
    return model, {**params, "head_DV": params["head_DV"] * jnp.asarray(scale, dtype)}
