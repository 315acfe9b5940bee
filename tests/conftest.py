"""Settings of the whole suite."""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")
