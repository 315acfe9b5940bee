"""Rules on trees against a NumPy enumeration of every draft: the exact law of what is written, in float64, and expected tokens."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import rules, shapes
from specjax.rules import k_seq
from specjax.types import Tree

V, M, CHUNK, GARBAGE = 4, 7, 256, 2**31 - 1
CASES = {
    "A": ([0.5, 0.3, 0.15, 0.05], [0.4, 0.4, 0.1, 0.1]),
    "B": ([0.3, 0.5, 0.2, 0], [0.6, 0.3, 0.1, 0]),
    "toy": ([1 / 3, 2 / 3, 0, 0], [2 / 3, 1 / 3, 0, 0]),
}
ON_TREES = [rule for rule in rules.EXACT if rule.trees and not rule.one_hot_only]
WAYS = [(rule, drawn) for rule in ON_TREES for drawn in rule.drawn]
judge_all = jax.jit(jax.vmap(lambda rule, *row: rule(*row), in_axes=(None, 0, 0, 0, 0)))


# ---------------------------------------------------------------- laws of the last token, and every draft from them


def dirichlet(rng):
    return np.pad(rng.dirichlet(np.full(3, 0.7), V), ((0, 0), (0, 1)))


def with_zeros(rng):
    law = np.where(rng.random((V, V)) < 0.5, 0, rng.dirichlet(np.ones(V), V)) + 0.1 * one_hot(rng)
    return law / law.sum(1, keepdims=True)


def tied(rng):
    law = np.pad(rng.integers(1, 3, (V, 3)).astype(float), ((0, 0), (0, 1)))
    return law / law.sum(1, keepdims=True)


def one_hot(rng):
    return np.eye(V)[rng.integers(0, V, V)]


def pair(kind_p, kind_q, seed=0):
    """(p, q): laws by the last token; row V - 1 also stands for the start."""
    rng = np.random.default_rng(seed)
    p = kind_p(rng)
    return p, (p if kind_q is None else kind_q(rng))


def everywhere(name):
    return tuple(np.tile(law, (V, 1)) for law in CASES[name])


PAIRS = {
    "B": everywhere("B"),
    "random": pair(dirichlet, dirichlet, 1),
    "zeros": pair(with_zeros, with_zeros, 2),
    "ties": pair(tied, tied, 3),
    "one-hot target": pair(one_hot, dirichlet, 4),
    "one-hot draft": pair(dirichlet, one_hot, 5),
    "p = q": pair(dirichlet, None, 6),
}
#                widths, nodes that are not drawn, with all below them
SHAPES = [((1, 1), ()), ((2, 1), ()), ((1, 2), ()), ((2, 2), ()), ((2, 2), (4,)), ((2, 2), (5, 6)), ((2, 2), (2,)), ((1, 2), (3,))]


def last(context):
    return context[-1] if context else V - 1


def drafts(shape, q, drawn, missing=()):
    """Every draft: ({node: context}, probability). 'fixed' takes the tokens in the order of q, those with q = 0 last."""
    found = [({0: ()}, 1.0)]
    for node in range(1, shape.nodes):
        parent, grown = shape.parent_M[node], []
        for contexts, weight in found:
            if parent not in contexts or node in missing:
                grown.append((contexts, weight))
                continue
            elder = [contexts[e][-1] for e in range(1, node) if e in contexts and shape.parent_M[e] == parent]
            law = np.array(q[last(contexts[parent])])
            if drawn == "fixed":
                law = np.eye(V)[np.argsort(-law, kind="stable")[len(elder)]]
            elif drawn == "without_replacement":
                law[elder] = 0
            law = law / (law.sum() or 1)
            children = [({**contexts, node: (*contexts[parent], int(x))}, weight * law[x]) for x in np.flatnonzero(law)]
            grown += children or [(contexts, weight)]
        found = grown
    return found


def inputs(shape, found, p, q, drawn):
    """What the rule sees of each draft. NaN stands wherever it must not look: a 'fixed' child makes q no matter."""
    dtype, count = jnp.zeros(0).dtype, len(found)
    token, valid = np.full((count, M), GARBAGE, np.int32), np.zeros((count, M), bool)
    p_DMV, q_DMV = np.full((2, count, M, V), np.nan, dtype)
    for row, (contexts, _) in enumerate(found):
        for node, context in contexts.items():
            valid[row, node], p_DMV[row, node] = True, p[last(context)]
            if node:
                token[row, node] = context[-1]
                if drawn != "fixed":
                    q_DMV[row, shape.parent_M[node]] = q[last(context[:-1])]
    index = [np.tile(np.pad(x, (0, M - shape.nodes)), (count, 1)) for x in (shape.parent_M, shape.depth_M, shape.rank_M)]
    return (
        Tree(**dict(zip(("parent_M", "depth_M", "rank_M"), index, strict=True)), valid_M=valid, drawn=drawn, chain=False),
        token,
        p_DMV,
        q_DMV,
    )


def judged(rule, *rows):
    """stop_DM and emit_DMV, in calls of one size. Each is a law, zero at nodes that are not valid."""
    count = len(rows[1])
    parts = []
    for start in range(0, count, CHUNK):
        at = np.minimum(np.arange(start, start + CHUNK), count - 1)
        parts.append(judge_all(rule, *jax.tree.map(lambda x: x[at], rows)))  # noqa: B023
    stop, emit = (np.concatenate(part)[:count] for part in zip(*parts, strict=True))
    valid, close = rows[0].valid_M, dict(rtol=0, atol=20 * np.finfo(stop.dtype).eps)
    assert stop.min() >= 0 and emit.min() >= 0 and not stop[~valid].any() and not emit[~valid].any()
    np.testing.assert_allclose(stop.sum(1), 1, **close)
    np.testing.assert_allclose(emit[valid].sum(-1), 1, **close)
    return stop.astype(float), emit.astype(float)


def outcome(rule, widths, p, q, drawn, missing=()):
    """(total variation of the law of depth + 1 tokens from the target's, E[N]); the target completes what the round left."""
    shape = shapes.parse(widths)
    found = drafts(shape, q, drawn, missing)
    stop, emit = judged(rule, *inputs(shape, found, p, q, drawn))
    law, tokens = {(): 0.0}, 0.0
    for (contexts, weight), stop_M, emit_MV in zip(found, stop, emit, strict=True):
        for node, context in contexts.items():
            tokens += weight * stop_M[node] * (len(context) + 1)
            for x in np.flatnonzero(emit_MV[node]):
                law[*context, x] = law.get((*context, x), 0) + weight * stop_M[node] * emit_MV[node, x]
    for length in range(shape.depth + 1):
        for context in [c for c in law if len(c) == length]:
            start = law.pop(context)
            for x, chance in enumerate(p[last(context)]):
                law[*context, x] = law.get((*context, x), 0) + start * chance
    target = lambda context: np.prod([p[last(context[:i])][x] for i, x in enumerate(context)])
    return sum(abs(weight - target(context)) for context, weight in law.items()) / 2, tokens


@functools.cache
def in_x64(rule, widths, name, drawn, missing=()):
    with jax.enable_x64(True):
        return outcome(rule(), widths, *PAIRS.get(name, CASES.get(name) and everywhere(name)), drawn, missing)


# ---------------------------------------------------------------- exact


@pytest.mark.parametrize(("rule", "drawn"), WAYS, ids=lambda x: getattr(x, "name", x))
def test_what_is_written_has_the_targets_law(rule, drawn):
    for name in PAIRS:
        for widths, missing in SHAPES:
            assert in_x64(rule, widths, name, drawn, missing)[0] < 1e-12, (name, widths, missing)


@pytest.mark.parametrize(("rule", "drawn"), [(rule, rule.drawn[0]) for rule in ON_TREES], ids=lambda x: getattr(x, "name", x))
def test_in_float32_too(rule, drawn):
    for name in ("random", "zeros"):
        assert outcome(rule(), (2, 2), *PAIRS[name], drawn)[0] < 1e-6


def test_the_order_of_the_rules():
    for name in PAIRS:
        for widths, missing in SHAPES:
            for drawn in ("iid", "without_replacement"):
                rates = [
                    in_x64(rule, widths, name, drawn, missing)[1]
                    for rule in (rules.SampleAndMatch, rules.RecursiveRejection, rules.Traversal)
                ]
                assert np.all(np.diff(rates) > -1e-12), (name, widths, missing, drawn)


@pytest.mark.parametrize(
    ("widths", "recursive", "traversal"),
    [((1, 1), 1.19, 1.28), ((2, 1), 1.6575, 1.7575), ((1, 2), 1.3825, 1.39), ((2, 2), 1.925625, 1.938125)],
)
def test_accepted_on_trees_without_replacement(widths, recursive, traversal):
    for rule, accepted in ((rules.RecursiveRejection, recursive), (rules.Traversal, traversal)):
        assert in_x64(rule, widths, "B", "without_replacement")[1] == pytest.approx(1 + accepted, abs=1e-12)


MULTI = {  # children: RRS iid, naive iid, RRS without replacement, K-SEQ, naive fixed
    "A": {
        1: (0.85, 0.34, 0.85, 0.85, 0.5),
        2: (0.925, 0.55, 0.9611111111, 0.9554886114, 0.8),
        3: (0.9625, 0.6814, 0.98, 0.9826158049, 0.95),
    },
    "B": {1: (0.7, 0.35, 0.7, 0.7, 0.3), 2: (0.82, 0.545, 0.975, 0.8532380758, 0.8), 3: (0.892, 0.6635, 1, 0.9311448772, 1)},
    "toy": {1: (2 / 3, 4 / 9, 2 / 3, 2 / 3, 1 / 3), 2: (7 / 9, 2 / 3, 1, 0.8114195153, 1)},
}


@pytest.mark.parametrize("name", MULTI)
def test_accepted_of_several_children(name):
    ways = [
        (rules.RecursiveRejection, "iid"),
        (rules.SampleAndMatch, "iid"),
        (rules.RecursiveRejection, "without_replacement"),
        (rules.KSeq, "iid"),
        (rules.SampleAndMatch, "fixed"),
    ]
    for children, rates in MULTI[name].items():
        for (rule, drawn), rate in zip(ways, rates, strict=True):
            variation, tokens = in_x64(rule, (children,), name, drawn)
            assert variation < 1e-12 and tokens == pytest.approx(1 + rate, abs=1e-10), (children, rule)


@pytest.mark.parametrize("drawn", ["without_replacement", "iid", "fixed"])
def test_fixed_children_are_judged_alike(drawn):
    """Nothing is random in them, so that no rule is better than another; where something is, traversal is."""
    for name in ("random", "B"):
        tokens = [in_x64(rule, (2, 2), name, drawn)[1] for rule in (rules.RecursiveRejection, rules.Traversal)]
        assert (abs(tokens[1] - tokens[0]) < 1e-12) == (drawn == "fixed")


# ---------------------------------------------------------------- mistakes that must be seen


def first_law(rule, drawn, way, children, p, q):
    """The law of the first token when children are drawn one way and judged as if another."""
    shape = shapes.parse((children,))
    found = drafts(shape, q, way)
    tree, *rows = inputs(shape, found, p, q, way)
    stop, emit = judged(rule, dataclasses.replace(tree, drawn=drawn), *rows)
    law = np.zeros(V)
    for (contexts, weight), stop_M, emit_MV in zip(found, stop, emit, strict=True):
        law += weight * stop_M[0] * emit_MV[0]
        for node in range(1, len(contexts)):
            law[contexts[node][0]] += weight * stop_M[node]
    return law


def test_children_without_replacement_judged_as_independent():
    law = first_law(rules.RecursiveRejection(), "iid", "without_replacement", 2, *everywhere("B"))
    np.testing.assert_allclose(law, [0.3, 0.525, 0.175, 0], atol=1e-6)
    law = first_law(rules.RecursiveRejection(), "without_replacement", "without_replacement", 2, *everywhere("B"))
    np.testing.assert_allclose(law, [0.3, 0.5, 0.2, 0], atol=1e-6)


def test_equal_children_are_judged_each():
    """K-SEQ accepts the second of two equal children where the first was refused; sample and match never does."""
    p, q = everywhere("B")
    shape = shapes.parse((2,))
    found = [({0: (), 1: (0,), 2: (0,)}, 1.0)]
    rho = 1.3830951895
    stop, _ = judged(rules.KSeq(), *inputs(shape, found, p, q, "iid"))
    accept = 0.3 / (rho * 0.6)
    np.testing.assert_allclose(stop[0, :3], [(1 - accept) ** 2, accept, (1 - accept) * accept], atol=1e-6)
    stop, _ = judged(rules.SampleAndMatch(), *inputs(shape, found, p, q, "iid"))
    np.testing.assert_allclose(stop[0, :3], [0.7, 0.3, 0], atol=1e-6)


def test_what_little_is_left_without_replacement_is_summed():
    """1 - q(0) is not 1e-6 in float32: a law over such a mass would refuse one draft in twenty that is certain to be right."""
    p, q = np.tile([[0, 0.6, 0.4, 0], [1 - 1.04e-6, 0.624e-6, 0.416e-6, 0]], (1, 1))
    found = [({0: (), 1: (0,), 2: (1,)}, 1.0)]
    stop, _ = judged(
        rules.RecursiveRejection(), *inputs(shapes.parse((2,)), found, np.tile(p, (V, 1)), np.tile(q, (V, 1)), "without_replacement")
    )
    assert stop[0, 2] > 1 - 1e-5


@pytest.mark.parametrize(
    ("name", "children", "rho"),
    [("A", 2, 1.2109772229), ("A", 3, 1.3261580489), ("B", 3, 1.577862193), ("toy", 2, 1.4342585459), ("B", 1, 1)],
)
def test_threshold_of_k_seq(name, children, rho):
    with jax.enable_x64(True):
        p, q = np.array(CASES[name])
        assert float(k_seq.threshold(jnp.asarray(float(children)), p, q)[0]) == pytest.approx(rho, abs=1e-9)


def test_greedy_goes_on_to_the_best_child():
    p = np.array([[0.1, 0.4, 0.4, 0.1], [0, 0, 0.2, 0.8], [0.9, 0.1, 0, 0], [0.1, 0.3, 0.5, 0.1]])
    contexts = {0: (), 1: (2,), 2: (2,), 3: (1,), 4: (2, 0), 5: (2, 0), 6: (1, 3)}
    shape = shapes.parse([(0,), (1,), (2,), (0, 0), (1, 0), (2, 0)])
    stop, emit = judged(rules.Greedy(), *inputs(shape, [(contexts, 1.0)], p, p, "iid"))
    np.testing.assert_array_equal(stop[0], np.eye(M)[4])  # the first of two equal children, then its child
    np.testing.assert_array_equal(emit[0, 4], np.eye(V)[1])  # the first of two equally likely tokens


@pytest.mark.parametrize(
    ("rule", "drawn"), [(rules.KSeq, "without_replacement"), (rules.RecursiveRejection, "sorted"), (rules.Traversal, "sorted")]
)
def test_children_drawn_otherwise_are_refused(rule, drawn):
    tree, *rows = inputs(shapes.parse((2,)), [({0: (), 1: (0,), 2: (1,)}, 1.0)], *everywhere("B"), drawn)
    with pytest.raises(ValueError, match=f"rule={rule.name} does not judge children drawn '{drawn}': it judges {rule.drawn[0]}"):
        judged(rule(), tree, *rows)
