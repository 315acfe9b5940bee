"""The command that finds the best static tree."""

import numpy as np
import pytest
import tiny_run

from specjax import best_tree, theory


@pytest.fixture
def said(capsys):
    """(exit code, lines) of the command."""

    def call(*args):
        code = 0
        try:
            best_tree.main(list(args))
        except SystemExit as stop:
            code = stop.code
        printed = capsys.readouterr()
        return code, (printed.out or printed.err).splitlines()

    return call


def test_rates_given_by_hand(said):
    code, lines = said("--rates=.6 .2, .5 .1", "--v=1:1 4:1.2 8:1.5", "--c=.05", "--most=7")
    assert code == 0
    assert lines == [
        "nodes  tokens   cost  speedup  tree",
        "    4   2.100  1.300    1.615  0 1 0.0",
        "    8   2.460  1.650    1.491  0 1 0.0 0.1 1.0 0.0.0 1.0.0",
        "best: shape=[[0], [1], [0, 0]]",
    ]
    shape = theory.best_tree([[0.6, 0.2]] + [[0.5, 0.1]] * 6, {1: 1.0, 4: 1.2, 8: 1.5}, 0.05, 7).shape
    assert shape.paths == ((0,), (1,), (0, 0))


def test_no_depth_is_tried_that_no_width_holds(said):
    code, lines = said("--rates=.5", "--v=1:1 4:1.2", "--c=0", f"--most={10**6}")
    assert (code, lines[-1]) == (0, "best: shape=[[0], [0, 0], [0, 0, 0]]")


def test_nothing_pays(said):
    assert said("--rates=.5", "--v=4:1.2", "--c=2")[1][1:] == ["    1   1.000  1.000    1.000  -", "best: no drafts, since none pays"]


def test_the_rates_of_an_arm(said):
    workdir, summary = tiny_run.finished()
    code, lines = said(str(workdir.path), "--arm=draft model")
    [row] = [row for row in summary["arms"] if row["name"] == "draft model"]
    assert code == 0
    assert lines[:5] == ["depth  rates by rank", *(f"{i:>5}  {rate or 0:.3f}" for i, rate in enumerate(row["rates"], 1)), lines[4]]
    assert lines[4].startswith("nodes") and lines[-1].startswith("best: ")


@pytest.mark.parametrize(
    ("args", "says"),
    [
        ([], "--rates is missing: give a workdir and --arm, or --rates, --v and --c"),
        (["--rates=.6 x", "--v=1:1", "--c=0"], "--rates: 'x' must be a number"),
        (["--rates=.6", "--v=1", "--c=0"], "--v: '' must be a number"),
        (["--rates=.6", "--v=", "--c=0"], "v={} must have the cost of at least one width"),
        (["--rates=.6", "--v=1:1", "--c=x"], "argument --c: invalid float value: 'x'"),
        (["--rates=.6", "--v=1:1", "--c=0", "--most=0"], "--most=0 must be at least 1"),
        (["--rates=6", "--v=1:1", "--c=0"], "rate 6.0 at depth 1, rank 0, must be between 0 and 1"),
        (["nowhere", "--arm=x"], "--arm='x' has no records in nowhere; its arms: none: it holds no run"),
        (["nowhere"], "--arm is missing: give a workdir and --arm, or --rates, --v and --c"),
        (["nowhere", "--arm=x", "--c=1"], "--c changes nothing beside a workdir: leave it out"),
        (["--rates=.6", "--v=1:1", "--c=0", "--arm=x"], "--arm changes nothing without a workdir: leave it out"),
        (["--rates=.6", "--v=inf:1", "--c=0"], "--v: inf must be a number of at least 1"),
        (["--rates=.6", "--v=1.7:1", "--c=0"], "--v: the width 1.7 must be a whole number"),
        (["--rates=.6", "--v=2:0", "--c=0"], "--v: 0 must be a number of at least 1e-06"),
        (["--rates=.6", "--v=2:1", "--c=-1"], "--c: -1 must be a number of at least 0"),
        (["--what"], "unrecognized arguments: --what"),
    ],
)
def test_refused_in_one_line(said, args, says):
    assert said(*args) == (2, [f"error: {says}"])


def test_an_arm_that_is_not_there(said):
    workdir, _ = tiny_run.finished()
    code, [line] = said(str(workdir.path), "--arm=nobody")
    assert code == 2 and line.endswith("its arms: plain greedy, plain t=0.7, match, one, coupled, p/q, draft model")


def test_an_arm_that_drafts_nothing(said):
    workdir, _ = tiny_run.finished()
    assert said(str(workdir.path), "--arm=plain greedy") == (2, ["error: nothing was drafted in these rounds, so they have no rates"])


def test_the_trace_of_a_tree_says_where_its_nodes_hang():
    """Two rounds: 0 -> (1, 2), 1 -> 3, and 0 -> 1 alone."""
    trace = {"token_BNM": np.zeros((2, 4)), "up_BNM": np.asarray([[0, 1, 2, 2], [0, 1, 0, 0]]), "stop_BN": np.asarray([3, 0])}
    parent_NM, valid_NM, stop_N = best_tree.tree_of(trace)
    assert best_tree.deepest(parent_NM, valid_NM) == 2 and best_tree.deepest(parent_NM[1:], valid_NM[1:]) == 1
    assert parent_NM[0].tolist() == [0, 0, 0, 1] and valid_NM.tolist() == [[True] * 4, [True, True, False, False]]
    np.testing.assert_array_equal(theory.rates_from_trees(parent_NM, valid_NM, stop_N), [[0.5, 0.0], [1.0, np.nan]])
