"""The families that a Hugging Face folder may hold: for each architecture the names of its weights and the fields of its config.json.

A family reads the keys that transformers' code for its architecture reads. Each is either used (`read`, `readers`) or must have the one
value for which we compute the same (`plain`); any other key changes nothing there, and nothing here. Where a key is absent, transformers'
config class has a value of its own (`defaults`).
"""

from __future__ import annotations

import dataclasses
from typing import Any

from specjax.models.config import ModelConfig
from specjax.models.load import hf_names, names, readers
from specjax.models.load.fields import Fields
from specjax.models.load.names import table
from specjax.models.load.readers import activation, heads, rotary, rotary_by_layer, sliding


@dataclasses.dataclass(frozen=True)
class Family:
    table: names.Table
    read: dict[str, tuple]  # our field -> (kind, their key, default if it may be absent or null)
    readers: tuple[readers.Reader, ...]  # our fields that follow from several of theirs, in this order
    always: dict[str, Any] = dataclasses.field(default_factory=dict)  # our fields that are the same in all of the family
    defaults: dict[str, Any] = dataclasses.field(default_factory=dict)  # their keys
    plain: dict[str, tuple] = dataclasses.field(
        default_factory=dict
    )  # their keys -> the values that are supported; an error names the last one


FREQUENCIES = r".*\.rotary_emb\.inv_freq"  # computed here, not read
MASKS = r"(transformer\.h|h|gpt_neox\.layers)\.\d+\.(attn|attention)\.(masked_)?bias"
SIZES = {
    "vocab": ("count", "vocab_size"),
    "width": ("count", "hidden_size"),
    "layers": ("count", "num_hidden_layers"),
    "heads": ("count", "num_attention_heads"),
    "max_positions": ("count", "max_position_embeddings"),
    "ff": ("count", "intermediate_size"),
}
GPT2_SIZES = {
    "vocab": ("count", "vocab_size"),
    "width": ("count", "n_embd"),
    "layers": ("count", "n_layer"),
    "heads": ("count", "n_head"),
    "max_positions": ("count", "n_positions"),
    "norm_eps": ("number", "layer_norm_epsilon"),
}
LLAMA = SIZES | {"norm_eps": ("number", "rms_norm_eps")}
ATTENTION_BIAS = {"qkv_bias": ("flag", "attention_bias", False), "out_bias": ("flag", "attention_bias", False)}
EXPERTS_PER_TOKEN = {"experts_per_token": ("count", "num_experts_per_tok")}
NO_BIAS = {"attention_bias": (None, False)}
ONE_WAY = {"use_bidirectional_attention": (None, False)}
WINDOW = {"hidden_act": "silu", "sliding_window": 4096}
GEMMA = {"hidden_activation": "gelu_pytorch_tanh", "query_pre_attn_scalar": 256, "head_dim": 256, "sliding_window": 4096}
GEMMA |= {"tie_word_embeddings": True}


def _gemma_scales(fields: Fields, known: dict) -> dict:
    return {"attn_scale": fields.number("query_pre_attn_scalar") ** -0.5, "embed_scale": known["width"] ** 0.5}


def _inner(fields: Fields, known: dict) -> dict:
    return {"ff": fields.count("n_inner", 4 * known["width"])}


FAMILIES = {
    "LlamaForCausalLM": Family(
        table(hf_names.LLAMA, ignored=FREQUENCIES),
        LLAMA | ATTENTION_BIAS | {"mlp_bias": ("flag", "mlp_bias", False)},
        (heads, activation("hidden_act"), rotary()),
        defaults={"hidden_act": "silu"},
        plain={"sliding_window": (None,)},
    ),
    "MistralForCausalLM": Family(
        table(hf_names.LLAMA, ignored=FREQUENCIES),
        LLAMA,
        (heads, activation("hidden_act"), rotary(), sliding(readers.every, typed=False)),
        defaults=WINDOW,
        plain=NO_BIAS | {"layer_types": (None,)},
    ),
    "Qwen2ForCausalLM": Family(
        table(hf_names.LLAMA, ignored=FREQUENCIES),
        LLAMA,
        (heads, activation("hidden_act"), rotary(), sliding(readers.upper, flagged=True)),
        always={"qkv_bias": True},
        defaults=WINDOW,
    ),
    "Qwen3ForCausalLM": Family(
        table(hf_names.LLAMA, ignored=FREQUENCIES),
        LLAMA | ATTENTION_BIAS,
        (heads, activation("hidden_act"), rotary(), sliding(readers.upper, flagged=True)),
        always={"qk_norm": True},
        defaults=WINDOW | {"head_dim": 128},
    ),
    "Qwen3MoeForCausalLM": Family(
        table(hf_names.QWEN3_MOE, ignored=FREQUENCIES),
        LLAMA
        | ATTENTION_BIAS
        | EXPERTS_PER_TOKEN
        | {"expert_ff": ("count", "moe_intermediate_size"), "norm_topk": ("flag", "norm_topk_prob", False)},
        (heads, activation("hidden_act"), rotary(), sliding(readers.every, flagged=True, typed=False), readers.some_experts),
        always={"qk_norm": True},
        defaults=WINDOW,
        plain={"layer_types": (None,)},
    ),
    "MixtralForCausalLM": Family(
        table(hf_names.MIXTRAL, ignored=FREQUENCIES),
        LLAMA | EXPERTS_PER_TOKEN | {"experts": ("count", "num_local_experts"), "expert_ff": ("count", "intermediate_size")},
        (heads, activation("hidden_act"), rotary(base=1e6), sliding(readers.every, typed=False), readers.all_experts),
        always={"norm_topk": True},
        defaults={"hidden_act": "silu"},
        plain=NO_BIAS,
    ),
    "Phi3ForCausalLM": Family(
        table(hf_names.PHI3, ignored=FREQUENCIES),
        LLAMA,
        (
            heads,
            activation("hidden_act"),
            rotary(partial="partial_rotary_factor", aliases={"su": "longrope", "yarn": "longrope"}),
            sliding(readers.every, typed=False),
        ),
        defaults={"hidden_act": "silu", "original_max_position_embeddings": 4096},
        plain=NO_BIAS,
    ),
    "Gemma2ForCausalLM": Family(
        table(hf_names.GEMMA, ignored=FREQUENCIES),
        LLAMA
        | ATTENTION_BIAS
        | {"attn_cap": ("number", "attn_logit_softcapping", None), "logit_cap": ("number", "final_logit_softcapping", None)},
        (heads, activation("hidden_activation"), rotary(), sliding(readers.every_other), _gemma_scales),
        always={"post_norms": True},
        defaults=GEMMA | {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0},
        plain=ONE_WAY,
    ),
    "Gemma3ForCausalLM": Family(
        table(hf_names.GEMMA, ignored=FREQUENCIES),
        LLAMA | ATTENTION_BIAS | {"logit_cap": ("number", "final_logit_softcapping", None)},
        (heads, activation("hidden_activation"), rotary_by_layer, sliding(readers.all_but_the_last_of_six), _gemma_scales),
        always={"post_norms": True, "qk_norm": True},
        defaults=GEMMA,
        plain=ONE_WAY | {"attn_logit_softcapping": (None,)},  # in the config class of transformers, but not in its model
    ),
    "GPT2LMHeadModel": Family(
        table(hf_names.GPT2, ignored=MASKS, renamed=(("transformer.", ""),)),
        GPT2_SIZES,
        (heads, activation("activation_function"), _inner),
        always={"norm": "layer", "learned_positions": True, "gated": False, "qkv_bias": True, "out_bias": True, "mlp_bias": True},
        defaults={"activation_function": "gelu_new", "tie_word_embeddings": True},
        plain={"scale_attn_weights": (None, True), "scale_attn_by_inverse_layer_idx": (None, False), "add_cross_attention": (None, False)},
    ),
    "GPTNeoXForCausalLM": Family(
        table(hf_names.NEOX, ignored=f"{MASKS}|{FREQUENCIES}", renamed=(("lm_head.", "embed_out."),)),
        SIZES
        | {"norm_eps": ("number", "layer_norm_eps"), "parallel": ("flag", "use_parallel_residual", True)}
        | {"qkv_bias": ("flag", "attention_bias", True), "out_bias": ("flag", "attention_bias", True)},
        (heads, activation("hidden_act"), rotary("rotary_emb_base", partial="rotary_pct")),
        always={"norm": "layer", "gated": False, "mlp_bias": True},
        defaults={"hidden_act": "gelu", "rotary_pct": 0.25, "layer_norm_eps": 1e-5},
    ),
}
EVERYWHERE = {"quantization_config": (None,)}


def find(fields: Fields) -> Family:
    """The family of a config.json; ValueError names an architecture that is not in the table."""
    architecture = next(iter(fields.list("architectures", [])), None)
    if architecture not in list(FAMILIES):
        raise ValueError(f"architecture {architecture!r} is not supported; supported: {', '.join(FAMILIES)}")
    return FAMILIES[architecture]


def config(family: Family, fields: Fields, tensors: int, tied: bool) -> ModelConfig:
    """What a config.json says of a file with so many tensors. ValueError names what is missing, of another kind, or not supported."""
    for name, allowed in (EVERYWHERE | family.plain).items():
        if (value := fields.get(name)) not in allowed:
            raise ValueError(f"{fields.where}{name}={value!r} is not supported; supported: {allowed[-1]!r}")
    known = {ours: getattr(fields, kind)(*theirs) for ours, (kind, *theirs) in family.read.items()}
    names.check_count("layers", known["layers"], tensors)
    for reader in family.readers:
        known |= reader(fields, known)
    return ModelConfig(**known, **family.always, tied=tied)
