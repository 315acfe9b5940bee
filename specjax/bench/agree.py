"""Whether an arm said what its plain arm said, and if not, whether the two passes only disagreed in their last bits.

Passes of different width round differently, so on a real model greedy and coupled output equal plain's *up to ties*. At the
first token that differs the target reads the common prefix once more, and both tokens are scored by what argmax saw: the logit
(greedy), or the logarithm of the law plus the position's Gumbel noise (coupled). The *gap* is how far the worse of the two lies
under the best token of all: under the bound of the parameters' dtype it is a tie, else a bug. Where one of the two is outside the
law's filters at width 1, so that its logarithm is -inf, both are scored by the law without filters, and the gap is between the two.

In a conversation the first turn that differs is judged so. The turns after it answer something else: they are neither equal nor
wrong, and are counted as what followed.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from specjax import processors, sampling
from specjax.bench import line, turns
from specjax.bench.plan import Experiment, LoadedArm, Task
from specjax.sharding import fetch
from specjax.types import Path

TIE_BELOW = {"float32": 1e-3, "float64": 1e-9, "bfloat16": 0.25}  # measured for float32 only


class Difference(NamedTuple):
    """The first token that differs in one record. kind: 'tie' or 'bug'."""

    arm: str
    question_id: str | int
    sample: int
    repeat: int
    turn: int
    place: int  # index of the new token
    tokens: tuple[int | None, int | None]  # plain's and the arm's; None past its end
    gap: float | None  # None where one output ended
    kind: str


class Agreement(NamedTuple):
    """Of one arm, in records. followed: turns that came after one that differed, and cannot be compared."""

    equal: int
    ties: int
    bugs: int
    followed: int = 0


def compare(experiment: Experiment, rows: Iterable[dict]) -> tuple[dict[str, Agreement], list[Difference]]:
    """Agreement of each comparable arm with its plain arm, and every first difference."""
    by_key = {line.key(r): r for r in rows}
    agreements, differences = {}, []
    for arm in (a for a in experiment.arms if a.comparable):
        plain_arm = next(a for a in experiment.arms if a.name == arm.baseline)
        found, equal, followed = [], 0, 0
        for own in _conversations(experiment, arm):
            plain = [task._replace(arm=plain_arm) for task in own]
            same = [by_key[a.key]["token_ids"] == by_key[b.key]["token_ids"] for a, b in zip(plain, own, strict=True)]
            parted = same.index(False) if False in same else len(same)
            equal, followed = equal + parted, followed + len(same[parted + 1 :])
            if parted < len(same):
                found.append(_difference(experiment, plain[parted], own[parted], by_key))
        kinds = [d.kind for d in found]
        agreements[arm.name] = Agreement(equal, kinds.count("tie"), kinds.count("bug"), followed)
        differences += found
    return agreements, differences


def _conversations(experiment: Experiment, arm: LoadedArm) -> Iterator[list[Task]]:
    """The tasks of an arm, those of one conversation together, in the order of its turns."""
    for encoded, sample, repeat in itertools.product(experiment.prompts, experiment.samples(arm), range(experiment.plan.repeats)):
        yield [Task(arm, encoded, sample, repeat, turn) for turn in range(len(encoded.prompt.turns))]


def _difference(experiment: Experiment, plain_task: Task, task: Task, by_key) -> Difference:
    plain, own = (by_key[t.key]["token_ids"] for t in (plain_task, task))
    place = next((i for i, (a, b) in enumerate(zip(plain, own, strict=False)) if a != b), min(len(plain), len(own)))
    tokens = tuple(ids[place] if place < len(ids) else None for ids in (plain, own))
    gap = math.inf
    if None not in tokens:
        prompt = turns.prompt_tokens(experiment, task, {key: row["text"] for key, row in by_key.items()})
        gap = _gap(experiment, task.arm, prompt + plain[:place], len(prompt), task.id, tokens)
    kind = "tie" if gap < TIE_BELOW[experiment.target.dtype.name] else "bug"
    named = task.encoded.prompt.question_id, task.sample, task.repeat, task.turn
    return Difference(task.arm.name, *named, place, tokens, gap if math.isfinite(gap) else None, kind)


def _gap(experiment, arm, prefix, prompt_tokens, prompt_id, tokens) -> float:
    seen_V = scores(experiment, arm, prefix, prompt_tokens, prompt_id)
    if np.isfinite(seen_V[list(tokens)]).all():
        return float(seen_V.max() - min(seen_V[t] for t in tokens))
    seen_V = scores(experiment, arm, prefix, prompt_tokens, prompt_id, filters=False)
    return float(abs(seen_V[tokens[0]] - seen_V[tokens[1]])) if np.isfinite(seen_V[list(tokens)]).any() else math.inf


def scores(experiment: Experiment, arm: LoadedArm, prefix: list[int], prompt_tokens: int, prompt_id: int, filters=True) -> np.ndarray:
    """What argmax sees after `prefix`, of which so many tokens are the prompt, in a pass of width 1: [V] float64.

    filters False: leave out top-k, top-p and min-p.
    """
    decoder = next(a for a in experiment.arms if a.name == arm.baseline).decoder
    state = decoder.prefill(decoder.start([prefix], 1, [prompt_id], experiment.size))
    logits_V = _logits(experiment.target.model, experiment.target.params, state)
    law = decoder.setup.sampling
    law = law if filters else dataclasses.replace(law, top_k=None, top_p=None, min_p=None)
    path = Path(state.token_BS, state.cursor_B[:, None] + 1, jnp.asarray([prompt_tokens]))
    if law.temperature is None:
        return np.asarray(fetch(processors.processed(decoder.setup.processors, law, logits_V[None, None], path)[0, 0]), np.float64)
    noise_key = sampling.key(decoder.setup.seed, sampling.NOISE, state.id_B, state.cursor_B + 1)
    with np.errstate(divide="ignore"):
        law_BMV, _ = processors.law(decoder.setup.processors, law, logits_V[None, None], path)
        log_law_V = np.log(np.asarray(fetch(law_BMV[0, 0]), np.float64))
    return log_law_V - np.log(np.asarray(fetch(sampling.noise(noise_key, len(logits_V))[0]), np.float64))


@functools.partial(jax.jit, static_argnames="model")
def _logits(model, params, state):
    root_B1 = jnp.take_along_axis(state.token_BS, state.cursor_B[:, None], axis=1)
    hidden, _, _ = model.forward(params, root_B1, state.cache, state.cursor_B)
    return model.head(params, hidden)[0, 0, : model.vocab]
