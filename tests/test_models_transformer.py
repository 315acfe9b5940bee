"""The transformer through the border: blocks equal single tokens, rows do not touch each other, and what drafters will need works."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import ancestry
from specjax.models import layers, toy
from specjax.models.border import border, init
from specjax.models.config import ModelConfig

TOKENS = np.random.default_rng(0).integers(0, 257, (3, 24)).astype(np.int32)


made = functools.cache(lambda dtype: toy.tiny(dtype=dtype))


@pytest.fixture(params=["float32", "float64"])
def tiny(request):
    with jax.enable_x64(request.param == "float64"):
        yield *made(request.param), {"float32": 2e-5, "float64": 1e-12}[request.param]


FORWARD = jax.jit(lambda model, *inputs: model.forward(*inputs), static_argnums=0)
TREE = jax.jit(lambda model, *inputs: model.forward(*inputs[:-2], position_BT=inputs[-2], mask=inputs[-1]), static_argnums=0)
HEAD = jax.jit(lambda model, *inputs: model.head(*inputs), static_argnums=0)


def feed(model, params, rows, cuts, size=32, start=None):
    """Logits [B, T, V] of tokens fed in pieces that end at `cuts`."""
    batch = len(rows)
    cache = model.init_cache(batch, size, jax.tree.leaves(params)[0].dtype)
    cursor_B = jnp.zeros(batch, jnp.int32) if start is None else start
    logits, begin = [], 0
    for end in cuts:
        hidden, _, cache = FORWARD(model, params, jnp.asarray(rows[:, begin:end]), cache, cursor_B)
        logits.append(HEAD(model, params, hidden))
        cursor_B, begin = cursor_B + (end - begin), end
    return np.concatenate(logits, axis=1), cache


def test_a_block_equals_a_token_at_a_time(tiny):
    model, params, tolerance = tiny
    whole, _ = feed(model, params, TOKENS, [24])
    for cuts in (range(1, 25), [5, 6, 14, 24], [23, 24]):
        pieces, _ = feed(model, params, TOKENS, cuts)
        np.testing.assert_allclose(pieces, whole, atol=tolerance * np.abs(whole).max())


def test_rows_do_not_touch_each_other(tiny):
    model, params, tolerance = tiny
    together, _ = feed(model, params, TOKENS, [24])
    for row in range(3):
        alone, _ = feed(model, params, TOKENS[row : row + 1], [24])
        np.testing.assert_allclose(alone[0], together[row], atol=tolerance * np.abs(together).max())


def test_more_rows_than_are_unrolled(tiny):
    """Nine rows take the vmapped update."""
    model, params, tolerance = tiny
    rows = np.tile(TOKENS, (3, 1))
    many, _ = feed(model, params, rows, [7, 24])
    few, _ = feed(model, params, TOKENS, [7, 24])
    np.testing.assert_allclose(many[3:6], few, atol=tolerance * np.abs(few).max())


def test_garbage_past_a_cursor_changes_nothing(tiny):
    """Rows at cursors 2, 7 and 5 of caches that were filled up to 20: what stands behind is not seen, and is overwritten."""
    model, params, tolerance = tiny
    _, cache = feed(model, params, TOKENS, [20])
    cursor_B = jnp.asarray([2, 7, 5])
    block = TOKENS[:, 20:24]
    hidden, _, _ = FORWARD(model, params, jnp.asarray(block), cache, cursor_B)
    got = np.asarray(HEAD(model, params, hidden))
    for row, cursor in enumerate((2, 7, 5)):
        text = np.concatenate([TOKENS[row, :cursor], block[row]])[None]
        right, _ = feed(model, params, text, [cursor + 4])
        np.testing.assert_allclose(got[row], right[0, cursor:], atol=tolerance * np.abs(right).max())


def test_a_tree_of_drafts_equals_its_paths(tiny):
    """Two branches fed in one pass, each token seeing its ancestors only, at positions by depth."""
    check_tree(*tiny)


def check_tree(model, params, tolerance):
    parents, depth = [0, 0, 0, 1, 2, 4, 5, 6], [0, 1, 1, 2, 2, 3, 4, 5]
    mask = np.eye(8, dtype=bool)
    for node, parent in enumerate(parents):
        mask[node] |= mask[parent]
    _, cache = feed(model, params, TOKENS[:1], [3, 6])
    nodes = TOKENS[:1, 10:18]
    cursor_B = jnp.asarray([6])
    position_BT = cursor_B[:, None] + jnp.asarray(depth)[None]
    mask_BTS = ancestry.over_slots(cursor_B, jnp.asarray(mask)[None], 32)
    hidden, _, _ = TREE(model, params, jnp.asarray(nodes), cache, cursor_B, position_BT, mask_BTS)
    got = np.asarray(HEAD(model, params, hidden))[0]
    for path in ([0, 1, 3], [0, 2, 4, 5, 6, 7]):
        text = np.concatenate([TOKENS[:1, :6], nodes[:, path]], axis=1)
        right, _ = feed(model, params, text, range(3, 7 + len(path), 3))
        np.testing.assert_allclose(got[path], right[0, 6:], atol=tolerance * np.abs(right).max())


def test_layers_in_two_ranges_and_taps(tiny):
    """What early exit and feature drafts build on: a tap is what a range of layers ends with."""
    model, params, _ = tiny
    cache, cursor_B, token_BT = model.init_cache(3, 32, params["norm_D"].dtype), jnp.zeros(3, jnp.int32), jnp.asarray(TOKENS)
    whole, (first,), _ = model.forward(params, token_BT, cache, cursor_B, taps=(0,))
    part, _, _ = model.forward(params, token_BT, cache, cursor_B, layers=range(1))
    np.testing.assert_array_equal(first, part)
    assert np.abs(np.asarray(whole) - np.asarray(part)).max() > 0.1


OPTIONS = {  # no family's: everything that a config may have, in three models
    "windows": dict(
        window=3, sliding=(0,), window_theta=50.0, rope_stretch=(1.0, 2.0, 3.0, 8.0), rope_gain=1.2, attn_cap=3.0, logit_cap=5.0,
        attn_scale=0.3, embed_scale=3.0, qk_norm=True, post_norms=True, activation="gelu_tanh",
    ),
    "parallel": dict(
        norm="layer", parallel=True, rotary=4, gated=False, activation="gelu", qkv_bias=True, out_bias=True, mlp_bias=True, window=5,
        sliding=(1,),
    ),
    "experts": dict(learned_positions=True, sparse=(1,), experts=7, experts_per_token=2, expert_ff=16, norm_topk=True),
}  # fmt: skip


def configured(name, **changes):
    return dataclasses.replace(toy.TINY, max_positions=64, **(OPTIONS[name] | changes))


@functools.cache
def noisy(name):
    """A model with options, no parameter of which is 0 or 1."""
    leaves, tree = jax.tree.flatten(init(configured(name), dtype=jnp.float64))
    rng = np.random.default_rng(0)
    return border(configured(name), jax.tree.unflatten(tree, [leaf + 0.3 * rng.normal(size=leaf.shape) for leaf in leaves]))


@pytest.fixture(params=OPTIONS)
def optional(request):
    with jax.enable_x64(True):
        yield *noisy(request.param), 1e-12


def test_blocks_with_options_equal_single_tokens(optional):
    """On both sides of the window's edge, for blocks narrower and wider than the window; experts in both of their forms."""
    model, params, tolerance = optional
    whole, _ = feed(model, params, TOKENS, [24])
    for cuts in (range(1, 25), [3, 6, 9, 12, 15, 18, 21, 24]):
        pieces, _ = feed(model, params, TOKENS, cuts)
        np.testing.assert_allclose(pieces, whole, atol=tolerance * np.abs(whole).max())


def test_a_tree_with_options_equals_its_paths(optional):
    """The window counts positions: siblings stand at one, and a deep node loses sight of what its path has left behind."""
    check_tree(*optional)


def test_rollback_with_options(optional):
    """At cursors before, at and past the window's edge in caches that were filled up to 18."""
    model, params, tolerance = optional
    _, cache = feed(model, params, TOKENS, range(3, 21, 3))
    cursors = [2, 4, 15]
    hidden, _, _ = FORWARD(model, params, jnp.asarray(TOKENS[:, 20:23]), cache, jnp.asarray(cursors, jnp.int32))
    got = np.asarray(HEAD(model, params, hidden))
    texts = [np.concatenate([row[:cursor], row[20:23], row[: 21 - cursor]]) for row, cursor in zip(TOKENS, cursors, strict=True)]
    right, _ = feed(model, params, np.stack(texts), [24])
    for row, cursor in enumerate(cursors):
        np.testing.assert_allclose(got[row], right[row, cursor : cursor + 3], atol=tolerance * np.abs(right).max())


def test_a_window_as_long_as_the_text_is_none():
    """What a window takes away is what is too far, and nothing else."""
    wide, none = (configured("windows", **change) for change in (dict(window=24), dict(window=None, sliding=())))
    wide, none = (dataclasses.replace(config, window_theta=None) for config in (wide, none))
    params = init(none)
    texts = [feed(*border(config, params), TOKENS, [24])[0] for config in (wide, none)]
    np.testing.assert_array_equal(*texts)
    narrow, _ = feed(*border(dataclasses.replace(wide, window=23), params), TOKENS, [24])
    np.testing.assert_array_equal(narrow[:, :23], texts[0][:, :23])
    assert (narrow[:, 23] != texts[0][:, 23]).any()


def test_norms_of_bfloat16_are_rounded_once():
    """Gemma's norms are so defined, and LayerNorm is; a product in bfloat16 would round a second time."""
    rng = np.random.default_rng(0)
    x, scale, bias = (jnp.asarray(rng.normal(size=shape), jnp.bfloat16) for shape in ((7, 64), 64, 64))
    wide = [a.astype(jnp.float32) for a in (x, scale, bias)]
    for norm, parts in [(layers.rms_norm, 2), (layers.layer_norm, 3)]:
        exact = norm(*wide[:parts], 1e-6)
        np.testing.assert_array_equal(norm(*(x, scale, bias)[:parts], 1e-6), exact.astype(jnp.bfloat16))


def test_the_scale_of_scores_is_not_rounded_to_bfloat16():
    """Heads of 112: their scale is off by 0.25% in bfloat16."""
    rng = np.random.default_rng(0)
    q, k, v = (jnp.asarray(rng.normal(size=shape), jnp.bfloat16) for shape in ((1, 3, 1, 2, 112), (5, 112), (5, 112)))
    seen_BTS = jnp.ones((1, 3, 5), bool)
    scaled = (q.astype(jnp.float32) * 112**-0.5).astype(jnp.bfloat16)
    np.testing.assert_array_equal(layers.attend(q, k, v, seen_BTS), layers.attend(scaled, k, v, seen_BTS, scale=1.0))


@pytest.mark.parametrize("name", OPTIONS)
def test_no_shape_or_type_is_spread_by_chance(name):
    config = configured(name)
    model, params = border(config, init(config))
    token_BT, cursor_B = jnp.zeros((2, 3), jnp.int32), jnp.zeros(2, jnp.int32)
    with jax.numpy_rank_promotion("raise"), jax.numpy_dtype_promotion("strict"):
        for mask in (None, jnp.ones((2, 3, 8), bool)):
            forward = lambda cache, mask=mask: model.head(params, model.forward(params, token_BT, cache, cursor_B, mask=mask)[0])
            assert jax.eval_shape(forward, model.init_cache(2, 8)).shape == (2, 3, 257)


def spoilt_by(params, token):
    """Token `token` has an embedding that is not a number."""
    return {**params, "embed_VD": params["embed_VD"].at[token].set(jnp.nan)}


def test_what_is_not_finite_stays_with_its_token():
    """Earlier tokens of its block, other rows, and later tokens over its rolled-back slot do not feel it: 0 x NaN would be NaN."""
    model, params = toy.tiny()
    bad = TOKENS.copy()
    bad[0, 3] = 250
    assert (np.delete(bad, 3, axis=1) != 250).all() and (bad[1:] != 250).all()
    spoilt = spoilt_by(params, 250)
    logits, cache = feed(model, spoilt, bad, [24])
    right, _ = feed(model, params, TOKENS, [24])
    np.testing.assert_array_equal(logits[0, :3], right[0, :3])
    np.testing.assert_array_equal(logits[1:], right[1:])
    assert np.isnan(logits[0, 3]).all()
    cursor_B = jnp.full(3, 2)
    hidden, _, _ = FORWARD(model, spoilt, jnp.asarray(TOKENS[:, 2:3]), cache, cursor_B)
    np.testing.assert_allclose(np.asarray(HEAD(model, spoilt, hidden))[:, 0], right[:, 2], atol=2e-5 * np.abs(right).max())


@pytest.mark.parametrize("part", [2, 3])  # a key, a value
def test_a_key_or_value_that_is_not_finite_shows_in_its_own_logits(part):
    model, params = toy.tiny()
    layer = params["layers"]["1"]
    spoilt = {**layer, "qkv_DGJC": layer["qkv_DGJC"].at[0, 1, part, 5].set(jnp.inf)}
    logits, _ = feed(model, {**params, "layers": {**params["layers"], "1": spoilt}}, TOKENS, [24])
    assert np.isnan(logits).all()


CONFIG = ModelConfig(vocab=20, width=8, layers=1, heads=2, kv_heads=1, head_size=4, ff=8, tied=False, max_positions=64)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda p: p.pop("head_DV"), r"\['head_DV'\] is missing"),
        (lambda p: p.update(bias=np.zeros(3)), r"\['bias'\] is not part of this model"),
        (lambda p: p.update(norm_D=np.zeros(9)), r"\['norm_D'\] has shape \(9,\), not \(8,\)"),
    ],
)
def test_parameters_that_do_not_fit_are_named(change, message):
    params = init(CONFIG)
    change(params)
    with pytest.raises(ValueError, match=message):
        border(CONFIG, params)


def test_a_tied_head_is_the_embedding():
    model, _ = toy.tiny()
    assert not model.config.tied
    tied, _ = border(toy.TINY, init(toy.TINY))
    assert tied == model
    np.testing.assert_array_equal(init(toy.TINY)["embed_VD"].T * 8, toy.tiny(scale=8.0)[1]["head_DV"])


SHAPE = dict(vocab=1, width=1, layers=2, heads=2, kv_heads=2, head_size=4, ff=1, tied=True, max_positions=1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"heads": 9}, "heads=9 is not a multiple of kv_heads=2"),
        ({"head_size": 3}, "head_size=3 must be even"),
        ({"rotary": 3}, "rotary=3 must be even for rotary positions, and at most head_size=4"),
        ({"rotary": 6}, "rotary=6 must be even for rotary positions, and at most head_size=4"),
        ({"rope_stretch": (1.0,)}, "rope_stretch has 1 numbers, should have 2, one a pair"),
        ({"activation": "relu"}, "activation='relu' should be one of silu, gelu, gelu_tanh"),
        ({"norm": "batch"}, "norm='batch' should be one of rms, layer"),
        ({"window": 3}, r"window=3 and sliding=\(\): give both, or None and \(\)"),
        ({"sliding": (0,)}, r"window=None and sliding=\(0,\): give both"),
        ({"sparse": (0,), "experts": 2, "experts_per_token": 3}, "experts_per_token=3 should be from 1 to experts=2"),
        ({"sparse": (0,)}, "experts_per_token=0 should be from 1 to experts=0"),
    ],
)
def test_shapes_that_make_no_model_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        ModelConfig(**(SHAPE | change))
