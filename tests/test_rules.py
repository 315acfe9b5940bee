"""Each rule's law on chains against the oracle's, and the exact law of what it decodes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import reference, rules
from specjax.types import Tree

V, M = 5, 4


def block(token_K, p_MV, q_KV):
    """Block verification (Sun et al., 2403.10444): the last draft that is accepted, each by its own coin."""
    K, weight, accept, emit = len(token_K), 1.0, [], []
    for i in range(K + 1):
        left = np.maximum(weight * p_MV[i] - q_KV[i], 0) if i < K else p_MV[K]
        total = left.sum() + 1 - weight
        accept.append(weight if i == K else 1.0 if i == 0 or total == 0 else left.sum() / total)
        emit.append(left / left.sum() if left.sum() > 0 else p_MV[i])
        if i < K:
            x, weight = token_K[i], weight * p_MV[i][token_K[i]]
            weight = 0.0 if weight == 0 else 1.0 if weight >= q_KV[i][x] else weight / q_KV[i][x]
    return np.array([accept[i] * np.prod([1 - h for h in accept[i + 1 :]]) for i in range(K + 1)]), emit


def to_the_best(accept):
    """Judge by accept(x, p), and emit the target's likeliest token."""

    def rule(token_K, p_MV, q_KV):
        best_M = [reference.one_hot(np.argmax(p), len(p)) for p in p_MV]
        stop_M, _ = reference.chain_rule(lambda x, p, q: float(accept(x, p)), lambda x, p, q: p)(token_K, p_MV, q_KV)
        return stop_M, best_M

    return rule


def near_top(x, p):
    return (p > p[x]).sum() < 2 and p[x] >= np.float32(p.max()) - np.float32(0.25)


def typical(x, p):
    return p[x] > min(0.09, 0.3 * np.exp((p * np.log(p + 1e-5)).sum()))


def cascade(token_K, p_MV, q_KV):
    m_MV = [q if np.float32(q.max()) >= np.float32(p.max()) - np.float32(0.15) else p for p, q in zip(p_MV, q_KV, strict=False)]
    return reference.speculative(token_K, [*m_MV, p_MV[len(token_K)]], q_KV)


def synthetic(token_K, p_MV, q_KV):
    stop_M = [np.prod((0.75, 0.5, 0.5)[:i]) * (1 if i == len(token_K) else 1 - (0.75, 0.5, 0.5)[i]) for i in range(len(token_K) + 1)]
    return np.array(stop_M), p_MV


PAIRS = {
    "greedy": (rules.Greedy(), reference.greedy),
    "speculative": (rules.Speculative(), reference.speculative),
    "block": (rules.Block(), block),
    "recursive rejection": (rules.RecursiveRejection(), reference.speculative),
    "k-seq": (rules.KSeq(), reference.speculative),
    "traversal": (rules.Traversal(), block),
    "typical": (rules.Typical(), reference.chain_rule(lambda x, p, q: float(typical(x, p)), lambda x, p, q: p)),
    "relaxed": (rules.Relaxed(top=2, delta=0.25), to_the_best(near_top)),
    "argmax lenience": (rules.ArgmaxLenience(lenience=0.5), to_the_best(lambda x, p: p[x] >= np.float32(0.5) * p.max())),
    "cascade": (rules.Cascade(delta=0.15), cascade),
    "synthetic": (rules.Synthetic(rates=(0.75, 0.5)), synthetic),
    "sample_and_match": (rules.SampleAndMatch(), reference.sample_and_match),
    **{
        f"lenient {lenience} {'p-lq' if scaled else 'p-q'}": (
            rules.Lenient(lenience=lenience, scaled_residual=scaled),
            reference.lenient(lenience, "p-lq" if scaled else "p-q"),
        )
        for lenience in (1.0, 0.8, 0.5, 0.2)
        for scaled in (True, False)
    },
}
judge = jax.jit(lambda rule, *chain: rule(*chain))
judge_all = jax.jit(lambda rule, *chains: jax.vmap(rule)(*chains))


def chain(drafted, nodes=M):
    """A chain of `drafted` valid drafts in a buffer of M nodes."""
    index = jnp.arange(nodes)
    return Tree(
        parent_M=jnp.maximum(index - 1, 0),
        depth_M=index,
        rank_M=jnp.zeros(nodes, int),
        valid_M=index <= drafted,
        drawn="iid",
    )


def one_hot_rows(rng):
    return np.eye(V)[rng.integers(0, V, M)]


def dirichlet(rng):
    return rng.dirichlet(np.full(V, 0.6), M)


def with_zeros(rng):
    law_MV = np.where(rng.random((M, V)) < 0.4, 0, dirichlet(rng))
    law_MV[:, 0] += 1e-3
    return law_MV / law_MV.sum(1, keepdims=True)


def tied(rng):
    law_MV = rng.integers(1, 3, (M, V)).astype(float)
    return law_MV / law_MV.sum(1, keepdims=True)


KINDS = (dirichlet, with_zeros, tied, one_hot_rows)
LAWS = [(p, q) for p in KINDS for q in (*KINDS, None)]  # None: the draft is the target


def case(kind_p, kind_q, seed):
    """(token_M, p_MV, q_MV) in float32; half of the tokens are drawn from q, half may be impossible under it."""
    rng = np.random.default_rng([seed, KINDS.index(kind_p), KINDS.index(kind_q) if kind_q else 9])
    p_MV = kind_p(rng).astype(np.float32)
    q_MV = kind_q(rng).astype(np.float32) if kind_q else p_MV.copy()
    drawn = [rng.choice(V, p=q / q.sum()) for q in q_MV.astype(float)]
    token_M = np.where(rng.random(M) < 0.5, np.roll(drawn, 1), rng.integers(0, V, M))
    return token_M.astype(np.int32), p_MV, q_MV


def spoil(token_M, p_MV, q_MV, drafted):
    """What may stand where nothing was drafted: any token, NaN in p past the chain, NaN in q at its leaf and past it."""
    token_M, p_MV, q_MV = token_M.copy(), p_MV.copy(), q_MV.copy()
    token_M[drafted + 1 :] = 2**31 - 1
    p_MV[drafted + 1 :] = np.nan
    q_MV[drafted:] = np.nan
    return token_M, p_MV, q_MV


@pytest.mark.parametrize(("ours", "oracle"), PAIRS.values(), ids=PAIRS)
@pytest.mark.parametrize("drafted", range(M))
def test_law_equals_the_oracles(ours, oracle, drafted):
    for kind_p, kind_q in LAWS:
        for seed in range(3):
            token_M, p_MV, q_MV = case(kind_p, kind_q, seed)
            law = judge(ours, chain(drafted), *spoil(token_M, p_MV, q_MV, drafted))
            stop_M, emit_MV = oracle(token_M[1 : drafted + 1], p_MV.astype(float)[: drafted + 1], q_MV.astype(float)[:drafted])
            np.testing.assert_allclose(law.stop_M[: drafted + 1], stop_M, atol=1e-6)
            np.testing.assert_array_equal(law.stop_M[drafted + 1 :], 0)
            reached = np.flatnonzero(stop_M > 1e-4)  # where a round cannot end, nothing is emitted
            np.testing.assert_allclose(law.emit_MV[reached], np.array(emit_MV)[reached], atol=1e-6)


@pytest.mark.parametrize(("ours", "oracle"), PAIRS.values(), ids=PAIRS)
def test_a_law_is_a_law(ours, oracle):
    for kind_p, kind_q in LAWS:
        token_M, p_MV, q_MV = case(kind_p, kind_q, 0)
        law = judge(ours, chain(2), *spoil(token_M, p_MV, q_MV, 2))
        assert law.stop_M.dtype == law.emit_MV.dtype == jnp.float32
        assert np.all(law.stop_M >= 0)
        np.testing.assert_allclose(law.stop_M.sum(), 1, atol=1e-6)
        assert np.all(law.emit_MV[:3] >= 0)
        np.testing.assert_allclose(law.emit_MV[:3].sum(-1), 1, atol=1e-6)


def test_nothing_drafted_is_a_plain_step():
    token_M, p_MV, q_MV = case(dirichlet, dirichlet, 0)
    for name, (ours, _) in PAIRS.items():
        law = judge(ours, chain(0), *spoil(token_M, p_MV, q_MV, 0))
        np.testing.assert_array_equal(law.stop_M, [1, 0, 0, 0])
        emitted = reference.one_hot(np.argmax(p_MV[0]), V) if name in ("greedy", "relaxed", "argmax lenience") else p_MV[0]
        np.testing.assert_array_equal(law.emit_MV[0], emitted)


# ---------------------------------------------------------------- exact law of what is decoded

TABLE_P, TABLE_Q = np.random.default_rng(5).dirichlet(np.full(3, 0.7), (2, 4)).astype(np.float32)
TABLE_P[1], TABLE_Q[2] = [0, 1, 0], [0.5, 0, 0.5]
CASES = {
    "A": ([0.5, 0.3, 0.15, 0.05], [0.4, 0.4, 0.1, 0.1]),
    "B": ([0.3, 0.5, 0.2], [0.6, 0.3, 0.1]),
    "toy": ([1 / 3, 2 / 3], [2 / 3, 1 / 3]),
}


def models(name):
    """(target, draft) as functions of the context: the same law everywhere, or a table of the last token."""
    if name == "table":
        return (lambda c: TABLE_P[c[-1] if c else 3]), (lambda c: TABLE_Q[c[-1] if c else 3])
    p, q = np.array(CASES[name], np.float32)
    return (lambda c: p), (lambda c: q)


def as_oracle(rule, drafted, nodes):
    """A specjax rule in the oracle's form, so that the oracle's enumeration certifies it; junk past the draft."""

    def judged(token_K, p_MV, q_KV):
        vocab = len(p_MV[0])
        token_M = np.zeros(nodes, np.int32)
        p, q = np.full((2, nodes, vocab), np.nan, np.float32)
        token_M[1 : drafted + 1], p[: drafted + 1] = token_K, p_MV
        q[:drafted] = np.reshape(q_KV, (drafted, vocab))
        law = judge(rule, chain(drafted, nodes), token_M, p, q)
        return np.asarray(law.stop_M, float), np.asarray(law.emit_MV, float)

    return judged


ONE_BY_ONE = {name: pair for name, pair in PAIRS.items() if not pair[0].trees or name in ("greedy", "sample_and_match", "typical")}


@pytest.mark.parametrize(("ours", "oracle"), ONE_BY_ONE.values(), ids=ONE_BY_ONE)  # the others see trees: test_rules_trees.py
@pytest.mark.parametrize("name", [*CASES, "table"])
@pytest.mark.parametrize("drafted", [1, 2])
def test_output_law_by_enumeration(ours, oracle, name, drafted):
    target, draft = models(name)
    law = reference.exact_law(as_oracle(ours, drafted, 3), target, draft, drafted)
    assert reference.total_variation(law, reference.exact_law(oracle, target, draft, drafted)) < 1e-6
    off_target = reference.total_variation(law, reference.path_law(target, drafted + 1))
    if ours.exact and not ours.one_hot_only:
        assert off_target < 1e-6
    elif name != "table" and not (isinstance(ours, rules.Lenient) and ours.lenience == 1):
        assert off_target > 0.01  # a rule that is not exact must be seen to be so


def test_greedy_is_exact_on_one_hot_targets():
    target, draft = models("table")

    def greedy(context):
        return reference.one_hot(np.argmax(target(context)), 3)

    law = reference.exact_law(as_oracle(rules.Greedy(), 2, 3), greedy, draft, 2)
    assert reference.total_variation(law, reference.path_law(greedy, 3)) < 1e-6


@pytest.mark.parametrize(("name", "tokens"), [("A", 2.5725), ("B", 2.19), ("toy", 1 + 10 / 9)])
def test_expected_tokens_of_the_pq_rule(name, tokens):
    rule = as_oracle(rules.Speculative(), 2, 3)
    assert reference.expected_tokens(rule, *models(name), 2) == pytest.approx(tokens, abs=1e-6)


@pytest.mark.parametrize(
    ("lenience", "unscaled", "scaled"),
    [
        (1.0, [0.3, 0.5, 0.2], [0.3, 0.5, 0.2]),
        (0.8, [0.375, 0.45, 0.175], [0.375, 0.4539473684, 0.1710526316]),
        (0.5, [0.6, 0.3, 0.1], [0.6, 0.3, 0.1]),
    ],
)
def test_lenient_laws(lenience, unscaled, scaled):
    for flag, expected in ((False, unscaled), (True, scaled)):
        rule = as_oracle(rules.Lenient(lenience=lenience, scaled_residual=flag), 1, 3)
        law = reference.exact_law(rule, *models("B"), 1)
        first = [sum(w for path, w in law.items() if path[0] == x) for x in range(3)]
        np.testing.assert_allclose(first, expected, atol=1e-6)


# ---------------------------------------------------------------- shape of a rule


def test_a_batch_of_rows_is_each_row_alone():
    rows = [spoil(*case(dirichlet, with_zeros, seed), seed % M) for seed in range(6)]
    trees = jax.tree.map(lambda *leaves: jnp.stack(leaves), *[chain(seed % M) for seed in range(6)])
    for ours, _ in PAIRS.values():
        together = judge_all(ours, trees, *map(np.stack, zip(*rows, strict=True)))
        for seed, row in enumerate(rows):
            np.testing.assert_array_equal(together.stop_M[seed], judge(ours, chain(seed % M), *row).stop_M)


def test_another_number_compiles_nothing():
    traced = []

    @jax.jit
    def counted(rule, *chain):
        traced.append(1)
        return rule(*chain)

    for number in (0.2, 0.5, 0.9):
        for rule in (
            rules.Lenient(lenience=number),
            rules.ArgmaxLenience(lenience=number),
            rules.Typical(epsilon=number, delta=number),
            rules.Relaxed(top=int(10 * number), delta=number),
            rules.Cascade(delta=number),
            rules.Synthetic(rates=(number, number)),
        ):
            counted(rule, chain(3), *case(dirichlet, dirichlet, 0))
    assert len(traced) == len(rules.LOSSY)


def test_two_rules_are_two_structures():
    """Else jit may answer for one with the program of the other: it compares structures where their hashes collide."""
    structures = [jax.tree.structure(rule) for rule, _ in PAIRS.values() if not isinstance(rule, rules.Lenient)]
    assert len(structures) == len(rules.ALL) - 1
    for i, one in enumerate(structures):
        assert all(one != other for other in structures[:i])


NUMBERS = {
    "lenient": {"lenience": 0.5},
    "argmax_lenience": {"lenience": 0.5},
    "cascade": {"delta": 0.1},
    "synthetic": {"rates": (0.9, 0.8)},
}


@pytest.mark.parametrize("rule", rules.ALL)
def test_every_rule_says_what_it_is(rule):
    assert isinstance(rule.exact, bool) and isinstance(rule.trees, bool) and isinstance(rule.one_hot_only, bool)
    assert rule.paper and rule.equation and rule.needs
    assert rule.drawn and set(rule.drawn) <= {"iid", "without_replacement", "fixed"}
    assert rule.exact or callable(rule.token_law)
    assert (rule in rules.EXACT) == rule.exact
    made = rules.by_name(rule.name, **NUMBERS.get(rule.name, {}))
    assert made == rule(**NUMBERS.get(rule.name, {}))


@pytest.mark.parametrize(
    ("name", "numbers", "message"),
    [
        (
            "gredy",
            {},
            "rule 'gredy' is not one of greedy, speculative, sample_and_match, block, recursive_rejection, k_seq, traversal, lenient",
        ),
        ("block", {"k": 3}, "rule 'block' has no number 'k': it takes none"),
        ("lenient", {"l": 0.5}, "rule 'lenient' has no number 'l': it takes lenience, scaled_residual"),
        ("lenient", {}, "rule 'lenient' needs its number 'lenience'"),
        ("lenient", {"lenience": 0}, "rule.lenience=0 must be above 0 and at most 1"),
        ("lenient", {"lenience": "a"}, "rule.lenience=a must be above 0 and at most 1"),
        ("lenient", {"lenience": np.nan}, "rule.lenience=nan must be above 0 and at most 1"),
        ("argmax_lenience", {"lenience": np.float32(1.5)}, "rule.lenience=1.5 must be above 0 and at most 1"),
        ("typical", {"epsilon": -0.1}, "rule.epsilon=-0.1 must be between 0 and 1"),
        ("typical", {"delta": jnp.float32(2)}, "rule.delta=2.0 must be between 0 and 1"),
        ("relaxed", {"top": 0}, "rule.top=0 must be between 1 and 2147483647"),
        ("relaxed", {"top": 1.5}, "rule.top=1.5 must be a whole number"),
        ("relaxed", {"delta": 1.1}, "rule.delta=1.1 must be between 0 and 1"),
        ("cascade", {"delta": np.inf}, "rule.delta=inf must be between -1 and 1"),
        ("synthetic", {"rates": ()}, r"rule.rates=\(\) must be a list of at least one rate"),
        ("synthetic", {"rates": 0.5}, "rule.rates=0.5 must be a list of at least one rate"),
        ("synthetic", {"rates": (0.5, -1)}, r"rule.rates\[1\]=-1 must be between 0 and 1"),
    ],
)
def test_what_is_no_rule_is_refused(name, numbers, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        rules.by_name(name, **numbers)
