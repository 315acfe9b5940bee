"""Relaxed acceptance: keep what is among the target's n most likely tokens and not far behind the first (TensorRT-LLM, 2025)."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from specjax.rules import chain
from specjax.rules.numbers import within
from specjax.sampling import first_argmax, one_hot
from specjax.types import Array, Law, Tree, struct

FEW = 64


@struct
class Relaxed:
    """Accept x iff fewer than `top` tokens are likelier and p(x) >= max p - delta; else, and after the last draft, emit argmax p.

    TensorRT-LLM's `relaxed_topk` and `relaxed_delta`, which it applies while a model thinks; here to the whole output. Not exact; greedy up
    to ties at top = 1 or delta = 0.

    Raises:
      ValueError: top is not a whole number of at least 1, or delta not between 0 and 1.
    """

    top: int | Array = 10
    delta: float | Array = 0.6

    name = "relaxed"
    exact = False
    one_hot_only = False
    trees = False
    drawn = ("iid", "without_replacement", "fixed")
    needs = "nothing"
    paper = "TensorRT-LLM 2025, relaxed acceptance for DeepSeek-R1's MTP"
    equation = "accept iff x is in the target's top n and p >= max p - delta; else emit argmax p"

    def __post_init__(self):
        within("top", self.top, 1, 2**31 - 1)
        if self.top % 1:
            raise ValueError(f"rule.top={self.top} must be a whole number")
        within("delta", self.delta, 0, 1)

    def __call__(self, tree: Tree, token_M, p_MV, q_MV) -> Law:
        p_M, best_MV = chain.at_child(token_M, p_MV), one_hot(first_argmax(p_MV), p_MV)
        likelier_M = jnp.sum(p_MV > p_M[:, None], axis=-1, dtype=jnp.int32)
        accept_M = (likelier_M < jnp.asarray(self.top, jnp.int32)) & (p_M >= self.near(p_MV)[:, 0])
        return chain.law(tree, accept_M.astype(p_MV.dtype), best_MV, best_MV)

    def near(self, p_MV):
        """[M, 1]: how likely a token must be to be near the likeliest."""
        return jnp.max(p_MV, axis=-1, keepdims=True) - jnp.asarray(self.delta).astype(p_MV.dtype)

    def token_law(self, p_MV, q_MV):
        top_MV = p_MV >= largest(p_MV, jnp.asarray(self.top, jnp.int32))
        return chain.token_law(jnp.where(top_MV & (p_MV >= self.near(p_MV)), q_MV, 0), one_hot(first_argmax(p_MV), p_MV))


def largest(p_MV, place):
    """[M, 1]: the largest entry at `place` of each row, 1 the first; the least one past the last. Few are found without a sort, which
    takes longer than a pass of a small model does."""
    V = p_MV.shape[-1]
    among = lambda falling_MX: jnp.take(falling_MX, jnp.minimum(place, falling_MX.shape[-1]) - 1, axis=-1)[:, None]
    few, all_ = lambda: among(jax.lax.top_k(p_MV, min(FEW, V))[0]), lambda: among(jnp.sort(p_MV, axis=-1, descending=True))
    return jax.lax.cond(place <= FEW, few, all_)
