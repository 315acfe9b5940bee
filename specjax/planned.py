"""The programs of a run or of a training over devices that are not here: every input a shape that knows where its array would lie.

Of a run: its decode round, and apart from it a pass of the target at each width and one step of the draft, which have no loops, so that
XLA's account of them is whole. Of a training: its step.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import specjax
from specjax import LM, decode, sampling
from specjax.bench import loading
from specjax.bench.plan import LoadedArm, Plan
from specjax.drafters import Eagle3Drafter
from specjax.lm import place
from specjax.models.load import describe
from specjax.sharding import Layout, as_shape, spread
from specjax.state import State, new_state, pinned
from specjax.training import step
from specjax.training.rows import Batch
from specjax.training.targets import TargetLaw, place_of


def model(source: str, *, dtype, layout: Layout | None, shape_only: bool) -> LM:
    """A model without weights, over a mesh. shape_only: of its config.json alone.

    Raises:
      ValueError: it is not on this machine, or damaged.
    """
    if source.startswith("toy://"):
        lm = specjax.load(source, dtype=dtype)
    else:
        found = describe.without_weights(source) if shape_only else describe.describe(source)
        if found is None:
            raise ValueError(f"{source}: not on this machine yet: `specjax.load` it once, or plan with --shape_only")
        lm = LM(*found.shapes(jnp.dtype(dtype or jnp.bfloat16)), found.tokenizer, source)
    return lm if layout is None else place(lm, layout)


class Program(NamedTuple):
    """A jitted function and its inputs. held: what of these lies on the devices and is read, by name."""

    function: Any
    inputs: tuple
    held: dict[str, Any]


class Round(NamedTuple):
    """The programs of an arm: its round, passes of the target by their width, and a step of the draft, None where it has no model."""

    whole: Program
    passes: dict[int, Program]
    draft: Program | None


def load(plan: Plan, devices: list, slots: int | None, shape_only: bool) -> tuple[LM, tuple[LoadedArm, ...], int]:
    """(target, arms, S).

    Raises:
      ValueError: something cannot be loaded, parts do not fit together, or nobody says S.
    """
    load_model = functools.partial(model, shape_only=shape_only)
    if slots is not None:
        return *loading.models(plan, load_model, devices), slots
    experiment = loading.load(plan, load_model, devices)
    return experiment.target, experiment.arms, experiment.size


def round_of(plan: Plan, target: LM, arm: LoadedArm, size: int) -> Round:
    """size: S."""
    setup, params = arm.decoder.setup, target.params
    state = _state(setup, params, plan.batch, size, plan.max_new_tokens, target.dtype)
    held = {
        "target": params,
        "cache": state.cache,
        "draft": setup.drafter.params,
        "draft's state": state.drafter,
        "texts and trace": state._replace(cache=None, drafter=None),
    }
    passes = {width: _pass_program(target, state, width) for width in sorted({1, *setup.ladder})}
    return Round(Program(decode.step, (setup, params, state), held), passes, _draft(setup, plan.batch, size))


def _state(setup, params, batch: int, size: int, rounds: int, dtype) -> State:
    """After prefill."""
    number = lambda *shape: jax.ShapeDtypeStruct(shape, jnp.int32)
    rows = number(batch, size), number(batch), number(batch), jax.ShapeDtypeStruct((batch,), jnp.uint32), setup.stop and number(batch)
    make = functools.partial(new_state, rounds=-(-rounds // 128) * 128, dtype=dtype)
    state = pinned(setup.layouts, jax.eval_shape(make, setup, *rows), spread)
    return pinned(setup.layouts, jax.eval_shape(decode.prefill, setup, params, state), spread)


def _pass_program(target: LM, state: State, width: int) -> Program:
    batch = len(state.cursor_B)
    token_BT = spread(target.layout, batch, jax.ShapeDtypeStruct((batch, width), jnp.int32))
    return Program(_pass, (target.model, target.params, token_BT, state.cache, state.cursor_B), _read(target.params, state.cache))


def _read(params, cache) -> dict[str, Any]:
    """What every pass reads from memory: of the embedding only a few rows."""
    return {"parameters": {name: x for name, x in params.items() if name != "embed_VD"}, "cache": cache}


@functools.partial(jax.jit, static_argnames="model", donate_argnames="cache")
def _pass(model, params, token_BT, cache, cursor_B):
    """Forward, head and choice, as `specjax.bench.measure` times them."""
    hidden, _, cache = model.forward(params, token_BT, cache, cursor_B)
    return sampling.first_argmax(model.head(params, hidden)[..., : model.vocab]), cache


def _draft(setup, batch: int, size: int) -> Program | None:
    drafter, layout = setup.drafter, setup.draft_layout
    drafter = getattr(drafter, "second", drafter)
    if getattr(drafter, "params", None) is None or not hasattr(drafter, "model"):
        return None
    dtype = jax.tree.leaves(drafter.params)[0].dtype
    cache = jax.eval_shape(lambda: drafter.model.init_cache(batch, size, dtype))
    token_B1, cursor_B = jax.ShapeDtypeStruct((batch, 1), jnp.int32), jax.ShapeDtypeStruct((batch,), jnp.int32)
    token_B1, cache, cursor_B = spread(layout, batch, (token_B1, cache, cursor_B))
    if not isinstance(drafter, Eagle3Drafter):
        return Program(_pass, (drafter.model, drafter.params, token_B1, cache, cursor_B), _read(drafter.params, cache))
    feature_B1D = spread(layout, batch, jax.ShapeDtypeStruct((batch, 1, drafter.model.config.base.width), dtype))
    inputs = drafter.model, drafter.params, feature_B1D, token_B1, cache, cursor_B
    return Program(_cell, inputs, _read({name: x for name, x in drafter.params.items() if name != "fc_XD"}, cache))


@functools.partial(jax.jit, static_argnames="model", donate_argnames="cache")
def _cell(model, params, feature_BTD, token_BT, cache, cursor_B):
    hidden, cache = model.cell(params, feature_BTD, token_BT, cache, cursor_B)
    return sampling.first_argmax(model.head(params, hidden)), hidden, cache


# ---------------------------------------------------------------- training


def training_step(plan, devices: list, shape_only: bool) -> Program:
    """The step of a training plan.

    Raises:
      ValueError: as `load`, or the devices do not divide a batch.
    """
    target = model(plan.target.source, dtype=plan.target.dtype, layout=None, shape_only=shape_only)
    kind, mesh = plan.draft.over(target), step.mesh(plan.mesh, devices)
    step.check_rows(plan.optimizer.rows, mesh)
    id_U = None if plan.draft.vocab is None else np.arange(plan.draft.vocab, dtype=np.int32)
    place_V = None if id_U is None else place_of(id_U, target.model.vocab)
    program = step.Program(kind, plan.loss, plan.decay, plan.optimizer, mesh)
    given = lambda params: dataclasses.replace(target, params=params)
    params = jax.eval_shape(lambda params: kind.init(given(params), id_U, plan.seed), target.params)
    frozen = jax.eval_shape(lambda params: kind.frozen(given(params), id_U), target.params)
    placed = lambda tree: jax.tree.map(as_shape, tree, step.where(program, tree))
    state = placed(jax.eval_shape(functools.partial(step.start, program), params))
    rows = Layout(mesh).sharding("data")
    batch = jax.tree.map(lambda x: as_shape(x, rows), _batch(plan, kind, target))
    fixed = placed(step.Fixed(frozen, place_V))
    held = {"parameters": state.params, "optimizer": state.optimizer, "frozen": fixed, "batch": batch}
    return Program(step.train, (program, fixed, state, batch), held)


def _batch(plan, kind, target: LM) -> Batch:
    B, T = plan.optimizer.batch, plan.data.length
    of = lambda dtype, *more: jax.ShapeDtypeStruct((B, T, *more), dtype)
    features = tuple(of(target.dtype, target.model.config.width) for _ in kind.taps)
    law = None
    if plan.loss.needs_law:
        named = plan.data.top or target.model.vocab
        law = TargetLaw(of(jnp.float32, named), of(jnp.int32, named) if plan.data.top else None, of(jnp.float32))
    return Batch(of(jnp.int32), of(bool), of(jnp.int32), of(jnp.int32), features, law)
