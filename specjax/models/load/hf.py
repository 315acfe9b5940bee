"""A Hugging Face folder: config.json says what the model is, safetensors hold its weights (one or many)."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

import ml_dtypes  # noqa: F401  teaches numpy bfloat16, which safetensors then reads
import numpy as np
from safetensors import SafetensorError, safe_open

from specjax.models.config import ModelConfig
from specjax.models.load import names
from specjax.models.load.fields import Fields, read_json

FLOATS = ("F64", "F32", "F16", "BF16")


def load(folder: Path, dtype) -> tuple[ModelConfig, dict]:
    """(config, params) of a folder. ValueError, in one line, on anything missing, left over, damaged or unsupported."""
    fields = Fields(read_json(folder / "config.json").get, "config.json: ")
    table = _table(fields)
    with contextlib.ExitStack() as stack:
        where = _open(weight_files(folder), stack)

        def read(name: str) -> np.ndarray:
            stored = where[name].get_slice(name).get_dtype()
            if stored not in FLOATS:
                raise ValueError(f"tensor {name} is stored as {stored}; supported: {', '.join(FLOATS)}")
            return where[name].get_tensor(name).astype(np.float32, copy=False)

        config = _config(fields, names.is_tied(table, where, read, fields.flag("tie_word_embeddings", None)))
        return config, names.build(config, table, where, read, dtype)


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


def _open(files: list[Path], stack: contextlib.ExitStack) -> dict:
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


def _table(fields: Fields) -> names.Table:
    architecture = next(iter(fields.list("architectures", [])), None)
    if architecture not in list(names.HUGGING_FACE):
        raise ValueError(f"architecture {architecture!r} is not supported; supported: {', '.join(names.HUGGING_FACE)}")
    return names.HUGGING_FACE[architecture]


def _config(fields: Fields, tied: bool) -> ModelConfig:
    _refuse(fields)
    width, heads = fields.count("hidden_size"), fields.count("num_attention_heads")
    rope = fields.within("rope_parameters")  # transformers 5; before, rope_theta stood at the top
    return ModelConfig(
        vocab=fields.count("vocab_size"),
        width=width,
        layers=fields.count("num_hidden_layers"),
        heads=heads,
        kv_heads=fields.count("num_key_value_heads", heads),
        head_size=fields.count("head_dim", width // heads),
        ff=fields.count("intermediate_size"),
        tied=tied,
        max_positions=fields.count("max_position_embeddings"),
        norm_eps=fields.number("rms_norm_eps"),
        rope_theta=rope.number("rope_theta", fields.number("rope_theta", 10_000.0)),
    )


def _refuse(fields: Fields) -> None:
    """Say by name what this model has and we do not compute: ignoring it would give other logits without a word."""
    rope = {"rope_type": (None, "default"), "type": (None, "default"), "factor": (None, 1), "partial_rotary_factor": (None, 1)}
    plain = {
        "partial_rotary_factor": (None, 1),
        "attention_bias": (None, False),
        "mlp_bias": (None, False),
        "sliding_window": (None,),
        "hidden_act": (None, "silu"),
        "quantization_config": (None,),
    }
    scaling = [(fields.within(name), rope) for name in ("rope_scaling", "rope_parameters")]  # of transformers 4 and 5
    for place, supported in [*scaling, (fields, plain)]:
        for name, allowed in supported.items():
            if (value := place.get(name)) not in allowed:
                raise ValueError(f"{place.where}{name}={value!r} is not supported; supported: {allowed[-1]!r}")
