"""Self-prompted data: the model writes both sides of the talk; the same bytes however often it is stopped."""

import dataclasses
import functools
import json
import pathlib
import tempfile

import numpy as np
import pytest
import tiny_chat

import specjax
from specjax.training import answers, self_prompt, shards
from specjax.training.self_prompt import SelfPrompted

PLAN = SelfPrompted(
    shards=3, texts=12, openings=("", "zz "), max_tokens=10, min_tokens=2, answer_tokens=20, near=5, batch=4, repeated=0.3,
    answer_temperature=(0.0, 1.0), answer_share=(1.0, 3.0),
)  # fmt: skip


def make(folder, plan=PLAN, target=None, say=lambda line: None, **options):
    return self_prompt.make(plan, target or tiny_chat.target(), folder, say, **options)


@functools.cache
def made():
    return make(pathlib.Path(tempfile.mkdtemp()))


def texts():
    return [(bytes(np.minimum(token, 255).astype(np.uint8)), mask) for token, mask in shards.read(made())]


def test_each_text_is_template_message_and_answer():
    kept = texts()
    assert len(kept) > 9
    for text, mask in kept:
        prompt, answer = text[: np.argmax(mask)], text[np.argmax(mask) :]
        message = prompt.removeprefix(tiny_chat.BEFORE).removesuffix(tiny_chat.AFTER)
        assert prompt == tiny_chat.BEFORE + message + tiny_chat.AFTER
        assert 2 <= len(message) <= 10 and set(message.removeprefix(b"zz")) <= set(tiny_chat.LETTERS)
        assert mask[len(prompt) :].all() and (answer.endswith(b"\xff") or len(answer) == 20)
    assert {text.startswith(b"<u>zz") for text, _ in kept} == {True, False}


@pytest.mark.parametrize(("shares", "greedy"), [((1.0, 1e-9), True), ((1e-9, 1.0), False)])
def test_temperatures_are_mixed_by_their_shares(tmp_path, shares, greedy):
    make(tmp_path, dataclasses.replace(PLAN, shards=1, answer_share=shares))
    alphabet = [bytes(token[mask][:-1].tolist()) == tiny_chat.LETTERS for token, mask in shards.read(tmp_path)]
    assert len(alphabet) > 2 and set(alphabet) == {greedy}


def test_every_message_was_tried_and_each_drop_counted():
    index = json.loads((made() / "index.json").read_text())
    assert [s["texts"] + sum(s["dropped"].values()) for s in index["shards"]] == [12, 12, 12]
    reasons = {reason for s in index["shards"] for reason in s["dropped"]}
    assert {"short", "unfinished"} <= reasons and "long" not in reasons
    keys = [key for s in index["shards"] for key in np.load(made() / s["name"])["key"][:, 0].tolist()]
    assert len(set(keys)) == len(keys) == sum(s["texts"] for s in index["shards"])


@pytest.mark.parametrize("call", [1, 5])  # of nine: a shard has a call for its messages and one for each temperature
def test_a_killed_run_goes_on_to_the_same_bytes(tmp_path, monkeypatch, call):
    calls = iter(range(call))

    def dying(*arguments):
        if next(calls, None) is None:
            raise KeyboardInterrupt
        return decode(*arguments)

    decode = answers.decode
    with monkeypatch.context() as patch:
        patch.setattr(self_prompt, "decode", dying)
        patch.setattr(answers, "decode", dying)
        with pytest.raises(KeyboardInterrupt):
            make(tmp_path)
    assert len(list(tmp_path.glob("*.npz"))) == call // 3
    make(tmp_path)
    assert tiny_chat.files(tmp_path) == tiny_chat.files(made())


def test_more_shards_are_added_and_the_share_is_free(tmp_path):
    make(tmp_path, dataclasses.replace(PLAN, shards=1, share=2.0))
    make(tmp_path)
    assert tiny_chat.files(tmp_path) == tiny_chat.files(made())


def test_another_seed_says_something_else(tmp_path):
    make(tmp_path, dataclasses.replace(PLAN, shards=1), seed=1)
    assert (tmp_path / "00000.npz").read_bytes() != (made() / "00000.npz").read_bytes()
    with pytest.raises(ValueError, match=r"other settings \(other seed\)"):
        make(tmp_path, dataclasses.replace(PLAN, shards=1))


def test_no_two_draws_share_an_id_and_openings_are_part_of_the_message(tmp_path, monkeypatch):
    ids, rooms, decode = [], set(), answers.decode

    def watched(decoder, prompts, budgets, given, batch, size):
        ids.extend(given)
        rooms.update((len(p) + b, size) for p, b in zip(prompts, budgets, strict=True) if tiny_chat.AFTER[-1] not in p[3:])
        return decode(decoder, prompts, budgets, given, batch, size)

    monkeypatch.setattr(self_prompt, "decode", watched)
    monkeypatch.setattr(answers, "decode", watched)
    make(tmp_path)
    assert len(ids) == len(set(ids)) > 3 * 12 + 9
    assert rooms == {(3 + 10, 3 + 10 + 1)}


def test_held_out_messages_and_answers_are_dropped(tmp_path):
    (tmp_path / "held.txt").write_text("xx efghijklm yy\n")
    make(
        tmp_path / "data",
        dataclasses.replace(PLAN, shards=1, answer_temperature=(0.0,), answer_share=None),
        exclude=(str(tmp_path / "held.txt"),),
    )
    [shard] = json.loads((tmp_path / "data" / "index.json").read_text())["shards"]
    assert shard["texts"] == 0 and shard["dropped"]["held out"] > 3  # every greedy answer says the alphabet


def test_cut_answers_can_be_dropped(tmp_path):
    plan = dataclasses.replace(PLAN, shards=1, answer_temperature=(0.0,), answer_share=None, answer_tokens=5)
    make(tmp_path / "kept", plan)
    make(tmp_path / "dropped", dataclasses.replace(plan, cut=False))
    kept, dropped = (json.loads((tmp_path / name / "index.json").read_text())["shards"][0] for name in ("kept", "dropped"))
    assert kept["texts"] > 3 and dropped["texts"] == 0
    assert dropped["dropped"]["unfinished"] == kept["dropped"].get("unfinished", 0) + kept["texts"]


class Control(tiny_chat.Chat):
    """The 'a' of the template is a control token: no text holds it."""

    def decode(self, ids):
        return super().decode([i for i in ids if i != ord("a")])


def test_a_message_that_goes_on_into_another_turn_is_dropped(tmp_path):
    kept = [bytes(token[~mask].tolist()) for token, mask in shards.read(made())]
    make(tmp_path, target=dataclasses.replace(tiny_chat.target(), tokenizer=Control()))
    fewer = [bytes(token[~mask].tolist()) for token, mask in shards.read(tmp_path)]
    dropped = sum(s["dropped"].get("template", 0) for s in json.loads((tmp_path / "index.json").read_text())["shards"])
    assert dropped > 2 and fewer and not any(b"a" in prompt.removesuffix(tiny_chat.AFTER) for prompt in fewer)
    assert any(b"a" in prompt.removesuffix(tiny_chat.AFTER) for prompt in kept)


class Shouting(tiny_chat.Chat):
    def chat(self, messages):
        return super().chat([{**m, "content": m["content"].replace("@", "!")} for m in messages])


def test_the_template_is_found():
    assert self_prompt.template(tiny_chat.target()) == (list(tiny_chat.BEFORE), list(tiny_chat.AFTER))


def test_what_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"^toy://tiny has no chat template: self_prompted data need a chat model"):
        make(tmp_path, target=specjax.load("toy://tiny"))
    with pytest.raises(ValueError, match=r"changes the user's message"):
        make(tmp_path, target=dataclasses.replace(tiny_chat.target(), tokenizer=Shouting()))
    with pytest.raises(ValueError, match=r"openings: 'a long opening' leaves no room in a message of max_tokens=10"):
        make(tmp_path, dataclasses.replace(PLAN, openings=("a long opening",)))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"shards": 0}, "shards=0 must be between 1"),
        ({"texts": 0}, "texts=0 must be between 1"),
        ({"openings": ()}, "openings=.. must be a list of at least one"),
        ({"temperature": 0.0}, "temperature=0.0 must be above 0"),
        ({"answer_tokens": 0}, "answer_tokens=0 must be"),
        ({"batch": 0}, "batch=0 must be"),
        ({"answer_temperature": ()}, "answer_temperature=.. must be a list"),
        ({"answer_temperature": (-1.0,)}, "answer_temperature=.-1.0,. must be"),
        ({"answer_share": (1.0, 1.0)}, "answer_share=.* must be one positive number for each"),
        ({"answer_share": (0.0,)}, "answer_share=.* must be one positive number for each"),
    ],
)
def test_bad_settings(settings, said):
    with pytest.raises(ValueError, match=said):
        SelfPrompted(**settings)
