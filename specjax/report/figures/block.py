"""Figure 3: the K + 1 laws that one pass gives: the prefix that each may use, and what becomes of it."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure

from specjax.report.figures.style import FAINT, GREY, KEPT, PAPER, REFUSED, TARGET, bare, box, figure, word, write
from specjax.report.rounds import Round

LIKELIEST = 2


def draw(one: Round, likeliest: Sequence[Sequence[tuple[str, float]]]) -> Figure:
    """likeliest: of each of the K + 1 laws its likeliest tokens with their probabilities, the likeliest first."""
    tokens = (one.newest, *one.draft)
    if len(likeliest) != len(tokens):
        raise ValueError(f"{len(likeliest)} laws for {len(tokens)} tokens: there is one after each")
    count, wide = len(tokens), 0.95
    made = figure(9.4, 0.75 + 0.48 * count)
    ax = bare(made.add_subplot(), (-1.05, count * wide + 5.6), (-1.05, count + 0.05))
    write(ax, count * wide / 2, -0.8, "may use", color=GREY, fontsize=8.5)
    write(ax, count * wide + 0.25, -0.35, "the law of the next token", ha="left", color=GREY, fontsize=8.5)
    write(ax, count * wide + 3.1, -0.35, "what becomes of it", ha="left", color=GREY, fontsize=8.5)
    for place, text in enumerate(tokens):
        write(ax, (place + 0.5) * wide, -0.35, word(text), fontsize=8.5)
    for row in range(count):
        colour, said = fate(one, row)
        write(ax, -0.12, row + 0.5, f"law {row}", ha="right", color=GREY, fontsize=8.5)
        for place in range(count):
            box(ax, place * wide + 0.03, row + 0.06, wide - 0.06, 0.88, TARGET if place <= row else PAPER, dashed=place > row)
        law = "  ".join(f"{word(text)} {p:.2f}" for text, p in likeliest[row][:LIKELIEST])
        write(ax, count * wide + 0.25, row + 0.5, law, ha="left", fontsize=8.5, color=GREY if colour == FAINT else "black")
        write(ax, count * wide + 3.1, row + 0.5, said, ha="left", fontsize=8.5, color=GREY if colour == FAINT else colour)
    return made


def fate(one: Round, row: int) -> tuple[str, str]:
    """(colour, words): what becomes of the law after node `row` of a round."""
    judged, given = (f"“{word(text)}”" for text in ((*one.draft, "")[row], one.emitted))
    if row < one.accepted:
        return KEPT, f"judges {judged}: accepted"
    if row > one.accepted:
        return FAINT, "not used: stands on a refused token"
    if row == len(one.draft):
        return KEPT, f"judges nothing, gives the bonus: {given}"
    return REFUSED, f"judges {judged}: refused, gives {given}"
