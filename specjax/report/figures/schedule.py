"""Figure 1: what plain and speculative decoding do in the same time, one box a pass of the target."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from matplotlib.figure import Figure

from specjax.report.figures.style import DRAFT, GREY, TARGET, bare, box, figure, word, write


class Pass(NamedTuple):
    """A round: how many tokens were drafted, the cost of the pass over them in plain steps, and the tokens that it added."""

    drafted: int
    v: float
    said: tuple[str, ...]


def seconds(passes: Sequence[Pass], c: float) -> float:
    """The cost of all rounds, in plain steps."""
    return sum(one.drafted * c + one.v for one in passes)


def draw(passes: Sequence[Pass], c: float) -> Figure:
    """c: cost of a drafted token, in plain steps."""
    words = [text for one in passes for text in one.said]
    end, tall = max(len(words), seconds(passes, c)), max(len(one.said) for one in passes)
    high = 0.34 + 0.17 * tall  # of the second row, in inches, as all else here
    made = figure(9.2, 1.75 + high)
    ax = bare(made.add_subplot(), (-0.003 * end, 1.003 * end), (0, 1.75 + high))
    size = 9 if end <= 10 else 6.5 if end > 16 else 7.5
    head = f"plain: {len(words)} passes for {len(words)} tokens, {len(words):.1f} plain steps"
    write(ax, 0, 0.12, head, ha="left", weight="bold")
    for place, text in enumerate(words):
        box(ax, place, 0.25, 1, 0.42, TARGET, word(text), fontsize=size)
    took = seconds(passes, c)
    head = f"speculative: {len(passes)} passes for {len(words)} tokens, {took:.1f} plain steps"
    write(ax, 0, 0.95, head, ha="left", weight="bold")
    at = 0.0
    for one in passes:
        for _ in range(one.drafted):
            box(ax, at, 1.08, c, high, DRAFT)
            at += c
        box(ax, at, 1.08, one.v, high, TARGET, "\n".join(map(word, one.said)), fontsize=size, linespacing=1.25)
        at += one.v
    ax.plot([0, end], [1.2 + high, 1.2 + high], color=GREY, linewidth=0.8)
    for step in range(0, int(end) + 1, 1 if end <= 12 else 2):
        ax.plot([step, step], [1.2 + high, 1.25 + high], color=GREY, linewidth=0.8)
        write(ax, step, 1.36 + high, str(step), color=GREY, fontsize=8, ha="left" if step == 0 else "right" if step == end else "center")
    text = "time in plain steps; blue: a pass of the target and the tokens that come out of it; yellow: drafted tokens"
    write(ax, end / 2, 1.6 + high, text, color=GREY, fontsize=8.5)
    return made
