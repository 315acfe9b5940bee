"""Seconds to compile each program of the real model, cold and from JAX's persistent cache in a second process.

    pip install -e . && python benchmarks/compile.py

SmolLM2-135M-Instruct, 30 unrolled layers, float32, batch 1, S = 384, rungs 1, 4, 8. Each process traces, lowers and compiles; the first
starts with an empty cache folder.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time

import numpy as np


def child(folder: str):
    import jax

    import specjax
    from specjax import Sampling, decode
    from specjax.models.load import fetch

    jax.config.update("jax_compilation_cache_dir", folder)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)
    begin = time.perf_counter()
    target = specjax.load(fetch.SMOLLM2)
    print(f"  {'load':24} {time.perf_counter() - begin:6.2f} s")
    arms = {
        "plain greedy": {},
        "ladder greedy": {"drafter": specjax.NGram()},
        "ladder p/q": {"drafter": specjax.NGram(), "sampling": Sampling(temperature=0.7, top_p=0.9)},
        "ladder coupled": {"drafter": specjax.NGram(), "sampling": Sampling(temperature=0.7, coupled=True)},
    }
    for name, options in arms.items():
        decoder = specjax.Decoder(target, **options)
        state = decoder.start([[1] * 200], 128, size=384)
        setup, params = decoder.setup, target.params
        if "plain" in name or "greedy" in name:
            parts = setup.model, setup.chunk, setup.drafter, params, state.cache, state.token_BS, state.cursor_B
            seconds(f"prefill, {name.split()[0]}", lambda: decode.feed_prompts.lower(*parts).compile())  # noqa: B023
        state = jax.eval_shape(decode.prefill, setup, params, state)
        seconds(name, lambda: decode.generate.lower(setup, params, state, np.int32(0)).compile())  # noqa: B023


def seconds(name, call):
    begin = time.perf_counter()
    call()
    print(f"  {name:24} {time.perf_counter() - begin:6.2f} s")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child(sys.argv[2])
    else:
        with tempfile.TemporaryDirectory() as folder:
            for process in ("first process", "second process"):
                print(process, flush=True)
                subprocess.run([sys.executable, __file__, "--child", folder], check=True)
