"""What a compiled program says of itself: memory, arithmetic, and what its devices send to each other.

Read from XLA's own accounts, for one device. A loop's body is counted once, as nobody knows how often it turns.
"""

from __future__ import annotations

import collections
import math
import re
from typing import NamedTuple

import jax

COLLECTIVES = "all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute", "ragged-all-to-all"
_SENDS = re.compile(rf"= (.*?) ({'|'.join(COLLECTIVES)})(?:-start)?\(")
_ARRAY = re.compile(r"\b([a-z]+\d*(?:e\dm\d\w*)?)\[([\d,]*)\]")
_NEEDS = re.compile(r"Used ([\d.]+[BKMGT]) of ([\d.]+[BKMGT]) hbm|\(([\d.]+[BKMGT])\) exceeds available HBM \(([\d.]+[BKMGT])\)")
BITS = {"pred": 8, "s4": 4, "u4": 4, "f8e4m3fn": 8, "f8e5m2": 8, "bf16": 16}


# Some that begin and end apart have more in their result than what comes out: what goes in before it, or flags behind it.
STARTED = {"all-gather": lambda arrays: arrays[len(arrays) // 2 :], "collective-permute": lambda arrays: arrays[1:2]}


class Sent(NamedTuple):
    """Of one kind of collective: how many stand in the program, bytes of all their results on a device, the most numbers in one."""

    count: int
    bytes: int
    largest: int


class Compiled(NamedTuple):
    """arguments, results, temporary, code: bytes on a device; aliased: of the results, what lies in an argument's place. flops:
    of a device. seconds: XLA's own estimate, where it gives one. loops: while loops."""

    arguments: int
    results: int
    aliased: int
    temporary: int
    code: int
    flops: float
    seconds: float | None
    sent: dict[str, Sent]
    loops: int

    @property
    def total(self) -> int:
        """Bytes on a device while it runs."""
        return self.arguments + self.results - self.aliased + self.temporary + self.code


def read(program) -> Compiled:
    """program: what `jax.jit(f).lower(...).compile()` gives."""
    memory, costs, text = program.memory_analysis(), program.cost_analysis(), program.as_text()
    loops = len(re.findall(r" while\(", text))
    seconds = costs.get("optimal_seconds", -1.0)
    return Compiled(
        arguments=memory.argument_size_in_bytes,
        results=memory.output_size_in_bytes,
        aliased=memory.alias_size_in_bytes,
        temporary=memory.temp_size_in_bytes,
        code=memory.generated_code_size_in_bytes,
        flops=costs["flops"],
        seconds=seconds if seconds > 0 and not loops else None,  # of a program with loops it is below zero, or means nothing
        sent=collectives(text),
        loops=loops,
    )


def collectives(text: str) -> dict[str, Sent]:
    """By kind, of a program's optimized text."""
    found = collections.defaultdict(lambda: Sent(0, 0, 0))
    for line in text.splitlines():
        if sends := _SENDS.search(line):
            before, arrays = found[sends[2]], [(_bits(kind), _numbers(shape)) for kind, shape in _ARRAY.findall(sends[1])]
            if f"{sends[2]}-start(" in line and sends[2] in STARTED:
                arrays = STARTED[sends[2]](arrays)
            size, most = sum(bits * numbers for bits, numbers in arrays) // 8, max((numbers for _, numbers in arrays), default=0)
            found[sends[2]] = Sent(before.count + 1, before.bytes + size, max(before.largest, most))
    return dict(found)


def _bits(kind: str) -> int:
    return BITS[kind] if kind in BITS else int(re.search(r"\d+", kind)[0])


def _numbers(shape: str) -> int:
    return math.prod(int(n) for n in shape.split(",") if n)


def too_much(error: Exception) -> tuple[int, int] | None:
    """(bytes that a device would need, bytes that it has) where XLA refused a program for want of memory; else None."""
    said = _NEEDS.search(str(error))
    if said is None:
        return None
    needs, has = (int(float(size[:-1]) * 1024 ** "BKMGT".index(size[-1])) for size in said.groups() if size)
    return needs, has


def nbytes(tree) -> int:
    """Bytes that a device holds of arrays, or of what stands for them, by their shardings."""

    def one(x):
        shape = x.shape if getattr(x, "sharding", None) is None else x.sharding.shard_shape(x.shape)
        return math.prod(shape) * x.dtype.itemsize

    return sum(one(x) for x in jax.tree.leaves(tree) if hasattr(x, "dtype"))
