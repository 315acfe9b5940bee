"""What a round costs, for policies that weigh it: measured before a run and frozen, so that no clock reaches a policy."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np

from specjax.lengths.numbers import EVERYTHING, array, real
from specjax.theory import width
from specjax.types import Array, struct


@struct
class Costs:
    """In plain target steps. v: of the pass that verifies a draft of 0, 1, ... tokens; one more token than it has numbers is never asked
    for. c: of drafting one token more (of a tree: one place deeper). catch_up: of what a drafter takes in late, after a round whose
    drafts were all accepted. share: of its tokens, in plain steps, that a row may lose by trying whether drafting pays again.

    All are numbers, of a round alone: in a batch, rows share a pass of the widest row's rung.

    Raises:
      ValueError: a number is out of its range.
    """

    v: tuple[float, ...] | Array | None = None
    c: float | Array = 0.0
    catch_up: float | Array = 0.0
    share: float | Array = 0.015

    def __post_init__(self):
        if self.v is not None:
            fits = lambda x: x.ndim == 1 and len(x) > 1 and ((x >= 1e-6) & ((x <= EVERYTHING) | np.isinf(x))).all()
            array(self, "v", np.float32, fits, f"at least two costs, each above 0 (1e-06) and at most {EVERYTHING}, or infinite")
        real(self, c=(0, EVERYTHING), catch_up=(0, EVERYTHING), share=(0, 1))
        for name in ("c", "catch_up"):
            if self.v is None and getattr(self, name):
                raise ValueError(f"length.{name}={getattr(self, name)} changes nothing without length.v: a run measures all three, or none")

    @property
    def needs_costs(self) -> bool:
        return self.v is None

    def priced(self, costs, ladder: Sequence[int], nodes_M: Sequence[int] | None = None):
        """With costs v (by width), c (of a node) and catch_up, as `specjax.bench.measure.Costs` has them.

        nodes_M: of a draft of each depth from 0 on, with its root; default a chain's.
        """
        nodes_M = range(1, ladder[-1] + 1) if nodes_M is None else nodes_M
        v = [costs.v[width(nodes - 1, ladder)] for nodes in nodes_M]
        c = costs.c * (nodes_M[-1] - 1) / max(len(nodes_M) - 1, 1)
        return dataclasses.replace(self, v=v, c=c, catch_up=costs.catch_up)

    def required(self) -> None:
        """Raises ValueError without costs."""
        if self.needs_costs:
            raise ValueError(f"length={self.name} has no costs: give it v, c and catch_up (a run of a config measures them itself)")

    @property
    def cost_M(self):
        """Of a round that drafts 0, 1, ... tokens, without what comes late."""
        v_M = jnp.asarray(self.v)
        return v_M + self.c * jnp.arange(v_M.shape[0], dtype=v_M.dtype)

    def may_try(self, k_B, aside_B):
        """Whether a draft of k tokens, all refused, stays within the share of the aside_B tokens that were said without drafting.

        A drafter takes those in before it drafts again, in passes as wide as its largest draft and the root. Where this alone costs more
        than the share, drafting is not tried again.
        """
        cost_M = self.cost_M
        lost_B = cost_M[k_B] - cost_M[0] + self.catch_up * aside_B / cost_M.shape[0]
        return (k_B > 0) & (self.share * aside_B >= lost_B)


def aside(aside_B, verdict):
    """Tokens said since a row last drafted, after one round more."""
    return jnp.where(verdict.drafted_B > 0, 0, aside_B + verdict.committed_B.astype(aside_B.dtype))
