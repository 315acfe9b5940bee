"""A draft without branches: its tree, and how a language model drafts it token by token."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from specjax.types import Draft, Draw, Model, Tree


def chain(drafted_B, nodes: int, drawn: str) -> Tree:
    """A chain of `nodes` nodes a row of which the root and the next drafted_B are valid."""
    node_BM = jnp.broadcast_to(jnp.arange(nodes, dtype=jnp.int32), (drafted_B.shape[0], nodes))
    return Tree(
        parent_M=jnp.maximum(node_BM - 1, 0),
        depth_M=node_BM,
        rank_M=jnp.zeros_like(node_BM),
        valid_M=node_BM <= drafted_B[:, None],
        drawn=drawn,
        chain=True,
    )


def _seen(draw: Draw, logits_BV, q_BV, token_BM, depth):
    """The law that a length policy looks at: q, but where every law is one-hot the draft's at temperature 1, which still has doubts."""
    return draw.laws(logits_BV[:, None], token_BM[:, None], depth, ranked=True)[:, 0] if draw.certain else q_BV


def draft_chain(say, memory, vocab: int, dtype, root_B, ask_B, draw: Draw, *, most: int):
    """Feed the root and then each drafted token, until every row has what it asked for or its policy stopped it.

    say: (memory, token_B, depth) -> (logits_BV, memory) after the token at this depth, whose place is depth tokens past the root's.
    vocab, dtype: of the logits' law. Returns (draft, drafted_B, memory): the memory has taken in the root and all drafts but the last.
    """
    B = root_B.shape[0]
    token_BM = jnp.zeros((B, most + 1), jnp.int32).at[:, 0].set(root_B)
    q_BMV = jnp.zeros((B, most + 1, vocab), np.promote_types(dtype, jnp.float32))

    def wants(carry):
        depth, asked_B, *_ = carry
        return jnp.any(depth < asked_B)

    def feed(carry):
        depth, asked_B, token_BM, q_BMV, memory = carry
        token_B = jax.lax.dynamic_index_in_dim(token_BM, depth, axis=1, keepdims=False)
        logits_BV, memory = say(memory, token_B, depth)
        q_BV = draw.law(logits_BV, token_BM, depth)
        more_B = draw.keep_going(_seen(draw, logits_BV, q_BV, token_BM, depth), depth + 1)
        asked_B = jnp.where((depth < asked_B) & ~more_B, depth, asked_B)
        token_BM = jax.lax.dynamic_update_slice_in_dim(token_BM, draw(q_BV, depth + 1)[:, None], depth + 1, axis=1)
        q_BMV = jax.lax.dynamic_update_slice_in_dim(q_BMV, q_BV[:, None].astype(q_BMV.dtype), depth, axis=1)
        return depth + 1, asked_B, token_BM, q_BMV, memory

    carry = (jnp.int32(0), ask_B, token_BM, q_BMV, memory)
    _, drafted_B, token_BM, q_BMV, memory = jax.lax.while_loop(wants, feed, carry)
    return Draft(chain(drafted_B, most + 1, "iid"), token_BM, draw.spread(q_BMV, token_BM)), drafted_B, memory


def speaker(model: Model, params, cursor_B, layers=None):
    """`draft_chain`'s `say` of a language model whose memory is its cache, with cursor_B tokens before the root. layers: a range of the
    model's layers, default all."""

    def say(cache, token_B, depth):
        hidden, _, cache = model.forward(params, token_B[:, None], cache, cursor_B + depth, layers=layers)
        return model.head(params, hidden)[:, 0], cache

    return say
