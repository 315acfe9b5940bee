"""Block verification: the drafts of a chain are judged together, from the last one backwards (Sun et al., 2403.10444)."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from specjax.rules import chain
from specjax.rules.speculative import ratio
from specjax.types import Law, Tree, struct


@struct
class Block:
    """The best rule a chain can have: E[accepted] = sum_i E_q[w_i], at least that of the p/q rule.

    w_0 = 1 and w_i = min(w_(i-1) p(x_i) / q(x_i), 1), from the laws after draft i - 1. The round ends at the *largest* i that is accepted,
    draft i with probability A_i / (A_i + 1 - w_i), A_i = sum (w_i p - q)_+ of the laws after draft i, and the last draft with w_K. It emits
    from norm (w_i p - q)_+ there, after draft K from p.

    A draft that is certain of its tokens (greedy, n-gram) gains nothing. The gain is that a place where p > q makes up for one before it
    where p < q: w rises again. A one-hot q is 1 at every token that is drafted, so that p / q <= 1, w_i = p(x_1) ... p(x_i) never rises,
    and the round ends at i with probability w_i (1 - p(x_(i+1))), as under the p/q rule. With one-hot p a w is 0 for good or 1.
    """

    name = "block"
    exact = True
    one_hot_only = False
    trees = False
    drawn = ("iid", "without_replacement", "fixed")
    needs = "stored q, sampled drafts"
    paper = "Sun et al. 2024, 2403.10444"
    equation = (
        "w_i = min(w_(i-1) p/q, 1), A_i = sum (w_i p - q)_+; accept the last i with u_i < A_i / (A_i + 1 - w_i); emit norm (wp - q)_+"
    )

    def __call__(self, tree: Tree, token_M, p_MV, q_MV) -> Law:
        has_M, q_MV = chain.drafted(tree), chain.draft_law(tree, token_M, q_MV)
        weight_M = weights(chain.at_child(token_M, p_MV), chain.at_child(token_M, q_MV))
        left_MV = jnp.where(has_M[:, None], jnp.maximum(weight_M[:, None] * p_MV - q_MV, 0), 0)
        left_M = jnp.sum(left_MV, axis=-1)
        total_M = left_M + (1 - weight_M)
        # 0 / 0 only where w = 1 and p = q at the next place: a later draft is then accepted for certain
        accept_M = jnp.where(has_M, jnp.where(total_M > 0, left_M / total_M, 1), weight_M)
        accept_M = jnp.where(tree.valid_M, accept_M, 0)
        later_M = jnp.cumprod((1 - accept_M)[::-1])[::-1]  # no draft from m on is accepted
        stop_M = accept_M * jnp.append(later_M[1:], jnp.ones(1, later_M.dtype))
        emit_MV = jnp.where(left_M[:, None] > 0, left_MV / jnp.where(left_M > 0, left_M, 1)[:, None], p_MV)
        return Law(stop_M, jnp.where(tree.valid_M[:, None], emit_MV, 0))


def weights(p_M, q_M):
    """weight_M: w of each node, from the laws at its child."""

    def step(weight, laws):
        p, q = laws
        return ratio(weight * p, q), weight

    return jax.lax.scan(step, jnp.ones_like(p_M[0]), (p_M, q_M))[1]
