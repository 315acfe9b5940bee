"""What a run or a training would need on TPUs that are not here: compiled for them by libtpu, ahead of time, on this machine.

    python -m specjax.aot --config=configs/pod.py --topology=v5e:2x4 --config.mesh=model:8 [--arm=NAME] [--slots=2048] [--shape_only]

Of a run's config it compiles the decode round of each arm, of a training's the step, and says of each: memory of a device by kind and
whether it fits, what devices send each other, and the least time that the chip's published numbers allow (nobody has timed it: a chip may
be slower, and messages take time to begin). --shape_only: of a model only config.json is read, for plans about models that are not
here. --slots: S, tokens of a prompt and its answer. Exit codes: 1 where something does not fit, 2 on bad input.
"""

from __future__ import annotations

import sys
import time

import jax
from absl import app, flags

from specjax import build, build_training, command, compiled, parts, planned, topology
from specjax.bench.measure import program_key
from specjax.command import CONFIG, fail, say
from specjax.compiled import Compiled, nbytes
from specjax.planned import Program, Round
from specjax.report.units import size as in_units
from specjax.theory import expected_tokens, speedup
from specjax.topology import Chip

flags.adopt_module_key_flags(command)
TOPOLOGY = flags.DEFINE_string("topology", None, f"What to compile for: {topology.TOPOLOGIES}.")
ARM = flags.DEFINE_string("arm", None, "Only this arm.")
SLOTS = flags.DEFINE_integer(
    "slots", None, "S: tokens of a prompt and its answer; default as a run of the config would have it.", lower_bound=1
)
SHAPE_ONLY = flags.DEFINE_bool("shape_only", False, "Read of each model its config.json only.")


def main(argv: list[str]) -> None:
    if CONFIG.value is None:
        fail(ValueError("--config=FILE is missing"))
    if TOPOLOGY.value is None:
        fail(ValueError(f"--topology is missing: {topology.TOPOLOGIES}"))
    training = "optimizer" in CONFIG.value
    jax.config.update("jax_enable_compilation_cache", False)  # a program for devices that are not here cannot be read back
    try:
        devices, chip = topology.devices(TOPOLOGY.value)
        say(f"{TOPOLOGY.value}: {len(devices)} devices, each {_chip(chip)}")
        fits = _training(devices, chip) if training else _run(devices, chip)
    except (ValueError, OSError) as error:
        fail(error)
    sys.exit(0 if fits else 1)


def _run(devices: list, chip: Chip) -> bool:
    plan = build.plan(CONFIG.value)
    if plan.mesh is None:
        raise ValueError(f"config.mesh is missing: {TOPOLOGY.value} has {len(devices)} devices, as in --config.mesh=model:{len(devices)}")
    target, arms, slots = planned.load(plan, devices, SLOTS.value, SHAPE_ONLY.value)
    chosen = [arm for arm in arms if ARM.value in (None, arm.name)]
    if not chosen:
        raise ValueError(f"arm={ARM.value!r} is none of {', '.join(arm.name for arm in arms)}")
    rows = f"{plan.batch} {'row' if plan.batch == 1 else 'rows'} of {slots} slots"
    say(f"{target.source} as {target.dtype.name} over {plan.mesh}, {rows}")
    for note in target.notes:
        say(note)
    seen, fits = {}, True
    for arm in chosen:
        round_ = planned.round_of(plan, target, arm, slots)
        if (same := seen.setdefault(program_key(round_.whole.inputs), arm.name)) != arm.name:
            say(f"\narm {arm.name}: the program of {same}")
            continue
        say(f"\narm {arm.name}: a round of rungs {' '.join(map(str, arm.decoder.setup.ladder))}")
        if _said(round_.whole, chip) is None:
            fits = False
        else:
            _parts(round_, arm.decoder.setup.drafter, plan.batch, len(devices), chip)
    return fits


def _training(devices: list, chip: Chip) -> bool:
    if ARM.value or SLOTS.value:
        raise ValueError("--arm and --slots are of a run, and this is a training's config")
    plan = build_training.plan(CONFIG.value)
    program = planned.training_step(plan, devices, SHAPE_ONLY.value)
    say(f"a step of {plan.optimizer.batch} rows of {plan.data.length} tokens over {plan.mesh or f'data:{len(devices)}'}")
    made = _said(program, chip)
    if made is not None:
        count = plan.optimizer.accumulate  # parts of a step are turns of a loop, which XLA counts once
        name = "step" if count == 1 else f"each of its {count} parts"
        _say_part(name, program, made, plan.optimizer.batch * plan.data.length // count, len(devices), chip)
    return made is not None


def _said(program: Program, chip: Chip) -> Compiled | None:
    """Compile it and say what it needs; None where it does not fit."""
    listed = ", ".join(f"{name} {in_units(nbytes(tree))}" for name, tree in program.held.items() if nbytes(tree))
    began = time.perf_counter()
    try:
        made = _compiled(program)
    except jax.errors.JaxRuntimeError as error:
        if (found := compiled.too_much(error)) is None:
            raise
        needs, has = found
        say(f"  memory of a device: {listed}")
        say(f"  does not fit: a device would need {needs:,} bytes and has {has:,}, {needs - has:,} too many (XLA says so to 0.01 GiB)")
        return None
    say(f"  compiled in {time.perf_counter() - began:.0f} s")
    say(f"  memory of a device: {listed}; temporary {in_units(made.temporary)}, program {in_units(made.code)}")
    say(f"  fits: {in_units(made.total)} of {in_units(int(chip.memory))}")
    sent = ", ".join(f"{kind} {one.count} x, {in_units(one.bytes)}" for kind, one in sorted(made.sent.items()))
    say(f"  sends: {sent or 'nothing'}" + (" (a loop's body counts once)" if made.loops and sent else ""))
    return made


def _compiled(program: Program) -> Compiled:
    return compiled.read(program.function.lower(*program.inputs).compile())


def _parts(round_: Round, drafter, batch: int, count: int, chip: Chip) -> None:
    """Passes of the target and a step of the draft: least times, and what follows for c, v and the round."""
    pass_seconds = {}
    for width, program in round_.passes.items():
        made = _compiled(program)
        pass_seconds[width] = _say_part(f"pass of {width}", program, made, batch * width, count, chip)
    if round_.draft is None:
        return
    draft_seconds = _say_part("draft step", round_.draft, _compiled(round_.draft), batch, count, chip)
    first, widest = pass_seconds[1], max(pass_seconds)
    c, v, k = draft_seconds / first, {width: x / first for width, x in pass_seconds.items()}, widest - 1
    say(f"  so c = {c:.3f}, " + ", ".join(f"v({width}) = {x:.2f}" for width, x in v.items() if width > 1))
    if parts.nodes(drafter) != drafter.most + 1:
        return  # of a tree neither the drafter's steps nor its tokens are those of a chain
    pays = next((a / 100 for a in range(101) if speedup(expected_tokens(a / 100, k), v[widest], k, c) >= 1), None)
    when = "at no alpha" if pays is None else f"from alpha = {pays:.2f} on"
    say(f"  a round of {k} drafts: {_ms(pass_seconds[widest] + k * draft_seconds)} at least, plain {_ms(first)}; it pays {when}")


def _say_part(name: str, program: Program, made: Compiled, tokens: int, count: int, chip: Chip) -> float:
    """Seconds at least: the roofline of what has to be read once, of arithmetic, and of what is sent (an all-reduce sends it twice)."""
    sent = sum(one.bytes * (2 if kind == "all-reduce" else 1) for kind, one in made.sent.items())
    reads = sum(map(nbytes, program.held.values()))
    times = {"memory": reads / chip.bandwidth, "arithmetic": made.flops / chip.flops, "links": sent / chip.links}
    least = max(times.values())
    own = "" if made.seconds is None else f", XLA's estimate {_ms(made.seconds)}"
    each = f"{made.flops * count / tokens / 1e9:.3g} GFLOP and {in_units(int(reads * count / tokens))} a token"
    say(f"  {name}: {_ms(least)} at least ({', '.join(f'{what} {_ms(x)}' for what, x in times.items())}){own}; {each}")
    return least


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms"


def _chip(chip: Chip) -> str:
    return (
        f"{chip.name} with {in_units(int(chip.memory))}, {chip.bandwidth / 1e9:.0f} GB/s, {chip.flops / 1e12:.0f} TFLOP/s in bfloat16, "
        f"{chip.links / 1e9:.0f} GB/s each way over its links"
    )


if __name__ == "__main__":
    command.settle_jax()
    app.run(main, flags_parser=command.parse_flags)
