"""GGUF models: the same config and tree as from the folder they were converted of, and refusals by name.

`convert` does to tensors what llama.cpp's converter does, with the names of llama.cpp's own table.
"""

import dataclasses
import math
import pathlib
import re

import gguf as ggml
import jax
import numpy as np
import pytest
import real_model
from safetensors.numpy import load_file

from specjax.models import border
from specjax.models.load import families, gguf, names
from specjax.models.load.fields import Fields
from specjax.models.load.gguf_file import File

TINY = pathlib.Path(__file__).parent / "goldens" / "llama_tied_grouped"
FIELDS = {
    "vocab_size": 48, "embedding_length": 16, "block_count": 2, "attention.head_count": 4, "attention.head_count_kv": 2,
    "attention.key_length": 6, "attention.value_length": 6, "feed_forward_length": 24, "context_length": 64,
    "rope.freq_base": 500.0, "rope.dimension_count": 6, "attention.layer_norm_rms_epsilon": 1e-5,
}  # fmt: skip
SIZES = {
    "vocab_size": 48, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 6,
    "intermediate_size": 24, "max_position_embeddings": 64, "rope_theta": 500.0, "rms_norm_eps": 1e-5,
}  # fmt: skip


def write(path, tensors, fields=FIELDS, arch="llama"):
    writer = ggml.GGUFWriter(path, arch)
    writer.add_tokenizer_model("no_vocab")
    for key, value in fields.items():
        add = {int: writer.add_uint32, float: writer.add_float32, str: writer.add_string, bool: writer.add_bool}[type(value)]
        add(f"{arch}.{key}", value)
    for name, weight in tensors.items():
        writer.add_tensor(name, np.ascontiguousarray(weight))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def permuted(rows, heads):
    """Half-split rows of each head become neighbours."""
    return rows.reshape(heads, 2, -1, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def convert(arch, tensors, heads=4, kv_heads=2):
    """A folder's tensors under llama.cpp's names."""
    known = ggml.get_tensor_name_map({v: k for k, v in ggml.MODEL_ARCH_NAMES.items()}[arch], 99)
    experts, converted = {}, {}
    for name, weight in tensors.items():
        if arch == "llama" and (found := re.search(r"\.(q|k)_proj\.(weight|bias)$", name)):
            weight = permuted(weight, heads if found[1] == "q" else kv_heads)
        if arch.startswith("gemma") and name.endswith("norm.weight"):
            weight = weight + 1
        if arch == "gpt2" and re.search(r"\.c_(attn|proj|fc)\.weight$", name):
            weight = weight.T
        if found := re.search(r"\.experts\.(\d+)\.", name):
            experts.setdefault(name.replace(found[0], ".experts.", 1), []).append(weight)
            continue
        converted[known.get_name(name, (".weight", ".bias"))] = weight
    merged = {known.get_name(name, (".weight",)): np.stack(weights) for name, weights in experts.items()}
    return converted | merged


def tensors_of(family, config):
    rng = np.random.default_rng(0)
    sizes = {"V": config.vocab, "D": config.width, "F": config.ff, "H": config.heads, "G": config.kv_heads, "C": config.head_size}
    sizes |= {"P": config.max_positions, "E": config.experts, "X": config.expert_ff}

    def numbers(shape):
        return [sum(math.prod(sizes[letter] for letter in part) for part in axis.split("+")) for axis in shape.split()]

    return {
        name: rng.normal(size=numbers(shape)).astype(np.float32)
        for entry in names._wanted(config, family.table)
        for name, shape in entry.theirs.items()
    }


@pytest.fixture(scope="module")
def tiny():
    return convert("llama", load_file(TINY / "model.safetensors"))


def loaded(tmp_path, tensors, changes=(), arch="llama"):
    fields = {k: v for k, v in (FIELDS | dict(changes)).items() if v is not None}
    return gguf.load(File(write(tmp_path / "a.gguf", tensors, fields, arch)), np.float32)


GEMMA = {"query_pre_attn_scalar": 6, "sliding_window": 8, "hidden_activation": "gelu_pytorch_tanh"}
CASES = {  # architecture: (theirs, what its config.json adds, what its GGUF fields add, tied)
    "llama": ("LlamaForCausalLM", {}, {}, False),
    "llama with biases": ("LlamaForCausalLM", {"attention_bias": True, "mlp_bias": True}, {}, True),
    "llama of Mistral": ("MistralForCausalLM", {"sliding_window": None}, {}, False),
    "llama of Mixtral": (
        "MixtralForCausalLM",
        {"num_local_experts": 3, "num_experts_per_tok": 2, "sliding_window": None},
        {"expert_count": 3, "expert_used_count": 2},
        False,
    ),
    "qwen2": ("Qwen2ForCausalLM", {}, {}, True),
    "qwen3": ("Qwen3ForCausalLM", {}, {}, False),
    "qwen3moe": (
        "Qwen3MoeForCausalLM",
        {"num_experts": 3, "num_experts_per_tok": 2, "moe_intermediate_size": 10, "norm_topk_prob": True},
        {"expert_count": 3, "expert_used_count": 2, "expert_feed_forward_length": 10},
        False,
    ),
    "gemma2": (
        "Gemma2ForCausalLM",
        GEMMA | {"attn_logit_softcapping": 40.0, "final_logit_softcapping": 20.0},
        {"attention.sliding_window": 8, "attn_logit_softcapping": 40.0, "final_logit_softcapping": 20.0},
        True,
    ),
    "gemma2 by its defaults": ("Gemma2ForCausalLM", GEMMA, {"attention.sliding_window": 8}, True),
    "gemma2 of 46 layers": (
        "Gemma2ForCausalLM",
        GEMMA | {"num_hidden_layers": 46, "query_pre_attn_scalar": 4},
        {"attention.sliding_window": 8, "block_count": 46},
        True,
    ),
    "gemma3 of 62 layers and its other settings": (
        "Gemma3ForCausalLM",
        GEMMA
        | {"num_hidden_layers": 62, "query_pre_attn_scalar": 4, "rope_local_base_freq": 70.0, "final_logit_softcapping": 9.0}
        | {"rope_scaling": {"rope_type": "linear", "factor": 8.0}, "sliding_window_pattern": 3},
        {"attention.sliding_window": 8, "block_count": 62, "rope.freq_base_swa": 70.0, "final_logit_softcapping": 9.0}
        | {"rope.scaling.type": "linear", "rope.scaling.factor": 8.0, "attention.sliding_window_pattern": 3},
        True,
    ),
    "gemma3": ("Gemma3ForCausalLM", GEMMA | {"num_hidden_layers": 7}, {"attention.sliding_window": 8, "block_count": 7}, True),
    "phi3": ("Phi3ForCausalLM", {"sliding_window": None}, {"attention.sliding_window": 0}, False),
    "phi3 with a window, turning in part": (
        "Phi3ForCausalLM",
        {"sliding_window": 9, "partial_rotary_factor": 0.7},
        {"attention.sliding_window": 9, "rope.dimension_count": 4},
        False,
    ),
    "gpt2": (
        "GPT2LMHeadModel",
        {
            "n_embd": 16, "n_layer": 2, "n_head": 4, "n_positions": 64, "n_inner": 24, "layer_norm_epsilon": 1e-5,
            "head_dim": None, "num_key_value_heads": None,
        },
        {
            "attention.layer_norm_epsilon": 1e-5, "attention.head_count_kv": None, "attention.layer_norm_rms_epsilon": None,
            "rope.freq_base": None, "rope.dimension_count": None, "attention.key_length": None, "attention.value_length": None,
        },
        True,
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_same_tree_as_from_the_folder(tmp_path, case):
    theirs, more, changes, tied = CASES[case]
    arch, family = case.split()[0], families.FAMILIES[theirs]
    config = families.config(family, Fields((family.defaults | SIZES | more).get), 99, tied)
    tensors = tensors_of(family, config)
    got_config, got = loaded(tmp_path, convert(arch, tensors), changes, arch)
    wanted_config = dataclasses.asdict(config)
    assert {k: v for k, v in dataclasses.asdict(got_config).items() if v != pytest.approx(wanted_config[k])} == {}
    wanted = names.build(config, family.table, tensors, tensors.__getitem__, np.float32)
    jax.tree.map(np.testing.assert_array_equal, got, wanted)


@pytest.mark.parametrize(
    ("case", "near"),  # its table of GELU is of 16 bits, so the families that have it are equal to three digits only
    [("llama of Mixtral", 1e-5), ("gemma3", 0.02), ("gpt2", 2e-3)],
)
def test_logits_are_llama_cpps(tmp_path, case, near):
    llama_cpp = pytest.importorskip("llama_cpp")
    theirs, more, changes, tied = CASES[case]
    arch, family = case.split()[0], families.FAMILIES[theirs]
    config = families.config(family, Fields((family.defaults | SIZES | more).get), 99, tied)
    tensors = {name: weight / 4 for name, weight in tensors_of(family, config).items()}
    model, params = border.border(*loaded(tmp_path, convert(arch, tensors), changes, arch))
    tokens = np.random.default_rng(2).integers(0, 48, 40)
    hidden, _, _ = model.forward(params, tokens[None].astype(np.int32), model.init_cache(1, 40), np.zeros(1, np.int32))
    exact = dict(type_k=0, type_v=0, flash_attn=False, swa_full=True, n_threads=1)  # keys and values in float32
    other = llama_cpp.Llama(str(tmp_path / "a.gguf"), n_ctx=64, logits_all=True, verbose=False, **exact)
    other.eval(tokens.tolist())
    np.testing.assert_allclose(model.head(params, hidden)[0], other.scores[:40], atol=near)


# ---------------------------------------------------------------- rope scaling


@pytest.mark.parametrize(
    ("theirs", "changes"),
    [
        ({"rope_type": "linear", "factor": 4.0}, {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}),
        ({"rope_type": "linear", "factor": 4.0}, {"rope.scaling.factor": 4.0}),
        ({"rope_type": "linear", "factor": 4.0}, {"rope.scale_linear": 4.0}),
        ({"rope_type": "default"}, {"rope.scaling.type": "none", "rope.scaling.factor": 1.0}),
        (
            {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16},
            {
                "rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 16,
                "rope.scaling.yarn_beta_fast": 32.0, "rope.scaling.finetuned": True,
            },
        ),
    ],
)  # fmt: skip
def test_rope_scaling(tmp_path, tiny, theirs, changes):
    family = families.FAMILIES["LlamaForCausalLM"]
    wanted = families.config(family, Fields((family.defaults | SIZES | {"rope_scaling": theirs}).get), 99, True)
    config, _ = loaded(tmp_path, tiny, changes)
    assert config.rope_stretch == pytest.approx(wanted.rope_stretch)
    assert config.rope_gain == pytest.approx(wanted.rope_gain)
    assert (config.rope_stretch == ()) is (theirs["rope_type"] == "default")


def test_llama3_scaling_is_a_tensor_of_divisors(tmp_path, tiny):
    config, _ = loaded(tmp_path, tiny | {"rope_freqs.weight": np.array([1, 2.5, 8], np.float32)})
    assert config.rope_stretch == (1.0, 2.5, 8.0)


@pytest.mark.parametrize(
    ("divisors", "changes", "message"),
    [
        ([1, 2], {}, "rope_freqs.weight should be 3 positive numbers"),
        ([1, 2, 0], {}, "rope_freqs.weight should be 3 positive numbers"),
        ([1, 2, np.inf], {}, "rope_freqs.weight should be 3 positive numbers"),
        ([1, 2, 3], {"rope.scaling.factor": 2.0}, "rope_freqs.weight and llama.rope.scaling.type='linear' are two scalings"),
    ],
)
def test_damaged_divisors(tmp_path, tiny, divisors, changes, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        loaded(tmp_path, tiny | {"rope_freqs.weight": np.array(divisors, np.float32)}, changes)


# ---------------------------------------------------------------- refusals


def test_head_in_the_file_means_untied(tmp_path, tiny):
    head = np.arange(48 * 16, dtype=np.float32).reshape(48, 16)
    config, params = loaded(tmp_path, tiny | {"output.weight": head})
    assert not config.tied
    np.testing.assert_array_equal(params["head_DV"], head.T)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rope.scaling.type": "longrope"}, "llama.rope.scaling.type='longrope' is not supported; supported: none, linear, yarn"),
        ({"rope.scaling.type": "none", "rope.scaling.factor": 4.0}, "llama.rope.scaling.factor=4.0 with rope.scaling.type='none'"),
        ({"rope.scaling.attn_factor": 1.5}, "llama.rope.scaling.attn_factor=1.5 is not supported; supported: 1.0"),
        ({"rope.scaling.yarn_beta_fast": 8.0}, "llama.rope.scaling.yarn_beta_fast=8.0 is not supported; supported: 32.0"),
        ({"rope.dimension_count": 4}, "llama.rope.dimension_count=4 is not supported; supported: 6"),
        ({"attention.value_length": 8}, "llama.attention.value_length=8 is not supported; supported: 6"),
        ({"attention.sliding_window": 128}, "llama.attention.sliding_window=128 is not supported; supported: 0"),
        ({"attention.causal": False}, "llama.attention.causal=False is not supported; supported: True"),
        ({"attention.scale": 0.5}, r"field 'llama.attention.scale' \(here 0.5\) is not known for this architecture"),
        ({"logit_scale": 2.0}, r"field 'llama.logit_scale' \(here 2.0\) is not known for this architecture"),
        ({"expert_count": 3}, "llama.expert_used_count is missing or null, should be a whole number of at least 1"),
        ({"expert_count": 3, "expert_used_count": 4}, "experts_per_token=4 should be from 1 to experts=3"),
        ({"attention.head_count": 0}, "llama.attention.head_count=0 should be a whole number of at least 1$"),
        ({"attention.head_count": 2**31, "attention.key_length": None}, f"llama: {2**31} heads of size 1 are more than the longest axis"),
        ({"attention.key_length": 2**31}, f"llama: 4 heads of size {2**31} are more than the longest axis in the file, 48"),
        ({"block_count": "2"}, "llama.block_count='2' should be a whole number of at least 1$"),
        ({"block_count": None}, "llama.block_count is missing or null, should be"),
        ({"block_count": 10**6}, "the config says 1000000 layers, but the file has only 20 tensors"),
        ({"context_length": 0}, "llama.context_length=0 should be a whole number of at least 1$"),
        ({"rope.freq_base": float("nan")}, "llama.rope.freq_base=nan should be a positive number$"),
        ({"feed_forward_length": 20}, r"tensor blk.0.ffn_gate.weight has shape \[24, 16\], should be \[20, 16\]"),
        ({"embedding_length": 2**31}, r"tensor token_embd.weight has shape \[48, 16\], should be \[48, 2147483648\]"),
        ({"vocab_size": None}, "tokenizer.ggml.tokens is missing or null, should be a list"),
    ],
)
def test_refusals(tmp_path, tiny, changes, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        loaded(tmp_path, tiny, changes)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("blk.0.attn_q.bias", "tensors missing: blk.0.attn_k.bias, "),
        ("blk.0.attn_q_norm.weight", "tensors not known to this family: blk.0.attn_q_norm.weight$"),
        ("rope_factors_long.weight", "tensors not known to this family: rope_factors_long.weight$"),
    ],
)
def test_tensor_too_many(tmp_path, tiny, name, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        loaded(tmp_path, tiny | {name: np.ones(24, np.float32)})


def test_tensor_too_few(tmp_path, tiny):
    with pytest.raises(ValueError, match=r"^tensors missing: blk\.1\.ffn_up\.weight$"):
        loaded(tmp_path, {name: w for name, w in tiny.items() if name != "blk.1.ffn_up.weight"})


def test_weight_that_is_nan(tmp_path, tiny):
    with pytest.raises(ValueError, match=r"^tensor output_norm\.weight holds NaN or infinity$"):
        loaded(tmp_path, tiny | {"output_norm.weight": np.full(16, np.nan, np.float32)})


def test_other_architecture(tmp_path, tiny):
    with pytest.raises(ValueError, match=r"^architecture 'mamba' is not supported in GGUF; supported: llama, qwen2, qwen3, qwen3moe"):
        loaded(tmp_path, tiny, arch="mamba")


def test_file_without_tensors(tmp_path):
    with pytest.raises(ValueError, match=r"^the config says 2 layers, but the file has only 0 tensors$"):
        loaded(tmp_path, {})


@pytest.mark.real
def test_real_model():
    config, params = real_model.smollm2()[:2]
    assert (config.vocab, config.width, config.layers, config.heads, config.kv_heads) == (49152, 576, 30, 9, 3)
    assert (config.head_size, config.ff, config.tied, config.max_positions) == (64, 1536, True, 8192)
    assert (config.rope_theta, config.norm_eps, config.real_vocab) == (100_000.0, pytest.approx(1e-5), None)
    leaves = jax.tree.leaves(params)
    assert sum(leaf.size for leaf in leaves) == 134_515_008
    assert all(type(leaf) is np.ndarray and leaf.dtype == np.float32 and leaf.flags.c_contiguous for leaf in leaves)
    assert real_model.smollm2().sha256 == "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
