"""What the figures share: colours, boxes with words, and how a figure becomes a picture.

Figures are made without pyplot, so that they leave no state behind and look the same with and without a notebook.
"""

from __future__ import annotations

import io

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from PIL import Image

INK, GREY, FAINT, PAPER = "#222222", "#8a8a8a", "#ececec", "#ffffff"
TARGET, DRAFT, KEPT, REFUSED = "#3f6fb5", "#e0a030", "#4f9d69", "#c4543f"
PALE = {TARGET: "#dbe6f5", DRAFT: "#fbeacb", KEPT: "#d9eede", REFUSED: "#f6d9d3", FAINT: FAINT, PAPER: PAPER}
DPI, SHOWN = 130, 90  # pixels an inch of the picture, and on the screen
COLOURS = 64  # a picture of lines needs no more, and is a third as large


def figure(width: float, height: float) -> Figure:
    """In inches."""
    return Figure(figsize=(width, height), dpi=DPI, layout="constrained", facecolor=PAPER)


def bare(ax: Axes, x: tuple[float, float], y: tuple[float, float]) -> Axes:
    """Without axes, for boxes; y grows downward."""
    ax.set(xlim=x, ylim=(y[1], y[0]))
    ax.set_axis_off()
    return ax


def png(made: Figure) -> bytes:
    """Of few colours: small enough to be kept in a notebook. An octree keeps a colour that few pixels have, such as that of one mark."""
    raw, small = io.BytesIO(), io.BytesIO()
    made.savefig(raw, format="png")
    few = Image.open(raw).convert("RGB").quantize(COLOURS, Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE)
    few.save(small, format="png", optimize=True)
    return small.getvalue()


def width(made: Figure) -> int:
    """Of the picture on the screen, in pixels."""
    return round(made.get_figwidth() * SHOWN)


def word(text: str, most: int = 9) -> str:
    """A token as a word in a box: a line's end as \\n, blanks that nothing follows as ␣, cut where it is long."""
    text = "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
    text = text.removeprefix(" ") or "␣"
    text = "␣" * len(text) if text.isspace() else text
    return text if len(text) <= most else text[: most - 1] + "…"


def write(ax: Axes, x: float, y: float, text: str, **how) -> None:
    """Words are no formulas: a $ is a $."""
    options = {"ha": "center", "va": "center", "fontsize": 9, "color": INK, "parse_math": False}
    ax.text(x, y, text, **options | how)


def box(ax: Axes, x: float, y: float, wide: float, high: float, colour: str, text: str = "", *, dashed=False, **how) -> None:
    """A box with its corner at (x, y) and a word in the middle."""
    edge = GREY if colour in (FAINT, PAPER) else colour
    style = {"facecolor": PALE[colour], "edgecolor": edge, "linewidth": 1.0, "linestyle": "--" if dashed else "-"}
    ax.add_patch(Rectangle((x, y), wide, high, **style))
    if text:
        write(ax, x + wide / 2, y + high / 2, text, **how)
