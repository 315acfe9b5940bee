"""One rule on one recorded draft: what it expects, exactly. No coin is thrown.

A rule is a law, so what it expects of a draft is a number: tokens = 1 + sum_m stop_m depth_m. A shorter draft is the same draft cut to
a depth: its nodes were drawn before anything below them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from specjax import ancestry, rules, sampling
from specjax.lengths import Fixed
from specjax.rules import Lenient, RecursiveRejection, Speculative
from specjax.types import Tree

LENIENCES = 0.8, 0.5


class Drafts(NamedTuple):
    """N drafts with their whole laws. Tokens and p of nodes that are not valid are zero. q None: every child was certain (one-hot q)."""

    drawn: str
    parent_NM: np.ndarray
    depth_NM: np.ndarray
    rank_NM: np.ndarray
    valid_NM: np.ndarray
    token_NM: np.ndarray
    p_NMV: np.ndarray
    q_NMV: np.ndarray | None = None


class Way(NamedTuple):
    """How drafts are judged: by a rule, of a length. length None: as long as they are."""

    rule: Any
    length: Any = None


class Expected(NamedTuple):
    """What one way expects of N drafts."""

    reach_NK: np.ndarray  # probability that at least 1, 2, ... K drafts are accepted
    full_N: np.ndarray  # that all are, down to the deepest
    drafted_N: np.ndarray  # drafted nodes

    @property
    def tokens_N(self) -> np.ndarray:
        """Of a round, the emitted one counted."""
        return 1 + self.reach_NK.sum(-1, dtype=np.float64)


class Seen(NamedTuple):
    """The same of W ways."""

    reach_WNK: np.ndarray
    full_WN: np.ndarray
    drafted_WN: np.ndarray

    def way(self, i: int) -> Expected:
        return Expected(*(x[i] for x in self))


def see(ways: Sequence[Way], drafts: Drafts) -> Seen:
    """What each way expects of each draft."""
    made = [[_see(way, *_row(drafts, n)) for way in ways] for n in range(len(drafts.valid_NM))]
    reach, full, drafted = ([[seen[i] for seen in row] for row in made] for i in range(3))
    return Seen(*(np.asarray(x).swapaxes(0, 1) for x in (reach, full, drafted)))


def _see(way: Way, tree: Tree, token_M, p_MV, q_MV):
    valid_M = tree.valid_M & (tree.depth_M <= _depth(way.length, tree, q_MV))
    reach_K = np.asarray(_reach(way.rule, dataclasses.replace(tree, valid_M=valid_M), token_M, p_MV, q_MV))
    deepest = int(np.max(np.where(valid_M, tree.depth_M, 0)))
    return reach_K, reach_K[deepest - 1] if deepest else 0.0, int(valid_M.sum()) - 1


def _row(drafts: Drafts, n: int):
    """One draft as a rule sees it: (tree, token_M, p_MV, q_MV)."""
    parent_M, depth_M, rank_M, valid_M, token_M, p_MV = (x[n] for x in drafts[1:7])
    chain = bool((parent_M == np.maximum(np.arange(len(parent_M)) - 1, 0)).all())
    tree = Tree(parent_M=parent_M, depth_M=depth_M, rank_M=rank_M, valid_M=valid_M, drawn=drafts.drawn, chain=chain)
    if drafts.q_NMV is not None:
        return tree, token_M, jnp.asarray(p_MV), jnp.asarray(drafts.q_NMV[n])
    first_M = jnp.argmax(ancestry.children(jax.tree.map(lambda x: jnp.asarray(x)[None], tree))[0], axis=-1)  # as the loop fills it in
    return tree, token_M, jnp.asarray(p_MV), sampling.one_hot(jnp.asarray(token_M)[first_M], jnp.asarray(p_MV))


@jax.jit
def _reach(rule, tree: Tree, token_M, p_MV, q_MV):
    stop_M = rule(tree, token_M, p_MV, q_MV).stop_M
    place_K = jnp.arange(1, len(stop_M), dtype=tree.depth_M.dtype)
    return jnp.sum(jnp.where(tree.depth_M[None] >= place_K[:, None], stop_M[None], 0), axis=-1)


def _depth(length, tree: Tree, q_MV) -> int:
    """How deep a policy without a state of its own would have drafted."""
    deepest = int(np.max(np.where(tree.valid_M, tree.depth_M, 0)))
    if length is None:
        return deepest
    asked = int(length.choose(None, jnp.asarray([deepest], jnp.int32))[0])
    for depth in range(1, asked + 1) if tree.chain and not isinstance(length, Fixed) else ():
        if not bool(length.keep_going(None, q_MV[depth - 1][None], depth)[0]):
            return depth - 1
    return asked


# ---------------------------------------------------------------- which rules


def judges(rule, drawn: str, branches: bool) -> bool:
    """Whether a rule is made for drafts drawn in this way, of a target that samples."""
    shape = getattr(rule, "trees", False) or not branches
    return shape and not getattr(rule, "one_hot_only", False) and drawn in getattr(rule, "drawn", (drawn,))


def usual() -> list:
    """Every rule that can be made without numbers, the p/q rule of chains and that of trees first, and some leniences."""
    found = [Speculative(), RecursiveRejection()]
    for kind in rules.ALL:
        try:
            found.append(kind())
        except TypeError:  # it needs numbers
            continue
    return [*found, *(Lenient(lenience=x) for x in LENIENCES)]


def label(part) -> str:
    """A rule or length, with its numbers where they are not the usual ones."""
    fields = dataclasses.fields(part) if dataclasses.is_dataclass(part) else ()
    numbers = [f"{f.name}={getattr(part, f.name)}" for f in fields if getattr(part, f.name) is not f.default]
    return " ".join([getattr(part, "name", type(part).__name__), *numbers])
