"""Run the arms of a config on its prompts, and say what was gained.

    python -m specjax.run --config=configs/quickstart.py [--workdir=DIR] [--config.max_new_tokens=128] [--profile] [--dump_hlo]

With the workdir of a run that was stopped, the same command goes on where it stopped. Exit codes: 2 on bad input; 130 and 143 after
SIGINT and SIGTERM; 1 when the machine or a part that plugs in failed on the way (disk full, out of memory, a rule without a law).
Each is one line, and finished records are kept. What shows a traceback is a bug, of ours or in a part of yours.
"""

from __future__ import annotations

from absl import app, flags
from rich.console import Console

from specjax import build, command, processes, signals, stopping
from specjax.bench import look, sweep
from specjax.bench.plan import Experiment
from specjax.bench.records import Workdir
from specjax.command import CONFIG, fail, note, one_line, say
from specjax.report import table
from specjax.report.progress import progress
from specjax.stopping import of_the_machine, this_command

flags.adopt_module_key_flags(command)
flags.adopt_module_key_flags(stopping)
MODULE = "specjax.run"
PROFILE = flags.DEFINE_bool("profile", False, "At the end, trace the first prompts of each arm into WORKDIR/profile.")
DUMP_HLO = flags.DEFINE_bool("dump_hlo", False, "At the end, write each program as the compiler made it into WORKDIR/hlo.")


def main(argv: list[str]) -> None:
    if CONFIG.value is None:
        fail(ValueError("--config=FILE is missing"))
    workdir = stopping.begin()
    try:
        with signals.heard(note) as check:
            decode(prepare(workdir), workdir, check)
    except KeyboardInterrupt as stop:  # out here the listener has said its line, so how to go on is the last one
        leave(workdir, "interrupted", signals.exit_code(*stop.args))
    except Exception as error:
        if not of_the_machine(error):
            raise
        leave(workdir, f"error: {one_line(error)}", 1)


def prepare(workdir: Workdir) -> Experiment:
    """All that can be refused is refused here, before anything is written."""
    try:
        plan = processes.agreed(lambda: build.plan(CONFIG.value))
        processes.alike("config", [plan.resolved(), DUMP_HLO.value, PROFILE.value])
        workdir.check(plan.resolved())
        experiment = processes.agreed(lambda: build.load(plan))
        processes.alike("set of prompts, weights or parts", experiment.fingerprint)
        sweep.check(experiment, workdir)
        return experiment
    except (ValueError, OverflowError, OSError) as error:
        fail(error)


def decode(experiment: Experiment, workdir: Workdir, check) -> None:
    summary = sweep.whole(experiment, workdir, this_command(MODULE), say, lambda jobs: checked(shown(jobs), check))
    table.show(summary, Console())
    if DUMP_HLO.value:
        paths = look.dump_hlo(experiment, workdir.path / "hlo")
        say(f"text of {len(paths)} programs: {workdir.path / 'hlo'}")
    if PROFILE.value:
        say(f"profile: open {look.profile(sweep.priced(experiment, workdir), workdir.path / 'profile')} at https://ui.perfetto.dev")
    say(f"records, traces and summary: {workdir.path}")


def leave(workdir: Workdir, why: str, code: int):
    file = workdir.path / "records.jsonl"
    kept = file.read_bytes().count(b"\n") if file.exists() else 0  # a line that was not finished does not count
    stopping.leave(MODULE, workdir.path, why, f"{kept} records are kept", code)


def shown(jobs):
    return progress(jobs) if processes.speaks() else jobs


def checked(jobs, check):
    for job in jobs:
        yield job
        check()


if __name__ == "__main__":
    command.settle_jax()
    app.run(main, flags_parser=command.parse_flags)
