"""The best static tree for given acceptance rates, and the size that pays most.

Chen et al., "Sequoia: Scalable, Robust, and Hardware-aware Speculative Decoding" (2402.12374), section 4.1 and appendix A: dynamic
programming over sizes, then the size by measured cost. Here a rate depends on the depth too, and so does the cost of drafting.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import numpy as np

from specjax.shapes import Shape


class BestTree(NamedTuple):
    shape: Shape
    tokens: float  # expected to be committed in a round, the emitted one counted
    cost: float = 1.0  # of a round, in plain target steps

    @property
    def speedup(self) -> float:
        return self.tokens / self.cost


def expected_tokens_of_tree(shape: Shape, rate_DR) -> float:
    """1 + the sum over drafted nodes of the product of the rates on the way to them.

    rate_DR[d - 1, r]: probability that the child of rank r at depth d is the accepted one, given that its parent was.
    """
    rate_DR = _rates(rate_DR)
    return 1.0 + float(sum(np.prod([rate_DR[d, r] for d, r in enumerate(path)]) for path in shape.paths))


def best_tree_of(drafted: int, rate_DR, depth: int | None = None) -> BestTree | None:
    """The tree of exactly so many drafted nodes with the most expected tokens, not deeper than `depth` (default D).

    None: no tree of R children a node and that depth has so many. Its cost is left at a plain step.
    """
    rate_DR = _rates(rate_DR)
    return _best(_tables(rate_DR, drafted, len(rate_DR) if depth is None else depth), drafted)


def best_tree(rate_DR, v: Mapping[int, float] | Callable[[int], float], c: float, most: int) -> BestTree:
    """The tree of at most so many drafted nodes with the most expected tokens / (v(M) + c depth); the smallest on ties.

    v: cost of a verification of M nodes, the root counted, in plain steps: a function of M, or a mapping from the widths a pass can
    have (the rungs of a ladder), of which the narrowest that holds M is taken. c: of drafting one level, whatever its width. A tree
    without drafts (plain decoding) is the answer where nothing pays.
    """
    rate_DR, best = _rates(rate_DR), BestTree(Shape(()), 1.0)
    if isinstance(v, Mapping):
        if not v:
            raise ValueError("v={} must have the cost of at least one width")
        most = min(most, max(v) - 1)
    for depth in range(1, len(rate_DR) + 1):
        tables = _tables(rate_DR, most, depth)
        for drafted in range(1, most + 1):
            found = _best(tables, drafted)
            if found is not None:
                found = found._replace(cost=_cost(v, drafted + 1) + c * found.shape.depth)
                best = max(best, found, key=lambda tree: tree.speedup)  # the first on ties
    return best


def rates_from_trees(parent_NM, valid_NM, stop_N) -> np.ndarray:
    """rate_DR as measured in N rounds: of the rounds that ended at or under a node whose child of that rank was drafted, the share
    that ended at or under the child. NaN where there was none.

    parent_NM, valid_NM: the drafted trees, see `specjax.types.Tree`; stop_N: the node where the rule ended the round, before any cut.
    """
    parent_NM, valid_NM, stop_N = np.asarray(parent_NM, int), np.asarray(valid_NM, bool), np.asarray(stop_N, int)
    rounds_N, nodes = np.arange(len(stop_N)), parent_NM.shape[1]
    depth_NM, rank_NM, path_NM = np.zeros_like(parent_NM), np.zeros_like(parent_NM), np.zeros_like(valid_NM)
    for m in range(1, nodes):
        elder_NM = valid_NM[:, 1:m] & (parent_NM[:, 1:m] == parent_NM[:, m : m + 1])
        depth_NM[:, m], rank_NM[:, m] = 1 + depth_NM[rounds_N, parent_NM[:, m]], elder_NM.sum(1)
    path_NM[rounds_N, stop_N] = True
    for m in reversed(range(1, nodes)):
        path_NM[rounds_N, parent_NM[:, m]] |= path_NM[:, m]
    asked_NM = valid_NM & np.take_along_axis(path_NM, parent_NM, axis=1) & (depth_NM > 0)
    if not asked_NM.any():
        raise ValueError("nothing was drafted in these rounds, so they have no rates")
    size = depth_NM[asked_NM].max(), rank_NM[asked_NM].max() + 1
    asked_DR, kept_DR = np.zeros(size), np.zeros(size)
    np.add.at(asked_DR, (depth_NM[asked_NM] - 1, rank_NM[asked_NM]), 1)
    np.add.at(kept_DR, (depth_NM[asked_NM] - 1, rank_NM[asked_NM]), path_NM[asked_NM])
    return np.divide(kept_DR, asked_DR, out=np.full(size, np.nan), where=asked_DR > 0)


class _Table(NamedTuple):
    """Of the children of one node at some depth, rank r and younger: the most they add to it with n nodes in all, and how."""

    gain_RN: np.ndarray  # -inf where there is no such tree; row R has no children
    size_RN: np.ndarray  # nodes of the subtree under the child of rank r, that child counted


def _tables(rate_DR, most: int, depth: int) -> list[_Table]:
    """Tables of the nodes at depth 0, 1, ..., `depth`: those at the last one have no children."""
    tables = [_table(np.zeros(0), None, most)]
    for rate_R in rate_DR[:depth][::-1]:
        tables.append(_table(rate_R, tables[-1], most))
    return tables[::-1]


def _table(rate_R, below: _Table | None, most: int) -> _Table:
    gain_RN = np.full((len(rate_R) + 1, most + 1), -np.inf)
    gain_RN[:, 0] = 0
    size_RN = np.zeros(gain_RN.shape, int)
    for rank in reversed(range(len(rate_R))):
        child_N = np.full(most + 1, -np.inf)  # what a subtree of n nodes under this child adds, the child counted
        there = np.flatnonzero(np.isfinite(below.gain_RN[0, :most]))
        child_N[there + 1] = rate_R[rank] * (1 + below.gain_RN[0, there])
        for n in range(1, most + 1):
            sum_N = child_N[1 : n + 1] + gain_RN[rank + 1, n - 1 :: -1]
            size_RN[rank, n] = 1 + np.argmax(sum_N)
            gain_RN[rank, n] = sum_N.max()
    return _Table(gain_RN, size_RN)


def _best(tables: list[_Table], drafted: int) -> BestTree | None:
    gain = tables[0].gain_RN[0, drafted]
    if not np.isfinite(gain):
        return None
    return BestTree(Shape(tuple(sorted(_paths(tables, drafted, ()), key=lambda path: (len(path), path)))), 1.0 + float(gain))


def _paths(tables: list[_Table], drafted: int, above: tuple) -> Iterator[tuple]:
    """Paths of the nodes under the one at path `above`, of which there are so many."""
    rank = 0
    while drafted:
        size = int(tables[0].size_RN[rank, drafted])
        yield (*above, rank)
        yield from _paths(tables[1:], size - 1, (*above, rank))
        rank, drafted = rank + 1, drafted - size


def _cost(v, nodes: int) -> float:
    return v[min(width for width in v if width >= nodes)] if isinstance(v, Mapping) else v(nodes)


def _rates(rate_DR) -> np.ndarray:
    rate_DR = np.asarray(rate_DR, np.float64)
    if rate_DR.ndim != 2 or not rate_DR.size:
        raise ValueError(f"rates have shape {rate_DR.shape}: they must be a table of at least one depth and one rank")
    for depth, rank in np.argwhere(~((rate_DR >= 0) & (rate_DR <= 1))):
        raise ValueError(f"rate {rate_DR[depth, rank]} at depth {depth + 1}, rank {rank}, must be between 0 and 1")
    for depth in np.flatnonzero(rate_DR.sum(1) > 1 + 1e-9):
        raise ValueError(
            f"rates at depth {depth + 1} sum to {rate_DR[depth].sum():g}: only one of the siblings is accepted, so at most to 1"
        )
    return rate_DR
