"""A small transformer of the target's family: some of the target's own layers, trained to say what all of them together say.

It starts from copies of chosen layers (as DistilBERT does, Sanh et al., 1910.01108). It reads through the target's embedding; the head is
the target's too, or those of its columns that the reduced vocabulary names (FR-Spec, Zhao et al., 2502.14856). Both stay as they are,
unless the head is trained as well.

Its law of a token depends on the text alone, so that one pass serves every place of a draft.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from specjax.drafters import ModelDrafter
from specjax.lm import LM
from specjax.models.border import LanguageModel
from specjax.training import rows


@dataclasses.dataclass(frozen=True)
class Small:
    """model: the draft's functions. layers: of the target, those that it starts from. train_head: the head is trained as well."""

    model: LanguageModel
    layers: tuple[int, ...]
    places: int = 5
    train_head: bool = False
    name = "small"
    taps = ()

    def init(self, target: LM, id_U: np.ndarray | None, seed: int) -> dict:
        """Copies of the target's layers, final norm and perhaps head, in float32. Nothing is drawn: `seed` changes nothing."""
        given = target.params
        params = {name: x for name, x in given.items() if name.startswith("norm")}
        params["layers"] = {str(i): given["layers"][str(layer)] for i, layer in enumerate(self.layers)}
        if self.train_head:
            params["head_DV"] = _head(target, id_U)
        return jax.tree.map(lambda x: jnp.array(x, jnp.float32), params)  # copies: a training step overwrites what it is given

    def frozen(self, target: LM, id_U: np.ndarray | None) -> dict:
        kept = {name: x for name, x in target.params.items() if name in ("embed_VD", "position_PD")}
        return kept if self.train_head else {**kept, "head_DV": _head(target, id_U)}

    def logits(self, params: dict, frozen: dict, batch: rows.Batch) -> list:
        params = {**frozen, **params}
        cache = self.model.init_cache(*batch.token_BT.shape, jax.tree.leaves(params)[0].dtype)
        cursor_B = jnp.zeros(len(batch.token_BT), jnp.int32)
        where = dict(position_BT=batch.position_BT, mask=rows.visible(batch))
        hidden_BTD, _, _ = self.model.forward(params, batch.token_BT, cache, cursor_B, **where)
        logits_BTU = self.model.head(params, hidden_BTD)[..., : self.model.vocab]
        real_BT = batch.segment_BT > 0
        return [(logits_BTU, real_BT & (batch.position_BT >= place)) for place in range(self.places)]

    def drafter(self, params: dict, frozen: dict, id_U: np.ndarray | None, most: int, target: LM) -> ModelDrafter:
        params = jax.tree.map(lambda x: jnp.asarray(x, target.dtype), {**frozen, **params})
        return ModelDrafter(model=self.model, params=params, most=most, ids_U=None if id_U is None else jnp.asarray(id_U))


def over(target: LM, vocab: int | None, layers: tuple[int, ...], places: int, train_head: bool) -> Small:
    """The kind for a target. vocab: tokens that the draft can say, None: all.

    Raises:
      ValueError: the target is no transformer of ours, or has no such layer.
    """
    config = getattr(target.model, "config", None)
    if config is None:
        raise ValueError(f"draft: {target.source} has no layers that a draft could start from")
    for layer in layers:
        if not 0 <= layer < config.layers:
            raise ValueError(f"draft.layers={list(layers)}: {layer} must be from 0 to {config.layers - 1}, the layers of {target.source}")
    sliding, sparse = (tuple(i for i, layer in enumerate(layers) if layer in chosen) for chosen in (config.sliding, config.sparse))
    parts = dict(layers=len(layers), sliding=sliding, sparse=sparse, window=config.window if sliding else None, head_vocab=vocab)
    return Small(LanguageModel(dataclasses.replace(config, tied=False, **parts)), layers, places, train_head)


def _head(target: LM, id_U: np.ndarray | None):
    head_DV = target.params["head_DV"]
    return head_DV if id_U is None else head_DV[:, jnp.asarray(id_U)]
