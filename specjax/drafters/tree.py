"""A language model drafts a tree of a fixed shape, level by level (SpecInfer, Miao et al., 2305.09781; Sequoia, Chen et al., 2402.12374).

Siblings are drawn i.i.d. (2305.09781; SpecTr, 2310.15141), without replacement by Gumbel top-k (Recursive Speculative Decoding, Jeon et
al., 2402.14160), or are the most likely tokens (`fixed`; Medusa, 2401.10774).
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from specjax import ancestry, ingest, shapes
from specjax.drafters import branching
from specjax.drafters.branching import BranchingState
from specjax.drafters.model import room
from specjax.shapes import Shape
from specjax.types import Draft, Draw, PyTree, Tree, View, static, struct

DRAWN = ("without_replacement", "iid", "fixed")


@struct
class TreeDrafter:
    """model, params: the draft, through the border. shape: as `specjax.shapes.parse` takes it. drawn: how siblings are drawn.

    Where all laws are certain (temperature 0 of target and draft) drawing without replacement would leave one child: there it is `fixed`.

    Raises:
      ValueError: no such way to draw, no such shape, or a node has more children than there are tokens.
    """

    model: object = static()
    params: PyTree
    shape: Shape = static()
    drawn: str = static(default="without_replacement")
    chunk: int = static(default=64)
    name = "tree"
    taps = ()

    def __post_init__(self):
        if self.drawn not in DRAWN:
            raise ValueError(f"drafter.drawn={self.drawn!r} must be one of {', '.join(DRAWN)}")
        object.__setattr__(self, "shape", shapes.parse(self.shape))
        if not self.shape.paths:
            raise ValueError("drafter.shape has no node to draft: take drafter=None for plain decoding")
        if (widest := int(self.shape.rank_M.max()) + 1) > self.model.vocab:
            raise ValueError(f"drafter.shape has {widest} siblings, the draft's vocabulary {self.model.vocab} tokens")

    @property
    def most(self) -> int:
        return self.shape.depth

    @property
    def nodes(self) -> int:
        return self.shape.nodes

    def init(self, params, view: View) -> BranchingState:
        return branching.init(self.model, params, view, self.nodes, self.nodes, self.chunk)

    def offer(self, state: BranchingState):
        return room(self.model, state.target_B, self.most)

    def propose(self, params, state: BranchingState, view: View, root_B, ask_B, draw: Draw):
        level = ingest.level(self.model, params, state.cache, view.token_BS, state.cursor_B, view.cursor_B, ask_B > 0, self.most + 1)
        draft, cache = self._grow(params, level, view, root_B, ask_B, draw)
        slot_BM = jnp.asarray(_levels(self.shape).slot_M)[None]
        return draft, branching.drafted(state, view, draft, ask_B, slot_BM, cache), view

    def observe(self, params, state: BranchingState, committed: View, features):
        return branching.observe(self.model, state, committed, self.most, self.nodes)

    def _drawn(self, draw: Draw) -> str:
        """How siblings are drawn in this loop, as their rule must know it."""
        if self.shape.chain:
            return "fixed" if self.drawn == "fixed" else "iid"
        return "fixed" if draw.certain and self.drawn == "without_replacement" else self.drawn

    def _grow(self, params, cache, view: View, root_B, ask_B, draw: Draw):
        """(draft, cache): feed the nodes of a level that have children, draw these, until every row has what it asked for."""
        levels, drawn, cursor_B = _levels(self.shape), self._drawn(draw), view.cursor_B
        size = view.token_BS.shape[1] + self.nodes
        B, M = root_B.shape[0], self.nodes
        token_BM = jnp.zeros((B, M), jnp.int32).at[:, 0].set(root_B)
        q_BMV = jnp.zeros((B, M, self.model.vocab), np.promote_types(jax.tree.leaves(params)[0].dtype, jnp.float32))

        def wants(carry):
            depth, asked_B, *_ = carry
            return jnp.any(depth < asked_B)

        def grow(carry):
            depth, asked_B, token_BM, likely_BM, q_BMV, cache = carry
            at = jax.tree.map(lambda table: jnp.asarray(table)[depth], levels.by_depth)
            token_BT = token_BM[:, at.node_T]
            mask = ancestry.over_slots(cursor_B, jnp.broadcast_to(at.seen_TN[None], (B, *at.seen_TN.shape)), size)
            position_BT = jnp.broadcast_to((cursor_B + depth)[:, None], token_BT.shape)
            hidden, _, cache = self.model.forward(params, token_BT, cache, cursor_B + at.slot, position_BT=position_BT, mask=mask)
            logits_BTV = self.model.head(params, hidden)
            route_BTM = token_BM[:, at.route_TM]
            q_BTV = draw.laws(logits_BTV, route_BTM, depth)
            ranked = lambda: draw.laws(logits_BTV, route_BTM, depth, ranked=True)
            seen_BV = (ranked() if draw.certain else q_BTV)[:, 0]  # a policy gives one answer a row, from the first path
            asked_B = jnp.where((depth < asked_B) & ~draw.keep_going(seen_BV, depth + 1), depth, asked_B)
            child_BTJ = _siblings(drawn, draw, q_BTV, ranked, at.child_TJ, depth + 1)
            likely_BTJ = ~(jnp.take_along_axis(q_BTV, child_BTJ, axis=-1) <= 0) | (drawn == "fixed")
            put = lambda x_BM, new_BTJ: x_BM.at[:, at.child_TJ.reshape(-1)].set(new_BTJ.reshape(B, -1), mode="drop")
            for t in reversed(range(q_BTV.shape[1])):  # a node that is named again is written first, and then by itself
                q_BMV = jax.lax.dynamic_update_slice_in_dim(q_BMV, q_BTV[:, t : t + 1].astype(q_BMV.dtype), at.node_T[t], axis=1)
            return depth + 1, asked_B, put(token_BM, child_BTJ), put(likely_BM, likely_BTJ), q_BMV, cache

        carry = (jnp.int32(0), ask_B, token_BM, jnp.ones((B, M), bool), q_BMV, cache)
        _, drafted_B, token_BM, likely_BM, q_BMV, cache = jax.lax.while_loop(wants, grow, carry)
        draft = Draft(self._tree(drafted_B, likely_BM, drawn), token_BM, None if drawn == "fixed" else q_BMV)
        return draft, cache

    def _tree(self, drafted_B, likely_BM, drawn: str) -> Tree:
        spread = lambda x_M: jnp.broadcast_to(jnp.asarray(x_M)[None], likely_BM.shape)
        parent_BM, depth_BM = spread(self.shape.parent_M), spread(self.shape.depth_M)
        lost_BM = jnp.any(ancestry.ancestors(parent_BM) & ~likely_BM[:, None, :], axis=-1)  # a node without q > 0 takes all below it
        valid_BM = (depth_BM <= drafted_B[:, None]) & ~lost_BM
        return Tree(
            parent_M=parent_BM, depth_M=depth_BM, rank_M=spread(self.shape.rank_M), valid_M=valid_BM, drawn=drawn, chain=self.shape.chain
        )


def _siblings(drawn: str, draw: Draw, q_BTV, ranked, child_TJ, depth):
    """child_BTJ: the tokens of J children of each of T nodes."""
    count = child_TJ.shape[1]
    if drawn == "fixed":
        likely_BTJ, child_BTJ = jax.lax.top_k(ranked(), count)
        return jnp.where(jnp.isnan(likely_BTJ), -1, child_BTJ)  # no token: the loop names a draft without a law
    if drawn == "iid":
        return jnp.stack([draw(q_BTV, child_TJ[:, j], depth) for j in range(count)], axis=-1)
    return draw.several(q_BTV, child_TJ[:, 0], count, depth)


class _At(NamedTuple):
    """Of one level, or of all with a first axis of depths; T of its nodes are fed, those that have children."""

    node_T: np.ndarray  # a level with fewer names its last one again
    slot: np.ndarray  # of the first of them, from the root's slot on
    seen_TN: np.ndarray  # which of those slots each sees
    route_TM: np.ndarray  # nodes on the way to each, by depth
    child_TJ: np.ndarray  # its children; M where there are no more, or the node was named before


class _Levels(NamedTuple):
    by_depth: _At
    slot_M: np.ndarray  # where each node is fed, -1: it is not


@functools.lru_cache
def _levels(shape: Shape) -> _Levels:
    children = [np.flatnonzero((shape.parent_M == node) & (shape.depth_M > 0)) for node in range(shape.nodes)]
    fed = [node for node in range(shape.nodes) if len(children[node])]
    slot_M = np.full(shape.nodes, -1, np.int32)
    slot_M[fed] = np.arange(len(fed))
    routes = {0: [0]}
    for node in range(1, shape.nodes):
        routes[node] = [*routes[int(shape.parent_M[node])], node]
    by_level = [[node for node in fed if shape.depth_M[node] == depth] for depth in range(shape.depth)]
    widest, most = max(map(len, by_level)), max(map(len, children))
    levels = []
    for nodes in by_level:
        slot, nodes = slot_M[nodes[0]], [*nodes, *[nodes[-1]] * (widest - len(nodes))]
        seen_TN = np.zeros((widest, shape.nodes), bool)
        for t, node in enumerate(nodes):
            seen_TN[t, slot_M[routes[node]]] = True
            seen_TN[t, slot + t] = True  # a node that is named again sees both
            seen_TN[t, slot_M[node]] &= slot + t == slot_M[node]
        pad = lambda rows, width, fill: np.asarray([[*row, *[fill] * (width - len(row))] for row in rows], np.int32)
        route_TM = pad([routes[node] for node in nodes], shape.nodes, 0)
        child_TJ = pad([children[node] if node not in nodes[:t] else [] for t, node in enumerate(nodes)], most, shape.nodes)
        levels.append(_At(np.asarray(nodes, np.int32), slot, seen_TN, route_TM, child_TJ))
    return _Levels(_At(*(np.stack(tables) for tables in zip(*levels, strict=True))), slot_M)
