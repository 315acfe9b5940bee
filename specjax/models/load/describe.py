"""What a checkpoint is, by its headers: no weights are read, and nothing is fetched."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import math
from pathlib import Path

import jax

from specjax.models import border, load
from specjax.models.config import ModelConfig
from specjax.models.load import fetch, gguf, gguf_tokenizer, hf
from specjax.models.load import tokenizer as tokenizers
from specjax.models.load.tokenizer import Tokenizer


@dataclasses.dataclass(frozen=True)
class Description:
    """As `load.Checkpoint`, without weights. size: bytes of the weight files; numbers: in them; stored: how many tensors of each type."""

    config: ModelConfig
    tokenizer: Tokenizer | None
    path: Path
    size: int
    numbers: int
    stored: dict[str, int]

    def shapes(self, dtype) -> tuple:
        """(model, parameters), as `border` gives them, but of each parameter only its shape and dtype."""
        models = []

        def made():
            model, params = border.border(self.config, border.init(self.config, dtype=dtype))
            models.append(model)
            return params

        params = jax.eval_shape(made)
        return models[0], params


def describe(source: str) -> Description | None:
    """None if the source is not on this machine. ValueError as from `load`, for whatever the headers show."""
    path = fetch.resolve(source, download=False)
    if path is None:
        return None
    try:
        config, tokenizer, files, tensors = _folder(path) if path.is_dir() else _gguf(path)
        config = dataclasses.replace(config, real_vocab=load.real_vocab(config, tokenizer))
    except ValueError as error:
        raise ValueError(f"{source}: {error}") from error
    size, numbers = sum(file.stat().st_size for file in files), sum(math.prod(shape) for _, shape in tensors)
    return Description(config, tokenizer, path, size, numbers, dict(collections.Counter(kind for kind, _ in tensors)))


def without_weights(source: str) -> Description:
    """Of a folder that may hold no more than config.json. ValueError as from `load`."""
    path = fetch.resolve(source, download=False)
    if path is None or not path.is_dir():
        raise ValueError(f"{source}: a model without weights is a folder with config.json")
    try:
        config, tokenizer = hf.without_weights(path), tokenizers.from_folder(path)
        config = dataclasses.replace(config, real_vocab=load.real_vocab(config, tokenizer))
    except ValueError as error:
        raise ValueError(f"{source}: {error}") from error
    return Description(config, tokenizer, path, 0, 0, {})


def _folder(path: Path):
    with contextlib.ExitStack() as stack:
        config, _, where = hf.describe(path, stack)
        headers = [file.get_slice(name) for name, file in where.items()]
        tensors = [(header.get_dtype(), header.get_shape()) for header in headers]
    return config, tokenizers.from_folder(path), hf.weight_files(path), tensors


def _gguf(path: Path):
    file = load.open_gguf(path)
    config, _ = gguf.describe(file)
    return config, gguf_tokenizer.from_gguf(file), [path], [(tensor.kind.name, tensor.shape) for tensor in file.tensors.values()]
