"""The written convention: which rows count, what comes next, what a token sees."""

import jax.numpy as jnp
import numpy as np

from specjax.training.rows import Batch, counts, following, positions, visible

SEGMENT = np.array([[1, 1, 1, 2, 2, 0], [1, 1, 2, 3, 3, 3]], np.int32)
MASK = np.array([[0, 0, 1, 1, 1, 1], [1, 1, 0, 0, 0, 1]], bool)
TOKEN = np.arange(10, 22, dtype=np.int32).reshape(2, 6)
BATCH = Batch(*map(jnp.asarray, (TOKEN, MASK, SEGMENT, positions(jnp.asarray(SEGMENT)))))


def test_a_row_counts_iff_the_next_token_is_of_its_text_and_in_the_mask():
    want = [[0, 1, 0, 1, 0, 0], [1, 0, 0, 0, 1, 0]]  # not: over a text's end, before a token out of the mask, at padding, last column
    np.testing.assert_array_equal(counts(BATCH), np.array(want, bool))


def test_padding_never_counts_even_if_its_mask_is_true():
    padding = Batch(*map(jnp.asarray, (TOKEN, np.ones_like(MASK), np.zeros_like(SEGMENT), np.zeros_like(SEGMENT))))
    assert not counts(padding).any()


def test_following_is_the_token_that_the_row_speaks_of():
    np.testing.assert_array_equal(following(BATCH), [[11, 12, 13, 14, 15, 0], [17, 18, 19, 20, 21, 0]])


def test_a_token_sees_its_own_text_up_to_itself():
    seen_BTT = np.asarray(visible(BATCH))
    for b, t, s in np.ndindex(2, 6, 6):
        assert seen_BTT[b, t, s] == (s <= t and SEGMENT[b, s] == SEGMENT[b, t])


def test_positions_begin_anew_in_every_text():
    np.testing.assert_array_equal(positions(jnp.asarray(SEGMENT)), [[0, 1, 2, 0, 1, 0], [0, 1, 0, 0, 1, 2]])
