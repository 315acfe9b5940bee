"""What a run's recorded drafts say: rules compared at equal roots, and what they predict of another draft length.

Every rule gets every draft, so a difference between two rules is paired, and what is left to chance is which prompts, roots and drafts
there were. Intervals are over prompts, and so is the number of them that a difference needs: n = ((z_.975 + z_.8) s / d)^2 for a mean
difference d whose standard deviation from prompt to prompt is s, at as many drafts a prompt as were recorded.

Predictions are not measurements: roots that are met under one length or rule are not those met under another, and these are at even
places of plain output. So each stands beside the arm of the run that did it, where there is one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import NormalDist

import numpy as np

from specjax import theory
from specjax.bench import laws
from specjax.bench.judged import Drafts, Expected, Way, judges, label, see, usual
from specjax.bench.measure import Costs
from specjax.bench.records import Workdir
from specjax.bench.summary import FEWEST, LEVEL, RESAMPLES

POWER = 0.8
SAME = 1e-4  # expected tokens of one draft that differ by less are equal: sums over a vocabulary in float32


def replay(workdir: Workdir, costs: Mapping[str, Costs], measured: Mapping[str, dict], own: Sequence = ()) -> dict:
    """For each group of arms that draft alike: its rules compared on all drafts, and predictions.

    costs: of each arm; {} where a round is not one row's alone. measured: rows of summary.json by arm. own: rules to compare on the drafts
    that were kept whole, in place of all, each in the groups whose drafts it judges.

    Raises:
      ValueError: the run has no laws, a file of them is damaged, or no rule judges them.
    """
    try:
        groups = laws.index(workdir)
        for rule in own:
            if not any(judges(rule, group["drawn"], group["branches"]) for group in groups):
                raise ValueError(f"rule {label(rule)!r} judges none of the drafts of this run: leave it out")
        return {"groups": [_group(workdir, group, costs, measured, own) for group in groups]}
    except (KeyError, IndexError, TypeError) as error:
        raise ValueError(f"{workdir.path / laws.INDEX} is damaged: delete it, and the run's own command writes it again") from error


def _group(workdir: Workdir, group: dict, costs, measured, own: Sequence) -> dict:
    ways = {(way["rule"], way["length"]): way for way in group["ways"]}
    files = [workdir.path / file for file in group["files"].values()]
    every = list(map(laws.load_seen, files))
    seen = {key: [prompt.way(i) for prompt in every] for i, key in enumerate(ways)}
    if own:
        compared, exact = _tried(group, own, map(laws.load_drafts, files))
    else:
        compared = {rule: prompts for (rule, length), prompts in seen.items() if length is None}
        exact = {way["rule"]: way["exact"] for way in group["ways"]}
    base = compared[group["base"]]
    return {
        **{name: group[name] for name in ("name", "arms", "drawn", "certain", "depth", "base")},
        "prompts": len(base),
        "drafts": sum(len(prompt.drafted_N) for prompt in base),
        "rules": [
            {
                "rule": rule,
                "exact": exact[rule],
                "tokens": mean_tokens(prompts),
                "difference": difference(prompts, base),
                "reach": np.concatenate([prompt.reach_NK for prompt in prompts]).mean(0)[: group["depth"]].tolist(),
            }
            for rule, prompts in compared.items()
        ],
        "predictions": [
            _prediction(*key, seen[key], costs.get((way["arms"] or group["arms"])[0]), [measured[name] for name in way["arms"]])
            for key, way in ways.items()
            if key[1]
        ],
    }


def _tried(group: dict, own: Sequence, kept: Iterable[Drafts]) -> tuple[dict[str, list[Expected]], dict[str, bool]]:
    """(what is expected, whether the rule is exact) by rule: the base and those rules of one's own that judge such drafts, on what was kept
    whole."""
    able = [rule for rule in own if judges(rule, group["drawn"], group["branches"])]
    rules = {label(rule): rule for rule in [*usual(), *able] if label(rule) == group["base"] or any(rule is one for one in able)}
    seen = [see([Way(rule) for rule in rules.values()], drafts) for drafts in kept if len(drafts.valid_NM)]
    return {name: [one.way(i) for one in seen] for i, name in enumerate(rules)}, {name: bool(rule.exact) for name, rule in rules.items()}


# ---------------------------------------------------------------- over prompts


def mean_tokens(prompts: Sequence[Expected]) -> float:
    return float(np.concatenate([prompt.tokens_N for prompt in prompts]).mean())


def difference(own: Sequence[Expected], base: Sequence[Expected]) -> dict:
    """{"value", "low", "high", "prompts"}: expected tokens more than the base's, its interval, and how many prompts would show it.

    low and high are null with fewer than FEWEST prompts; prompts is null where nothing differs, and there value, low and high are 0.
    """
    each = [a.tokens_N - b.tokens_N for a, b in zip(own, base, strict=True)]
    if np.abs(np.concatenate(each)).max() < SAME:
        return {"value": 0.0, "low": 0.0, "high": 0.0, "prompts": None}
    sum_P, count_P = np.asarray([d.sum() for d in each]), np.asarray([len(d) for d in each])
    low = high = None
    if len(each) >= FEWEST:
        drawn = np.random.default_rng(0).integers(len(each), size=(RESAMPLES, len(each)))
        means = sum_P[drawn].sum(-1) / count_P[drawn].sum(-1)
        low, high = map(float, np.percentile(means, [(100 - LEVEL) / 2, (100 + LEVEL) / 2]))
    return {"value": float(sum_P.sum() / count_P.sum()), "low": low, "high": high, "prompts": prompts_needed(sum_P / count_P)}


def prompts_needed(difference_P: np.ndarray) -> int | None:
    """Prompts at which a paired two-sided test of level 5% sees this difference in 80 of 100 experiments; None where there is none."""
    mean = float(np.mean(difference_P))
    if len(difference_P) < 2 or mean == 0:
        return None
    z = NormalDist().inv_cdf((1 + LEVEL / 100) / 2) + NormalDist().inv_cdf(POWER)
    return max(2, math.ceil((z * float(np.std(difference_P, ddof=1)) / mean) ** 2))


def predicted_speedup(prompts: Sequence[Expected], cost: Costs) -> float:
    """Tokens over plain steps at the measured costs, were all roots like those recorded."""
    ladder, steps = sorted(cost.v), 0.0
    for prompt in prompts:
        steps += sum(cost.v[theory.width(int(n), ladder)] + n * cost.c for n in prompt.drafted_N) + cost.catch_up * prompt.full_N.sum()
    return float(sum(prompt.tokens_N.sum() for prompt in prompts) / steps)


def _prediction(rule: str, length: str, prompts: Sequence[Expected], cost: Costs | None, rows: Sequence[dict]) -> dict:
    """rows: of the arms that did it in closed loop, which the first stands for."""
    guess = {"tokens": mean_tokens(prompts), "speedup": cost and predicted_speedup(prompts, cost)}
    real = {"tokens": rows[0]["tokens_per_pass"], "speedup": rows[0]["speedup"]["value"]} if rows else {}
    return {
        "rule": rule,
        "length": length,
        "predicted": guess,
        "arm": rows[0]["name"] if rows else None,
        "measured": real,
        "error": {name: guess[name] / x - 1 for name, x in real.items() if x and guess[name]},
    }
