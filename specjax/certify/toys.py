"""Drafters to certify by name, beside a tiny random transformer."""

from __future__ import annotations

import dataclasses
import importlib

import numpy as np

from specjax.drafters import BestFirst, Combined, Eagle3Drafter, EarlyExit, ModelDrafter, NGram, TreeDrafter
from specjax.lm import LM
from specjax.models import border, toy
from specjax.models.eagle3 import Eagle3Config
from specjax.shapes import parse


def eagle3(target: LM, vocab: int = 100) -> Eagle3Drafter:
    """A random draft over all of the target's layers, that can say every other token or so, `vocab` of them."""
    config = target.model.config
    base = dataclasses.replace(config, layers=1, tied=False, head_vocab=vocab)
    made = Eagle3Config(base, tuple(range(config.layers)), config.width)
    params = {**border.init(made, 1), "embed_VD": target.params["embed_VD"]}
    model, params = border.border(made, {**params, "head_DV": 4 * params["head_DV"]})
    ids_U = np.linspace(0, target.model.vocab - 1, vocab).astype(np.int32)
    return Eagle3Drafter(model=model, params=params, ids_U=ids_U, most=3)


NAMED = {  # name -> its drafter, given the target and a draft
    "ngram": lambda target, draft: NGram(most=4),
    "ngram_branches": lambda target, draft: NGram(most=4, branches=2),
    "model": lambda target, draft: ModelDrafter(model=draft.model, params=draft.params, most=4),
    "early_exit": lambda target, draft: EarlyExit(model=target.model, exit_layer=1, most=4),
    **{
        f"tree_{drawn}": lambda target, draft, drawn=drawn: TreeDrafter(
            model=draft.model, params=draft.params, shape=parse("2x2x1"), drawn=drawn
        )
        for drawn in ("iid", "without_replacement", "fixed")
    },
    "eagle3": lambda target, draft: eagle3(target),
    "combined": lambda target, draft: Combined(first=NGram(most=4, min_n=1), second=eagle3(target)),
    "best_first": lambda target, draft: BestFirst(model=draft.model, params=draft.params, nodes=8, most=3, beam=2),
}


def tiny(seed: int, scale: float) -> LM:
    """`scale` makes its laws less flat."""
    model, params = toy.tiny(seed, scale=scale)
    return LM(model, params, None, f"toy://tiny/{seed}")


def named(name: str):
    """(drafter, target) by the drafter's name, or package.module:Drafter, a class or an object.

    Raises:
      ValueError: there is none.
    """
    target = tiny(0, 8.0)
    if name in NAMED:
        return NAMED[name](target, tiny(1, 4.0)), target
    module, _, attribute = name.replace(":", ".").rpartition(".")
    if not module:
        raise ValueError(f"drafter={name!r} is none of {', '.join(NAMED)}, nor package.module:Drafter")
    try:
        thing = getattr(importlib.import_module(module), attribute)
        made = thing() if isinstance(thing, type) else thing
    except Exception as error:  # whatever the user's own module raises
        raise ValueError(f"drafter={name!r}: {type(error).__name__}: {' '.join(str(error).split())}") from error
    if missing := [what for what in ("most", "taps", "params", "init", "offer", "propose", "observe") if not hasattr(made, what)]:
        raise ValueError(f"drafter={name!r} has no {', '.join(missing)}: see specjax.types.Drafter for what a drafter is")
    return made, target
