"""GGUF files: the same tree as from the folder they were made of, and refusals by name."""

import pathlib

import gguf as ggml
import jax
import numpy as np
import pytest
import real_model
from safetensors.numpy import load_file

from specjax.models.load import gguf, hf

TINY = pathlib.Path(__file__).parent / "goldens" / "llama_tied_grouped"
NAMES = {
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "model.layers": "blk", "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "post_attention_layernorm": "ffn_norm", "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
}  # fmt: skip
FIELDS = {
    "vocab_size": 48, "embedding_length": 16, "block_count": 2, "attention.head_count": 4, "attention.head_count_kv": 2,
    "attention.key_length": 6, "attention.value_length": 6, "feed_forward_length": 24, "context_length": 64,
    "rope.freq_base": 500.0, "rope.dimension_count": 6, "attention.layer_norm_rms_epsilon": 1e-5,
}  # fmt: skip


def permuted(name, weight):
    """What llama.cpp's converter does to q and k: half-split rows become neighbours."""
    heads = {"attn_q.": 4, "attn_k.": 2}.get(name.split(".", 2)[-1].removesuffix("weight"))
    return weight if heads is None else weight.reshape(heads, 2, 3, 16).swapaxes(1, 2).reshape(weight.shape)


def write(path, fields=FIELDS, extra=None, arch="llama"):
    """The tiny folder as a GGUF file."""
    writer = ggml.GGUFWriter(path, arch)
    for key, value in fields.items():
        add = {int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}[type(value)]
        add(f"{arch}.{key}", value)
    for name, weight in load_file(TINY / "model.safetensors").items():
        for theirs, ggmls in NAMES.items():
            name = name.replace(theirs, ggmls)
        writer.add_tensor(name, np.ascontiguousarray(permuted(name, weight)))
    for name, weight in (extra or {}).items():
        writer.add_tensor(name, weight)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_same_tree_as_from_the_folder(tmp_path):
    config, params = gguf.load(gguf.File(write(tmp_path / "a.gguf")), np.float32)
    wanted_config, wanted = hf.load(TINY, np.float32)
    assert vars(config) == pytest.approx(vars(wanted_config))
    jax.tree.map(np.testing.assert_array_equal, params, wanted)


def test_head_in_the_file_means_untied(tmp_path):
    head = np.arange(48 * 16, dtype=np.float32).reshape(48, 16)
    config, params = gguf.load(gguf.File(write(tmp_path / "a.gguf", extra={"output.weight": head})), np.float32)
    assert not config.tied
    np.testing.assert_array_equal(params["head_DV"], head.T)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"rope.scaling.type": "yarn"}, "llama.rope.scaling.type='yarn' is not supported; supported: 'none'"),
        ({"rope.scaling.factor": 4.0}, "rope.scaling.factor=4.0"),
        ({"rope.dimension_count": 4}, "rope.dimension_count=4 is not supported; supported: 6"),
        ({"attention.value_length": 8}, "attention.value_length=8"),
        ({"attention.sliding_window": 128}, "attention.sliding_window=128"),
        ({"expert_count": 8}, "expert_count=8"),
        ({"attention.head_count": 0}, r"^llama\.attention\.head_count=0 should be a whole number of at least 1$"),
        ({"block_count": "2"}, r"^llama\.block_count='2' should be a whole number of at least 1$"),
        ({"context_length": 0}, r"^llama\.context_length=0 should be a whole number of at least 1$"),
        ({"rope.freq_base": float("nan")}, r"^llama\.rope\.freq_base=nan should be a positive number$"),
        ({"block_count": 10**6}, "the config says 1000000 layers, but the file has only"),
        ({"feed_forward_length": 20}, r"blk.0.ffn_gate.weight has shape \[24, 16\], should be \[20, 16\]"),
    ],
)
def test_refusals(tmp_path, fields, message):
    with pytest.raises(ValueError, match=message):
        gguf.load(gguf.File(write(tmp_path / "a.gguf", FIELDS | fields)), np.float32)


def test_absent_field_is_named(tmp_path):
    fields = {k: v for k, v in FIELDS.items() if k != "block_count"}
    with pytest.raises(ValueError, match=r"^llama\.block_count is missing or null, should be"):
        gguf.load(gguf.File(write(tmp_path / "a.gguf", fields)), np.float32)


def test_rope_frequencies_mean_rope_scaling(tmp_path):
    path = write(tmp_path / "a.gguf", extra={"rope_freqs.weight": np.ones(3, np.float32)})
    with pytest.raises(ValueError, match=r"rope_freqs\.weight means rope scaling"):
        gguf.load(gguf.File(path), np.float32)


def test_bias_is_left_over(tmp_path):
    path = write(tmp_path / "a.gguf", extra={"blk.0.attn_q.bias": np.ones(24, np.float32)})
    with pytest.raises(ValueError, match=r"not known to this family: blk\.0\.attn_q\.bias"):
        gguf.load(gguf.File(path), np.float32)


def test_other_architecture(tmp_path):
    with pytest.raises(ValueError, match="architecture 'qwen2' is not supported in GGUF; supported: llama"):
        gguf.load(gguf.File(write(tmp_path / "a.gguf", arch="qwen2")), np.float32)


@pytest.mark.parametrize("kept", [0, 3, 100, 2_000, -64])
def test_truncated_file(tmp_path, kept):
    path = write(tmp_path / "a.gguf")
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(ValueError, match="not a whole GGUF file"):
        gguf.File(path)


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
