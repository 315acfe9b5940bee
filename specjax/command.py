"""What the commands share: the config flag, errors in one line, news on stdout and notes on stderr, the settings of JAX."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path

import jax
from absl import flags
from filelock import FileLock
from ml_collections import config_flags

from specjax import processes

CONFIG = config_flags.DEFINE_config_file("config", None, "What to run: a file with get_config().", lock_config=True)


def parse_flags(argv: list[str], takes: tuple[str, ...] = ()) -> list[str]:
    """absl's own parsing, with errors in one line. takes: names of the arguments that are no flags, all of which must be given."""
    try:
        rest = flags.FLAGS(argv)
        if CONFIG.value is not None:
            CONFIG.value.get_type  # noqa: B018 - the stand-in for a file that did not load raises when it is used
    except (AttributeError, LookupError, TypeError) as error:  # mostly a flag for what the file does not have
        said = one_line(error.args[0] if error.args and isinstance(error.args[0], Exception) else error)
        given = [arg for arg in argv if arg.lstrip("-").startswith("config.")]
        named = [arg for arg in given if arg.split("=")[0].endswith("." + said.strip("'"))] or given
        fail(ValueError(f"{', '.join(named)} cannot be set: {said} (a flag changes what the config file has)" if given else said))
    except (flags.Error, OSError, ValueError) as error:
        fail(error)
    except Exception as error:  # whatever the config file raised: it is a program
        fail(ValueError(f"the config file raised {type(error).__name__}: {error}"))
    if rest[1 + len(takes) :]:
        fail(ValueError(f"argument {rest[1 + len(takes)]!r} is not a flag"))
    if len(rest) - 1 < len(takes):
        fail(ValueError(f"{takes[len(rest) - 1]} is missing"))
    return rest


def fail(error: Exception):
    """Bad input: one line, exit code 2."""
    if processes.speaks(error):
        note(f"error: {one_line(error)}")
    sys.exit(2)


def one_line(error: Exception, most: int = 500) -> str:
    """What an error says, on one line whatever a file or a flag put into it."""
    text = error.args[0] if isinstance(error, KeyError) and error.args else error  # str() of a KeyError is quoted
    if isinstance(error, jax.errors.JaxRuntimeError):
        text = str(error).partition("\n")[0]  # the rest is a table of allocations
    text = " ".join(str(text).split()) or type(error).__name__
    text = text if len(text) <= most else f"{text[: most // 2]} ... {text[-most // 2 :]}"
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def say(line: str) -> None:
    print(line, flush=True)


def note(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _drop_halves(folder: Path) -> None:
    """A process that was killed while it wrote leaves a program without its time of use, and then JAX fails to write any other."""
    with FileLock(folder / ".lockfile", timeout=10):
        for program in folder.glob("*-cache"):
            if not program.with_name(program.name.removesuffix("cache") + "atime").exists():
                program.unlink()


def settle_jax() -> None:
    """Programs compiled once are read from disk by later processes; JAX's own news are left out."""
    if hasattr(sys.stdout, "reconfigure"):  # it is None where the process was started with it closed, and a notebook's has no encoding
        sys.stdout.reconfigure(errors="backslashreplace")  # a terminal that lacks a letter gets its code
    logging.getLogger("jax._src.xla_bridge").setLevel(logging.ERROR)
    for news in ("profiler", "distributed"):
        logging.getLogger(f"jax._src.{news}").setLevel(logging.WARNING)
    try:
        folder = Path(os.environ.get("SPECJAX_CACHE") or "~/.cache/specjax").expanduser() / "xla"
        folder.mkdir(parents=True, exist_ok=True)
        _drop_halves(folder)
    except (OSError, RuntimeError) as error:  # a file, a folder that is closed, an unknown user
        return note(f"compiled programs are not kept: {one_line(error)}")
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)
    jax.config.update("jax_compilation_cache_max_size", 2**31)  # with a bound JAX locks the folder, or two runs read each other's halves
