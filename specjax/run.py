"""Run the arms of a config on its prompts, and say what was gained.

    python -m specjax.run --config=configs/quickstart.py [--workdir=DIR] [--config.max_new_tokens=128]

With the workdir of a run that was stopped, the same command goes on where it stopped. Exit codes: 2 on bad input, 130 when
interrupted.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from pathlib import Path

import jax
from absl import app, flags
from ml_collections import config_flags
from rich.console import Console
from rich.progress import track

from specjax import build
from specjax.bench import sweep
from specjax.bench.records import Workdir
from specjax.report import table

CONFIG = config_flags.DEFINE_config_file("config", None, "What to run: a file with get_config().", lock_config=True)
WORKDIR = flags.DEFINE_string("workdir", None, "Folder of the run; default runs/CONFIG-TIME.")


def main(argv: list[str]) -> None:
    try:
        if CONFIG.value is None or argv[1:]:
            raise ValueError(f"argument {argv[1]!r} is not a flag" if argv[1:] else "--config=FILE is missing")
        workdir = Workdir(WORKDIR.value or default_workdir())
        plan = build.plan(CONFIG.value)
        workdir.check(plan.resolved())
        experiment = build.load(plan)
        sweep.check(experiment, workdir)
    except (ValueError, OverflowError, OSError) as error:
        fail(error)
    except KeyboardInterrupt:
        sys.exit(130)  # nothing was decoded yet
    command = ["python", "-m", "specjax.run", *sys.argv[1:]]
    try:
        table.show(sweep.whole(experiment, workdir, command, say, progress), Console())
    except KeyboardInterrupt:
        done = sum(1 for _ in workdir.records())
        print(f"\ninterrupted; {done} records are kept: the same command with --workdir={workdir.path} goes on", file=sys.stderr)
        sys.exit(130)
    say(f"records, traces and summary: {workdir.path}")


def default_workdir() -> str:
    name = Path(flags.FLAGS["config"].config_filename).stem
    return f"runs/{name}-{time.strftime('%Y%m%d-%H%M%S')}"


def parse_flags(argv: list[str]) -> list[str]:
    """absl's own parsing, with errors in one line."""
    try:
        rest = flags.FLAGS(argv)
        if CONFIG.value is not None:
            CONFIG.value.get_type  # noqa: B018 - the stand-in for a file that did not load raises when it is used
        return rest
    except (flags.Error, OSError, AttributeError, KeyError, TypeError, ValueError) as error:
        fail(error)


def fail(error: Exception):
    text = error.args[0] if isinstance(error, KeyError) and error.args else error  # str() of a KeyError is quoted
    print(f"error: {' '.join(str(text).split()) or type(error).__name__}", file=sys.stderr)
    sys.exit(2)


def say(line: str) -> None:
    print(line, flush=True)


def progress(jobs):
    """A bar with the time that remains, where somebody watches."""
    return track(jobs, description="decoding", console=Console(stderr=True), disable=not sys.stderr.isatty())


def settle_jax() -> None:
    """Programs compiled once are read from disk by later processes; a machine without a TPU is nothing to complain of."""
    logging.getLogger("jax._src.xla_bridge").setLevel(logging.ERROR)
    root = Path(os.environ.get("SPECJAX_CACHE", "~/.cache/specjax")).expanduser()
    jax.config.update("jax_compilation_cache_dir", str(root / "xla"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)


if __name__ == "__main__":
    settle_jax()
    app.run(main, flags_parser=parse_flags)
