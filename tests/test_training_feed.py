"""The feed: every row once a round in another order each time, sources by their shares, and exactly on where it stopped."""

import itertools

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from specjax.training.feed import feed
from specjax.training.pack import Packed
from specjax.training.scores import Rows
from specjax.training.targets import TargetLaw


def rows(numbers, kept=None):
    token_NT = np.broadcast_to(np.asarray(numbers, np.int32)[:, None], (len(numbers), 3)).copy()
    return Rows(Packed(token_NT, token_NT > 0, np.ones_like(token_NT), token_NT), kept)


class Kept:
    def __getitem__(self, n):
        law = TargetLaw(np.full((3, 2), n, np.float32), np.full((3, 2), n, np.int32), np.full(3, n, np.float32))
        return (np.full((3, 4), n, ml_dtypes.bfloat16),), law


def tokens(iterator, count):
    return [batch.token_BT[:, 0].tolist() for batch in itertools.islice(iterator, count)]


def test_each_row_once_a_round_in_another_order():
    seen = np.reshape(tokens(feed([(rows(range(10)), 1.0)], 5, 0), 6), (3, 10)).tolist()
    assert [sorted(round) for round in seen] == [list(range(10))] * 3
    assert len({tuple(round) for round in seen}) == 3
    assert tokens(feed([(rows(range(10)), 1.0)], 5, 1), 2) != tokens(feed([(rows(range(10)), 1.0)], 5, 0), 2)


@pytest.mark.parametrize("shares", [(1.0, 1.0), (1.0, 3.0), (9.0, 3.0)])
def test_rows_of_all_sources_by_their_shares(shares):
    """A small source is not repeated more often than a large one, unless it is asked for."""
    seen = np.ravel(tokens(feed([(rows(range(10)), shares[0]), (rows(range(100, 102)), shares[1])], 4, 0), 60))
    counts = np.bincount(seen)
    first, other = counts[:10], counts[100:]
    assert np.ptp(first) <= 1 and np.ptp(other) <= 1
    assert abs(first.mean() / other.mean() - shares[0] / shares[1]) < 0.1 * shares[0] / shares[1]


def test_batches_of_one_row():
    assert sorted(np.ravel(tokens(feed([(rows(range(5)), 1.0), (rows([7]), 2.0)], 1, 0), 7))) == [0, 1, 2, 3, 4, 7, 7]


def test_a_batch_is_of_numpy_and_whole():
    batch = next(feed([(rows(range(5), Kept()), 1.0)], 2, 0))
    assert all(isinstance(x, np.ndarray) for x in jax.tree.leaves(batch))
    assert batch.token_BT.shape == (2, 3) and batch.features[0].shape == (2, 3, 4) and batch.law.id_XN.shape == (2, 3, 2)
    assert batch.features[0].dtype == jnp.bfloat16
    assert np.array_equal(batch.law.id_XN[:, 0, 0], batch.token_BT[:, 0]) and np.array_equal(
        batch.features[0][:, 0, 0].astype(int), batch.token_BT[:, 0]
    )
    bare = next(feed([(rows(range(5)), 1.0)], 2, 0))
    assert bare.features == () and bare.law is None


@pytest.mark.parametrize("stop", [0, 1, 7])
def test_it_goes_on_exactly_where_it_stopped(stop):
    sources = [(rows(range(10), Kept()), 0.7), (rows(range(20, 23), Kept()), 0.3)]
    whole = list(itertools.islice(feed(sources, 3, 5), 12))
    first, second = feed(sources, 3, 5), feed(sources, 3, 5)
    for _ in range(stop):
        next(first)
    state = first.get_state()
    next(first)
    second.set_state(state)
    for expected, batch in zip(whole[stop:], second, strict=False):
        jax.tree.map(np.testing.assert_array_equal, batch, expected)
    first.set_state(state)
    jax.tree.map(np.testing.assert_array_equal, next(first), whole[stop])


def test_a_share_of_nothing():
    with pytest.raises(ValueError, match=r"share=0.0 must be above 0"):
        feed([(rows([1]), 1.0), (rows([2]), 0.0)], 1, 0)
