"""What the figures of the notebooks say, and that their sliders draw them anew. Needs the extra `notebooks`."""

import io
import re
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("matplotlib")
pytest.importorskip("IPython")

from specjax import certify, rules
from specjax.report.figures import block, correction, schedule, speedup, style
from specjax.report.figures import rounds as stepped
from specjax.report.figures.live import Choice, Slider, live, picture, widget
from specjax.report.rounds import Round

pytestmark = pytest.mark.notebooks
P = (0.2, 0.5, 0.3)
MIDDLE = Round(0, "the", ("cat", "sat", "in", "a"), 2, "on", ("cat", "sat", "on"))
ALL = Round(0, "the", ("cat", "sat", "on", "a"), 4, "mat", ("cat", "sat", "on", "a", "mat"))
FIRST = Round(0, "the", ("dog", "sat", "on", "a"), 0, "cat", ("cat",))


def texts(made) -> list[str]:
    """All that stands in a figure."""
    ticks = [label for ax in made.axes if ax.axison for label in ax.get_xticklabels()]
    return [t.get_text() for t in [*(t for ax in made.axes for t in [*ax.texts, ax.title]), *ticks] if t.get_text()]


# ---------------------------------------------------------------- numbers


def test_the_correction_of_a_draft_that_says_a_token_too_often():
    table = correction.correction(P, correction.with_share(P, 0, 0.5))
    np.testing.assert_allclose(table.q_V, [0.5, 0.3125, 0.1875], atol=1e-7)
    np.testing.assert_allclose(table.accepted_V, [0.2, 0.3125, 0.1875], atol=1e-7)
    np.testing.assert_allclose(table.refused_V, [0.3, 0, 0], atol=1e-7)
    np.testing.assert_allclose(table.replaced_V, [0, 0.1875, 0.1125], atol=1e-7)
    assert (table.acceptance, table.rejection) == pytest.approx((0.7, 0.3), abs=1e-6)


@pytest.mark.parametrize("share", [0.0, 0.2, 0.5, 1.0])
def test_the_correction_is_the_rules_own(share):
    """What is accepted and what comes out are those of the enumerated rule."""
    q_V = correction.with_share(P, 0, share)
    table, exact = correction.correction(P, q_V), certify.exact_law(rules.Speculative(), P, q_V, 1)
    assert 1 + table.acceptance == pytest.approx(exact.expected_tokens, abs=1e-6)
    np.testing.assert_allclose(table.accepted_V + table.replaced_V, exact.first(exact.law_S), atol=1e-6)
    np.testing.assert_allclose(table.accepted_V + table.refused_V, table.q_V, atol=1e-7)


def test_a_draft_equal_to_the_target_is_not_refused():
    q_V = correction.with_share(P, 0, P[0])
    np.testing.assert_allclose(q_V, P, atol=1e-12)
    assert correction.correction(P, q_V).rejection == 0


def test_the_rest_of_a_table_is_one_row():
    table = correction.gathered(correction.correction(P, correction.with_share(P, 0, 0.5)), [0])
    np.testing.assert_allclose(table.accepted_V, [0.2, 0.5], atol=1e-6)
    np.testing.assert_allclose(table.replaced_V, [0, 0.3], atol=1e-6)


def test_the_speedup_that_the_tutorial_starts_from():
    assert speedup.told(0.8, 4, 0.10, 1.0) == "K = 4: 3.36 / 1.40 = 2.40; best: K = 6, 2.47"
    assert speedup.told(0.1, 4, 0.50, 1.0) == "K = 4: 1.11 / 3.00 = 0.37; best: not to draft"


def test_the_cost_of_a_schedule():
    passes = schedule.Pass(4, 1.0, ("the", "cat", "sat")), schedule.Pass(4, 1.5, ("on", "a", "mat"))
    assert schedule.seconds(passes, 0.1) == pytest.approx(3.3)
    said = texts(schedule.draw(passes, 0.1))
    assert "plain: 6 passes for 6 tokens, 6.0 plain steps" in said
    assert "speculative: 2 passes for 6 tokens, 3.3 plain steps" in said and "the\ncat\nsat" in said


# ---------------------------------------------------------------- what is drawn


def test_what_becomes_of_a_round():
    assert (
        stepped.title(MIDDLE)
        == "refused in the middle: 2 of 4 accepted, then the target's own, 1 after it discarded: 3 tokens from one pass"
    )
    assert stepped.title(ALL) == "all accepted: 4 of 4 accepted, then the bonus token: 5 tokens from one pass"
    assert stepped.title(FIRST) == "first refused: 0 of 4 accepted, then the target's own, 3 after it discarded: 1 token from one pass"
    assert stepped.title(ALL._replace(said=("cat",))).endswith("1 token from one pass (the text ends here)")


def test_a_round_is_shown_step_by_step():
    counts = [len(texts(stepped.draw([MIDDLE], step))) for step in (1, 2, 3)]
    assert counts == [2 + 1 + 4, 2 + 1 + 4 + 1 + 5, 2 + 1 + 4 + 1 + 5 + 1 + 3]  # title, newest word, and of each row its name and boxes
    assert texts(stepped.draw([MIDDLE], 2)).count("not used") == 2


def test_the_fate_of_each_law():
    said = [block.fate(MIDDLE, row)[1] for row in range(5)]
    unused = "not used: stands on a refused token"
    assert said == ["judges “cat”: accepted", "judges “sat”: accepted", "judges “in”: refused, gives “on”", unused, unused]
    assert block.fate(ALL, 4)[1] == "judges nothing, gives the bonus: “mat”"
    laws = [[(word, 1.0)] for word in ("cat", "sat", "on", "a", "mat")]
    drawn = texts(block.draw(ALL, laws))
    assert {"law 0", "law 4", "cat 1.00", "mat 1.00"} <= set(drawn)
    with pytest.raises(ValueError, match="4 laws for 5 tokens"):
        block.draw(ALL, laws[1:])


def test_the_table_of_a_correction():
    said = texts(correction.draw("ABC", correction.correction(P, correction.with_share(P, 0, 0.5))))
    assert "acceptance 0.700, rejection 0.300; accepted + replaced = p" in said
    assert said.count("1.000") == 2 and {"0.500", "0.700"} <= set(said)


def test_measured_arms_stand_beside_the_curve():
    row = {"rates": [0.5, 0.5], "v": {"1": 1.0, "2": 1.1, "3": 1.2}, "c": 0.1}
    arms = [(1, {"speedup": {"low": 1.2, "value": 1.3, "high": 1.4}}), (2, {"speedup": {"low": None, "value": 1.2, "high": None}})]
    made = speedup.draw_measured(arms, (1, 2, 3), row)
    curve = next(line for line in made.axes[1].lines if line.get_label() == "from these rates, c and v")
    np.testing.assert_allclose(curve.get_ydata(), [1.5 / 1.2, 1.75 / 1.4])
    assert "c = 0.100, v(1) = 1.00, v(2) = 1.10, v(3) = 1.20" in texts(made)


@pytest.mark.parametrize(
    ("text", "said"), [(" the", "the"), ("\n", "\\n"), ("  ", "␣"), (" ", "␣"), ("$x$", "$x$"), ("extraordinary", "extraord…")]
)
def test_tokens_as_words(text, said):
    assert style.word(text) == said


def test_a_picture_is_small_and_of_the_right_size():
    from PIL import Image

    shown = picture(speedup.draw())
    assert len(shown.data) < 40_000 and shown.width == 810
    assert Image.open(io.BytesIO(shown.data)).size == (1170, 429)


def test_a_mark_of_few_pixels_keeps_its_colour():
    from PIL import Image, ImageColor

    colours = [np.array(rgb) for _, rgb in Image.open(io.BytesIO(style.png(speedup.draw()))).convert("RGB").getcolors()]
    for colour in (style.REFUSED, style.TARGET, style.DRAFT):
        assert min(np.abs(rgb - ImageColor.getrgb(colour)).max() for rgb in colours) <= 3


@pytest.mark.parametrize(("alpha", "c", "v"), [(0.0, 0.0, 3.0), (0.5, 0.0, 2.5), (0.99, 1.0, 3.0)])
def test_no_line_runs_through_a_legend(alpha, c, v):
    made = speedup.draw(alpha, 4, c, v)
    made.canvas.draw()
    left = made.axes[0]
    legend = left.get_legend().get_window_extent()
    for line in left.get_lines():
        assert not legend.count_contains(left.transData.transform(line.get_xydata()))


# ---------------------------------------------------------------- sliders


@pytest.fixture
def asked():
    """(values that a figure was drawn with, its draw)."""
    seen = []

    def draw(**values):
        seen.append(values)
        return speedup.draw(**{name: value for name, value in values.items() if name != "step"})

    return seen, draw


CONTROLS = {"alpha": Slider("alpha", 0.0, 0.99, 0.01, 0.8), "k": Slider("K", 1, 12, 1, 4), "step": Choice({"one": 1, "two": 2}, 1)}


def test_a_slider_draws_anew(asked):
    pytest.importorskip("ipywidgets")
    seen, draw = asked
    row, image = widget(draw, CONTROLS, {"reset": {"alpha": 0.5, "k": 2}}, b"first", 810).children
    alpha, k, step, reset = row.children
    assert (alpha.value, k.value, step.value, image.value, reset.description) == (0.8, 4, 1, b"first", "reset") and not seen
    k.value = 6
    before = bytes(image.value)
    assert seen == [{"alpha": 0.8, "k": 6, "step": 1}] and before.startswith(b"\x89PNG")
    reset.click()
    assert seen[1:] == [{"alpha": 0.5, "k": 2, "step": 1}] and bytes(image.value) != before  # drawn once
    alpha.value = 0.6
    assert seen[2:] == [{"alpha": 0.6, "k": 2, "step": 1}]


def test_without_ipywidgets_there_is_the_picture(asked, monkeypatch):
    seen, draw = asked
    shown = []
    monkeypatch.setitem(sys.modules, "ipywidgets", None)
    monkeypatch.setattr(sys.modules[live.__module__], "display", lambda data, **how: shown.append((data, how)))
    live(draw, CONTROLS)
    [(data, how)] = shown
    assert list(data) == ["image/png"] and how == {"metadata": {"image/png": {"width": 810}}, "raw": True}
    assert seen == [{"alpha": 0.8, "k": 4, "step": 1}]


def test_colours_are_named_once():
    """A figure takes its colours from `style`."""
    for path in Path(style.__file__).parent.glob("*.py"):
        assert path.name == "style.py" or not re.search(r"#[0-9a-f]{6}", path.read_text(encoding="utf-8")), path
