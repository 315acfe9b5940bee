"""Texts of the draft's own, out of the decode loop with a rule that accepts all."""

import functools

import loop
import numpy as np
import pytest

import specjax
from specjax.training.on_policy import draw

TARGET, DRAFT = loop.random_lm(3), loop.random_lm(5)
K, PROMPTS = 3, [[1, 2, 3], [4, 5], [6], [2, 2, 2, 2], [0, 1]]


@functools.cache
def drawn(itself=False, new=8, temperature=0.0, seed=0, prompts=5):
    drafter = loop.drafter(TARGET if itself else DRAFT, most=K)
    return draw(TARGET, drafter, PROMPTS[:prompts], new, temperature=temperature, seed=seed, batch=2)


def after(model, prompt, count):
    """The likeliest continuation under a table of two tokens' context."""
    text = list(prompt)
    for _ in range(count):
        text.append(int(np.argmax(model.params[tuple([0, *text][-2:])])))
    return text


def test_a_draft_that_is_the_target_writes_the_targets_text():
    for (token, mask), prompt in zip(drawn(itself=True).texts, PROMPTS, strict=True):
        assert token.tolist() == after(TARGET, prompt, 8)
        assert mask.tolist() == [False] * len(prompt) + [True] * 8
        assert token.dtype == np.int32 and mask.dtype == bool


def test_drafted_tokens_are_the_drafts_own_and_the_last_of_a_round_the_targets():
    for (token, _), prompt in zip(drawn().texts, PROMPTS, strict=True):
        text = after(TARGET, after(DRAFT, prompt, K), 1)
        text = after(TARGET, after(DRAFT, text, K), 1)
        assert token.tolist() == text != after(TARGET, prompt, 8)


@pytest.mark.parametrize("itself", [True, False])
def test_the_share_of_drafted_tokens(itself):
    assert drawn(itself).share == K / (K + 1)
    assert drawn(itself, new=6).share == (K + 1) / 6  # 3 + 1, then 1 + 1 of the budget


def test_an_end_that_was_drafted_ends_the_text_and_what_was_drafted_after_it_is_not_counted():
    texts = [token[len(prompt) :].tolist() for (token, _), prompt in zip(drawn().texts, PROMPTS, strict=True)]
    end = texts[0][1]
    tokenizer = loop.Texts([b"x"] * loop.VOCAB)
    tokenizer.eos_ids = (end,)
    got = draw(loop.replace(TARGET, tokenizer=tokenizer), loop.drafter(DRAFT, most=K), PROMPTS, 8, temperature=0, batch=2)
    cut = [text[: text.index(end) + 1] if end in text else text for text in texts]
    assert [token[len(prompt) :].tolist() for (token, _), prompt in zip(got.texts, PROMPTS, strict=True)] == cut
    drafted = sum(i % (K + 1) < K for text in cut for i in range(len(text)))
    assert got.share == drafted / sum(map(len, cut))


def test_sampled_texts_hang_on_the_seed_and_the_prompt_and_on_nothing_else():
    one, again, other = (drawn(temperature=1.0, seed=seed, prompts=n) for seed, n in ((1, 5), (1, 3), (2, 5)))
    same = [np.array_equal(a[0], b[0]) for a, b in zip(one.texts, again.texts, strict=False)]
    assert same == [True] * 3
    assert not all(np.array_equal(a[0], b[0]) for a, b in zip(one.texts, other.texts, strict=True))


def test_a_drafter_whose_drafts_branch_is_refused():
    branching = specjax.TreeDrafter(model=DRAFT.model, params=DRAFT.params, shape=specjax.shapes.parse("2x1"))
    with pytest.raises(ValueError, match="rule=accept_all judges chains"):
        draw(TARGET, branching, PROMPTS, 8)
