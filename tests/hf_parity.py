"""Random tiny models of every family in transformers, and ours as theirs (needs torch and transformers, the `parity` extra)."""

from __future__ import annotations

import numpy as np
import torch
import transformers

from specjax.models.config import ModelConfig

LINEAR = {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e4}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "rope_theta": 1e4}
LLAMA3 |= {"original_max_position_embeddings": 32}
YARN = {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e4, "original_max_position_embeddings": 32}
LONG = {"rope_type": "longrope", "long_factor": [1.5, 2.5, 4.0, 9.0], "short_factor": [1.0, 1.1, 1.5, 3.0], "rope_theta": 1e4}
PHI3 = {"pad_token_id": 0, "original_max_position_embeddings": 32}
GEMMA2 = {"query_pre_attn_scalar": 24, "attn_logit_softcapping": 4.0, "final_logit_softcapping": 9.0}
EXPERTS = {"num_experts": 6, "moe_intermediate_size": 20, "num_experts_per_tok": 2}
SLIDES = {"use_sliding_window": True, "sliding_window": 12}
FAMILIES = {  # name -> (family, what of its config is not the default); windows of 12 and original lengths of 32 are shorter than the texts
    "llama": ("Llama", {"tie_word_embeddings": True, "rope_parameters": {"rope_theta": 1e5}}),
    "llama_linear": ("Llama", {"rope_parameters": LINEAR, "hidden_act": "gelu", "rms_norm_eps": 1e-3, "num_key_value_heads": 4}),
    "llama_llama3": ("Llama", {"rope_parameters": LLAMA3, "attention_bias": True, "mlp_bias": True, "head_dim": 10}),
    "llama_yarn": (
        "Llama",
        {"rope_parameters": YARN | {"mscale": 0.7, "mscale_all_dim": 0.4, "beta_fast": 8.0, "beta_slow": 0.5, "truncate": False}},
    ),
    "llama_yarn_attention": ("Llama", {"rope_parameters": YARN | {"attention_factor": 1.3}, "head_dim": 16}),
    "mistral": ("Mistral", {"sliding_window": 12, "head_dim": 12}),
    "qwen2": ("Qwen2", {"tie_word_embeddings": True}),
    "qwen2_window": ("Qwen2", SLIDES | {"max_window_layers": 1, "rope_parameters": YARN}),
    "qwen3": ("Qwen3", {"head_dim": 16}),
    "qwen3_window": ("Qwen3", SLIDES | {"head_dim": 6, "attention_bias": True, "max_window_layers": 0, "tie_word_embeddings": True}),
    "qwen3_moe": ("Qwen3Moe", EXPERTS | {"head_dim": 16, "norm_topk_prob": True}),
    "qwen3_moe_mixed": ("Qwen3Moe", EXPERTS | SLIDES | {"head_dim": 8, "decoder_sparse_step": 2, "attention_bias": True}),
    "mixtral": ("Mixtral", {"num_local_experts": 5, "num_experts_per_tok": 2, "sliding_window": 12}),
    "gemma2": ("Gemma2", GEMMA2 | {"head_dim": 12, "sliding_window": 12}),
    "gemma3": (
        "Gemma3",
        {
            "head_dim": 16, "query_pre_attn_scalar": 10, "sliding_window": 12, "final_logit_softcapping": 9.0,
            "layer_types": ["sliding_attention", "full_attention"],
            "rope_parameters": {"full_attention": LINEAR | {"rope_theta": 1e5}, "sliding_attention": {"rope_theta": 100.0}},
        },
    ),
    "gpt2": ("GPT2", {}),
    "gpt2_inner": ("GPT2", {"n_inner": 24, "activation_function": "gelu", "tie_word_embeddings": False}),
    "neox": ("GPTNeoX", {"rope_parameters": {"partial_rotary_factor": 0.25, "rope_theta": 1e4}}),
    "neox_serial": (
        "GPTNeoX",
        {"use_parallel_residual": False, "attention_bias": False, "tie_word_embeddings": True}
        | {"rope_parameters": {"partial_rotary_factor": 1.0, "rope_theta": 500.0}, "hidden_act": "gelu_fast"},
    ),
    "phi3": ("Phi3", PHI3 | {"sliding_window": 12, "tie_word_embeddings": True}),
    "phi3_long": ("Phi3", PHI3 | {"rope_parameters": LONG}),
    "phi3_short": (
        "Phi3",
        PHI3
        | {"original_max_position_embeddings": 128}
        | {"rope_parameters": LONG | {"partial_rotary_factor": 0.5, "long_factor": [2.0, 5.0], "short_factor": [1.5, 2.2]}},
    ),
}  # fmt: skip
torch.set_num_threads(1)  # more only get in each other's way


def family_config(name: str, vocab: int = 96, width: int = 32, layers: int = 2, heads: int = 4, kv_heads: int = 2, ff: int = 40):
    """The transformers config of a tiny model of one of the `FAMILIES`. Heads of 8, unless the family says otherwise."""
    family, options = FAMILIES[name]
    ends = {"bos_token_id": None, "eos_token_id": None}
    if family == "GPT2":
        sizes = {"vocab_size": vocab, "n_embd": width, "n_layer": layers, "n_head": heads, "n_positions": 128}
    else:
        sizes = {"vocab_size": vocab, "hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": heads}
        sizes |= {"num_key_value_heads": kv_heads} if family != "GPTNeoX" else {}
        sizes |= {"intermediate_size": ff, "max_position_embeddings": 128}
    kind = getattr(transformers, {"Gemma3": "Gemma3TextConfig"}.get(family, f"{family}Config"))
    return kind(**(sizes | ends | options))


def random_model(name: str, seed: int, **sizes):
    """A tiny model of a family with random weights large enough that logits differ by whole units, norms and biases included: with the
    usual tiny ones any mistake would pass."""
    torch.manual_seed(seed)
    family, config = FAMILIES[name][0], family_config(name, **sizes)
    model = getattr(transformers, {"GPT2": "GPT2LMHeadModel"}.get(family, f"{family}ForCausalLM"))(config).float().eval()
    with torch.no_grad():
        for path, weight in model.named_parameters():
            if weight.ndim == 1:
                scales = path.endswith("weight") and not family.startswith("Gemma")
                weight.normal_(1.0 if scales else 0.0, 0.3)
            else:
                inner = 0 if family == "GPT2" and ".h." in path else -1  # the axis that is summed over
                weight.normal_(0.0, 1.5 / weight.shape[inner] ** 0.5)
    return model


def random_llama(config: ModelConfig, seed: int) -> transformers.LlamaForCausalLM:
    """As `random_model`, of a shape given in our words."""
    torch.manual_seed(seed)
    model = transformers.LlamaForCausalLM(llama_config(config)).float().eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.normal_(1.0 if "norm" in name else 0.0, 0.3 if "norm" in name else 2 / weight.shape[-1] ** 0.5)
    return model


def state_dict(config: ModelConfig, params: dict) -> dict[str, torch.Tensor]:
    """Our tree under the names and in the layout of `LlamaForCausalLM`, float32: written apart from the loader's tables."""
    flat = {"model.embed_tokens.weight": params["embed_VD"], "model.norm.weight": params["norm_D"]}
    flat["lm_head.weight"] = params["embed_VD"] if config.tied else params["head_DV"].T
    for i, layer in params["layers"].items():
        q, k, v = np.split(layer["qkv_DGJC"], [config.group, config.group + 1], axis=2)
        kernels = {
            "self_attn.q_proj": q.reshape(config.width, -1),
            "self_attn.k_proj": k.reshape(config.width, -1),
            "self_attn.v_proj": v.reshape(config.width, -1),
            "self_attn.o_proj": layer["out_HCD"].reshape(-1, config.width),
            "mlp.gate_proj": layer["up_DUF"][:, 0],
            "mlp.up_proj": layer["up_DUF"][:, 1],
            "mlp.down_proj": layer["down_FD"],
        }
        flat |= {f"model.layers.{i}.{name}.weight": kernel.T for name, kernel in kernels.items()}
        flat[f"model.layers.{i}.input_layernorm.weight"] = layer["attn_norm_D"]
        flat[f"model.layers.{i}.post_attention_layernorm.weight"] = layer["mlp_norm_D"]
    return {name: torch.tensor(np.ascontiguousarray(x, np.float32)) for name, x in flat.items()}


def llama_config(config: ModelConfig) -> transformers.LlamaConfig:
    return transformers.LlamaConfig(
        vocab_size=config.vocab,
        hidden_size=config.width,
        intermediate_size=config.ff,
        num_hidden_layers=config.layers,
        num_attention_heads=config.heads,
        num_key_value_heads=config.kv_heads,
        head_dim=config.head_size,
        max_position_embeddings=config.max_positions,
        rms_norm_eps=config.norm_eps,
        rope_parameters={"rope_type": "default", "rope_theta": config.rope_theta},
        tie_word_embeddings=config.tied,
        bos_token_id=None,
        eos_token_id=None,
    )


def to_transformers(config: ModelConfig, params: dict) -> transformers.LlamaForCausalLM:
    """The same model in transformers, float32, ready to run."""
    model = transformers.LlamaForCausalLM(llama_config(config))
    model.load_state_dict(state_dict(config, params))
    return model.float().eval()


def logits(model, tokens) -> np.ndarray:
    """Logits [T, V] of one sequence."""
    with torch.no_grad():
        return model(torch.tensor(np.asarray(tokens)[None])).logits[0].numpy()


def greedy(model, prompt, count: int) -> np.ndarray:
    """`count` greedy tokens after a prompt; EOS is not looked at."""
    with torch.no_grad():
        ids = torch.tensor(np.asarray(prompt)[None])
        out = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=count, min_new_tokens=count)
    return out[0, len(prompt) :].numpy()


def text(model, seed: int, vocab: int, prompt: int, new: int) -> np.ndarray:
    """A random prompt and the model's greedy continuation."""
    tokens = np.random.default_rng(seed).integers(0, vocab, prompt)
    return np.concatenate([tokens, greedy(model, tokens, new)]).astype(np.int32)
