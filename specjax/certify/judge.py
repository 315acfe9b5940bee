"""What a rule says of every draft: one compiled call of it, and whether the answer is a law."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from specjax.certify.drafts import Drafts
from specjax.shapes import Shape
from specjax.types import Law, Tree

CHUNK = 512  # drafts judged in one call, so that a rule is compiled once for each size of tree and vocabulary
GARBAGE = 2**31 - 1  # the token of an invalid node; its laws are NaN


@jax.jit
def _judge(rule, tree, token_DM, p_DMV, q_DMV) -> Law:
    def one(tree, token_M, p_MV, q_MV):
        law = rule(tree, token_M, p_MV, q_MV)
        if not isinstance(law, Law) or (law.stop_M.shape, law.emit_MV.shape) != (token_M.shape, p_MV.shape):
            raise TypeError(f"it must return a Law of stop_M {token_M.shape} and emit_MV {p_MV.shape}, not {law}")
        return law

    return jax.vmap(one)(tree, token_DM, p_DMV, q_DMV)


def judged(rule, shape: Shape, every: Drafts, p, q, drawn: str, nodes: int) -> tuple[Law, str | None]:
    """The rule's law of each draft in float64, zero where it is not finite; and why it is none.

    Raises:
      RuntimeError: the rule raised something.
    """
    inputs = _inputs(shape, every, p, q, drawn, nodes)
    parts = [_asked(_judge, rule, *chunk) for chunk in _chunks(inputs, len(every.weight_D))]
    stop_DM, emit_DMV = (np.concatenate(part).astype(np.float64)[: len(every.weight_D)] for part in zip(*parts, strict=True))
    fault = _fault(every, inputs[0].valid_M, stop_DM, emit_DMV)
    stop_DM, emit_DMV = (np.nan_to_num(x[:, : shape.nodes], posinf=0, neginf=0) for x in (stop_DM, emit_DMV))
    return Law(stop_DM, emit_DMV), fault


def _asked(what, rule, *given):
    try:
        return what(rule, *given)
    except Exception as error:  # whatever a rule of the user's raises
        raise RuntimeError(f"rule {rule.name} raised {type(error).__name__}: {' '.join(str(error).split())[:300]}") from error


def _chunks(inputs, count: int):
    """CHUNK drafts at a time; the last one stands again for what is missing."""
    every_D = np.minimum(np.arange(-(-count // CHUNK) * CHUNK), count - 1)
    for at in np.split(every_D, len(every_D) // CHUNK):
        yield jax.tree.map(lambda x, at=at: x[at], inputs)


def _inputs(shape: Shape, every: Drafts, p, q, drawn: str, nodes: int):
    """Tree, token_DM, p_DMV and q_DMV. NaN stands wherever a rule must not look: at invalid nodes, and in q where no child is drawn."""
    pad = lambda x, fill: np.pad(x, [(0, 0), (0, nodes - shape.nodes)] + [(0, 0)] * (x.ndim - 2), constant_values=fill)
    valid_DM = every.valid_DM
    child_DM = np.zeros_like(valid_DM)
    for node in range(1, shape.nodes):
        child_DM[:, shape.parent_M[node]] |= valid_DM[:, node]
    dtype = jnp.zeros(0).dtype
    p_DMV = _at_nodes(shape, every.code_DM, valid_DM, p).astype(dtype)
    q_DMV = _at_nodes(shape, every.code_DM, child_DM, q, p[0].size).astype(dtype)
    if drawn == "fixed":
        q_DMV = _certain(shape, every, q_DMV)
    index = [np.broadcast_to(x, every.token_DM.shape) for x in (shape.parent_M, shape.depth_M, shape.rank_M)]
    tree = Tree(
        parent_M=pad(index[0], 0), depth_M=pad(index[1], 0), rank_M=pad(index[2], 0), valid_M=pad(valid_DM, False), drawn=drawn, chain=False
    )  # fmt: skip
    token_DM = np.where(valid_DM, every.token_DM, GARBAGE).astype(np.int32)
    return tree, pad(token_DM, GARBAGE), pad(p_DMV, np.nan), pad(q_DMV, np.nan)


def _at_nodes(shape: Shape, code_DM, known_DM, table, vocab=None):
    """The law after each node that is known, NaN at the others."""
    law_DMV = np.full((*code_DM.shape, vocab or table[0].size), np.nan)
    for node, depth in enumerate(shape.depth_M[: code_DM.shape[1]]):
        if depth < len(table):
            law_DMV[:, node] = np.where(known_DM[:, node, None], table[depth][code_DM[:, node]], np.nan)
    return law_DMV


def _certain(shape: Shape, every: Drafts, q_DMV):
    """Of a node with one child, which is certain, q is one-hot. Several children that are certain have no law: q is what they were
    picked by, which a rule must not read."""
    for node in range(1, shape.nodes):
        if np.sum(shape.parent_M[1:] == shape.parent_M[node]) == 1:
            one_hot_DV = np.eye(q_DMV.shape[-1], dtype=q_DMV.dtype)[every.token_DM[:, node]]
            q_DMV[:, shape.parent_M[node]] = np.where(every.valid_DM[:, node, None], one_hot_DV, np.nan)
    return q_DMV


def _fault(every: Drafts, valid_DM, stop_DM, emit_DMV) -> str | None:
    """The first draft for which the answer is no law, in words."""
    close = 1e-5 if jnp.zeros(0).dtype == jnp.float32 else 1e-12
    law = lambda x: (np.abs(x.sum(-1) - 1) < close) & np.all(x >= -close, axis=-1)  # NaN is none
    ends = stop_DM > close
    faults = {
        "stop_M is no law": ~law(stop_DM),
        "the round ends at a node that was not drafted": np.any(ends & ~valid_DM, axis=1),
        "emit_MV is no law where the round may end": np.any(ends & ~law(emit_DMV), axis=1),
    }
    for what, wrong_D in faults.items():
        if wrong_D.any():
            d = int(np.argmax(wrong_D))
            token = [int(t) if v else None for t, v in zip(every.token_DM[d], every.valid_DM[d], strict=True)][1:]
            return f"{what}: draft {token}, stop_M {np.round(stop_DM[d], 6).tolist()}, emit_MV {np.round(emit_DMV[d], 6).tolist()}"
    return None


# ---------------------------------------------------------------- a lossy rule's own law


@jax.jit
def _token_law(rule, p_NMV, q_NMV):
    law_NMV = jax.vmap(rule.token_law)(p_NMV, q_NMV)
    if law_NMV.shape != p_NMV.shape:
        raise TypeError(f"its token_law must return m_MV {p_NMV.shape[1:]}, not {law_NMV.shape[1:]}")
    return law_NMV


def own_law(rule, p, q, judged: int) -> list[np.ndarray]:
    """The rule's own law at the first `judged` places of a chain, and p after them: as tables. Raises as `judged`."""
    if judged == 0:
        return p
    vocab, dtype = p[0].size, jnp.zeros(0).dtype
    path_NM = np.arange(vocab ** (judged - 1))[:, None] // vocab ** np.arange(judged - 1, -1, -1)  # code of each node of each chain
    along = lambda table: np.stack([table[depth][path_NM[:, depth]] for depth in range(judged)], axis=1).astype(dtype)
    law_NMV = np.asarray(_asked(_token_law, rule, along(p), along(q)), np.float64)
    first_N = [np.arange(vocab**depth) * vocab ** (judged - 1 - depth) for depth in range(judged)]  # a chain through each node
    return [*(law_NMV[first, depth] for depth, first in enumerate(first_N)), *p[judged:]]
