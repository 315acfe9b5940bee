"""Hugging Face folders: what is read, and what is refused by name."""

import json
import pathlib
import shutil

import jax
import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from specjax.models.config import ModelConfig
from specjax.models.load import hf

GOLDENS = pathlib.Path(__file__).parent / "goldens"


@pytest.fixture
def folder(tmp_path):
    return shutil.copytree(GOLDENS / "llama_tied_grouped", tmp_path / "model")


@pytest.fixture
def sharded(tmp_path):
    return shutil.copytree(GOLDENS / "llama_sharded", tmp_path / "model")


def edit(folder, **changes):
    raw = json.loads((folder / "config.json").read_text()) | changes
    (folder / "config.json").write_text(json.dumps({k: v for k, v in raw.items() if v != "absent"}))


def rewrite(folder, change):
    tensors = load_file(folder / "model.safetensors")
    save_file(change(tensors) or tensors, folder / "model.safetensors")


def test_config_is_read(folder):
    assert hf.load(folder, np.float32)[0] == ModelConfig(
        vocab=48, width=16, layers=2, heads=4, kv_heads=2, head_size=6, ff=24, tied=True, max_positions=64,
        norm_eps=1e-5, rope_theta=500.0,
    )  # fmt: skip


def test_config_of_older_transformers(folder):
    edit(folder, rope_parameters="absent", rope_theta=250.0, num_key_value_heads="absent", head_dim="absent")
    tensors = load_file(folder / "model.safetensors")
    for name in tensors:
        if "self_attn" in name:
            tensors[name] = np.zeros((16, 16), np.float32)
    save_file(tensors, folder / "model.safetensors")
    config, _ = hf.load(folder, np.float32)
    assert (config.rope_theta, config.kv_heads, config.head_size) == (250.0, 4, 4)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rope_parameters": {"rope_type": "llama3", "rope_theta": 5e5}}, "rope_parameters.factor is missing or null"),
        ({"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}}, "partial_rotary_factor=0.5"),
        (
            {"rope_scaling": {"rope_type": "default"}},
            "^config.json: rope_scaling and rope_parameters are both there, should be one of them$",
        ),
        ({"attention_bias": True}, "tensors missing: model.layers.0.self_attn.k_proj.bias"),
        ({"mlp_bias": True}, "tensors missing: model.layers.0.mlp.down_proj.bias"),
        ({"sliding_window": 4096}, "sliding_window=4096"),
        ({"hidden_act": "relu"}, "hidden_act='relu'"),
        ({"quantization_config": {"bits": 4}}, "quantization_config="),
        ({"architectures": ["BloomForCausalLM"]}, "architecture 'BloomForCausalLM' is not supported"),
        ({"architectures": None}, "architecture None is not supported; supported: LlamaForCausalLM, MistralForCausalLM"),
        ({"hidden_size": "absent"}, "config.json: hidden_size is missing or null"),
        ({"vocab_size": 50}, r"embed_tokens.weight has shape \[48, 16\], should be \[50, 16\]"),
        ({"tie_word_embeddings": False}, "tie_word_embeddings=False, but the file has no lm_head.weight"),
    ],
)
def test_refusals(folder, changes, message):
    edit(folder, **changes)
    with pytest.raises(ValueError, match=message):
        hf.load(folder, np.float32)


@pytest.mark.parametrize(
    ("field", "value", "wanted"),
    [
        ("num_attention_heads", "4", "a whole number of at least 1"),
        ("num_attention_heads", 0, "a whole number of at least 1"),
        ("num_hidden_layers", True, "a whole number of at least 1"),
        ("max_position_embeddings", 100.5, "a whole number of at least 1"),
        ("max_position_embeddings", 0, "a whole number of at least 1"),
        ("rms_norm_eps", "x", "a positive number"),
        ("rms_norm_eps", -1e-5, "a positive number"),
        ("rope_theta", 10**400, "a positive number"),
        ("tie_word_embeddings", "false", "true or false"),
        ("architectures", 5, "a list"),
        ("rope_parameters", "x", "an object"),
        ("rope_scaling", [1], "an object"),
    ],
)
def test_value_of_another_kind_is_named(folder, field, value, wanted):
    edit(folder, **{field: value})
    with pytest.raises(ValueError, match=rf"^config\.json: {field}=[^\n]+ should be {wanted}$"):
        hf.load(folder, np.float32)


@pytest.mark.parametrize("field", ["num_attention_heads", "rms_norm_eps", "max_position_embeddings"])
def test_null_is_named(folder, field):
    edit(folder, **{field: None})
    with pytest.raises(ValueError, match=rf"^config\.json: {field} is missing or null, should be"):
        hf.load(folder, np.float32)


def test_layers_without_end(folder):
    edit(folder, num_hidden_layers=10**12)
    with pytest.raises(ValueError, match="the config says 1000000000000 layers, but the file has only 20 tensors"):
        hf.load(folder, np.float32)


def test_bfloat16_weights_are_read_exactly(folder):
    before = hf.load(folder, np.float32)[1]["layers"]["1"]["down_FD"]
    rewrite(folder, lambda tensors: {name: w.astype(ml_dtypes.bfloat16) for name, w in tensors.items()})
    after = hf.load(folder, np.float32)[1]["layers"]["1"]["down_FD"]
    np.testing.assert_array_equal(after, before.astype(ml_dtypes.bfloat16).astype(np.float32))
    assert hf.load(folder, "bfloat16")[1]["embed_VD"].dtype == ml_dtypes.bfloat16


@pytest.fixture
def gpt2(tmp_path):
    return shutil.copytree(GOLDENS / "gpt2", tmp_path / "model")


def test_gpt2_as_the_hub_has_it(gpt2):
    """Its names do not begin with 'transformer.', and the file holds the causal masks."""
    wanted = hf.load(gpt2, np.float32)
    masks = {f"h.{i}.attn.{name}": np.ones((1, 1, 8, 8), np.float32) for i in range(2) for name in ("bias", "masked_bias")}
    rewrite(gpt2, lambda tensors: masks | {name.removeprefix("transformer."): w for name, w in tensors.items()})
    config, params = hf.load(gpt2, np.float32)
    assert config == wanted[0]
    jax.tree.map(np.testing.assert_array_equal, params, wanted[1])


@pytest.mark.parametrize("head", ["embed_out.weight", "lm_head.weight"])
def test_neox_head_of_both_names(tmp_path, head):
    """transformers called the head embed_out before version 5."""
    folder = shutil.copytree(GOLDENS / "neox", tmp_path / "model")
    wanted = hf.load(folder, np.float32)[1]["head_DV"]
    rewrite(folder, lambda tensors: {head if name in ("embed_out.weight", "lm_head.weight") else name: w for name, w in tensors.items()})
    np.testing.assert_array_equal(hf.load(folder, np.float32)[1]["head_DV"], wanted)


def test_gemma_norms_scale_by_one_more(tmp_path):
    folder = shutil.copytree(GOLDENS / "gemma3", tmp_path / "model")
    tensors, params = load_file(folder / "model.safetensors"), hf.load(folder, np.float32)[1]
    for ours, theirs in [("attn_post_norm_D", "post_attention_layernorm"), ("k_norm_C", "self_attn.k_norm")]:
        np.testing.assert_array_equal(params["layers"]["1"][ours], 1 + tensors[f"model.layers.1.{theirs}.weight"])
    np.testing.assert_array_equal(params["norm_D"], 1 + tensors["model.norm.weight"])


def test_an_expert_that_is_missing_is_named(tmp_path):
    folder = shutil.copytree(GOLDENS / "mixtral", tmp_path / "model")
    rewrite(folder, lambda tensors: {name: w for name, w in tensors.items() if "experts.3.w2" not in name})
    with pytest.raises(ValueError, match=r"tensors missing: model\.layers\.0\.block_sparse_moe\.experts\.3\.w2\.weight"):
        hf.load(folder, np.float32)
    edit(folder, num_local_experts=10**12)
    with pytest.raises(ValueError, match="the config says 1000000000000 experts, but the file has only"):
        hf.load(folder, np.float32)


def test_integer_weights_are_refused(folder):
    rewrite(folder, lambda tensors: tensors.update({"model.norm.weight": np.ones(16, np.int8)}))
    with pytest.raises(ValueError, match=r"tensor model\.norm\.weight is stored as I8"):
        hf.load(folder, np.float32)


def test_shards_are_joined(sharded):
    config, params = hf.load(sharded, np.float32)
    assert len(hf.weight_files(sharded)) == 4
    assert (config.tied, list(params["layers"])) == (False, ["0", "1"])


def test_absent_shard_is_named(sharded):
    (sharded / "model-00003-of-00004.safetensors").unlink()
    with pytest.raises(ValueError, match=r"^no model-00003-of-00004\.safetensors in the folder"):
        hf.load(sharded, np.float32)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({}, "weight_map is missing or null, should be an object"),
        ([], "must be a JSON object, not list"),
        ({"weight_map": ["a"]}, r"weight_map=\['a'\] should be an object"),
        ({"weight_map": {"a": 5}}, "weight_map names 5, should be files in the folder"),
        ({"weight_map": {"a": ".."}}, r"weight_map names '\.\.', should be files in the folder"),
        ({"weight_map": {"a": "../x.safetensors"}}, r"weight_map names '\.\./x\.safetensors', should be files in the folder"),
    ],
)
def test_damaged_index_is_named(sharded, content, message):
    (sharded / "model.safetensors.index.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match=rf"^model\.safetensors\.index\.json: {message}$"):
        hf.weight_files(sharded)


def test_tensor_in_two_shards_is_refused(sharded):
    first, second, *_ = hf.weight_files(sharded)
    tensors = load_file(first)
    save_file(load_file(second) | dict([next(iter(tensors.items()))]), second)
    with pytest.raises(ValueError, match="stands in two shards"):
        hf.load(sharded, np.float32)


def test_tensor_that_the_index_does_not_name_is_left_over(sharded):
    first = hf.weight_files(sharded)[0]
    save_file(load_file(first) | {"stray": np.zeros(1, np.float32)}, first)
    with pytest.raises(ValueError, match="not known to this family: stray"):
        hf.load(sharded, np.float32)


def test_truncated_file(folder):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(ValueError, match=r"model\.safetensors is not a whole safetensors file"):
        hf.load(folder, np.float32)


def test_folder_in_place_of_a_file(folder):
    for name, message in [("model.safetensors", "is not a whole safetensors file"), ("config.json", "cannot be read: Is a dir")]:
        (folder / name).unlink()
        (folder / name).mkdir()
        with pytest.raises(ValueError, match=rf"^{name} {message}[^\n]*$"):
            hf.load(folder, np.float32)


def test_pickles_are_never_read(folder):
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(ValueError, match=r"\(pytorch_model\.bin is a pickle, and those are never read\)"):
        hf.load(folder, np.float32)


@pytest.mark.parametrize(
    ("text", "message"), [(None, "no config.json in the folder"), ("{", "config.json: not JSON"), ("[]", "config.json: must be")]
)
def test_bad_config_file(folder, text, message):
    (folder / "config.json").unlink()
    if text:
        (folder / "config.json").write_text(text)
    with pytest.raises(ValueError, match=message):
        hf.load(folder, np.float32)
