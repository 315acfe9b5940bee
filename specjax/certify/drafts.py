"""Every draft that a tree may hold, with its probability under the way of drawing."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from specjax.certify.tables import MOST
from specjax.shapes import Shape

DRAWN = "iid", "without_replacement", "fixed"


class Drafts(NamedTuple):
    """D drafts of M nodes."""

    token_DM: np.ndarray  # 0 at the root and at invalid nodes
    valid_DM: np.ndarray  # a sibling drawn without replacement is invalid where no token with q > 0 is left
    code_DM: np.ndarray  # the tokens on the way to the node, in base V
    weight_D: np.ndarray  # probability, float64


def every(shape: Shape, q: list[np.ndarray], drawn: str, valid_M: np.ndarray) -> Drafts:
    """All drafts of a shape, of which the nodes in valid_M are drawn. q: see `tables.table`.

    Raises:
      ValueError: they are too many.
    """
    vocab = q[0].shape[1] if q else 1
    one = np.zeros((1, shape.nodes), int)
    drafts = Drafts(one, one == np.arange(shape.nodes), one, np.ones(1))
    for node in range(1, shape.nodes):
        law_DV = child_law(shape, drafts, node, q, drawn) if valid_M[node] else np.zeros((len(drafts.weight_D), vocab))
        count = np.count_nonzero(law_DV) + np.sum(law_DV.sum(1) == 0)
        if count * shape.nodes > MOST:
            raise ValueError(f"tree={shape}: with {vocab} tokens it has more than {MOST // shape.nodes} drafts, too many to enumerate")
        drafts = _grown(shape, drafts, node, law_DV)
    return drafts


def child_law(shape: Shape, drafts: Drafts, node: int, q: list[np.ndarray], drawn: str) -> np.ndarray:
    """law_DV from which `node` is drawn, given all nodes before it; zeros where it cannot be."""
    parent, rank = shape.parent_M[node], shape.rank_M[node]
    q_DV = q[shape.depth_M[parent]][drafts.code_DM[:, parent]]
    if drawn == "fixed":
        best_DV = np.argsort(-q_DV, axis=1, kind="stable")  # by probability, the lowest id first on ties
        law_DV = np.eye(q_DV.shape[1])[best_DV[:, rank]] if rank < q_DV.shape[1] else np.zeros_like(q_DV)
    else:
        law_DV = q_DV.copy()
    if drawn == "without_replacement":
        for elder in np.flatnonzero((shape.parent_M == parent) & (np.arange(shape.nodes) < node) & (shape.depth_M > 0)):
            drawn_D = np.flatnonzero(drafts.valid_DM[:, elder])
            law_DV[drawn_D, drafts.token_DM[drawn_D, elder]] = 0
    law_DV *= drafts.valid_DM[:, parent, None]
    mass_D = law_DV.sum(1, keepdims=True)
    return law_DV / np.where(mass_D > 0, mass_D, 1)


def _grown(shape: Shape, drafts: Drafts, node: int, law_DV) -> Drafts:
    """Each draft once for each token that the node may be; once without the node where it is none."""
    none_D = law_DV.sum(1) == 0
    row_D, token_D = np.nonzero(np.concatenate([law_DV, none_D[:, None]], axis=1))
    valid_D = ~none_D[row_D]
    token_D = np.where(valid_D, token_D, 0)
    new = Drafts(*(x[row_D].copy() for x in drafts))
    new.token_DM[:, node], new.valid_DM[:, node] = token_D, valid_D
    new.code_DM[:, node] = new.code_DM[:, shape.parent_M[node]] * law_DV.shape[1] + token_D
    new.weight_D[valid_D] *= law_DV[row_D[valid_D], token_D[valid_D]]
    return new
