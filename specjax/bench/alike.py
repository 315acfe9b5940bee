"""Arms that draft alike, and in which ways their drafts are judged: every rule at full length, those of the arms at other lengths too."""

from __future__ import annotations

import json
from typing import NamedTuple

import jax
import numpy as np

from specjax import Decoder
from specjax.bench.judged import Way, judges, label, usual
from specjax.bench.plan import Arm, Experiment
from specjax.lengths import Fixed


class Group(NamedTuple):
    """Arms that draft alike: one drafter, one sampling of draft and target. decoder: of the first of them."""

    arms: list[Arm]
    decoder: Decoder
    baseline: str

    @property
    def name(self) -> str:
        return self.arms[0].name

    @property
    def draft_bytes(self) -> int:
        """What the laws of one draft take at most, before compression."""
        real = np.promote_types(self.decoder.target.dtype, np.float32)
        return 2 * self.decoder.setup.ladder[-1] * self.decoder.setup.model.vocab * real.itemsize

    @property
    def most(self) -> int:
        """Depth of its deepest draft."""
        return self.decoder.setup.drafter.most

    @property
    def branches(self) -> bool:
        return self.decoder.setup.ladder[-1] > self.most + 1

    def rules(self, drawn: str) -> dict[str, object]:
        """Those that judge its drafts, by label: every known one, and those of the arms."""
        own = [arm.rule for arm in self.arms if arm.rule is not None]
        return {label(rule): rule for rule in [*usual(), *own] if judges(rule, drawn, self.branches)}

    @property
    def base(self) -> str:
        """The rule that others are measured against: the p/q rule, or what it is on a tree."""
        return "recursive_rejection" if self.branches else "speculative"

    def done(self, arm: Arm) -> tuple[str, str | None]:
        """(rule, length) of an arm by label; no length for a policy that learns from round to round, which no single draft can tell."""
        rule = self.base if arm.rule is None else label(arm.rule)
        if arm.length is None or isinstance(arm.length, Fixed):
            return rule, f"K={self.most if arm.length is None else min(int(arm.length.k), self.most)}"
        learns = getattr(arm.length, "needs_costs", False) or jax.tree.leaves(arm.length.init(1))
        return rule, None if learns else label(arm.length)

    def ways(self, drawn: str) -> dict[tuple[str, str | None], Way]:
        """Every rule on whole drafts; the base and the arms' own rules at every fixed length, and at their own."""
        known, done = self.rules(drawn), {self.done(arm): arm.length for arm in self.arms}
        ways = {(name, None): Way(rule) for name, rule in known.items()}
        for rule in dict.fromkeys([self.base, *(rule for rule, _ in done)]):
            ways |= {(rule, f"K={k}"): Way(known[rule], Fixed(k=np.int32(k))) for k in range(1, self.most + 1)}
        return ways | {
            (rule, length): Way(known[rule], policy) for (rule, length), policy in done.items() if length and (rule, length) not in ways
        }


def groups(experiment: Experiment) -> list[Group]:
    """The arms on whose drafts rules differ, those that draft alike together."""
    loaded = {arm.name: arm for arm in experiment.arms}
    alike: dict[str, list[Arm]] = {}
    for arm, spelled in zip(experiment.plan.arms, experiment.plan.resolved()["arms"], strict=True):
        if arm.tells_rules_apart and arm.name in loaded:
            alike.setdefault(json.dumps([spelled[part] for part in ("drafter", "sampling", "draft_sampling")]), []).append(arm)
    return [Group(arms, loaded[arms[0].name].decoder, loaded[arms[0].name].baseline) for arms in alike.values()]
