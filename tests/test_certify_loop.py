"""The loop is certified, its planted mistakes are found, and every rule keeps its law in it: with every drafter, every filter, in ragged
batches, on trees and on chains."""

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from loop import lm, mixed, random_lm

from specjax import Decoder, NGram, Sampling, reference, rules, sampling, shapes
from specjax.certify import exact_law, loop
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
        (without_root, Block(), ["chain, fixed: law", "chain, adaptive: law"]),
        (accept_and_residual, Speculative(), ["chain, fixed: law", "chain, adaptive: law"]),
        (draft_and_accept, Speculative(), ["chain, fixed: law", "chain, adaptive: law"]),
        (siblings, KSeq(), ["iid, fixed: law", "iid, adaptive: law"]),
    ],
    ids=["root, p/q", "root, block", "accept and residual", "draft and accept", "siblings"],
)
def test_a_planted_mistake_is_found(plant, wrong, rule, found):
    plant(wrong)
    verdict = check(rule, rows=20_000)
    assert not verdict.passed
    assert [what for what, p in verdict.numbers.items() if p < loop.FALSE_ALARM and what.endswith("law")] == found


# ---------------------------------------------------------------- every rule in the loop: its law with every filter, in ragged batches


FILTERS = {  # numbers of one structure, so that none compiles anything
    "none": (1.0, 3, 1.0),
    "temperature": (0.7, 3, 1.0),
    "top-k": (1.0, 2, 1.0),
    "top-p": (1.0, 3, 0.75),
}
NUMBERS = {
    "lenient": {"lenience": 0.5}, "argmax_lenience": {"lenience": 0.5}, "cascade": {"delta": 0.1}, "synthetic": {"rates": (0.7, 0.4)},
    "typical": {}, "relaxed": {"top": 2, "delta": 0.3},
}  # fmt: skip
EXACT = tuple(kind() for kind in rules.EXACT if not kind.one_hot_only)
LOSSY = tuple(rules.by_name(name, **numbers) for name, numbers in NUMBERS.items())
TABLE = {"model": lm(DRAFT).model, "params": lm(DRAFT).params}
DRAFTERS = {
    "model": ModelDrafter(**TABLE, most=2, chunk=CHUNK),
    "tree, iid": TreeDrafter(**TABLE, shape=shapes.parse("2x1"), drawn="iid", chunk=CHUNK),
    "tree, without replacement": TreeDrafter(**TABLE, shape=shapes.parse("2x1"), drawn="without_replacement", chunk=CHUNK),
    "branches of lookup": NGram(most=2, min_n=1, branches=2),
}


@struct
class First:
    """Drafts all it can for so many rounds, then nothing."""

    rounds: int | jax.Array
    name = "first"

    def init(self, batch):
        return jnp.zeros(batch, jnp.int32)

    def choose(self, round_B, offer_B):
        return jnp.where(round_B < self.rounds, offer_B, 0)

    def keep_going(self, round_B, q_BV, depth):
        return jnp.ones(q_BV.shape[0], bool)

    def observe(self, round_B, verdict):
        return round_B + 1


def judges(rule, draft) -> bool:
    """Whether the rule judges such drafts."""
    branches = getattr(draft, "nodes", draft.most + 1) > draft.most + 1
    return not branches or (rule.trees and draft.drawn in rule.drawn)


def count(draft, one_of, which, how, tokens, rounds=1000, rows=20_000):
    temperature, top_k, top_p = FILTERS[how]
    decoder = Decoder(
        lm(TARGET), drafter=draft, rule=OneOf(rules=one_of, which=which), length=First(rounds=rounds), chunk=CHUNK,
        ladder=(getattr(draft, "nodes", draft.most + 1),), sampling=Sampling(temperature=temperature, top_k=top_k, top_p=top_p),
    )  # fmt: skip
    return frequencies(runs(decoder, tokens, rows), tokens, 3)


def filtered(law, how):
    temperature, top_k, top_p = FILTERS[how]
    return np.array([reference.law(np.log(row), temperature, top_k=top_k, top_p=top_p) for row in law])


def after_zero(law):
    return lambda context: law[(0, *context)[-1]]


@pytest.mark.parametrize("name", DRAFTERS)
def test_every_exact_rule_keeps_the_law_of_the_target(name):
    """Every rule with every drafter that it judges; the filters in turn, so that rules and drafters meet them all. A rule that does not
    judge every drafter meets all filters on chains."""
    draft, turn = DRAFTERS[name], list(DRAFTERS).index(name)
    able = tuple(rule for rule in EXACT if judges(rule, draft))
    for which, rule in enumerate(able):
        picky = not all(judges(rule, other) for other in DRAFTERS.values())
        for how in FILTERS if picky and name == "model" else [list(FILTERS)[(EXACT.index(rule) + turn) % 4]]:
            assert fit(count(draft, able, which, how, 4), plain_law(filtered(TARGET, how), 4), run=2) > 1e-4, (rule.name, how)


def test_every_lossy_rule_has_the_law_of_its_certificate():
    """K + 1 tokens of which one round drafts K; far from the target's law, so that this could fail. Rules that emit argmax p go on so
    without drafts, where the certificate goes on with p: only their first token is compared."""
    for which, rule in enumerate(LOSSY):
        how = list(FILTERS)[which % 4]
        certified = exact_law(rule, *(after_zero(filtered(law, how)) for law in (TARGET, DRAFT)), 2, drawn="iid")
        first = (1, 2) if rule.name in ("argmax_lenience", "relaxed") else ()
        seen, law, plain = (
            x.sum(axis=first)
            for x in (
                count(DRAFTERS["model"], LOSSY, which, how, 3, rounds=1),
                certified.law_S.reshape(3, 3, 3),
                plain_law(filtered(TARGET, how), 3),
            )
        )
        assert fit(seen, law, run=1) > 1e-4 > 1e-6 > fit(seen, plain, run=1), rule.name


# ---------------------------------------------------------------- every exact rule: temperature 0, and trees of width 1


PAIR = random_lm(3), mixed(random_lm(3), 4, 0.3)  # laws of the last two tokens, so that masks, positions and gathers must be right


def tokens_of(draft, rule, how, rows=60):
    decoder = Decoder(PAIR[0], drafter=draft, rule=rule, sampling=how, ladder=(getattr(draft, "nodes", draft.most + 1),), chunk=CHUNK)
    [state] = runs(decoder, 16, rows, rows)
    return new_tokens(state, 16)


def tree(shape, drawn):
    return TreeDrafter(model=PAIR[1].model, params=PAIR[1].params, shape=shapes.parse(shape), drawn=drawn, chunk=CHUNK)


@pytest.mark.parametrize(
    "draft",
    [
        tree([(0,), (1,), (2,), (0, 0), (0, 1), (1, 0), (0, 0, 0)], "without_replacement"),
        tree("2x2", "iid"),  # siblings are equal
        BestFirst(model=PAIR[1].model, params=PAIR[1].params, nodes=7, most=3, beam=2, chunk=CHUNK),
        ModelDrafter(model=PAIR[1].model, params=PAIR[1].params, most=3, chunk=CHUNK),
    ],
    ids=["paths", "iid", "best first", "chain"],
)
def test_at_temperature_zero_every_exact_rule_gives_the_tokens_of_plain(draft):
    branches = getattr(draft, "nodes", draft.most + 1) > draft.most + 1
    drawn = "iid" if getattr(draft, "drawn", "iid") == "iid" else "fixed"  # nothing is left to chance
    able = (Greedy(), *(rule for rule in EXACT if not branches or (rule.trees and drawn in rule.drawn)))
    assert len(able) == {(True, "fixed"): 4, (True, "iid"): 5, (False, "iid"): 7}[branches, drawn]
    plain = tokens_of(NoDraft(), Greedy(), Sampling())
    for which in range(len(able)):
        assert (tokens_of(draft, OneOf(rules=able, which=which), Sampling()) == plain).all(), able[which].name


@struct
class Spread(TreeDrafter):
    """A chain that the loop takes for a tree."""

    def propose(self, params, state, view, root_B, ask_B, draw):
        draft, state, view = super().propose(params, state, view, root_B, ask_B, draw)
        return draft._replace(tree=dataclasses.replace(draft.tree, chain=False)), state, view


def test_a_tree_of_width_one_gives_the_tokens_of_the_chain():
    """Bit for bit, under every rule."""
    table, how = {"model": PAIR[1].model, "params": PAIR[1].params, "chunk": CHUNK}, Sampling(temperature=1.0)
    every = EXACT + LOSSY
    for which in range(len(every)):
        pair = ModelDrafter(**table, most=3), Spread(**table, shape=shapes.chain(3), drawn="iid")
        chain, spread = (tokens_of(draft, OneOf(rules=every, which=which), how) for draft in pair)
        assert (spread == chain).all(), every[which].name
