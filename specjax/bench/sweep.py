"""Running the arms: compile, measure costs, warm up, then every prompt through every arm in turn (A B C A B C).

The phases load, compile, prefill and decode are timed apart; each timed region ends when its result is on the device.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from specjax import decode, processes
from specjax.bench import agree, laws, line, manifest, measure, pricing, streams, summary, turns
from specjax.bench.plan import Experiment, LoadedArm, Task
from specjax.bench.records import Kept, Workdir
from specjax.sharding import spread
from specjax.state import State, pinned

WARM_UP = 8  # tokens of the untimed decoding before the first record
UNLIKELY = 0.9  # a wider pass that costs less than this many plain steps was not measured in peace


def check(experiment: Experiment, workdir: Workdir) -> None:
    """ValueError if what is in the folder is damaged, or of other prompts or weights than the config names now."""
    notes, rows = workdir.read("manifest.json"), list(workdir.records())
    if notes is None and rows:
        raise ValueError(f"{workdir} holds records of a run without its manifest.json: name another folder")
    if notes is not None:
        costs = manifest.costs(notes, [arm.name for arm in experiment.arms], str(workdir.path / "manifest.json"))
        if lacks := [arm.name for arm in experiment.arms if set(arm.decoder.setup.ladder) - set(costs[arm.name].v)]:
            raise ValueError(f"{workdir.path / 'manifest.json'}: no cost of every width of arm {lacks[0]!r}: name another folder")
        if notes["fingerprint"] != experiment.fingerprint:
            changed = "the prompts, the weights or a part of your own have changed since this run began"
            raise ValueError(f"{workdir.path}: {changed}; take another --workdir")
    tasks, where = {task.key: task for batch in batches(experiment) for task in batch}, workdir.path / "records.jsonl"
    if foreign := {line.key(row) for row in rows} - set(tasks):
        raise ValueError(f"{where}: a record of {min(foreign)}, which is no part of this run")
    for row in rows:
        if row != row | line.named(tasks[line.key(row)]) or max(row["token_ids"], default=0) >= experiment.target.model.vocab:
            raise ValueError(f"{where}: the record of {line.key(row)} is of another prompt or vocabulary, or damaged: name another folder")


def whole(experiment: Experiment, workdir: Workdir, command: list[str], say: Callable = print, progress: Callable = iter) -> dict:
    """A run from its first compilation to its summary, which is returned. say: takes a line of news.

    Raises:
      OSError: another process is at work in the folder, or it cannot be written.
    """
    with workdir.locked():
        workdir.check_config(experiment.plan.resolved())  # again, because another run may have ended here in the meantime
        check(experiment, workdir)
        return _whole(experiment, workdir, command, say, progress)


def _whole(experiment: Experiment, workdir: Workdir, command, say, progress) -> dict:
    began, plan = time.monotonic(), experiment.plan
    workdir.create(plan.resolved())
    say(f"loaded {experiment.target.source} in {experiment.load_seconds:.1f} s, {experiment.target.dtype.name}")
    for note in experiment.target.notes:
        say(note)
    count = sum(map(len, batches(experiment)))
    shape = f"{len(experiment.arms)} arms x {len(experiment.prompts)} prompts, {count} records"
    say(f"{shape}, {plan.max_new_tokens} new tokens, S = {experiment.size}; all settings: {workdir.path / 'config.json'}")
    compile_seconds = compile_arms(experiment)
    took = [s for phases in compile_seconds.values() for s in phases.values() if s]
    say(f"compiled {len(took)} programs in {sum(took):.1f} s")
    notes = workdir.read("manifest.json")
    if notes is None:  # what was measured once holds for the whole run, however often it is stopped
        say("measuring what passes and drafts cost")
        costs = measure.costs(experiment)
        if low := sorted({f"v({width}) = {x:.2f}" for cost in costs.values() for width, x in cost.v.items() if x < UNLIKELY}):
            say(f"measured {', '.join(low)}: wider passes cost no less, so the machine did other work; lengths that weigh costs go by it")
        made = {**manifest.manifest(experiment, command, compile_seconds, costs), "wall_seconds": 0.0}
        notes = processes.first(lambda: made)  # by one clock
        workdir.write("manifest.json", notes)
    costs = _costs(experiment, notes)
    experiment = pricing.priced(experiment, costs)
    try:
        warm_up(experiment)
        run(experiment, workdir, progress)
        rows = list(workdir.records())
        result = summary.summarise(experiment, rows, costs, notes["seconds"]["compile"], *agree.compare(experiment, rows))
        workdir.write("summary.json", result)
        if plan.record_laws:
            laws.record(experiment, workdir, say, progress)
    finally:
        workdir.write("manifest.json", {**notes, "wall_seconds": notes["wall_seconds"] + time.monotonic() - began})
    return result


def _costs(experiment: Experiment, notes: dict) -> dict[str, measure.Costs]:
    return manifest.costs(notes, [arm.name for arm in experiment.arms], "manifest.json")


def priced(experiment: Experiment, workdir: Workdir) -> Experiment:
    """The experiment as its records are made: with the costs of the run's manifest in the policies that weigh them."""
    return pricing.priced(experiment, _costs(experiment, workdir.read("manifest.json")))


def compile_arms(experiment: Experiment) -> dict[str, dict[str, float]]:
    """Compile each arm's programs: seconds by arm and phase, 0 where an arm before it has the same program."""
    seen, seconds = set(), {}
    for arm in experiment.arms:
        seconds[arm.name] = {}
        for phase, (program, inputs) in programs(experiment, arm).items():
            same = (program, *measure.program_key(inputs))
            seconds[arm.name][phase] = 0.0 if same in seen else _compile(program, inputs)
            seen.add(same)
    return seconds


def warm_up(experiment: Experiment) -> None:
    """Decode a few tokens with every arm, untimed."""
    for arm in experiment.arms:
        state = arm.decoder.prefill(_few(_start(experiment, first_batch(experiment, arm), {})[0]))
        if experiment.plan.refill:
            state = arm.decoder.put_row(state, arm.decoder.prefill(_few(_start_one(experiment, arm))), 0)
        jax.block_until_ready(arm.decoder.generate(state))


def run(experiment: Experiment, workdir: Workdir, progress: Callable = iter) -> None:
    """Make the records that are missing. progress: wraps the list of what is to do, as a progress bar does."""
    kept = Kept(workdir)
    if experiment.plan.refill:
        streams.run(experiment, kept, [task for batch in batches(experiment) for task in batch], progress)
        return
    todo = [batch for batch in batches(experiment) if any(kept.lacks(task) for task in batch)]
    for batch in progress(todo):
        for made in decode_batch(experiment, batch, kept.answers):
            kept.keep(*made)


def batches(experiment: Experiment) -> Iterator[list[Task]]:
    """All that a run decodes, in its order: one arm a batch, arms by turns, a conversation's turns one after the other."""
    plan, prompts = experiment.plan, experiment.prompts
    for repeat in range(plan.repeats):
        for sample in range(plan.samples):
            for i in range(0, len(prompts), plan.batch):
                group = prompts[i : i + plan.batch]
                for turn in range(max(len(e.prompt.turns) for e in group)):
                    talking = [e for e in group if turn < len(e.prompt.turns)]
                    for arm in experiment.arms:
                        if sample in experiment.samples(arm):
                            yield [Task(arm, encoded, sample, repeat, turn) for encoded in talking]


def first_batch(experiment: Experiment, arm: LoadedArm) -> list[Task]:
    return [Task(arm, encoded) for encoded in experiment.prompts[: experiment.plan.batch]]


def decode_batch(experiment: Experiment, batch: Sequence[Task], answers: Mapping) -> Iterator[tuple[Task, dict, object]]:
    """(task, record, trace) of each row. answers: texts by `Task.key`. A phase's seconds are shared out evenly over the rows."""
    decoder = batch[0].arm.decoder
    state, lengths = _start(experiment, batch, answers)
    state = jax.block_until_ready(state)
    state, prefill = measure.timed(lambda: decoder.prefill(state))
    state, decoding = measure.timed(functools.partial(decoder.generate, state))
    output = decoder.output(state)
    seconds = {"prefill": prefill / len(batch), "decode": decoding / len(batch)}
    for row, (task, length) in enumerate(zip(batch, lengths, strict=True)):
        yield task, *line.record(task, length, output, row, seconds, measure.peak_memory_bytes())


def _start(experiment: Experiment, batch: Sequence[Task], answers: Mapping) -> tuple[State, list[int]]:
    """The state of a batch, and the tokens of each prompt; one that is short of prompts is filled up with rows that have nothing to do."""
    spare = experiment.plan.batch - len(batch)
    tokens = [turns.prompt_tokens(experiment, task, answers) for task in batch]
    ids = [task.id for task in batch]
    budgets = [experiment.plan.max_new_tokens] * len(batch) + [0] * spare
    state = batch[0].arm.decoder.start(tokens + tokens[:1] * spare, budgets, ids + ids[:1] * spare, experiment.size)
    return state, list(map(len, tokens))


def _start_one(experiment: Experiment, arm: LoadedArm) -> State:
    """The state of one row that is put into a batch."""
    first = experiment.prompts[0]
    return arm.decoder.start([first.tokens], experiment.plan.max_new_tokens, [first.prompt.id], experiment.size)


def _few(state: State) -> State:
    return state._replace(limit_B=jnp.minimum(state.limit_B, state.cursor_B + 1 + WARM_UP))


def programs(experiment: Experiment, arm: LoadedArm) -> dict[str, tuple]:
    """The jitted function and the inputs of each phase: shapes for what is only made when it is called."""
    setup, params = arm.decoder.setup, experiment.target.params
    placed = lambda make, *given: pinned(setup.layouts, jax.eval_shape(make, *given), spread)
    state = placed(lambda: _start(experiment, first_batch(experiment, arm), {})[0])
    ready = placed(decode.prefill, setup, params, state)
    programs = {
        "prefill": (decode.feed_prompts, _feeding(setup, params, state)),
        "decode": (decode.generate, (setup, params, ready, np.int32(0))),
    }
    if not experiment.plan.refill:
        return programs
    one = placed(lambda: _start_one(experiment, arm))
    put = ready, placed(decode.prefill, setup, params, one), np.int32(0), setup.layouts
    return programs | {"prefill_row": (decode.feed_prompts, _feeding(setup, params, one)), "refill": (decode.put_row, put)}


def _feeding(setup, params, state: State) -> tuple:
    return setup.model, setup.chunk, setup.drafter, params, state.cache, state.token_BS, state.cursor_B, setup.layouts


def _compile(program, inputs) -> float:
    """Ahead of time; a call with the same shapes then finds the program."""
    began = time.perf_counter()
    program.lower(*inputs).compile()
    return time.perf_counter() - began
