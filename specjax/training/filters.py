"""Which texts are left out of the data, and why: each drop is counted by its reason.

short, long       tokens outside min_tokens .. max_tokens
unfinished        no end within the budget
repetitive        more than the share `repeated` of its 4-grams stand in it for a second time
held out          an 8-gram of tokens that a prompt of the excluded sets has too, so that no draft is measured on what it was trained on
template          a message that the model wrote itself goes on into another turn: it holds a control token of the chat template
duplicate         the same text but for case, spaces and punctuation; or the same first `near` tokens (near duplicate)
"""

from __future__ import annotations

import dataclasses
import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np

from specjax import parts
from specjax import prompts as prompt_sets

HELD = 8  # tokens in a row that are too many to have in common with a prompt that is held out
REPEATED = 4


@dataclasses.dataclass(frozen=True)
class Filters:
    """See this module."""

    min_tokens: int = 4
    max_tokens: int = 160
    repeated: float = 0.5
    near: int = 16

    def __post_init__(self):
        parts.whole("min_tokens", self.min_tokens, 1, 2**20)
        parts.whole("max_tokens", self.max_tokens, self.min_tokens, 2**20)
        parts.whole("near", self.near, 1, 2**20)
        if not 0 <= self.repeated <= 1:
            raise ValueError(f"repeated={self.repeated} must be between 0 and 1")


def held_out(tokenizer, exclude: Sequence[str]) -> frozenset[tuple[int, ...]]:
    """The 8-grams of all turns of these prompt sets, named as `specjax.prompts.load` takes them; a shorter turn counts as one."""
    turns = [turn for source in exclude for prompt in prompt_sets.load(source) for turn in prompt.turns]
    return frozenset().union(*(grams(tokenizer.encode(turn), HELD) for turn in turns))


def grams(tokens: Sequence[int], n: int) -> set[tuple[int, ...]]:
    """All runs of n tokens; the whole of it where there are fewer."""
    return {tuple(tokens[i : i + n]) for i in range(max(1, len(tokens) - n + 1))}


def repetition(tokens: Sequence[int]) -> float:
    """Share of the 4-grams that were said before."""
    count = len(tokens) - REPEATED + 1
    return 1 - len(grams(tokens, REPEATED)) / count if count > 0 else 0.0


class Sieve:
    """Lets through or drops one text after another. seen: keys of texts that are there already."""

    def __init__(self, filters: Filters, held: frozenset, seen: Iterable[int]):
        self.filters, self.held, self.seen = filters, held, set(seen)
        self.dropped: Counter[str] = Counter()

    def admit(self, tokens: Sequence[int], text: str, finished: bool = True) -> tuple[int, int] | None:
        """The keys of a text that is let through, None if it is dropped."""
        f = self.filters
        if finished and not f.min_tokens <= len(tokens) <= f.max_tokens:
            return self._drop("short" if len(tokens) < f.min_tokens else "long")
        if not self.passes(tokens, finished):
            return None
        key = self._keys(tokens, text)
        if not self.seen.isdisjoint(key):
            return self._drop("duplicate" if key[0] in self.seen else "near duplicate")
        self.seen.update(key)
        return key

    def passes(self, tokens: Sequence[int], finished: bool = True) -> bool:
        """Whether an answer, which may be of any length and said before, is let through."""
        if not finished:
            self._drop("unfinished")
        elif repetition(tokens) > self.filters.repeated:
            self._drop("repetitive")
        elif not self.held.isdisjoint(grams(tokens, HELD)):
            self._drop("held out")
        else:
            return True
        return False

    def _keys(self, tokens: Sequence[int], text: str) -> tuple[int, int]:
        """Of the whole text, and of its beginning; the same where it is no longer than that."""
        exact = _hash(" ".join(re.findall(r"\w+", text.casefold())) or text)
        near = self.filters.near
        return exact, _hash(np.asarray(tokens[:near], np.int32).tobytes()) if len(tokens) > near else exact

    def _drop(self, reason: str) -> None:
        self.dropped[reason] += 1


def _hash(said: str | bytes) -> int:
    said = said.encode("utf-8", errors="surrogatepass") if isinstance(said, str) else said
    return int.from_bytes(hashlib.blake2b(said, digest_size=8).digest(), "little")
