"""The price of rules that are not exact, against numbers worked by hand."""

import loop
import numpy as np
import pytest
import tiny_run

import specjax
from specjax import build, price
from specjax.bench import line, sweep
from specjax.drafters.chain import chain as chain_of
from specjax.rules import Lenient, Typical, chain
from specjax.sampling import one_hot
from specjax.types import Draft, struct

P, Q = [0.3, 0.5, 0.2], [0.6, 0.3, 0.1]  # case B
KL_OF_Q = 0.1933259032  # KL(q || p)


@struct
class Trusting:
    """Accepts every draft, so that tokens have the law q, and then says token 1: a rule of one's own."""

    name, exact, one_hot_only, trees, drawn = "trusting", False, False, False, ("iid", "fixed")
    paper = equation = "-"

    def __call__(self, tree, token_M, p_MV, q_MV):
        return chain.law(tree, np.ones(len(token_M), p_MV.dtype), p_MV, one_hot(np.ones(len(token_M), np.int32), p_MV))

    def token_law(self, p_MV, q_MV):
        return q_MV


@struct
class Untold(Trusting):
    token_law = property()  # hasattr says no


def kl_of(rule, p_V, q_V, token=1, stop=0, emit_V=None):
    """KL at each place of a chain of one drafted token in a buffer that holds two; laws that nobody may look at are garbage."""
    p_BMV = np.full((1, 3, len(p_V)), np.nan, np.float32)
    p_BMV[0, :2] = p_V
    q_BMV = None
    if q_V is not None:
        q_BMV = np.full_like(p_BMV, np.nan)
        q_BMV[0, 0], q_BMV[0, 1] = q_V, [0.9, *[0.1 / (len(q_V) - 1)] * (len(q_V) - 1)]  # garbage may look like a law
    draft = Draft(chain_of(np.asarray([1], np.int32), 3, "iid"), np.asarray([[0, token, 2]], np.int32), q_BMV)
    emit_BV = np.asarray([p_V if emit_V is None else emit_V], np.float32)
    return np.asarray(price.kl(rule, draft, p_BMV, np.asarray([stop]), emit_BV))[0].tolist()


def kl(m_V, p_V):
    return sum(m * np.log(m / p) for m, p in zip(m_V, p_V, strict=True) if m)


@pytest.mark.parametrize(
    ("rule", "m_V"),
    [
        (Lenient(lenience=1.0), P),
        (Lenient(lenience=0.8), [0.375, 0.4539473684, 0.1710526316]),  # reference_values.txt, as the next two
        (Lenient(lenience=0.8, scaled_residual=False), [0.375, 0.45, 0.175]),
        (Lenient(lenience=0.5), Q),  # every draft is accepted
        (Trusting(), Q),
    ],
)
def test_kl_at_a_place(rule, m_V):
    np.testing.assert_allclose(kl_of(rule, P, Q), [kl(m_V, P), 0, 0], atol=1e-6)


def test_kl_of_typical_acceptance():
    """Case A: the last token is refused (p = .05 under .09), and p drawn in its place: of q's mass .1 there, p's share goes to each."""
    p_V, q_V = [0.5, 0.3, 0.15, 0.05], [0.4, 0.4, 0.1, 0.1]
    assert kl_of(Typical(), p_V, q_V) == pytest.approx([kl([0.45, 0.43, 0.115, 0.005], p_V), 0, 0], abs=1e-6)


def test_kl_of_case_b_is_the_reverse_kl_of_the_draft():
    assert kl_of(Lenient(lenience=0.5), P, Q)[0] == pytest.approx(KL_OF_Q, abs=1e-6)


def test_a_certain_draft_has_a_one_hot_law():
    assert kl_of(Trusting(), P, None) == pytest.approx([np.log(1 / 0.5), 0, 0], abs=1e-6)


def test_a_bonus_token_pays_what_its_law_is_away_from_the_targets():
    """Node 1 is the last that was drafted: the round ends there with a bonus token from p, or from another law."""
    assert kl_of(Trusting(), P, Q, stop=1) == pytest.approx([KL_OF_Q, 0, 0], abs=1e-6)
    assert kl_of(Trusting(), P, Q, stop=1, emit_V=[0, 1, 0]) == pytest.approx([KL_OF_Q, np.log(2), 0], abs=1e-6)
    assert kl_of(Trusting(), P, Q, stop=0, emit_V=[0, 1, 0]) == pytest.approx([KL_OF_Q, 0, 0], abs=1e-6)  # what a refusal emits is in m


def test_it_is_infinite_where_the_rule_can_say_what_the_target_excludes():
    assert kl_of(Trusting(), [0.5, 0.5, 0], Q) == [np.inf, 0, 0]
    assert kl_of(Trusting(), [0.5, 0, 0.5], [1, 0, 0]) == pytest.approx([np.log(2), 0, 0], abs=1e-6)  # what q excludes costs nothing


def decoder(rule):
    target, draft = loop.lm([P] * 3), loop.lm([Q] * 3)
    return specjax.Decoder(target, drafter=loop.drafter(draft, 2), rule=rule, sampling=specjax.Sampling(temperature=1.0), ladder=(3,))


def test_the_trace_of_a_run():
    """Seven tokens in three rounds: of the first two each has two drafts and a bonus token, the last a bonus token alone."""
    made, bonus = decoder(Trusting()), np.log(1 / 0.5)
    output = made.output(made.generate(made.prefill(made.start([[1]], 7))))
    trace = type(output.trace)(*(x if x is None else x[0] for x in output.trace))
    assert trace.committed_BN.tolist() == [3, 3, 1] and trace.drafted_BN.tolist() == [2, 2, 0]
    np.testing.assert_allclose(trace.kl_BNM, [[KL_OF_Q, KL_OF_Q, bonus], [KL_OF_Q, KL_OF_Q, bonus], [bonus, 0, 0]], atol=1e-6)
    assert line.price(trace) == {"kl_sum": pytest.approx(4 * KL_OF_Q + 3 * bonus, abs=1e-5), "kl_infinite": 0}


@pytest.mark.parametrize("rule", [Untold(), None])
def test_exact_rules_and_those_that_do_not_tell_their_law_have_none(rule):
    assert not decoder(rule).setup.kl
    assert decoder(Trusting()).setup.kl


def test_infinite_ones_are_counted_apart_and_tokens_past_a_cut_not_at_all():
    trace = type("Trace", (), {"kl_BNM": np.asarray([[0.5, np.inf, np.inf], [0.25, 0, 9.0]]), "committed_BN": np.asarray([2, 1])})
    assert line.price(trace) == {"kl_sum": 0.75, "kl_infinite": 1}


def test_a_run_prices_arms_that_are_not_exact_and_asks_their_plain_arm_for_its_likelihood():
    config = tiny_run.get_config()
    sampled = dict(drafter=tiny_run.NGRAM, sampling=tiny_run.PQ)
    arms = [
        dict(name="lossy", rule={"name": "lenient", "lenience": 0.5}, **sampled),
        dict(name="exact", **sampled),
        dict(name="greedy", drafter="ngram"),
    ]
    config.unlock()
    config.arms = arms
    experiment = build.load(build.plan(config))
    assert {a.name: (a.decoder.setup.logprobs, a.decoder.setup.kl) for a in experiment.arms} == {
        "plain t=0.7": (True, False),
        "plain greedy": (False, False),
        "lossy": (True, True),
        "exact": (False, False),
        "greedy": (False, False),
    }
    batch = next(batch for batch in sweep.batches(experiment) if batch[0].arm.name == "lossy")
    [(_, record, trace)] = sweep.decode_batch(experiment, batch, {})
    assert record["price"] == line.price(trace) and len(record["logprobs"]) == 12
    assert set(record["price"]) == {"kl_sum", "kl_infinite"} and record["price"]["kl_sum"] > 0
    assert line.checked({**record, "schema": line.SCHEMA}, "here")["price"] == record["price"]
