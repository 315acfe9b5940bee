"""Whether an arm said what its plain arm said, and if not, whether the two passes only disagreed in their last bits.

Passes of different width round differently, so on a real model greedy and coupled output equal plain's *up to ties*. At the
first token that differs the target reads the common prefix once more, and both tokens are scored by what argmax saw: the logit
(greedy), or the logarithm of the law plus the position's Gumbel noise (coupled). The *gap* is how far the worse of the two lies
under the best token of all: under the bound of the parameters' dtype it is a tie, else a bug. Where one of the two is outside the
law's filters at width 1, so that its logarithm is -inf, both are scored by the law without filters, and the gap is between the two.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from specjax import sampling
from specjax.bench.plan import Experiment, LoadedArm

TIE_BELOW = {"float32": 1e-3, "float64": 1e-9, "bfloat16": 0.25}  # measured for float32 only


class Difference(NamedTuple):
    """The first token that differs in one record. kind: 'tie' or 'bug'."""

    arm: str
    question_id: str | int
    repeat: int
    place: int  # index of the new token
    tokens: tuple[int | None, int | None]  # plain's and the arm's; None past its end
    gap: float | None  # None where one output ended
    kind: str


class Agreement(NamedTuple):
    """Of one arm, in records."""

    equal: int
    ties: int
    bugs: int


def compare(experiment: Experiment, rows: Iterable[dict]) -> tuple[dict[str, Agreement], list[Difference]]:
    """Agreement of each comparable arm with its plain arm, and every first difference."""
    token_ids = {(r["arm"], str(r["question_id"]), r["repeat"]): r["token_ids"] for r in rows}
    agreements, differences = {}, []
    for arm in (a for a in experiment.arms if a.comparable):
        found, equal = [], 0
        for encoded in experiment.prompts:
            for repeat in range(experiment.plan.repeats):
                name = str(encoded.prompt.question_id)
                plain, own = (token_ids[a, name, repeat] for a in (arm.baseline, arm.name))
                equal += plain == own
                if plain != own:
                    found.append(_difference(experiment, arm, encoded, repeat, plain, own))
        kinds = [d.kind for d in found]
        agreements[arm.name] = Agreement(equal, kinds.count("tie"), kinds.count("bug"))
        differences += found
    return agreements, differences


def _difference(experiment: Experiment, arm: LoadedArm, encoded, repeat, plain, own) -> Difference:
    place = next((i for i, (a, b) in enumerate(zip(plain, own, strict=False)) if a != b), min(len(plain), len(own)))
    tokens = tuple(ids[place] if place < len(ids) else None for ids in (plain, own))
    gap = math.inf
    if None not in tokens:
        gap = _gap(experiment, arm, encoded.tokens + plain[:place], encoded.prompt.id, tokens)
    kind = "tie" if gap < TIE_BELOW[experiment.target.dtype.name] else "bug"
    return Difference(arm.name, encoded.prompt.question_id, repeat, place, tokens, gap if math.isfinite(gap) else None, kind)


def _gap(experiment, arm, prefix, prompt_id, tokens) -> float:
    seen_V = scores(experiment, arm, prefix, prompt_id)
    if np.isfinite(seen_V[list(tokens)]).all():
        return float(seen_V.max() - min(seen_V[t] for t in tokens))
    seen_V = scores(experiment, arm, prefix, prompt_id, filters=False)
    return float(abs(seen_V[tokens[0]] - seen_V[tokens[1]]))


def scores(experiment: Experiment, arm: LoadedArm, prefix: list[int], prompt_id: int, filters: bool = True) -> np.ndarray:
    """What argmax sees after `prefix` in a pass of width 1, [V] float64. filters False: leave out top-k, top-p and min-p."""
    decoder = next(a for a in experiment.arms if a.name == arm.baseline).decoder
    state = decoder.prefill(decoder.start([prefix], 1, [prompt_id], experiment.size))
    logits_V = _logits(experiment.target.model, experiment.target.params, state)
    law = decoder.setup.sampling
    law = law if filters else sampling.Sampling(temperature=law.temperature)
    if law.temperature is None:
        return np.asarray(logits_V, np.float64)
    noise_key = sampling.key(decoder.setup.seed, sampling.NOISE, state.id_B, state.cursor_B + 1)
    with np.errstate(divide="ignore"):
        log_law_V = np.log(np.asarray(sampling.law(logits_V, law), np.float64))
    return log_law_V - np.log(np.asarray(sampling.noise(noise_key, len(logits_V))[0], np.float64))


@functools.partial(jax.jit, static_argnames="model")
def _logits(model, params, state):
    root_B1 = jnp.take_along_axis(state.token_BS, state.cursor_B[:, None], axis=1)
    hidden, _, _ = model.forward(params, root_B1, state.cache, state.cursor_B)
    return model.head(params, hidden)[0, 0, : model.vocab]
