"""From logits to a law, and from a law to a token: the only place where either is done, for target and draft alike.

Filters apply in this order: temperature, top-k, top-p (on what top-k left), min-p. Each keeps *every token at least as likely as a
threshold*, so tokens tied with the last one kept are kept, and the most likely token always survives. No filter sorts the vocabulary.

Every draw has a key of its own (`key`): a purpose, the prompt's id and places. No key serves two draws; only the noise of coupled
sampling comes back at the same position, because the output is then a function of that noise alone.
"""

from __future__ import annotations

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np

from specjax.types import Array, static, struct

GREEDY_BELOW = 1e-5  # temperatures under it are a one-hot law
DRAFT, STOP, EMIT, NOISE = range(4)  # purposes of a draw
PENALTIES = "repetition", "presence", "frequency"
_TOP = 64  # this many largest values are tried before the whole vocabulary is searched
_HALVINGS = 16  # of the search before they are tried again


@struct
class Sampling:
    """How a law is made from logits. Numbers are leaves: another value compiles nothing. None leaves the step out of the program.

    temperature None is greedy: a one-hot law, without softmax or noise. coupled: shared Gumbel noise per position (2408.07978).
    repetition, presence, frequency: penalties that come before all else, see `specjax.processors.Penalties`.
    """

    temperature: float | Array | None = None
    top_k: int | Array | None = None
    top_p: float | Array | None = None
    min_p: float | Array | None = None
    repetition: float | Array | None = None
    presence: float | Array | None = None
    frequency: float | Array | None = None
    coupled: bool = static(default=False)

    @property
    def penalties(self) -> dict:
        """Those that are given, by name."""
        return {name: getattr(self, name) for name in PENALTIES if getattr(self, name) is not None}

    @property
    def one_hot(self) -> bool:
        """Whether the tokens this sampling emits are certain once the logits (and the noise, if coupled) are known."""
        return self.temperature is None or self.coupled


def checked(sampling: Sampling, name: str = "sampling") -> Sampling:
    """Host side: validate the numbers, give them one dtype, and make a temperature of zero the greedy structure.

    Raises:
      ValueError: a number is out of its range.
    """
    t, k, top_p, min_p = sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p
    _within(f"{name}.temperature", t, 0, math.inf)
    _within(f"{name}.top_k", k, 1, 2**31 - 1)
    if k is not None and k != int(k):
        raise ValueError(f"{name}.top_k={k} must be a whole number")
    _within(f"{name}.top_p", top_p, 0, 1)
    _within(f"{name}.min_p", min_p, 0, 1)
    _within(f"{name}.repetition", sampling.repetition, 1e-3, 1e3)
    _within(f"{name}.presence", sampling.presence, -1e3, 1e3)
    _within(f"{name}.frequency", sampling.frequency, -1e3, 1e3)
    number = lambda x, dtype: None if x is None else np.asarray(x, dtype)
    penalties = {name: number(x, np.float32) for name, x in sampling.penalties.items()}
    if t is None or t < GREEDY_BELOW:
        return Sampling(**penalties)  # no filter or noise changes the most likely token
    return dataclasses.replace(
        sampling,
        **penalties,
        temperature=number(t, np.float32),
        top_k=number(k, np.int32),
        top_p=number(top_p, np.float32),
        min_p=number(min_p, np.float32),
    )


def _within(name, value, low, high):
    if value is not None and not low <= value <= high:
        raise ValueError(f"{name}={value} must be between {low} and {high}")


# ---------------------------------------------------------------- laws


def law(logits, sampling: Sampling):
    """The law of the next token, [..., V], float32 or wider, from finite logits [..., V]; -inf forbids a token.

    Penalties have been applied before: `specjax.processors.law` does both.
    """
    x = logits.astype(np.promote_types(logits.dtype, jnp.float32))
    if sampling.temperature is None:
        return one_hot(first_argmax(x), x)
    cold = jnp.asarray(sampling.temperature) < GREEDY_BELOW
    temperature = jnp.where(cold, 1, jnp.asarray(sampling.temperature)).astype(x.dtype)
    x_V = (x - jnp.max(x, axis=-1, keepdims=True)) / temperature  # 0 at the most likely token
    mass = jnp.exp(x_V)
    if sampling.top_k is not None:
        goal = jnp.full((*x.shape[:-1], 1), sampling.top_k, x.dtype)
        mass = jnp.where(x_V >= _threshold(x_V, jnp.ones_like(x_V), goal), mass, 0)
    if sampling.top_p is not None:
        top_p = jnp.asarray(sampling.top_p).astype(x.dtype)
        kept = x_V >= _threshold(x_V, mass, top_p * jnp.sum(mass, axis=-1, keepdims=True))
        mass = jnp.where(kept | (top_p >= 1), mass, 0)  # rounding must not make a filter of top-p 1
    if sampling.min_p is not None:
        mass = jnp.where(mass >= jnp.asarray(sampling.min_p).astype(x.dtype), mass, 0)
    return jnp.where(cold, one_hot(first_argmax(x), x), mass / jnp.sum(mass, axis=-1, keepdims=True))


def _threshold(x_V, weight_V, goal):
    """The largest t, [..., 1], such that the tokens with x >= t weigh at least `goal` together; -inf if all weigh less. x is at most 0.

    The largest values settle nearly every row. Others are searched (`_search`): exact, without a sort; a row's answer does not depend on
    its neighbours. On a CPU each is searched by itself, while it is in the cache; elsewhere all at once.
    """
    guess, reached = _among_top(x_V, weight_V, goal, jnp.zeros_like(goal))
    if x_V.shape[-1] <= _TOP:
        return guess
    flat = lambda a: jnp.broadcast_to(a, (*x_V.shape[:-1], a.shape[-1])).reshape(-1, a.shape[-1])
    rows = flat(x_V), flat(weight_V), flat(goal)[:, 0], flat(guess)[:, 0], flat(reached)[:, 0]
    return jax.lax.platform_dependent(*rows, cpu=_one_by_one, default=jax.vmap(_search)).reshape(guess.shape)


def _one_by_one(x_NV, weight_NV, goal_N, guess_N, settled_N):
    """`_search` of those rows that are not settled."""

    def settle(carry):
        t_N, settled_N = carry
        row = jnp.argmin(settled_N)
        found = _search(x_NV[row], weight_NV[row], goal_N[row], guess_N[row], settled_N[row])
        return t_N.at[row].set(found), settled_N.at[row].set(True)

    return jax.lax.while_loop(lambda carry: ~jnp.all(carry[1]), settle, (guess_N, settled_N))[0]


def _among_top(x_V, weight_V, goal, above):
    """(t, whether it is among the largest values) where what is larger still weighs `above`; -inf where it is not."""
    top, index = jax.lax.top_k(x_V, min(_TOP, x_V.shape[-1]))
    reached = above + jnp.cumsum(jnp.take_along_axis(weight_V, index, axis=-1), axis=-1) >= goal
    found = jnp.any(reached, axis=-1, keepdims=True)
    guess = jnp.take_along_axis(top, jnp.argmax(reached, -1, keepdims=True), axis=-1)
    return jnp.where(found, guess, -jnp.inf), found


def _search(x_V, weight_V, goal, guess, settled):
    """t of one row: bisect on its bits, where floats sort as integers, and now and then try the largest values under the upper bound."""
    weigh = lambda t: jnp.sum(jnp.where(x_V >= t, weight_V, 0))
    real = functools.partial(_from_sortable, dtype=x_V.dtype)

    def halve(_, bounds):
        low, high, above = bounds
        middle = low + (high - low) // 2  # no overflow: the bits of both ends are at most 2^31 apart
        weight = weigh(real(middle))
        enough = (weight >= goal) | (middle == low)
        return jnp.where(enough, middle, low), jnp.where(enough, high, middle), jnp.where(enough, above, weight)

    def narrow(carry):
        low, high, above, *_ = carry
        low, high, above = jax.lax.fori_loop(0, _HALVINGS, halve, (low, high, above))
        under_V = x_V < real(high)
        guess, found = _among_top(jnp.where(under_V, x_V, -jnp.inf), jnp.where(under_V, weight_V, 0), goal[None], above)
        return low, high, above, jnp.where(high - low == 1, real(low), guess[0]), found[0] | (high - low == 1)

    lowest = jnp.asarray(-jnp.inf, x_V.dtype)
    bounds = _sortable(lowest), _sortable(jnp.max(x_V)) + 1, jnp.zeros_like(goal)  # what weighs enough, and what does not
    return jax.lax.while_loop(lambda c: ~c[-1], narrow, (*bounds, guess, settled))[-2]


def _sortable(x):
    """Bits of a float as a signed integer that sorts as the float does."""
    kind, mask = (jnp.int32, 0x7FFFFFFF) if x.dtype == jnp.float32 else (jnp.int64, 0x7FFFFFFFFFFFFFFF)
    bits = jax.lax.bitcast_convert_type(x, kind)
    return jnp.where(bits < 0, bits ^ mask, bits)


def _from_sortable(bits, dtype):
    mask = 0x7FFFFFFF if dtype == jnp.float32 else 0x7FFFFFFFFFFFFFFF
    return jax.lax.bitcast_convert_type(jnp.where(bits < 0, bits ^ mask, bits), dtype)


def first_argmax(x_V):
    """Index of the first largest entry over the last axis; a maximum and a comparison, four times quicker than argmax here."""
    place = jnp.where(x_V == jnp.max(x_V, axis=-1, keepdims=True), _place(x_V), x_V.shape[-1] - 1)
    return jnp.min(place, axis=-1)


def one_hot(token, like_V):
    """The law that is certain of `token` [...], in the shape and dtype of `like_V` [..., V]."""
    return (_place(like_V) == token[..., None]).astype(like_V.dtype)


def _place(x_V):
    """Index over the last axis, in the shape of x."""
    return jax.lax.broadcasted_iota(jnp.int32, x_V.shape, x_V.ndim - 1)


def residual(p_V, q_V):
    """norm (p - q)_+ over the last axis: what is left to emit once min(p, q) was accepted; p itself where nothing is left."""
    left = jnp.maximum(p_V - q_V, 0)
    mass = jnp.sum(left, axis=-1, keepdims=True)
    return jnp.where(mass > 0, left / jnp.where(mass > 0, mass, 1), p_V)


# ---------------------------------------------------------------- draws


def key(seed, purpose: int, *place):
    """Keys in the broadcast shape of the places: fold in the purpose, then the prompt's id, then positions and nodes."""
    place = jnp.broadcast_arrays(*place)
    base = jax.random.fold_in(seed, purpose)
    folded = jax.vmap(lambda *data: functools.reduce(jax.random.fold_in, data, base))(*(p.reshape(-1) for p in place))
    return folded.reshape(place[0].shape)


def noise(keys, vocab: int):
    """Standard exponential noise E, float32, [..., V] for keys [...]; -log E is standard Gumbel noise.

    From 32 random bits through log1p, so that E goes down to 1e-10: with the usual 23 bits no token under 1e-7 would ever be drawn.
    """

    def one(k):
        u_V = (jax.random.bits(k, (vocab,), jnp.uint32).astype(jnp.float32) + 0.5) * 2.0**-32
        return -jnp.log1p(-jnp.minimum(u_V, 1 - 2.0**-24))  # the conversion rounds the largest u up to 1

    return jax.vmap(one)(keys.reshape(-1)).reshape(*keys.shape, vocab)


def scores(keys, law):
    """law / E, [..., V]: its largest entry is a draw from the law, its n largest are n draws without replacement (Gumbel top-k,
    1903.06059). The order is that of log law + Gumbel noise, for two logarithms a token less."""
    return law / noise(keys, law.shape[-1]).astype(law.dtype)


def draw(keys, law):
    """A token of each law [..., V]."""
    return first_argmax(scores(keys, law))


def draw_node(key_B, stop_BM):
    """Where the round ends: the inverse of the cumulative `stop_BM` at one uniform a row, in node order."""
    u_B = jax.vmap(lambda k: jax.random.uniform(k, dtype=jnp.float32))(key_B)
    passed = jnp.cumsum(stop_BM, axis=-1) > u_B[:, None].astype(stop_BM.dtype)
    last = stop_BM.shape[-1] - 1 - jnp.argmax((stop_BM > 0)[:, ::-1], axis=-1)  # if rounding leaves the sum under u
    return jnp.where(jnp.any(passed, -1), jnp.argmax(passed, -1), last).astype(jnp.int32)
