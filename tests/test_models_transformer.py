"""The transformer through the border: blocks equal single tokens, rows do not touch each other, and what drafters will need works."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.models import toy
from specjax.models.border import border, init
from specjax.models.config import ModelConfig

TOKENS = np.random.default_rng(0).integers(0, 257, (3, 24)).astype(np.int32)


@pytest.fixture(scope="module", params=["float32", "float64"])
def tiny(request):
    with jax.enable_x64(request.param == "float64"):
        model, params = toy.tiny(dtype=request.param)
        yield model, params, {"float32": 2e-5, "float64": 1e-12}[request.param]


FORWARD = jax.jit(lambda model, *inputs: model.forward(*inputs), static_argnums=0)
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
    model, params, tolerance = tiny
    parents, depth = [0, 0, 0, 1, 2], [0, 1, 1, 2, 2]
    mask = np.zeros((5, 5), bool)
    for node in range(5):
        at = node
        while True:
            mask[node, at] = True
            if at == 0:
                break
            at = parents[at]
    _, cache = feed(model, params, TOKENS[:1], [6])
    nodes = TOKENS[:1, 10:15]
    cursor_B = jnp.asarray([6])
    position_BT = cursor_B[:, None] + jnp.asarray(depth)
    hidden, _, _ = model.forward(params, jnp.asarray(nodes), cache, cursor_B, position_BT=position_BT, mask=jnp.asarray(mask)[None])
    got = np.asarray(model.head(params, hidden))[0]
    for path in ([0, 1, 3], [0, 2, 4]):
        text = np.concatenate([TOKENS[:1, :6], nodes[:, path]], axis=1)
        right, _ = feed(model, params, text, [9])
        np.testing.assert_allclose(got[path], right[0, 6:], atol=tolerance * np.abs(right).max())


def test_layers_in_two_ranges_and_taps(tiny):
    """What early exit and feature drafts build on: a tap is what a range of layers ends with."""
    model, params, _ = tiny
    cache, cursor_B, token_BT = model.init_cache(3, 32, params["norm_D"].dtype), jnp.zeros(3, jnp.int32), jnp.asarray(TOKENS)
    whole, (first,), _ = model.forward(params, token_BT, cache, cursor_B, taps=(0,))
    part, _, _ = model.forward(params, token_BT, cache, cursor_B, layers=range(1))
    np.testing.assert_array_equal(first, part)
    assert np.abs(np.asarray(whole) - np.asarray(part)).max() > 0.1


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


def test_shapes_that_make_no_model_are_refused():
    with pytest.raises(ValueError, match="heads=9 is not a multiple of kv_heads=2"):
        ModelConfig(vocab=1, width=1, layers=1, heads=9, kv_heads=2, head_size=2, ff=1, tied=True, max_positions=1)
    with pytest.raises(ValueError, match="head_size=3 must be even"):
        ModelConfig(vocab=1, width=1, layers=1, heads=2, kv_heads=2, head_size=3, ff=1, tied=True, max_positions=1)
