"""One training step: the loss over a batch, its gradient, AdamW. One jitted function that works in place.

Over a mesh a batch is split over the data axis, and the mean is over all rows that count, wherever they are; parameters, and what the
optimizer keeps of each, are split over the model axis by the letters of their names (`specjax.sharding`). One device is a mesh of one.
Parameters and optimizer are float32, the passes between in a dtype of their own.
"""

from __future__ import annotations

import functools
import re
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh

from specjax.sharding import Layout, mesh_of, send
from specjax.training import losses, rows
from specjax.training.plan import Optimizer
from specjax.types import Array, PyTree


class State(NamedTuple):
    """What training changes. sums: of the steps since the last report; of `steps` only those that had something to learn from."""

    params: PyTree
    optimizer: PyTree
    step: Array  # int32, steps taken
    skipped: Array  # int32, of which had nothing to learn from
    failed: Array  # int32, the first step whose loss or gradient was not finite, -1: none; from there on nothing changes
    sums: dict[str, Array]


class Fixed(NamedTuple):
    """What training does not change. place_V: the draft's index of each of the target's tokens, U where it has none; None: the same."""

    frozen: PyTree
    place_V: Array | None


class Program(NamedTuple):
    """What is compiled: hashable."""

    kind: Any
    loss: Any
    decay: float
    optimizer: Optimizer
    mesh: Mesh


def mesh(text: str | None = None, devices=None) -> Mesh:
    """As `sharding.mesh_of`; without a text, all devices along the data axis."""
    devices = jax.devices() if devices is None else devices
    return mesh_of(text or f"data:{len(devices)}", devices)


def check_rows(rows: int, mesh: Mesh) -> None:
    """Raises ValueError unless the data axis divides so many rows."""
    if rows % (data := mesh.shape["data"]):
        said = f"optimizer.batch / accumulate is {rows} rows"
        raise ValueError(f"{said}: {data} devices along the data axis need a multiple of their number")


def where(program: Program, tree: PyTree) -> PyTree:
    """Where arrays lie: those in a dict by their names, so parameters and what an optimizer keeps of each; others whole on every device."""
    model, layout = getattr(program.kind, "model", None), Layout(program.mesh)
    config = model and getattr(model.config, "base", model.config)

    def one(path, x):
        name = path[-1].key if config and path and isinstance(path[-1], jax.tree_util.DictKey) else ""
        named = x.ndim and re.fullmatch(rf"\w+_[A-Z]{{{x.ndim}}}", name)
        return layout.of_parameter(config, name, x.shape) if named else layout.sharding()

    return jax.tree_util.tree_map_with_path(one, tree)


@functools.partial(jax.jit, static_argnames="program")
def placed(program: Program, tree: PyTree) -> PyTree:
    """Where it lies; copies, so that what a step overwrites is nobody else's."""
    return jax.lax.with_sharding_constraint(jax.tree.map(jnp.copy, tree), where(program, tree))


def spread(mesh: Mesh, batch: rows.Batch) -> rows.Batch:
    """A batch [B, ...], its rows split over the data axis."""
    return jax.tree.map(lambda x: send(x, Layout(mesh).sharding("data")), batch)


def schedule(settings: Optimizer) -> optax.Schedule:
    """The learning rate by the count of updates: it starts at one part of the warm-up, not at zero."""
    peak = settings.learning_rate
    start = peak / (settings.warmup + 1)
    return optax.warmup_cosine_decay_schedule(start, peak, settings.warmup, max(settings.steps, settings.warmup + 1), peak * settings.floor)


def optimizer(settings: Optimizer) -> optax.GradientTransformation:
    clip = optax.identity() if settings.clip is None else optax.clip_by_global_norm(settings.clip)
    return optax.chain(clip, optax.adamw(schedule(settings), b2=0.95, weight_decay=settings.weight_decay, mask=_matrices))


def _matrices(params: PyTree) -> PyTree:
    """Which parameters decay: norms and biases do not."""
    spared = lambda path: any(word in jax.tree_util.keystr(path) for word in ("norm", "bias"))
    return jax.tree_util.tree_map_with_path(lambda path, x: x.ndim > 1 and not spared(path), params)


def start(program: Program, params: PyTree) -> State:
    """Before the first step."""
    zero, none = jnp.zeros((), jnp.int32), jnp.full((), -1, jnp.int32)
    state = State(params, optimizer(program.optimizer).init(params), zero, zero, none, no_sums())
    return placed(program, state)


def no_sums() -> dict[str, Array]:
    return {name: jnp.zeros((), jnp.float32) for name in ("loss", "weight", "tokens", "norm", "steps")}


@functools.partial(jax.jit, static_argnames="program", donate_argnames="state")
def train(program: Program, fixed: Fixed, state: State, batch: rows.Batch) -> State:
    """One step. batch: as `spread` gives it. Parameters and optimizer stay as they are where nothing counts, or is not finite."""
    loss = functools.partial(_summed, program, fixed)
    parts = jax.tree.map(functools.partial(_parts, program.optimizer.accumulate), batch)

    def part(carry, batch):
        (total, weight), gradient = jax.value_and_grad(loss, has_aux=True)(state.params, batch)
        return jax.tree.map(jnp.add, carry, (total, weight, gradient)), None

    zero = jnp.zeros((), jnp.float32)
    (total, weight, gradient), _ = jax.lax.scan(part, (zero, zero, jax.tree.map(jnp.zeros_like, state.params)), parts)
    share = 1 / jnp.maximum(weight, jnp.finfo(weight.dtype).tiny)
    gradient = jax.tree.map(lambda g: g * share, gradient)
    norm = optax.tree.norm(gradient)
    finite = jnp.isfinite(total) & jnp.isfinite(norm)
    counted = weight > 0
    with jax.numpy_dtype_promotion("standard"):  # optax raises a float to an integer power
        updates, changed = optimizer(program.optimizer).update(gradient, state.optimizer, state.params)
    good = finite & counted & (state.failed < 0)
    params, optimizer_ = jax.tree.map(
        functools.partial(jnp.where, good), (optax.apply_updates(state.params, updates), changed), (state.params, state.optimizer)
    )
    tokens = jnp.sum(batch.segment_BT > 0, dtype=jnp.float32)
    said = {"loss": total, "weight": weight, "tokens": tokens, "norm": norm, "steps": counted.astype(jnp.float32)}
    new = State(
        params=params,
        optimizer=optimizer_,
        step=state.step + 1,
        skipped=state.skipped + (~counted).astype(jnp.int32),
        failed=jnp.where(finite | (state.failed >= 0), state.failed, state.step),
        sums=jax.tree.map(jnp.add, state.sums, said),
    )
    return jax.lax.with_sharding_constraint(new, where(program, new))


def _parts(count: int, x):
    """[B, ...] as [count, B / count, ...]: every count-th row is of one part, so that all devices have rows of it."""
    return x.reshape(-1, count, *x.shape[1:]).swapaxes(0, 1)


def _summed(program: Program, fixed: Fixed, params: PyTree, batch: rows.Batch) -> tuple[Array, Array]:
    """(sum of the loss over all rows and places that count, their weight)."""
    places = logits(program, fixed, params, batch)
    return losses.total(places, batch, program.loss, decay=program.decay, place_V=fixed.place_V)


def logits(program: Program, fixed: Fixed, params: PyTree, batch: rows.Batch) -> list[tuple[Array, Array]]:
    """As `Kind.logits`, in the dtype of the computation."""
    dtype = jnp.dtype(program.optimizer.dtype)
    batch = batch._replace(features=cast(dtype, batch.features))
    return program.kind.logits(cast(dtype, params), cast(dtype, fixed.frozen), batch)


def cast(dtype, tree: PyTree) -> PyTree:
    """Floating-point arrays in another dtype."""
    return jax.tree.map(lambda x: x.astype(dtype) if jnp.issubdtype(x.dtype, jnp.floating) else x, tree)
