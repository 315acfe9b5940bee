"""Settings of the whole suite, and of the processes that its tests start."""

import gc
import importlib.metadata
import os

import pytest

os.environ.setdefault("JAX_PLATFORMS", "cpu")  # before jax is imported
os.environ["JAX_NUMPY_DTYPE_PROMOTION"] = "strict"  # no dtype changes unasked
os.environ["JAX_NUMPY_RANK_PROMOTION"] = "raise"  # no axis is added unasked

# Most of the suite is XLA compiling programs that run for milliseconds: these take a quarter of the time to compile, and say the same.
# `XLA_FLAGS= pytest` compiles as users do.
FLAGS = ["--xla_backend_optimization_level=0"]
if importlib.metadata.version("jaxlib").startswith("0.10."):
    FLAGS.append("--xla_cpu_use_fusion_emitters=false")  # later ones do not know it, and XLA ends a process for that
os.environ.setdefault("XLA_FLAGS", " ".join(FLAGS))


@pytest.fixture(autouse=True, scope="module")
def _forget_programs():
    """A compiled program holds some ten memory maps: a process that keeps those of all tests runs into the system's limit of 65,530."""
    yield
    import jax

    jax.clear_caches()
    gc.collect()
