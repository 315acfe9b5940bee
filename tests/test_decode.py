"""The loop on table models: what it commits, counts and cuts, row by row."""

import dataclasses

import jax
import numpy as np
import pytest
from loop import VOCAB, UpAndDown, counting, drafter, fixed, lm, mixed, random_lm

import specjax
from specjax import Sampling, reference
from specjax.drafters.chain import chain
from specjax.types import Draft, Law, struct

MODES = {
    "greedy": {},
    "coupled": {"sampling": Sampling(temperature=0.8, coupled=True)},
    "p/q": {"sampling": Sampling(temperature=0.8)},
}
PROMPTS = [[1, 2, 3, 1, 2], [4], [5, 5, 5] * 13 + [6], [0, 1, 2, 3, 4, 5, 6, 0, 1]]
BUDGETS = [32, 5, 1, 40]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("k", [1, 2, 5])
def test_a_draft_that_is_the_target_is_accepted_whole(mode, k):
    target = random_lm(0)
    out = specjax.generate(target, PROMPTS[:2], drafter=drafter(target), length=fixed(k), max_new_tokens=18, **MODES[mode])
    assert (out.counts["rejected"] == 0).all() and (out.counts["cut"] == 0).all()
    assert out.counts["passes"].tolist() == [-(-18 // (k + 1))] * 2
    assert out.finish_reasons == ["length"] * 2


@pytest.mark.parametrize("mode", ["greedy", "coupled"])
@pytest.mark.parametrize("k", [0, 1, 3, 5])
def test_output_is_plains_token_for_token(mode, k):
    target = random_lm(1)
    plain = specjax.generate(target, PROMPTS, max_new_tokens=BUDGETS, **MODES[mode])
    for draft in (drafter(mixed(target, 2)), specjax.NGram(most=5, max_n=2, min_n=1)):
        out = specjax.generate(target, PROMPTS, drafter=draft, length=fixed(k), max_new_tokens=BUDGETS, **MODES[mode])
        assert out.token_ids == plain.token_ids
    assert plain.counts["tokens"].tolist() == BUDGETS == plain.counts["passes"].tolist()


def test_greedy_output_is_the_oracles():
    target = random_lm(3)
    law = np.exp(target.params)

    def logits_law(context):
        before = (0, *context)[-2:]
        return reference.one_hot(int(np.argmax(law[before])), VOCAB)

    out = specjax.generate(target, PROMPTS, drafter=drafter(mixed(target, 4)), max_new_tokens=15)
    for prompt, tokens in zip(PROMPTS, out.token_ids, strict=True):
        oracle = reference.plain(logits_law, prompt, 15, (), lambda p, position: int(np.argmax(p)))
        assert tokens == list(oracle.tokens)


@pytest.mark.parametrize(
    ("mode", "length"),
    [("greedy", fixed(3)), ("coupled", UpAndDown()), ("p/q", fixed(3)), ("p/q", UpAndDown())],
    ids=["greedy, fixed", "coupled, adaptive", "p/q, fixed", "p/q, adaptive"],
)
def test_a_row_in_a_batch_is_the_row_alone(mode, length):
    """Prompts of 1 to 40 tokens, other budgets, an early EOS, other numbers of accepted drafts in a round."""
    target = random_lm(13, flat=1.0)
    options = {"drafter": drafter(mixed(target, 6, 0.4)), "length": length, "eos": [4], "seed": 3, **MODES[mode]}
    names = ["a", "b", "c", "d"]
    together = specjax.generate(target, PROMPTS, ids=names, max_new_tokens=BUDGETS, **options)
    stops = {int(a) for a in together.trace.stop_BN[together.trace.committed_BN > 0]}
    assert {0, 1, 2} <= stops and "eos" in together.finish_reasons
    for order in ([3], [2, 0], [3, 1, 0, 2]):
        some = specjax.generate(
            target, [PROMPTS[i] for i in order], ids=[names[i] for i in order], max_new_tokens=[BUDGETS[i] for i in order], **options
        )
        for place, i in enumerate(order):
            assert some.token_ids[place] == together.token_ids[i]
            assert {n: int(c[place]) for n, c in some.counts.items()} == {n: int(c[i]) for n, c in together.counts.items()}
            assert some.finish_reasons[place] == together.finish_reasons[i]


@pytest.mark.parametrize("mode", MODES)
def test_rows_of_a_transformer_in_64_bit_equal_the_row_alone(mode):
    with jax.enable_x64(True):
        target, draft = specjax.load("toy://tiny", dtype="float64"), specjax.load("toy://tiny/1", dtype="float64")
        near = {**jax.tree.map(lambda a, b: 0.9 * a + 0.1 * b, target.params, draft.params)}
        options = {"drafter": specjax.ModelDrafter(model=target.model, params=near, most=3), "seed": 1, **MODES[mode]}
        prompts, budgets = [[7] * 40, [3], [1, 2, 3, 4]], [6, 12, 9]
        together = specjax.generate(target, prompts, max_new_tokens=budgets, ids=["a", "b", "c"], **options)
        assert 0 < together.counts["accepted"].sum() < together.counts["drafted"].sum()
        for i in (1, 2):
            alone = specjax.generate(target, prompts[i : i + 1], max_new_tokens=budgets[i], ids=["abc"[i]], **options)
            assert alone.token_ids[0] == together.token_ids[i]
        turned = specjax.generate(target, prompts[::-1], max_new_tokens=budgets[::-1], ids=["c", "b", "a"], **options)
        assert turned.token_ids[::-1] == together.token_ids


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("eos", range(1, VOCAB))
def test_eos_at_every_offset_of_a_block(mode, eos):
    """Draft = target counting 0, 1, 2, ... with K = 5: blocks 1-6, 0-..., so the EOS is every draft, and the bonus, in turn."""
    target = counting()
    out = specjax.generate(target, [[0]], drafter=drafter(target), eos=[eos], max_new_tokens=30, **MODES[mode])
    assert out.token_ids == [list(range(1, eos + 1))] and out.finish_reasons == ["eos"]
    counts = {name: int(c[0]) for name, c in out.counts.items()}
    kept = min(eos, 5)
    assert counts == {"tokens": eos, "passes": 1, "drafted": 5, "accepted": kept, "rejected": 0, "cut": 5 - kept}
    assert out.trace.committed_BN[0].sum() == eos


@pytest.mark.parametrize("wrong", range(1, VOCAB))
def test_eos_as_the_replacement_of_a_refused_draft(wrong):
    """The draft errs where the next token is `wrong`, which is the EOS."""
    target, law = counting(), np.roll(np.eye(VOCAB), 1, axis=1)
    law[wrong - 1] = np.eye(VOCAB)[0]
    out = specjax.generate(target, [[0]], drafter=drafter(lm(law)), eos=[wrong], max_new_tokens=30)
    assert out.token_ids == [list(range(1, wrong + 1))] and out.finish_reasons == ["eos"]
    assert out.counts["accepted"].tolist() == [min(wrong - 1, 5)] and out.counts["cut"].tolist() == [0]


@pytest.mark.parametrize("budget", range(9))
def test_budget_at_every_offset_of_a_block(budget):
    target = counting()
    out = specjax.generate(target, [[0]], drafter=drafter(target), max_new_tokens=budget)
    assert out.token_ids == [[t % VOCAB for t in range(1, budget + 1)]] and out.finish_reasons == ["length"]
    full, rest = divmod(budget, 6)
    assert out.counts["drafted"].tolist() == [5 * full + max(rest - 1, 0)] == out.counts["accepted"].tolist()
    assert out.counts["cut"].tolist() == [0] == out.counts["rejected"].tolist()


def test_eos_on_the_last_token_of_the_budget_is_an_eos_finish():
    target = counting()
    for budget, finish in ((3, "length"), (4, "eos"), (5, "eos")):
        assert specjax.generate(target, [[0]], drafter=drafter(target), eos=[4, 6], max_new_tokens=budget).finish_reasons == [finish]


def test_counters_add_up_and_match_the_trace():
    target = random_lm(7)
    out = specjax.generate(target, PROMPTS, drafter=drafter(mixed(target, 8)), max_new_tokens=BUDGETS, eos=[2], **MODES["p/q"])
    c, trace = out.counts, out.trace
    assert (c["drafted"] == c["accepted"] + c["rejected"] + c["cut"]).all()
    assert c["tokens"].tolist() == [len(ids) for ids in out.token_ids] == trace.committed_BN.sum(1).tolist()
    assert c["drafted"].tolist() == trace.drafted_BN.sum(1).tolist()
    assert (trace.stop_BN.sum(1) == c["accepted"] + c["cut"]).all()
    judged = trace.drafted_BN.astype(bool)
    np.testing.assert_allclose(trace.law_BNM.sum(-1)[judged], 1, atol=1e-6)
    for row, ids in enumerate(out.token_ids):
        kept = [t for n in range(trace.stop_BN.shape[1]) for t in block(trace, row, n)]
        assert kept == ids


def block(trace, row, n):
    """The tokens that one round committed, rebuilt from its trace."""
    stop = trace.stop_BN[row, n]
    tokens = [*trace.token_BNM[row, n, 1 : stop + 1], trace.emitted_BN[row, n]]
    return [int(t) for t in tokens][: trace.committed_BN[row, n]]


def test_the_trace_holds_the_laws_that_were_sampled():
    target = random_lm(9, order=1)
    draft = mixed(target, 10)
    options = {"sampling": Sampling(temperature=0.5), "draft_sampling": Sampling(temperature=2.0, top_k=3)}
    out = specjax.generate(target, [[3]], drafter=drafter(draft, 2), max_new_tokens=9, **options)
    for n in range(out.trace.drafted_BN.shape[1]):
        before = out.trace.token_BNM[0, n]
        for m in range(out.trace.drafted_BN[0, n]):
            p = reference.law(target.params[before[m]], 0.5)
            q = reference.law(draft.params[before[m]], 2.0, top_k=3)
            np.testing.assert_allclose(out.trace.p_BNM[0, n, m + 1], p[before[m + 1]], rtol=1e-5)
            np.testing.assert_allclose(out.trace.q_BNM[0, n, m + 1], q[before[m + 1]], rtol=1e-5)
            np.testing.assert_allclose(out.trace.overlap_BNM[0, n, m], np.minimum(p, q).sum(), rtol=1e-5)


def test_greedy_drafts_come_from_the_law_that_is_reported():
    """A draft sampling of its own is used where the target is greedy, too: half of the drafts are each of two tokens."""
    target, draft = lm([0, 0, 1]), lm([0.5, 0.5, 0])
    out = specjax.generate(target, [[2]], drafter=drafter(draft, 1), draft_sampling=Sampling(temperature=1.0), max_new_tokens=41)
    drafted = out.trace.token_BNM[0, :-1, 1]
    assert out.token_ids == [[2] * 41] and 5 < drafted.sum() < 35
    np.testing.assert_allclose(out.trace.q_BNM[0, :-1, 1], 0.5, rtol=1e-6)


def test_a_row_without_finite_logits_ends_and_leaves_its_neighbours():
    """The law after token 3 is NaN: the row that meets it keeps what it has, accepted drafts included."""
    good, params = counting(), counting().params.copy()
    params[3] = np.nan
    bad = specjax.LM(good.model, params, None, "bad")
    for draft in (None, drafter(good), drafter(bad)):  # the last drafts from the NaN, after a node where the target has no law either
        with pytest.warns(UserWarning, match="row 0 ended early"):
            out = specjax.generate(bad, [[0], [4]], drafter=draft, max_new_tokens=[10, 3])
        assert out.token_ids == [[1, 2, 3], [5, 6, 0]] and out.finish_reasons == ["nonfinite", "length"]


def test_streaming_yields_what_generate_returns():
    target = random_lm(11)
    options = {"drafter": drafter(mixed(target, 12)), "max_new_tokens": 17, "seed": 5, **MODES["p/q"]}
    blocks = list(specjax.stream(target, [1, 2, 3], id="x", **options))
    assert [t for b in blocks for t in b] == specjax.generate(target, [[1, 2, 3]], ids=["x"], **options).token_ids[0]
    assert all(blocks) and len(blocks) < 17


def test_a_buffer_that_is_exactly_full():
    """Prompt + new + widest rung = 128 slots, one less and one more."""
    target = random_lm(13)
    for prompt in (101, 102, 103):
        decoder = specjax.Decoder(target, drafter=drafter(target))
        assert decoder.start([[1] * prompt], 20).token_BS.shape[1] == (128 if prompt <= 102 else 256)
        plain = specjax.generate(target, [[1] * prompt], max_new_tokens=20)
        assert specjax.generate(target, [[1] * prompt], drafter=drafter(target), max_new_tokens=20).token_ids == plain.token_ids


@struct
class Spoiled(specjax.Speculative):
    """The p/q rule with its law changed: a factor on the stops, another on the emissions."""

    stop: float
    emit: float

    def __call__(self, *args):
        law = specjax.Speculative()(*args)
        return law._replace(stop_M=law.stop_M * self.stop, emit_MV=law.emit_MV * self.emit)


@pytest.mark.parametrize(("stop", "emit"), [(0.5, 1.0), (1.0, 0.0), (np.nan, 1.0), (1.0, np.nan), (-1.0, 1.0)])
def test_a_rule_whose_law_is_no_law_is_an_error(stop, emit):
    with pytest.raises(RuntimeError, match="row 0: rule speculative gave a law that does not sum to one"):
        specjax.generate(random_lm(0), [[1]], rule=Spoiled(stop=stop, emit=emit), max_new_tokens=4, **MODES["p/q"])


@struct
class Anywhere(specjax.Speculative):
    """Ends a round at any node of the buffer, drafted or not."""

    def __call__(self, tree, token_M, p_MV, q_MV):
        return Law(jax.numpy.full(len(token_M), 1 / len(token_M), p_MV.dtype), p_MV)


def test_a_rule_that_ends_a_round_where_nothing_was_drafted_is_an_error():
    target = random_lm(0)
    with pytest.raises(RuntimeError, match="gave a law that does not sum to one over what was drafted"):
        specjax.generate(target, [[1]], drafter=drafter(target), length=fixed(1), rule=Anywhere(), max_new_tokens=4, **MODES["p/q"])


class Bad(specjax.ModelDrafter):
    """A model drafter whose draft is changed on the way out."""

    def propose(self, params, state, view, root_B, ask_B, draw):
        draft, state, view = super().propose(params, state, view, root_B, ask_B, draw)
        return self.change(draft), state, view


def bad_drafter(change):
    kind = struct(type("Bad", (Bad,), {"change": staticmethod(change)}))
    draft = drafter(random_lm(0), 3)
    return kind(model=draft.model, params=draft.params, most=3)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "change",
    [
        lambda d: d._replace(token_BM=d.token_BM.at[:, 2].set(-1)),
        lambda d: d._replace(token_BM=d.token_BM.at[:, 1].set(VOCAB)),
        lambda d: d._replace(q_BMV=d.q_BMV.at[:, 1].set(np.nan)),
    ],
    ids=["token -1", "token V", "NaN law"],
)
def test_a_draft_that_is_none_is_an_error(mode, change):
    with pytest.raises(RuntimeError, match="row 0: drafter model drafted a token outside the vocabulary, or from a law that is"):
        specjax.generate(random_lm(0), [[1]], drafter=bad_drafter(change), max_new_tokens=9, **MODES[mode])


@pytest.mark.parametrize("ladder", [None, (4,)])
@pytest.mark.parametrize("shift", [-1, 1])
def test_a_drafter_that_miscounts_what_it_was_asked_does_no_harm(ladder, shift):
    """One node too few (the root among them, when nothing is asked) or too many."""

    def miscount(draft):
        valid_BM = np.arange(4)[None] <= draft.tree.valid_M.sum(-1, keepdims=True) - 1 + shift
        return draft._replace(tree=dataclasses.replace(draft.tree, valid_M=valid_BM))

    out = specjax.generate(random_lm(0), [[1], [2]], drafter=bad_drafter(miscount), ladder=ladder, max_new_tokens=[9, 2])
    assert out.token_ids == specjax.generate(random_lm(0), [[1], [2]], max_new_tokens=[9, 2]).token_ids


def test_a_drafter_that_reports_a_law_of_its_own_draws_from_it():
    """With greedy draft sampling too: case B, where an argmax draft scored by a soft q would give (.5, .33, .17)."""

    @struct
    class Own(specjax.ModelDrafter):
        def propose(self, params, state, view, root_B, ask_B, draw):
            q_BMV = jax.numpy.broadcast_to(jax.numpy.asarray([0.6, 0.3, 0.1]), (len(root_B), 2, 3))
            token_BM = jax.numpy.stack([root_B, draw(q_BMV[:, 0], 1)], axis=1)
            return Draft(chain(ask_B, 2, "iid"), token_BM, q_BMV), state, view

    target = lm([0.3, 0.5, 0.2])
    own = Own(model=target.model, params=target.params, most=1)
    decoder = specjax.Decoder(target, drafter=own, sampling=Sampling(temperature=1.0), draft_sampling=Sampling())
    state = decoder.generate(decoder.prefill(decoder.start([[0]] * 20_000, 2)))
    law = np.bincount(np.asarray(state.token_BS[:, 1]), minlength=3) / 20_000
    np.testing.assert_allclose(law, [0.3, 0.5, 0.2], atol=0.015)


def test_a_bfloat16_model_is_judged_by_float32_laws():
    target = specjax.load("toy://tiny", dtype="bfloat16")
    out = specjax.generate(target, ["abcabc"], drafter=specjax.NGram(), max_new_tokens=20, **MODES["p/q"])
    assert out.trace.p_BNM.dtype == np.float32 and len(out.token_ids[0]) == 20
    state = specjax.Decoder(target).start([[1]], 5)
    assert {x.dtype.name for x in jax.tree.leaves(state.cache)} == {"bfloat16"}
