"""A draft by its path: what `python -m specjax.train` exported, or an EAGLE-3 draft as it is published."""

from __future__ import annotations

import dataclasses
import warnings

import jax
import jax.numpy as jnp

from specjax.drafters import Eagle3Drafter, ModelDrafter
from specjax.lengths import EVERYTHING
from specjax.lm import LM
from specjax.models.border import Eagle3Model, LanguageModel, border
from specjax.models.config import ModelConfig
from specjax.models.eagle3 import Eagle3Config
from specjax.models.load import drafts
from specjax.parts import whole
from specjax.sharding import Layout


def load_drafter(path, target: LM, *, most: int = 7, split: bool = False) -> Eagle3Drafter | ModelDrafter:
    """Load a trained draft for its target: a folder, or a hub id. most: its largest draft. split: of a target over a mesh, over its model
    axis, too; else each device of that axis has all of the draft.

    Parameters have the target's dtype. Embedding and head are the target's own where the folder holds none. A target whose weights are not
    those that the draft was trained on is warned of: the output stays the target's, but fewer drafts may be accepted.

    Raises:
      ValueError: the folder is not whole, or the draft was made for another target: of another width,
        vocabulary or tokenizer, or of more layers.
    """
    most = whole("most", most, 1, EVERYTHING)
    config = getattr(getattr(target, "model", None), "config", None)
    if not isinstance(config, ModelConfig):
        raise ValueError(f"{path}: a trained draft needs a transformer as target, {getattr(target, 'source', repr(target))} is none")
    found = drafts.read(path, config, target.dtype)
    _check(path, found, target)
    ids_U = None if found.ids_U is None else jnp.asarray(found.ids_U)
    config, params = _placed(found.config, _with_lent(found, target.params), target.layout, split)
    if isinstance(config, Eagle3Config):
        model, of = Eagle3Model(config), Eagle3Drafter
    else:
        model, of = LanguageModel(config), ModelDrafter
    return of(model=model, params=params, ids_U=ids_U, most=most)


def _placed(config, params: dict, layout: Layout | None, split: bool):
    """(config, params) of the draft where they lie."""
    if layout is None:
        return config, params
    layout = dataclasses.replace(layout, model_axis=split)
    if isinstance(config, Eagle3Config):
        return dataclasses.replace(config, base=layout.config(config.base)), layout.place(config.base, params)
    return layout.config(config), layout.place(config, params)


def _with_lent(found: drafts.Trained, given: dict) -> dict:
    """The draft's parameters and what the target lends; shapes only, where the target has no more than these."""

    def whole(given):
        lent = {name: given[name] for name in found.lent}
        if "head_DV" in lent:
            base = getattr(found.config, "base", found.config)
            said = slice(base.head_vocab or base.vocab) if found.ids_U is None else jnp.asarray(found.ids_U)
            lent["head_DV"] = lent["head_DV"][:, said]
        return border(found.config, {**lent, **found.params})[1]

    abstract = any(isinstance(x, jax.ShapeDtypeStruct) for x in jax.tree.leaves(given))
    return jax.eval_shape(whole, given) if abstract else whole(given)


def _check(path, found: drafts.Trained, target: LM) -> None:
    """Of a draft that says what it was trained for."""
    texts, weights = found.note.within("tokenizer"), found.note.within("target")
    digest = texts.text("sha256", None)
    if digest and target.tokenizer is not None and drafts.fingerprint(target.tokenizer) != digest:
        sizes = f"{texts.count('vocab_size')} tokens, the target's {target.tokenizer.vocab_size}"
        raise ValueError(f"{path}: the draft was trained with another tokenizer, of {sizes}: its ids would mean other texts")
    digest = weights.text("sha256", None)
    if digest and target.sha256 and digest != target.sha256:
        trained_for = weights.text("source", "another target")
        warnings.warn(
            f"{path}: trained for {trained_for}, of other weights than {target.source}: fewer drafts may be accepted", stacklevel=3
        )
