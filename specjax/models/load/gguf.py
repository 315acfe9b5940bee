"""The model in a GGUF file (llama.cpp's format): its description and its weights.

A description is fields under the architecture's name. What llama.cpp has fixed in code for an architecture is fixed here, in `OWN`.
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable

import numpy as np

from specjax.models.config import ModelConfig
from specjax.models.load import names, rope
from specjax.models.load.fields import Fields
from specjax.models.load.gguf_file import File
from specjax.models.load.names_gguf import TABLES

HARMLESS = {"tensor_data_layout", "rope.scaling.finetuned"}  # notes of the converter that change nothing


def load(file: File, dtype, put: names.Put | None = None) -> tuple[ModelConfig, dict]:
    """(config, params) of a file. ValueError, in one line, on anything missing, left over, damaged or unsupported."""
    config, table = describe(file)
    return config, names.build(config, table, file.tensors, file.read, dtype, put)


def describe(file: File) -> tuple[ModelConfig, names.Table]:
    """The config and the table of names, from the header; of the tensors at most the few rotary frequencies are read."""
    arch = Fields(file.get).text("general.architecture")
    if arch not in TABLES:
        raise ValueError(f"architecture {reprlib.repr(arch)} is not supported in GGUF; supported: {', '.join(TABLES)}")
    asked = set(HARMLESS)

    def get(name: str):
        asked.add(name)
        return file.get(f"{arch}.{name}")

    config = _config(file, arch, Fields(get, f"{arch}."))
    if ignored := [key for key in file.fields if key.startswith(f"{arch}.") and key.removeprefix(f"{arch}.") not in asked]:
        value = reprlib.repr(file.get(ignored[0]))
        raise ValueError(f"field {reprlib.repr(ignored[0])} (here {value}) is not known for this architecture")
    return config, TABLES[arch]


def _config(file: File, arch: str, fields: Fields) -> ModelConfig:
    width, heads, layers = (fields.count(name) for name in ("embedding_length", "attention.head_count", "block_count"))
    names.check_count("layers", layers, len(file.tensors))
    head_size = fields.count("attention.key_length", max(width // heads, 1))
    if heads * head_size > (longest := max(max(tensor.shape) for tensor in file.tensors.values())):
        raise ValueError(f"{arch}: {heads} heads of size {head_size} are more than the longest axis in the file, {longest}")
    base = dict(
        vocab=fields.count("vocab_size", None) or len(Fields(file.get).list("tokenizer.ggml.tokens")),
        width=width,
        layers=layers,
        heads=heads,
        kv_heads=fields.count("attention.head_count_kv", heads),
        head_size=head_size,
        ff=fields.count("feed_forward_length"),
        tied=names.is_tied(TABLES[arch], file.tensors, file.read, flag=None),
        max_positions=fields.count("context_length"),
        qkv_bias=bool({"blk.0.attn_q.bias", "blk.0.attn_qkv.bias"} & {*file.tensors}),
        out_bias="blk.0.attn_output.bias" in file.tensors,
        mlp_bias="blk.0.ffn_up.bias" in file.tensors,
    )
    config = ModelConfig(**base | OWN[arch](fields, base) | (_rope(file, fields, base) if arch != "gpt2" else {}))
    _refuse(fields, config)
    return config


# ---------------------------------------------------------------- what each architecture is, beside its sizes


def _rms(fields: Fields, base: dict) -> dict:
    return {"norm_eps": fields.number("attention.layer_norm_rms_epsilon")}


def _llama(fields: Fields, base: dict) -> dict:
    return _rms(fields, base) | (_experts(fields, base) if fields.get("expert_count") else {})


def _qwen3(fields: Fields, base: dict) -> dict:
    return _rms(fields, base) | {"qk_norm": True}


def _qwen3moe(fields: Fields, base: dict) -> dict:
    return _qwen3(fields, base) | _experts(fields, base)


def _experts(fields: Fields, base: dict) -> dict:
    """Every layer has experts, and the chosen ones' probabilities sum to one."""
    return {
        "experts": fields.count("expert_count"),
        "experts_per_token": fields.count("expert_used_count"),
        "expert_ff": fields.count("expert_feed_forward_length", base["ff"]),
        "sparse": tuple(range(base["layers"])),
        "norm_topk": True,
    }


def _gemma(fields: Fields, base: dict, period: int, largest: int) -> dict:
    """All but every `period`th layer slide. The family's largest model, of `largest` layers, scales scores by width / heads."""
    window = fields.count("attention.sliding_window")
    period = fields.count("attention.sliding_window_pattern", period)
    return _rms(fields, base) | {
        "post_norms": True,
        "activation": "gelu_tanh",
        "embed_scale": base["width"] ** 0.5,
        "window": window,
        "sliding": tuple(i for i in range(base["layers"]) if (i + 1) % period),
        "attn_scale": (base["width"] / base["heads"] if base["layers"] == largest else base["head_size"]) ** -0.5,
        "logit_cap": fields.number("final_logit_softcapping", None),
    }


def _gemma2(fields: Fields, base: dict) -> dict:
    return _gemma(fields, base, period=2, largest=46) | {
        "attn_cap": fields.number("attn_logit_softcapping", 50.0),
        "logit_cap": fields.number("final_logit_softcapping", 30.0),
    }


def _gemma3(fields: Fields, base: dict) -> dict:
    own = {"qk_norm": True, "window_theta": fields.number("rope.freq_base_swa", 10_000.0)}
    return _gemma(fields, base, period=6, largest=62) | own


def _phi3(fields: Fields, base: dict) -> dict:
    """A window of 0 is none. (llama.cpp leaves the window out; the model has it, in every layer.)"""
    window = fields.count("attention.sliding_window", None) if fields.get("attention.sliding_window") else None
    return _rms(fields, base) | {"window": window, "sliding": tuple(range(base["layers"])) if window else ()}


def _gpt2(fields: Fields, base: dict) -> dict:
    return {
        "norm": "layer",
        "norm_eps": fields.number("attention.layer_norm_epsilon"),
        "learned_positions": True,
        "activation": "gelu_tanh",
        "gated": False,
    }


OWN: dict[str, Callable[[Fields, dict], dict]] = {
    "llama": _llama,
    "qwen2": _rms,
    "qwen3": _qwen3,
    "qwen3moe": _qwen3moe,
    "gemma2": _gemma2,
    "gemma3": _gemma3,
    "phi3": _phi3,
    "gpt2": _gpt2,
}


# ---------------------------------------------------------------- positions


def _rope(file: File, fields: Fields, base: dict) -> dict:
    """Scaling by its fields, or (Llama 3) by a tensor of divisors, one a pair."""
    theta = fields.number("rope.freq_base", 10_000.0)
    size = fields.count("rope.dimension_count", base["head_size"])
    if size > base["head_size"] or (size < base["head_size"] and fields.where != "phi3."):
        raise ValueError(f"{fields.where}rope.dimension_count={size} is not supported; supported: {base['head_size']}")
    turned = {"rotary": size if size < base["head_size"] else None, "rope_theta": theta}
    kind, factor = _scaling(fields)
    if "rope_freqs.weight" not in file.tensors:
        original = fields.count("rope.scaling.original_context_length", base["max_positions"])
        lengths = rope.Lengths(original, base["max_positions"])
        return turned | rope.stretched(kind, Fields({"factor": factor}.get, f"{fields.where}rope.scaling."), theta, size, lengths)
    if kind != "default":
        raise ValueError(f"rope_freqs.weight and {fields.where}rope.scaling.type={kind!r} are two scalings, should be one")
    fields.get("rope.scaling.original_context_length")  # has gone into the divisors
    divisors = file.read("rope_freqs.weight")
    if divisors.shape != (size // 2,) or not (np.isfinite(divisors).all() and (divisors > 0).all()):
        raise ValueError(f"rope_freqs.weight should be {size // 2} positive numbers")
    return turned | {"rope_stretch": tuple(divisors.tolist())}


def _scaling(fields: Fields) -> tuple[str, float]:
    """The kind as `rope` names it, and its factor. A factor alone means linear."""
    factor = fields.number("rope.scaling.factor", fields.number("rope.scale_linear", 1.0))
    kind = fields.text("rope.scaling.type", "none" if factor == 1 else "linear")
    if kind not in ("none", "linear", "yarn"):
        raise ValueError(f"{fields.where}rope.scaling.type={reprlib.repr(kind)} is not supported; supported: none, linear, yarn")
    if kind == "none" and factor != 1:
        raise ValueError(f"{fields.where}rope.scaling.factor={factor} with rope.scaling.type='none': give one of the two")
    return ("default" if kind == "none" else kind), factor


def _refuse(fields: Fields, config: ModelConfig) -> None:
    """Say by name what this model has and we do not compute: ignoring it would give other logits without a word."""
    plain = {
        "attention.value_length": (None, config.head_size),
        "attention.causal": (None, True),
        "attention.sliding_window": (None, 0, *([config.window] if config.window else [])),
        "expert_count": (None, 0, *([config.experts] if config.experts else [])),
        "expert_used_count": (None, 0, *([config.experts_per_token] if config.experts else [])),
        "rope.scaling.attn_factor": (None, 1.0),
        "rope.scaling.yarn_ext_factor": (None, 1.0),
        "rope.scaling.yarn_attn_factor": (None, 1.0),
        "rope.scaling.yarn_beta_fast": (None, 32.0),
        "rope.scaling.yarn_beta_slow": (None, 1.0),
    }
    for name, allowed in plain.items():
        if (value := fields.get(name)) not in allowed:
            raise ValueError(f"{fields.where}{name}={reprlib.repr(value)} is not supported; supported: {allowed[-1]!r}")
