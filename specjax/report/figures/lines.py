"""A line for each of some series over the same places."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure

from specjax.report.figures.style import DRAFT, INK, KEPT, REFUSED, TARGET, figure

COLOURS = TARGET, DRAFT, KEPT, REFUSED, INK
MARKS = "osD^v"


def draw(places: Sequence[float], series: Mapping[str, Sequence[float]], xlabel: str, ylabel: str, low: float | None = None) -> Figure:
    """low: where the vertical axis begins; by itself where it is None."""
    made = figure(7.6, 3.4)
    ax = made.add_subplot()
    for i, (name, values) in enumerate(series.items()):
        size = 3 + len(series) - i  # earlier ones are larger, so that they are seen behind an equal one
        ax.plot(places, values, color=COLOURS[i % 5], marker=MARKS[i % 5], markersize=size, linewidth=1.4, label=name)
    ax.set(xlabel=xlabel, ylabel=ylabel, xticks=list(places) if len(places) <= 12 else ax.get_xticks())
    ax.set_ylim(bottom=low)
    ax.spines[["top", "right"]].set_visible(False)
    ax.legend(frameon=False, fontsize=8.5, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return made
