"""What a pass and a draft cost, measured apart from any arm: v(n), c and catch_up, in plain target steps.

A plain step is one pass of width 1: forward, head, and the choice of a token under the arm's sampling. v(n) is the same at
width n; c is what the drafter needs for its largest draft and to take in a round, per drafted token; catch_up is what it needs on
top in a round after one whose drafts were all accepted. Each timed call turns a compiled loop a few times, as decoding does, so that
dispatch is shared out; what is compared takes turns, and the median counts.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import resource
import statistics
import sys
import time
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from specjax import decode, parts, processors, sampling
from specjax.bench.plan import Experiment, LoadedArm
from specjax.lengths import match
from specjax.sharding import everywhere, spread
from specjax.types import Path, View

TURNS = 4  # of the loop in a timed call
REPEATS = 15


class Costs(NamedTuple):
    """Of one arm, in plain steps of `step_seconds`. v: of a pass by its width; c: of one drafted token; catch_up: see above."""

    v: dict[int, float]
    c: float
    catch_up: float
    step_seconds: float

    def to_json(self) -> dict:
        return {**self._asdict(), "v": {str(w): x for w, x in self.v.items()}}

    @classmethod
    def from_json(cls, row: dict) -> Costs:
        """ValueError or TypeError where a number is none."""
        numbers = {name: float(x) for name, x in row.items() if name != "v"}
        return cls(v={int(w): float(x) for w, x in row["v"].items()}, **numbers)


def timed(call):
    """(result, seconds) of a call whose inputs and result are on the device: a transfer that nobody asked for is an error."""
    with jax.transfer_guard("disallow"):
        began = time.perf_counter()
        result = jax.block_until_ready(call())
        return result, time.perf_counter() - began


def interleaved(calls: dict, repeats: int = REPEATS) -> dict:
    """Median seconds of each call. They take turns, so that a drift of the machine is in all of them alike."""
    for call in calls.values():
        jax.block_until_ready(call())  # compiles
    seconds = {name: [] for name in calls}
    for _ in range(repeats):
        for name, call in calls.items():
            seconds[name].append(timed(call)[1])
    return {name: statistics.median(all_) for name, all_ in seconds.items()}


def costs(experiment: Experiment) -> dict[str, Costs]:
    """Costs of each arm, by its name; arms of one program are measured once."""
    passes = pass_seconds(experiment)
    choices, drafts, measured = {}, {}, {}
    for arm in map(drafting_all, experiment.arms):
        setup = arm.decoder.setup
        law = _alike((setup.processors, setup.sampling))
        if law not in choices:
            choices[law] = choice_seconds(experiment, setup.processors, setup.sampling)
        total = {w: passes[w] + choices[law][w] for w in experiment.widths}
        program = program_key(setup), _alike(setup.draft_sampling)
        if program not in drafts:
            drafts[program] = (0.0, 0.0) if arm.plain else draft_seconds(experiment, arm)
        v = {w: total[w] / total[1] for w in setup.ladder}
        measured[arm.name] = Costs(v, *(seconds / total[1] for seconds in drafts[program]), total[1])
    return measured


def drafting_all(arm: LoadedArm) -> LoadedArm:
    """The arm with a policy that stops no draft: what a draft costs is not to depend on where it is stopped. Of combined drafters only the
    second: what the n-gram copies costs next to nothing."""
    decoder = copy.copy(arm.decoder)
    drafter = getattr(decoder.setup.drafter, "second", decoder.setup.drafter)
    decoder.setup = dataclasses.replace(
        decoder.setup, drafter=drafter, length=everywhere(decoder.setup.layout, parts.numbers(match())), kinds=()
    )
    return arm._replace(decoder=decoder)


def program_key(inputs):
    """What must be equal for two calls to share a program: structure, shapes and dtypes of all that goes in."""
    leaves, structure = jax.tree.flatten(inputs)
    return structure, tuple((x.shape, x.dtype) if hasattr(x, "shape") else x for x in leaves)


def _alike(law):
    """Laws of one program still differ in cost with their numbers: a wide top-p searches the vocabulary, a narrow one does not."""
    return jax.tree.structure(law), tuple(np.asarray(x).tobytes() for x in jax.tree.leaves(law))


# ---------------------------------------------------------------- passes


def pass_seconds(experiment: Experiment) -> dict[int, float]:
    """Seconds of forward, head and argmax by width, at the run's batch and S."""
    model, params, batch = experiment.target.model, experiment.target.params, experiment.plan.batch
    cache = model.init_cache(batch, experiment.size, experiment.target.dtype)
    cursor_B = jnp.full(batch, experiment.size // 2, jnp.int32)
    token_BT = {width: jnp.zeros((batch, width), jnp.int32) for width in experiment.widths}
    cache, cursor_B, token_BT = spread(experiment.target.layout, batch, (cache, cursor_B, token_BT))
    held = [cache]
    turns = everywhere(experiment.target.layout, jnp.int32(TURNS))

    def run(width):
        tokens, held[0] = _passes(model, params, token_BT[width], held[0], cursor_B, turns)
        return tokens, held[0]

    return _per_turn(interleaved({w: functools.partial(run, w) for w in experiment.widths}))


@functools.partial(jax.jit, static_argnames="model", donate_argnames="cache")
def _passes(model, params, token_BT, cache, cursor_B, turns):
    def one(_, carry):
        token_BT, cache = carry
        hidden, _, cache = model.forward(params, token_BT, cache, cursor_B)
        return sampling.first_argmax(model.head(params, hidden)[..., : model.vocab]), cache

    return jax.lax.fori_loop(0, turns, one, (token_BT, cache))


def choice_seconds(experiment: Experiment, own: tuple, law: sampling.Sampling) -> dict[int, float]:
    """Seconds from logits to the tokens of a pass by width, after processors `own`; 0 for bare greedy, whose argmax is in the pass."""
    if law.temperature is None and not own and not law.penalties:
        return dict.fromkeys(experiment.widths, 0.0)
    logits_TV = _prompt_logits(experiment, experiment.widths[-1])
    logits = {w: jnp.tile(logits_TV[-w:], (experiment.plan.batch, 1, 1)) for w in experiment.widths}
    token_BS = jnp.zeros((experiment.plan.batch, experiment.size), jnp.int32)
    layout = experiment.target.layout
    logits, token_BS = spread(layout, experiment.plan.batch, (logits, token_BS))
    seed, turns = everywhere(layout, (jax.random.key(0), jnp.int32(TURNS)))
    calls = {w: functools.partial(_choices, own, law, seed, logits[w], token_BS, turns) for w in experiment.widths}
    return _per_turn(interleaved(calls))


def _prompt_logits(experiment: Experiment, count: int):
    """The target's logits after the last `count` tokens of the first prompt, again from its end where it is shorter: [count, V]."""
    model, tokens = experiment.target.model, experiment.prompts[0].tokens

    @jax.jit
    def last(params, token_BT, cache):
        hidden, _, _ = model.forward(params, token_BT, cache, jnp.zeros(1, jnp.int32))
        return model.head(params, hidden[:, -count:])[0, :, : model.vocab]

    cache = model.init_cache(1, experiment.size, experiment.target.dtype)
    logits_TV = last(experiment.target.params, jnp.asarray([tokens], jnp.int32), cache)
    return logits_TV[np.arange(-count, 0) % len(logits_TV)]


@jax.jit
def _choices(own, law, seed, logits_BTV, token_BS, turns):
    """Coupled sampling draws at every place of a pass, greedy at none, other sampling at the one where the round ends."""
    B, T, _ = logits_BTV.shape
    places = jnp.arange(T if law.coupled else 1)
    path = Path(token_BS, jnp.full((B, T), token_BS.shape[1] // 2), jnp.ones(B, jnp.int32))

    def one(turn, total):
        x_BTV = logits_BTV + turn.astype(logits_BTV.dtype)  # of each turn its own, or the compiler would lift the law out of the loop
        p_BTV, _ = processors.law(own, law, x_BTV, path)
        if law.temperature is None:
            return total + sampling.first_argmax(p_BTV).sum()
        keys = sampling.key(seed, sampling.NOISE, turn, jnp.arange(logits_BTV.shape[0])[:, None], places)
        return total + sampling.draw(keys, p_BTV[:, : len(places)]).sum() + (p_BTV[:, -1, 0] > 0.5).sum()

    return jax.lax.fori_loop(0, turns, one, jnp.int32(0))


# ---------------------------------------------------------------- drafts


def draft_seconds(experiment: Experiment, arm) -> tuple[float, float]:
    """Seconds of one drafted token, and of catching up after full acceptance.

    The first: the largest draft and taking in a round, shared out over the tokens that it can hold. The second: what a round takes
    longer when the one before it was accepted whole, which leaves the last drafted token unread by a draft model; not under 0.
    """
    batch, decoder = experiment.plan.batch, arm.decoder
    widest = decoder.setup.ladder[-1]
    tokens, room = [experiment.prompts[0].tokens] * batch, (TURNS + 1) * widest
    state = decoder.start(tokens, experiment.plan.max_new_tokens, size=max(experiment.size, room))
    held = [decoder.prefill(state)]
    falling_B = jnp.copy(held[0].cursor_B)
    rising_B = jnp.maximum(falling_B - TURNS * widest, 0)
    turns = everywhere(decoder.setup.layout, jnp.int32(TURNS))

    def run(cursor_B, rises):
        total, held[0] = _drafts(decoder.setup, experiment.target.params, held[0], cursor_B, rises, turns)
        return total, held[0]

    calls = {"level": functools.partial(run, falling_B, False), "late": functools.partial(run, rising_B, True)}
    seconds = interleaved(calls)  # by turns, so that each begins where the other has left nothing unread
    catch_up = max(seconds["late"] - seconds["level"], 0.0) / (TURNS - 1)  # the first turn of a call follows no acceptance
    return seconds["level"] / (TURNS * (parts.nodes(decoder.setup.drafter) - 1)), catch_up


@functools.partial(jax.jit, static_argnames="rises", donate_argnames="state")
def _drafts(setup, params, state, cursor_B, rises, turns):
    """`turns` drafts from `cursor_B` on: (sum of their tokens, state).

    The cursor moves, so that no draft is lifted out of the loop: down by one, where the drafter has read all before it, or up as
    if every draft had been accepted and one token emitted. The target's part of a round is left out.
    """

    def one(_, carry):
        total, state, cursor_B = carry
        view = View(params, state.cache, state.token_BS, cursor_B)
        root_B = jnp.take_along_axis(state.token_BS, cursor_B[:, None], axis=1)[:, 0]
        ask_B = jnp.full_like(cursor_B, setup.drafter.most)
        draw = decode.Draw(setup, state._replace(cursor_B=cursor_B))
        own = setup.drafter.params
        draft, drafter, view = setup.drafter.propose(own, state.drafter, view, root_B, ask_B, draw)
        depth_B = jnp.max(jnp.where(draft.tree.valid_M, draft.tree.depth_M, 0), axis=-1)
        cursor_B = cursor_B + depth_B + 1 if rises else jnp.maximum(cursor_B - 1, 0)
        drafter = setup.drafter.observe(own, drafter, view._replace(cursor_B=cursor_B), features)
        state = state._replace(cache=view.cache, drafter=drafter)
        return total + draft.token_BM.sum(), state, cursor_B

    root_B1 = jnp.zeros((len(cursor_B), 1), jnp.int32)
    features = jax.eval_shape(lambda: setup.model.forward(params, root_B1, state.cache, cursor_B, taps=setup.drafter.taps)[1])
    features = tuple(jnp.zeros(x.shape, x.dtype) for x in features) or None  # what they are changes no cost
    return jax.lax.fori_loop(0, turns, one, (jnp.int32(0), state, cursor_B))[:2]


def _per_turn(seconds: dict) -> dict:
    return {name: s / TURNS for name, s in seconds.items()}


# ---------------------------------------------------------------- memory


def peak_memory_bytes() -> int:
    """The most memory so far: of the device where it says, else of the process."""
    stats = jax.local_devices()[0].memory_stats()
    if stats and "peak_bytes_in_use" in stats:
        return int(stats["peak_bytes_in_use"])
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
