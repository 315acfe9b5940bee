"""Settings of the whole suite, and of the processes that its tests start."""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ["JAX_NUMPY_DTYPE_PROMOTION"] = "strict"  # no dtype changes unasked
os.environ["JAX_NUMPY_RANK_PROMOTION"] = "raise"  # no axis is added unasked
