"""Figure 2: rounds in three steps: what is drafted, what the target says of it, what is kept."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from specjax.report.figures.style import DRAFT, FAINT, GREY, KEPT, PAPER, REFUSED, TARGET, bare, box, figure, word, write
from specjax.report.rounds import Round

STEPS = "1 draft", "2 verify", "3 keep"
WIDE, HIGH, LEFT = 1.0, 0.75, 1.5


def draw(rounds: Sequence[Round], step: int = 3) -> Figure:
    """step: 1 shows the drafts, 2 also what the target says, 3 also what is kept."""
    made = figure(8.6, 1.62 * len(rounds))
    places = max(len(one.draft) for one in rounds) + 1
    for ax, one in zip(made.subplots(len(rounds), squeeze=False)[:, 0], rounds, strict=True):
        _round(bare(ax, (-0.1, LEFT + places * WIDE), (-0.62, 3 * HIGH + 0.2)), one, step)
    return made


def _round(ax: Axes, one: Round, step: int) -> None:
    write(ax, 0, -0.35, title(one, step), ha="left", weight="bold", in_layout=False)
    kept = len(one.said)
    for row, name in enumerate(("the draft", "the target", "kept")):
        if row < step:
            write(ax, LEFT - 0.55, row * HIGH + HIGH / 2, name, ha="right", color=GREY)
    write(ax, LEFT - 0.27, HIGH / 2, word(one.newest, 7), fontsize=8, color=GREY)
    for place, text in enumerate(one.draft):
        colour = DRAFT if step < 3 else KEPT if place < one.accepted else REFUSED if place == one.accepted else FAINT
        discarded = step == 3 and place > one.accepted
        _cell(ax, place, 0, colour, text, dashed=discarded, color=GREY if discarded else "black")
    said = (*one.draft[: one.accepted], one.emitted)
    for place in range(len(one.draft) + 1):
        if step >= 2 and place < len(said):
            _cell(ax, place, 1, TARGET, said[place])
        elif step >= 2:
            _cell(ax, place, 1, PAPER, "not used", dashed=True, color=GREY, fontsize=8)
        if step >= 3 and place < kept:
            _cell(ax, place, 2, KEPT if place < one.accepted else TARGET, said[place])


def _cell(ax: Axes, place: int, row: int, colour: str, text: str, **how) -> None:
    box(ax, LEFT + place * WIDE + 0.03, row * HIGH + 0.05, WIDE - 0.06, HIGH - 0.1, colour, word(text, 11), **how)


def title(one: Round, step: int = 3) -> str:
    """What becomes of a round, in a line."""
    drafted = f"{len(one.draft)} drafted" if step < 3 else f"{one.outcome}: {one.accepted} of {len(one.draft)} accepted"
    if step < 3:
        return drafted
    last = "the bonus token" if one.accepted == len(one.draft) else "the target's own"
    discarded = len(one.draft) - one.accepted - 1
    thrown = f", {discarded} after it discarded" if discarded > 0 else ""
    cut = "" if len(one.said) == one.accepted + 1 else " (the text ends here)"
    return f"{drafted}, then {last}{thrown}: {len(one.said)} token{'s' * (len(one.said) != 1)} from one pass{cut}"
