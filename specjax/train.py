"""Train a draft as a config says, from the target's own words to a folder that drafts.

    python -m specjax.train --config=configs/tiny_draft.py [--workdir=DIR] [--config.optimizer.steps=500]

With the workdir of a run that was stopped, the same command goes on at its last checkpoint. Exit codes: 2 on bad input; 130 and 143 after
SIGINT and SIGTERM; 1 when the loss is no longer finite, or the machine failed on the way (disk full, out of memory). Each is one line,
and the last checkpoint is kept. What shows a traceback is a bug.
"""

from __future__ import annotations

import shlex

from absl import app, flags, logging
from rich.console import Console

from specjax import build_training, command, processes, signals, stopping
from specjax.bench.records import Workdir
from specjax.command import CONFIG, fail, note, one_line, say
from specjax.report import trained
from specjax.stopping import of_the_machine, this_command
from specjax.training import metrics, prepare
from specjax.training.checkpoint import steps_kept
from specjax.training.export import check_free
from specjax.training.loop import Run

flags.adopt_module_key_flags(command)
flags.adopt_module_key_flags(stopping)
MODULE = "specjax.train"
WRONG = ValueError, BlockingIOError  # are bad input while data are made, too; a full disk is not, and the run can go on from there


def main(argv: list[str]) -> None:
    if CONFIG.value is None:
        fail(ValueError("--config=FILE is missing"))
    logging.set_verbosity(logging.ERROR)  # Orbax has much to say
    workdir = stopping.begin()
    try:
        with signals.heard(note) as check:
            train(workdir, check)
    except KeyboardInterrupt as stop:
        leave(workdir, "interrupted", signals.exit_code(*stop.args))
    except Exception as error:
        if not (of_the_machine(error) or type(error) is FloatingPointError):
            raise
        leave(workdir, f"error: {one_line(error)}", 1)


def train(workdir: Workdir, check) -> None:
    plan, target, kind = refusing(lambda: checked(workdir))
    with workdir.locked():
        refusing(lambda: workdir.check_config(plan.resolved()))  # again, because another run may have ended here in the meantime
        ready = refusing(lambda: prepare.ready(plan, target, kind, workdir.path, say), WRONG)
        run = refusing(lambda: Run(ready, workdir.path, shlex.join(this_command(MODULE)), say, check), WRONG)
        workdir.write("config.json", plan.resolved())
        summary = run.train()
        workdir.write("summary.json", summary)
    trained.show(summary, Console())


def checked(workdir: Workdir) -> tuple:
    """All that can be refused before anything is written is refused here."""
    plan = processes.agreed(lambda: build_training.plan(CONFIG.value))
    processes.alike("config", plan.resolved())
    check(workdir, plan.resolved())
    return plan, *processes.agreed(lambda: prepare.loaded(plan))


@processes.of_first
def check(workdir: Workdir, config: dict) -> None:
    """Of the folder."""
    workdir.check(config)
    check_free(workdir.path / "draft")
    begun = [row for row in metrics.read(workdir.path) if row["kind"] == "evaluate" and row["step"] == 0]
    if steps_kept(workdir.path) is not None and not begun:
        raise ValueError(f"{workdir.path} holds a checkpoint and no metrics of its first evaluation: name another --workdir")


def refusing(call, wrong=(ValueError, OverflowError, OSError)):
    """wrong: errors that are bad input."""
    try:
        return call()
    except wrong as error:
        fail(error)


def leave(workdir: Workdir, why: str, code: int):
    steps = steps_kept(workdir.path)
    kept = "no checkpoint is kept yet" if steps is None else f"the checkpoint after step {steps} is kept"
    stopping.leave(MODULE, workdir.path, why, kept, code)


if __name__ == "__main__":
    command.settle_jax()
    app.run(main, flags_parser=command.parse_flags)
