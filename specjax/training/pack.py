"""Texts into rows of T tokens: several in a row where they fit, each into the first row that has room (first-fit, in their order)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np


class Packed(NamedTuple):
    """N rows, as `specjax.training.rows.Batch` wants them."""

    token_NT: np.ndarray  # int32, 0 at padding
    mask_NT: np.ndarray  # bool
    segment_NT: np.ndarray  # int32, 0 at padding
    position_NT: np.ndarray  # int32


def pack(texts: Iterable[tuple[np.ndarray, np.ndarray]], length: int) -> tuple[Packed, Counter]:
    """Rows of `length` tokens, and counts: texts, tokens and learnt (both in the rows), rows, cut (texts that were too long and lost their
    end) and skipped (texts of which nothing is to be learnt: no token but the first has a true mask).

    Raises:
      ValueError: no text is left.
    """
    counts: Counter[str] = Counter(texts=0, cut=0, skipped=0)
    kept = []
    for token, mask in texts:
        counts["texts"] += 1
        counts["cut"] += len(token) > length
        if np.any(mask[1:length]):
            kept.append((token[:length], mask[:length]))
        else:
            counts["skipped"] += 1
    if not kept:
        raise ValueError(f"none of {counts['texts']} texts has anything to learn within {length} tokens")
    packed = _fill(kept, first_fit([len(token) for token, _ in kept], length), length)
    learnt_NT = packed.mask_NT & (packed.position_NT > 0)
    counts.update(rows=len(learnt_NT), tokens=int(np.sum(packed.segment_NT > 0)), learnt=int(np.sum(learnt_NT)))
    return packed, counts


def first_fit(sizes: list[int], length: int) -> list[int]:
    """The row of each text."""
    free, opened, first, smallest = np.full(len(sizes), length), 0, 0, min(sizes)
    placed = []
    for size in sizes:
        while free[first] < smallest:  # rows that nothing fits into any more
            first += 1
        row = first + int(np.argmax(free[first : opened + 1] >= size))
        free[row] -= size
        opened = max(opened, row + 1)
        placed.append(row)
    return placed


def _fill(texts: list, rows: list[int], length: int) -> Packed:
    shape = max(rows) + 1, length
    packed = Packed(np.zeros(shape, np.int32), np.zeros(shape, bool), np.zeros(shape, np.int32), np.zeros(shape, np.int32))
    end_N, count_N = np.zeros(shape[0], np.int64), np.zeros(shape[0], np.int32)
    for (token, mask), row in zip(texts, rows, strict=True):
        place = slice(end_N[row], end_N[row] + len(token))
        count_N[row] += 1
        end_N[row] += len(token)
        for x_NT, x in zip(packed, (token, mask, count_N[row], np.arange(len(token))), strict=True):
            x_NT[row, place] = x
    return packed
