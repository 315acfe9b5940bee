"""A GGUF file (llama.cpp's format): description, tokenizer and weights in one, the weights dequantised here at load."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFReader
from gguf.quants import dequantize

from specjax.models.config import ModelConfig
from specjax.models.load import names
from specjax.models.load.fields import Fields


class File:
    """An open GGUF file; a field is decoded when it is asked for."""

    def __init__(self, path: Path):
        try:
            self._reader = GGUFReader(path)
        except (OSError, ValueError, IndexError, KeyError, OverflowError) as error:
            raise ValueError(f"not a whole GGUF file: {error}") from None
        self.tensors = {tensor.name: tensor for tensor in self._reader.tensors}
        declared = self.get("split.tensors.count") or self.get("GGUF.tensor_count")
        if len(self.tensors) != declared:
            held = len(self.tensors)
            raise ValueError(f"the file declares {declared} tensors and holds {held} (split files are not supported)")

    def get(self, key: str, default: Any = None) -> Any:
        field = self._reader.get_field(key)
        return default if field is None else field.contents()

    def need(self, key: str) -> Any:
        if (value := self.get(key)) is None:
            raise ValueError(f"the file has no field {key}")
        return value

    def read(self, name: str) -> np.ndarray:
        tensor = self.tensors[name]
        try:
            return dequantize(tensor.data, tensor.tensor_type)
        except NotImplementedError:
            kind = tensor.tensor_type.name
            raise ValueError(f"tensor {name} has type {kind}, which the gguf package cannot dequantise") from None


def load(file: File, dtype) -> tuple[ModelConfig, dict]:
    """(config, params) of a file. ValueError, in one line, on anything missing, left over, damaged or unsupported."""
    architecture = Fields(file.get).text("general.architecture")
    if architecture not in names.GGUF:
        raise ValueError(f"architecture {architecture!r} is not supported in GGUF; supported: {', '.join(names.GGUF)}")
    table = names.GGUF[architecture]
    config = _config(file, architecture, names.is_tied(table, file.tensors, file.read, flag=None))
    return config, names.build(config, table, file.tensors, file.read, dtype)


def _config(file: File, arch: str, tied: bool) -> ModelConfig:
    fields = Fields(lambda name: file.get(f"{arch}.{name}"), f"{arch}.")
    width, heads = fields.count("embedding_length"), fields.count("attention.head_count")
    head_size = fields.count("attention.key_length", width // heads)
    _refuse(file, arch, head_size)
    return ModelConfig(
        vocab=fields.count("vocab_size", None) or len(Fields(file.get).list("tokenizer.ggml.tokens")),
        width=width,
        layers=fields.count("block_count"),
        heads=heads,
        kv_heads=fields.count("attention.head_count_kv", heads),
        head_size=head_size,
        ff=fields.count("feed_forward_length"),
        tied=tied,
        max_positions=fields.count("context_length"),
        norm_eps=fields.number("attention.layer_norm_rms_epsilon"),
        rope_theta=fields.number("rope.freq_base", 10_000.0),
    )


def _refuse(file: File, arch: str, head_size: int) -> None:
    """Say by name what this model has and we do not compute: ignoring it would give other logits without a word."""
    plain = {
        f"{arch}.rope.scaling.type": (None, "none"),
        f"{arch}.rope.scaling.factor": (None, 1.0),
        f"{arch}.rope.scale_linear": (None, 1.0),
        f"{arch}.rope.dimension_count": (None, head_size),
        f"{arch}.attention.value_length": (None, head_size),
        f"{arch}.attention.sliding_window": (None, 0),
        f"{arch}.expert_count": (None, 0),
    }
    for field, allowed in plain.items():
        if (value := file.get(field)) not in allowed:
            raise ValueError(f"{field}={value!r} is not supported; supported: {allowed[-1]!r}")
    if "rope_freqs.weight" in file.tensors:
        raise ValueError("rope_freqs.weight means rope scaling, which is not supported")
