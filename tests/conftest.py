"""Settings of the whole suite, and of the processes that its tests start."""

import gc
import os

import pytest

os.environ.setdefault("JAX_PLATFORMS", "cpu")  # before jax is imported
os.environ["JAX_NUMPY_DTYPE_PROMOTION"] = "strict"  # no dtype changes unasked
os.environ["JAX_NUMPY_RANK_PROMOTION"] = "raise"  # no axis is added unasked


@pytest.fixture(autouse=True, scope="module")
def _forget_programs():
    """A compiled program holds some ten memory maps: a process that keeps those of all tests runs into the system's limit of 65,530."""
    yield
    import jax

    jax.clear_caches()
    gc.collect()
