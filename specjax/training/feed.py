"""Batches without end, read through Grain: each source shuffled anew in every round through it, sources mixed by their sizes
and shares.

Nothing is drawn that the seed and the number of the batch do not decide, so where the iterator stands is one number
(`get_state`, `set_state`) and a run that goes on from there sees the same batches.
"""

from __future__ import annotations

from collections.abc import Sequence

import grain
import numpy as np

from specjax.training.scores import Rows

ALONE = grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)  # rows are in memory, or in files that are mapped into it


def feed(sources: Sequence[tuple[Rows, float]], batch: int, seed: int) -> grain.DatasetIterator:
    """An iterator of `specjax.training.rows.Batch` of NumPy arrays. sources: rows, and how often each of them is read beside the
    rows of the others: with equal shares every row of every source as often.

    Raises:
      ValueError: a share is not above 0.
    """
    if wrong := [share for _, share in sources if not share > 0]:
        raise ValueError(f"share={wrong[0]} must be above 0")
    order = np.random.SeedSequence(seed).generate_state(len(sources)).tolist()
    endless = [grain.MapDataset.source(rows).shuffle(seed=order[i]).repeat() for i, (rows, _) in enumerate(sources)]
    mixed = grain.MapDataset.mix(endless, [share * len(rows) for rows, share in sources])
    return iter(mixed.to_iter_dataset(ALONE).batch(batch))
