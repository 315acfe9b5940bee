"""From records to one row per arm: see docs/metrics.md, where each metric is defined once.

Intervals are over what was timed as one: prompts or batches of them, by a bootstrap, or with `refill` repeats, which are few, by Student's
t. The prediction of an arm on one half of the prompts uses the acceptance rates of the *other* half, and costs measured apart; it never
sees what it predicts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from scipy import stats

from specjax import theory
from specjax.bench.agree import Agreement, Difference
from specjax.bench.line import SCHEMA, finite
from specjax.bench.measure import Costs
from specjax.bench.plan import Experiment

RESAMPLES = 2_000
LEVEL = 95  # percent
FEWEST = 5  # prompts or batches to draw from; an interval from fewer says nothing
COUNTS = ("tokens", "passes", "drafted", "accepted", "rejected", "cut")


def summarise(
    experiment: Experiment,
    rows: Sequence[dict],
    costs: Mapping[str, Costs],
    compile_seconds: Mapping[str, Mapping[str, float]],
    agreements: Mapping[str, Agreement],
    differences: Sequence[Difference],
) -> dict:
    """The content of summary.json."""
    plan = experiment.plan
    batch = {str(e.prompt.question_id): i // plan.batch for i, e in enumerate(experiment.prompts)}
    together = Together(lambda r: r["repeat"], student) if plan.refill else Together(lambda r: batch[str(r["question_id"])], bootstrap)
    by_arm = {arm.name: [r for r in rows if r["arm"] == arm.name] for arm in experiment.arms}
    arms = []
    for arm in experiment.arms:
        own, plain, cost = by_arm[arm.name], by_arm[arm.baseline], costs[arm.name]
        agreement = agreements.get(arm.name)
        arms.append(
            arm_row(arm.name, own, plain, together)
            | {
                "baseline": arm.baseline,
                "exact": bool(arm.decoder.setup.rule.exact),
                "c": cost.c,
                "v": {str(width): x for width, x in cost.v.items()},
                "predicted_speedup": prediction(own, cost, arm.decoder.setup.ladder) if plan.batch == 1 else None,
                "matches_plain": agreement and agreement._asdict(),
                "time_to_first_token": None if plan.refill else time_to_first_token(own, cost),
                "compile_seconds": compile_seconds[arm.name],
                "by_category": by_category(own, plain, together),
            }
        )
    return {"schema": SCHEMA, "prompts": len(experiment.prompts), "arms": arms, "differences": [d._asdict() for d in differences]}


def arm_row(name: str, own: Sequence[dict], plain: Sequence[dict], together: Together) -> dict:
    """What records alone tell of an arm; `plain` are those of its plain arm on the same prompts. together: which were timed as one."""
    counts, expected = totals(own), _total(own, "expected_sum")
    return {
        "name": name,
        "tokens_per_second": tokens_per_second(own),
        "speedup": speedup(own, plain, together),
        "tokens_per_pass": counts["tokens"] / counts["passes"],
        "expected_tokens_per_pass": None if expected is None else 1 + expected / counts["passes"],
        "alpha": alpha(own),
        **price(own),
        "rates": rates(own),
        **counts,
        "prefill_seconds": _sum([r["seconds"]["prefill"] for r in own]),
        "decode_seconds": sum(r["seconds"]["decode"] for r in own),
        "peak_memory_bytes": max(r["peak_memory_bytes"] for r in own),
    }


def by_category(own: Sequence[dict], plain: Sequence[dict], together: Together) -> dict[str, dict]:
    """The same metrics for the prompts of one category, in the order in which categories came."""
    rows = {}
    for category in dict.fromkeys(r["category"] for r in own):
        mine, theirs = ([r for r in rs if r["category"] == category] for rs in (own, plain))
        row = arm_row(category, mine, theirs, together)
        keep = ("tokens_per_second", "speedup", "tokens_per_pass", "alpha")
        rows[category] = {"prompts": len({str(r["question_id"]) for r in mine}), **{k: row[k] for k in keep}}
    return rows


def totals(rows: Sequence[dict]) -> dict[str, int]:
    return {name: sum(r["counts"][name] for r in rows) for name in COUNTS}


def tokens_per_second(rows: Sequence[dict]) -> float:
    return totals(rows)["tokens"] / sum(r["seconds"]["decode"] for r in rows)


def alpha(rows: Sequence[dict]) -> float | None:
    """Mean overlap 1 - TV(p, q) over the places the rule judged; None where nothing was drafted, or a record has none."""
    judged, overlap = sum(r["counts"]["judged"] for r in rows), _total(rows, "overlap_sum")
    return None if overlap is None or not judged else overlap / judged


def price(rows: Sequence[dict]) -> dict[str, float | None]:
    """What tells how far an arm's tokens are from the target's law; None where the records do not say, or it is infinite."""
    tokens, logprobs, prices = totals(rows)["tokens"], [r.get("logprobs") for r in rows], [r.get("price") for r in rows]
    known, priced = tokens and None not in logprobs, tokens and None not in prices
    likely = _sum([x for row in logprobs for x in row]) if known else None
    infinite = sum(r["kl_infinite"] for r in prices) if priced else None
    away = _sum([r["kl_sum"] for r in prices]) if infinite == 0 else None
    return {
        "loglikelihood": None if likely is None else likely / tokens,
        "kl_per_token": None if away is None else away / tokens,
        "kl_infinite": None if infinite is None else infinite / tokens,
    }


def rates(rows: Sequence[dict]) -> list[float | None]:
    """Acceptance at place 1, 2, ... among the rounds that drafted and reached it; None at a place never reached."""
    drafted, accepted = _rounds(rows)
    _, rate_K = theory.rates_from_rounds(drafted, accepted, int(drafted.max()))
    return [finite(rate) for rate in rate_K]


def speedup(own: Sequence[dict], plain: Sequence[dict], together: Together) -> dict[str, float | None]:
    """{"value", "low", "high"}: ratio of tokens per second over totals, with its interval over what was timed as one.

    low and high are None with too few of them; all are None where the plain arm got no token out.
    """
    numbers = sorted(set(map(together.number, own)))
    sums = np.zeros((4, len(numbers)))
    for i, rows in ((0, own), (2, plain)):
        for r in rows:
            at = numbers.index(together.number(r))
            sums[i, at] += r["counts"]["tokens"]
            sums[i + 1, at] += r["seconds"]["decode"]
    low, high = together.interval(sums)
    return {"value": finite(_ratio(sums.sum(-1))), "low": low, "high": high}


class Together(NamedTuple):
    """What was timed as one: the number of a record's, and the interval over them, of their sums [4, N]."""

    number: Callable[[dict], int]
    interval: Callable[[np.ndarray], tuple[float | None, float | None]]


def bootstrap(sums: np.ndarray) -> tuple[float | None, float | None]:
    """Of prompts or batches, drawn anew."""
    count = sums.shape[1]
    if count < FEWEST:
        return None, None
    drawn = np.random.default_rng(0).integers(count, size=(RESAMPLES, count))
    return tuple(map(finite, np.percentile(_ratio(sums[:, drawn].sum(-1)), [(100 - LEVEL) / 2, (100 + LEVEL) / 2])))


def student(sums: np.ndarray) -> tuple[float | None, float | None]:
    """Of repeats, whose ratios scatter around one: of the mean of their logarithms."""
    count = sums.shape[1]
    if count < 3:
        return None, None
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.log(_ratio(sums))
        away = stats.t.ppf((100 + LEVEL) / 200, count - 1) * logs.std(ddof=1) / np.sqrt(count)
    return finite(np.exp(logs.mean() - away)), finite(np.exp(logs.mean() + away))


def prediction(rows: Sequence[dict], cost: Costs, ladder: Sequence[int]) -> float | None:
    """Total tokens over total predicted plain steps: each half of the prompts by the rates of the other. None with one prompt."""
    halves = split(rows)
    if not all(halves):
        return None
    steps = 0.0
    for half, other in (halves, halves[::-1]):
        drafted, accepted = _rounds(other)
        share_M, rate_K = theory.rates_from_rounds(drafted, accepted, int(drafted.max()))
        mean = theory.predict(share_M, rate_K, cost.v, cost.c, ladder, cost.catch_up)
        steps += totals(half)["tokens"] * mean.cost / mean.tokens
    return totals(rows)["tokens"] / steps if steps else None


def split(rows: Sequence[dict]) -> tuple[list[dict], list[dict]]:
    """Two halves of the prompts, taken by turns, category after category."""
    names = {(r["category"], str(r["question_id"])): None for r in rows}
    order = [q for c in dict.fromkeys(c for c, _ in names) for category, q in names if category == c]
    even = set(order[::2])
    return [r for r in rows if str(r["question_id"]) in even], [r for r in rows if str(r["question_id"]) not in even]


def time_to_first_token(rows: Sequence[dict], cost: Costs) -> float:
    """An estimate: mean seconds of prefill and of the first round, whose drafts and pass are put at their measured cost."""
    ladder = sorted(cost.v)
    first = [r["rounds"]["drafted"][0] for r in rows]
    steps = [cost.v[theory.width(drafted, ladder)] + drafted * cost.c for drafted in first]
    return float(np.mean([r["seconds"]["prefill"] + s * cost.step_seconds for r, s in zip(rows, steps, strict=True)]))


def _total(rows: Sequence[dict], name: str) -> float | None:
    return _sum([r[name] for r in rows])


def _sum(numbers: Sequence[float | None]) -> float | None:
    """None if one is not known."""
    return None if None in numbers else sum(numbers)


def _rounds(rows: Sequence[dict]) -> tuple[np.ndarray, np.ndarray]:
    return tuple(np.concatenate([np.asarray(r["rounds"][x], int) for r in rows]) for x in ("drafted", "accepted"))


def _ratio(sums):
    tokens, seconds, plain_tokens, plain_seconds = sums
    with np.errstate(divide="ignore", invalid="ignore"):
        return (tokens / seconds) / (plain_tokens / plain_seconds)
