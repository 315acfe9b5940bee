"""The rounds of one recorded trace in words: what was drafted, where the rule ended each round, and what came out of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple


class Round(NamedTuple):
    """A round of a chain. accepted: drafts that the rule kept; said: the tokens that the round added to the text, cut where it ended."""

    root: int  # position of the newest token, from which the round began
    newest: str
    draft: tuple[str, ...]
    accepted: int
    emitted: str
    said: tuple[str, ...]

    @property
    def outcome(self) -> str:
        """'none drafted', 'first refused', 'refused in the middle' or 'all accepted'."""
        if not self.draft:
            return "none drafted"
        if self.accepted == len(self.draft):
            return "all accepted"
        return "refused in the middle" if self.accepted else "first refused"


def read(trace: Mapping, word: Callable[[int], str]) -> Iterator[Round]:
    """trace: a file of a run's `traces`, see docs/metrics.md. word: a token's text, as `specjax.report.figures.style.word` gives it.

    Raises:
      ValueError: the drafts branch, so that a round is no line of words.
    """
    if "up_BNM" in trace and trace["up_BNM"] is not None:
        raise ValueError("this trace is of drafts that branch: take an arm that drafts chains")
    names = ("root_BN", "drafted_BN", "stop_BN", "committed_BN", "emitted_BN", "token_BNM")
    for root, drafted, stop, committed, emitted, token_M in zip(*(trace[name].tolist() for name in names), strict=True):
        newest, *draft = map(word, token_M[: drafted + 1])
        said = (*draft[:stop], word(emitted))[:committed]
        yield Round(root, newest, tuple(draft), stop, word(emitted), said)
