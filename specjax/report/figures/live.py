"""A figure with sliders and buttons where a kernel and ipywidgets are there, and the same figure as a picture everywhere else.

One output holds both: a front end that can show widgets takes them, any other (a page of rendered notebooks, a PDF) takes the picture.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from IPython.display import Image, display
from matplotlib.figure import Figure

from specjax.report.figures.style import png, width


class Slider(NamedTuple):
    """A number: its range, and where it starts; whole numbers step by whole ones."""

    label: str
    low: float
    high: float
    step: float
    start: float


class Choice(NamedTuple):
    """One of some values, by their labels."""

    options: Mapping[str, Any]
    start: Any


def picture(made: Figure) -> Image:
    """What a cell shows for a figure that does not change."""
    return Image(png(made), format="png", width=width(made))


def live(
    draw: Callable[..., Figure], controls: Mapping[str, Slider | Choice], buttons: Mapping[str, Mapping[str, Any]] | None = None
) -> None:
    """Show draw(**values) under its controls, which are named as its arguments. buttons: label -> values that it sets."""
    made = draw(**{name: control.start for name, control in controls.items()})
    still = {"image/png": base64.b64encode(png(made)).decode()}
    metadata = {"image/png": {"width": width(made)}}
    box = widget(draw, controls, buttons or {}, png(made), width(made))
    shown = {} if box is None else {k: v for k, v in box._repr_mimebundle_().items() if k != "text/plain"}
    display({**still, **shown}, metadata=metadata, raw=True)


def widget(draw, controls, buttons, first: bytes, wide: int):
    """The controls over the picture, which is drawn anew when one of them moves; None where there is no ipywidgets."""
    try:
        import ipywidgets
    except ImportError:
        return None
    made = {name: _control(ipywidgets, control) for name, control in controls.items()}
    image = ipywidgets.Image(value=first, format="png", layout={"width": f"{wide}px", "max_width": "100%"})

    def again(change=None):
        image.value = png(draw(**{name: one.value for name, one in made.items()}))

    def press(values):
        for one in made.values():
            one.unobserve(again, "value")
        for name, value in values.items():
            made[name].value = value
        for one in made.values():
            one.observe(again, "value")
        again()

    for one in made.values():
        one.observe(again, "value")
    pressed = []
    for label, values in buttons.items():
        button = ipywidgets.Button(description=label, layout={"width": "auto"})
        button.on_click(lambda _, values=values: press(values))
        pressed.append(button)
    row = ipywidgets.HBox([*made.values(), *pressed], layout={"flex_flow": "row wrap"})
    return ipywidgets.VBox([row, image])


def _control(ipywidgets, control: Slider | Choice):
    if isinstance(control, Choice):
        return ipywidgets.ToggleButtons(options=list(control.options.items()), value=control.start, style={"button_width": "auto"})
    label, low, high, step, start = control
    how = {"style": {"description_width": "initial"}, "layout": {"width": f"{165 + 8 * len(label)}px"}}
    if all(isinstance(x, int) for x in (low, high, step, start)):
        return ipywidgets.IntSlider(start, min=low, max=high, step=step, description=label, **how)
    return ipywidgets.FloatSlider(start, min=low, max=high, step=step, description=label, readout_format=".2f", **how)
