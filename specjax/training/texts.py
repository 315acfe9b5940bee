"""Plain text files, teacher-forced: the target's law is asked for at every place of text that somebody else wrote.

A text is cut where a paragraph ends, else where a line ends, else between tokens. All tokens but the first of a piece are to be learnt.
"""

from __future__ import annotations

import dataclasses
import glob
import hashlib
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

from specjax import LM, parts
from specjax.training import shards
from specjax.training.filters import Filters, Sieve, held_out
from specjax.training.shards import Folder, Text

BORDERS = r"(?<=\n\n)(?!\n)", r"(?<=\n)"  # where a paragraph begins, where a line does


@dataclasses.dataclass(frozen=True, kw_only=True)
class Texts(Filters):
    """files: patterns of their names. max_tokens: of a piece. texts: pieces of a shard. share: how often each row is read beside
    those of other sources."""

    min_tokens: int = 16
    max_tokens: int = 512
    near: int = 64
    files: tuple[str, ...]
    texts: int = 512
    share: float = 1.0

    def __post_init__(self):
        super().__post_init__()
        parts.whole("texts", self.texts, 1, 2**20)
        if not self.files:
            raise ValueError("files is missing: name text files, or patterns of their names")

    def check(self, target: LM, exclude: Sequence[str]) -> None:
        """What can be refused before anything is made."""
        if target.tokenizer is None:
            raise ValueError(f"{target.source} has no tokenizer: texts need one")
        named(self.files)


def make(plan: Texts, target: LM, folder: str | Path, progress: Callable[[str], None], exclude: Sequence[str] = (), seed: int = 0):
    """Shards of pieces, in the order of the files' names. Returns the folder. seed: nothing is drawn here.

    Raises:
      ValueError: a pattern fits no file, a file is not UTF-8, or the folder was made by other settings.
    """
    plan.check(target, exclude)
    files = {file: file.read_bytes() for file in named(plan.files)}
    encode, held = target.tokenizer.encode, held_out(target.tokenizer, exclude)
    pieces = [np.asarray(x, np.int32) for file, data in files.items() for x in cut(_text(file, data), encode, plan.max_tokens)]

    def one(n: int, seen: set[int]) -> tuple[list[Text], Counter]:
        sieve, kept = Sieve(plan, held, seen), []
        for piece in pieces[n * plan.texts : (n + 1) * plan.texts]:
            tokens = piece.tolist()
            if key := sieve.admit(tokens, target.tokenizer.decode(tokens)):
                kept.append(Text(tokens, [False] + [True] * (len(tokens) - 1), key))
        return kept, sieve.dropped

    digests = [hashlib.sha256(data).hexdigest() for data in files.values()]
    settings = dataclasses.asdict(plan) | {"files": digests, "exclude": exclude}
    made = shards.made_by("texts", {k: v for k, v in settings.items() if k != "share"}, target)
    return shards.make(Folder(folder, made), -(-len(pieces) // plan.texts), one, progress)


def named(patterns: Sequence[str]) -> list[Path]:
    """The files that fit, each once."""
    found = {}
    for pattern in patterns:
        fits = [Path(name) for name in sorted(glob.glob(pattern, recursive=True)) if Path(name).is_file()]
        if not fits:
            raise ValueError(f"files: {pattern!r} fits no file")
        found |= dict.fromkeys(fits)
    return list(found)


def _text(file: Path, data: bytes) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{file}: not UTF-8 at byte {error.start}") from None


def cut(text: str, encode: Callable[[str], list[int]], most: int) -> Iterator[list[int]]:
    """Token ids of pieces of at most `most` tokens, in order and without gaps but blank ends."""
    for piece in _joined(_units(text, encode, most, BORDERS), encode, most):
        tokens = encode(piece)
        yield from (tokens[i : i + most] for i in range(0, len(tokens), most))


def _units(text: str, encode, most: int, borders: tuple[str, ...]) -> Iterator[str]:
    """Paragraphs; lines of a paragraph that is too long."""
    for unit in filter(None, re.split(borders[0], text)):
        if borders[1:] and len(encode(unit)) > most:
            yield from _units(unit, encode, most, borders[1:])
        else:
            yield unit


def _joined(units: Iterator[str], encode, most: int) -> Iterator[str]:
    """As many units in a piece as fit, by the sum of their tokens (encoded in one they take about as many)."""
    piece, size = "", 0
    for unit in units:
        count = len(encode(unit))
        if piece and size + count > most:
            yield piece.strip("\n")
            piece, size = "", 0
        piece, size = piece + unit, size + count
    yield piece.strip("\n")
