"""The real 135M chat model, loaded once for all tests that ask for it."""

import functools

from specjax.models.load import Checkpoint, fetch, load


@functools.cache
def smollm2() -> Checkpoint:
    return load(fetch.SMOLLM2)
