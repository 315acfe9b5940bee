"""Published EAGLE-3 drafts: what is read gives the logits of a plain reference, and whatever does not fit is refused in one line."""

import dataclasses
import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import specjax
from specjax.models import toy
from specjax.models.load import drafts

VOCAB, D, WIDE, HEADS, GROUPS, SIZE, FF, SAID = 40, 16, 24, 4, 2, 6, 20, 11
IDS = np.random.default_rng(7).permutation(VOCAB)[:SAID]  # in no order: the draft's token i is the target's IDS[i]
SHAPES = {
    "embed_tokens.weight": (VOCAB, WIDE),
    "fc.weight": (WIDE, 3 * D),
    "midlayer.input_layernorm.weight": (WIDE,),
    "midlayer.hidden_norm.weight": (WIDE,),
    "midlayer.self_attn.q_proj.weight": (HEADS * SIZE, 2 * WIDE),
    "midlayer.self_attn.k_proj.weight": (GROUPS * SIZE, 2 * WIDE),
    "midlayer.self_attn.v_proj.weight": (GROUPS * SIZE, 2 * WIDE),
    "midlayer.self_attn.o_proj.weight": (WIDE, HEADS * SIZE),
    "midlayer.post_attention_layernorm.weight": (WIDE,),
    "midlayer.mlp.gate_proj.weight": (FF, WIDE),
    "midlayer.mlp.up_proj.weight": (FF, WIDE),
    "midlayer.mlp.down_proj.weight": (WIDE, FF),
    "norm.weight": (WIDE,),
    "lm_head.weight": (SAID, WIDE),
}
LAYER = dict(
    hidden_size=WIDE, intermediate_size=FF, num_hidden_layers=1, num_attention_heads=HEADS, num_key_value_heads=GROUPS, head_dim=SIZE,
    hidden_act="silu", max_position_embeddings=64, rms_norm_eps=1e-3, rope_theta=100.0, vocab_size=VOCAB, model_type="llama",
)  # fmt: skip
FLAT = dict(LAYER, architectures=["LlamaForCausalLMEagle3"], draft_vocab_size=SAID, target_hidden_size=D, tie_word_embeddings=True)
SPECULATORS = dict(
    architectures=["Eagle3DraftModel"], speculators_model_type="eagle3", model_type="speculator_model", draft_vocab_size=SAID,
    target_hidden_size=D, norm_before_residual=True, eagle_aux_hidden_state_layer_ids=[1, 3, 6],
    speculators_config={"algorithm": "eagle3", "verifier": {"name_or_path": "somebody/model"}},
    transformer_layer_config={name: value for name, value in LAYER.items() if name not in ("hidden_act",)},
)  # fmt: skip


@functools.cache
def target(width=D, layers=6, vocab=VOCAB, real_vocab=None) -> specjax.LM:
    config = dataclasses.replace(toy.TINY, width=width, layers=layers, vocab=vocab, ff=8, heads=2, kv_heads=1, real_vocab=real_vocab)
    return specjax.LM(*toy.tiny(config=config), None, "tiny")


def weights() -> dict:
    rng = np.random.default_rng(0)
    made = {name: rng.standard_normal(shape).astype(np.float32) * (0.3 if len(shape) == 2 else 1) for name, shape in SHAPES.items()}
    return made | {"d2t": IDS - np.arange(SAID), "t2d": np.isin(np.arange(VOCAB), IDS)}


def flat() -> tuple[dict, dict]:
    return dict(FLAT), weights()


def speculators() -> tuple[dict, dict]:
    return dict(SPECULATORS), {name.replace("midlayer.", "layers.0."): x for name, x in weights().items()}


def write(folder, config, tensors):
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file({name: np.ascontiguousarray(x) for name, x in tensors.items()}, folder / "model.safetensors")
    return folder


# ---------------------------------------------------------------- the reference: what is published, word for word


def rms(x, scale):
    return x / np.sqrt(np.mean(x**2, axis=-1, keepdims=True) + LAYER["rms_norm_eps"]) * scale


def turned(x_TnC, positions, rate):
    low, high = np.split(x_TnC, 2, axis=-1)
    angle = (positions[:, None] * rate)[:, None, :]
    return np.concatenate([low * np.cos(angle) - high * np.sin(angle), high * np.cos(angle) + low * np.sin(angle)], axis=-1)


def last_hidden(w, features_TD, tokens, rate, norm_before_residual):
    """The layer's output at the last of T cells, each of which joins the embedding of a token with the feature before it."""
    T, layer = len(tokens), lambda name: w[f"midlayer.{name}.weight"].astype(np.float64)
    normed = rms(features_TD, layer("hidden_norm"))
    joined = np.concatenate([rms(w["embed_tokens.weight"][tokens].astype(np.float64), layer("input_layernorm")), normed], axis=-1)
    q, k, v = ((joined @ layer(f"self_attn.{x}_proj").T).reshape(T, -1, SIZE) for x in "qkv")
    q, k = (turned(x, np.arange(T), rate) for x in (q, k))
    k, v = (np.repeat(x, HEADS // GROUPS, axis=1) for x in (k, v))
    score = np.einsum("hc,thc->ht", q[-1], k) / np.sqrt(SIZE)
    share = np.exp(score - score.max(axis=1, keepdims=True))
    heard = np.einsum("ht,thc->hc", share / share.sum(axis=1, keepdims=True), v).reshape(-1)
    x = (normed if norm_before_residual else features_TD)[-1] + heard @ layer("self_attn.o_proj").T
    h = rms(x, layer("post_attention_layernorm"))
    gate = h @ layer("mlp.gate_proj").T
    return x + (gate / (1 + np.exp(-gate)) * (h @ layer("mlp.up_proj").T)) @ layer("mlp.down_proj").T


def unrolled(w, features, tokens, steps, rate, norm_before_residual):
    """Logits of each step in the order of the file; every step says the likeliest token, and reads the hidden state of the step before."""
    cells, tokens, found = list(np.concatenate(features, axis=-1) @ w["fc.weight"].T.astype(np.float64)), list(tokens), []
    for _ in range(steps):
        hidden = last_hidden(w, np.array(cells), tokens, rate, norm_before_residual)
        found.append(rms(hidden, w["norm.weight"]) @ w["lm_head.weight"].T.astype(np.float64))
        best = int(found[-1].argmax())
        cells, tokens = [*cells, hidden], [*tokens, best + w["d2t"][best]]
    return np.array(found)


def ours(drafter, features, tokens, steps):
    """The same by the drafter's model: the first cells at once, later ones one by one."""
    model, params = drafter.model, drafter.params
    ids_U = np.asarray(drafter.ids_U)
    cache, found = model.init_cache(1, 16), []
    cell, place = jax.jit(model.cell), 0
    feature_BTD, token_BT = model.fuse(params, tuple(jnp.asarray(f, jnp.float32)[None] for f in features)), np.array([tokens], np.int32)
    for _ in range(steps):
        hidden_BTD, cache = cell(params, feature_BTD, token_BT, cache, jnp.array([place], jnp.int32))
        found.append(np.asarray(model.head(params, hidden_BTD[:, -1:]))[0, 0])
        place += token_BT.shape[1]
        feature_BTD, token_BT = hidden_BTD[:, -1:], ids_U[[[found[-1].argmax()]]]
    return np.array(found)


RATE = 100.0 ** (-np.arange(SIZE // 2) / (SIZE // 2))


@pytest.mark.parametrize(
    ("layout", "more", "rate", "before"),
    [(flat, {}, RATE, False), (flat, {"rope_scaling": {"type": "linear", "factor": 4.0}}, RATE / 4, False), (speculators, {}, RATE, True)],
)
def test_logits_of_the_reference(tmp_path, layout, more, rate, before):
    config, tensors = layout()
    drafter = specjax.load_drafter(write(tmp_path / "draft", config | more, tensors), target(), most=3)
    rng = np.random.default_rng(9)
    features, tokens = rng.standard_normal((3, 5, D)), rng.integers(0, VOCAB, 5)
    wanted = unrolled(weights(), features, tokens, 4, rate, before)
    assert np.ptp(wanted.argmax(axis=1)) > 0  # it says more than one token
    np.testing.assert_array_equal(drafter.ids_U, np.sort(IDS))
    np.testing.assert_allclose(ours(drafter, features, tokens, 4), wanted[:, np.argsort(IDS)], atol=1e-5)
    assert drafter.most == 3 and drafter.taps == ((1, 2, 2) if layout is flat else (0, 2, 5))


def read(tmp_path, config, tensors, lm=None):
    return drafts.read(write(tmp_path / "draft", config, tensors), (lm or target()).model.config, np.float32)


IDS_KEY = "eagle_aux_hidden_state_layer_ids"


@pytest.mark.parametrize(
    ("more", "taps"),
    [
        ({}, (1, 2, 2)),  # before layers 2, L / 2 and L - 3
        ({IDS_KEY: [1, 4, 6]}, (0, 3, 5)),  # vLLM: before the layer
        ({"eagle_config": {IDS_KEY: [0, 3, 5]}}, (0, 3, 5)),  # SGLang: after it
        ({IDS_KEY: [1, 4, 6], "eagle_config": {IDS_KEY: [0, 3, 5], "use_aux_hidden_state": True}}, (0, 3, 5)),
        ({"eagle_config": {IDS_KEY: []}}, (1, 2, 2)),
    ],
)
def test_layers_that_are_read(tmp_path, more, taps):
    config, tensors = flat()
    assert read(tmp_path, config | more, tensors).config.taps == taps


def test_the_targets_embedding_where_the_file_has_none(tmp_path):
    config, tensors = flat()
    del tensors["embed_tokens.weight"]
    wide = target(width=WIDE)
    tensors["fc.weight"] = np.ones((WIDE, 3 * WIDE), np.float32)
    drafter = specjax.load_drafter(write(tmp_path / "draft", config | {"target_hidden_size": WIDE}, tensors), wide)
    assert drafter.params["embed_VD"] is wide.params["embed_VD"]
    with pytest.raises(ValueError, match=r"no tensor embed_tokens.weight, and the target's embedding is 16 wide, should be 24"):
        read(tmp_path, config, tensors)


def whole(tensors):
    tensors["lm_head.weight"] = np.random.default_rng(2).standard_normal((VOCAB, WIDE)).astype(np.float32)
    del tensors["d2t"], tensors["t2d"]


def test_a_draft_that_can_say_all(tmp_path):
    config, tensors = flat()
    whole(tensors)
    del config["draft_vocab_size"]
    found = read(tmp_path, config, tensors)
    assert found.ids_U is None and found.config.base.head_vocab is None
    np.testing.assert_array_equal(found.params["head_DV"], tensors["lm_head.weight"].T)
    order = np.random.default_rng(3).permutation(VOCAB)  # a map that is a permutation
    tensors |= {"d2t": order - np.arange(VOCAB), "t2d": np.ones(VOCAB, bool)}
    mapped = read(tmp_path, config, tensors)
    assert mapped.ids_U is None
    np.testing.assert_array_equal(mapped.params["head_DV"][:, order], tensors["lm_head.weight"].T)


def test_padding_is_never_said(tmp_path):
    config, tensors = flat()
    whole(tensors)
    found = read(tmp_path, config | {"draft_vocab_size": VOCAB}, tensors, target(real_vocab=37))
    assert found.ids_U is None and found.config.base.head_vocab == 37
    np.testing.assert_array_equal(found.params["head_DV"], tensors["lm_head.weight"][:37].T)


def test_what_is_the_targets_is_passed_over(tmp_path):
    config, tensors = speculators()
    tensors |= {"verifier_lm_head.weight": np.ones((VOCAB, D), np.float32), "verifier_norm.weight": np.ones(D, np.float32)}
    assert read(tmp_path, config, tensors).params.keys() == {"embed_VD", "fc_XD", "layer", "norm_D", "head_DV"}


def drop(name):
    return lambda config, tensors: tensors.pop(name)


def put(name, make):
    return lambda config, tensors: tensors.update({name: make(tensors[name])})


def say(**more):
    return lambda config, tensors: config.update(more)


def twice(d2t):
    return np.concatenate([d2t[:1], d2t[:1] - 1, d2t[2:]])


REFUSED = {
    "tensors missing: midlayer.hidden_norm.weight": drop("midlayer.hidden_norm.weight"),
    "tensors missing: lm_head.weight": drop("lm_head.weight"),
    "tensors not known to this family: fc.bias": lambda config, tensors: tensors.update({"fc.bias": np.ones(WIDE, np.float32)}),
    r"tensor fc.weight has shape \[24, 47\], should be \[24, 48\]": put("fc.weight", lambda x: x[:, 1:]),
    r"tensor lm_head.weight has shape \[10, 24\], should be \[11, 24\]": put("lm_head.weight", lambda x: x[1:]),
    "tensor fc.weight holds NaN or infinity": put("fc.weight", lambda x: x * np.float32(np.nan)),
    "tensor d2t is missing, the map from the draft's 11 tokens to the target's 40": drop("d2t"),
    r"tensor d2t has shape \[10\], should be \[11\]": put("d2t", lambda x: x[1:]),
    "tensor d2t is stored as F32; supported": put("d2t", lambda x: x.astype(np.float32)),
    "tensor d2t maps the draft's token 0 to 40, the target has 40 tokens": put("d2t", lambda x: np.concatenate([[40], x[1:]])),
    "tensor d2t maps the draft's token 3 to -1, the target has 40": put("d2t", lambda x: np.concatenate([x[:3], [-4], x[4:]])),
    f"tensor d2t maps 2 of the draft's tokens to the target's token {IDS[0]}$": put("d2t", twice),
    r"tensor t2d has shape \[39\], should be \[40\]": put("t2d", lambda x: x[1:]),
    "tensors d2t and t2d disagree about the target's token 0": put("t2d", lambda x: np.concatenate([~x[:1], x[1:]])),
    "config.json: vocab_size is 41, the target's is 40: the draft was made for another target": say(vocab_size=41),
    "config.json: target_hidden_size is 24, the target's is 16": lambda config, tensors: config.pop("target_hidden_size"),
    "config.json: draft_vocab_size=41 should be at most vocab_size=40": say(draft_vocab_size=41),
    r"the draft reads the output of layers \[0, 2, 6\], the target has 6, numbered from 0": say(**{IDS_KEY: [1, 3, 7]}),
    r"the draft reads the output of layers \[-1, 2, 5\], the target has 6": say(**{IDS_KEY: [0, 3, 6]}),
    r"eagle_aux_hidden_state_layer_ids=\[1, 3, 5\] looks before": say(**{IDS_KEY: [1, 3, 5], "eagle_config": {IDS_KEY: [1, 3, 5]}}),
    "eagle_aux_hidden_state_layer_ids holds '2', should be numbers": say(**{IDS_KEY: ["2"]}),
    "eagle_config.use_aux_hidden_state=false is not supported": say(eagle_config={"use_aux_hidden_state": False}),
    "num_hidden_layers=2 is not supported; supported: 1": say(num_hidden_layers=2),
    "fc_norm=True is not supported; supported: False": say(fc_norm=True),
    "rope_scaling.rope_type='dynamic' is not supported": say(rope_scaling={"type": "dynamic", "factor": 2.0}),
    "hidden_act='relu' is not supported": say(hidden_act="relu"),
    "quantization_config=": say(quantization_config={"bits": 4}),
    "architectures='Qwen3ForCausalLM' and no draft_vocab_size: is no EAGLE-3 draft": say(architectures=["Qwen3ForCausalLM"]),
    "speculators_model_type='eagle' is not supported; supported: 'eagle3'": say(speculators_model_type="eagle"),
    "norm_before_residual is missing or null": say(speculators_model_type="eagle3", transformer_layer_config={}),
    "specjax.kind='medusa' is not known here; known: eagle3, small": say(specjax={"kind": "medusa"}),
}


@pytest.mark.parametrize("message", REFUSED)
def test_refused_in_one_line(tmp_path, message):
    config, tensors = flat()
    REFUSED[message](config, tensors)
    with pytest.raises(ValueError, match=message) as caught:
        read(tmp_path, config, tensors)
    assert str(caught.value).startswith(f"{tmp_path / 'draft'}: ") and "\n" not in str(caught.value)


def test_a_pickle_is_never_read(tmp_path):
    folder = write(tmp_path / "draft", *flat())
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(ValueError, match=r"pytorch_model.bin is a pickle, and those are never read"):
        specjax.load_drafter(folder, target())


def test_no_folder_and_no_transformer(tmp_path):
    folder = write(tmp_path / "draft", *flat())
    with pytest.raises(ValueError, match=r"model.safetensors: should be a folder with config.json"):
        specjax.load_drafter(folder / "model.safetensors", target())
    table = specjax.LM(*toy.table(np.ones((3, 3)) / 3), None, "a table")
    with pytest.raises(ValueError, match="a trained draft needs a transformer as target, a table is none"):
        specjax.load_drafter(folder, table)


def test_fewer_layers_than_by_default(tmp_path):
    folder = write(tmp_path / "draft", *flat())
    with pytest.raises(ValueError, match=r"reads the output of layers \[1, 0, -2\], the target has 2"):
        specjax.load_drafter(folder, target(layers=2))


def test_dtype_is_the_targets(tmp_path):
    folder = write(tmp_path / "draft", *flat())
    low = dataclasses.replace(target(), params=jax.tree.map(lambda x: x.astype(jnp.bfloat16), target().params))
    drafter = specjax.load_drafter(folder, low)
    assert {x.dtype.name for x in jax.tree.leaves(drafter.params)} == {"bfloat16"}
    assert load_file(folder / "model.safetensors")["fc.weight"].dtype == np.float32


def test_shapes_are_enough_to_plan(tmp_path):
    folder = write(tmp_path / "draft", *flat())
    real = specjax.load_drafter(folder, target())
    bare = dataclasses.replace(target(), params=jax.eval_shape(lambda: target().params))
    planned = specjax.load_drafter(folder, bare)
    assert jax.tree.map(lambda x: (x.shape, x.dtype), planned.params) == jax.tree.map(lambda x: (x.shape, x.dtype), real.params)
    assert isinstance(jax.tree.leaves(planned.params)[0], jax.ShapeDtypeStruct)


@pytest.mark.parametrize("most", [0, -1, 2.5, "3", None])
def test_most_is_a_whole_number(most):
    with pytest.raises(ValueError, match=r"most=.* must be"):
        specjax.load_drafter("nowhere", specjax.load("toy://tiny"), most=most)
