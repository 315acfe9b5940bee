"""Data without data: the chat model writes the user's message itself, then answers it (Magpie, Xu et al., 2406.08464).

Given only its template up to where the user's turn begins, a chat model goes on with what users ask. `openings` are beginnings of the
message, to steer what kinds of task come up; '' leaves it free.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from specjax import LM, Decoder, Sampling, parts
from specjax.training import shards
from specjax.training.answers import Answerer, Answering, decode
from specjax.training.filters import Sieve, held_out
from specjax.training.shards import Folder, Text

MARKS = "@@", "##"  # two messages that share nothing: what their chats share is the template


@dataclasses.dataclass(frozen=True)
class SelfPrompted(Answering):
    """shards: how many. texts: messages tried for each. openings: beginnings of messages, taken in turn; blanks at their end are left out,
    as tokens begin with them. temperature, top_p: of the message, which has min_tokens to max_tokens, its opening included."""

    shards: int = 8
    texts: int = 128
    openings: tuple[str, ...] = ("",)
    temperature: float = 1.0
    top_p: float | None = 0.95

    def __post_init__(self):
        super().__post_init__()
        parts.whole("shards", self.shards, 1, 2**15)
        parts.whole("texts", self.texts, 1, 2**15)
        if not self.openings:
            raise ValueError("openings=() must be a list of at least one text, '' for none")
        if not self.temperature > 0:
            raise ValueError(f"temperature={self.temperature} must be above 0: at 0 all messages are one")

    def check(self, target: LM, exclude: Sequence[str]) -> None:
        """What can be refused before anything is made."""
        self.begun(target, *template(target))

    def begun(self, target: LM, before: list[int], after: list[int]) -> list[list[int]]:
        """Token ids of the openings."""
        openings = [_within(target, opening, before, after) for opening in self.openings]
        if long := [text for text, tokens in zip(self.openings, openings, strict=True) if len(tokens) >= self.max_tokens]:
            raise ValueError(f"openings: {long[0]!r} leaves no room in a message of max_tokens={self.max_tokens}")
        return openings


def make(plan: SelfPrompted, target: LM, folder: str | Path, progress: Callable[[str], None], exclude: Sequence[str] = (), seed: int = 0):
    """Shards of texts: template, message and answer, of which the answer is to be learnt. Returns the folder.

    Raises:
      ValueError: the target has no chat template, an opening leaves no room, or the folder was made by other settings.
    """
    before, after = template(target)
    control = {token for token in before + after if not target.tokenizer.decode([token])}
    openings = plan.begun(target, before, after)
    held, longest = held_out(target.tokenizer, exclude), len(before) + plan.max_tokens
    asker = Decoder(target, sampling=Sampling(temperature=plan.temperature, top_p=plan.top_p), seed=seed)
    answer = Answerer(plan, target, longest + len(after), seed)

    def one(n: int, seen: set[int]) -> tuple[list[Text], Counter]:
        sieve, asked = Sieve(plan, held, seen), []
        places = range(n * plan.texts, (n + 1) * plan.texts)
        begun = [openings[i % len(openings)] for i in places]
        budgets = [plan.max_tokens - len(tokens) for tokens in begun]
        written = decode(asker, [before + tokens for tokens in begun], budgets, [2 * i for i in places], plan.batch, longest + 1)
        for i, beginning, (said, ended) in zip(places, begun, written, strict=True):
            message = beginning + [token for token in said if token not in target.tokenizer.eos_ids]
            if not control.isdisjoint(message):
                sieve.dropped["template"] += 1
            elif key := sieve.admit(message, target.tokenizer.decode(message), ended):
                asked.append((before + message + after, 2 * i + 1, key))  # two draws a place, and none twice
        return answer(n, asked, sieve), sieve.dropped

    made = shards.made_by("self_prompted", plan.settings(exclude=exclude, seed=seed), target)
    return shards.make(Folder(folder, made), plan.shards, one, progress)


def template(target: LM) -> tuple[list[int], list[int]]:
    """Token ids of the chat template before and after the user's message.

    Raises:
      ValueError: there is none, or it changes what the user says.
    """
    if not getattr(target.tokenizer, "has_template", False):
        raise ValueError(f"{target.source} has no chat template: self_prompted data need a chat model, take texts instead")
    one, other = (_chat(target, mark) for mark in MARKS)
    before, after = _shared(one, other), _shared(one[::-1], other[::-1])[::-1]
    if target.tokenizer.decode(one[len(before) : len(one) - len(after)]).strip() != MARKS[0]:
        raise ValueError(f"the chat template of {target.source} changes the user's message: self_prompted data need one that does not")
    return before, after


def _chat(target: LM, message: str) -> list[int]:
    return target.tokenizer.chat([{"role": "user", "content": message}])


def _shared(one: list[int], other: list[int]) -> list[int]:
    differs = [x != y for x, y in zip(one, other, strict=False)]
    return one[: [*differs, True].index(True)]


def _within(target: LM, opening: str, before: list[int], after: list[int]) -> list[int]:
    """Token ids of an opening as the template holds it."""
    chat = _chat(target, opening.rstrip()) if opening.strip() else before + after
    if chat[: len(before)] != before or chat[len(chat) - len(after) :] != after:
        raise ValueError(f"openings: {opening!r} runs into the chat template: it should begin with a letter")
    return chat[len(before) : len(chat) - len(after)]
