"""A Hugging Face folder: config.json says what the model is, safetensors hold its weights (one or many)."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import ml_dtypes  # noqa: F401  teaches numpy bfloat16, which safetensors then reads
import numpy as np
from safetensors import SafetensorError, safe_open

from specjax.models.config import ModelConfig
from specjax.models.load import names

FLOATS = ("F64", "F32", "F16", "BF16")


def load(folder: Path, dtype) -> tuple[ModelConfig, dict]:
    """(config, params) of a folder. ValueError, in one line, on anything missing, left over, damaged or unsupported."""
    raw = read_json(folder / "config.json")
    table = _table(raw)
    with contextlib.ExitStack() as stack:
        where = _open(weight_files(folder), stack)

        def read(name: str) -> np.ndarray:
            stored = where[name].get_slice(name).get_dtype()
            if stored not in FLOATS:
                raise ValueError(f"tensor {name} is stored as {stored}; supported: {', '.join(FLOATS)}")
            return where[name].get_tensor(name).astype(np.float32, copy=False)

        config = _config(raw, names.is_tied(table, where, read, raw.get("tie_word_embeddings")))
        return config, names.build(config, table, where, read, dtype)


def read_json(path: Path) -> dict:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ValueError(f"no {path.name} in the folder") from None
    except ValueError as error:
        raise ValueError(f"{path.name} is not valid JSON: {error}") from None


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of a folder, in name order. As transformers does, a single file goes before an index."""
    single, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
    if single.exists():
        return [single]
    if not index.exists():
        pickles = [p.name for pattern in ("*.bin", "*.pt", "*.pth") for p in sorted(folder.glob(pattern))]
        why = f" ({pickles[0]} is a pickle, and those are never read)" if pickles else ""
        raise ValueError(f"no model.safetensors and no model.safetensors.index.json in the folder{why}")
    shards = sorted({folder / shard for shard in read_json(index)["weight_map"].values()})
    if absent := [shard.name for shard in shards if not shard.exists()]:
        raise ValueError(f"no {absent[0]} in the folder, though its index names it")
    return shards


def _open(files: list[Path], stack: contextlib.ExitStack) -> dict:
    """Tensor name -> the open file that holds it. What the shards hold counts, not what the index says they hold."""
    where: dict = {}
    for path in files:
        try:
            file = stack.enter_context(safe_open(path, framework="numpy"))
        except SafetensorError as error:
            raise ValueError(f"{path.name} is not a whole safetensors file: {error}") from None
        for name in file.keys():  # noqa: SIM118  not a dict
            if name in where:
                raise ValueError(f"tensor {name} stands in two shards")
            where[name] = file
    return where


def _table(raw: dict) -> names.Table:
    architecture = (raw.get("architectures") or [None])[0]
    if architecture not in names.HUGGING_FACE:
        raise ValueError(f"architecture {architecture!r} is not supported; supported: {', '.join(names.HUGGING_FACE)}")
    return names.HUGGING_FACE[architecture]


def _config(raw: dict, tied: bool) -> ModelConfig:
    _refuse(raw)
    rope = raw.get("rope_parameters") or {}  # transformers 5; before, rope_theta stood at the top
    try:
        heads = raw["num_attention_heads"]
        return ModelConfig(
            vocab=raw["vocab_size"],
            width=raw["hidden_size"],
            layers=raw["num_hidden_layers"],
            heads=heads,
            kv_heads=raw.get("num_key_value_heads") or heads,
            head_size=raw.get("head_dim") or raw["hidden_size"] // heads,
            ff=raw["intermediate_size"],
            tied=tied,
            max_positions=raw["max_position_embeddings"],
            norm_eps=raw["rms_norm_eps"],
            rope_theta=float(rope.get("rope_theta") or raw.get("rope_theta") or 10_000.0),
        )
    except KeyError as error:
        raise ValueError(f"config.json has no {error.args[0]}") from None


def _refuse(raw: dict) -> None:
    """Say by name what this model has and we do not compute: ignoring it would give other logits without a word."""
    scaling = raw.get("rope_scaling") or raw.get("rope_parameters") or {}
    plain = {
        "rope_scaling.rope_type": (scaling.get("rope_type", scaling.get("type")), (None, "default")),
        "partial_rotary_factor": (scaling.get("partial_rotary_factor", raw.get("partial_rotary_factor")), (None, 1)),
        "attention_bias": (raw.get("attention_bias"), (None, False)),
        "mlp_bias": (raw.get("mlp_bias"), (None, False)),
        "sliding_window": (raw.get("sliding_window"), (None,)),
        "hidden_act": (raw.get("hidden_act"), (None, "silu")),
        "quantization_config": (raw.get("quantization_config"), (None,)),
    }
    for field, (value, allowed) in plain.items():
        if value not in allowed:
            raise ValueError(f"config.json: {field}={value!r} is not supported; supported: {allowed[-1]!r}")
