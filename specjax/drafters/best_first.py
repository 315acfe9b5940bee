"""A language model drafts a tree that grows where it is likely, at most M nodes (EAGLE-2, Li et al., 2406.16858).

A node's value is the product of the draft's probabilities on the way to it. Level by level the best few nodes are fed and give their most
likely children; of all that were seen the M - 1 of most value stay. No node is worth more than its parent, so what stays is a tree. The
children of a node are certain once the text is: q plays no part in judging them.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from specjax import ancestry, ingest
from specjax.drafters import branching
from specjax.drafters.branching import BranchingState
from specjax.drafters.model import room
from specjax.types import Draft, Draw, PyTree, Tree, View, static, struct


@struct
class BestFirst:
    """model, params: the draft, through the border. nodes: M, the root included. most: depth of its deepest draft. beam: nodes that are
    fed at a level, and children that each of them offers (EAGLE-2: 60 nodes, depth 6, beam 10).

    Probabilities are the draft's at temperature 1 and without filters, whatever the sampling.

    Raises:
      ValueError: a number is out of range.
    """

    model: object = static()
    params: PyTree
    nodes: int = static(default=16)
    most: int = static(default=5)
    beam: int = static(default=4)
    chunk: int = static(default=64)
    name = "best_first"
    drawn = "fixed"
    taps = ()

    def __post_init__(self):
        if self.most < 1:
            raise ValueError(f"drafter.most={self.most} must be at least 1")
        if not 2 <= self.beam <= self.model.vocab:
            raise ValueError(f"drafter.beam={self.beam} must be from 2 to {self.model.vocab}, the draft's tokens: with one it is a chain")
        seen = self.beam + (self.most - 1) * self.beam**2
        if not self.most + 2 <= self.nodes <= seen + 1:
            raise ValueError(f"drafter.nodes={self.nodes} must be from {self.most + 2} to {seen + 1}, as most and beam allow")

    def init(self, params, view: View) -> BranchingState:
        return branching.init(self.model, params, view, self.nodes, self.most * self.beam, self.chunk)

    def offer(self, state: BranchingState):
        return room(self.model, state.target_B, self.most)

    def propose(self, params, state: BranchingState, view: View, root_B, ask_B, draw: Draw):
        level = ingest.level(self.model, params, state.cache, view.token_BS, state.cursor_B, view.cursor_B, ask_B > 0, self.most + 1)
        pool, cache = self._grow(params, level, view, root_B, ask_B, draw)
        draft, slot_BM = self._choose(*pool)
        return draft, branching.drafted(state, view, draft, ask_B, slot_BM, cache), view

    def observe(self, params, state: BranchingState, committed: View, features):
        return branching.observe(self.model, state, committed, self.most, self.most * self.beam)

    def _grow(self, params, cache, view: View, root_B, ask_B, draw: Draw):
        """((token_BP, parent_BP, value_BP, slot_BP), cache): the pool of all nodes seen, the root first, then level by level.

        Level d + 1 is beam x beam candidates, the children of the level's fed nodes; where fewer are worth anything the rest have value
        -inf. Of the root's level only the first of the fed nodes is one.
        """
        B, beam, most, cursor_B = root_B.shape[0], self.beam, self.most, view.cursor_B
        size, pool = view.token_BS.shape[1] + most * beam, 1 + most * beam**2
        real = np.promote_types(jax.tree.leaves(params)[0].dtype, jnp.float32)
        place_1J = jnp.arange(beam, dtype=jnp.int32)[None]
        row_B1 = jnp.arange(B, dtype=jnp.int32)[:, None]

        def wants(carry):
            depth, asked_B, *_ = carry
            return jnp.any(depth < asked_B)

        def grow(carry):
            depth, asked_B, (index_BJ, value_BJ, route_BJM, seen_BJN), (token_BP, parent_BP, value_BP, slot_BP), cache = carry
            slot_1J = depth * beam + place_1J
            seen_BJN |= (jnp.arange(most * beam, dtype=jnp.int32)[None] == slot_1J.T)[None]
            slot_BP = slot_BP.at[row_B1, index_BJ].set(jnp.broadcast_to(slot_1J, (B, beam)), mode="drop")
            mask = ancestry.over_slots(cursor_B, seen_BJN, size)
            token_BJ = jax.lax.dynamic_index_in_dim(route_BJM, depth, axis=2, keepdims=False)
            position_BJ = jnp.broadcast_to((cursor_B + depth)[:, None], (B, beam))
            hidden, _, cache = self.model.forward(params, token_BJ, cache, cursor_B + depth * beam, position_BT=position_BJ, mask=mask)
            logits_BJV = self.model.head(params, hidden)
            ranked_BJV = draw.laws(logits_BJV, route_BJM, depth, ranked=True)
            seen_BV = (ranked_BJV if draw.certain else draw.laws(logits_BJV, route_BJM, depth))[:, 0]
            more_B = draw.keep_going(seen_BV, depth + 1)  # one answer a row, from the best path
            asked_B = jnp.where((depth < asked_B) & ~more_B, depth, asked_B)

            likely_BJJ, child_BJJ = jax.lax.top_k(ranked_BJV, beam)
            lost_BJJ = jnp.isnan(likely_BJJ)  # such children are no tokens, and stay: the loop names a draft without a law
            child_BJJ = jnp.where(lost_BJJ, -1, child_BJJ)
            worth_BJJ = value_BJ[..., None] + jnp.log(jnp.where(lost_BJJ, 1, likely_BJJ)).astype(real)
            worth_BX = jnp.where((depth < asked_B)[:, None], worth_BJJ.reshape(B, beam**2), -jnp.inf)
            child_BX, begin = child_BJJ.reshape(B, beam**2), 1 + depth * beam**2
            put = lambda all_BP, new_BX: jax.lax.dynamic_update_slice_in_dim(all_BP, new_BX, begin, axis=1)
            grown = put(token_BP, child_BX), put(parent_BP, jnp.repeat(index_BJ, beam, axis=1)), put(value_BP, worth_BX), slot_BP

            value_BJ, best_BJ = jax.lax.top_k(worth_BX, beam)
            from_BJ = best_BJ // beam
            route_BJM = ancestry.along(route_BJM, from_BJ)
            next_BJ1 = jnp.take_along_axis(child_BX, best_BJ, axis=1)[..., None]
            route_BJM = jax.lax.dynamic_update_slice_in_dim(route_BJM, next_BJ1, depth + 1, axis=2)
            front = begin + best_BJ, value_BJ, route_BJM, ancestry.along(seen_BJN, from_BJ)
            return depth + 1, asked_B, front, grown, cache

        lone_1J = place_1J == 0
        front = (
            jnp.broadcast_to(jnp.where(lone_1J, 0, jnp.int32(pool)), (B, beam)),
            jnp.broadcast_to(jnp.where(lone_1J, 0, -jnp.inf).astype(real), (B, beam)),
            jnp.zeros((B, beam, most + 1), jnp.int32).at[:, :, 0].set(root_B[:, None]),
            jnp.zeros((B, beam, most * beam), bool),
        )
        zero_BP = jnp.zeros((B, pool), jnp.int32)
        grown = zero_BP.at[:, 0].set(root_B), zero_BP, jnp.full((B, pool), -jnp.inf, real).at[:, 0].set(jnp.inf), zero_BP - 1
        *_, grown, cache = jax.lax.while_loop(wants, grow, (jnp.int32(0), ask_B, front, grown, cache))
        return grown, cache

    def _choose(self, token_BP, parent_BP, value_BP, slot_BP) -> tuple[Draft, jax.Array]:
        """(draft, slot_BM): the M nodes of most value, in the order of the pool, which is by depth and by rank."""
        pool = token_BP.shape[1]
        value_BM, index_BM = jax.lax.top_k(value_BP, self.nodes)  # equal values: the one that is earlier, so parents come first
        index_BM = jnp.sort(jnp.where(value_BM > -jnp.inf, index_BM, pool), axis=1)
        valid_BM = index_BM < pool
        index_BM = jnp.where(valid_BM, index_BM, 0)
        at = lambda x_BP: ancestry.along(x_BP, index_BM)
        parent_BM = jnp.argmax(index_BM[:, None, :] == at(parent_BP)[..., None], axis=-1).astype(jnp.int32)
        tree = Tree(
            parent_M=parent_BM,
            depth_M=jnp.where(index_BM > 0, 1 + (index_BM - 1) // self.beam**2, 0),
            rank_M=jnp.where(index_BM > 0, (index_BM - 1) % self.beam, 0),
            valid_M=valid_BM,
            drawn=self.drawn,
            chain=False,
        )
        return Draft(tree, at(token_BP), None), jnp.where(valid_BM, at(slot_BP), -1)
