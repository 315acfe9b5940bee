"""The doubles that every other test stands on."""

import jax.numpy as jnp
import numpy as np

from specjax.models import toy


def test_a_table_reads_its_context_from_the_cache():
    """Order 2 over 3 tokens: the logits after token b preceded by a are those of table[a, b]."""
    model, params = toy.table(np.random.default_rng(0).dirichlet([1] * 3, (3, 3)), order=2)
    cache = model.init_cache(2, 8)
    _, _, cache = model.forward(params, jnp.asarray([[1, 2], [0, 1]]), cache, jnp.asarray([0, 3]))
    hidden, _, cache = model.forward(params, jnp.asarray([[0], [2]]), cache, jnp.asarray([2, 5]))
    np.testing.assert_array_equal(model.head(params, hidden)[:, 0], params[[2, 1], [0, 2]])
    assert np.asarray(cache)[0, :3].tolist() == [1, 2, 0] and np.asarray(cache)[1, 3:6].tolist() == [0, 1, 2]
    first, _, _ = model.forward(params, jnp.asarray([[2]]), model.init_cache(1, 8), jnp.asarray([0]))
    np.testing.assert_array_equal(model.head(params, first)[0, 0], params[0, 2])


def test_zeros_of_a_table_are_never_drawn():
    _, params = toy.table([0.5, 0.0, 0.5])
    law = np.exp(params - params.max(-1, keepdims=True))
    assert (law[:, 1] == 0).all() and np.isfinite(params).all()


def test_bytes_there_and_back():
    tokenizer = toy.ByteTokenizer()
    assert tokenizer.encode("né") == [110, 195, 169]
    assert tokenizer.decode([110, 195, 169, 256]) == "né" and tokenizer.token(110) == "n" and tokenizer.token(256) == "<end>"
