"""What config.json says: the fields of every family in the spellings of old and new files, and refusals by name."""

import pytest

from specjax.models.config import ModelConfig
from specjax.models.load import families
from specjax.models.load.fields import Fields

SIZES = {
    "vocab_size": 96, "hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 40,
    "max_position_embeddings": 128, "rms_norm_eps": 1e-6,
}  # fmt: skip
OURS = {"vocab": 96, "width": 32, "layers": 4, "heads": 4, "kv_heads": 4, "head_size": 8, "ff": 40, "tied": True, "max_positions": 128}
OURS |= {"norm_eps": 1e-6}
GEMMA = {
    "head_size": 256, "activation": "gelu_tanh", "post_norms": True, "attn_scale": 1 / 16, "embed_scale": 32**0.5, "window": 4096,
}  # fmt: skip
GPT2 = {"n_embd": 32, "n_layer": 4, "n_head": 4, "n_positions": 128, "layer_norm_epsilon": 1e-6, "vocab_size": 96}
LAYER_NORM = {"norm": "layer", "gated": False, "qkv_bias": True, "out_bias": True, "mlp_bias": True}
NEOX = {k: v for k, v in SIZES.items() if k != "rms_norm_eps"} | {"layer_norm_eps": 1e-6}
LONG = {"type": "su", "long_factor": [2.0] * 4, "short_factor": [1.0] * 4}
EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 20}


def read(architecture, raw, tensors=1000):
    raw = {"architectures": [architecture], **raw}
    family = families.find(Fields(raw.get, "config.json: "))
    return families.config(family, Fields((family.defaults | raw).get, "config.json: "), tensors, tied=True)


@pytest.mark.parametrize(
    ("architecture", "raw", "ours"),
    [
        ("LlamaForCausalLM", {}, {}),
        ("LlamaForCausalLM", {"attention_bias": True, "head_dim": 6}, {"qkv_bias": True, "out_bias": True, "head_size": 6}),
        ("LlamaForCausalLM", {"rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 2.0}}, {
            "rope_theta": 5e5, "rope_stretch": (2.0,) * 4,
        }),
        ("MistralForCausalLM", {"sliding_window": 16}, {"window": 16, "sliding": (0, 1, 2, 3)}),
        ("MistralForCausalLM", {"sliding_window": None}, {}),
        ("Qwen2ForCausalLM", {"use_sliding_window": False, "sliding_window": 16, "max_window_layers": 2}, {"qkv_bias": True}),
        ("Qwen2ForCausalLM", {"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 2}, {
            "qkv_bias": True, "window": 16, "sliding": (2, 3),
        }),
        ("Qwen2ForCausalLM", {"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 4}, {"qkv_bias": True}),
        ("Qwen3ForCausalLM", {"num_key_value_heads": 2}, {"qk_norm": True, "head_size": 128, "kv_heads": 2}),
        ("Qwen3MoeForCausalLM", EXPERTS | {"head_dim": 8, "mlp_only_layers": [1], "decoder_sparse_step": 2}, {
            "qk_norm": True, "experts": 8, "experts_per_token": 2, "expert_ff": 20, "sparse": (3,),
        }),
        ("MixtralForCausalLM", {"num_local_experts": 8, "num_experts_per_tok": 2}, {
            "experts": 8, "experts_per_token": 2, "expert_ff": 40, "sparse": (0, 1, 2, 3), "norm_topk": True, "rope_theta": 1e6,
        }),
        ("Phi3ForCausalLM", {"rope_scaling": LONG, "original_max_position_embeddings": 128}, {"rope_stretch": (1.0,) * 4}),
        ("Phi3ForCausalLM", {"rope_scaling": LONG, "original_max_position_embeddings": 2}, {
            "rope_stretch": (2.0,) * 4, "rope_gain": pytest.approx(7**0.5),
        }),
        ("Phi3ForCausalLM", {"partial_rotary_factor": 0.5, "rope_scaling": None}, {"rotary": 4}),
        ("Gemma2ForCausalLM", {}, GEMMA | {"sliding": (0, 2), "attn_cap": 50.0, "logit_cap": 30.0}),
        ("Gemma2ForCausalLM", {"attn_logit_softcapping": None, "final_logit_softcapping": None}, GEMMA | {"sliding": (0, 2)}),
        ("Gemma3ForCausalLM", {"sliding_window_pattern": 2, "rope_theta": 1e5, "rope_local_base_freq": 50.0, "rope_scaling": {
            "rope_type": "linear", "factor": 8.0,
        }}, GEMMA | {
            "sliding": (0, 2), "qk_norm": True, "rope_theta": 1e5, "window_theta": 50.0, "rope_stretch": (8.0,) * 128,
        }),
        ("Gemma3ForCausalLM", {"layer_types": ["full_attention"] * 3 + ["sliding_attention"]}, GEMMA | {
            "sliding": (3,), "qk_norm": True, "rope_theta": 1e6, "window_theta": 10_000.0,
        }),
        ("GPT2LMHeadModel", GPT2, LAYER_NORM | {"learned_positions": True, "activation": "gelu_tanh", "ff": 128}),
        ("GPTNeoXForCausalLM", NEOX | {"rotary_emb_base": 500, "rotary_pct": 0.5}, LAYER_NORM | {
            "activation": "gelu", "parallel": True, "rotary": 4, "rope_theta": 500.0,
        }),
    ],
)  # fmt: skip
def test_config(architecture, raw, ours):
    base = {} if architecture in ("GPT2LMHeadModel", "GPTNeoXForCausalLM") else SIZES
    assert vars(read(architecture, base | raw)) == vars(ModelConfig(**(OURS | ours)))


@pytest.mark.parametrize(
    ("architecture", "raw", "message"),
    [
        ("LlamaForCausalLM", {"hidden_act": "relu6"}, "^config.json: hidden_act='relu6' is not supported; supported: silu, swish, gelu,"),
        ("LlamaForCausalLM", {"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "rope_scaling.rope_type='dynamic' is not supported"),
        ("LlamaForCausalLM", {"rope_scaling": {"factor": 2.0}}, "rope_scaling.factor=2.0 is not supported with rope_type 'default'"),
        (
            "LlamaForCausalLM",
            {"rope_scaling": {"type": "linear", "factor": 2, "attention_factor": 2}},
            "attention_factor=2 is not supported",
        ),
        ("LlamaForCausalLM", {"partial_rotary_factor": 0.5}, "partial_rotary_factor=0.5 is not supported; supported: 1"),
        ("LlamaForCausalLM", {"num_hidden_layers": 10**12}, "the config says 1000000000000 layers, but the file has only 1000 tensors"),
        ("LlamaForCausalLM", {"rope_theta": 1}, "rope_theta=1.0 and an original length of 128 should be above 1"),
        ("MistralForCausalLM", {"attention_bias": True}, "attention_bias=True is not supported; supported: False"),
        ("MistralForCausalLM", {"layer_types": ["full_attention"]}, "layer_types="),
        ("Qwen2ForCausalLM", {"layer_types": ["sliding_attention"] * 4}, "layer_types has sliding layers, but sliding_window is null"),
        (
            "Qwen3ForCausalLM",
            {"layer_types": ["linear_attention"] * 4},
            "layer_types should be 4 times full_attention or sliding_attention",
        ),
        ("Qwen3ForCausalLM", {"layer_types": ["full_attention"]}, "layer_types should be 4 times"),
        ("Qwen3MoeForCausalLM", EXPERTS | {"num_experts_per_tok": 9}, "experts_per_token=9 should be from 1 to experts=8"),
        ("Qwen3MoeForCausalLM", EXPERTS | {"mlp_only_layers": [4]}, "mlp_only_layers names 4, should be layers below 4"),
        ("Gemma2ForCausalLM", {"use_bidirectional_attention": True}, "use_bidirectional_attention=True is not supported"),
        ("Gemma3ForCausalLM", {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping=50.0 is not supported; supported: None"),
        ("Gemma3ForCausalLM", {"rope_parameters": {"rope_theta": 1e4}}, "rope_parameters.rope_theta should stand in full_attention"),
        (
            "Gemma3ForCausalLM",
            {"rope_parameters": {"sliding_attention": {"rope_type": "linear", "factor": 2.0}}},
            "rope_parameters.sliding_attention.rope_type='linear' is not supported; supported: default",
        ),
        ("Phi3ForCausalLM", {"partial_rotary_factor": 0.4}, "rotary=3 must be even"),
        ("Phi3ForCausalLM", {"partial_rotary_factor": 2.0}, "partial_rotary_factor=2.0 is not supported"),
        ("GPT2LMHeadModel", GPT2 | {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx=True is not supported"),
        ("GPT2LMHeadModel", GPT2 | {"scale_attn_weights": False}, "scale_attn_weights=False is not supported"),
        ("GPT2LMHeadModel", GPT2 | {"add_cross_attention": True}, "add_cross_attention=True is not supported"),
        (
            "T5ForConditionalGeneration",
            {},
            "architecture 'T5ForConditionalGeneration' is not supported; supported: LlamaForCausalLM, Mistral",
        ),
    ],
)
def test_refusals(architecture, raw, message):
    with pytest.raises(ValueError, match=message):
        read(architecture, SIZES | raw)


@pytest.mark.parametrize("architecture", families.FAMILIES)
def test_quantised_weights_are_refused_everywhere(architecture):
    with pytest.raises(ValueError, match=r"quantization_config=\{'bits': 4\} is not supported"):
        read(architecture, SIZES | {"quantization_config": {"bits": 4}})
