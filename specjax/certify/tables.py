"""Laws of every context, as tables: row `code` of level d is the law after the d tokens that `code` spells in base V."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import numpy as np

Context = tuple[int, ...]
LawOf = Sequence[float] | np.ndarray | Callable[[Context], Sequence[float] | np.ndarray]
MOST = 2**21  # sequences, nodes of drafts, or sets of tokens that are enumerated


def table(law: LawOf, levels: int, name: str) -> list[np.ndarray]:
    """[V**d, V] in float64 for d = 0 .. levels - 1. `law` is one law for all contexts, or a function of the context.

    Raises:
      ValueError: it is no law at some context, or there are too many contexts to enumerate.
    """
    of = law if callable(law) else lambda context: law
    vocab = len(_checked(of(()), name, (), None))
    if vocab**levels > MOST:
        raise ValueError(f"{name}: {vocab} tokens at {levels} places are {vocab**levels} sequences; at most {MOST} are enumerated")
    contexts = (itertools.product(range(vocab), repeat=depth) for depth in range(levels))
    return [np.stack([_checked(of(c), name, c, vocab) for c in level]) for level in contexts]


def _checked(law, name, context, vocab) -> np.ndarray:
    law_V = np.asarray(law, np.float64)
    if law_V.ndim != 1 or (vocab is not None and len(law_V) != vocab):
        raise ValueError(f"{name}({context}) has shape {law_V.shape}: it must have {'one axis' if vocab is None else f'{vocab} entries'}")
    if not (np.all(law_V >= 0) and abs(law_V.sum() - 1) < 1e-5):  # NaN is neither
        raise ValueError(f"{name}({context}) = {law_V.tolist()} is no law: its entries must be at least 0 and sum to 1")
    return law_V / law_V.sum()


def joint(table: list[np.ndarray]) -> np.ndarray:
    """Probability of each sequence of len(table) tokens, in the order of its code."""
    return complete([np.zeros(level.size) for level in table], table, start=1.0)


def complete(mass: list[np.ndarray], table: list[np.ndarray], start: float = 0.0) -> np.ndarray:
    """Probability of each sequence of len(table) tokens: mass[d] [V**(d + 1)] stands after d + 1 tokens, and what is missing comes
    from the table; `start` stands before the first token."""
    whole = np.asarray([start])
    for ended, law in zip(mass, table, strict=True):
        whole = (whole[:, None] * law).reshape(-1) + ended
    return whole
