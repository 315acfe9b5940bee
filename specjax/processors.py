"""What changes logits before they become a law, given the tokens on the path: penalties, forbidden tokens, a minimum length.

A processor is a function (logits_V, path) -> logits_V of one row at one place (`types.Processor`); -inf forbids a token. It sees the
prompt, the output and the drafted tokens that lead to the place, so plain and speculative rounds process alike.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from specjax import sampling
from specjax.types import Array, Path, struct


@struct
class Penalties:
    """repetition divides the positive logits of tokens that were seen and multiplies the negative ones (CTRL, 1909.05858); presence is
    subtracted from the logits of tokens in the output, frequency as often as they are there. Only repetition looks at the prompt."""

    repetition: float | Array = 1.0
    presence: float | Array = 0.0
    frequency: float | Array = 0.0

    def __call__(self, logits_V, path: Path):
        place_S = jnp.arange(path.token_S.shape[0], dtype=jnp.int32)
        seen_S = place_S < path.length
        written_S = seen_S & (place_S >= path.prompt)
        count = lambda which_S: jnp.zeros_like(logits_V).at[path.token_S].add(which_S.astype(logits_V.dtype))
        number = lambda x: jnp.asarray(x).astype(logits_V.dtype)
        repeated_V = jnp.where(logits_V > 0, logits_V / number(self.repetition), logits_V * number(self.repetition))
        written_V = count(written_S)
        penalty_V = number(self.presence) * number(written_V > 0) + number(self.frequency) * written_V
        return jnp.where(count(seen_S) > 0, repeated_V, logits_V) - penalty_V


@struct
class Forbidden:
    """Tokens that are never said."""

    forbidden_V: Array  # bool

    def __call__(self, logits_V, path: Path):
        return jnp.where(self.forbidden_V, -jnp.inf, logits_V)


@struct
class MinNewTokens:
    """No EOS before `least` new tokens."""

    least: int | Array
    eos_V: Array  # bool

    def __call__(self, logits_V, path: Path):
        return jnp.where(self.eos_V & (path.length - path.prompt < self.least), -jnp.inf, logits_V)


def process(processors, logits_BMV, path: Path):
    """Every processor in turn, at each place of each row; path has token_BS, or of each place its own token_BMS, length_BM and prompt_B."""

    def one(logits_V, token_S, length, prompt):
        for processor in processors:
            logits_V = processor(logits_V, Path(token_S, length, prompt))
        return logits_V

    places = jax.vmap(one, in_axes=(0, None if path.token_S.ndim == 2 else 0, 0, None))
    return jax.vmap(places)(logits_BMV, path.token_S, path.length, path.prompt)


def processed(processors, how: sampling.Sampling, logits_BMV, path: Path):
    """Logits after penalties and processors, float32 or wider."""
    x_BMV = logits_BMV.astype(np.promote_types(logits_BMV.dtype, jnp.float32))
    if given := how.penalties:
        processors = (Penalties(**given), *processors)
    return process(processors, x_BMV, path) if processors else x_BMV


def law(processors, how: sampling.Sampling, logits_BMV, path: Path):
    """(law_BMV, usable_BM) of logits after penalties, processors, temperature and filters.

    Not usable: the logits were NaN, infinite or all forbidden; the law there is any that is finite.
    """
    usable_BM = jnp.all(jnp.isfinite(logits_BMV), axis=-1)
    x_BMV = processed(processors, how, logits_BMV, path)
    if processors or how.penalties:
        usable_BM &= jnp.isfinite(jnp.max(x_BMV, axis=-1))
    return sampling.law(jnp.where(usable_BM[..., None], x_BMV, 0), how), usable_BM
