"""Where Flax ends: a module is split once into (model, params), and nothing past this file has heard of Flax.

`Transformer` and `Eagle3` are Flax NNX modules. Here they become a hashable `LanguageModel` (`specjax.types.Model`) and `Eagle3Model`, and
a plain nested dict of arrays.
"""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
from flax import nnx

from specjax.models import cache
from specjax.models.config import ModelConfig
from specjax.models.eagle3 import Eagle3, Eagle3Config
from specjax.models.transformer import Transformer


@functools.lru_cache
def _skeleton(config: ModelConfig | Eagle3Config):
    """(graph definition, abstract state) of the module: its structure, no arrays."""
    return nnx.split(nnx.eval_shape(lambda: _module(config)(config, rngs=nnx.Rngs(0))))


def _module(config) -> type[nnx.Module]:
    return Eagle3 if isinstance(config, Eagle3Config) else Transformer


def _merge(config, params) -> nnx.Module:
    """The module with these parameters."""
    graph, abstract = _skeleton(config)
    state = jax.tree.map(lambda spec: spec, abstract)  # a fresh copy: the next line fills it in place
    nnx.replace_by_pure_dict(state, _rekey(params, int))
    return nnx.merge(graph, state)


def _to_plain(state: nnx.State) -> dict:
    return _rekey(nnx.to_pure_dict(state), str)


def _rekey(tree, kind):
    """Layer numbers are ints in NNX and strings in a checkpoint."""
    if not isinstance(tree, dict):
        return tree
    return {kind(k) if str(k).isdigit() else k: _rekey(v, kind) for k, v in tree.items()}


@dataclasses.dataclass(frozen=True)
class LanguageModel:
    """The functions of a transformer without its parameters."""

    config: ModelConfig

    @property
    def vocab(self) -> int:
        return self.config.head_vocab or self.config.real_vocab or self.config.vocab

    def forward(self, params, token_BT, cache, cursor_B, **options):
        return _merge(self.config, params).forward(token_BT, cache, cursor_B, **options)

    def head(self, params, hidden):
        return _merge(self.config, params).head(hidden)

    def gather(self, kept, cursor_B, slot_BT, span: int):
        return cache.gather(kept, len(cursor_B), self.config.kv_heads, cursor_B, slot_BT, span)

    def init_cache(self, batch: int, size: int, dtype=None):
        c = self.config
        return cache.empty(c.layers, batch, c.kv_heads, size, c.head_size, dtype or jnp.float32)


@dataclasses.dataclass(frozen=True)
class Eagle3Model:
    """The functions of an EAGLE-3 draft without its parameters; see `specjax.models.eagle3`."""

    config: Eagle3Config

    @property
    def vocab(self) -> int:
        """Tokens that it can say."""
        return self.config.base.head_vocab or self.config.base.vocab

    def fuse(self, params, features):
        return _merge(self.config, params).fuse(features)

    def cell(self, params, feature_BTD, token_BT, cache, cursor_B, **options):
        return _merge(self.config, params).cell(feature_BTD, token_BT, cache, cursor_B, **options)

    def head(self, params, hidden):
        return _merge(self.config, params).head(hidden)

    def init_cache(self, batch: int, size: int, dtype=None):
        c = self.config.base
        return cache.empty(1, batch, c.kv_heads, size, c.head_size, dtype or jnp.float32)


def init(config: ModelConfig | Eagle3Config, seed: int = 0, dtype=jnp.float32) -> dict:
    """Random parameters as a nested dict."""
    return _to_plain(nnx.state(_module(config)(config, rngs=nnx.Rngs(seed), dtype=dtype)))


def border(config: ModelConfig | Eagle3Config, params: dict) -> tuple[LanguageModel | Eagle3Model, dict]:
    """Check `params` against the module, tensor for tensor, and put them on the device.

    A tied head gets a transposed copy of the embedding, as a head of its own: 4% of a verification pass on a CPU, V * D numbers more.

    Raises:
      ValueError: a parameter is missing, left over or of another shape; names it.
    """
    wanted = dict(jax.tree.flatten_with_path(_to_plain(_skeleton(config)[1]))[0])
    given = dict(jax.tree.flatten_with_path(params)[0])
    for path in wanted.keys() ^ given.keys():
        what = "is missing" if path in wanted else "is not part of this model"
        raise ValueError(f"parameter {jax.tree_util.keystr(path)} {what}")
    for path, spec in wanted.items():
        if spec.shape != given[path].shape:
            raise ValueError(f"parameter {jax.tree_util.keystr(path)} has shape {given[path].shape}, not {spec.shape}")
    params = jax.tree.map(jnp.asarray, params)
    if isinstance(config, Eagle3Config):
        return Eagle3Model(config), params
    if config.tied:
        params = {**params, "head_DV": jnp.copy(params["embed_VD"].T)}
    return LanguageModel(dataclasses.replace(config, tied=False)), params
