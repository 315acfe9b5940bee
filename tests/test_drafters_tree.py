"""Trees in the loop: greedy and coupled output equals plain's for every shape, width 1 is a chain, and caches hold what they should."""

import functools

import jax
import jax.numpy as jnp
import loop
import numpy as np
import pytest

import specjax
from specjax import NGram, Sampling, ancestry, parts, rules, shapes
from specjax import decode as decode_loop
from specjax.drafters import BestFirst, TreeDrafter, branching
from specjax.drafters.chain import chain
from specjax.models import cache, toy
from specjax.types import Cache, Draft, Tree, View, struct

PROMPTS = [[1, 2, 3, 1, 2, 4, 1, 2], [4, 5, 4, 5, 6, 4, 5], [6, 0, 1]]
SHAPES = {"2x2": shapes.parse("2x2"), "ragged": shapes.parse([(0,), (1,), (2,), (0, 0), (0, 1), (2, 0), (0, 1, 0)])}
PENALISED = {"repetition": 1.5, "frequency": 0.5}
target = functools.cache(lambda: loop.random_lm(0))
draft = functools.cache(lambda: loop.mixed(target(), 1))


def tree(shape, lm=None, **options):
    lm = lm or draft()
    return TreeDrafter(model=lm.model, params=lm.params, shape=SHAPES.get(shape) or shapes.parse(shape), **options)


def best_first(lm=None, **options):
    lm = lm or draft()
    return BestFirst(model=lm.model, params=lm.params, **{"nodes": 9, "most": 3, "beam": 2} | options)


DRAFTERS = {
    "2x2 without replacement": lambda: tree("2x2"),
    "ragged fixed": lambda: tree("ragged", drawn="fixed"),
    "best first": best_first,
    "n-gram of 2 branches": lambda: NGram(most=3, branches=2),
}


@functools.cache
def plain(**sampling):
    return decode(sampling=Sampling(**sampling)).token_ids


def decode(budget=30, **given):
    decoder = specjax.Decoder(target(), **given)
    return decoder.output(decoder.generate(decoder.prefill(decoder.start(PROMPTS, budget))))


@pytest.mark.parametrize("name", DRAFTERS)
def test_greedy_and_coupled_output_equals_plain(name):
    for sampling in ({}, {"temperature": 0.9, "coupled": True}):
        drafter = DRAFTERS[name]()
        ladder = None if name == "best first" else (parts.nodes(drafter),)  # each width takes long to compile
        out = decode(drafter=drafter, sampling=Sampling(**sampling), ladder=ladder)
        assert out.token_ids == plain(**sampling)
        assert (out.counts["passes"] < 30).all()
        np.testing.assert_array_equal(out.counts["drafted"], out.counts["accepted"] + out.counts["rejected"] + out.counts["cut"])


@pytest.mark.parametrize("make", [lambda lm: tree("2x1x1", lm), lambda lm: best_first(lm)], ids=["tree", "best first"])
def test_processors_see_the_path_to_each_node(make):
    """A draft that is the target is accepted whole on its best branch, whatever was said before on the way."""
    drafter = make(target())
    out = decode(drafter=drafter, sampling=Sampling(**PENALISED), ladder=(parts.nodes(drafter),))
    assert out.token_ids == plain(**PENALISED)
    assert out.counts["passes"].tolist() == [8, 8, 8]  # 30 tokens, 4 a round


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=0.8), Sampling(temperature=0.8, coupled=True)], ids=str)
def test_a_tree_of_width_one_is_a_chain(sampling):
    chain, wide = (decode(drafter=d, sampling=sampling) for d in (loop.drafter(draft(), 3), tree("1x1x1")))
    assert chain.token_ids == wide.token_ids
    for name, x in chain.trace._asdict().items():
        np.testing.assert_array_equal(x, getattr(wide.trace, name), err_msg=name)


def test_a_row_is_the_same_alone():
    for drafter, sampling in ((tree("2x2"), Sampling()), (best_first(), Sampling())):
        together = decode(drafter=drafter, sampling=sampling)
        decoder = specjax.Decoder(target(), drafter=drafter, sampling=sampling)
        for row, prompt in enumerate(PROMPTS):
            alone = decoder.output(decoder.generate(decoder.prefill(decoder.start([prompt], 30, [row]))))
            assert alone.token_ids[0] == together.token_ids[row]
            assert alone.counts["drafted"][0] == together.counts["drafted"][row]


@pytest.mark.parametrize("name", DRAFTERS)
def test_a_program_of_64_bits_has_one_kind_of_integers(name):
    """Traced, not compiled: a loop refuses what changes its dtype."""
    with jax.enable_x64(True):
        decoder = specjax.Decoder(target(), drafter=DRAFTERS[name]())
        ready = jax.eval_shape(decode_loop.prefill, decoder.setup, target().params, decoder.start(PROMPTS, 8))
        jax.eval_shape(decode_loop.generate, decoder.setup, target().params, ready, np.int32(0))


@functools.cache
def transformers():
    """Target and a draft that agrees with it now and then."""
    model, params = toy.tiny(scale=8.0)
    worse = jax.tree.map(lambda x: x + 0.25 * jax.random.normal(jax.random.key(1), x.shape, x.dtype) * x.std(), params)
    return tuple(specjax.LM(model, p, None, "tiny") for p in (params, worse))


@pytest.mark.parametrize("kind", ["tree", "best first"])
def test_caches_hold_the_path_that_was_accepted(kind):
    """After every round both caches equal a fresh prefill of what is committed."""
    target, draft = transformers()
    made = {"tree": lambda: tree("ragged", draft, drawn="fixed"), "best first": lambda: best_first(draft)}[kind]()
    decoder, depths = specjax.Decoder(target, drafter=made, ladder=(parts.nodes(made),)), set()
    for state in loop.rounds(decoder, PROMPTS[:2], 16):
        fresh = decoder.prefill(decoder.start([ids[: n + 1] for ids, n in zip(state.token_BS.tolist(), state.cursor_B, strict=True)], 1))
        same_up_to(state.cache, fresh.cache, state.cursor_B)
        same_up_to(state.drafter.cache, fresh.drafter.cache, state.drafter.cursor_B)
        assert (state.cursor_B - state.drafter.cursor_B <= 1).all()
        depths |= set((state.trace.committed_BN - 1).max(0).tolist())
    assert len(depths & {1, 2, 3}) >= 2


def same_up_to(cache, fresh, cursor_B):
    for got, right in zip(jax.tree.leaves(cache), jax.tree.leaves(fresh), strict=True):
        for row, cursor in enumerate(cursor_B):
            np.testing.assert_allclose(got[row, ..., :cursor, :], right[row, ..., :cursor, :], atol=2e-5)


@struct
class Misdeclared(NGram):
    """It drafts two nodes more than it says."""

    def propose(self, params, state, view, root_B, ask_B, draw):
        return Draft(chain(ask_B, self.nodes + 2, "fixed"), jnp.zeros((len(root_B), self.nodes + 2), jnp.int32), None), state, view


def test_a_draft_larger_than_its_drafter_declares_is_an_error():
    with pytest.raises(ValueError, match=r"drafter=ngram made a draft of 5 nodes, .* says 3"):
        specjax.generate(target(), [[1]], drafter=Misdeclared(most=2), max_new_tokens=2)


def test_the_deepest_nodes_of_a_row_count_as_never_fed():
    """Another row may have gone deeper, and fed them."""
    one = jnp.asarray([2], jnp.int32)
    state = branching.BranchingState(None, one, one, *[None] * 4)
    draft = Draft(chain(one, 4, "fixed"), jnp.zeros((1, 4), jnp.int32), None)
    after = branching.drafted(state, View(None, None, None, one), draft, one, jnp.asarray([[0, 1, 2, 3]], jnp.int32), None)
    assert after.slot_BM.tolist() == [[0, 1, -1, -1]]


def test_what_overflowed_on_another_branch_stays_out_of_the_path():
    row_SC = np.arange(12, dtype=np.float32).reshape(6, 2)
    row_SC[3], row_SC[5] = np.nan, np.inf
    moved = cache.gather(Cache((row_SC,), (row_SC,)), 1, 1, np.asarray([1], np.int32), np.asarray([[0, 3, 2]], np.int32), 5)
    assert moved.k[0][:3].tolist() == row_SC[[0, 1, 4]].tolist()


def test_who_is_whose_ancestor():
    """The tree of reference_values: [[0],[1],[0,0],[0,1],[1,0]]."""
    shape = shapes.parse([[0], [1], [0, 0], [0, 1], [1, 0]])
    rows = ["".join(map(str, row)) for row in np.asarray(ancestry.ancestors(shape.parent_M[None])[0], int)]
    assert rows == ["100000", "110000", "101000", "110100", "110010", "101001"]
    one = Tree(
        parent_M=shape.parent_M[None], depth_M=shape.depth_M[None], rank_M=None, valid_M=np.ones((1, 6), bool), drawn="iid", chain=False
    )
    assert ancestry.path(one, np.asarray([4]))[0].tolist()[:3] == [0, 1, 4]
    assert ancestry.path(one, np.asarray([2]))[0].tolist()[:2] == [0, 2]
    seen_BTS = ancestry.over_slots(np.asarray([3], np.int32), np.asarray([[[True, False, True]]]), 8)
    assert seen_BTS[0, 0].tolist() == [True, True, True, True, False, True, False, False]


@pytest.mark.parametrize("name", ["fixed", "best first"])
def test_a_draft_without_a_law_is_named_where_its_tokens_are_certain(name):
    lost = loop.random_lm(5)
    lost = loop.replace(lost, params=np.where(np.arange(7)[:, None] == 1, np.nan, lost.params).astype(np.float32))
    drafter = tree("2", lost, drawn="fixed") if name == "fixed" else best_first(lost, nodes=3, most=1)
    with pytest.raises(RuntimeError, match="or from a law that is not finite"):
        decode(2, drafter=drafter, ladder=(3,))


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"drafter": lambda: tree("2x2", drawn="iid"), "sampling": Sampling(temperature=1.0, coupled=True)}, "all siblings would be equal"),
        ({"drafter": lambda: tree("2x2"), "sampling": Sampling(temperature=1.0)}, "judges chains, and drafter=tree branches"),
        (
            {
                "drafter": lambda: tree("2x2"),
                "rule": rules.Traversal(),
                "sampling": Sampling(temperature=1.0),
                "draft_sampling": Sampling(),
            },
            "no node would have two children that differ",
        ),
        ({"drafter": lambda: NGram(), "rule": rules.KSeq(), "sampling": Sampling(temperature=1.0)}, "judges siblings drawn iid, .*'fixed'"),
        ({"drafter": lambda: best_first(nodes=4)}, "drafter.nodes=4 must be from 5 to 11"),
        ({"drafter": lambda: tree("8x1")}, "8 siblings, the draft's vocabulary 7 tokens"),
        ({"drafter": lambda: tree("2", drawn="one")}, "drafter.drawn='one' must be one of"),
        ({"drafter": lambda: TreeDrafter(model=draft().model, params=draft().params, shape="2y")}, "tree='2y' must be widths like"),
        ({"drafter": lambda: tree(shapes.Shape(()))}, "drafter.shape has no node to draft"),
        ({"drafter": lambda: NGram(branches=0)}, "branches >= 1"),
        ({"drafter": lambda: tree("2x2"), "ladder": (1, 3)}, "its root, 7"),
    ],
)
def test_what_does_not_fit_is_one_line(given, says):
    with pytest.raises(ValueError, match=says):
        specjax.Decoder(target(), **{**given, "drafter": given["drafter"]()})
