"""From a checked plan to an experiment: models loaded, prompts encoded, buffers sized."""

from __future__ import annotations

import dataclasses
import functools
import time
import zlib
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from specjax import LM, Combined, Decoder, Layout, api, load_drafter, mesh_of, place, processes
from specjax.bench import laws, turns
from specjax.bench.plan import (
    WITH_WEIGHTS,
    Arm,
    CombinedDraft,
    EarlyExitDraft,
    Encoded,
    Experiment,
    LoadedArm,
    Plan,
    Task,
    TrainedDraft,
    baseline,
)
from specjax.bench.pricing import unpriced
from specjax.drafters import EarlyExit
from specjax.parts import check_vocabularies
from specjax.prompts import load as load_prompts


def load(plan: Plan, load_model: Callable[..., LM] = api.load, devices=None) -> Experiment:
    """Load the models, encode the prompts, and choose S: the longest conversation, new tokens of all its turns, and the widest rung.

    load_model: as `specjax.load`; to plan without weights it may give shapes for parameters. devices: of the mesh, default all that are
    here.

    Raises:
      ValueError: something cannot be loaded, or parts do not fit together.
    """
    began = time.perf_counter()
    if plan.mesh is None and (count := processes.count()) > 1:
        raise ValueError(f"config.mesh=None leaves {count} processes without a common mesh: set it, as in 'data:8', over all their devices")
    options = dataclasses.asdict(plan.prompts)
    chat = options.pop("chat")
    given = load_prompts(options.pop("source"), **options)
    if plan.refill and plan.batch >= len(given):
        raise ValueError(f"config.refill=True changes nothing: batch={plan.batch} rows hold all prompts ({len(given)}) at once")
    target, arms = models(plan, load_model, devices)
    prompts = tuple(turns.encode(target, prompt, chat) for prompt in given)
    needed = max(_positions(plan, target, encoded) for encoded in prompts) + max(arm.decoder.setup.ladder[-1] for arm in arms)
    experiment = Experiment(
        plan=plan,
        target=target,
        arms=arms,
        prompts=prompts,
        size=-(-needed // api.BUCKET) * api.BUCKET,
        load_seconds=time.perf_counter() - began,
    )
    _check_ids(experiment)
    laws.check(experiment)
    return experiment


def models(plan: Plan, load_model: Callable[..., LM] = api.load, devices=None) -> tuple[LM, tuple[LoadedArm, ...]]:
    """(target, arms), of which no prompt is part; as `load`.

    Raises:
      ValueError: as `load`.
    """
    mesh = None if plan.mesh is None else mesh_of(plan.mesh, devices)
    layout, draft_layout = (mesh and Layout(mesh, split) for split in (True, plan.split_drafts))
    load_once = functools.cache(lambda source, dtype, layout: load_model(source, dtype=dtype, layout=layout))  # may be target and draft
    load_draft = functools.cache(functools.partial(_draft, load_once, draft_layout, plan.seed))
    target = load_once(plan.target.source, plan.target.dtype, layout)
    jax.block_until_ready(target.params)
    load_trained = functools.cache(lambda path: load_drafter(path, target, split=plan.split_drafts))
    loaded = functools.partial(_loaded, plan, target, load_draft, load_trained)
    return target, tuple(_load_arm(plan, arm, target, loaded) for arm in plan.arms)


def _draft(load_once, layout: Layout | None, seed: int, source: str, dtype: str | None, noise: float) -> LM:
    if not noise:
        return load_once(source, dtype, layout)
    worse = noised(load_once(source, dtype, None), noise, seed)  # by the shapes that it has in its file
    return worse if layout is None else place(worse, layout)


def noised(model: LM, share: float, seed: int) -> LM:
    """A worse model: every matrix of its layers with Gaussian noise of `share` of its own standard deviation, by seed and name."""
    if not share:
        return model

    def worse(path, x):
        name = jax.tree_util.keystr(path)
        if isinstance(x, jax.ShapeDtypeStruct) or x.ndim < 2 or not name.startswith("['layers']"):
            return x
        drawn = np.random.default_rng([seed, zlib.crc32(name.encode())]).standard_normal(x.shape, np.float32)
        return x + (share * jnp.std(x)).astype(x.dtype) * jnp.asarray(drawn).astype(x.dtype)

    return dataclasses.replace(model, params=jax.tree_util.tree_map_with_path(worse, model.params))


def _positions(plan: Plan, target, encoded: Encoded) -> int:
    """Tokens of a whole conversation.

    Raises:
      ValueError: the model has fewer positions.
    """
    count = len(encoded.prompt.turns)
    asked, turn = max((turns.room(encoded, turn, plan), turn) for turn in range(count))  # a template may drop earlier turns
    if target.max_positions and asked + plan.max_new_tokens > target.max_positions:
        said = asked - turn * plan.max_new_tokens
        budget = f"max_new_tokens={plan.max_new_tokens}" + (f" in each of {count} turns" if count > 1 else "")
        raise ValueError(
            f"prompt {encoded.prompt.question_id!r}: {said} tokens + {budget} exceed the model's {target.max_positions} positions"
        )
    return asked + plan.max_new_tokens


def _check_ids(experiment: Experiment) -> None:
    """No two rows may draw the same: prompts, their samples and turns are told apart by numbers of 32 bits."""
    arm, owner = experiment.arms[0], {}
    for encoded in experiment.prompts:
        for sample in range(experiment.plan.samples):
            for turn in range(len(encoded.prompt.turns)):
                task = Task(arm, encoded, sample, 0, turn)
                first = owner.setdefault(task.id, task)
                if first is not task:
                    names = f"{first.encoded.prompt.question_id!r} and {encoded.prompt.question_id!r}"
                    raise ValueError(f"prompts {names} would share their draws: give one of them another question_id")


def _loaded(plan: Plan, target: LM, load_draft, load_trained, drafter):
    """The drafter that a plan describes."""
    if isinstance(drafter, WITH_WEIGHTS):
        draft = load_draft(drafter.source, drafter.dtype or plan.target.dtype, drafter.noise)
        check_vocabularies(target, draft)
        return drafter.over(draft)
    if isinstance(drafter, EarlyExitDraft):
        return EarlyExit(model=target.model, exit_layer=drafter.exit_layer, most=drafter.most)
    if isinstance(drafter, TrainedDraft):
        return dataclasses.replace(load_trained(drafter.path), most=drafter.most)
    if isinstance(drafter, CombinedDraft):
        return Combined(first=drafter.first, second=_loaded(plan, target, load_draft, load_trained, drafter.second))
    return drafter


def _load_arm(plan: Plan, arm: Arm, target: LM, loaded: Callable) -> LoadedArm:
    try:
        drafter = loaded(arm.drafter)
        decoder = Decoder(
            target,
            drafter=drafter,
            rule=arm.rule,
            length=unpriced(arm, drafter),
            sampling=arm.sampling,
            draft_sampling=arm.draft_sampling,
            ladder=arm.ladder,
            seed=plan.seed,
            eos=() if plan.ignore_eos and arm.sampling.temperature is not None else None,
            stop=plan.stop,
            min_new_tokens=plan.min_new_tokens,
            forbidden=plan.forbidden,
            processors=plan.processors,
            logprobs=plan.logprobs or _shows_price(plan, arm),
        )
    except ValueError as error:
        raise ValueError(f"arm {arm.name!r}: {error}") from error
    plain = baseline(arm, plan.arms)
    same = plain.sampling == arm.sampling and arm.sampling.one_hot and decoder.setup.rule.exact
    return LoadedArm(arm.name, decoder, plain.name, same and plain is not arm)


def _shows_price(plan: Plan, arm: Arm) -> bool:
    """Whether an arm is not exact, or one that is not is measured against it."""
    lossy = [other for other in plan.arms if other.rule is not None and not other.rule.exact]
    return any(arm is other or arm is baseline(other, plan.arms) for other in lossy)
