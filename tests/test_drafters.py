"""Drafters on their own: what they offer and propose."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest
from loop import random_lm

import specjax
from specjax import NGram, reference
from specjax.types import View


def view(rows, size=64):
    """Committed tokens as the loop holds them, garbage behind."""
    token_BS = np.random.default_rng(0).integers(0, 3, (len(rows), size)).astype(np.int32)
    for row, tokens in zip(token_BS, rows, strict=True):
        row[: len(tokens)] = tokens
    return View(None, None, jnp.asarray(token_BS), jnp.asarray([len(r) - 1 for r in rows]))


@pytest.mark.parametrize("n", [(1, 1), (1, 3), (2, 4), (3, 3)])
def test_ngram_finds_what_the_oracle_finds(n):
    """200 random texts over three letters, of 1 to 40 tokens, with garbage behind them."""
    rng = np.random.default_rng(1)
    rows = [rng.integers(0, 3, rng.integers(1, 41)).tolist() for _ in range(200)]
    drafter = NGram(most=7, min_n=n[0], max_n=n[1])
    seen = view(rows)
    state = drafter.init(None, seen)
    draft, _, _ = drafter.propose(None, state, seen, jnp.asarray([r[-1] for r in rows]), drafter.offer(state), None)
    found = 0
    for b, row in enumerate(rows):
        start, follow, matched = reference.lookup(row, *n)
        offer = min(follow, 7)
        assert int(state.offer_BJ[b, 0]) == offer
        assert np.asarray(draft.tree.valid_M[b]).tolist() == [m <= offer for m in range(8)]
        if matched:
            found += 1
            assert np.asarray(draft.token_BM[b, : offer + 1]).tolist() == [row[-1], *row[start : start + offer]]
    assert found > 50


@pytest.mark.parametrize(("per_match", "offers"), [(1.0, [2, 3, 4]), (1.5, [3, 4, 6]), (np.inf, [7, 7, 7])])
def test_a_longer_match_is_trusted_for_more_tokens(per_match, offers):
    """Matches of 2, 3 and 4 tokens, each followed by many."""
    tail = list(range(10, 30))
    rows = [[*(40 + np.arange(n)), *tail, *(40 + np.arange(n))] for n in (2, 3, 4)]
    state = NGram(per_match=per_match, min_n=2, max_n=6).init(None, view(rows))
    assert state.offer_BJ[:, 0].tolist() == offers


def test_ngram_never_offers_more_than_was_committed():
    """A match right before the newest tokens is followed by few tokens."""
    state = NGram(min_n=1).init(None, view([[5, 5], [5, 6, 5, 6], [5]]))
    assert state.offer_BJ[:, 0].tolist() == [1, 2, 0]


def test_no_draft_offers_nothing():
    drafter = specjax.NoDraft()
    assert drafter.offer(drafter.init(None, view([[1], [1, 2]]))).tolist() == [0, 0]


def test_a_model_of_another_vocabulary_is_refused():
    with pytest.raises(ValueError, match="draft vocabulary of 5 tokens, target's has 7"):
        specjax.generate(random_lm(0), [[1]], drafter=random_lm(0, vocab=5))


def test_a_draft_with_a_shorter_context_stops_offering():
    """Positions 0 .. 19 only: it drafts while its tokens fit, then stands aside, and the output stays plain's."""
    target = specjax.load("toy://tiny")
    short = dataclasses.replace(target.model, config=dataclasses.replace(target.model.config, max_positions=20))
    draft = specjax.ModelDrafter(model=short, params=target.params, most=3)
    out = specjax.generate(target, [[1] * 10], drafter=draft, max_new_tokens=30)
    assert out.token_ids == specjax.generate(target, [[1] * 10], max_new_tokens=30).token_ids
    last = (out.trace.root_BN + out.trace.drafted_BN)[0]
    assert last[out.trace.drafted_BN[0] > 0].max() == 20 and (out.trace.drafted_BN[0, 4:] == 0).all()
