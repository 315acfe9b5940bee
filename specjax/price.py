"""What a rule that is not exact changes: how far the law of its tokens is from the target's.

Speed alone says nothing about such a rule, because the quickest accepts everything. Kullback and Leibler's divergence adds up along a
sequence, so that its mean per token tells how much of the target's law a rule gave away.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from specjax.sampling import one_hot
from specjax.types import Draft, Rule


def kl(rule: Rule, draft: Draft, p_BMV, stop_B, emit_BV):
    """kl_BM of a chain: KL(m || p) in nats at each place that was judged, and at the bonus token's.

    m = rule.token_law(p, q) is the law of the token that a place with a draft gets when it is judged; where the round ended after the last
    draft, at node stop_B, it is emit_BV, mostly p itself. Infinite where m has a token that p excludes: with temperature 0, or outside the
    target's filters. 0 at all other nodes.
    """
    certain = draft.q_BMV is None or draft.tree.drawn == "fixed"
    q_BMV = one_hot(jnp.roll(draft.token_BM, -1, axis=1), p_BMV) if certain else draft.q_BMV
    has_BM = jnp.pad(draft.tree.valid_M[:, 1:], ((0, 0), (0, 1)))
    bonus_BM = ~has_BM & (draft.tree.depth_M == stop_B[:, None])
    m_BMV = jnp.where(has_BM[..., None], jax.vmap(rule.token_law)(p_BMV, q_BMV), emit_BV[:, None])
    kl_BM = jnp.sum(jnp.where(m_BMV > 0, m_BMV * (jnp.log(m_BMV) - jnp.log(p_BMV)), 0), axis=-1)
    return jnp.where(has_BM | bonus_BM, jnp.maximum(kl_BM, 0), 0)  # rounding can make it negative
