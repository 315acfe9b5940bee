"""Exact laws by enumeration: against the slow oracle, worked values, and rules that are none."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import reference, rules
from specjax.certify import bound, cases, exact_law
from specjax.types import Law, struct

A, B, TOY = (cases.HAND[name] for name in ("A", "B", "toy"))
NODES = cases.nodes(True)  # one size of buffer, so that each rule compiles once
MARKOV = cases.PAIRS["Markov 1"]


def certify(rule, p, q, widths, **kwargs):
    return exact_law(rule, p, q, len(widths), widths, nodes=NODES, **kwargs)


@pytest.mark.parametrize(
    ("ours", "oracle"),
    [(rules.Speculative(), reference.speculative), (rules.Lenient(lenience=0.5), reference.lenient(0.5))],
)
@pytest.mark.parametrize("name", ["Markov 1", "zeros"])
def test_chains_are_as_the_oracle_has_them(ours, oracle, name):
    p, q = cases.PAIRS[name]
    got = certify(ours, p, q, (1, 1))
    wanted = reference.exact_law(oracle, p, q, 2)
    assert reference.total_variation(got.law, wanted) < 1e-6
    assert reference.total_variation(got.target, reference.path_law(p, 3)) < 1e-15
    assert got.total_variation == pytest.approx(reference.total_variation(wanted, reference.path_law(p, 3)), abs=1e-6)
    assert got.expected_tokens == pytest.approx(reference.expected_tokens(oracle, p, q, 2), abs=1e-6)


ROUNDS = [  # rule, laws, widths, drawn, expected accepted drafts
    ("block", TOY, (1, 1), "iid", 11 / 9),
    ("speculative", TOY, (1, 1), "iid", 10 / 9),
    ("block", A, (1, 1, 1), "iid", 2.326375),
    ("speculative", A, (1, 1, 1), "iid", 2.186625),
    ("block", B, (1, 1, 1), "iid", 1.761),
    ("speculative", B, (1, 1, 1), "iid", 1.533),
    ("recursive_rejection", A, (2,), "iid", 0.925),
    ("recursive_rejection", B, (3,), "iid", 0.892),
    ("recursive_rejection", A, (2,), "without_replacement", 0.9611111111),
    ("recursive_rejection", A, (3,), "without_replacement", 0.98),
    ("recursive_rejection", B, (2,), "without_replacement", 0.975),
    ("recursive_rejection", TOY, (2,), "without_replacement", 1),
    ("recursive_rejection", A, (2,), "fixed", 0.8),
    ("recursive_rejection", A, (3,), "fixed", 0.95),
    ("sample_and_match", A, (2,), "iid", 0.55),
    ("sample_and_match", B, (3,), "iid", 0.6635),
    ("k_seq", A, (1,), "iid", 0.85),
    ("k_seq", A, (2,), "iid", 0.9554886114),
    ("k_seq", B, (3,), "iid", 0.9311448772),
    ("k_seq", TOY, (2,), "iid", 0.8114195153),
    ("recursive_rejection", B, (1, 1), "without_replacement", 1.19),
    ("recursive_rejection", B, (2, 1), "without_replacement", 1.6575),
    ("recursive_rejection", B, (1, 2), "without_replacement", 1.3825),
    ("recursive_rejection", B, (2, 2), "without_replacement", 1.925625),
    ("traversal", B, (1, 1), "without_replacement", 1.28),
    ("traversal", B, (2, 1), "without_replacement", 1.7575),
    ("traversal", B, (1, 2), "without_replacement", 1.39),
    ("traversal", B, (2, 2), "without_replacement", 1.938125),
]  # fmt: skip


@pytest.mark.parametrize(("name", "laws", "widths", "drawn", "accepted"), ROUNDS)
def test_worked_rounds(name, laws, widths, drawn, accepted):
    exact = certify(rules.by_name(name), *laws, widths, drawn=drawn)
    assert exact.expected_tokens - 1 == pytest.approx(accepted, abs=1e-6)
    assert exact.total_variation < 1e-6 and exact.fault is None
    if len(widths) == 1:
        assert accepted < bound(*laws, *widths, drawn) + 1e-9


def test_float64_is_exact_to_its_last_bits():
    with jax.enable_x64(True):
        exact = certify(rules.Speculative(), *MARKOV, (1, 1, 1))
    assert exact.total_variation < 1e-15
    assert certify(rules.Speculative(), *MARKOV, (1, 1, 1)).total_variation > 1e-15  # float32 is seen to be coarser


def test_a_law_for_every_context_and_a_tree_given_by_paths():
    seen = set()

    def p(context):
        seen.add(context)
        return MARKOV[0](context)

    exact = exact_law(rules.SampleAndMatch(), p, MARKOV[1], 2, [(0,), (1,), (1, 0)], nodes=NODES)
    assert seen == {(), *((x,) for x in range(4)), *((x, y) for x in range(4) for y in range(4))}
    assert exact.total_variation < 1e-6 and sum(exact.law.values()) == pytest.approx(1)
    assert {len(sequence) for sequence in exact.law} == {3}


def test_nothing_drafted_is_a_plain_step():
    exact = certify(rules.Speculative(), *MARKOV, (1, 1), valid=[True, False, False])
    assert exact.expected_tokens == 1 and exact.total_variation < 1e-7
    assert certify(rules.Speculative(), *B, (1, 1), valid=[True, True, False]).expected_tokens == pytest.approx(1.7)


def test_fixed_children_are_the_likeliest_tokens():
    p, q = [0.1, 0.2, 0.3, 0.4], [0.3, 0.2, 0.3, 0.2]  # the lowest id first on ties: 0, 2, then 1
    for widths, accepted in [((1,), 0.1), ((2,), 0.4), ((3,), 0.6)]:
        exact = certify(rules.SampleAndMatch(), p, q, widths, drawn="fixed")
        assert exact.expected_tokens - 1 == pytest.approx(accepted, abs=1e-6)


def test_a_lossy_rule_against_its_own_law():
    lenient = rules.Lenient(lenience=0.5)
    assert certify(lenient, *MARKOV, (1, 1)).total_variation > 0.01
    assert certify(lenient, *MARKOV, (1, 1), own=True).total_variation < 1e-6
    own = certify(lenient, *B, (1,), own=True)
    np.testing.assert_allclose(own.first(own.target_S), [0.6, 0.3, 0.1, 0], atol=1e-6)


# ---------------------------------------------------------------- answers that are no law


def planted(change):
    """A rule that ends at the root and emits p, but for change(law, tree, p_MV, q_MV)."""

    @struct
    class Planted:
        name, exact, one_hot_only, trees, drawn = "planted", True, False, False, ("iid",)

        def __call__(self, tree, token_M, p_MV, q_MV):
            stop_M = (jnp.arange(len(token_M)) == 0).astype(p_MV.dtype)
            return change(Law(stop_M, jnp.where(tree.valid_M[:, None], p_MV, 0)), tree, p_MV, q_MV)

    return Planted()


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lambda law, tree, p, q: law, None),
        (lambda law, *_: law._replace(stop_M=law.stop_M * 0.9), "stop_M is no law: draft [0], stop_M [0.9, 0.0"),
        (lambda law, *_: law._replace(emit_MV=law.emit_MV * 1.1), "emit_MV is no law where the round may end: draft [0]"),
        (lambda law, *_: law._replace(stop_M=law.stop_M[::-1]), "the round ends at a node that was not drafted"),
        (lambda law, tree, p, q: law._replace(emit_MV=law.emit_MV + 0 * q[1, 0]), "emit_MV is no law"),  # q of a leaf
        (lambda law, tree, p, q: law._replace(stop_M=law.stop_M + 0 * p[2, 0]), "stop_M is no law"),  # p of an invalid node
    ],
)
def test_what_is_no_law_is_said_to_be_none(change, fault):
    said = exact_law(planted(change), *B, 1, nodes=3).fault
    assert said is None if fault is None else said.startswith(fault)


def test_nothing_is_known_where_nothing_is_drafted():
    for change, rows in [
        (lambda law, tree, p, q: law._replace(stop_M=law.stop_M + 0 * p[1, 0]), "p of a node that is not drafted"),
        (lambda law, tree, p, q: law._replace(stop_M=law.stop_M + 0 * q[0, 0]), "q of one without drafted children"),
    ]:
        assert exact_law(planted(change), *B, 1, valid=[True, True]).fault is None, rows
        assert exact_law(planted(change), *B, 1, valid=[True, False]).fault.startswith("stop_M is no law: draft [None]"), rows


@pytest.mark.parametrize(
    ("kwargs", "text"),
    [
        ({"k": 3, "tree": "2x1"}, "k=3 is not the depth of tree=0 1 0.0 1.0, which is 2"),
        ({"p": [0.5, 0.6]}, r"p\(\(\)\) = \[0.5, 0.6\] is no law"),
        ({"p": lambda context: [0.5, 0.5] if context else [1.0]}, r"p\(\(0,\)\) has shape \(2,\): it must have 1 entries"),
        ({"p": [0.5, 0.5]}, "p has 2 tokens and q 3"),
        ({"tree": "2"}, "rule speculative judges chains only"),
        ({"drawn": "best"}, "drawn='best': rule speculative judges children drawn iid or without_replacement or fixed"),
        ({"valid": [True, False, True], "k": 2}, r"valid=\[True, False, True\] must be 3 truth values"),
        ({"p": np.full(1500, 1 / 1500), "q": np.full(1500, 1 / 1500)}, "1500 tokens at 2 places are 2250000 sequences"),
        ({"rule": rules.Greedy()}, "rule greedy needs a target that is certain"),
        ({"rule": rules.SampleAndMatch(), "tree": (30,)}, "with 3 tokens it has more than 67650 drafts"),
    ],
)
def test_what_cannot_be_certified_is_refused(kwargs, text):
    given = {"rule": rules.Speculative(), "p": [0.3, 0.5, 0.2], "q": [0.6, 0.3, 0.1], "k": 1} | kwargs
    with pytest.raises(ValueError, match=text):
        exact_law(**given)


def test_what_a_rule_raises_is_told_with_its_name():
    with pytest.raises(RuntimeError, match="rule planted raised ZeroDivisionError: "):
        exact_law(planted(lambda *_: 1 / 0), *B, 1)
