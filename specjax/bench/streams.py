"""A run that wants throughput: each arm decodes all its prompts as one stream, whose rows take the next prompt as they finish.

Arms take turns as wholes, and tokens are the same as without. A stream is measured while its batch is full: behind the last prompt the
first ones come again, and what they say counts for nothing. Without that the last prompts would be decoded by a batch half empty, and a
figure depend on how many prompts there were. Prefill happens between rounds and is timed apart. A prompt is charged for its row of the
batch, a share of the seconds of decoding from when it took the row to when it ended.

A stream is one measurement, so an interval needs repeats. Each has the prompts in another order, and the arms too.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator, Mapping, Sequence

import jax

from specjax import refill
from specjax.bench import line, measure, turns
from specjax.bench.plan import Experiment, Task
from specjax.bench.records import Kept


def run(experiment: Experiment, kept: Kept, tasks: Sequence[Task], progress: Callable) -> None:
    """Decode all that a run does, but for streams that are in the folder. One that lacks a record is decoded whole again: with other
    prompts in its batch it would be another measurement, and a policy that looks at the batch would draft other lengths."""
    ticks = iter(progress([task for task in tasks if kept.lacks(task)]))
    next(ticks, None)
    for stream in split(experiment, tasks):
        missing = {task.key for task in stream if kept.lacks(task)}
        made = decode_stream(experiment, stream, kept.answers) if missing else ()
        for task, *rest in made:
            kept.keep(task, *rest)
            if task.key in missing:
                next(ticks, None)


def split(experiment: Experiment, tasks: Sequence[Task]) -> Iterator[list[Task]]:
    """One arm a stream. A turn waits until all conversations have come so far."""
    order = [arm.name for arm in experiment.arms]
    place = lambda task: (task.repeat, task.turn, (order.index(task.arm.name) - task.repeat) % len(order))
    for (repeat, *_), tasks_ in itertools.groupby(sorted(tasks, key=place), place):  # sorted is stable
        stream = list(tasks_)
        if repeat:
            random.Random(repeat).shuffle(stream)  # the same order for each arm
        yield stream


def decode_stream(experiment: Experiment, stream: Sequence[Task], answers: Mapping) -> Iterator[tuple[Task, dict, object]]:
    """(task, record, trace) as they finish. answers: texts by `Task.key`."""
    plan, timed = experiment.plan, Timed(stream[0].arm.decoder)
    tokens, ids = [turns.prompt_tokens(experiment, task, answers) for task in stream], [task.id for task in stream]
    budgets, began = [plan.max_new_tokens] * len(stream), [0.0] * plan.batch  # began: at which second of decoding each took its row
    missing = len(stream)
    for number, output in refill.decode_all(timed, tokens, budgets, ids, plan.batch, experiment.size, endless=True):
        began.append(timed.decoding)  # the next prompt takes this row now
        if number < len(stream):
            seconds = {"prefill": timed.prefills[number], "decode": (timed.decoding - began[number]) / plan.batch}
            yield stream[number], *line.record(stream[number], len(tokens[number]), output, 0, seconds, measure.peak_memory_bytes())
            missing -= 1
        if not missing:
            return


class Timed:
    """A decoder whose phases are timed. decoding: seconds so far. prefills: of each prompt, with putting it into its row, in that order."""

    def __init__(self, decoder):
        self.decoder, self.decoding, self.prefills = decoder, 0.0, []

    def __getattr__(self, name):
        return getattr(self.decoder, name)

    def prefill(self, state):
        rows = len(state.cursor_B)
        state, seconds = _timed(self.decoder.prefill, state)
        self.prefills += [seconds / rows] * rows
        return state

    def put_row(self, state, one, row):
        state, seconds = _timed(self.decoder.put_row, state, one, row)
        self.prefills[-1] += seconds
        return state

    def generate_until(self, state, running):
        state, seconds = _timed(self.decoder.generate_until, state, running)
        self.decoding += seconds
        return state


def _timed(call, state, *rest):
    state = jax.block_until_ready(state)
    return measure.timed(lambda: call(state, *rest))
