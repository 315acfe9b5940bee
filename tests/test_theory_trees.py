"""The best static tree, against a hand-made table and against every tree there is."""

import functools

import numpy as np
import pytest

from specjax import shapes
from specjax.theory import latency, trees

RATES = np.tile((0.6, 0.2), (4, 1))


@functools.cache
def every_tree(drafted: int, ranks: int) -> frozenset:
    """All trees of so many drafted nodes, as sets of paths: each grows from one that has a node less."""
    if not drafted:
        return frozenset({frozenset()})
    return frozenset(
        tree | {(*above, rank)}
        for tree in every_tree(drafted - 1, ranks)
        for above in {(), *tree}
        for rank in range(ranks)
        if (*above, rank) not in tree and (rank == 0 or (*above, rank - 1) in tree)
    )


def tokens_of(tree, rate_DR):
    return 1 + sum(np.prod([rate_DR[d][r] for d, r in enumerate(path)]) for path in tree)


def depth_of(tree):
    return max(map(len, tree), default=0)


def test_the_tokens_of_a_tree():
    shape = shapes.parse([[0], [1], [0, 0], [0, 1], [1, 0]])
    assert trees.expected_tokens_of_tree(shape, RATES) == pytest.approx(2.4, abs=1e-12)


def test_the_best_tree_of_five():
    best = trees.best_tree_of(5, RATES)
    assert set(best.shape.paths) == {(0,), (0, 0), (0, 0, 0), (1,), (0, 0, 0, 0)}
    assert best.tokens == pytest.approx(2.5056, abs=1e-12)
    assert best.shape == shapes.parse(best.shape.paths)  # it is a shape as any other


RANDOM = np.random.default_rng(0).dirichlet((1, 1, 1, 1), 4)[:, :3]  # not descending by rank either: a younger child may be likelier
ZEROS = [[0.0, 0.5], [0.7, 0.0], [0.0, 0.0]]


@pytest.mark.parametrize("rate_DR", [RATES, RANDOM, RANDOM[:2], ZEROS, [[1.0], [0.5]]])
def test_no_tree_of_its_size_and_depth_is_better(rate_DR):
    ranks = len(rate_DR[0])
    for drafted in range(1, 6):
        for depth in range(1, len(rate_DR) + 1):
            there = [tokens_of(tree, rate_DR) for tree in every_tree(drafted, ranks) if depth_of(tree) <= depth]
            best = trees.best_tree_of(drafted, rate_DR, depth)
            if not there:
                assert best is None
                continue
            assert best.tokens == pytest.approx(max(there), abs=1e-12)
            assert best.tokens == pytest.approx(trees.expected_tokens_of_tree(best.shape, rate_DR), abs=1e-12)
            assert best.shape.nodes == drafted + 1
            assert best.shape.depth <= depth


@pytest.mark.parametrize("c", [0.0, 0.05, 0.3, 5.0])
@pytest.mark.parametrize("v", [{1: 1.0, 2: 1.1, 4: 1.2, 6: 1.9}, {1: 1.0, 4: 1.0}, lambda nodes: 0.9 + 0.1 * nodes])
def test_no_tree_of_any_size_pays_more(v, c):
    def speedup(tree):
        nodes = len(tree) + 1
        cost = v(nodes) if callable(v) else v[min(w for w in v if w >= nodes)]
        return tokens_of(tree, RANDOM) / (cost + c * depth_of(tree)) if tree else 1.0

    best = trees.best_tree(RANDOM, v, c, 5)
    most = 5 if callable(v) else min(5, max(v) - 1)
    there = [tree for n in range(most + 1) for tree in every_tree(n, 3) if depth_of(tree) <= len(RANDOM)]
    assert best.speedup == pytest.approx(max(map(speedup, there)), abs=1e-12)
    assert best.speedup == pytest.approx(speedup(frozenset(best.shape.paths)), abs=1e-12)
    assert (best.shape.paths == ()) == (c == 5.0)  # where nothing pays it drafts nothing


def test_of_one_rank_it_is_the_best_chain():
    def v(nodes):
        return {1: 1.0, 4: 1.2, 8: 1.5}[latency.width(nodes - 1, (1, 4, 8))]

    best = trees.best_tree(np.full((7, 1), 0.7), v, 0.05, 7)
    assert best.shape == shapes.chain(3)
    assert best.speedup == pytest.approx(latency.speedup(latency.expected_tokens(0.7, 3), 1.2, 3, 0.05), rel=1e-12)
    assert best == trees.best_tree(np.full((7, 1), 0.7), {1: 1.0, 4: 1.2, 8: 1.5}, 0.05, 99)


@pytest.mark.parametrize(
    ("rate_DR", "says"),
    [
        ([0.6, 0.2], "rates have shape (2,): they must be a table of at least one depth and one rank"),
        ([[]], "rates have shape (1, 0)"),
        ([[0.6, 0.2], [0.6, 1.5]], "rate 1.5 at depth 2, rank 1, must be between 0 and 1"),
        ([[-0.1]], "rate -0.1 at depth 1, rank 0, must be between 0 and 1"),
        ([[np.nan]], "rate nan at depth 1"),
    ],
)
def test_rates_that_are_none(rate_DR, says):
    with pytest.raises(ValueError) as error:
        trees.best_tree(rate_DR, {1: 1.0}, 0.1, 3)
    assert says in str(error.value)


def test_no_costs():
    with pytest.raises(ValueError, match=r"v=\{\} must have the cost of at least one width"):
        trees.best_tree(RATES, {}, 0.1, 3)


def test_rates_of_trees():
    """Nodes 0 -> (1, 2), 1 -> (3, 4), 2 -> 5, in four rounds; node 4 was not drafted in the last, and a dead sibling has no rank."""
    parent_NM = [[0, 0, 0, 1, 1, 2]] * 4
    valid_NM = [[1] * 6, [1] * 6, [1] * 6, [1, 1, 1, 1, 0, 1]]
    rate_DR = trees.rates_from_trees(parent_NM, valid_NM, [0, 4, 5, 1])
    # depth 1: four rounds, kept 1, 2, 1; depth 2 under node 1 in two rounds (one has no 4), under node 2 in one
    np.testing.assert_array_equal(rate_DR, [[2 / 4, 1 / 4], [1 / 3, 1 / 1]])


def test_rates_of_chains_are_those_of_their_rounds():
    drafted_N, stop_N = np.array([3, 2, 0, 3, 1]), np.array([3, 1, 0, 0, 1])
    parent_NM = np.tile(np.maximum(np.arange(6) - 1, 0), (5, 1))
    rate_DR = trees.rates_from_trees(parent_NM, np.arange(6) <= drafted_N[:, None], stop_N)
    np.testing.assert_array_equal(rate_DR[:, 0], latency.rates_from_rounds(drafted_N, stop_N, 3)[1])


def test_no_drafts_have_no_rates():
    with pytest.raises(ValueError, match="nothing was drafted in these rounds"):
        trees.rates_from_trees([[0, 0]], [[1, 0]], [0])


def test_siblings_of_which_more_than_one_would_be_accepted_are_refused():
    with pytest.raises(ValueError, match=r"rates at depth 1 sum to 1.8: only one of the siblings is accepted"):
        trees.best_tree([[0.9, 0.9]], {1: 1.0, 4: 1.2}, 0.0, 3)
