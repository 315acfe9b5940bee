"""Shapes of drafts that branch: which node hangs where, before anything is drawn.

A shape is named by widths ('2x2x1': two children of the root, two of each of those, then one) or by a list of paths, as SpecInfer
(2305.09781), Medusa (2401.10774) and Sequoia (2402.12374) give theirs: path (0, 1) is the second child of the root's first child.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import operator
import re
from collections.abc import Iterable, Sequence

import numpy as np

MOST = 4096  # drafted nodes: each is unrolled or held at once


@dataclasses.dataclass(frozen=True)
class Shape:
    """paths: one for each drafted node, by depth and then in order; every parent and every elder sibling of a path is there too."""

    paths: tuple[tuple[int, ...], ...]

    @property
    def nodes(self) -> int:
        """M, the root included."""
        return len(self.paths) + 1

    @property
    def depth(self) -> int:
        return len(self.paths[-1]) if self.paths else 0

    @property
    def chain(self) -> bool:
        return all(rank == 0 for path in self.paths for rank in path)

    @functools.cached_property
    def parent_M(self) -> np.ndarray:
        place = {path: node for node, path in enumerate([(), *self.paths])}
        return np.asarray([0, *(place[path[:-1]] for path in self.paths)], np.int32)

    @functools.cached_property
    def depth_M(self) -> np.ndarray:
        return np.asarray([0, *map(len, self.paths)], np.int32)

    @functools.cached_property
    def rank_M(self) -> np.ndarray:
        return np.asarray([0, *(path[-1] for path in self.paths)], np.int32)

    def __str__(self) -> str:
        return " ".join(".".join(map(str, path)) for path in self.paths)


def chain(most: int) -> Shape:
    """One path of so many drafts."""
    return Shape(tuple((0,) * depth for depth in range(1, most + 1)))


def parse(given: str | Shape | Iterable) -> Shape:
    """A shape from its name '2x2x1', its widths (2, 2, 1), or its paths [(0,), (1,), (0, 0)].

    Raises:
      ValueError: it is none, or a path lacks its parent or an elder sibling.
    """
    if isinstance(given, Shape):
        return given
    wrong = ValueError(f"tree={given!r} must be widths like '2x2x1', or a list of paths")
    if isinstance(given, str):
        if not re.fullmatch(r"[1-9]\d*(x[1-9]\d*)*", given):
            raise wrong
        return _of_widths([int(width) for width in given.split("x")])
    if not isinstance(given, Iterable):
        raise wrong
    given = list(given)
    if given and all(isinstance(entry, int | np.integer) for entry in given):
        return _of_widths(given)
    if not all(isinstance(path, Iterable) for path in given):
        raise wrong
    return _of_paths([tuple(path) for path in given])


def _of_widths(widths: Sequence[int]) -> Shape:
    if min(widths) < 1:
        raise ValueError(f"tree={tuple(widths)}: each width must be at least 1")
    for drafted in itertools.accumulate(itertools.accumulate(map(int, widths), operator.mul)):
        if drafted > MOST:  # before they are all made
            raise ValueError(f"tree={'x'.join(map(str, widths))} has more than {MOST} nodes")
    level, paths = [()], []
    for width in widths:
        level = [(*path, rank) for path in level for rank in range(width)]
        paths += level
    return Shape(tuple(paths))


def _of_paths(paths: Sequence[tuple]) -> Shape:
    for path in paths:
        if not path or not all(isinstance(rank, int | np.integer) and rank >= 0 for rank in path):
            raise ValueError(f"tree: path {path!r} must be whole numbers of at least 0, at least one")
    known = set(paths)
    for path in paths:
        elder = (*path[:-1], path[-1] - 1) if path[-1] else path[:-1]
        if elder and elder not in known:
            raise ValueError(f"tree: path {path!r} is there without {elder!r}")
    if not paths or len(known) < len(paths):
        raise ValueError(f"tree={list(paths)!r} must be at least one path, each once")
    return Shape(tuple(sorted(known, key=lambda path: (len(path), path))))
