"""Drafters are certified, and those with one thing wrong are told apart by one line."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from loop import mixed, random_lm

import specjax
from specjax import EarlyExit, ModelDrafter, NGram, NoDraft, Sampling, sampling, shapes
from specjax.certify.drafter import Seen, check, faults
from specjax.certify.tally import places
from specjax.drafters import BestFirst, TreeDrafter
from specjax.drafters.chain import chain
from specjax.types import Draft, struct

TARGET = random_lm(3)  # laws of the last two tokens, so that a cache must be right
DRAFT = mixed(TARGET, 4, 0.3)
TABLE = {"model": DRAFT.model, "params": DRAFT.params}
NOT_Q = "q is not the law that tokens are drawn from: p-value"
STALE = "its state is not that of a fresh init"


@pytest.fixture(scope="module")
def tiny():
    """A tiny transformer, and the parameters of one near it."""
    target, other = specjax.load("toy://tiny"), specjax.load("toy://tiny/1")
    return target, jax.tree.map(lambda a, b: 0.93 * a + 0.07 * b, target.params, other.params)


def passes(verdict, draws):
    assert verdict.passed and verdict.why == "", verdict
    assert (verdict.numbers["draws"] > 4000) is draws
    assert verdict.numbers["p_value"] > 1e-3


def fails(verdict, why):
    assert not verdict.passed
    assert why in verdict.why
    assert "\n" not in verdict.why


@struct
class Faulty(ModelDrafter):
    """A chain with one thing wrong, named by a number, so that all share a program."""

    fault: int | jax.Array = 0

    def propose(self, params, state, view, root_B, ask_B, draw):
        draft, state, view = super().propose(params, state, view, root_B, ask_B, Coin(draw, self.coin))
        most_B = jnp.where((self.fault == 5) & (ask_B < jnp.max(ask_B)), 0, ask_B)
        return changed(draft, valid_M=draft.tree.depth_M <= most_B[:, None]), state, view

    def coin(self, draw, law, node, depth):
        filtered = sampling.law(jnp.log(law), Sampling(temperature=1.0, top_p=0.8))
        token_B = draw(jnp.where(self.fault == 2, filtered, law), node, depth)
        return jnp.where(self.fault == 1, sampling.first_argmax(law), token_B)

    def observe(self, params, state, committed, features):
        right = super().observe(params, state, committed, features)
        wrong_B = jnp.where(self.fault == 3, state.cursor_B, committed.cursor_B)
        return right._replace(cursor_B=jnp.where((self.fault == 3) | (self.fault == 4), wrong_B, right.cursor_B))


class Coin:
    """The loop's coin with another call."""

    def __init__(self, draw, call):
        self.draw, self.call = draw, call

    def __getattr__(self, name):
        return getattr(self.draw, name)

    def within(self, ids_U):
        return Coin(self.draw.within(ids_U), self.call)

    def __call__(self, law, node, depth=None):
        return self.call(self.draw, law, node, depth)


def changed(draft: Draft, **tree) -> Draft:
    return draft._replace(tree=dataclasses.replace(draft.tree, **tree))


def test_chains():
    passes(check(Faulty(**TABLE, most=3), TARGET), True)


@pytest.mark.parametrize(
    ("fault", "why"),
    [(1, NOT_Q), (2, NOT_Q), (3, STALE), (4, STALE), (5, "is drafted otherwise alone than in a batch")],
    ids=["soft q, drawn by argmax", "top-p in the draw only", "not rolled back", "one token too few after full acceptance", "batch"],
)
def test_faulty_chains(fault, why):
    fails(check(Faulty(**TABLE, most=3, fault=fault), TARGET), why)


@struct
class Shared(TreeDrafter):
    """A tree of two children each; shared: 1, siblings are drawn with one key; 2, all first children of a level are, and all second."""

    shared: int | jax.Array = 0

    def propose(self, params, state, view, root_B, ask_B, draw):
        return super().propose(params, state, view, root_B, ask_B, Coin(draw, self.coin))

    def coin(self, draw, law, node, depth):
        return draw(law, jnp.select([self.shared == 1, self.shared == 2], [(node - 1) // 2, jnp.full_like(node, node[0])], node), depth)


@pytest.mark.parametrize("shared", [0, 1, 2], ids=["none", "siblings", "cousins"])
def test_nodes_of_a_tree_drawn_with_one_key(shared):
    verdict = check(Shared(**TABLE, shape=shapes.parse("2x2"), drawn="iid", shared=shared), TARGET)
    if shared:
        fails(verdict, NOT_Q)
    else:
        passes(verdict, True)


def test_a_tree_that_grows_best_first():
    passes(check(BestFirst(**TABLE, nodes=8, most=3, beam=2), TARGET), False)


def test_lookup_and_one_that_remembers_its_first_match():
    @struct
    class Lags(NGram):
        lags: int | jax.Array = 0

        def observe(self, params, state, committed, features):
            new = super().observe(params, state, committed, features)
            return jax.tree.map(lambda old, new: jnp.where(self.lags == 1, old, new), state, new)

    passes(check(Lags(most=4, min_n=1), TARGET), False)
    fails(check(Lags(most=4, min_n=1, lags=1), TARGET), STALE)


def test_no_draft():
    passes(check(NoDraft(), TARGET), False)


def test_a_tree_of_a_transformer_without_replacement(tiny):
    target, near = tiny
    drafter = TreeDrafter(model=target.model, params=near, shape=shapes.parse("2x1"), drawn="without_replacement")
    assert check(drafter, target, sampling=Sampling(temperature=0.8, top_k=20)).passed


def test_early_exit(tiny):
    target, _ = tiny
    passes(check(EarlyExit(model=target.model, exit_layer=1, most=3), target), True)


# ---------------------------------------------------------------- drafts that are none, without a loop


def drafts(change=lambda draft: draft) -> Seen:
    """Two rows that were asked for 2 and for 1 token of a chain, in a vocabulary of 3."""
    tree = jax.device_get(chain(jnp.asarray([2, 1]), 3, "iid"))
    q_BMV = np.broadcast_to(np.asarray([0.5, 0.5, 0.0], np.float32), (2, 3, 3))
    fresh = Draft(tree, np.asarray([[2, 0, 1], [0, 1, 99]], np.int32), q_BMV)
    draft = change(fresh)
    return Seen(np.asarray([2, 0]), np.asarray([2, 1]), np.asarray([2, 2]), np.asarray([2, 2]), draft, fresh)


def at(x, row, node, value):
    x = x.copy()
    x[row, node] = value
    return x


def test_a_good_draft_has_no_fault():
    assert list(faults(drafts(), 3)) == []


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda d: changed(d, valid_M=d.tree.depth_M <= 2), "it drafts deeper than it was asked to: row 1, node 2"),
        (lambda d: d._replace(token_BM=at(d.token_BM, 0, 0, 1)), "node 0 is not the root: row 0, node 0"),
        (lambda d: changed(d, valid_M=at(d.tree.valid_M, 0, 1, False)), "a node is valid and its parent is not, or stands after it: row 0"),
        (lambda d: changed(d, depth_M=at(d.tree.depth_M, 0, 2, 1)), "depth_M is not the parent's plus one: row 0, node 2"),
        (lambda d: changed(d, rank_M=d.tree.depth_M), "rank_M is not the place among the siblings: row 0, node 1"),
        (lambda d: d._replace(token_BM=at(d.token_BM, 1, 1, 3)), "it drafts a token outside the vocabulary: row 1, node 1"),
        (lambda d: d._replace(q_BMV=None), "drawn='iid' and q is None: q is None where children are fixed, and only there"),
        (lambda d: d._replace(q_BMV=d.q_BMV * 2), "q of a drafted token is no law: row 0, node 1"),
        (lambda d: d._replace(q_BMV=d.q_BMV * np.nan), "q of a drafted token is no law: row 0, node 1"),
        (lambda d: d._replace(token_BM=at(d.token_BM, 0, 2, 2)), "it drafts a token to which q gives no probability: row 0, node 2"),
        (lambda d: d._replace(token_BM=at(d.token_BM, 0, 2, 0)), f"{STALE}: the next draft differs at row 0, node 2"),
        (lambda d: d._replace(q_BMV=d.q_BMV + np.float32([2e-5, -2e-5, 0])), f"{STALE}: the next draft differs at row 0, node 1"),
    ],
)  # fmt: skip
def test_faults(change, why):
    assert next(faults(drafts(change), 3)).startswith(why)


def test_fixed_siblings_must_differ():
    same = lambda d: changed(
        d._replace(token_BM=np.asarray([[2, 0, 0], [0, 1, 1]]), q_BMV=None),
        parent_M=d.tree.parent_M * 0, depth_M=np.minimum(d.tree.depth_M, 1), rank_M=np.maximum(d.tree.depth_M - 1, 0), drawn="fixed",
    )  # fmt: skip
    assert next(faults(drafts(same), 3)) == "siblings are drawn 'fixed' and equal: row 0, node 2"


def test_places_in_the_order_of_a_law():
    law = np.array([[0.1, 0.5, 0.4], [0.2, 0.2, 0.6]])
    place, chance = places(law, np.array([2, 1]))
    assert place.tolist() == [1, 2]
    assert chance[:, :3].tolist() == [[0.5, 0.4, 0.1], [0.6, 0.2, 0.2]]
    place, chance = places(np.full((1, 10), 0.1), np.array([9]))
    assert place.tolist() == [7]
    np.testing.assert_allclose(chance[0], [0.1] * 7 + [0.3])
