"""What a run would do on this machine, and what would stop it. No weights are read, no programs compiled.

    python -m specjax.doctor [--config=configs/quickstart.py] [--load]

With --load the weights are read too, as the run would. Nothing is downloaded without it. Exit codes: 0 all is well, 1 something would
stop the run (a line with ✗), 2 bad flags or a bad config.
"""

from __future__ import annotations

import collections
import functools
import importlib.metadata
import os
import platform
import sys
from pathlib import Path

import jax
from absl import app, flags

import specjax
from specjax import build, command, lm, prompts
from specjax.bench import look
from specjax.bench.plan import WITH_WEIGHTS, Experiment, Plan, Prompts, TrainedDraft
from specjax.command import CONFIG, fail, one_line, say
from specjax.compiled import nbytes
from specjax.models.load import describe, fetch, hf
from specjax.report.units import size

flags.adopt_module_key_flags(command)
LOAD = flags.DEFINE_bool("load", False, "Read the weights too (and fetch what is not here yet).")
PACKAGES = ("jax", "jaxlib", "flax", "numpy", "ml_collections", "safetensors", "tokenizers", "gguf", "huggingface_hub")
FAULTS = (ValueError, OverflowError, OSError, MemoryError, jax.errors.JaxRuntimeError)  # what a run would end with in one line
NOT_HERE = "not on this machine yet, the run fetches it (or --load)"


class Report:
    """Lines as they come, how many of them are faults, and the parts that nobody could look at."""

    def __init__(self):
        self.faults = 0
        self.unseen: list[str] = []

    def fact(self, name: str, text: str) -> None:
        say(f"{name:<12}{text}")

    def miss(self, name: str, text: str) -> None:
        """A fact about what is not there to look at."""
        self.unseen.append(name)
        self.fact(name, text)

    def fault(self, error: Exception | str) -> None:
        self.faults += 1
        say(f"✗ {one_line(error) if isinstance(error, Exception) else error}")


def main(argv: list[str]) -> None:
    try:
        plan = build.plan(CONFIG.value) if CONFIG.value is not None else None
    except (ValueError, OSError) as error:
        fail(error)
    report = Report()
    try:
        machine(report)
        if plan is not None and not report.faults:
            examine(plan, report)
        if report.faults:
            say(f"✗ {report.faults} {'thing' if report.faults == 1 else 'things'} would stop this run")
            sys.exit(1)
        for part in report.unseen:
            say(f"? not checked: {part}, and whatever hangs on it (--load fetches and loads it)")
        say("✓ nothing found that would stop this run" if plan else "✓ ready")
    except KeyboardInterrupt:
        sys.exit(130)
    except OSError as error:  # nobody reads what is said: `doctor | head`
        fail(error)


# ---------------------------------------------------------------- the machine


def machine(report: Report) -> None:
    versions = [f"{name} {importlib.metadata.version(name)}" for name in PACKAGES]
    report.fact("specjax", f"{specjax.__version__} on Python {platform.python_version()}")
    report.fact("packages", ", ".join(versions))
    try:
        for device in jax.local_devices():
            report.fact("device", f"{device} ({device.device_kind}), {size(free_memory(device))} free")
    except RuntimeError as error:  # JAX_PLATFORMS names what is not there
        report.fault(error)
    report.fact("host", f"{os.cpu_count()} cores, {platform.machine()}, {size(host_memory('MemTotal'))} memory")
    folder = Path(jax.config.jax_compilation_cache_dir or "")
    files = list(folder.glob("*-cache")) if folder.name else []
    kept = f"{len(files)} programs, {size(sum(f.stat().st_size for f in files))} in {folder}"
    report.fact("compiled", kept if folder.name else "not kept")
    settings = {name: getattr(jax.config, f"jax_{name}") for name in ("threefry_partitionable", "enable_x64", "default_matmul_precision")}
    report.fact("settings", ", ".join(f"{name} {value}" for name, value in settings.items()))
    if not settings["threefry_partitionable"]:
        report.fault("jax_threefry_partitionable is off: draws would depend on the number of devices")


def free_memory(device) -> int:
    """Bytes that the device could still give; of a CPU, those of the host."""
    stats = device.memory_stats() or {}
    if "bytes_limit" in stats:
        return stats["bytes_limit"] - stats["bytes_in_use"]
    return host_memory("MemAvailable")


def host_memory(name: str) -> int:
    """A line of /proc/meminfo in bytes, or what the process may have where that is less; 0 where nobody says."""
    try:
        lines = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
        bytes_ = int(lines[name].split()[0]) * 1024
        group = Path("/sys/fs/cgroup")
        limit = (group / "memory.max").read_text().strip() if (group / "memory.max").exists() else "max"
        if limit == "max":
            return bytes_
        used = int((group / "memory.current").read_text()) if name == "MemAvailable" else 0
        return min(bytes_, max(int(limit) - used, 0))
    except (OSError, KeyError):
        return 0


# ---------------------------------------------------------------- a config


def examine(plan: Plan, report: Report) -> None:
    """Each part by itself, so that one fault does not hide another; then all together, where all are there."""
    sources = {(plan.target.source, plan.target.dtype): "target"}
    for arm in plan.arms:
        if isinstance(arm.weights, WITH_WEIGHTS):
            sources.setdefault((arm.weights.source, arm.weights.dtype or plan.target.dtype), "draft")
    known = {}
    for (source, dtype), role in sources.items():
        try:
            known[source, dtype] = model(role, source, dtype, report)
        except FAULTS as error:
            report.fault(f"{role}: {one_line(error)}")
    for path in {arm.weights.path: None for arm in plan.arms if isinstance(arm.weights, TrainedDraft)}:
        try:
            known[path] = trained(path, report)
        except FAULTS as error:
            report.fault(f"draft: {one_line(error)}")
    try:
        known["prompts"] = prompt_set(plan.prompts, report)
    except FAULTS as error:
        report.fault(f"prompts: {one_line(error)}")
    if report.faults or None in known.values():
        return
    try:
        together(build.load(plan, functools.partial(_known, known)), report)
    except FAULTS as error:
        report.fault(error)


def _known(known: dict, source: str, dtype: str | None, layout: specjax.Layout | None) -> specjax.LM:
    return known[source, dtype] if layout is None else specjax.place(known[source, dtype], layout)


def model(role: str, source: str, dtype: str | None, report: Report) -> specjax.LM | None:
    """A language model without weights (with --load, with them); None if it is not on this machine."""
    if LOAD.value or source.startswith("toy://"):
        loaded = specjax.load(source, dtype=dtype)
        report.fact(role, f"{source}: loaded")
    else:
        found = describe.describe(source)
        if found is None:
            report.miss(role, f"{source}: {NOT_HERE}")
            return None
        loaded = specjax.LM(*found.shapes(lm.dtype_of(dtype)), found.tokenizer, source)
        stored = ", ".join(f"{kind} ({n})" for kind, n in found.stored.items())
        report.fact(role, f"{found.path}: {size(found.size)}, {found.numbers / 1e6:.4g}M parameters in tensors of type {stored}")
    report.fact("", f"{size(nbytes(loaded.params))} in memory as {loaded.dtype.name}")
    tokenizer = loaded.tokenizer
    if tokenizer is None:
        report.fact("", "no tokenizer: prompts cannot be texts")
    else:
        chat = "a chat template" if tokenizer.has_template else "no chat template"
        report.fact("", f"tokenizer of {tokenizer.vocab_size} tokens, ends at {', '.join(map(tokenizer.token, tokenizer.eos_ids))}, {chat}")
    return loaded


def trained(path: str, report: Report) -> Path | None:
    """The folder of a trained draft; None if it is not on this machine."""
    folder = fetch.resolve(path, download=LOAD.value)
    if folder is None:
        report.miss("draft", f"{path}: {NOT_HERE}")
    else:
        report.fact("draft", f"{folder}: {size(sum(file.stat().st_size for file in hf.weight_files(folder)))}")
    return folder


def prompt_set(wanted: Prompts, report: Report) -> list | None:
    if wanted.source == "humaneval" and not LOAD.value and fetch.resolve(fetch.HUMANEVAL, download=False) is None:
        report.miss("prompts", f"{wanted.source}: {NOT_HERE}")
        return None
    found = prompts.load(wanted.source, limit=wanted.limit, categories=wanted.categories, quick=wanted.quick)
    kinds = collections.Counter(prompt.category for prompt in found)
    report.fact("prompts", f"{len(found)} from {wanted.source}: {', '.join(f'{n} {kind}' for kind, n in kinds.items())}")
    return found


def together(experiment: Experiment, report: Report) -> None:
    """What only all parts together decide: S, caches, programs, memory."""
    plan, setups = experiment.plan, {arm.name: arm.decoder.setup for arm in experiment.arms}
    if any(isinstance(arm.weights, (*WITH_WEIGHTS, TrainedDraft)) for arm in plan.arms):
        report.fact("vocabulary", "drafts and target agree")
    longest = max(len(e.tokens) for e in experiment.prompts)
    report.fact("S", f"{experiment.size} slots: a prompt of up to {longest} tokens, {plan.max_new_tokens} new ones, the widest rung")
    states = []
    for program in look.programs(experiment):
        more = f" and {len(program.arms) - 3} more" if len(program.arms) > 3 else ""
        text = f"{program.phase} of {', '.join(program.arms[:3])}{more}"
        if program.phase == "decode":
            state, rungs = program.inputs[2], " ".join(map(str, setups[program.arms[0]].ladder))
            states.append(nbytes(state))
            text += f": rungs {rungs}, cache {size(nbytes(state.cache))}, the drafter's {size(nbytes(state.drafter))}"
        report.fact("program", text)
    held = {id(leaf): leaf for leaf in jax.tree.leaves([experiment.target.params, [s.drafter.params for s in setups.values()]])}
    needs = max(states) + (0 if LOAD.value else nbytes(list(held.values())))
    free = free_memory(jax.local_devices()[0])
    what = "caches and traces" if LOAD.value else "weights, caches and traces"
    report.fact("memory", f"{size(needs)} for {what} of {plan.batch} rows, {size(free)} free")
    if free and needs > free:
        report.fault(f"this run needs {size(needs)} of memory, and {size(free)} are free: take a smaller batch, model or dtype")


if __name__ == "__main__":
    command.settle_jax()
    app.run(main, flags_parser=command.parse_flags)
