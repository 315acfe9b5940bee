"""What a rule's certificate says: of rules that are what they declare, and of rules that are not."""

import dataclasses

import jax.numpy as jnp
import pytest
from rich.console import Console

from specjax import rules
from specjax.certify import report, rule
from specjax.rules import cascade, lenient, speculative
from specjax.types import Law, struct

FLOAT32 = ("float32",)


@pytest.fixture(scope="module")
def passed():
    """The verdict on the p/q rule, in both precisions."""
    return rule.check(rules.Speculative())


def test_an_exact_rule_passes_in_both_precisions(passed):
    assert passed.passed and passed.why == "" and passed.numbers["notes"] == []
    told = passed.numbers["drawn"]["iid"]
    assert told["cases"] == 60 and set(told["worst_case"]) == {"float32", "float64"}
    assert 1e-15 < told["total_variation"]["float32"] < 1e-6 and told["total_variation"]["float64"] < 1e-15
    assert told["expected_tokens"]["toy, 1x1"] == pytest.approx(1 + 10 / 9, abs=1e-12)
    assert told["expected_tokens"]["B, 1x1x1"] == pytest.approx(2.533, abs=1e-12)
    assert (told["children"], told["accepted"], told["bound"]) == (1, pytest.approx(0.7, abs=1e-6), pytest.approx(0.7))


def test_greedy_is_certified_on_certain_targets_alone():
    told = rule.check(rules.Greedy(), FLOAT32).numbers["drawn"]["iid"]
    assert told["cases"] % 2 == 0 and told["worst_case"]["float32"].startswith("one-hot p")
    assert told["total_variation"]["float32"] < 1e-15 and told["bound"] is None


@struct
class Declares(speculative.Speculative):
    """The p/q rule, declared otherwise."""

    exact, drawn = False, ("iid",)


@struct
class Halved(lenient.Lenient):
    lenience: float = 0.5
    drawn = ("iid",)


@struct
class Claims(Halved):
    """Lenience, declared exact."""

    exact = True


@struct
class Mispriced(Halved):
    """Lenience with a wrong law of its own."""

    def token_law(self, p_MV, q_MV):
        return p_MV


@struct
class Narrow(Halved):
    def token_law(self, p_MV, q_MV):
        return p_MV[:, 0]


@struct
class Deferring(cascade.Cascade):
    """A cascade whose token after the last draft is certain."""

    drawn = ("iid",)

    def __call__(self, tree, token_M, p_MV, q_MV):
        law = super().__call__(tree, token_M, p_MV, q_MV)
        last_M = jnp.sum(tree.valid_M) - 1 == jnp.arange(len(token_M))
        return law._replace(emit_MV=jnp.where(last_M[:, None], jnp.eye(4, dtype=p_MV.dtype)[:1], law.emit_MV))


@struct
class Shapeless(speculative.Speculative):
    def __call__(self, tree, token_M, p_MV, q_MV):
        return Law(jnp.ones(1), p_MV)


def test_a_lossy_rule_is_held_to_its_own_law():
    verdict = rule.check(Halved(), FLOAT32)
    assert verdict.passed and verdict.numbers["drawn"]["iid"]["total_variation"]["float32"] > 0.4
    assert verdict.numbers["notes"][0].startswith("certified against its own law")
    verdict = rule.check(Mispriced(), FLOAT32)
    assert not verdict.passed
    assert verdict.why == (
        "iid: A, 1 (float32), against its own law: the first token has the law (0.4, 0.4, 0.1, 0.1), not (0.5, 0.3, 0.15, 0.05); "
        "total variation 0.15 over 2 tokens"
    )


def test_a_cascade_is_certified_against_its_own_mixed_law():
    verdict = rule.check(rules.Cascade(delta=0.15), FLOAT32)
    assert verdict.passed and verdict.numbers["notes"][0].startswith("certified against its own law (token_law where a draft is judged")
    assert (
        verdict.numbers["drawn"]["iid"]["own_total_variation"]["float32"]
        < 1e-6
        < verdict.numbers["drawn"]["iid"]["total_variation"]["float32"]
    )
    verdict = rule.check(Deferring(delta=0.15), FLOAT32)
    assert not verdict.passed and verdict.why.startswith("iid: A, 1 (float32), against its own law: tokens (0, 0) have probability 0.")


def test_a_rule_that_claims_too_much_fails():
    verdict = rule.check(Claims(), FLOAT32)
    assert not verdict.passed and verdict.why.startswith("iid: A, 1 (float32): the first token has the law (0.4, 0.4, 0.1, 0.1), not")


def test_a_rule_that_claims_too_little_gets_a_note():
    verdict = rule.check(Declares(), FLOAT32)
    assert verdict.passed and "declared not exact, but exact on every case" in verdict.numbers["notes"]


def test_a_rule_that_raises_fails_alone():
    verdict = rule.check(Shapeless(), FLOAT32)
    assert not verdict.passed and "raised TypeError: it must return a Law of stop_M (4,) and emit_MV (4, 4), not Law(stop_M=" in verdict.why
    assert verdict.numbers["drawn"] == {}
    verdict = rule.check(Narrow(), FLOAT32)
    assert not verdict.passed and verdict.why.endswith("raised TypeError: its token_law must return m_MV (1, 4), not (1,)")


def test_the_first_sequence_that_differs_is_named():
    exact = rule._exact(rules.Speculative(), rule.cases.all_cases(False, False)[1], "iid")
    law_S = exact.target_S.copy()
    law_S[[6, 7]] += [0.01, -0.01]  # both begin with tokens 0, 1
    said = rule.difference(dataclasses.replace(exact, law_S=law_S), 1e-6)
    assert said == "tokens (0, 1, 2) have probability 0.032500, not 0.022500; total variation 0.01 over 3 tokens"


def test_the_table_is_whole_on_a_narrow_terminal(passed):
    console = Console(width=40, record=True)
    report.show([passed, rule.check(Shapeless(), FLOAT32)], [], console)
    text = console.export_text()
    assert "2.1111     3.1866     2.5330" in text and "0.7000 of 1 (0.7000)   PASS" in text
    assert [line.split()[-1] for line in text.splitlines() if line.startswith("  speculative")][-1] == "FAIL"
    assert text.splitlines()[-1].startswith("FAIL speculative: rule speculative raised")
