import numpy as np
import pytest

from specjax.training import mixing, on_policy
from specjax.training.mixing import Mixing
from specjax.training.plan import OnPolicy
from specjax.training.rows import Batch

HOW = OnPolicy(fraction=0.25, every=3, texts=4, new_tokens=5)


def text(first: int, length: int, prompt: int):
    token = np.arange(first, first + length, dtype=np.int32)
    return token, np.arange(length) >= prompt


def begun(*texts):
    return [mixing.beginning(*text, 16) for text in texts]


@pytest.fixture
def drawn(monkeypatch):
    """Calls of the decode loop, of which each new token is 999."""
    calls = []

    def draw(target, drafter, prompts, new_tokens, **options):
        calls.append((prompts, options))
        return on_policy.Drawn([text_of(prompt, new_tokens) for prompt in prompts], 0.75)

    def text_of(prompt, new_tokens):
        token = np.asarray([*prompt, *[999] * new_tokens], np.int32)
        return token, np.arange(len(token)) >= len(prompt)

    monkeypatch.setattr(mixing.on_policy, "draw", draw)
    return calls


def made():
    return Mixing(HOW, None, begun(text(100, 8, 3), text(200, 16, 1), text(300, 16, 13), text(400, 30, 20)), 16, 7, None)


def test_prompts_are_beginnings_of_texts_that_leave_room(drawn):
    one = made()
    assert [prompt for _, prompt in one.begun] == [3, 1]  # the others leave no room for five tokens
    assert [one.due(number) for number in range(1, 8)] == [True, False, False, True, False, False, True]
    one.draw(1, None)
    assert len(drawn[0][0]) == 4
    for prompt in drawn[0][0]:
        low, high = {100: (3, 7), 200: (1, 11)}[prompt[0]]
        assert prompt == list(range(prompt[0], prompt[0] + len(prompt))) and low <= len(prompt) <= high
    made().draw(1, None)
    one.draw(4, None)
    assert drawn[0][0] == drawn[1][0] and drawn[0][1] == drawn[1][1]  # the same step draws the same
    assert drawn[0][0] != drawn[2][0] and drawn[0][1]["seed"] != drawn[2][1]["seed"]


def test_the_last_rows_of_a_batch_are_drawn_ones_each_in_its_turn(drawn):
    one = made()
    one.draw(1, None)
    count = len(one.rows.token_NT)
    assert count > 1
    given = np.arange(4, dtype=np.int32)[:, None] * np.ones(16, np.int32)
    batch = Batch(given, given > 0, given, given)
    for number, row in ((1, 0), (2, 1), (3, 2 % count), (4, 0)):
        got = one.mixed(number, batch)
        assert np.array_equal(got.token_BT, [*given[:3], one.rows.token_NT[row]])
        assert np.array_equal(got.mask_BT[3], one.rows.mask_NT[row]) and got.law is None and got.features == ()


def test_texts_come_back_from_a_checkpoint(drawn):
    one, other = made(), made()
    assert one.state == {"texts": [], "share": 0.0}
    one.draw(1, None)
    other.set_state(one.state)
    assert all(np.array_equal(a, b) and a.dtype == b.dtype for a, b in zip(one.rows, other.rows, strict=True))
    assert other.state == one.state and other.share == 0.75


def test_a_row_without_room_is_refused():
    with pytest.raises(ValueError, match=r"on_policy.new_tokens=5 leaves no room in data.length=16 for any prompt"):
        Mixing(HOW, None, begun(text(300, 16, 13)), 16, 7, None)
