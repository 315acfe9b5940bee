"""Rules that are not exact: what they accept, and the law of a token that each declares as its own."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import rules, shapes
from specjax.rules import relaxed
from specjax.types import Tree

A = np.float32([0.5, 0.3, 0.15, 0.05]), np.float32([0.4, 0.4, 0.1, 0.1])
B = np.float32([0.3, 0.5, 0.2, 0]), np.float32([0.6, 0.3, 0.1, 0])
RULES = [
    rules.Lenient(lenience=0.8),
    rules.Lenient(lenience=0.8, scaled_residual=False),
    rules.ArgmaxLenience(lenience=0.5),
    rules.Typical(epsilon=0.25, delta=0.9),
    rules.Relaxed(top=2, delta=0.3),
    rules.Cascade(delta=0.05),
    rules.Cascade(delta=0.5),
    rules.Synthetic(rates=(0.9, 0.2)),
]
judge = jax.jit(lambda rule, *row: rule(*row))


def tree_of(shape, drawn="fixed"):
    """The tree of a shape, all of it drawn."""
    shape = shapes.parse(shape)
    index = [jnp.asarray(x) for x in (shape.parent_M, shape.depth_M, shape.rank_M)]
    return Tree(
        **dict(zip(("parent_M", "depth_M", "rank_M"), index, strict=True)), valid_M=jnp.ones(shape.nodes, bool), drawn=drawn, chain=False
    )


def judged(rule, shape, token_M, p_MV, q_MV=None, drawn="fixed"):
    tree, p_MV = tree_of(shape, drawn), jnp.asarray(p_MV, jnp.float32)
    return judge(rule, tree, jnp.asarray(token_M, jnp.int32), p_MV, p_MV if q_MV is None else jnp.asarray(q_MV))


def first_token(rule, p_V, q_V):
    """Its law, summed over the drafts of one token."""
    law_V = np.zeros(len(p_V))
    for x, weight in enumerate(q_V):
        law = judged(rule, (1,), [0, x], np.stack([p_V, p_V]), np.stack([q_V, q_V]), "iid")
        law_V += weight * float(law.stop_M[0]) * np.asarray(law.emit_MV[0])
        law_V[x] += weight * float(law.stop_M[1])
    return law_V


def accepts(rule, p_V):
    """The tokens that are kept when drafted."""
    return [x for x in range(len(p_V)) if judged(rule, (1,), [0, x], np.stack([p_V, p_V]), drawn="iid").stop_M[1] == 1]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
@pytest.mark.parametrize(("p_V", "q_V"), [A, B, B[::-1], (B[0], B[0])], ids=["A", "B", "B reversed", "p = q"])
def test_the_law_of_a_token_is_the_declared_one(rule, p_V, q_V):
    declared_MV = rule.token_law(jnp.asarray(np.stack([p_V, p_V])), jnp.asarray(np.stack([q_V, q_V])))
    np.testing.assert_allclose(first_token(rule, p_V, q_V), declared_MV[0], atol=1e-6)


@pytest.mark.parametrize(
    ("lenience", "unscaled", "scaled"),
    [
        (1.0, [0.3, 0.5, 0.2, 0], [0.3, 0.5, 0.2, 0]),
        (0.8, [0.375, 0.45, 0.175, 0], [0.375, 0.4539473684, 0.1710526316, 0]),
        (0.2, [0.6, 0.3, 0.1, 0], [0.6, 0.3, 0.1, 0]),
    ],
)
def test_token_law_of_lenience(lenience, unscaled, scaled):
    for flag, expected in ((False, unscaled), (True, scaled)):
        law_MV = rules.Lenient(lenience=lenience, scaled_residual=flag).token_law(jnp.asarray(B[0])[None], jnp.asarray(B[1])[None])
        np.testing.assert_allclose(law_MV[0], expected, atol=1e-6)


def test_token_laws_of_case_a():
    laws = {
        rules.ArgmaxLenience(lenience=0.5): [0.4 + 0.2, 0.4, 0, 0],
        rules.Typical(): [0.4 + 0.1 * 0.5, 0.4 + 0.1 * 0.3, 0.1 + 0.1 * 0.15, 0.1 * 0.05],
        rules.Relaxed(top=3, delta=0.25): [0.4 + 0.2, 0.4, 0, 0],
        rules.Relaxed(top=3, delta=0.375): [0.4 + 0.1, 0.4, 0.1, 0],
        rules.Cascade(delta=0.05): A[0],
        rules.Cascade(delta=0.2): A[1],
    }
    for rule, expected in laws.items():
        np.testing.assert_allclose(rule.token_law(*(jnp.asarray(law)[None] for law in A))[0], expected, atol=1e-6)


@pytest.mark.parametrize(
    ("p_V", "threshold", "count"),
    [(A[0], 0.09, 3), ([0.97, 0.01, 0.01, 0.01], 0.09, 1), (np.full(20, 0.05), 0.015, 20), ([0.5, 0.5], 0.09, 2)],
)
def test_what_typical_acceptance_keeps(p_V, threshold, count):
    p_V = np.float32(p_V)
    assert float(rules.Typical().threshold(jnp.asarray(p_V)[None])[0]) == pytest.approx(threshold, rel=1e-3)
    assert accepts(rules.Typical(), p_V) == list(range(count))


def test_typical_acceptance_is_strict():
    assert accepts(rules.Typical(epsilon=0.25, delta=1.0), np.float32([0.5, 0.25, 0.25])) == [0]


@pytest.mark.parametrize(
    ("p_M", "stop"),
    [
        ((0.6, 0.4, 0.5, 0.05, 0.5, 0.5), 3),  # 0.6 x 0.5 is likelier than 0.4 x 0.5
        ((0.3, 0.5, 0.5, 0.05, 0.5, 0.5), 5),  # the first of two equally likely paths
        ((0.05, 0.5, 0.9, 0.05, 0.5, 0.05), 5),  # the longest: a path ends where its first token is refused
        ((0.6, 0.3, 0.05, 0.05, 0.05, 0.05), 1),
        ((0.05, 0.05, 0.5, 0.5, 0.5, 0.5), 0),
    ],
)
def test_typical_acceptance_takes_the_longest_path_and_then_the_likeliest(p_M, stop):
    """Tree (2, 2); token of node m is m, with the probability p_M says under its parent's law."""
    p_MV = np.full((7, 8), 0.0)
    for node, (parent, chance) in enumerate(zip((0, 0, 1, 1, 2, 2), p_M, strict=True), start=1):
        p_MV[parent, node] = chance
    p_MV[:, 7] = 1 - p_MV.sum(1)
    law = judged(rules.Typical(), (2, 2), range(7), p_MV)
    np.testing.assert_array_equal(law.stop_M, np.eye(7)[{0: 0, 1: 1, 3: 3, 5: 5}[stop]])
    np.testing.assert_array_equal(law.emit_MV, np.float32(p_MV))


def test_argmax_lenience_keeps_what_is_near_the_best():
    assert accepts(rules.ArgmaxLenience(lenience=0.5), A[0]) == [0, 1]
    assert accepts(rules.ArgmaxLenience(lenience=1), np.float32([0.4, 0.2, 0.4])) == [0, 2]


@pytest.mark.parametrize("place", [1, relaxed.FEW, relaxed.FEW + 1, 10**6])
def test_the_token_at_a_place_is_found_with_and_without_a_sort(place):
    law_MV = np.random.default_rng(0).permuted(np.repeat(np.arange(100, dtype=np.float32), 2)[None].repeat(3, axis=0), axis=1)
    right = np.sort(law_MV, axis=1)[:, ::-1][:, min(place, 200) - 1]
    np.testing.assert_array_equal(relaxed.largest(law_MV, np.int32(place))[:, 0], right)


def test_relaxed_acceptance_needs_both_the_rank_and_the_gap():
    assert accepts(rules.Relaxed(top=1, delta=1), A[0]) == [0]
    assert accepts(rules.Relaxed(top=3, delta=1), A[0]) == [0, 1, 2]
    assert accepts(rules.Relaxed(top=3, delta=0.25), A[0]) == [0, 1]
    assert accepts(rules.Relaxed(top=99, delta=1), A[0]) == [0, 1, 2, 3]
    assert accepts(rules.Relaxed(top=2, delta=1), np.float32([0.4, 0.3, 0.3])) == [0, 1, 2]  # tied with the last one
    law = judged(rules.Relaxed(top=3, delta=0.25), (1,), [0, 1], np.stack([A[0], B[0]]), drawn="iid")
    np.testing.assert_array_equal(law.emit_MV, np.eye(4)[[0, 1]])


def test_a_cascade_keeps_a_sure_draft_and_takes_the_bonus_from_p():
    p_MV, q_MV = (np.stack([law, law]) for law in A)
    law = judged(rules.Cascade(delta=0.2), (1,), [0, 3], p_MV, q_MV, "iid")
    np.testing.assert_array_equal(law.stop_M, [0, 1])
    np.testing.assert_array_equal(law.emit_MV[1], A[0])
    law = judged(rules.Cascade(delta=0.05), (1,), [0, 3], p_MV, q_MV, "iid")
    np.testing.assert_allclose(law.stop_M, [0.5, 0.5], atol=1e-6)


def test_synthetic_rates_hold_per_place():
    p_MV = np.tile(A[0], (5, 1))
    tokens = np.arange(1, 6) @ np.asarray(judged(rules.Synthetic(rates=(0.9, 0.8, 0.7)), (1,) * 4, [0] * 5, p_MV).stop_M)
    assert float(tokens) == pytest.approx(3.124 + 0.9 * 0.8 * 0.7 * 0.7, abs=1e-5)  # the fourth place has the third's rate
    tokens = np.arange(1, 5) @ np.asarray(judged(rules.Synthetic(rates=[0.9, 0.8, 0.7]), (1,) * 3, [0] * 4, p_MV[:4]).stop_M)
    assert float(tokens) == pytest.approx(3.124, abs=1e-5)


@pytest.mark.parametrize(
    "rule", [rules.Speculative(), rules.Block(), rules.Lenient(lenience=0.5), rules.Cascade(delta=0.0)], ids=lambda r: r.name
)
def test_fixed_drafts_are_certain_whatever_q_says(rule):
    """Judged with the law that merely ranked them, an argmax draft would be biased: trap A1."""
    token_M, p_MV = [0, 1, 0], np.stack([A[0], B[0], A[0]])
    soft = judged(rule, (1, 1), token_M, p_MV, np.full((3, 4), np.nan, np.float32), "fixed")
    sure = judged(rule, (1, 1), token_M, p_MV, np.eye(4, dtype=np.float32)[[1, 0, 0]], "iid")
    for one, other in zip(soft, sure, strict=True):
        np.testing.assert_array_equal(one, other)
