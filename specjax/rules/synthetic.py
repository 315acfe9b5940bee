"""Synthetic acceptance: given rates, whatever the laws are. For studying latency alone."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from specjax.rules import chain
from specjax.rules.numbers import within
from specjax.types import Array, Law, Tree, struct


@struct
class Synthetic:
    """Accept the draft at place i with probability rates[i], the last rate at all places after; emit from p. What it writes means nothing.

    With rates a_1, a_2, ... a round of K drafts commits 1 + a_1 + a_1 a_2 + ... tokens in the mean.

    Raises:
      ValueError: there is no rate, or one is not between 0 and 1.
    """

    rates: tuple[float | Array, ...]

    name = "synthetic"
    exact = False
    one_hot_only = False
    trees = False
    drawn = ("iid", "without_replacement", "fixed")
    needs = "rates per place"
    paper = "a tool, not a method; rates as in Leviathan et al. 2022, 2211.17192, 3.1"
    equation = "accept iff u < a_i at place i; emit p"

    def __post_init__(self):
        if np.ndim(self.rates) != 1 or not len(self.rates):
            raise ValueError(f"rule.rates={self.rates!r} must be a list of at least one rate")
        for place, rate in enumerate(self.rates):
            within(f"rates[{place}]", rate, 0, 1)
        object.__setattr__(self, "rates", tuple(self.rates))

    def __call__(self, tree: Tree, token_M, p_MV, q_MV) -> Law:
        return chain.law(tree, self.rate(p_MV), p_MV, p_MV)

    def rate(self, p_MV):
        """rate_M: of the child of each node of a chain."""
        rate_K = jnp.stack([jnp.asarray(rate).astype(p_MV.dtype) for rate in self.rates])
        return rate_K[jnp.minimum(jnp.arange(len(p_MV)), len(self.rates) - 1)]

    def token_law(self, p_MV, q_MV):
        """Row m is that of the m-th place."""
        rate_M1 = self.rate(p_MV)[:, None]
        return rate_M1 * q_MV + (1 - rate_M1) * p_MV
