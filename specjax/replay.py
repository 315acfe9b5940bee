"""Compare acceptance rules on the drafts that a run recorded, and predict other draft lengths from them.

    python -m specjax.replay WORKDIR [--rules="block, lenient(lenience=0.7), package.module.Rule"]

WORKDIR is the folder of a run with config.record_laws=True. Without --rules: every rule that specjax can make without numbers, some
leniences, and those of the run's arms, on all drafts. With it: those rules on the drafts whose whole laws were kept. Writes
WORKDIR/replay.json. Exit code 2 on bad input, in one line.
"""

from __future__ import annotations

import functools

from absl import app, flags
from rich.console import Console

from specjax import build, command
from specjax.bench import laws, manifest, replaying
from specjax.bench.records import Workdir
from specjax.command import CONFIG, fail, say
from specjax.report import replayed

flags.adopt_module_key_flags(command)
parse_flags = functools.partial(command.parse_flags, takes=("WORKDIR",))
RULES = flags.DEFINE_string("rules", None, "Rules to compare, e.g. 'block, lenient(lenience=0.7)'; default: see above.")


def main(argv: list[str]) -> None:
    if CONFIG.value is not None:
        fail(ValueError("--config changes nothing here: the folder of a run has its own"))
    try:
        workdir = Workdir(argv[1])
        result = replay(workdir, [] if RULES.value is None else build.rules_of(RULES.value))
        workdir.write("replay.json", result)
    except (ValueError, OSError) as error:
        fail(error)
    replayed.show(result, Console())
    say(f"all numbers: {workdir.path / 'replay.json'}")


def replay(workdir: Workdir, own: list) -> dict:
    """What the folder's drafts say, see `specjax.bench.replaying`. own: rules to compare in place of all that were recorded.

    Raises:
      ValueError: the folder is no finished run with laws, or something in it is damaged.
    """
    laws.index(workdir)  # before all else, so that a run without laws says so
    config, notes, summary = (_whole(workdir, name) for name in ("config.json", "manifest.json", "summary.json"))
    rows = {row["name"]: row for row in summary["arms"]}
    costs = manifest.costs(notes, list(rows), str(workdir.path / "manifest.json"))
    return replaying.replay(workdir, costs if config["batch"] == 1 else {}, rows, own)


def _whole(workdir: Workdir, name: str) -> dict:
    there = workdir.read(name)
    if there is None:
        raise ValueError(f"{workdir.path / name} is missing: name the folder of a finished run")
    return there


if __name__ == "__main__":
    command.settle_jax()
    app.run(main, flags_parser=parse_flags)
