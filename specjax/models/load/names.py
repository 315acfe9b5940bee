"""What each family calls its weights, and how theirs become ours: tables, so that another family is another table.

Our tree is a plain nested dict. Kernels are stored (in, out); rotary pairs are half-split (i turns with i + C / 2):

    embed_VD [V, D]                       layers/i/attn_norm_D [D]      layers/i/qkv_DGJC [D, G, R + 2, C]
    layers/i/out_HCD [H, C, D]            layers/i/mlp_norm_D [D]       layers/i/up_DUF [D, 2, F]
    layers/i/down_FD [F, D]               norm_D [D]                    head_DV [D, V], absent when tied

J counts, for each key-value group g, its R query heads (query head h = g * R + r), then its key, then its value;
U is gate, then up.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection
from typing import NamedTuple

import numpy as np

from specjax.models.config import ModelConfig

DTYPES = ("float32", "bfloat16", "float64")
Read = Callable[[str], np.ndarray]  # a tensor of the file by its name, dequantised to a float array


class Entry(NamedTuple):
    """One parameter of ours: its path, the tensors it is made of, and how they are joined."""

    path: str  # '{}' stands for the layer, here and in the names
    theirs: dict[str, str]  # name -> shape in our letters; 'HC D' is [H * C, D]
    join: Callable[..., np.ndarray]  # (config, *tensors) -> our array, any strides


class Table(NamedTuple):
    entries: tuple[Entry, ...]
    ignored: str = r"(?!)"  # pattern of names that hold no weight; by default no name matches


# ---------------------------------------------------------------- how tensors are joined


def _keep(config, weight):
    return weight


def _transpose(config, weight):
    return weight.T


def _qkv(config, q, k, v):
    g, c, d = config.kv_heads, config.head_size, config.width
    parts = [q.reshape(g, config.group, c, d), k.reshape(g, 1, c, d), v.reshape(g, 1, c, d)]
    return np.concatenate(parts, axis=1).transpose(3, 0, 1, 2)


def _qkv_interleaved(config, q, k, v):
    """GGUF's Llama has rotary pairs as neighbours (2i, 2i + 1): put the rows of q and k back into half-split order."""

    def half_split(weight, heads):
        return weight.reshape(heads, config.head_size // 2, 2, config.width).swapaxes(1, 2)

    return _qkv(config, half_split(q, config.heads), half_split(k, config.kv_heads), v)


def _out(config, weight):
    return weight.T.reshape(config.heads, config.head_size, config.width)


def _gate_up(config, gate, up):
    return np.stack([gate, up]).transpose(2, 0, 1)


# ---------------------------------------------------------------- the tables


def _llama(embed, block, attn_norm, q, k, v, out, mlp_norm, gate, up, down, norm, head, *, qkv) -> tuple[Entry, ...]:
    """The Llama shape with somebody's names for it."""
    ours = "layers/{}/"
    return (
        Entry("embed_VD", {embed: "V D"}, _keep),
        Entry(ours + "attn_norm_D", {block + attn_norm: "D"}, _keep),
        Entry(ours + "qkv_DGJC", {block + q: "HC D", block + k: "GC D", block + v: "GC D"}, qkv),
        Entry(ours + "out_HCD", {block + out: "D HC"}, _out),
        Entry(ours + "mlp_norm_D", {block + mlp_norm: "D"}, _keep),
        Entry(ours + "up_DUF", {block + gate: "F D", block + up: "F D"}, _gate_up),
        Entry(ours + "down_FD", {block + down: "D F"}, _transpose),
        Entry("norm_D", {norm: "D"}, _keep),
        Entry("head_DV", {head: "V D"}, _transpose),
    )


HUGGING_FACE = {
    "LlamaForCausalLM": Table(
        _llama(
            embed="model.embed_tokens.weight",
            block="model.layers.{}.",
            attn_norm="input_layernorm.weight",
            q="self_attn.q_proj.weight",
            k="self_attn.k_proj.weight",
            v="self_attn.v_proj.weight",
            out="self_attn.o_proj.weight",
            mlp_norm="post_attention_layernorm.weight",
            gate="mlp.gate_proj.weight",
            up="mlp.up_proj.weight",
            down="mlp.down_proj.weight",
            norm="model.norm.weight",
            head="lm_head.weight",
            qkv=_qkv,
        ),
        ignored=r".*\.rotary_emb\.inv_freq",
    ),
}

GGUF = {
    "llama": Table(
        _llama(
            embed="token_embd.weight",
            block="blk.{}.",
            attn_norm="attn_norm.weight",
            q="attn_q.weight",
            k="attn_k.weight",
            v="attn_v.weight",
            out="attn_output.weight",
            mlp_norm="ffn_norm.weight",
            gate="ffn_gate.weight",
            up="ffn_up.weight",
            down="ffn_down.weight",
            norm="output_norm.weight",
            head="output.weight",
            qkv=_qkv_interleaved,
        ),
    ),
}


# ---------------------------------------------------------------- from their names to our tree


def is_tied(table: Table, present: Collection[str], read: Read, flag: bool | None) -> bool:
    """Whether the head is the embedding, decided from the file; ValueError where the config's `flag` says otherwise."""
    (embed,), (head,) = (e.theirs for e in table.entries if e.path in ("embed_VD", "head_DV"))
    if head not in present:
        if flag is False:
            raise ValueError(f"tie_word_embeddings=False, but the file has no {head}: give the head or say True")
        return True
    if flag and embed in present and not np.array_equal(read(head), read(embed), equal_nan=True):
        raise ValueError(f"tie_word_embeddings=True, but the file's {head} differs from {embed}: drop it or say False")
    return bool(flag)


def build(config: ModelConfig, table: Table, present: Collection[str], read: Read, dtype) -> dict:
    """Our parameter tree, C-contiguous arrays of `dtype`. Every tensor in `present` is used, every parameter is filled.

    ValueError names the tensors that are missing, left over, of another shape, or hold NaN or infinity.
    """
    if config.layers > len(present):  # before a list is made of them all
        raise ValueError(f"the config says {config.layers} layers, but the file has only {len(present)} tensors")
    wanted = _wanted(config, table)
    _check_names(table, present, {name for entry in wanted for name in entry.theirs}, config.tied)
    params: dict = {}
    for entry in wanted:
        tensors = [_checked(config, name, read(name), shape) for name, shape in entry.theirs.items()]
        *folders, leaf = entry.path.split("/")
        node = params
        for folder in folders:
            node = node.setdefault(folder, {})
        node[leaf] = np.array(entry.join(config, *tensors), dtype=dtype, order="C")
    return params


def _wanted(config: ModelConfig, table: Table) -> list[Entry]:
    """The table's entries, those of a layer once for each layer; no head when tied."""
    entries = [e for e in table.entries if not (config.tied and e.path == "head_DV")]
    return [
        Entry(e.path.format(i), {name.format(i): shape for name, shape in e.theirs.items()}, e.join)
        for e in entries
        for i in range(config.layers if "{}" in e.path else 1)
    ]


def _check_names(table: Table, present: Collection[str], wanted: set[str], tied: bool) -> None:
    twin = {name for e in table.entries if tied and e.path == "head_DV" for name in e.theirs}  # equal to the embedding
    left_over = {name for name in set(present) - wanted - twin if not re.fullmatch(table.ignored, name)}
    problems = [(wanted - set(present), "missing"), (left_over, "not known to this family")]
    for names, what in problems:
        if names:
            more = f" and {len(names) - 3} more" if len(names) > 3 else ""
            raise ValueError(f"tensors {what}: {', '.join(sorted(names)[:3])}{more}")


def _checked(config: ModelConfig, name: str, tensor: np.ndarray, shape: str) -> np.ndarray:
    sizes = {"V": config.vocab, "D": config.width, "F": config.ff}
    sizes |= {"H": config.heads, "G": config.kv_heads, "C": config.head_size}
    expected = tuple(math.prod(sizes[letter] for letter in axis) for axis in shape.split())
    if tensor.shape != expected:
        raise ValueError(f"tensor {name} has shape {list(tensor.shape)}, should be {list(expected)} ({shape})")
    if not (np.isfinite(tensor.min()) and np.isfinite(tensor.max())):  # min and max pass NaN on, and need no copy
        raise ValueError(f"tensor {name} holds NaN or infinity")
    return tensor
