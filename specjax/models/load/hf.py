"""A Hugging Face folder: config.json says what the model is, safetensors hold its weights (one or many)."""

from __future__ import annotations

import contextlib
import functools
import re
import sys
from pathlib import Path

import ml_dtypes  # noqa: F401  teaches numpy bfloat16, which safetensors then reads
import numpy as np
from safetensors import SafetensorError, safe_open

from specjax.models.config import ModelConfig
from specjax.models.load import families, names
from specjax.models.load.fields import Fields, read_json

FLOATS = ("F64", "F32", "F16", "BF16")


def load(folder: Path, dtype, put: names.Put | None = None) -> tuple[ModelConfig, dict]:
    """(config, params) of a folder. ValueError, in one line, on anything missing, left over, damaged or unsupported."""
    with contextlib.ExitStack() as stack:
        config, table, where = describe(folder, stack)
        return config, names.build(config, table, where, functools.partial(read, where), dtype, put)


def without_weights(folder: Path) -> ModelConfig:
    """What config.json alone says; where it is silent the head is one of its own."""
    fields, family = _fields(folder)
    return families.config(family, fields, sys.maxsize, bool(fields.flag("tie_word_embeddings", None)))


def _fields(folder: Path) -> tuple[Fields, families.Family]:
    raw = read_json(folder / "config.json")
    family = families.find(Fields(raw.get, "config.json: "))
    return Fields((family.defaults | raw).get, "config.json: "), family


def describe(folder: Path, stack: contextlib.ExitStack) -> tuple[ModelConfig, names.Table, dict]:
    """The config, the table of names, and the open file of each tensor. Of the tensors at most a head that may be the embedding is read."""
    fields, family = _fields(folder)
    where = opened(weight_files(folder), stack)
    table = names.as_stored(family.table, where)
    tied = names.is_tied(table, where, functools.partial(read, where), fields.flag("tie_word_embeddings", None))
    return families.config(family, fields, len(where), tied), table, where


def read(where: dict, name: str) -> np.ndarray:
    stored = where[name].get_slice(name).get_dtype()
    if stored not in FLOATS:
        raise ValueError(f"tensor {name} is stored as {stored}; supported: {', '.join(FLOATS)}")
    return where[name].get_tensor(name).astype(np.float32, copy=False)


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of a folder, in name order. As transformers does, a single file goes before an index."""
    single, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
    if single.exists():
        return [single]
    if not index.exists():
        pickles = [p.name for pattern in ("*.bin", "*.pt", "*.pth") for p in sorted(folder.glob(pattern))]
        why = f" ({pickles[0]} is a pickle, and those are never read)" if pickles else ""
        raise ValueError(f"no model.safetensors and no model.safetensors.index.json in the folder{why}")
    shard_of = Fields(read_json(index).get, f"{index.name}: ").object("weight_map")
    if odd := [name for name in shard_of.values() if not isinstance(name, str) or name in ("", "..") or re.search(r"[/\\]", name)]:
        raise ValueError(f"{index.name}: weight_map names {odd[0]!r}, should be files in the folder")
    shards = sorted({folder / shard for shard in shard_of.values()})
    if absent := [shard.name for shard in shards if not shard.exists()]:
        raise ValueError(f"no {absent[0]} in the folder, though its index names it")
    return shards


def opened(files: list[Path], stack: contextlib.ExitStack) -> dict:
    """Tensor name -> the open file that holds it. What the shards hold counts, not what the index says they hold."""
    where: dict = {}
    for path in files:
        try:
            file = stack.enter_context(safe_open(path, framework="numpy"))
        except (SafetensorError, OSError) as error:
            raise ValueError(f"{path.name} is not a whole safetensors file: {error}") from None
        for name in file.keys():  # noqa: SIM118  not a dict
            if name in where:
                raise ValueError(f"tensor {name} stands in two shards")
            where[name] = file
    return where
