"""Figure 4: how the p/q rule makes the draft's law the target's: what is accepted of each token, what is refused, and what replaces it.

All numbers come from the rule's own functions, `specjax.rules.speculative.ratio` and `specjax.sampling.residual`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from specjax.report.figures.style import DRAFT, GREY, INK, KEPT, REFUSED, TARGET, bare, figure, word, write
from specjax.rules.speculative import ratio
from specjax.sampling import residual


class Correction(NamedTuple):
    """Mass of each token. q = accepted + refused, and p = accepted + replaced."""

    p_V: np.ndarray
    q_V: np.ndarray
    accepted_V: np.ndarray
    refused_V: np.ndarray
    replaced_V: np.ndarray  # emitted in the place of refused drafts

    @property
    def acceptance(self) -> float:
        return float(self.accepted_V.sum())

    @property
    def rejection(self) -> float:
        return float(self.refused_V.sum())


def correction(p_V, q_V) -> Correction:
    """Of one place with the laws p and q."""
    p_V, q_V = np.asarray(p_V, np.float32), np.asarray(q_V, np.float32)
    accepted_V = q_V * np.asarray(ratio(p_V, q_V))
    refused_V = q_V - accepted_V
    return Correction(p_V, q_V, accepted_V, refused_V, refused_V.sum() * np.asarray(residual(p_V, q_V)))


def with_share(p_V, token: int, share: float) -> np.ndarray:
    """A draft's law that gives `token` this probability, and shares out the rest as the target does."""
    rest_V = np.where(np.arange(len(p_V)) == token, 0, np.asarray(p_V, np.float64))
    return rest_V * ((1 - share) / rest_V.sum()) + np.where(np.arange(len(p_V)) == token, share, 0)


def gathered(table: Correction, tokens: Sequence[int]) -> Correction:
    """The table of those tokens, and of all others as one last row."""
    others_V = np.ones(len(table.p_V), bool)
    others_V[list(tokens)] = False
    return Correction(*(np.append(x_V[list(tokens)], x_V[others_V].sum()) for x_V in table))


def draw(words: Sequence[str], table: Correction, top: float | None = None) -> Figure:
    """words: of each row of the table. top: where the vertical axis ends; by itself where it is None."""
    made = figure(9.4, 0.9 + 0.36 * max(len(words), 5))
    left, right = made.subplots(1, 2, width_ratios=(1, 1.45))
    _bars(left, words, table, top)
    _numbers(right, words, table)
    return made


def _bars(ax: Axes, words: Sequence[str], table: Correction, top: float | None) -> None:
    place_V, wide = np.arange(len(words)), 0.36
    ax.bar(place_V - wide / 2, table.accepted_V, wide, color=KEPT, label="accepted")
    ax.bar(place_V - wide / 2, table.refused_V, wide, bottom=table.accepted_V, color=REFUSED, label="refused")
    ax.bar(place_V + wide / 2, table.accepted_V, wide, color=KEPT)
    ax.bar(place_V + wide / 2, table.replaced_V, wide, bottom=table.accepted_V, color=TARGET, label="replaced")
    ax.set_xticks(place_V, [word(text, 7) for text in words], parse_math=False, fontsize=8.5)
    for place in place_V:
        for x, name in ((place - wide / 2, "q"), (place + wide / 2, "p")):
            ax.annotate(name, (x, 0), (0, -4), textcoords="offset points", ha="center", va="top", fontsize=8, color=GREY)
    ax.tick_params(axis="x", length=0, pad=15)
    ax.set_ylim(0, top or 1.12 * float(max(table.p_V.max(), table.q_V.max())))
    ax.spines[["top", "right"]].set_visible(False)
    ax.legend(frameon=False, fontsize=8, ncols=3, loc="lower center", bbox_to_anchor=(0.5, 1.0), handlelength=1.2, columnspacing=1.2)


def _numbers(ax: Axes, words: Sequence[str], table: Correction) -> None:
    heads = "token", "draft q", "accepted", "refused", "replaced", "target p"
    colours = INK, DRAFT, KEPT, REFUSED, TARGET, INK
    bare(ax, (0, 6), (-0.2, len(words) + 2.6))
    columns = table.q_V, table.accepted_V, table.refused_V, table.replaced_V, table.p_V
    for column, (head, colour) in enumerate(zip(heads, colours, strict=True)):
        write(ax, column + 0.5, 0.3, head, color=colour, weight="bold", fontsize=8.5)
    for row, text in enumerate(words):
        write(ax, 0.5, row + 1.2, word(text, 10))
        for column, x_V in enumerate(columns):
            write(ax, column + 1.5, row + 1.2, f"{x_V[row]:.3f}")
    ax.axhline(len(words) + 0.72, color=GREY, linewidth=0.8)
    write(ax, 0.5, len(words) + 1.2, "sum")
    for column, x_V in enumerate(columns):
        write(ax, column + 1.5, len(words) + 1.2, f"{x_V.sum():.3f}", weight="bold")
    said = f"acceptance {table.acceptance:.3f}, rejection {table.rejection:.3f}; accepted + replaced = p"
    write(ax, 3, len(words) + 2.2, said, fontsize=9)
