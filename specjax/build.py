"""From a config to the objects of a run: the only place where a string becomes a thing. No ConfigDict travels further.

    target  source, dtype                 prompts  source, limit, quick, categories, chat
    arms    a list of: name, drafter, rule, length, sampling, draft_sampling
    max_new_tokens, seed, batch, repeats, ignore_eos

A drafter, rule or length is a name, a dotted path to your own (`package.module:Thing`), or a mapping of `name` (either) with its
numbers: {"name": "ngram", "most": 7}, {"name": "fixed", "k": 3}. Every key is used or refused.
"""

from __future__ import annotations

import dataclasses
import importlib
import time
from collections.abc import Mapping

import jax
from ml_collections import ConfigDict

import specjax
from specjax import rules, sampling
from specjax.bench.plan import Arm, DraftModel, Encoded, Experiment, LoadedArm, Plan, Prompts, Target, baseline, with_plain_arms
from specjax.bench.schema import make, nearest, within
from specjax.drafters import NGram, NoDraft
from specjax.lengths import EVERYTHING, Fixed, match
from specjax.prompts import load as load_prompts
from specjax.sampling import Sampling

DRAFTERS = {"none": NoDraft, "ngram": NGram, "model": DraftModel}
RULES = {rule.name: rule for rule in rules.ALL}
LENGTHS = {"fixed": Fixed, "match": match}


def plan(config: ConfigDict | Mapping) -> Plan:
    """Check a config without loading any weights.

    Raises:
      ValueError: an unknown key (names the nearest), a wrong type or a value out of range, in one line.
    """
    made = make(Plan, _plain(config), "config", target=_target, prompts=_prompts, arms=_arms)
    for name in ("max_new_tokens", "batch", "repeats"):
        within(f"config.{name}", getattr(made, name), 1)
    within("config.seed", made.seed, 0)
    return dataclasses.replace(made, arms=with_plain_arms(made.arms))


def load(plan: Plan) -> Experiment:
    """Load the models, encode the prompts, and choose S: the longest prompt + new tokens + the widest rung.

    Raises:
      ValueError: something cannot be loaded, or parts do not fit together.
    """
    began = time.perf_counter()
    target = specjax.load(plan.target.source, dtype=plan.target.dtype)
    jax.block_until_ready(target.params)
    load_draft = _draft_loader(plan, target)
    arms = tuple(_load_arm(plan, arm, target, load_draft) for arm in plan.arms)
    options = dataclasses.asdict(plan.prompts)
    chat = options.pop("chat")
    prompts = load_prompts(options.pop("source"), **options)
    tokens = specjax.api.encode(target, [p.turns[0] for p in prompts], chat)
    widest = max(arm.decoder.setup.ladder[-1] for arm in arms)
    needed = max(map(len, tokens)) + plan.max_new_tokens + widest
    experiment = Experiment(
        plan=plan,
        target=target,
        arms=arms,
        prompts=tuple(map(Encoded, prompts, tokens)),
        size=-(-needed // specjax.api.BUCKET) * specjax.api.BUCKET,
        load_seconds=time.perf_counter() - began,
    )
    arms[0].decoder.start(tokens, plan.max_new_tokens)  # refuses a prompt that does not fit
    return experiment


# ---------------------------------------------------------------- the parts of a config


def _plain(value):
    """Dicts and lists all the way down."""
    if isinstance(value, ConfigDict | Mapping):
        return {key: _plain(value[key]) for key in value}
    return [_plain(x) for x in value] if isinstance(value, list | tuple) else value


def _target(given, where):
    return make(Target, given, where)


def _prompts(given, where):
    return make(Prompts, given, where)


def _arms(given, where):
    if not isinstance(given, list) or not given:
        raise ValueError(f"{where}={given!r} must be a list of arms, at least one")
    arms = [_arm(arm, f"{where}[{i}]") for i, arm in enumerate(given)]
    names = [arm.name for arm in with_plain_arms(arms)]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"{where}: the name {name!r} is used twice, each arm needs its own")
    return tuple(arms)


def _arm(given, where):
    arm = make(
        Arm, given, where, drafter=_drafter, rule=_rule, length=_length, sampling=_sampling, draft_sampling=_sampling
    )  # fmt: skip
    most = arm.drafter.most
    if arm.draft_sampling is not None and isinstance(arm.drafter, NGram | NoDraft):
        raise ValueError(f"{where}.draft_sampling changes nothing: the drafts of {arm.drafter.name} are certain")
    if isinstance(arm.length, Fixed) and arm.length.k != EVERYTHING:
        within(f"{where}.length.k", arm.length.k, 0, most)
    return arm


def _sampling(given, where):
    made = make(Sampling, given, where)
    if sampling.checked(made, where).temperature is not None:
        return made
    idle = [name for name in ("top_k", "top_p", "min_p", "coupled") if getattr(made, name)]
    if idle:
        raise ValueError(f"{where}.{idle[0]} changes nothing at temperature 0: leave it out, or set a temperature")
    return Sampling()


def _drafter(given, where):
    made = _part(given, where, DRAFTERS, "propose")
    if not hasattr(made, "most"):
        raise ValueError(f"{where}: {type(made).__name__} has no `most`, its largest draft")
    if not isinstance(made, NoDraft):
        within(f"{where}.most", made.most, 1)
    if isinstance(made, NGram):
        within(f"{where}.min_n", made.min_n, 1, made.max_n)
        within(f"{where}.per_match", made.per_match, 0)
    return made


def _rule(given, where):
    made = _part(given, where, RULES, "__call__")
    if isinstance(made, rules.Lenient):
        within(f"{where}.lenience", made.lenience, 1e-6, 1)
    return made


def _length(given, where):
    return _part(given, where, LENGTHS, "choose")


def _part(given, where, known: Mapping, method: str):
    """A plug-in by its name or dotted path, with its numbers."""
    given = {"name": given} if isinstance(given, str) else given
    if not isinstance(given, Mapping) or not isinstance(given.get("name"), str):
        raise ValueError(f"{where}={given!r} must be a name, or a mapping with a name")
    name, numbers = given["name"], {k: v for k, v in given.items() if k != "name"}
    thing = known[name] if name in known else _dotted(name, where, known)
    if isinstance(thing, type) and dataclasses.is_dataclass(thing):
        made = make(thing, numbers, where)
    elif isinstance(thing, type) or thing in known.values():
        made = _call(thing, numbers, where)
    elif numbers:
        raise ValueError(f"{where}: {name} is an object, so it takes no {', '.join(numbers)}")
    else:
        made = thing
    if thing not in known.values() and not hasattr(made, method):
        raise ValueError(f"{where}={name!r} has no method {method}, so it is no {where.rpartition('.')[2]}")
    return made


def _call(thing, numbers, where):
    try:
        return thing(**numbers)
    except TypeError as error:  # a number that it does not take, or one that is missing
        raise ValueError(f"{where}: {error}") from error


def _dotted(name, where, known):
    module, _, attribute = name.replace(":", ".").rpartition(".")
    if not module:
        raise ValueError(f"{where}={name!r} is none of {', '.join(known)}, nor package.module:Thing{nearest(name, known)}")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise ValueError(f"{where}={name!r}: {error}") from error


# ---------------------------------------------------------------- models


def _draft_loader(plan: Plan, target):
    """load(DraftModel) -> LM; the same weights are loaded once."""
    loaded = {(plan.target.source, plan.target.dtype): target}

    def load_draft(draft: DraftModel):
        key = (draft.source, draft.dtype or plan.target.dtype)
        if key not in loaded:
            loaded[key] = specjax.load(key[0], dtype=key[1])
        return loaded[key]

    return load_draft


def _load_arm(plan: Plan, arm: Arm, target, load_draft) -> LoadedArm:
    drafter = arm.drafter
    if isinstance(drafter, DraftModel):
        drafter = specjax.api.as_drafter(target, load_draft(drafter), drafter.most)
    try:
        decoder = specjax.Decoder(
            target,
            drafter=drafter,
            rule=arm.rule,
            length=arm.length,
            sampling=arm.sampling,
            draft_sampling=arm.draft_sampling,
            seed=plan.seed,
            eos=() if plan.ignore_eos and arm.sampling.temperature is not None else None,
        )
    except ValueError as error:
        raise ValueError(f"arm {arm.name!r}: {error}") from error
    plain = baseline(arm, plan.arms)
    same = plain.sampling == arm.sampling and arm.sampling.one_hot and decoder.setup.rule.exact
    return LoadedArm(arm.name, decoder, plain.name, same and plain is not arm)
