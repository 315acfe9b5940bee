"""A folder of shards that is there already, of this program's own making or of anybody's.

It is taken as it is, or refused: where its index says that this target made it and left out the same prompts, that is believed; else its
texts, prompts and answers, are looked through for what is held out.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from specjax import LM
from specjax.training import shards
from specjax.training.filters import HELD, grams, held_out


@dataclasses.dataclass(frozen=True)
class Shards:
    """path: the folder. share: how often each row is read beside those of other sources."""

    path: str
    share: float = 1.0

    def check(self, target: LM, exclude: Sequence[str]) -> None:
        """
        Raises:
          ValueError: another target made the shards, or they hold ids that this one has not, or what is held out.
        """
        made, size = shards.made(self.path), target.model.vocab
        if made.get("target", shards.weights(target)) != shards.weights(target):
            raise ValueError(f"path={self.path!r} was made by another target than {target.source}: name another folder")
        held = frozenset() if set(exclude) <= set(made.get("exclude", ())) else held_out(target.tokenizer, exclude)
        found = 0
        for token, _ in shards.read(self.path):
            if np.any((token < 0) | (token >= size)):
                raise ValueError(f"path={self.path!r} holds other ids than 0 .. {size - 1}, the tokens of {target.source}")
            found += bool(held) and not held.isdisjoint(grams(token.tolist(), HELD))
        if found:
            said = f"{found} texts of it share {HELD} tokens in a row with prompts of data.exclude={list(exclude)}"
            raise ValueError(f"path={self.path!r}: {said}: take those texts out")


def make(plan: Shards, target: LM, folder: str | Path, progress: Callable[[str], None], exclude: Sequence[str] = (), seed: int = 0) -> Path:
    """The folder as it is."""
    return Path(plan.path)
