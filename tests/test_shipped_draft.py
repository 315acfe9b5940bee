"""The draft that ships, on the real model: it loads, says nothing that plain decoding would not, and is worth having."""

import pathlib

import pytest

import specjax
from specjax.models.load import fetch
from specjax.prompts import load

DRAFT = pathlib.Path(__file__).parents[1] / "drafts" / "smollm2-135m-instruct"


@pytest.mark.real
def test_it_drafts_what_the_target_says():
    """Drafts of two, on a prompt of each of two categories; about half of them were accepted when it was trained."""
    target = specjax.load(fetch.SMOLLM2)
    drafter = specjax.load_drafter(DRAFT, target, most=2)
    prompts = [load("own", categories=(category,), limit=1)[0].turns[0] for category in ("chat", "maths")]
    decoded = [specjax.generate(target, prompts, drafter=way, max_new_tokens=24, chat=True) for way in (None, drafter)]
    assert decoded[0].token_ids == decoded[1].token_ids
    counts = decoded[1].counts
    assert 0.3 < counts["accepted"].sum() / counts["drafted"].sum() < 0.8
