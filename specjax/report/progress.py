"""How far a run is: a bar with the time that remains where somebody watches, a plain line now and then in a log."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from typing import TextIO

from rich.console import Console
from rich.progress import track

EVERY = 30.0  # seconds between two lines of a log, at least


def progress(jobs: Sequence, file: TextIO | None = None) -> Iterator:
    """The jobs, one after the other; a job is done when the next is asked for. file: default stderr."""
    file = sys.stderr if file is None else file
    if file is None:  # the process was started with stderr closed
        yield from jobs
    elif file.isatty():
        yield from track(jobs, description="decoding", console=Console(file=file))
    else:
        yield from _lines(jobs, file)


def _lines(jobs: Sequence, file: TextIO) -> Iterator:
    began = last = time.monotonic()
    for done, job in enumerate(jobs, start=1):
        yield job
        now = time.monotonic()
        if now - last >= EVERY or done == len(jobs):
            left = (now - began) / done * (len(jobs) - done)
            print(f"decoding: {done}/{len(jobs)}, {clock(now - began)} so far, {clock(left)} left", file=file, flush=True)
            last = now


def clock(seconds: float) -> str:
    """Hours, minutes and seconds as h:mm:ss."""
    minutes, seconds = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{seconds:02}"
