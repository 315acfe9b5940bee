"""Several processes as one program: each runs the same steps in the same order, on its own devices.

What a host decides must be the same in all of them: what a clock measured, what a folder holds, whether a signal came. Process 0 decides
and tells the others (`first`); what can go wrong in any of them ends all of them alike (`agreed`). Process 0 alone writes and speaks.

Words go through the service by which `jax.distributed` lets processes find each other, as Orbax's do, and not through the devices: nothing
is compiled for them, no device waits for them, and a process may wait for hours while another makes something.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import pickle
import sys
import warnings
from collections.abc import Callable

import jax
import numpy as np
from absl import flags
from jax._src.distributed import global_state
from jax.experimental import multihost_utils

COORDINATOR = flags.DEFINE_string("coordinator", None, "Where processes meet: HOST:PORT of process 0. Default: JAX_COORDINATOR_ADDRESS.")
PROCESSES = flags.DEFINE_integer("processes", None, "How many there are. Default: JAX_NUM_PROCESSES.")
PROCESS = flags.DEFINE_integer("process", None, "Which of them this is, from 0. Default: JAX_PROCESS_ID.")
DISTRIBUTED = flags.DEFINE_bool("distributed", False, "Meet as the cluster says, where JAX knows it: a TPU pod, Slurm, Open MPI.")
ENVIRONMENT = {"coordinator": "JAX_COORDINATOR_ADDRESS", "processes": "JAX_NUM_PROCESSES", "process": "JAX_PROCESS_ID"}
WAIT = 7 * 24 * 3600 * 1000  # milliseconds until a process that waits for the others gives up
LEAVE = 60  # seconds that a process waits at its end for the others to end, too

_turns = itertools.count()  # of exchanges, the same in all processes
_alone = False  # whether this is within a call of process 0 alone


# ---------------------------------------------------------------- how they meet


def join() -> None:
    """Meet the others, as flags or the environment say; without either there is one process. To be called before JAX has any device.

    Raises:
      ValueError: what is said is not whole, or the processes do not find each other.
    """
    said = _said()
    if not DISTRIBUTED.value and set(said.values()) == {None}:
        return
    if not DISTRIBUTED.value and (missing := [name for name, value in said.items() if value is None]):
        raise ValueError(f"--{missing[0]} (or {ENVIRONMENT[missing[0]]}) is missing: processes meet by all of --{', --'.join(said)}")
    try:
        names = dict(zip(("coordinator_address", "num_processes", "process_id"), said.values(), strict=True))
        jax.distributed.initialize(**names, shutdown_timeout_seconds=LEAVE)
        jax.devices()  # all have come that far
    except (RuntimeError, TypeError, ValueError) as error:
        raise ValueError(f"the processes did not meet: {error}") from error
    if index():
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # below Python: libraries print, too
        warnings.showwarning = lambda *args, **more: None


def _said() -> dict:
    """What flags say, or else the environment."""
    given = {flag.name: flag.value for flag in (COORDINATOR, PROCESSES, PROCESS)}
    said = {name: os.environ.get(ENVIRONMENT[name]) if value is None else value for name, value in given.items()}
    for name in ("processes", "process"):
        if said[name] is not None and not str(said[name]).isdigit():
            where = ENVIRONMENT[name] if given[name] is None else f"--{name}"
            raise ValueError(f"{where}={said[name]} must be a whole number of at least 0")
        said[name] = None if said[name] is None else int(said[name])
    place, count, one = said.values()
    if place is not None and not (":" in place and place.rpartition(":")[2].isdigit()):
        raise ValueError(f"--coordinator={place} should be HOST:PORT")
    if None not in (count, one) and not one < count:
        raise ValueError(f"--process={one} must be one of 0 to {count - 1}: --processes={count}")
    return said


def count() -> int:
    return jax.process_count() if jax.distributed.is_initialized() else 1


def index() -> int:
    return jax.process_index() if jax.distributed.is_initialized() else 0


# ---------------------------------------------------------------- how they agree


def first(call: Callable):
    """What `call` returns or raises in process 0, in every process; the others do not call it. What it returns must be small, and is sent
    pickled, as between the processes of a pool.

    Within such a call another is just made. So it is on the way out of an error that this process alone has: nobody would answer.
    """
    global _alone
    error = sys.exception()
    if count() == 1 or _alone or (error is not None and not shared(error)):
        return call() if index() == 0 else None
    mine = None
    if index() == 0:
        _alone = True
        try:
            mine = _outcome(call)
        finally:
            _alone = False
    told, *_ = _exchange("first", None if mine is None else (mine[0], _portable(mine[1])))
    result, error = told if mine is None else mine
    if error is not None:
        raise marked(error)
    return result


def of_first(method: Callable) -> Callable:
    """A function that process 0 alone runs, see `first`."""

    @functools.wraps(method)
    def run(*args, **named):
        return first(lambda: method(*args, **named))

    return run


def arrays_of_first(call: Callable, like):
    """As `first`, of a tree of large NumPy arrays, bit for bit. like: arrays of the same shapes and dtypes, in every process."""
    if count() == 1:
        return call()
    held = [like]
    first(lambda: held.__setitem__(0, call()))
    sent = multihost_utils.broadcast_one_to_all(jax.tree.map(lambda x: np.frombuffer(np.asarray(x).tobytes(), np.uint8), held[0]))
    return jax.tree.map(lambda x, old: np.frombuffer(x.tobytes(), old.dtype).reshape(old.shape), sent, like)


def agreed(call: Callable):
    """What `call` returns in this process, if it raises in none; else all raise, the others with the number of the process. Within it
    nothing may be exchanged."""
    if count() == 1:
        return call()
    result, error = _outcome(call)
    for number, other in enumerate(_exchange("agreed", _portable(error))):
        if other is not None:
            raise marked(error if number == index() else _of(number, other))
    return result


def alike(what: str, mine) -> None:
    """ValueError in every process, if one has another."""
    if count() > 1:
        told = _exchange("alike", mine)
        if other := [number for number, one in enumerate(told) if one != told[0]]:
            raise marked(ValueError(f"process {other[0]} has another {what} than process 0: start all processes alike"))


def largest(number: int) -> int:
    """Of the numbers of all processes."""
    return number if count() == 1 else max(_exchange("largest", number))


def shared(error: BaseException) -> bool:
    """Whether every process raised this."""
    return getattr(error, "_of_all_processes", False)


def speaks(error: BaseException | None = None) -> bool:
    """Whether this process is to say something, or an error: process 0, and any other of an error that it alone has."""
    return index() == 0 or (error is not None and not shared(error))


def marked(error: BaseException) -> BaseException:
    """An error that every process raises."""
    error._of_all_processes = True
    return error


def _outcome(call: Callable) -> tuple:
    """(what it returned, what it raised)."""
    try:
        return call(), None
    except Exception as error:
        return None, error


def _portable(error: Exception | None) -> Exception | None:
    """The error, or one that says the same where it is made of what no other process has."""
    with contextlib.suppress(Exception):
        return pickle.loads(pickle.dumps(error))
    return RuntimeError(f"{type(error).__name__}: {error}")


def _of(number: int, error: Exception) -> Exception:
    """What is bad input there is bad input here."""
    if isinstance(error, ValueError | OverflowError | OSError):
        return ValueError(f"process {number}: {error}")
    return RuntimeError(f"process {number}: {type(error).__name__}: {error}")


def _exchange(kind: str, mine) -> list:
    """What each process says, in their order."""
    turn, client = next(_turns), global_state.client
    client.key_value_set_bytes(f"specjax/{turn}/{index():08d}", pickle.dumps((kind, mine)))
    client.wait_at_barrier(f"specjax/{turn}", WAIT)
    told = [pickle.loads(said) for _, said in sorted(client.key_value_dir_get_bytes(f"specjax/{turn}/"))]
    if index() == 0:
        client.key_value_delete(f"specjax/{turn - 1}/")  # which all have read, or they were not here
    if len({kind for kind, _ in told}) > 1:
        raise RuntimeError(f"the processes went different ways: {', '.join(kind for kind, _ in told)}")
    return [one for _, one in told]
