"""What llama.cpp calls its architectures' weights: tables as in `names`, for files that its converter has written.

The converter stores kernels as (out, in) whatever the model had, adds Gemma's 1 to the weights of norms, and reorders rows of q and k
only for the architecture `llama`, which Mistral and Mixtral share.
"""

from __future__ import annotations

from specjax.models.load import names
from specjax.models.load.names import Rows, Table

LAYER, BLOCK = "layers/{}/", "blk.{}."
NAMES = dict(
    embed="token_embd", block=BLOCK, attn_norm="attn_norm", q="attn_q", k="attn_k", v="attn_v", out_="attn_output",
    q_norm="attn_q_norm", k_norm="attn_k_norm", mlp_norm="ffn_norm", gate="ffn_gate", up="ffn_up", down="ffn_down",
    norm="output_norm", head="output",
)  # fmt: skip


def _layer(ours: str, theirs: str, shape: str, join=names.keep) -> Rows:
    return {LAYER + ours: ({BLOCK + theirs: shape}, join)}


def _experts_down(config, weight):
    return weight.swapaxes(1, 2)


FUSED_QKV = _layer("qkv_DGJC", "attn_qkv.weight", "HC+GC+GC D", names.qkv_fused) | _layer(
    "qkv_bias_GJC", "attn_qkv.bias", "HC+GC+GC", names.qkv_fused
)
EXPERTS = (
    _layer("router_DE", "ffn_gate_inp.weight", "E D", names.transpose)
    | {LAYER + "up_EDUX": ({BLOCK + "ffn_gate_exps.weight": "E X D", BLOCK + "ffn_up_exps.weight": "E X D"}, names.experts_up)}
    | _layer("down_EXD", "ffn_down_exps.weight", "E D X", _experts_down)
)
POST_NORMS = _layer("attn_post_norm_D", "post_attention_norm.weight", "D") | _layer("mlp_post_norm_D", "post_ffw_norm.weight", "D")
NORM_BIASES = (
    _layer("attn_norm_bias_D", "attn_norm.bias", "D")
    | _layer("mlp_norm_bias_D", "ffn_norm.bias", "D")
    | {"norm_bias_D": ({"output_norm.bias": "D"}, names.keep)}
)
PLAIN_UP = _layer("up_DUF", "ffn_up.weight", "F D", names.gate_up) | _layer("up_bias_UF", "ffn_up.bias", "F", names.gate_up)
POSITIONS = {"position_PD": ({"position_embd.weight": "P D"}, names.keep)}

ROWS = names.llama_rows(**NAMES)
FREQUENCIES = r"rope_freqs\.weight"  # read with the description: it is a setting and no parameter
TABLES: dict[str, Table] = {
    "llama": names.table(names.llama_rows(**NAMES, join=names.qkv_interleaved) | EXPERTS, ignored=FREQUENCIES),
    "qwen2": names.table(ROWS),
    "qwen3": names.table(ROWS),
    "qwen3moe": names.table(ROWS | EXPERTS),
    "gemma2": names.table(ROWS | POST_NORMS),
    "gemma3": names.table(ROWS | POST_NORMS),
    "phi3": names.table(ROWS | FUSED_QKV | _layer("up_DUF", "ffn_up.weight", "F+F D", names.gate_up_fused)),
    "gpt2": names.table(ROWS | FUSED_QKV | PLAIN_UP | NORM_BIASES | POSITIONS),
}
