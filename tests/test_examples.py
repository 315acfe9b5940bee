"""What `docs/writing_a_rule.md` says works: its rule is exact, its mistake is caught, and its config runs from a clone's root."""

import importlib
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from specjax import build, rules
from specjax.certify import exact_law
from specjax.certify.rule import check

ROOT = Path(__file__).parents[1]
B = [0.3, 0.5, 0.2], [0.6, 0.3, 0.1]


@pytest.fixture
def my_rule(monkeypatch):
    monkeypatch.syspath_prepend(ROOT)
    yield importlib.import_module("examples.my_rule")
    for name in [name for name in sys.modules if name.partition(".")[0] == "examples"]:
        del sys.modules[name]


def test_the_rule_is_certified_as_exact(my_rule):
    assert check(my_rule.MyRule(), ("float32",)).passed


@pytest.mark.parametrize("caution", [1.0, 1.5, 3.0])
def test_what_it_costs_by_hand(my_rule, caution):
    """At one place it accepts sum min(p / c, q), and is exact at any caution."""
    p, q = map(np.asarray, B)
    got = exact_law(my_rule.MyRule(caution=caution), p, q, 1)
    assert got.total_variation < 1e-6
    assert got.expected_tokens == pytest.approx(1 + np.minimum(p / caution, q).sum(), abs=1e-6)


def test_without_caution_it_is_the_pq_rule(my_rule):
    whole, pq = (exact_law(rule, *B, 2) for rule in (my_rule.MyRule(caution=1.0), rules.Speculative()))
    assert whole.expected_tokens == pytest.approx(pq.expected_tokens, abs=1e-6)


def test_the_mistake_in_the_text_fails(my_rule, monkeypatch):
    wrong = SimpleNamespace(asarray=my_rule.jnp.asarray, minimum=lambda _, q_MV: q_MV)  # the p/q rule's residual in place of its own
    monkeypatch.setattr(my_rule, "jnp", wrong)
    failed = check(my_rule.MyRule(caution=2.0), ("float32",))
    text = (ROOT / "docs" / "writing_a_rule.md").read_text(encoding="utf-8")
    assert not failed.passed and f"FAIL cautious: {failed.why.partition(';')[0]}" in text


def test_a_caution_under_one_is_refused(my_rule):
    with pytest.raises(ValueError, match=r"rule.caution=0.5 must be at least 1"):
        my_rule.MyRule(caution=0.5)


def test_the_code_in_the_text_is_the_examples():
    text = (ROOT / "docs" / "writing_a_rule.md").read_text(encoding="utf-8")
    assert text.split("```python\n")[1].split("```")[0] in (ROOT / "examples" / "my_rule.py").read_text(encoding="utf-8")


def test_the_sweep_is_a_plan(my_rule):
    plan = build.plan(importlib.import_module("examples.sweep_my_rule").get_config())
    assert [arm.name for arm in plan.arms] == ["plain t=2", "p/q", "caution 1", "caution 1.5", "caution 3"]
    assert [arm.rule.caution for arm in plan.arms[2:]] == [1.0, 1.5, 3.0]
