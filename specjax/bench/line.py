"""One line of records.jsonl: what it holds, and how it is made from what an arm decoded. Fields are defined in docs/metrics.md."""

from __future__ import annotations

import dataclasses
import functools
import math
import zlib

import numpy as np

from specjax import Output
from specjax.bench.plan import Task
from specjax.bench.schema import make

ENDED = ("eos", "stop", "length", "nonfinite")  # how a row may have finished; see specjax.state
SCHEMA = 3  # of a line of records.jsonl and of the summary; another number means that a field changed its meaning


@dataclasses.dataclass(frozen=True)
class Counts:
    tokens: int
    passes: int
    drafted: int
    accepted: int
    rejected: int
    cut: int
    judged: int


@dataclasses.dataclass(frozen=True)
class Rounds:
    drafted: tuple[int, ...]
    accepted: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Seconds:
    prefill: float | None
    decode: float


@dataclasses.dataclass(frozen=True)
class Price:
    kl_sum: float | None
    kl_infinite: int


@dataclasses.dataclass(frozen=True)
class Line:
    """The fields of a line of records.jsonl."""

    schema: int
    arm: str
    question_id: str | int
    category: str
    prompt_id: int
    sample: int
    repeat: int
    turn: int
    prompt_tokens: int
    token_ids: tuple[int, ...]
    text: str | None
    finish: str
    counts: Counts
    overlap_sum: float | None
    expected_sum: float | None
    rounds: Rounds
    seconds: Seconds
    peak_memory_bytes: int
    trace: str
    logprobs: tuple[float | None, ...] | None = None
    price: Price | None = None


def checked(row: dict, where: str) -> dict:
    """A record as it is, if its fields are those of `Line`."""
    if row.get("schema") != SCHEMA:
        raise ValueError(f"{where}: schema={row.get('schema')!r}, but this version reads {SCHEMA}: name another folder")
    parts = {"counts": Counts, "rounds": Rounds, "seconds": Seconds, "price": Price}
    made = make(Line, row, f"{where}: record", **{name: functools.partial(make, cls) for name, cls in parts.items()})
    if not len(made.rounds.drafted) == len(made.rounds.accepted) >= 1:
        raise ValueError(f"{where}: record.rounds={row['rounds']} must be two lists of one length, of at least 1")
    if fault := next((what for what, right in _sums(made).items() if not right), None):
        raise ValueError(f"{where}: record is damaged: {fault}: delete the line, and it is decoded again")
    return row


def _sums(made: Line) -> dict[str, bool]:
    """What holds in every record, and whether it does here."""
    counts, (drafted, accepted) = made.counts, dataclasses.astuple(made.rounds)
    return {
        "counts.tokens should be the number of token_ids, each at least 0": counts.tokens == len(made.token_ids)
        and min(made.token_ids, default=0) >= 0,
        "counts.passes should be the number of rounds": counts.passes == len(drafted),
        "rounds.accepted should be from 0 to rounds.drafted": all(0 <= a <= d for a, d in zip(accepted, drafted, strict=True)),
        "counts should be at least 0": min(dataclasses.astuple(counts)) >= 0,
        "counts.drafted should be the sum of rounds.drafted": counts.drafted == sum(drafted),
        "counts.accepted + cut should be the sum of rounds.accepted": counts.accepted + counts.cut == sum(accepted),
        "counts.drafted should be accepted + rejected + cut": counts.drafted == counts.accepted + counts.rejected + counts.cut,
        "logprobs should be one for each of token_ids": made.logprobs is None or len(made.logprobs) == len(made.token_ids),
        f"finish should be one of {', '.join(ENDED)}": made.finish in ENDED,
        "price should be at least 0": made.price is None or min(made.price.kl_sum or 0, made.price.kl_infinite) >= 0,
        "prompt_tokens should be at least 1": made.prompt_tokens >= 1,
        "seconds.decode should be above 0": 0 < made.seconds.decode < math.inf,
    }


def key(record: dict) -> tuple:
    """What a record is about, as `Task.key`: no two of a run have the same."""
    return record["arm"], str(record["question_id"]), record["sample"], record["repeat"], record["turn"]


def record(task: Task, prompt_tokens: int, output: Output, row: int, seconds: dict, peak: int) -> tuple[dict, object]:
    """(record, trace) of one row of an output. prompt_tokens: of this turn. seconds: of each phase, this row's share."""
    rounds = int(output.counts["passes"][row])
    trace = type(output.trace)(*(x if x is None else x[row, :rounds] for x in output.trace))
    judged = judged_places(trace)
    counts = {name: int(count[row]) for name, count in output.counts.items()}
    line = {
        **named(task),
        "prompt_tokens": prompt_tokens,
        "token_ids": output.token_ids[row],
        "text": output.texts and output.texts[row],
        "finish": output.finish_reasons[row],
        "counts": {**counts, "judged": int(judged.sum())},
        "overlap_sum": finite(trace.overlap_BNM[judged].sum()),
        "expected_sum": finite(trace.expected_BN.sum()),
        "rounds": {"drafted": trace.drafted_BN.tolist(), "accepted": accepted(trace).tolist()},
        "seconds": seconds,
        "peak_memory_bytes": peak,
    }
    if output.logprobs is not None:
        line["logprobs"] = [finite(x) for x in output.logprobs[row]]
    if trace.kl_BNM is not None:
        line["price"] = price(trace)
    return line, trace


def named(task: Task) -> dict:
    """The fields of a record that its task decides."""
    prompt = task.encoded.prompt
    return {
        "schema": SCHEMA,
        "arm": task.arm.name,
        "question_id": prompt.question_id,
        "category": prompt.category,
        "prompt_id": task.id,
        "sample": task.sample,
        "repeat": task.repeat,
        "turn": task.turn,
        "trace": f"traces/{slug(task.arm.name)}.{prompt.id:08x}.{task.sample}.{task.repeat}.{task.turn}.npz",
    }


def finite(number) -> float | None:
    """A number for JSON; None for NaN and infinity, which a draft model that overflows can bring into the laws."""
    return float(number) if np.isfinite(number) else None


def judged_places(trace) -> np.ndarray:
    """bool [N, M]: nodes whose drafted children the rule looked at, so all before the first refusal and that one."""
    node = np.arange(trace.overlap_BNM.shape[1])
    if trace.up_BNM is None:
        return (node < trace.drafted_BN[:, None]) & (node <= trace.stop_BN[:, None])
    parents = np.zeros_like(trace.up_BNM, bool)
    round_, child = np.nonzero(trace.up_BNM)
    parents[round_, child - trace.up_BNM[round_, child]] = True
    return parents & _on_path(trace)


def accepted(trace) -> np.ndarray:
    """[N]: drafts that the rule accepted in each round, the depth of the node where it ended."""
    return trace.stop_BN if trace.up_BNM is None else _on_path(trace).sum(1) - 1


def _on_path(trace) -> np.ndarray:
    """bool [N, M]: the nodes from the root to where each round of trees ended."""
    on, at, rounds = np.zeros_like(trace.up_BNM, bool), trace.stop_BN.copy(), np.arange(len(trace.stop_BN))
    for _ in range(on.shape[1]):
        on[rounds, at] = True
        at = at - trace.up_BNM[rounds, at]
    return on


def price(trace) -> dict:
    """KL(m || p) over the places of committed tokens: their sum where it is finite, and at how many it is not."""
    kl = trace.kl_BNM[np.arange(trace.kl_BNM.shape[1]) < trace.committed_BN[:, None]]
    return {"kl_sum": finite(kl[~np.isinf(kl)].sum()), "kl_infinite": int(np.isinf(kl).sum())}


def slug(name: str) -> str:
    """A name as part of a file's name; what letters do not keep apart, the hex of the others does. A long one ends in its crc32."""
    slug = "".join(c if c.isalnum() or c in "-=" else f"_{ord(c):x}_" if c != " " else "_" for c in name)
    return slug if len(slug.encode()) <= 120 else f"{slug[:30]}.{zlib.crc32(name.encode()):08x}"
