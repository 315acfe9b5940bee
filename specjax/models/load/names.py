"""What each family calls its weights, and how theirs become ours: tables, so that another family is another table.

Our tree is a plain nested dict. Kernels are stored (in, out); rotary pairs are half-split (i turns with i + half of what turns). What
the config does not have stands neither here nor in the program:

    embed_VD, norm_D, norm_bias_D, position_PD (learned positions), head_DV (absent when tied)
    layers/i/
        attn_norm_D, attn_norm_bias_D, qkv_DGJC, qkv_bias_GJC, q_norm_C, k_norm_C, out_HCD, out_bias_D, attn_post_norm_D
        mlp_norm_D, mlp_norm_bias_D, up_DUF, up_bias_UF, down_FD, down_bias_D, mlp_post_norm_D
        router_DE, up_EDUX, down_EXD (layers of experts, in place of up and down)

J counts, for each key-value group g, its R query heads (query head h = g * R + r), then its key, then its value; U is gate, then up (up
alone where nothing is gated); P counts positions, E experts, X the feed-forward width of one expert.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection
from typing import Any, NamedTuple

import numpy as np

from specjax.models.config import ModelConfig

DTYPES = ("float32", "bfloat16", "float64")
Read = Callable[[str], np.ndarray]  # a tensor of the file by its name, dequantised to a float array
Join = Callable[..., np.ndarray]  # (config, *tensors) -> our array, any strides
Put = Callable[[ModelConfig, str, np.ndarray], Any]  # (config, path, parameter) -> what stands in the tree for it
Rows = dict[str, tuple[dict[str, str], Join]]  # our path -> (their names and shapes, join): an Entry, while a family is put together

HAS: dict[str, Callable[[ModelConfig, int], bool]] = {  # parameters that not every model, or not every layer, has
    "position_PD": lambda c, _: c.learned_positions,
    "norm_bias_D": lambda c, _: c.norm == "layer",
    "attn_norm_bias_D": lambda c, _: c.norm == "layer",
    "mlp_norm_bias_D": lambda c, _: c.norm == "layer",
    "qkv_bias_GJC": lambda c, _: c.qkv_bias,
    "out_bias_D": lambda c, _: c.out_bias,
    "q_norm_C": lambda c, _: c.qk_norm,
    "k_norm_C": lambda c, _: c.qk_norm,
    "attn_post_norm_D": lambda c, _: c.post_norms,
    "mlp_post_norm_D": lambda c, _: c.post_norms,
    "up_DUF": lambda c, i: i not in c.sparse,
    "up_bias_UF": lambda c, i: c.mlp_bias and i not in c.sparse,
    "down_FD": lambda c, i: i not in c.sparse,
    "down_bias_D": lambda c, i: c.mlp_bias and i not in c.sparse,
    "router_DE": lambda c, i: i in c.sparse,
    "up_EDUX": lambda c, i: i in c.sparse,
    "down_EXD": lambda c, i: i in c.sparse,
    "head_DV": lambda c, _: not c.tied,
}


class Entry(NamedTuple):
    """One parameter of ours: its path, the tensors it is made of, and how they are joined."""

    path: str  # '{}' stands for the layer, here and in the names; '{e}' in a name for each expert in turn
    theirs: dict[str, str]  # name -> shape in our letters; 'HC+GC D' is [H * C + G * C, D]
    join: Join


class Table(NamedTuple):
    """A family's entries. Those whose parameter a config does not have (see `HAS`) are passed over."""

    entries: tuple[Entry, ...]
    ignored: str = r"(?!)"  # pattern of names that hold no weight; by default no name matches
    renamed: tuple[tuple[str, str], ...] = ()  # (how names begin here, how they began in files of another time)


def table(rows: Rows, **options) -> Table:
    """A table from rows by path; a family that is nearly another's is that one's rows with some replaced."""
    return Table(tuple(Entry(path, *row) for path, row in rows.items()), **options)


# ---------------------------------------------------------------- how tensors are joined: kernels, and biases of one axis less


def keep(config, weight):
    return weight


def transpose(config, weight):
    return weight.T


def add_one(config, weight):
    """Gemma's norms scale by 1 + w: the 1 is added here, in float32, and nobody past this line knows."""
    return weight + 1


def _inputs_first(array):
    """[..., in] to [in, ...]: their kernels are (out, in)."""
    return np.moveaxis(array, -1, 0)


def qkv(config, q, k, v):
    """Rows [heads * C, D] (or biases [heads * C]) of q, k and v to [D, G, J, C] (or [G, J, C])."""
    groups = [w.reshape(config.kv_heads, -1, config.head_size, *w.shape[1:]) for w in (q, k, v)]
    joined = np.concatenate(groups, axis=1)
    return _inputs_first(joined) if q.ndim == 2 else joined


def qkv_interleaved(config, q, k, v):
    """GGUF's Llama has rotary pairs as neighbours (2i, 2i + 1): put the rows of q and k back into half-split order."""

    def half_split(weight):
        pairs = weight.reshape(-1, config.head_size // 2, 2, *weight.shape[1:])
        return pairs.swapaxes(1, 2).reshape(weight.shape)

    return qkv(config, half_split(q), half_split(k), v)


def qkv_fused(config, rows):
    """All of q, then all of k, then all of v."""
    queries, keys = config.heads * config.head_size, config.kv_heads * config.head_size
    return qkv(config, *np.split(rows, [queries, queries + keys]))


def qkv_by_head(config, rows):
    """GPT-NeoX: q, k and v of the first head, then of the second, ...; every head has its own key and value."""
    grouped = rows.reshape(config.kv_heads, 3, config.head_size, *rows.shape[1:])
    return _inputs_first(grouped) if rows.ndim == 2 else grouped


def out(config, weight):
    return weight.T.reshape(config.heads, config.head_size, config.width)


def gate_up(config, *parts):
    """Gate and up, or up alone: [F, D] each to [D, U, F], biases [F] to [U, F]."""
    stacked = np.stack(parts)
    return _inputs_first(stacked) if stacked.ndim == 3 else stacked


def gate_up_fused(config, rows):
    return gate_up(config, *np.split(rows, 2))


def experts_up(config, *parts):
    """All gates [X, D], then all ups, to [E, D, U, X]."""
    return np.stack(parts).reshape(2, config.experts, config.expert_ff, config.width).transpose(1, 3, 0, 2)


def experts_down(config, *parts):
    return np.stack(parts).swapaxes(1, 2)


def llama_rows(embed, block, attn_norm, q, k, v, out_, q_norm, k_norm, mlp_norm, gate, up, down, norm, head, *, join=qkv) -> Rows:
    """The Llama shape with somebody's names for it, without their .weight and .bias; a head's own norms and biases where there are any."""

    def named(names, kind, shapes):
        return {f"{block}{name}.{kind}": shape for name, shape in zip(names, shapes, strict=True)}

    ours = "layers/{}/"
    return {
        "embed_VD": ({embed + ".weight": "V D"}, keep),
        ours + "attn_norm_D": (named([attn_norm], "weight", ["D"]), keep),
        ours + "qkv_DGJC": (named([q, k, v], "weight", ["HC D", "GC D", "GC D"]), join),
        ours + "qkv_bias_GJC": (named([q, k, v], "bias", ["HC", "GC", "GC"]), join),
        ours + "q_norm_C": (named([q_norm], "weight", ["C"]), keep),
        ours + "k_norm_C": (named([k_norm], "weight", ["C"]), keep),
        ours + "out_HCD": (named([out_], "weight", ["D HC"]), out),
        ours + "out_bias_D": (named([out_], "bias", ["D"]), keep),
        ours + "mlp_norm_D": (named([mlp_norm], "weight", ["D"]), keep),
        ours + "up_DUF": (named([gate, up], "weight", ["F D", "F D"]), gate_up),
        ours + "up_bias_UF": (named([gate, up], "bias", ["F", "F"]), gate_up),
        ours + "down_FD": (named([down], "weight", ["D F"]), transpose),
        ours + "down_bias_D": (named([down], "bias", ["D"]), keep),
        "norm_D": ({norm + ".weight": "D"}, keep),
        "head_DV": ({head + ".weight": "V D"}, transpose),
    }


# ---------------------------------------------------------------- from their names to our tree


def as_stored(table: Table, present: Collection[str]) -> Table:
    """The table with names as this file has them, where files of other times begin names otherwise."""
    for now, once in table.renamed:
        if not any(name.startswith(now) for name in present):
            table = table._replace(entries=tuple(_renamed(entry, now, once) for entry in table.entries))
    return table


def _renamed(entry: Entry, now: str, once: str) -> Entry:
    names = {once + name.removeprefix(now) if name.startswith(now) else name: shape for name, shape in entry.theirs.items()}
    return entry._replace(theirs=names)


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


def build(config: ModelConfig, table: Table, present: Collection[str], read: Read, dtype, put: Put | None = None, **letters: int) -> dict:
    """Our parameter tree, C-contiguous arrays of `dtype`. Every tensor in `present` is used, every parameter is filled.

    put: takes each parameter as soon as it is read, so that the host never holds all of them. letters: sizes that stand in the table's
    shapes and are not the config's. ValueError names the tensors that are missing, left over, of another shape, or hold NaN or infinity.
    """
    check_count("layers", config.layers, len(present))
    if any("{e}" in name for entry in table.entries for name in entry.theirs):
        check_count("experts", config.experts, len(present))
    wanted = _wanted(config, table)
    _check_names(table, present, {name for entry in wanted for name in entry.theirs}, config.tied)
    params: dict = {}
    for entry in wanted:
        tensors = [_checked(config, name, read(name), shape, letters) for name, shape in entry.theirs.items()]
        *folders, leaf = entry.path.split("/")
        node = params
        for folder in folders:
            node = node.setdefault(folder, {})
        array = np.array(entry.join(config, *tensors), dtype=dtype, order="C")
        node[leaf] = array if put is None else put(config, entry.path, array)
    return params


def check_count(what: str, count: int, tensors: int) -> None:
    """ValueError where a file cannot hold that many: to be called before a list is made of them all."""
    if count > tensors:
        raise ValueError(f"the config says {count} {what}, but the file has only {tensors} tensors")


def _wanted(config: ModelConfig, table: Table) -> list[Entry]:
    """The entries of the parameters that this config has, those of a layer once for each layer."""
    return [
        Entry(e.path.format(i), _spelled(config, e.theirs, i), e.join)
        for e in table.entries
        for i in range(config.layers if "{}" in e.path else 1)
        if HAS.get(e.path.rpartition("/")[2], lambda c, _: True)(config, i)
    ]


def _spelled(config: ModelConfig, theirs: dict[str, str], layer: int) -> dict[str, str]:
    return {n.format(layer, e=e): shape for n, shape in theirs.items() for e in range(config.experts if "{e}" in n else 1)}


def _check_names(table: Table, present: Collection[str], wanted: set[str], tied: bool) -> None:
    twin = {name for e in table.entries if tied and e.path == "head_DV" for name in e.theirs}  # equal to the embedding
    left_over = {name for name in set(present) - wanted - twin if not re.fullmatch(table.ignored, name)}
    problems = [(wanted - set(present), "missing"), (left_over, "not known to this family")]
    for names, what in problems:
        if names:
            more = f" and {len(names) - 3} more" if len(names) > 3 else ""
            raise ValueError(f"tensors {what}: {', '.join(sorted(names)[:3])}{more}")


def _checked(config: ModelConfig, name: str, tensor: np.ndarray, shape: str, letters: dict[str, int]) -> np.ndarray:
    c = config
    sizes = {"V": c.vocab, "D": c.width, "F": c.ff, "H": c.heads, "G": c.kv_heads, "C": c.head_size}
    sizes |= {"P": c.max_positions, "E": c.experts, "X": c.expert_ff} | letters
    expected = tuple(sum(math.prod(sizes[letter] for letter in part) for part in axis.split("+")) for axis in shape.split())
    if tensor.shape != expected:
        raise ValueError(f"tensor {name} has shape {list(tensor.shape)}, should be {list(expected)} ({shape})")
    check_finite(name, tensor)
    return tensor


def check_finite(name: str, tensor: np.ndarray) -> None:
    if not (np.isfinite(tensor.min()) and np.isfinite(tensor.max())):  # min and max pass NaN on, and need no copy
        raise ValueError(f"tensor {name} holds NaN or infinity")
