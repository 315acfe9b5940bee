"""Running the arms: compile, measure costs, warm up, then every prompt through every arm in turn (A B C A B C).

The phases load, compile, prefill and decode are timed apart; each timed region ends when its result is on the device.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp

from specjax import decode
from specjax.bench import agree, manifest, measure, records, summary
from specjax.bench.plan import Encoded, Experiment, LoadedArm
from specjax.bench.records import Workdir
from specjax.state import State

WARM_UP = 8  # tokens of the untimed decoding before the first record


def check(experiment: Experiment, workdir: Workdir) -> None:
    """ValueError if the records in the folder are of other prompts or weights than the config names now."""
    notes = workdir.read("manifest.json")
    if notes is not None and notes["fingerprint"] != experiment.fingerprint:
        raise ValueError(f"{workdir.path}: the prompts or the weights have changed since this run began; take another --workdir")


def whole(experiment: Experiment, workdir: Workdir, command: list[str], say: Callable = print, progress: Callable = iter) -> dict:
    """A run from its first compilation to its summary, which is returned. say: takes a line of news."""
    began, plan = time.monotonic(), experiment.plan
    workdir.create(plan.resolved())
    say(f"loaded {experiment.target.source} in {experiment.load_seconds:.1f} s, {experiment.target.dtype.name}")
    shape = f"{len(experiment.arms)} arms x {len(experiment.prompts)} prompts x {plan.repeats} repeats"
    say(f"{shape}, {plan.max_new_tokens} new tokens, S = {experiment.size}; all settings: {workdir.path / 'config.json'}")
    compile_seconds = compile_arms(experiment)
    took = [s for both in compile_seconds.values() for s in both.values() if s]
    say(f"compiled {len(took)} programs in {sum(took):.1f} s")
    notes = workdir.read("manifest.json")
    if notes is None:  # what was measured once holds for the whole run, however often it is stopped
        say("measuring what passes and drafts cost")
        costs = measure.costs(experiment)
        notes = {**manifest.manifest(experiment, command, compile_seconds, costs), "wall_seconds": 0.0}
        workdir.write("manifest.json", notes)
    try:
        warm_up(experiment)
        run(experiment, workdir, progress)
        rows = list(workdir.records())
        costs = {name: measure.Costs.from_json(row) for name, row in notes["costs"].items()}
        result = summary.summarise(experiment, rows, costs, notes["seconds"]["compile"], *agree.compare(experiment, rows))
        workdir.write("summary.json", result)
    finally:
        workdir.write("manifest.json", {**notes, "wall_seconds": notes["wall_seconds"] + time.monotonic() - began})
    return result


def compile_arms(experiment: Experiment) -> dict[str, dict[str, float]]:
    """Compile each arm's two programs: seconds of "prefill" and "decode" by arm, 0 where an arm before it has the same."""
    seen, seconds = set(), {}
    for arm in experiment.arms:
        seconds[arm.name] = {}
        for phase, (program, inputs) in _programs(experiment, arm).items():
            same = (phase, *measure.program_key(inputs))
            seconds[arm.name][phase] = 0.0 if same in seen else _compile(program, inputs)
            seen.add(same)
    return seconds


def warm_up(experiment: Experiment) -> None:
    """Decode a few tokens with every arm, untimed."""
    for arm in experiment.arms:
        state = _start(experiment, arm, experiment.prompts[: experiment.plan.batch])
        state = state._replace(limit_B=jnp.minimum(state.limit_B, state.cursor_B + 1 + WARM_UP))
        jax.block_until_ready(arm.decoder.generate(arm.decoder.prefill(state)))


def run(experiment: Experiment, workdir: Workdir, progress: Callable = iter) -> None:
    """Make the records that are missing. progress: wraps the list of what is to do, as a progress bar does."""
    present = {records.key(r) for r in workdir.records()}
    todo = [job for job in _jobs(experiment) if any(k not in present for k in _keys(*job))]
    for arm, group, repeat in progress(todo):
        for line, trace in decode_group(experiment, arm, group, repeat):
            if records.key(line) not in present:
                workdir.append(line, trace)


def decode_group(experiment: Experiment, arm: LoadedArm, group: list[Encoded], repeat: int) -> Iterator[tuple[dict, object]]:
    """(record, trace) of each prompt of one batch. A phase's seconds are shared out evenly over the prompts."""
    state = jax.block_until_ready(_start(experiment, arm, group))
    state, prefill = measure.timed(lambda: arm.decoder.prefill(state))
    state, decoding = measure.timed(functools.partial(arm.decoder.generate, state))
    output = arm.decoder.output(state)
    seconds = {"prefill": prefill / len(group), "decode": decoding / len(group)}
    for row, encoded in enumerate(group):
        yield records.record(arm, encoded, repeat, output, row, seconds, measure.peak_memory_bytes())


def _jobs(experiment: Experiment) -> Iterator[tuple[LoadedArm, list[Encoded], int]]:
    batch, prompts = experiment.plan.batch, list(experiment.prompts)
    for repeat in range(experiment.plan.repeats):
        for i in range(0, len(prompts), batch):
            for arm in experiment.arms:
                yield arm, prompts[i : i + batch], repeat


def _keys(arm, group, repeat) -> list[tuple]:
    return [(arm.name, str(e.prompt.question_id), repeat) for e in group]


def _start(experiment: Experiment, arm: LoadedArm, group) -> State:
    """The state of a batch; one that is short of prompts is filled up with rows that have nothing to do."""
    spare = experiment.plan.batch - len(group)
    tokens = [e.tokens for e in group] + [group[0].tokens] * spare
    ids = [e.prompt.id for e in group] + [group[0].prompt.id] * spare
    budgets = [experiment.plan.max_new_tokens] * len(group) + [0] * spare
    return arm.decoder.start(tokens, budgets, ids, experiment.size)


def _programs(experiment: Experiment, arm: LoadedArm) -> dict[str, tuple]:
    """The jitted function and the inputs of each phase."""
    setup, params = arm.decoder.setup, experiment.target.params
    state = _start(experiment, arm, experiment.prompts[: experiment.plan.batch])
    feeding = setup.model, setup.chunk, setup.drafter, params, state.cache, state.token_BS, state.cursor_B
    decoding = setup, params, jax.eval_shape(decode.prefill, setup, params, state)
    return {"prefill": (decode.feed_prompts, feeding), "decode": (decode.generate, decoding)}


def _compile(program, inputs) -> float:
    """Ahead of time; a call with the same shapes then finds the program."""
    began = time.perf_counter()
    program.lower(*inputs).compile()
    return time.perf_counter() - began
