"""Figure 5: when more guessing stops helping: expected tokens of a round, its cost, and their ratio, against the draft length K."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from specjax import theory
from specjax.report.figures.style import DRAFT, GREY, INK, KEPT, REFUSED, TARGET, figure

LENGTHS = range(1, 13)


def draw(alpha: float = 0.8, k: int = 4, c: float = 0.10, v: float = 1.0) -> Figure:
    """alpha: acceptance of a place; k: the length that is marked; c, v: cost of a drafted token and of a pass, in plain steps."""
    tokens, cost = ([f(n) for n in LENGTHS] for f in (lambda n: theory.expected_tokens(alpha, n), lambda n: v + n * c))
    gain = [theory.speedup(t, v, n, c) for t, n in zip(tokens, LENGTHS, strict=True)]
    made = figure(9.0, 3.3)
    left, right = made.subplots(1, 2)
    left.plot(LENGTHS, tokens, color=TARGET, marker="o", markersize=3, label="tokens of a round")
    left.plot(LENGTHS, cost, color=DRAFT, marker="o", markersize=3, label="its cost, in plain steps")
    left.plot([k, k], [cost[k - 1], tokens[k - 1]], color=GREY, linewidth=0.8)
    left.set(xlabel="draft length K", ylim=(0, max(*tokens, *cost) * 1.3), xticks=LENGTHS)  # the legend is above all
    left.legend(frameon=False, fontsize=8.5, loc="upper left")
    right.axhline(1, color=GREY, linewidth=0.8)
    right.plot(LENGTHS, gain, color=INK, marker="o", markersize=3)
    right.plot([k], [gain[k - 1]], color=REFUSED, marker="o", markersize=8)
    right.set(xlabel="draft length K", ylabel="speedup", ylim=(0, max(1.4, *gain) * 1.2), xticks=LENGTHS)
    right.set_title(told(alpha, k, c, v), fontsize=9.5)
    _plain(left, right)
    return made


def told(alpha: float, k: int, c: float, v: float) -> str:
    """The marked length and the best one, in words."""
    tokens, cost = theory.expected_tokens(alpha, k), v + k * c
    best, gain = theory.best_k(alpha, c, v, LENGTHS[-1])
    most = f"best: K = {best}, {gain:.2f}" if best else "best: not to draft"
    return f"K = {k}: {tokens:.2f} / {cost:.2f} = {theory.speedup(tokens, v, k, c):.2f}; {most}"


def draw_measured(arms: Sequence[tuple[int, dict]], ladder: Sequence[int], rates_of: dict) -> Figure:
    """arms: (K, its row of a run's summary.json). ladder: their widths. rates_of: the row whose rates and costs make the curve."""
    made = figure(9.0, 3.3)
    left, right = made.subplots(1, 2, width_ratios=(1, 1.5))
    rates = rates_of["rates"]
    left.bar(range(1, len(rates) + 1), rates, color=KEPT, width=0.6)
    left.set(xlabel="place in the draft", ylabel="accepted, if reached", ylim=(0, 1), xticks=range(1, len(rates) + 1))
    v = {int(width): cost for width, cost in rates_of["v"].items()}
    lengths = range(1, len(rates) + 1)
    curve = [theory.predict(np.eye(len(rates) + 1)[n], rates, v, rates_of["c"], ladder).speedup for n in lengths]
    right.axhline(1, color=GREY, linewidth=0.8)
    right.plot(lengths, curve, color=INK, marker="o", markersize=3, label="from these rates, c and v")
    for k, row in arms:
        low, value, high = (row["speedup"][name] for name in ("low", "value", "high"))
        if low is not None:
            right.plot([k, k], [low, high], color=REFUSED, linewidth=2)
        right.plot([k], [value], color=REFUSED, marker="o", linestyle="none", label="measured" if k == arms[0][0] else None)
    right.set(xlabel="draft length K", ylabel="speedup", xticks=lengths)
    right.set_ylim(0, max(1.4, right.get_ylim()[1] * 1.1))
    right.set_title(f"c = {rates_of['c']:.3f}, " + ", ".join(f"v({width}) = {cost:.2f}" for width, cost in v.items()), fontsize=9.5)
    right.legend(frameon=False, fontsize=8.5, loc="lower right")
    _plain(left, right)
    return made


def _plain(*axes: Axes) -> None:
    for ax in axes:
        ax.spines[["top", "right"]].set_visible(False)
        ax.tick_params(labelsize=8.5)
