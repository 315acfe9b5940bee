"""The folder of a run, see docs/metrics.md: config.json, manifest.json, records.jsonl, traces/*.npz, summary.json.

Records are written as they come and never changed; the other files appear whole or not at all. A run that was stopped goes on
at the first record that is missing.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from specjax import Output
from specjax.bench.plan import Encoded, LoadedArm
from specjax.models.load import fields

SCHEMA = 1  # of a line of records.jsonl; another number means that a field changed its meaning


class Workdir:
    """One run's folder."""

    def __init__(self, path: str | os.PathLike):
        self.path = Path(path)

    def check(self, config: dict) -> None:
        """Raises ValueError if another run lives here."""
        if self.path.exists() and not self.path.is_dir():
            raise ValueError(f"workdir={str(self.path)!r} is a file: name a folder")
        there = self.read("config.json")
        if there is not None and there != json.loads(json.dumps(config)):
            keys = ", ".join(k for k in config if there.get(k) != json.loads(json.dumps(config[k])))
            raise ValueError(f"workdir={str(self.path)!r} holds a run of another config (other {keys}): name another folder")

    def create(self, config: dict) -> None:
        (self.path / "traces").mkdir(parents=True, exist_ok=True)
        self.write("config.json", config)
        self._drop_half_line()

    def read(self, name: str) -> dict | None:
        """A JSON file of this folder, None if it is not there."""
        path = self.path / name
        return fields.parse(path.read_bytes(), str(path)) if path.exists() else None

    def write(self, name: str, content: dict) -> None:
        """Write a JSON file whole."""
        part = self.path / f".{name}.part"
        part.write_text(json.dumps(content, indent=1, allow_nan=False) + "\n", encoding="utf-8")
        part.replace(self.path / name)

    def append(self, record: dict, trace) -> None:
        """One finished record: first its trace (`Trace` of one row), then its line."""
        part = self.path / "traces" / ".part.npz"
        np.savez_compressed(part, **trace._asdict())
        part.replace(self.path / record["trace"])
        with open(self.path / "records.jsonl", "a", encoding="utf-8") as file:
            file.write(json.dumps(record, allow_nan=False) + "\n")

    def records(self) -> Iterator[dict]:
        path = self.path / "records.jsonl"
        if path.exists():
            with open(path, "rb") as file:
                for number, line in enumerate(file, start=1):
                    yield fields.parse(line, f"{path}:{number}")

    def _drop_half_line(self):
        """What a killed run had not finished writing."""
        path = self.path / "records.jsonl"
        if path.exists() and not (data := path.read_bytes()).endswith(b"\n"):
            os.truncate(path, data.rfind(b"\n") + 1)


def key(record: dict) -> tuple:
    """What a record is about: no two of a run have the same."""
    return record["arm"], str(record["question_id"]), record["repeat"]


def record(arm: LoadedArm, encoded: Encoded, repeat: int, output: Output, row: int, seconds: dict, peak: int) -> tuple[dict, object]:
    """(record, trace) of one row of an output. seconds: of each phase, this row's share."""
    rounds = int(output.counts["passes"][row])
    trace = type(output.trace)(*(x[row, :rounds] for x in output.trace))
    judged = judged_places(trace)
    counts = {name: int(count[row]) for name, count in output.counts.items()}
    prompt = encoded.prompt
    line = {
        "schema": SCHEMA,
        "arm": arm.name,
        "question_id": prompt.question_id,
        "category": prompt.category,
        "prompt_id": prompt.id,
        "repeat": repeat,
        "prompt_tokens": len(encoded.tokens),
        "token_ids": output.token_ids[row],
        "text": output.texts and output.texts[row],
        "finish": output.finish_reasons[row],
        "counts": {**counts, "judged": int(judged.sum())},
        "overlap_sum": finite(trace.overlap_BNM[judged].sum()),
        "expected_sum": finite(trace.expected_BN.sum()),
        "rounds": {"drafted": trace.drafted_BN.tolist(), "accepted": trace.stop_BN.tolist()},
        "seconds": seconds,
        "peak_memory_bytes": peak,
        "trace": f"traces/{_slug(arm.name)}.{prompt.id:08x}.{repeat}.npz",
    }
    return line, trace


def finite(number) -> float | None:
    """A number for JSON; None for NaN and infinity, which a draft model that overflows can bring into the laws."""
    return float(number) if np.isfinite(number) else None


def judged_places(trace) -> np.ndarray:
    """bool [N, M]: nodes whose drafted child the rule looked at, so all before the first refusal and that one."""
    node = np.arange(trace.overlap_BNM.shape[1])
    return (node < trace.drafted_BN[:, None]) & (node <= trace.stop_BN[:, None])


def _slug(name: str) -> str:
    """A name as part of a file's name; what letters do not keep apart, the hex of the others does."""
    return "".join(c if c.isalnum() or c in "-=" else f"_{ord(c):x}_" if c != " " else "_" for c in name)
