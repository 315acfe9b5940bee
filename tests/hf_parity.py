"""Our parameters as a transformers model, for comparisons (needs torch and transformers, the `parity` extra)."""

from __future__ import annotations

import numpy as np
import torch
import transformers

from specjax.models.config import ModelConfig


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


def random_llama(config: ModelConfig, seed: int) -> transformers.LlamaForCausalLM:
    """Random weights large enough that logits differ by whole units: with the usual tiny ones any mistake would pass."""
    torch.manual_seed(seed)
    model = transformers.LlamaForCausalLM(llama_config(config)).float().eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.normal_(1.0 if "norm" in name else 0.0, 0.3 if "norm" in name else 2 / weight.shape[-1] ** 0.5)
    return model


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
