"""Packing: first-fit in the order of the texts, by hand; what is cut or skipped is counted."""

import numpy as np
import pytest

from specjax.training.pack import first_fit, pack


def text(begin, size, learnt=None):
    mask = np.arange(size) >= 1 if learnt is None else np.isin(np.arange(size), learnt)
    return np.arange(begin, begin + size), mask


def test_by_hand():
    packed, counts = pack([text(10, 3), text(20, 4), text(30, 2), text(40, 2, [1])], 5)
    assert packed.token_NT.tolist() == [[10, 11, 12, 30, 31], [20, 21, 22, 23, 0], [40, 41, 0, 0, 0]]
    assert packed.segment_NT.tolist() == [[1, 1, 1, 2, 2], [1, 1, 1, 1, 0], [1, 1, 0, 0, 0]]
    assert packed.position_NT.tolist() == [[0, 1, 2, 0, 1], [0, 1, 2, 3, 0], [0, 1, 0, 0, 0]]
    assert packed.mask_NT.astype(int).tolist() == [[0, 1, 1, 0, 1], [0, 1, 1, 1, 0], [0, 1, 0, 0, 0]]
    assert [x.dtype.name for x in packed] == ["int32", "bool", "int32", "int32"]
    assert counts == {"texts": 4, "cut": 0, "skipped": 0, "rows": 3, "tokens": 11, "learnt": 7}


def test_a_long_text_loses_its_end():
    packed, counts = pack([text(10, 7), text(20, 1), text(30, 6, [5]), text(40, 3, [0]), text(50, 5, [])], 5)
    assert packed.token_NT.tolist() == [[10, 11, 12, 13, 14]]
    assert counts == {"texts": 5, "cut": 2, "skipped": 4, "rows": 1, "tokens": 5, "learnt": 4}


def test_the_first_token_of_a_text_is_never_learnt():
    _, counts = pack([text(0, 3, [0, 2])], 4)
    assert counts["learnt"] == 1


def test_nothing_left():
    with pytest.raises(ValueError, match="none of 1 texts has anything to learn within 4 tokens"):
        pack([text(0, 3, [])], 4)


def test_first_fit_is_the_obvious_one():
    sizes = np.random.default_rng(0).integers(1, 17, 500).tolist()
    free, expected = [], []
    for size in sizes:
        row = next((i for i, room in enumerate(free) if room >= size), len(free))
        free += [16] * (row == len(free))
        free[row] -= size
        expected.append(row)
    assert first_fit(sizes, 16) == expected
