"""What commands share that take long: the folder that keeps what is done, and how they end before they are through."""

from __future__ import annotations

import shlex
import sys
import time
from pathlib import Path

import jax
from absl import flags

from specjax import processes
from specjax.bench.records import Workdir
from specjax.command import fail, note

flags.adopt_module_key_flags(processes)
WORKDIR = flags.DEFINE_string("workdir", None, "Folder of the run; default runs/CONFIG-TIME.")
DEVICE_FAILED = ("RESOURCE_EXHAUSTED", "UNAVAILABLE", "DATA_LOSS", "ABORTED")  # how XLA's errors begin that are no fault of a program


def begin() -> Workdir:
    """Meet the other processes, if there are any, and name the folder, which is the same for all."""
    try:
        processes.join()
    except ValueError as error:
        fail(error)
    return Workdir(processes.first(lambda: WORKDIR.value or default_workdir()))


def leave(module: str, workdir: Path, why: str, kept: str, code: int):
    """Say what is kept and how to go on. To be called where the error that ends the run is caught."""
    go_on = this_command(module) if WORKDIR.value else [*this_command(module), f"--workdir={workdir}"]
    if processes.index() == 0:
        note(f"{why}; {kept}, to go on: {shlex.join(go_on)}")
    elif processes.speaks(sys.exception()):
        note(f"process {processes.index()}: {why}")
    sys.exit(code)


def of_the_machine(error: Exception) -> bool:
    """Whether the machine failed, or a part that plugs in (`Decoder.output` names it); all else is a bug and shows where."""
    if isinstance(error, jax.errors.JaxRuntimeError | ValueError):  # a ValueError of Orbax, where a disk is full
        return str(error).startswith(DEVICE_FAILED)
    return isinstance(error, OSError | MemoryError) or type(error) is RuntimeError


def this_command(module: str) -> list[str]:
    return ["python", "-m", module, *sys.argv[1:]]


def default_workdir() -> str:
    name = Path(flags.FLAGS["config"].config_filename).stem
    return f"runs/{name}-{time.strftime('%Y%m%d-%H%M%S')}"
