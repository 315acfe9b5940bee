"""The loop is certified, its planted mistakes are found, and every rule keeps its law in it: with every drafter, every filter, in ragged
batches, on trees and on chains."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from loop import drafter, lm, mixed, random_lm

from specjax import Decoder, NGram, Sampling, reference, rules, sampling, shapes
from specjax.certify import exact_law, loop
from specjax.certify.chi_squared import p_value
from specjax.certify.loop import CHUNK, DRAFT, TARGET, check, fit, frequencies, new_tokens, plain_law, runs
from specjax.drafters import BestFirst, ModelDrafter, NoDraft, TreeDrafter
from specjax.rules import Block, Greedy, KSeq, Lenient, Speculative
from specjax.types import struct


@struct
class OneOf:
    """Any of several rules, by a number: all of them are one program."""

    rules: tuple
    which: int | jax.Array = 0
    name = "one_of"
    exact = True
    one_hot_only = False
    trees = True
    drawn = ("iid", "without_replacement", "fixed")

    def __call__(self, *draft):
        laws = [rule(*draft) for rule in self.rules]
        return jax.tree.map(lambda *of_each: jnp.stack(of_each)[self.which], *laws)


# ---------------------------------------------------------------- the certificate


@struct
class Chains(OneOf):
    trees = False


def chains(which):
    return Chains(rules=(Speculative(), Block(), Lenient(lenience=0.9)), which=which)


@pytest.mark.parametrize("which", [0, 1], ids=["speculative", "block"])
def test_the_loop_around_exact_rules(which):
    verdict = check(chains(which), rows=20_000)
    assert verdict.passed and verdict.why == "", verdict
    assert set(verdict.numbers) == {"chain, fixed: law", "chain, fixed: accepted", "chain, adaptive: law"}
    assert min(verdict.numbers.values()) > 1e-3


def test_a_rule_that_only_says_it_is_exact():
    verdict = check(chains(2), rows=20_000)
    assert not verdict.passed
    assert verdict.why.startswith("chain, fixed: law is not what plain decoding or exact_law gives: p-value ")


def test_a_rule_that_is_not_exact_is_refused():
    with pytest.raises(ValueError, match="rule lenient is not exact: the loop is certified around exact rules"):
        check(Lenient(lenience=0.5))


@struct
class Matching(Greedy):
    """Greedy matching on chains, or one that keeps every draft."""

    credulous: int | jax.Array = 0
    trees = False

    def __call__(self, tree, token_M, p_MV, q_MV):
        law = super().__call__(tree, token_M, p_MV, q_MV)
        last_M = jnp.arange(len(token_M)) == jnp.sum(tree.valid_M) - 1
        return law._replace(stop_M=jnp.where(self.credulous == 1, last_M.astype(p_MV.dtype), law.stop_M))


def test_a_rule_for_certain_laws_gives_the_tokens_of_plain():
    verdict = check(Matching())
    assert verdict.passed
    cases = itertools.product(("fixed", "adaptive"), ("greedy", "coupled"))
    assert verdict.numbers == {f"chain, {policy}, {sampling}": 0 for policy, sampling in cases}


def test_other_tokens_than_those_of_plain_are_told():
    verdict = check(Matching(credulous=1))
    assert not verdict.passed
    assert verdict.why.endswith(" of 120 rows have other tokens than plain decoding")


# ---------------------------------------------------------------- mistakes of the loop, planted one at a time


@pytest.fixture
def plant(monkeypatch):
    """Replace the keys of the loop's draws by what a function makes of (right key of, purpose, id, *place)."""
    right = sampling.key

    def planted(wrong):
        monkeypatch.setattr(sampling, "key", lambda seed, *what: wrong(functools.partial(right, seed), *what))
        jax.clear_caches()

    yield planted
    jax.clear_caches()


def without_root(key, purpose, id_B, *place):
    """The noise of a position comes back when that position is drafted again."""
    return key(purpose, id_B, place[0] + place[1]) if purpose == sampling.DRAFT else key(purpose, id_B, *place)


def accept_and_residual(key, purpose, id_B, *place):
    """The first emission takes the coin that decided where the round ends."""
    return key(sampling.STOP, id_B, place[0] - 1) if purpose == sampling.EMIT else key(purpose, id_B, *place)


def draft_and_accept(key, purpose, id_B, *place):
    """The first draft takes the coin that decides where the round ends."""
    right = key(purpose, id_B, *place)
    return jnp.where(place[1] == 1, key(sampling.STOP, id_B, place[0]), right) if purpose == sampling.DRAFT else right


def siblings(key, purpose, id_B, *place):
    """Nodes 1 and 2, children of the root, are drawn with one key."""
    return key(purpose, id_B, place[0], jnp.where(place[1] == 2, 1, place[1])) if purpose == sampling.DRAFT else key(purpose, id_B, *place)


@pytest.mark.parametrize(
    ("wrong", "rule", "found"),
    [
        (without_root, Speculative(), ["chain, adaptive: law"]),
        (without_root, Block(), ["chain, fixed: law", "chain, fixed: accepted", "chain, adaptive: law"]),
        (accept_and_residual, Speculative(), ["chain, fixed: law", "chain, adaptive: law"]),
        (draft_and_accept, Speculative(), ["chain, fixed: law", "chain, fixed: accepted", "chain, adaptive: law"]),
        (siblings, KSeq(), ["iid, fixed: law", "iid, fixed: accepted", "iid, adaptive: law"]),
    ],
    ids=["root, p/q", "root, block", "accept and residual", "draft and accept", "siblings"],
)
def test_a_planted_mistake_is_found(plant, wrong, rule, found):
    plant(wrong)
    verdict = check(rule, rows=20_000)
    print(verdict)
    assert not verdict.passed
    assert [what for what, p in verdict.numbers.items() if p < loop.FALSE_ALARM] == found
