"""A closer look at a run: its distinct programs, their optimized text, and a profile of the first prompts of each arm."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any, NamedTuple

import jax

from specjax import processes
from specjax.bench import line, measure, sweep
from specjax.bench.plan import Experiment


class Program(NamedTuple):
    """What is compiled once. arms: the names of those that run it."""

    phase: str
    arms: list[str]
    function: Any
    inputs: tuple


def programs(experiment: Experiment) -> list[Program]:
    """The distinct programs of a run, in the order in which they are compiled. Nothing is compiled here."""
    found: dict[tuple, Program] = {}
    for arm in experiment.arms:
        for phase, (function, inputs) in sweep.programs(experiment, arm).items():
            key = function, *measure.program_key(inputs)
            found.setdefault(key, Program(phase, [], function, inputs)).arms.append(arm.name)
    return list(found.values())


def dump_hlo(experiment: Experiment, folder: Path) -> list[Path]:
    """Write the optimized text of each distinct program, as XLA runs it on this device; its first line names the arms."""
    processes.first(lambda: folder.mkdir(parents=True, exist_ok=True))
    paths = []
    for program in programs(experiment):
        text = program.function.lower(*program.inputs).compile().as_text()
        paths.append(folder / f"{program.phase}.{line.slug(program.arms[0])}.txt")
        _write(paths[-1], f"// {program.phase} of {', '.join(program.arms)}\n{text}")
    return paths


@processes.of_first
def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")


def profile(experiment: Experiment, folder: Path) -> Path:
    """Trace one batch of each arm, each under its name, with programs that have run before. Returns the file for ui.perfetto.dev."""
    with jax.profiler.trace(str(folder), create_perfetto_trace=True) if processes.speaks() else contextlib.nullcontext():
        for arm in experiment.arms:
            with jax.profiler.TraceAnnotation(arm.name):
                list(sweep.decode_batch(experiment, sweep.first_batch(experiment, arm), {}))
    return processes.first(lambda: max(folder.rglob("perfetto_trace.json.gz"), key=lambda path: path.stat().st_mtime))
