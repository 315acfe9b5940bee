"""Laws of the target: whole, the likeliest with the rest, and in a reduced vocabulary."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.training import targets
from specjax.training.targets import place_of

full, top, reduced = jax.jit(targets.full), jax.jit(targets.top, static_argnums=1), jax.jit(targets.reduced, static_argnums=2)
P = np.array([0.05, 0.3, 0.15, 0.3, 0.2])
LOGITS = jnp.log(jnp.asarray(P, jnp.float32))[None] + 3


def close(law, p, ids, rest):
    np.testing.assert_allclose(law.p_XN[0], p, atol=1e-6)
    assert (law.id_XN is None) == (ids is None) and (ids is None or law.id_XN[0].tolist() == ids)
    np.testing.assert_allclose(law.rest_X[0], rest, atol=1e-6)


def test_the_whole_law_names_all_and_nothing_rests():
    close(full(LOGITS), P, None, 0)
    assert float(full(LOGITS).rest_X[0]) == 0


def test_the_likeliest_come_first_and_the_lower_id_among_equals():
    close(top(LOGITS, 3), [0.3, 0.3, 0.2], [1, 3, 4], 0.2)


def test_nothing_rests_of_all_tokens_and_a_small_rest_is_not_lost_in_rounding():
    assert float(top(LOGITS, 5).rest_X[0]) == 0
    law = top(jnp.asarray([[0.0, -25.0, -26.0]]), 1)  # 1 - p would be 0 in float32
    np.testing.assert_allclose(law.rest_X[0], np.exp(-25) + np.exp(-26), rtol=1e-5)


def test_laws_are_float32_of_bfloat16_logits():
    logits = jnp.asarray([[0.0, 1.0, 2.0]], jnp.bfloat16)
    assert full(logits).p_XN.dtype == top(logits, 2).p_XN.dtype == top(logits, 2).rest_X.dtype == jnp.float32
    np.testing.assert_allclose(full(logits).p_XN[0], np.exp([0, 1, 2]) / np.exp([0, 1, 2]).sum(), rtol=1e-6)


@pytest.mark.parametrize("m", [0, 6])
def test_a_number_of_tokens_that_is_not_there_is_refused(m):
    with pytest.raises(ValueError, match=f"top={m} must be between 1 and 5"):
        top(LOGITS, m)


def test_what_the_draft_cannot_say_is_lost():
    place_V = place_of([1, 2, 4], 5)
    assert place_V.tolist() == [3, 0, 1, 3, 2] and place_V.dtype == np.int32
    close(reduced(full(LOGITS), place_V, 3), [0.3, 0.15, 0.2], None, 0.35)
    close(reduced(top(LOGITS, 3), place_V, 3), [0.3, 0, 0.2], [0, 3, 2], 0.2)
    np.testing.assert_allclose(reduced(top(LOGITS, 3), place_V, 3).lost_X[0], 0.3, atol=1e-6)


def test_all_tokens_in_order_change_nothing():
    place_V = place_of(None, 5)
    close(reduced(full(LOGITS), place_V, 5), P, None, 0)
    close(reduced(top(LOGITS, 3), place_V, 5), [0.3, 0.3, 0.2], [1, 3, 4], 0.2)
