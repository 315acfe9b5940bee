"""Many prompts through a batch of few rows: as soon as one finishes, the next prompt takes its row (Orca, Yu et al., OSDI 2022).

A row's tokens do not depend on its batch (but for what a length policy that looks there samples), so they are the same as without; what
changes is that no row waits for the longest one.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence

import jax
import numpy as np

from specjax.sharding import fetch
from specjax.state import RUNNING


def decode_all(
    decoder, prompts: Sequence[Sequence[int]], budgets, ids, batch: int, size: int | None = None, endless: bool = False
) -> Iterator[tuple[int, object]]:
    """(number of the prompt, its `Output` of one row), as rows finish.

    decoder: a `specjax.Decoder`. ids: of the prompts, as its `start` takes them. size: slots of the buffers, at least. endless: after the
    last prompt the first comes again, and so on, so that no row is ever without; numbers count on, and the caller stops.
    """
    if batch < 1:
        raise ValueError(f"batch={batch} must be at least 1")
    size = max(decoder.slots(prompts, budgets), size or 0)
    most = max(budgets)  # one bound of the trace for all
    start = lambda numbers: decoder.start(*([x[n % len(prompts)] for n in numbers] for x in (prompts, budgets, ids)), size, most)
    waiting = itertools.count() if endless else iter(range(len(prompts)))
    held = dict(enumerate(itertools.islice(waiting, batch)))  # row -> prompt
    rows = len(held)
    state = decoder.prefill(start(held.values()))
    while held:
        finish_B = fetch(state.finish_B)
        for row in [row for row in held if finish_B[row] != RUNNING]:
            yield held.pop(row), decoder.output(state, [row])
            if (number := next(waiting, None)) is not None:
                held[row] = number
                one = decoder.prefill(start([number]))
                state = one if rows == 1 else decoder.put_row(state, one, row)
        running = int(np.sum(fetch(state.finish_B) == RUNNING))
        if running:
            state = decoder.generate_until(state, running - 1)


def decode_together(decoder, prompts, budgets, ids, batch: int, size: int | None = None):
    """One `Output` of all prompts, in their order."""
    done = dict(decode_all(decoder, prompts, budgets, ids, batch, size))
    outputs = [done[i] for i in range(len(prompts))]
    rounds = max(len(o.trace.root_BN[0]) for o in outputs)

    def long(x_1N):
        return np.pad(x_1N, [(0, 0), (0, rounds - x_1N.shape[1]), *[(0, 0)] * (x_1N.ndim - 2)])

    joined = {
        name: getattr(outputs[0], name) and [x for o in outputs for x in getattr(o, name)]
        for name in ("token_ids", "texts", "finish_reasons", "logprobs")
    }
    return dataclasses.replace(
        outputs[0],
        **joined,
        counts={name: np.concatenate([o.counts[name] for o in outputs]) for name in outputs[0].counts},
        trace=jax.tree.map(lambda *x: np.concatenate([long(one) for one in x]), *[o.trace for o in outputs]),
    )
