"""A language model ready to decode, and how it is loaded by its source."""

from __future__ import annotations

import dataclasses
import re

import jax
import jax.numpy as jnp

from specjax.models import border, toy
from specjax.models.load import load as load_checkpoint
from specjax.sharding import Layout, everywhere


@dataclasses.dataclass(frozen=True)
class LM:
    """A language model ready to decode: its functions, its parameters, its tokenizer."""

    model: object
    params: object
    tokenizer: object | None
    source: str
    sha256: str | None = None  # of the weight files
    layout: Layout | None = None  # where the parameters lie, None: on one device
    notes: tuple[str, ...] = ()  # lines about how they lie there

    @property
    def dtype(self):
        return jax.tree.leaves(self.params)[0].dtype

    @property
    def max_positions(self) -> int | None:
        config = getattr(self.model, "config", None)
        return config and config.max_positions


def load(source: str, *, dtype=None, layout: Layout | None = None) -> LM:
    """Load a model by its source: a folder, a .gguf file, a hub id, `pypi://...`, or `toy://tiny` with an optional `/SEED`.

    dtype: of the parameters; default float32 on a CPU (which has no bfloat16 product) and bfloat16 elsewhere. layout: where they go, each
    as soon as it is read, so that no host ever holds the whole model.
    """
    dtype = dtype_of(dtype)
    if source.startswith("toy://"):
        if not (named := re.fullmatch(r"toy://tiny(?:/(\d{1,9}))?", source)):
            raise ValueError(f"{source!r} should be toy://tiny or toy://tiny/SEED")
        model, params = toy.tiny(int(named[1] or 0), dtype, scale=8.0)
        lm = LM(model, params, toy.ByteTokenizer(), source)
        return lm if layout is None else place(lm, layout)
    checkpoint = load_checkpoint(source, dtype=dtype, put=layout and layout.put)
    config = checkpoint.config if layout is None else layout.config(checkpoint.config)
    model, params = border.border(config, checkpoint.params)
    notes = () if layout is None else tuple(layout.told(checkpoint.config))
    return LM(model, params, checkpoint.tokenizer, source, checkpoint.sha256, layout, notes)


def place(lm: LM, layout: Layout) -> LM:
    """A model that is in memory, over a mesh.

    Raises:
      ValueError: it lies on one already.
    """
    if lm.layout is not None:
        raise ValueError(f"{lm.source} lies on a mesh already")
    config = getattr(lm.model, "config", None)
    if config is None:  # of a table all devices have all
        return dataclasses.replace(lm, params=everywhere(layout, lm.params), layout=layout)
    model = dataclasses.replace(lm.model, config=layout.config(config))
    notes = tuple(layout.told(config))
    return dataclasses.replace(lm, model=model, params=layout.place(config, lm.params), layout=layout, notes=notes)


def dtype_of(dtype=None):
    """The dtype of parameters that `load` makes of what it is given."""
    try:
        dtype = jnp.dtype(dtype or (jnp.float32 if jax.default_backend() == "cpu" else jnp.bfloat16))
    except TypeError:
        raise ValueError(f"dtype={dtype!r} is not a dtype: float32, bfloat16 or float64") from None
    if not jnp.issubdtype(dtype, jnp.floating):
        raise ValueError(f"dtype={dtype} must be float32, bfloat16 or float64")
    if dtype == jnp.float64 and not jax.config.jax_enable_x64:
        raise ValueError("dtype=float64 needs jax_enable_x64")
    return dtype
