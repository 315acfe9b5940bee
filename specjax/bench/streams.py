"""A run that wants throughput: each arm decodes all its prompts as one stream, whose rows take the next prompt as they finish.

Arms take turns as wholes, and tokens are the same as without. Prefill happens between rounds and is part of the stream's seconds. They
are shared out over the records that finished since the last were written, a batch of them at a time, by each one's target passes: a
row holds its place for so many. The stream is one measurement all the same, so its arms get no interval.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from specjax import refill
from specjax.bench import line, measure, turns
from specjax.bench.plan import Experiment, Task
from specjax.bench.records import Kept


def run(experiment: Experiment, kept: Kept, tasks: Sequence[Task], progress: Callable) -> None:
    """Decode the tasks, which are missing in the folder."""
    ticks = iter(progress(tasks))
    next(ticks, None)
    for stream in split(experiment, tasks):
        for made in decode_stream(experiment, stream, kept.answers):
            kept.keep(*made)
            next(ticks, None)


def split(experiment: Experiment, tasks: Sequence[Task]) -> Iterator[list[Task]]:
    """One arm a stream. A turn waits until all conversations have come so far."""
    order = [arm.name for arm in experiment.arms]
    place = lambda task: (task.repeat, task.turn, order.index(task.arm.name))
    for _, stream in itertools.groupby(sorted(tasks, key=place), place):  # sorted is stable
        yield list(stream)


def decode_stream(experiment: Experiment, stream: Sequence[Task], answers: Mapping) -> Iterator[tuple[Task, dict, object]]:
    """(task, record, trace) as they finish. answers: texts by `Task.key`."""
    plan, decoder = experiment.plan, stream[0].arm.decoder
    tokens = [turns.prompt_tokens(experiment, task, answers) for task in stream]
    ids, spare = [task.id for task in stream], max(plan.batch - len(stream), 0)  # spare rows, so that no other program is compiled
    budgets = [plan.max_new_tokens] * len(stream) + [0] * spare
    began = time.perf_counter()
    decoded = refill.decode_all(decoder, tokens + tokens[:1] * spare, budgets, ids + ids[:1] * spare, plan.batch, experiment.size)
    rows = ((index, output) for index, output in decoded if index < len(stream))
    while finished := list(itertools.islice(rows, plan.batch)):
        seconds = time.perf_counter() - began
        passes = sum(int(output.counts["passes"][0]) for _, output in finished)
        for index, output in finished:
            share = {"prefill": None, "decode": seconds * int(output.counts["passes"][0]) / passes}
            yield stream[index], *line.record(stream[index], len(tokens[index]), output, 0, share, measure.peak_memory_bytes())
        began = time.perf_counter()
