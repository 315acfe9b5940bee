"""From a config to the objects of a run: the only place where a string becomes a thing. No ConfigDict travels further.

    target  source, dtype                 prompts  source, limit, quick, categories, chat
    arms    a list of: name, drafter, rule, length, sampling, draft_sampling, ladder
    max_new_tokens, min_new_tokens, stop, forbidden, processors, logprobs, seed, batch, repeats, samples, refill, ignore_eos
    mesh, split_drafts: see `specjax.sharding`
    record_laws  True, or a mapping of every, drafts, megabytes

A drafter, rule or length is a name, a dotted path to your own (`package.module:Thing`), or a mapping of `name` (either) with its
numbers: {"name": "ngram", "most": 7}, {"name": "fixed", "k": 3}. So is each processor. Every key is used or refused.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib
import re
from collections.abc import Mapping

import jax
import numpy as np
from ml_collections import ConfigDict

from specjax import rules, sampling, shapes, sharding
from specjax.bench.loading import load
from specjax.bench.plan import (
    WITH_WEIGHTS,
    Arm,
    BestFirstDraft,
    CombinedDraft,
    DraftModel,
    EarlyExitDraft,
    Laws,
    Plan,
    Prompts,
    Target,
    TrainedDraft,
    TreeDraft,
    with_plain_arms,
)
from specjax.bench.schema import make, nearest, within
from specjax.drafters import NGram, NoDraft
from specjax.lengths import EVERYTHING, BatchTable, Confidence, Entropy, Fixed, Goodput, Heuristic, Optimal, StandAside, Tiers, match
from specjax.sampling import Sampling

__all__ = ["load", "plan", "rules_of"]

DRAFTERS = {
    "none": NoDraft, "ngram": NGram, "model": DraftModel, "early_exit": EarlyExitDraft, "tree": TreeDraft, "best_first": BestFirstDraft,
    "trained": TrainedDraft, "combined": CombinedDraft,
}  # fmt: skip
RULES = {rule.name: rule for rule in rules.ALL}
LENGTHS = {"match": match} | {
    length.name: length for length in (Fixed, Heuristic, Confidence, Entropy, Tiers, Optimal, Goodput, BatchTable, StandAside)
}  # fmt: skip
MOST = 1024  # of what is unrolled, or held at once: drafted tokens, tokens of a match, rows of a batch, letters of a name


def plan(config: ConfigDict | Mapping) -> Plan:
    """Check a config without loading any weights.

    Raises:
      ValueError: an unknown key (names the nearest), a wrong type or a value out of range, in one line.
    """
    made = make(Plan, plain(config), "config", target=_target, prompts=_prompts, arms=_arms, processors=_processors, record_laws=_laws)
    for name, high in (("max_new_tokens", 2**20), ("batch", MOST), ("repeats", 2**20), ("samples", 2**20)):
        within(f"config.{name}", getattr(made, name), 1, high)
    within("config.min_new_tokens", made.min_new_tokens, 0, made.max_new_tokens)
    within("config.seed", made.seed, 0, 2**32 - 1)
    for name in ("stop", "forbidden"):
        distinct(f"config.{name}", getattr(made, name))
    for token in made.forbidden:
        within("config.forbidden", token, 0)
    if "" in made.stop:
        raise ValueError("config.stop: '' is empty, a stop string needs at least one character")
    _check_effect(made)
    return dataclasses.replace(made, arms=with_plain_arms(made.arms))


def _check_effect(plan: Plan) -> None:
    """No key may be set that changes nothing."""
    greedy = all(arm.sampling.temperature is None for arm in plan.arms)
    if plan.samples > 1 and greedy:
        raise ValueError(f"config.samples={plan.samples} changes nothing: every arm has temperature 0, so all samples would be equal")
    if plan.refill and plan.batch == 1:
        raise ValueError("config.refill=True changes nothing with batch=1: leave it out, or set a larger batch")
    sampled = all(arm.sampling.temperature is not None for arm in with_plain_arms(plan.arms))
    if plan.min_new_tokens and plan.ignore_eos and sampled and not plan.stop:
        raise ValueError(f"config.min_new_tokens={plan.min_new_tokens} changes nothing: every arm ignores EOS, and there is no stop string")
    if plan.mesh is not None:
        data, model = sharding.shape_of(plan.mesh)
        if plan.batch % data:
            raise ValueError(f"config.batch={plan.batch} must be a multiple of {data}: mesh={plan.mesh!r} splits rows over so many devices")
        if plan.split_drafts and model == 1:
            raise ValueError(f"config.split_drafts=True changes nothing: mesh={plan.mesh!r} has one device along the model axis")
    elif plan.split_drafts:
        raise ValueError("config.split_drafts=True changes nothing without a mesh: leave it out, or set config.mesh='model:8'")
    if plan.record_laws and not any(arm.tells_rules_apart for arm in plan.arms):
        raise ValueError("config.record_laws changes nothing: no arm drafts at a temperature above 0 without coupled noise")


# ---------------------------------------------------------------- the parts of a config


def plain(value, where="config"):
    """Dicts, lists and Python's own numbers all the way down.

    Raises:
      ValueError: a text or a number that no file can hold.
    """
    if isinstance(value, ConfigDict | Mapping):
        return {key: plain(value[key], f"{where}.{key}") for key in value}
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, list | tuple):
        return [plain(x, f"{where}[{i}]") for i, x in enumerate(value)]
    where = where.removeprefix("config.") if where.count(".") > 1 else where
    if isinstance(value, str) and (odd := re.search("[\0\ud800-\udfff]", value)):
        raise ValueError(f"{where}={value!r} holds {odd[0]!r}: it must be text without NUL or half a surrogate pair")
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise ValueError(f"{where} is a number of {value.bit_length()} bits: it must have at most 63")
    return value


def _target(given, where):
    return make(Target, given, where)


def _prompts(given, where):
    made = make(Prompts, given, where)
    if made.limit is not None:
        within(f"{where}.limit", made.limit, 1)
    if made.categories is not None:
        if not made.categories:
            raise ValueError(f"{where}.categories=() must name at least one, or be None for all")
        distinct(f"{where}.categories", made.categories)
    return made


def _laws(given, where):
    if given is None or isinstance(given, bool):
        return Laws() if given else None
    made = make(Laws, given, where)
    for name, high in (("every", 2**20), ("drafts", MOST), ("megabytes", 2**20)):
        within(f"{where}.{name}", getattr(made, name), 1, high)
    return made


def distinct(where, values):
    for value in values:
        if values.count(value) > 1:
            raise ValueError(f"{where}={list(values)}: {value!r} is there twice")


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
    if not (arm.name.strip() and arm.name.isprintable() and len(arm.name) <= MOST):
        raise ValueError(f"{where}.name={arm.name[:50]!r} must be one printable line, not empty, of at most {MOST} letters")
    most = arm.drafter.most
    if arm.draft_sampling is not None and isinstance(arm.drafter, NGram | NoDraft):
        raise ValueError(f"{where}.draft_sampling changes nothing: the drafts of {arm.drafter.name} are certain")
    for key in ("rule", "length", "ladder"):
        if arm.plain and getattr(arm, key) is not None:
            raise ValueError(f"{where}.{key} changes nothing: the drafter {arm.drafter.name!r} drafts nothing")
    if arm.draft_sampling is not None and arm.draft_sampling.coupled and not arm.sampling.coupled:
        raise ValueError(f"{where}.draft_sampling.coupled changes nothing: the draft takes the target's noise, which is not coupled")
    length = getattr(arm.length, "policy", arm.length)
    doubts = isinstance(length, Confidence | Entropy)
    argmax = arm.draft_sampling is not None and arm.draft_sampling.temperature is None and arm.sampling.temperature is not None
    if doubts and (isinstance(arm.drafter, NGram) or argmax):
        raise ValueError(
            f"{where}.length changes nothing: drafts of an n-gram, or at a temperature 0 of their own, are certain, take 'match'"
        )
    ranked = isinstance(arm.drafter, BestFirstDraft) or (isinstance(arm.drafter, TreeDraft) and arm.drafter.drawn == "fixed")
    if arm.draft_sampling is not None and ranked and not doubts and arm.draft_sampling.penalties == arm.sampling.penalties:
        raise ValueError(f"{where}.draft_sampling changes nothing: such drafts are the likeliest tokens at temperature 1, whatever it says")
    if isinstance(length, Fixed) and length.k != EVERYTHING:
        within(f"{where}.length.{'policy.' * (length is not arm.length)}k", length.k, 0, most)
    return arm


def _sampling(given, where):
    made = make(Sampling, given, where)
    if made.temperature is not None:
        within(f"{where}.temperature", made.temperature, 0, 1e6)
    if sampling.checked(made, where).temperature is not None:
        return made
    filters = [name for name in ("top_k", "top_p", "min_p") if getattr(made, name) is not None]
    idle = [*filters, *(["coupled"] if made.coupled else [])]
    if idle:
        raise ValueError(f"{where}.{idle[0]} changes nothing at temperature 0: leave it out, or set a temperature")
    return Sampling(**made.penalties)


def _drafter(given, where):
    made = part(given, where, DRAFTERS, "propose", shape=_shape, first=_drafter, second=_drafter)
    if not hasattr(made, "most"):
        raise ValueError(f"{where}: {type(made).__name__} has no `most`, its largest draft")
    if not isinstance(made, NoDraft):
        within(f"{where}.most", made.most, 1, MOST)
    if isinstance(made, WITH_WEIGHTS):
        within(f"{where}.noise", made.noise, 0, 1e3)
    if isinstance(made, BestFirstDraft):
        within(f"{where}.nodes", made.nodes, 2, MOST)
        within(f"{where}.beam", made.beam, 2, MOST)
    if isinstance(made, EarlyExitDraft):
        within(f"{where}.exit_layer", made.exit_layer, 1)
    if isinstance(made, CombinedDraft):
        _check_combined(made, where)
    if isinstance(made, NGram):
        within(f"{where}.max_n", made.max_n, 1, MOST)
        within(f"{where}.min_n", made.min_n, 1, made.max_n)
        within(f"{where}.per_match", made.per_match, 0)
        within(f"{where}.branches", made.branches, 1, MOST // made.most)
    return made


def _check_combined(made, where):
    """An n-gram copies a chain, and what drafts in its place is a chain whose tokens are not certain."""
    if not isinstance(made.first, NGram) or made.first.branches > 1:
        raise ValueError(f"{where}.first must be an n-gram of one branch")
    if isinstance(made.second, NoDraft | NGram | TreeDraft | BestFirstDraft | CombinedDraft):
        raise ValueError(f"{where}.second must be model, trained, early_exit, or your own drafter of chains")


def _shape(given, where):
    try:
        made = shapes.parse(given)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error
    within(f"{where}: nodes", made.nodes, 2, MOST)
    return made


def _rule(given, where):
    return part(given, where, RULES, "__call__")


def rules_of(text: str) -> list:
    """The rules that a flag names: "block, lenient(lenience=0.5), package.module.Rule(x=1)".

    Raises:
      ValueError: it is no such list, or one of them is no rule.
    """
    try:
        parsed = ast.parse(f"[{text.replace(':', '.')}]", mode="eval").body.elts  # package.module:Rule is a dotted path too
        given = []
        for one in parsed:
            called = isinstance(one, ast.Call)
            if called and one.args:
                raise ValueError("a number without its name")
            numbers = {keyword.arg: ast.literal_eval(keyword.value) for keyword in one.keywords} if called else {}
            given.append({**numbers, "name": ast.unparse(one.func if called else one)})
    except (SyntaxError, ValueError, TypeError, RecursionError):
        raise ValueError(f"rules={text!r} must be rules like: block, lenient(lenience=0.5), package.module.Rule") from None
    made = [_rule(plain(one, "rules"), "rules") for one in given]
    for one, rule in zip(given, made, strict=True):
        if any(leaf is rule for leaf in jax.tree.leaves(rule)):
            raise ValueError(f"rules: {one['name']} is no pytree: make its class a specjax.types.struct")
    return made


def _length(given, where):
    return part(given, where, LENGTHS, "choose", policy=_length)


def _processors(given, where):
    if not isinstance(given, list):
        raise ValueError(f"{where}={given!r} must be a list of processors")
    return tuple(part(one, f"{where}[{i}]", {}, "__call__") for i, one in enumerate(given))


def part(given, where, known: Mapping, method: str, **parts):
    """A plug-in by its name or dotted path, with its numbers; `parts` make those fields that plug in themselves."""
    given = {"name": given} if isinstance(given, str) else given
    if not isinstance(given, Mapping) or not isinstance(given.get("name"), str):
        raise ValueError(f"{where}={given!r} must be a name, or a mapping with a name")
    name, numbers = given["name"], {k: v for k, v in given.items() if k != "name"}
    thing = known[name] if name in known else _dotted(name, where, known)
    if isinstance(thing, type) and dataclasses.is_dataclass(thing):
        made = _at(where, make, thing, numbers, where, **parts)
    elif isinstance(thing, type) or thing in known.values():
        made = _at(where, _call, thing, numbers, where)
    elif numbers:
        raise ValueError(f"{where}: {name} is an object, so it takes no {', '.join(numbers)}")
    else:
        made = thing
    if thing not in known.values() and not hasattr(made, method):
        raise ValueError(
            f"{where}={name!r} has no method {method}, so it is no {where.rpartition('.')[2].partition('[')[0].removesuffix('s')}"
        )
    return made


def _at(where, call, *given, **parts):
    """What a part says of a number of its own ("rule.top=0 must be ..."), with its place in the config."""
    try:
        return call(*given, **parts)
    except ValueError as error:
        kind, _, said = str(error).partition(".")
        if kind not in ("drafter", "rule", "length") or "." not in where:
            raise
        raise ValueError(f"{where}.{said}") from error


def _call(thing, numbers, where):
    try:
        return thing(**numbers)
    except TypeError as error:  # a number that it does not take, or one that is missing
        raise ValueError(f"{where}: {error}") from error


def _dotted(name, where, known):
    module, _, attribute = name.replace(":", ".").rpartition(".")
    if not module:
        named = f"is none of {', '.join(known)}, nor" if known else "must be"
        raise ValueError(f"{where}={name!r} {named} package.module:Thing{nearest(name, known)}")
    try:
        return getattr(importlib.import_module(module), attribute)
    except Exception as error:  # whatever the user's own module raises
        raise ValueError(f"{where}={name!r}: {type(error).__name__}: {' '.join(str(error).split())}") from error
