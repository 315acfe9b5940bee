"""Measured costs into the policies that weigh them (`specjax.lengths.costs`): numbers for numbers, so that nothing compiles again."""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Mapping

import numpy as np

from specjax import parts
from specjax.bench.measure import Costs
from specjax.bench.plan import Arm, Experiment, LoadedArm
from specjax.drafters import NGram
from specjax.sharding import everywhere


def nodes_by_depth(drafter) -> list[int]:
    """Nodes of its draft of each depth from 0 to the deepest, the root included; at most, where a draft takes its shape as it grows."""
    if (shape := getattr(drafter, "shape", None)) is not None:
        return np.cumsum(np.bincount(shape.depth_M)).tolist()
    if isinstance(drafter, NGram):
        return [1 + depth * drafter.branches for depth in range(drafter.most + 1)]
    nodes, chain = parts.nodes(drafter), range(1, drafter.most + 2)
    return list(chain) if nodes == drafter.most + 1 else [1] + [nodes] * drafter.most


def unpriced(arm: Arm, drafter):
    """The arm's length with the shapes of costs, before any are known: by these no round is worth its cost, and none may run."""
    if not getattr(arm.length, "needs_costs", False):
        return arm.length
    nodes_M = nodes_by_depth(drafter)
    unknown = Costs(v={nodes_M[-1]: math.inf}, c=0.0, catch_up=0.0, step_seconds=math.inf)
    return arm.length.priced(unknown, (nodes_M[-1],), nodes_M)


def priced(experiment: Experiment, costs: Mapping[str, Costs]) -> Experiment:
    """The experiment with the costs of each arm in its length, where that needs them."""
    given = {arm.name: arm.length for arm in experiment.plan.arms}
    needs = lambda arm: getattr(given.get(arm.name), "needs_costs", False)
    arms = [_priced(arm, given[arm.name], costs[arm.name]) if needs(arm) else arm for arm in experiment.arms]
    return dataclasses.replace(experiment, arms=tuple(arms))


def _priced(arm: LoadedArm, length, costs: Costs) -> LoadedArm:
    decoder = copy.copy(arm.decoder)
    setup = decoder.setup
    length = length.priced(costs, setup.ladder, nodes_by_depth(setup.drafter))
    decoder.setup = dataclasses.replace(setup, length=everywhere(setup.layout, parts.numbers(length)))
    return arm._replace(decoder=decoder)
