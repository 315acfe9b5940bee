"""The bound that no rule can pass at one place."""

import numpy as np
import pytest

from specjax import certify
from specjax.certify import cases, drafts
from specjax.shapes import parse

ROWS = {  # laws -> bounds for 1, 2 and 3 children
    "A": {"iid": (0.85, 1, 1), "without_replacement": (0.85, 1, 1), "fixed": (0.5, 0.8, 0.95)},
    "B": {"iid": (0.7, 0.94, 1), "without_replacement": (0.7, 1, 1), "fixed": (0.3, 0.8, 1)},
    "toy": {"iid": (2 / 3, 8 / 9), "without_replacement": (2 / 3, 1), "fixed": (1 / 3, 1)},
}


@pytest.mark.parametrize(("laws", "drawn"), [(laws, drawn) for laws, row in ROWS.items() for drawn in row])
def test_worked_bounds(laws, drawn):
    for children, bound in enumerate(ROWS[laws][drawn], start=1):
        assert certify.bound(*cases.HAND[laws], children, drawn) == pytest.approx(bound, abs=1e-12)


def test_too_many_tokens_are_refused():
    with pytest.raises(ValueError, match="p has 25 tokens: the bound tries all sets of them, for at most 21"):
        certify.bound(np.full(25, 0.04), np.full(25, 0.04), 1, "iid")


# ---------------------------------------------------------------- the drafts it rests on


def drawn(how, children, q):
    """Probability of each draft of so many children; None stands for one that could not be drawn."""
    shape = parse((children,))
    every = drafts.every(shape, [np.asarray([q])], how, np.ones(shape.nodes, bool))
    token_DK = np.where(every.valid_DM, every.token_DM, None)[:, 1:]
    tokens = [tuple(row) for row in token_DK.tolist()]
    assert len(set(tokens)) == len(tokens)
    return dict(zip(tokens, every.weight_D, strict=True))


def test_every_draft_and_its_probability():
    q = [0.75, 0.25, 0]
    assert drawn("iid", 2, q) == pytest.approx({(0, 0): 0.5625, (0, 1): 0.1875, (1, 0): 0.1875, (1, 1): 0.0625})
    assert drawn("without_replacement", 2, q) == pytest.approx({(0, 1): 0.75, (1, 0): 0.25})
    assert drawn("without_replacement", 3, q) == pytest.approx({(0, 1, None): 0.75, (1, 0, None): 0.25})
    assert drawn("fixed", 2, q) == {(0, 1): 1}
    assert drawn("fixed", 3, q) == {(0, 1, 2): 1}
    assert drawn("without_replacement", 2, [0.5, 0.25, 0.25])[2, 1] == pytest.approx(0.25 * 0.25 / 0.75)


def test_a_child_is_drawn_after_its_parents_token():
    q = [np.asarray([[0.5, 0.5]]), np.asarray([[1, 0], [0, 1]])]
    every = drafts.every(parse("2x1"), q, "iid", np.ones(5, bool))
    np.testing.assert_array_equal(every.token_DM[:, 3:], every.token_DM[:, 1:3])  # each child repeats its parent
    np.testing.assert_array_equal(every.weight_D, np.full(4, 0.25))
    np.testing.assert_array_equal(every.code_DM[:, 3], 3 * every.token_DM[:, 1])
