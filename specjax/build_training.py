"""From a config to the plan of a training run: the only place where a string becomes a thing there.

    target     source, dtype
    draft      name: small | eagle3, and its numbers
    data       sources: a list of name: self_prompted | answers | texts | shards, and its numbers; length, exclude, top, cache, folder,
               whole
    loss       a list of name, weight, and the numbers of that loss; decay
    optimizer  steps, batch, accumulate, learning_rate, warmup, floor, weight_decay, clip, dtype
    evaluate   prompts, categories, limit, chat, every, new_tokens, temperature
    on_policy  None, or fraction, every, texts, new_tokens, temperature, batch
    seed, log_every, checkpoint_every

A loss may be a dotted path to your own, too. Every key is used or refused.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from ml_collections import ConfigDict

from specjax import sharding
from specjax.bench.schema import make, nearest, within
from specjax.build import MOST, distinct, part, plain
from specjax.models.load.names import DTYPES
from specjax.training import answers, existing, losses, self_prompt, texts
from specjax.training.plan import Data, Eagle3Draft, Evaluate, OnPolicy, Optimizer, Plan, SmallDraft, Source, Target

__all__ = ["plan"]

DRAFTS = {"small": SmallDraft, "eagle3": Eagle3Draft}
SOURCES = {
    "self_prompted": (self_prompt.SelfPrompted, self_prompt.make),
    "answers": (answers.Answers, answers.make),
    "texts": (texts.Texts, texts.make),
    "shards": (existing.Shards, existing.make),
}
LOSSES = {loss.name: loss for loss in losses.ALL}


def plan(config: ConfigDict | Mapping) -> Plan:
    """Check a config without loading any weights.

    Raises:
      ValueError: an unknown key (names the nearest), a wrong type or a value out of range, in one line.
    """
    parts = dict(target=_target, draft=_draft, data=_data, loss=_loss, optimizer=_optimizer, evaluate=_evaluate, on_policy=_on_policy)
    made = make(Plan, plain(config), "config", **parts)
    within("config.seed", made.seed, 0, 2**32 - len(made.data.sources))  # each source has a seed of its own, from this one on
    _above("config.decay", made.decay, 0)
    within("config.decay", made.decay, 0, 1)
    for name in ("log_every", "checkpoint_every"):
        within(f"config.{name}", getattr(made, name), 1, made.optimizer.steps)
    within("evaluate.every", made.evaluate.every, 1, made.optimizer.steps)
    if made.mesh is not None:
        sharding.shape_of(made.mesh)
    _check_effect(made)
    return made


def _check_effect(plan: Plan) -> None:
    """No key may be set that changes nothing."""
    if plan.data.cache and not plan.loss.needs_law and not plan.draft.reads_features:
        raise ValueError("data.cache=True changes nothing: neither the loss nor the draft reads what the target would say")
    if plan.data.cache and plan.data.top is None:
        raise ValueError("data.cache=True needs data.top: the tokens of a law that are kept")
    unread = not (plan.loss.needs_law or plan.data.cache or plan.evaluate.temperature)
    if unread and plan.data.top != Data.top:
        raise ValueError(f"data.top={plan.data.top} changes nothing: neither the loss nor the evaluation reads the target's laws")
    if plan.decay != Plan.decay and plan.draft.places == 1:
        raise ValueError(f"config.decay={plan.decay} changes nothing: the draft has one place")
    if plan.on_policy is not None:
        rows = plan.on_policy.rows(plan.optimizer.batch)
        if not 1 <= rows <= plan.optimizer.batch:
            raise ValueError(f"on_policy.fraction={plan.on_policy.fraction} is {rows} of optimizer.batch={plan.optimizer.batch} rows")
        if plan.on_policy.new_tokens >= plan.data.length:
            said = f"on_policy.new_tokens={plan.on_policy.new_tokens} leaves no room in data.length={plan.data.length} for any prompt"
            raise ValueError(said)
        if not plan.loss.needs_law or plan.loss.reads_text:
            raise ValueError(f"on_policy needs a loss that compares laws: {plan.loss.name!r} would teach the draft what it says itself")


def _target(given, where):
    made = make(Target, given, where)
    if made.dtype is not None:
        _one_of(f"{where}.dtype", made.dtype, DTYPES)
    return made


def _draft(given, where):
    made = _named(given, where, DRAFTS)
    within(f"{where}.places", made.places, 1, MOST)
    if made.vocab is not None:
        within(f"{where}.vocab", made.vocab, 2)
    read = "taps" if made.reads_features else "layers"
    if not getattr(made, read):
        raise ValueError(f"{where}.{read}=() must name at least one layer of the target")
    if made.reads_features and list(made.taps) != sorted(set(made.taps)):
        raise ValueError(f"{where}.taps={list(made.taps)} must be layers from low to high, each once")
    return made


def _data(given, where):
    made = make(Data, given, where, sources=_sources)
    within(f"{where}.length", made.length, 2, 2**20)
    if made.top is not None:
        within(f"{where}.top", made.top, 1)
    if made.folder == "":
        raise ValueError(f"{where}.folder='' must name a folder, or be None for one in the run's own")
    distinct(f"{where}.exclude", made.exclude)
    return made


def _sources(given, where):
    if not isinstance(given, list) or not given:
        raise ValueError(f"{where}={given!r} must be a list of sources, at least one")
    return tuple(_source(one, f"{where}[{i}]") for i, one in enumerate(given))


def _source(given, where):
    settings = _named(given, where, {name: kind for name, (kind, _) in SOURCES.items()})
    _above(f"{where}.share", settings.share, 0)
    within(f"{where}.share", settings.share, 0, 1e6)
    return Source(given["name"], settings, SOURCES[given["name"]][1])


def _loss(given, where):
    given = [given] if isinstance(given, str | Mapping) else given
    if not isinstance(given, list) or not given:
        raise ValueError(f"{where}={given!r} must be a list of losses, at least one")
    return losses.Weighted(tuple(_term(one, f"{where}[{i}]") for i, one in enumerate(given)))


def _term(given, where):
    given = {"name": given} if isinstance(given, str) else given
    weight = given.get("weight", 1.0) if isinstance(given, Mapping) else 1.0
    if isinstance(weight, bool) or not isinstance(weight, int | float):
        raise ValueError(f"{where}.weight={weight!r} must be a number")
    _above(f"{where}.weight", weight, 0)
    given = {k: v for k, v in given.items() if k != "weight"} if isinstance(given, Mapping) else given
    loss = _placed(where, lambda: part(given, where, LOSSES, "__call__"))
    if not (_is_frozen(loss) and hasattr(loss, "name") and hasattr(loss, "needs_law")):
        raise ValueError(f"{where}={given!r} must be a frozen dataclass that has `name`, `needs_law` and __call__")
    return float(weight), loss


def _is_frozen(thing) -> bool:
    """Whether it is an object of a frozen dataclass: such a one can be compiled into a step, and written down."""
    return dataclasses.is_dataclass(thing) and not isinstance(thing, type) and thing.__dataclass_params__.frozen


def _optimizer(given, where):
    made = make(Optimizer, given, where)
    bounds = dict(
        steps=(1, 2**31 - 1), batch=(1, 2**16), accumulate=(1, made.batch), warmup=(0, made.steps), floor=(0, 1), weight_decay=(0, 1e6)
    )
    for name, bound in bounds.items():
        within(f"{where}.{name}", getattr(made, name), *bound)
    for name in ("learning_rate", "clip"):
        if getattr(made, name) is not None:
            _above(f"{where}.{name}", getattr(made, name), 0)
            within(f"{where}.{name}", getattr(made, name), 0, 1e6)
    if made.batch % made.accumulate:
        raise ValueError(f"{where}.accumulate={made.accumulate} must divide batch={made.batch}")
    _one_of(f"{where}.dtype", made.dtype, ("float32", "bfloat16"))
    return made


def _evaluate(given, where):
    made = make(Evaluate, given, where)
    within(f"{where}.new_tokens", made.new_tokens, 2, 2**20)
    if made.limit is not None:
        within(f"{where}.limit", made.limit, 1)
    if made.temperature not in (0, 1):
        raise ValueError(f"{where}.temperature={made.temperature} must be 0 or 1: laws are kept at temperature 1")
    return made


def _on_policy(given, where):
    made = make(OnPolicy, given, where)
    _above(f"{where}.fraction", made.fraction, 0)
    within(f"{where}.fraction", made.fraction, 0, 1)
    for name in ("every", "texts", "new_tokens", "batch"):
        within(f"{where}.{name}", getattr(made, name), 1, 2**20)
    _above(f"{where}.temperature", made.temperature, 0)
    return made


def _named(given, where, known: Mapping):
    """One of `known` by its name, with its numbers."""
    if not isinstance(given, Mapping) or not isinstance(given.get("name"), str):
        raise ValueError(f"{where}={given!r} must be a mapping with a name: {', '.join(known)}")
    _one_of(f"{where}.name", given["name"], known)
    return _placed(where, lambda: make(known[given["name"]], {k: v for k, v in given.items() if k != "name"}, where))


def _placed(where, call):
    """What a part says of a number of its own, with its place in the config."""
    try:
        return call()
    except ValueError as error:
        said = str(error).removeprefix("loss.")
        raise ValueError(said if said.startswith(where) else f"{where}.{said}") from error


def _one_of(where, value, known) -> None:
    if value not in known:
        raise ValueError(f"{where}={value!r} must be one of {', '.join(known)}{nearest(value, known)}")


def _above(where, value, low) -> None:
    if not value > low:
        raise ValueError(f"{where}={value} must be above {low}")
