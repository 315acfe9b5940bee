"""A tiny transformer and random EAGLE-3 drafts for it."""

from __future__ import annotations

import dataclasses
import functools

import jax
import numpy as np

import specjax
from specjax.models import border, toy
from specjax.models.eagle3 import Eagle3Config

TAPS = (0, 1)


@functools.cache
def target(dtype=np.float32) -> specjax.LM:
    model, params = toy.tiny(0, dtype, scale=8.0)
    return specjax.LM(model, params, None, "tiny")


def config(taps=TAPS, head_vocab=None, **options) -> Eagle3Config:
    c = target().model.config
    base = dataclasses.replace(c, layers=1, tied=False, head_vocab=head_vocab)
    return Eagle3Config(base, taps, c.width, **options)


@functools.cache
def drafter(seed=1, most=3, reduced=0, scale=4.0) -> specjax.Eagle3Drafter:
    """reduced: how many tokens it can say, spread over the target's; 0: all."""
    ids_U = np.unique(np.linspace(0, target().model.vocab - 1, reduced).astype(np.int32)) if reduced else None
    made = config(head_vocab=None if ids_U is None else len(ids_U))
    params = border.init(made, seed)
    params["head_DV"] = params["head_DV"] * scale
    model, params = border.border(made, {**params, "embed_VD": target().params["embed_VD"]})
    return specjax.Eagle3Drafter(model=model, params=params, ids_U=None if ids_U is None else jax.numpy.asarray(ids_U), most=most)


@functools.cache
def reduced_model(vocab=100, most=3) -> specjax.ModelDrafter:
    """The target's first layer with a head of fewer tokens."""
    given, ids_U = target(), np.unique(np.linspace(0, target().model.vocab - 1, vocab).astype(np.int32))
    made = dataclasses.replace(given.model.config, layers=1, tied=False, head_vocab=len(ids_U))
    params = given.params | {"layers": {"0": given.params["layers"]["0"]}, "head_DV": given.params["head_DV"][:, ids_U]}
    model, params = border.border(made, params)
    return specjax.ModelDrafter(model=model, params=params, ids_U=jax.numpy.asarray(ids_U), most=most)
