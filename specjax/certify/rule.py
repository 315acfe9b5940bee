"""The certificate of a rule: its exact law on every case, in float32 and in float64."""

from __future__ import annotations

import itertools
from typing import NamedTuple

import jax
import numpy as np

from specjax.certify import cases
from specjax.certify.cases import Case
from specjax.certify.law import Exact, exact_law
from specjax.certify.transport import bound
from specjax.certify.verdict import Verdict
from specjax.types import Rule

CLOSE = {"float32": 1e-6, "float64": 1e-12}  # total variations under it are rounding
SHOWN = [f"{laws}, {draft}" for laws, draft in [("toy", "1x1"), ("A", "1x1x1"), ("B", "1x1x1"), ("B", "2x1"), ("B", "2x2")]]


class Certified(NamedTuple):
    """One case in one dtype: against p, and for chains under a lossy rule against its own law."""

    case: Case
    dtype: str
    exact: Exact
    own: Exact | None

    @property
    def name(self) -> str:
        return f"{self.case.name} ({self.dtype})"


def check(rule: Rule, dtypes=tuple(CLOSE)) -> Verdict:
    """Certify a rule against what it declares.

    An exact one must have the target's law of K + 1 tokens on every case. Any other must be a law on every case, and where it has a
    `token_law`, the first token must have that where one draft is judged. If it declares `own_exact`, K + 1 tokens must have that law
    wherever a draft is judged, and p after the last.
    """
    told, why, notes = {}, "", []
    try:
        for drawn in rule.drawn:
            every = [one for dtype in dtypes for one in _certified(rule, drawn, dtype)]
            told[drawn] = _numbers(rule, every) | _acceptance(rule, drawn)
            why = why or next((f"{drawn}: {said}" for one in every if (said := _why(rule, one))), "")
    except RuntimeError as error:  # raised by the rule
        why = str(error)
    if not why:
        notes = _notes(rule, told.values())
    return Verdict(rule.name, not why, why, {"exact": rule.exact, "trees": rule.trees, "notes": notes, "drawn": told})


def _certified(rule, drawn: str, dtype: str) -> list[Certified]:
    with jax.enable_x64(dtype == "float64"):
        return [
            Certified(case, dtype, _exact(rule, case, drawn), _exact(rule, case, drawn, own=True) if _has_own(rule, case, drawn) else None)
            for case in cases.all_cases(rule.one_hot_only, rule.trees)
        ]


def _exact(rule, case: Case, drawn: str, own=False) -> Exact:
    buffer = cases.nodes(rule.trees)
    return exact_law(rule, case.p, case.q, case.shape.depth, case.shape, drawn=drawn, valid=case.valid_M, nodes=buffer, own=own)


def _has_own(rule, case: Case, drawn: str) -> bool:
    """A lossy rule's own law is that of chains whose drafts are drawn from q."""
    return not rule.exact and hasattr(rule, "token_law") and case.shape.chain and drawn != "fixed"


# ---------------------------------------------------------------- what is told


def _numbers(rule, every: list[Certified]) -> dict:
    """Of one way of drawing."""
    worst = {}
    for one in every:
        if one.dtype not in worst or one.exact.total_variation > worst[one.dtype].exact.total_variation:
            worst[one.dtype] = one
    return {
        "cases": len({one.case.name for one in every}),
        "total_variation": {dtype: one.exact.total_variation for dtype, one in worst.items()},
        "worst_case": {dtype: one.case.name for dtype, one in worst.items()},
        "own_total_variation": {
            dtype: max((one.own.total_variation for one in every if one.own and one.dtype == dtype), default=None) for dtype in worst
        },
        "expected_tokens": {one.case.name: one.exact.expected_tokens for one in every if one.case.name in SHOWN},
    }


def _acceptance(rule, drawn: str) -> dict:
    """On case B with two children of the root (one on a chain): the probability to accept any, and the bound on it."""
    if rule.one_hot_only:
        return {"children": None, "accepted": None, "bound": None}
    children, (p, q) = 2 if rule.trees else 1, cases.HAND["B"]
    accepted = exact_law(rule, p, q, 1, (children,), drawn=drawn, nodes=cases.nodes(rule.trees)).expected_tokens - 1
    return {"children": children, "accepted": accepted, "bound": bound(p, q, children, drawn)}


def _notes(rule, told) -> list[str]:
    notes = []
    within = lambda key: all(x < CLOSE[dtype] for one in told for dtype, x in one[key].items() if x is not None)
    if not rule.exact and within("total_variation"):
        notes.append("declared not exact, but exact on every case")
    own = [x for one in told for x in one["own_total_variation"].values() if x is not None]
    if own:
        said = "certified against its own law" if within("own_total_variation") else "its first token has its own law"
        notes.append(f"{said} (token_law where a draft is judged, p after the last): K + 1 tokens are within {max(own):.1e} of that")
    return notes


# ---------------------------------------------------------------- why it fails


def _why(rule, one: Certified) -> str:
    close = CLOSE[one.dtype]
    if one.exact.fault:
        return f"{one.name}: {one.exact.fault}"
    if rule.exact and not one.exact.total_variation < close:
        return f"{one.name}: {difference(one.exact, close)}"
    if one.own and not _own_distance(rule, one) < close:
        return f"{one.name}, against its own law: {difference(one.own, close)}"
    return ""


def _own_distance(rule, one: Certified) -> float:
    """How far a lossy rule is from what it says of itself."""
    if getattr(rule, "own_exact", False):
        return one.own.total_variation
    got, wanted = (one.own.first(law_S) for law_S in (one.own.law_S, one.own.target_S))
    return float(np.abs(got - wanted).sum() / 2) if one.case.depth == 1 else 0.0


def difference(one: Exact, close: float) -> str:
    """Where a law is not what it should be: at the first token, or in the first sequence that differs."""
    got, wanted = one.first(one.law_S), one.first(one.target_S)
    apart = f"total variation {one.total_variation:.3g} over {one.places} tokens"
    if not np.abs(got - wanted).max() < close:
        return f"the first token has the law {_row(got)}, not {_row(wanted)}; {apart}"
    place = int(np.argmax(np.abs(one.law_S - one.target_S) > close / one.law_S.size))
    sequence = list(itertools.product(range(one.vocab), repeat=one.places))[place]
    return f"tokens {sequence} have probability {one.law_S[place]:.6f}, not {one.target_S[place]:.6f}; {apart}"


def _row(law_V) -> str:
    return "(" + ", ".join(f"{x:.6g}" for x in np.round(law_V, 6)) + ")"
