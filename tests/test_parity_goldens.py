"""Our model against what transformers computed (`tests/make_goldens.py`), without transformers."""

import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import real_model

from specjax.models.border import border
from specjax.models.load import load

GOLDENS = pathlib.Path(__file__).parent / "goldens"


def logits(model, params, tokens) -> np.ndarray:
    """Logits [T, V] of one sequence, in one pass."""
    cache = model.init_cache(1, len(tokens))

    @jax.jit
    def run(params, token_BT, cache):
        hidden_BTD, _, _ = model.forward(params, token_BT, cache, jnp.zeros(1, jnp.int32))
        return model.head(params, hidden_BTD)

    return np.asarray(run(params, jnp.asarray(tokens)[None], cache)[0])


def greedy(model, params, prompt, count: int) -> list[int]:
    """`count` greedy tokens, one a pass, through the cache."""
    step = jax.jit(model.forward)
    cache = model.init_cache(1, len(prompt) + count)
    fed, cursor, out = jnp.asarray(prompt)[None], 0, []
    for _ in range(count):
        hidden_BTD, _, cache = step(params, fed, cache, jnp.full(1, cursor, jnp.int32))
        cursor += fed.shape[1]
        out.append(int(jnp.argmax(model.head(params, hidden_BTD[:, -1])[0])))
        fed = jnp.asarray([[out[-1]]])
    return out


def test_every_family_has_a_golden():
    assert {folder.name.split("_")[0] for folder in GOLDENS.iterdir() if folder.is_dir()} == {
        "llama", "mistral", "qwen2", "qwen3", "mixtral", "gemma2", "gemma3", "gpt2", "neox", "phi3",
    }  # fmt: skip


@pytest.mark.parametrize("name", sorted(folder.name for folder in GOLDENS.iterdir() if folder.is_dir()))
def test_tiny_checkpoints(name):
    """Logits, and with them the greedy continuation that the end of the golden's text is."""
    golden = np.load(GOLDENS / name / "golden.npz")
    checkpoint = load(str(GOLDENS / name))
    ours = logits(*border(checkpoint.config, checkpoint.params), golden["tokens"])
    assert np.ptp(golden["logits"]) > 5  # large enough to mean something
    np.testing.assert_allclose(ours, golden["logits"], rtol=0, atol=1e-4)
    if "prompt" in golden:
        new = golden["tokens"][golden["prompt"] :]
        assert len(new) == 40
        np.testing.assert_array_equal(ours[golden["prompt"] - 1 : -1].argmax(1), new)


@pytest.mark.real
def test_real_model():
    golden = np.load(GOLDENS / "smollm2.npz")
    checkpoint = real_model.smollm2()
    model, params = border(checkpoint.config, checkpoint.params)
    ours = logits(model, params, golden["tokens"])
    np.testing.assert_allclose(ours[:, golden["ids"]], golden["logits"], rtol=0, atol=1e-3)
    np.testing.assert_allclose(ours.max(1), golden["row_max"], rtol=0, atol=1e-3)
    np.testing.assert_array_equal(ours.argmax(1), golden["row_argmax"])
    assert greedy(model, params, golden["prompt"], 64) == golden["greedy"].tolist()
