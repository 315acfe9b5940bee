"""EAGLE-3 (Li et al., 2503.01840) with its training-time test: what a draft reads at its second and later tokens is its own, so it is
trained on several unrolled steps, each on the hidden states of the one before.

Cell t joins feature t with token t + 1 and says token t + 2. At place j of a draft the last j cells are made of the draft's own hidden
states: cell t of place j reads hidden t - 1 of place j - 1, sees the cells up to t - j that are made of the target's features, and of each
place between one cell, on the diagonal that leads to it. That is what the decode loop has in its cache at that place.

It starts as the target's last look at a token: the fusion passes the highest feature on, the layer is a copy of one of the target's that
hardly sees the embeddings yet, norm and head are the target's.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from specjax.drafters import Eagle3Drafter
from specjax.lm import LM
from specjax.models.border import Eagle3Model, init
from specjax.models.eagle3 import Eagle3Config
from specjax.training import rows


@dataclasses.dataclass(frozen=True)
class Eagle3:
    """model: the draft's functions. places: unrolled steps. train_head: else the head is the target's, those columns it can say."""

    model: Eagle3Model
    places: int = 3
    train_head: bool = True
    name = "eagle3"

    @property
    def taps(self) -> tuple[int, ...]:
        return self.model.config.taps

    def init(self, target: LM, id_U: np.ndarray | None, seed: int) -> dict:
        """See the top of the file; the embeddings' half of the attention is drawn, a tenth of the usual size."""
        config, given = self.model.config, target.params
        drawn, width = init(config, seed), config.target_width
        layer = jax.tree.map(lambda x: x.astype(jnp.float32), given["layers"][str(config.taps[-1])])
        none_ED = 0.1 * drawn["layer"]["qkv_DGJC"][:width]
        copied = {name: x for name, x in layer.items() if name in drawn["layer"]}
        copied |= {"qkv_DGJC": jnp.concatenate([none_ED, layer["qkv_DGJC"]]), "feature_norm_D": layer["attn_norm_D"]}
        if "attn_norm_bias_D" in layer:
            copied["feature_norm_bias_D"] = layer["attn_norm_bias_D"]
        last_XD = jnp.concatenate([*[jnp.zeros((width, width))] * (len(config.taps) - 1), jnp.eye(width)])
        params = {"fc_XD": last_XD, "layer": copied, **{name: x for name, x in given.items() if name.startswith("norm")}}
        if self.train_head:
            params["head_DV"] = _head(target, id_U)
        return jax.tree.map(lambda x: jnp.array(x, jnp.float32), params)  # copies: a training step overwrites what it is given

    def frozen(self, target: LM, id_U: np.ndarray | None) -> dict:
        head = {} if self.train_head else {"head_DV": _head(target, id_U)}
        return {"embed_VD": target.params["embed_VD"], **head}

    def logits(self, params: dict, frozen: dict, batch: rows.Batch) -> list:
        params, made = {**frozen, **params}, []
        (B, T), dtype = batch.token_BT.shape, params["fc_XD"].dtype
        hidden_BTD = self.model.fuse(params, tuple(x.astype(dtype) for x in batch.features))
        next_BT, cache = rows.following(batch), self.model.init_cache(B, 0, dtype)
        for place in range(self.places):
            cache = jax.tree.map(lambda x: jnp.concatenate([x, jnp.zeros((*x.shape[:-2], T, x.shape[-1]), x.dtype)], axis=-2), cache)
            cursor_B = jnp.full(B, place * T, jnp.int32)
            where = dict(position_BT=batch.position_BT, mask=_seen(batch, place))
            hidden_BTD, cache = self.model.cell(params, hidden_BTD, next_BT, cache, cursor_B, **where)
            hidden_BTD = jnp.pad(hidden_BTD[:, :-1], ((0, 0), (1, 0), (0, 0)))  # row t: after cell t - 1, which read token t
            real_BT = (batch.segment_BT > 0) & (batch.position_BT > place)
            made.append((self.model.head(params, hidden_BTD), real_BT))
        return made

    def drafter(self, params: dict, frozen: dict, id_U: np.ndarray | None, most: int, target: LM) -> Eagle3Drafter:
        params = jax.tree.map(lambda x: jnp.asarray(x, target.dtype), {**frozen, **params})
        return Eagle3Drafter(model=self.model, params=params, most=most, ids_U=None if id_U is None else jnp.asarray(id_U))


def _seen(batch: rows.Batch, place: int):
    """bool [B, T, (place + 1) T]: which cells of this place and those before it a cell of this place sees."""
    T = batch.token_BT.shape[1]
    row_T1, column_1T = (np.arange(T)[:, None], np.arange(T)[None])
    own = [column_1T == row_T1 - (place - other) for other in range(1, place + 1)]
    seen_TS = np.concatenate([column_1T <= row_T1 - place, *own], axis=1)
    alike_BTT = batch.segment_BT[:, :, None] == batch.segment_BT[:, None, :]
    seen_BTS = jnp.tile(alike_BTT, (1, 1, place + 1)) & jnp.asarray(seen_TS)[None]
    self_TS = np.concatenate([np.zeros((T, place * T), bool), row_T1 == column_1T], axis=1)
    return seen_BTS | jnp.asarray(self_TS)[None]  # cells too near a text's beginning count for nothing, and see themselves


def over(target: LM, vocab: int | None, taps: tuple[int, ...], places: int, train_head: bool) -> Eagle3:
    """The kind for a target. vocab: tokens that the draft can say, None: all.

    Raises:
      ValueError: the target is no transformer of ours with plain layers, or has no such layer.
    """
    config = getattr(target.model, "config", None)
    if config is None:
        raise ValueError(f"draft: {target.source} has no layers whose features a draft could read")
    for tap in taps:
        if not 0 <= tap < config.layers:
            raise ValueError(f"draft.taps={list(taps)}: {tap} must be from 0 to {config.layers - 1}, the layers of {target.source}")
    base = dataclasses.replace(config, layers=1, tied=False, head_vocab=vocab or config.real_vocab)  # padding is never said
    return Eagle3(Eagle3Model(Eagle3Config(base, taps, config.width)), places, train_head)


def _head(target: LM, id_U: np.ndarray | None):
    head_DV = target.params["head_DV"][:, : target.model.vocab]
    return head_DV if id_U is None else head_DV[:, jnp.asarray(id_U)]
