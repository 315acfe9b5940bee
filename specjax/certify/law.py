"""The exact law of what one round of a rule emits, by enumeration of every draft and every ending.

A rule is a law without randomness, so nothing is drawn here: the sum runs over every draft with its probability, every node where the
round may end and every token emitted there. What a round leaves open of its K + 1 tokens is completed from the target.
"""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np

from specjax import shapes
from specjax.certify import drafts, tables
from specjax.certify.drafts import DRAWN, Drafts
from specjax.certify.judge import judged, own_law
from specjax.shapes import Shape
from specjax.types import Rule


@dataclasses.dataclass(frozen=True)
class Exact:
    """What a round does to the law of the next K + 1 tokens.

    law_S, target_S: probability of every sequence, in the order of its code (its tokens in base V).
    expected_tokens: E[N], the emitted one counted. fault: why the rule's answer is no law at all, or None.
    """

    vocab: int
    places: int  # K + 1
    law_S: np.ndarray
    target_S: np.ndarray
    expected_tokens: float
    fault: str | None

    @property
    def law(self) -> dict[tuple[int, ...], float]:
        """Probability of each sequence that has any."""
        return self._by_sequence(self.law_S)

    @property
    def target(self) -> dict[tuple[int, ...], float]:
        """The same under the target: tokens drawn one by one."""
        return self._by_sequence(self.target_S)

    @property
    def total_variation(self) -> float:
        return float(np.abs(self.law_S - self.target_S).sum() / 2)

    def first(self, law_S) -> np.ndarray:
        """The law of the first token."""
        return law_S.reshape(self.vocab, -1).sum(1)

    def _by_sequence(self, law_S):
        sequences = itertools.product(range(self.vocab), repeat=self.places)
        return {c: float(w) for c, w in zip(sequences, law_S, strict=True) if w != 0}


def exact_law(rule: Rule, p, q, k: int, tree=None, *, drawn=None, valid=None, nodes=None, own=False) -> Exact:
    """Certify one round of `rule` with drafts of depth k.

    p, q: laws [V], or functions of the context (the tuple of tokens since the round began) that give one. tree: what `shapes.parse`
    takes, of depth k; without it a chain. drawn: how siblings are drawn, the rule's usual way without it; 'fixed' ones are the most
    likely tokens of q. valid: [M], the nodes that are drafted, the root included. nodes: M of the buffer that the rule sees, those past
    the tree are invalid. own: the truth is not p but the rule's own `token_law` wherever a place of the chain is judged.

    The rule computes in float32, or float64 where x64 is on; all else is float64.

    Raises:
      ValueError: p or q is no law, the rule does not judge such drafts, or there are too many of them to enumerate.
    """
    shape = shapes.chain(k) if tree is None else shapes.parse(tree)
    if shape.depth != k:
        raise ValueError(f"k={k} is not the depth of tree={shape}, which is {shape.depth}")
    drawn = rule.drawn[0] if drawn is None else drawn
    valid_M = np.ones(shape.nodes, bool) if valid is None else np.asarray(valid, bool)
    p, q = tables.table(p, k + 1, "p"), tables.table(q, k, "q")
    _check(rule, shape, p, q, drawn, valid_M)
    every = drafts.every(shape, q, drawn, valid_M)
    law, fault = judged(rule, shape, every, p, q, drawn, nodes or shape.nodes)
    mass_DM = every.weight_D[:, None] * law.stop_M
    truth = own_law(rule, p, q, int(shape.depth_M[valid_M].max())) if own else p
    return Exact(
        vocab=p[0].size,
        places=k + 1,
        law_S=tables.complete(committed(shape, every, mass_DM, law.emit_MV, k), truth),
        target_S=tables.joint(truth),
        expected_tokens=float(np.sum(mass_DM * (shape.depth_M + 1))),
        fault=fault,
    )


def _check(rule, shape: Shape, p, q, drawn, valid_M) -> None:
    if drawn not in DRAWN or drawn not in rule.drawn:
        raise ValueError(f"drawn={drawn!r}: rule {rule.name} judges children drawn {' or '.join(rule.drawn)}")
    if not (shape.chain or rule.trees):
        raise ValueError(f"tree={shape}: rule {rule.name} judges chains only")
    if q and p[0].size != q[0].size:
        raise ValueError(f"p has {p[0].size} tokens and q {q[0].size}: they must have the same")
    if rule.one_hot_only and not all(np.all(level.max(1) == 1) for level in p):
        raise ValueError(f"rule {rule.name} needs a target that is certain of its token: p must be one-hot at every context")
    if valid_M.shape != (shape.nodes,) or not np.all(valid_M[0] & (valid_M[shape.parent_M] | ~valid_M)):
        raise ValueError(f"valid={valid_M.tolist()} must be {shape.nodes} truth values, true at the root and at the parent of each that is")


def committed(shape: Shape, every: Drafts, mass_DM, emit_DMV, k: int) -> list[np.ndarray]:
    """mass[d] [V**(d + 1)]: probability that the round emits exactly this sequence of d + 1 tokens."""
    vocab = emit_DMV.shape[-1]
    mass = [np.zeros((vocab**depth, vocab)) for depth in range(k + 1)]
    for node, depth in enumerate(shape.depth_M):
        np.add.at(mass[depth], every.code_DM[:, node], mass_DM[:, node, None] * emit_DMV[:, node])
    return [level.reshape(-1) for level in mass]
