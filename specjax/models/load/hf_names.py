"""What the weights of each family are called in a Hugging Face folder: rows for `names.table`."""

from __future__ import annotations

from specjax.models.load import names
from specjax.models.load.names import Join, Rows, llama_rows

BLOCK = "model.layers.{}."
LLAMA = llama_rows(
    embed="model.embed_tokens", block=BLOCK, attn_norm="input_layernorm", q="self_attn.q_proj", k="self_attn.k_proj",
    v="self_attn.v_proj", out_="self_attn.o_proj", q_norm="self_attn.q_norm", k_norm="self_attn.k_norm",
    mlp_norm="post_attention_layernorm", gate="mlp.gate_proj", up="mlp.up_proj", down="mlp.down_proj", norm="model.norm", head="lm_head",
)  # fmt: skip


def _experts(router: str, expert: str, gate: str, up: str, down: str) -> Rows:
    gate, up, down = (f"{BLOCK}{expert}.{{e}}.{name}.weight" for name in (gate, up, down))
    return {
        "layers/{}/router_DE": ({f"{BLOCK}{router}.weight": "E D"}, names.transpose),
        "layers/{}/up_EDUX": ({gate: "X D", up: "X D"}, names.experts_up),
        "layers/{}/down_EXD": ({down: "D X"}, names.experts_down),
    }


QWEN3_MOE = LLAMA | _experts("mlp.gate", "mlp.experts", "gate_proj", "up_proj", "down_proj")
MIXTRAL = LLAMA | _experts("block_sparse_moe.gate", "block_sparse_moe.experts", "w1", "w3", "w2")
PHI3 = LLAMA | {
    "layers/{}/qkv_DGJC": ({BLOCK + "self_attn.qkv_proj.weight": "HC+GC+GC D"}, names.qkv_fused),
    "layers/{}/up_DUF": ({BLOCK + "mlp.gate_up_proj.weight": "F+F D"}, names.gate_up_fused),
}


def _one_more(rows: Rows, **theirs: str) -> Rows:
    """Norms that scale by 1 + w; `theirs` names some anew."""
    named = {f"layers/{{}}/{ours}": ({f"{BLOCK}{name}.weight": "D"}, names.keep) for ours, name in theirs.items()}
    rows = rows | named
    return rows | {path: (tensors, names.add_one) for path, (tensors, _) in rows.items() if "norm" in path}


GEMMA = _one_more(
    LLAMA, attn_post_norm_D="post_attention_layernorm", mlp_norm_D="pre_feedforward_layernorm", mlp_post_norm_D="post_feedforward_layernorm"
)


def _with_biases(block: str, embed: str, norm: str, head: str, **parts: tuple) -> Rows:
    """Families where all but embedding and head has a bias. Parts of a block are (their name, shape, shape of the bias, join)."""
    ours = {"qkv": ("qkv_DGJC", "qkv_bias_GJC"), "out": ("out_HCD", "out_bias_D")}
    ours |= {"up": ("up_DUF", "up_bias_UF"), "down": ("down_FD", "down_bias_D")}
    rows: Rows = {"embed_VD": ({f"{embed}.weight": "V D"}, names.keep), "head_DV": ({f"{head}.weight": "V D"}, names.transpose)}
    rows |= {"norm_D": ({f"{norm}.weight": "D"}, names.keep), "norm_bias_D": ({f"{norm}.bias": "D"}, names.keep)}
    for part, (name, shape, bias_shape, join) in parts.items():
        weight, bias = ours.get(part, (f"{part}_D", f"{part}_bias_D"))
        rows["layers/{}/" + weight] = ({f"{block}{name}.weight": shape}, join)
        rows["layers/{}/" + bias] = ({f"{block}{name}.bias": bias_shape}, names.keep if bias_shape == "D" else join)
    return rows


def _conv(join: Join) -> Join:
    """GPT-2's `Conv1D`: kernels are (in, out)."""
    return lambda config, *tensors: join(config, *(tensor.T for tensor in tensors))


GPT2 = _with_biases(
    "transformer.h.{}.", "transformer.wte", "transformer.ln_f", "lm_head",
    attn_norm=("ln_1", "D", "D", names.keep),
    qkv=("attn.c_attn", "D HC+GC+GC", "HC+GC+GC", _conv(names.qkv_fused)),
    out=("attn.c_proj", "HC D", "D", _conv(names.out)),
    mlp_norm=("ln_2", "D", "D", names.keep),
    up=("mlp.c_fc", "D F", "F", _conv(names.gate_up)),
    down=("mlp.c_proj", "F D", "D", names.keep),
) | {"position_PD": ({"transformer.wpe.weight": "P D"}, names.keep)}  # fmt: skip
NEOX = _with_biases(
    "gpt_neox.layers.{}.", "gpt_neox.embed_in", "gpt_neox.final_layer_norm", "lm_head",
    attn_norm=("input_layernorm", "D", "D", names.keep),
    qkv=("attention.query_key_value", "HC+GC+GC D", "HC+GC+GC", names.qkv_by_head),
    out=("attention.dense", "D HC", "D", names.out),
    mlp_norm=("post_attention_layernorm", "D", "D", names.keep),
    up=("mlp.dense_h_to_4h", "F D", "F", names.gate_up),
    down=("mlp.dense_4h_to_h", "D F", "D", names.transpose),
)  # fmt: skip
