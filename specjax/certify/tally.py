"""Whether tokens are drawn from the law that a draft reports: where each stands in that law's order, by chi-squared."""

from __future__ import annotations

import numpy as np

from specjax.certify.chi_squared import p_value
from specjax.types import Draft, Tree

FALSE_ALARM = 1e-6
PLACES = 8  # that are told apart in a law's order, the last one is all the rest
GROUPS = 8  # of tokens that came before


def child_laws(draft: Draft) -> np.ndarray:
    """law_BMV from which each node was drawn, given its parent and its elder siblings; rows of invalid nodes are garbage."""
    law_BMV = np.take_along_axis(draft.q_BMV, draft.tree.parent_M[..., None], axis=1).astype(np.float64)
    if draft.tree.drawn == "without_replacement":
        for row, node, elder in np.argwhere(elders(draft.tree)):
            law_BMV[row, node, draft.token_BM[row, elder]] = 0
        law_BMV /= np.maximum(law_BMV.sum(axis=-1, keepdims=True), 1e-30)
    return law_BMV


def elders(tree: Tree) -> np.ndarray:
    """[B, M, M]: is the second an elder sibling of the first."""
    node_M = np.arange(tree.parent_M.shape[1])
    siblings_BMM = tree.parent_M[:, :, None] == tree.parent_M[:, None, :]
    born_BM = tree.valid_M & (node_M > 0)
    return siblings_BMM & born_BM[:, :, None] & born_BM[:, None, :] & (node_M[:, None] > node_M)


class Tally:
    """Where drafted tokens stood in the order of their laws, and what is expected of them: [M, M, GROUPS, PLACES], of each node given the
    token of each node before it."""

    def __init__(self, nodes: int):
        self.count, self.expected = np.zeros((2, nodes, nodes, GROUPS, PLACES))

    @property
    def draws(self) -> int:
        return int(self.count[:, 0].sum())

    def add(self, draft: Draft) -> None:
        tree, token_BM, q_BMV = draft
        if q_BMV is None:
            return
        node_M = np.arange(token_BM.shape[1])
        row, node = np.nonzero(tree.valid_M & (node_M > 0))
        place_D, chance_DP = places(child_laws(draft)[row, node], token_BM[row, node])
        group_BM = np.where(tree.valid_M, token_BM, 0) % GROUPS
        for before in node_M[:-1]:
            later = node > before
            at = node[later], before, group_BM[row[later], before]
            np.add.at(self.count, (*at, place_D[later]), 1)
            np.add.at(self.expected, at, chance_DP[later])

    def p_value(self) -> float:
        """The least of all nodes', each given nothing and given each node before it, times their number."""
        values = [1.0]
        for node in range(1, len(self.count)):
            count, expected = self.count[node, :node], self.expected[node, :node]
            values.append(p_value(count[0].sum(0, keepdims=True), expected[0].sum(0, keepdims=True)))
            values += map(p_value, count, expected)
        return min(1.0, len(values) * min(values))

    def fault(self) -> str:
        if (value := self.p_value()) >= FALSE_ALARM:
            return ""
        return f"q is not the law that tokens are drawn from: p-value {value:.1e} over {self.draws} draws"


def places(law_DV, token_D):
    """(place_D, chance_DP): where each token stands among its law's most likely ones, and the chance of each place."""
    order_DV = np.argsort(-law_DV, axis=1, kind="stable")
    place_D = np.argmax(order_DV == token_D[:, None], axis=1)
    falling_DV = np.take_along_axis(law_DV, order_DV, axis=1)
    chance_DP = np.zeros((len(law_DV), PLACES))
    head = min(PLACES - 1, law_DV.shape[1])
    chance_DP[:, :head] = falling_DV[:, :head]
    chance_DP[:, -1] += falling_DV[:, head:].sum(axis=1)
    return np.minimum(place_D, PLACES - 1), chance_DP
