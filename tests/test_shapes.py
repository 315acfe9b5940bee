import numpy as np
import pytest

from specjax import shapes


def test_paths_of_widths_and_of_a_list():
    tree = shapes.parse([[0], [1], [0, 0], [0, 1], [1, 0]])  # the tree of reference_values.txt
    assert tree.depth_M.tolist() == [0, 1, 1, 2, 2, 2]
    assert tree.parent_M.tolist() == [0, 0, 0, 1, 1, 2]
    assert tree.rank_M.tolist() == [0, 0, 1, 0, 1, 0]
    assert (tree.nodes, tree.depth, tree.chain) == (6, 2, False)
    assert shapes.parse("2x1") == shapes.parse((2, 1)) == shapes.parse([(1, 0), (0,), (1,), (0, 0)])
    assert shapes.parse("1x1x1") == shapes.chain(3) and shapes.chain(3).chain
    np.testing.assert_array_equal(shapes.chain(3).parent_M, [0, 0, 1, 2])


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("2x0", "must be widths like"),
        ("", "must be widths like"),
        ((2, 0), "each width must be at least 1"),
        ([(0, 0)], r"path \(0, 0\) is there without \(0,\)"),
        ([(1,)], r"path \(1,\) is there without \(0,\)"),
        ([(0,), ()], "at least one"),
        ([(0,), (0,)], "each once"),
        ([], "at least one path"),
        (5, "tree=5 must be widths like"),
        ([(0,), 1], "must be widths like"),
        ([(0,), ([1],)], r"path \(\[1\],\) must be whole numbers"),
        ("9999x9999x9999x9999", "has more than 4096 nodes"),
        ((64, 64), "64x64 has more than 4096 nodes"),
    ],
)
def test_what_is_no_tree_is_refused(given, says):
    with pytest.raises(ValueError, match=says):
        shapes.parse(given)
