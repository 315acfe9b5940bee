"""Answers of the target to given prompts: what `specjax.generate` says."""

import dataclasses
import json

import pytest
import tiny_chat

import specjax
from specjax import decode
from specjax.training import answers, shards
from specjax.training.answers import Answers

PROMPTS = ["abc", "abc!", "b", "hijk", "far too long to be asked", "op"]


@pytest.fixture
def plan(tmp_path):
    lines = [json.dumps({"question_id": f"q{i}", "turns": [text]}) for i, text in enumerate(PROMPTS)]
    (tmp_path / "prompts.jsonl").write_text("\n".join([*lines, '{"turns": ["dd", "and then?", "ee"]}']))
    return Answers(
        prompts=str(tmp_path / "prompts.jsonl"),
        texts=3,
        min_tokens=2,
        max_tokens=10,
        answer_tokens=6,
        batch=2,
        answer_temperature=(1.0,),
        chat=False,
    )


def make(plan, folder, seed=3):
    return answers.make(plan, tiny_chat.target(), folder, lambda line: None, seed=seed)


def test_they_are_what_generate_says(plan, tmp_path):
    kept = [(bytes(token[~mask].tolist()).decode(), token[mask].tolist()) for token, mask in shards.read(make(plan, tmp_path / "a"))]
    asked = ["abc", "hijk", "op", "dd"]
    ids = ["q0", "q3", "q5", "7"]
    said = specjax.generate(
        tiny_chat.target(), asked, ids=ids, max_new_tokens=6, seed=3, sampling=specjax.Sampling(temperature=1.0)
    ).token_ids
    assert kept == list(zip(asked, said, strict=True))
    index = json.loads((tmp_path / "a" / "index.json").read_text())
    assert [s["dropped"] for s in index["shards"]] == [{"duplicate": 1, "short": 1}, {"long": 1}, {"later turn": 2}]


def test_chat_puts_them_into_the_template(plan, tmp_path):
    plan = dataclasses.replace(plan, chat=True, near=3, texts=7, answer_temperature=(0.0,))  # the filters do not see the template
    kept = [bytes(token.tolist()) for token, _ in shards.read(make(plan, tmp_path / "a"))]
    assert kept == [b"<u>%s</u><a>abcdef" % text for text in (b"abc", b"hijk", b"op", b"dd")]


def test_other_prompts_are_other_data(plan, tmp_path):
    make(plan, tmp_path / "a")
    with pytest.raises(ValueError, match=r"other settings \(other limit, encoded\)"):
        make(dataclasses.replace(plan, limit=2), tmp_path / "a")


def test_no_prompt_is_left(plan, tmp_path):
    make(dataclasses.replace(plan, min_tokens=1, max_tokens=1, limit=2), tmp_path / "a")
    index = json.loads((tmp_path / "a" / "index.json").read_text())
    assert [(s["texts"], s["dropped"]) for s in index["shards"]] == [(0, {"long": 2})]


def test_few_prompts_compile_nothing():
    decoder = specjax.Decoder(tiny_chat.target())
    said = answers.decode(decoder, [[97]] * 3, [4] * 3, [0, 1, 2], 2, 10)
    programs = decode.generate._cache_size(), decode.feed_prompts._cache_size()
    assert answers.decode(decoder, [[97]], [4], [0], 2, 10) == said[:1] == [(list(b"bcde"), False)]
    assert answers.decode(decoder, [], [], [], 2, 10) == []
    assert (decode.generate._cache_size(), decode.feed_prompts._cache_size()) == programs
