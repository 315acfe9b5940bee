"""Their tensors become our tree: each used once, each checked, the head tied or not as the file says."""

import dataclasses

import numpy as np
import pytest

from specjax.models.config import ModelConfig
from specjax.models.load import families, names

CONFIG = ModelConfig(vocab=5, width=6, layers=2, heads=4, kv_heads=2, head_size=4, ff=3, tied=False, max_positions=8)
TABLE = families.FAMILIES["LlamaForCausalLM"].table
SIZES = {"V": 5, "D": 6, "HC": 16, "GC": 8, "F": 3}
EMBED, HEAD = "model.embed_tokens.weight", "lm_head.weight"


@pytest.fixture
def tensors():
    """A whole file: every tensor under its name, random."""
    rng = np.random.default_rng(0)
    plain = [e for e in TABLE.entries if "bias" not in e.path and "norm_C" not in e.path]
    shapes = {n.format(i): shape for e in plain for n, shape in e.theirs.items() for i in range(CONFIG.layers)}
    return {n: rng.normal(size=[SIZES[a] for a in s.split()]).astype(np.float32) for n, s in shapes.items()}


def build(tensors, config=CONFIG, dtype=np.float32, table=TABLE):
    return names.build(config, table, tensors, tensors.__getitem__, dtype)


def test_every_tensor_arrives_where_the_model_reads_it(tensors):
    params = build(tensors)
    assert list(params) == ["embed_VD", "layers", "norm_D", "head_DV"]
    assert list(params["layers"]) == ["0", "1"]
    layer, theirs = params["layers"]["1"], {n.split("layers.1.")[-1]: w for n, w in tensors.items()}
    rows = np.arange(16).reshape(2, 2, 4)  # query head h = g * R + r
    for g in range(2):
        for r in range(2):
            np.testing.assert_array_equal(layer["qkv_DGJC"][:, g, r], theirs["self_attn.q_proj.weight"][rows[g, r]].T)
        own = slice(4 * g, 4 * g + 4)
        np.testing.assert_array_equal(layer["qkv_DGJC"][:, g, 2], theirs["self_attn.k_proj.weight"][own].T)
        np.testing.assert_array_equal(layer["qkv_DGJC"][:, g, 3], theirs["self_attn.v_proj.weight"][own].T)
    np.testing.assert_array_equal(layer["out_HCD"][3, 1], theirs["self_attn.o_proj.weight"][:, 13])
    np.testing.assert_array_equal(layer["up_DUF"][:, 0], theirs["mlp.gate_proj.weight"].T)
    np.testing.assert_array_equal(layer["up_DUF"][:, 1], theirs["mlp.up_proj.weight"].T)
    np.testing.assert_array_equal(layer["down_FD"], theirs["mlp.down_proj.weight"].T)
    np.testing.assert_array_equal(layer["attn_norm_D"], theirs["input_layernorm.weight"])
    np.testing.assert_array_equal(layer["mlp_norm_D"], theirs["post_attention_layernorm.weight"])
    np.testing.assert_array_equal(params["embed_VD"], tensors[EMBED])
    np.testing.assert_array_equal(params["head_DV"], tensors[HEAD].T)


def test_arrays_are_plain_contiguous_and_their_own(tensors):
    leaf = build(tensors, dtype="bfloat16")["layers"]["0"]["down_FD"]
    assert (type(leaf), leaf.dtype.name, leaf.flags.c_contiguous, leaf.flags.owndata) == (np.ndarray, "bfloat16", True, True)
    kept = build(tensors)["embed_VD"]
    assert not np.shares_memory(kept, tensors[EMBED])


def test_gguf_rotary_rows_return_to_half_split():
    """Grouped heads of size 4: row order 0 2 1 3 in the file stands for 0 1 2 3 here, head by head; v is as it is."""
    q, kv = np.arange(16.0), np.arange(8.0)
    order = np.array([0, 2, 1, 3])
    stored_q = q.reshape(4, 4)[:, order].reshape(16, 1) * np.ones(6)
    stored_k = kv.reshape(2, 4)[:, order].reshape(8, 1) * np.ones(6)
    qkv = names.qkv_interleaved(CONFIG, stored_q, stored_k, kv[:, None] * np.ones(6))[0]
    np.testing.assert_array_equal(qkv[:, :2].reshape(16), q)
    np.testing.assert_array_equal(qkv[:, 2].reshape(8), kv)
    np.testing.assert_array_equal(qkv[:, 3].reshape(8), kv)


def test_biases_follow_their_rows():
    """Through every join, a bias lands where the kernel's column of the same number does."""
    c = dataclasses.replace(CONFIG, heads=2)  # two query heads, each with its own key: what GPT-NeoX needs
    q, kv = np.arange(16.0), 100 + np.arange(8.0)
    for join, parts, config in [
        (names.qkv, (q, kv, kv + 50), CONFIG),
        (names.qkv_interleaved, (q, kv, kv + 50), CONFIG),
        (names.qkv_fused, (np.concatenate([q, kv, kv + 50]),), CONFIG),
        (names.qkv_by_head, (np.arange(24.0),), c),
        (names.gate_up, (np.arange(3.0), 10 + np.arange(3.0)), CONFIG),
        (names.gate_up, (np.arange(3.0),), CONFIG),
    ]:
        kernel = join(config, *(part[:, None] * np.ones(6) for part in parts))
        np.testing.assert_array_equal(kernel[0], join(config, *parts))


def test_fused_rows_are_those_that_stood_apart():
    rng = np.random.default_rng(0)
    q, k, v, gate, up = (rng.normal(size=(n, 6)) for n in (16, 8, 8, 3, 3))
    np.testing.assert_array_equal(names.qkv_fused(CONFIG, np.concatenate([q, k, v])), names.qkv(CONFIG, q, k, v))
    np.testing.assert_array_equal(names.gate_up_fused(CONFIG, np.concatenate([gate, up])), names.gate_up(CONFIG, gate, up))
    heads = dataclasses.replace(CONFIG, heads=2)
    by_head = np.concatenate([part[4 * h : 4 * h + 4] for h in range(2) for part in (q[:8], k, v)])
    np.testing.assert_array_equal(names.qkv_by_head(heads, by_head), names.qkv(heads, q[:8], k, v))


def test_experts_stand_in_their_order():
    config = dataclasses.replace(CONFIG, experts=2, expert_ff=3, experts_per_token=1, sparse=(0,))
    parts = [np.full((3, 6), n) + np.arange(3)[:, None] / 10 for n in range(4)]  # gates of both, then ups of both
    up_EDUX = names.experts_up(config, *parts)
    assert up_EDUX.shape == (2, 6, 2, 3)
    np.testing.assert_array_equal(up_EDUX[:, 0, :, 0], [[0, 2], [1, 3]])
    np.testing.assert_array_equal(up_EDUX[1, 0, 1], [3.0, 3.1, 3.2])
    np.testing.assert_array_equal(names.experts_down(config, *(part.T for part in parts[:2]))[1, :, 0], [1.0, 1.1, 1.2])


def test_missing_tensor_is_named(tensors):
    del tensors["model.layers.1.mlp.up_proj.weight"]
    with pytest.raises(ValueError, match=r"^tensors missing: model\.layers\.1\.mlp\.up_proj\.weight$"):
        build(tensors)


def test_left_over_tensors_are_named(tensors):
    extra = {f"model.layers.{i}.self_attn.q_proj.bias": np.zeros(16) for i in range(5)}
    with pytest.raises(ValueError, match=r"not known to this family: model\.layers\.0\.self_attn\.q_proj\.bias.* and 2 more$"):
        build(tensors | extra)


def test_a_layer_more_than_the_config_says_is_left_over(tensors):
    with pytest.raises(ValueError, match=r"not known to this family: model\.layers\.2\."):
        build(tensors | {"model.layers.2.input_layernorm.weight": np.zeros(6)})


def test_more_layers_than_tensors_are_refused_before_they_are_listed(tensors):
    with pytest.raises(ValueError, match="the config says 1000000000000 layers, but the file has only 21 tensors"):
        build(tensors, dataclasses.replace(CONFIG, layers=10**12))


def test_rotary_frequencies_are_no_weights(tensors):
    build(tensors | {"model.layers.0.self_attn.rotary_emb.inv_freq": np.zeros(2)})


def test_wrong_shape_is_named(tensors):
    tensors["model.layers.0.self_attn.k_proj.weight"] = np.zeros((6, 8), np.float32)
    with pytest.raises(ValueError, match=r"k_proj\.weight has shape \[6, 8\], should be \[8, 6\] \(GC D\)"):
        build(tensors)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_nonfinite_weight_is_named(tensors, bad):
    tensors["model.layers.1.mlp.down_proj.weight"][3, 1] = bad
    with pytest.raises(ValueError, match=r"^tensor model\.layers\.1\.mlp\.down_proj\.weight holds NaN or infinity$"):
        build(tensors)


def tied(tensors, flag):
    return names.is_tied(TABLE, tensors, tensors.__getitem__, flag)


def test_without_a_head_in_the_file(tensors):
    del tensors[HEAD]
    assert tied(tensors, True)
    assert tied(tensors, None)
    with pytest.raises(ValueError, match=r"tie_word_embeddings=False, but the file has no lm_head\.weight"):
        tied(tensors, False)


def test_with_a_head_of_its_own(tensors):
    assert not tied(tensors, False)
    assert not tied(tensors, None)
    with pytest.raises(ValueError, match=r"tie_word_embeddings=True, but the file's lm_head\.weight differs"):
        tied(tensors, True)


def test_a_head_equal_to_the_embedding_is_used_once(tensors):
    tensors[HEAD] = tensors[EMBED].copy()
    assert tied(tensors, True)
    assert not tied(tensors, False)
    params = build(tensors, ModelConfig(**{**vars(CONFIG), "tied": True}))
    assert "head_DV" not in params
