"""The folder of a run, see docs/metrics.md: config.json, manifest.json, records.jsonl, traces/*.npz, summary.json.

Records are written as they come and never changed; the other files appear whole or not at all. A run that was stopped goes on
at the first record that is missing, even one that was killed while it wrote: what a process has handed to the system survives it.
Nothing is synced to the disk, so that a machine that loses its power can lose the last seconds, or leave a damaged file, which is named.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from specjax import processes
from specjax.bench.line import checked, key
from specjax.bench.plan import Task
from specjax.models.load import fields


class Workdir:
    """One run's folder. Of several processes the first alone reads and writes it."""

    def __init__(self, path: str | os.PathLike):
        self.path = Path(path)

    @processes.of_first
    def check(self, config: dict) -> None:
        """Raises ValueError or OSError if this run cannot live here: says why before anything is loaded."""
        nearest = next(path for path in (self.path, *self.path.absolute().parents) if path.exists())
        if not nearest.is_dir():
            raise ValueError(f"{self} cannot be a folder: {nearest} is a file")
        if not os.access(nearest, os.W_OK):
            raise PermissionError(f"{self} cannot be written: {nearest} is read-only")
        if (self.path / ".lock").exists():
            with self.locked():
                pass
        self.check_config(config)

    @processes.of_first
    def check_config(self, config: dict) -> None:
        """Raises ValueError if another run lives here."""
        there, config = self.read("config.json"), json.loads(json.dumps(config))
        if there is None and (self.path / "records.jsonl").exists():
            raise ValueError(f"{self} holds records of a run without its config.json: name another folder")
        if there is not None and there != config:
            keys = ", ".join(key for key in {**config, **there} if there.get(key) != config.get(key))
            raise ValueError(f"{self} holds a run of another config (other {keys}): name another folder")

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Nobody else writes here meanwhile. The lock dies with the process that holds it.

        Raises:
          OSError: another process is at work here, or the folder cannot be made.
        """
        with contextlib.ExitStack() as held:
            processes.first(lambda: held.enter_context(self._held()))
            yield

    @contextlib.contextmanager
    def _held(self) -> Iterator[None]:
        self.path.mkdir(parents=True, exist_ok=True)
        with open(self.path / ".lock", "a") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise BlockingIOError(f"{self} is in use by another process: wait for it, or name another folder") from None
            yield

    @processes.of_first
    def create(self, config: dict) -> None:
        (self.path / "traces").mkdir(parents=True, exist_ok=True)
        self.write("config.json", config)
        self._drop_half_line()

    @processes.of_first
    def read(self, name: str) -> dict | None:
        """A JSON file of this folder, None if it is not there."""
        path = self.path / name
        return fields.parse(path.read_bytes(), str(path)) if path.exists() else None

    @processes.of_first
    def write(self, name: str, content: dict) -> None:
        """Write a JSON file whole."""
        part = self.path / f".{name}.part"
        part.write_text(json.dumps(content, indent=1, allow_nan=False) + "\n", encoding="utf-8")
        part.replace(self.path / name)

    @processes.of_first
    def append(self, record: dict, trace) -> None:
        """One finished record: first its trace (`Trace` of one row), then its line."""
        self.save_trace(record, trace)
        with open(self.path / "records.jsonl", "a", encoding="utf-8") as file:
            file.write(json.dumps(record, allow_nan=False) + "\n")

    @processes.of_first
    def save_trace(self, record: dict, trace) -> None:
        part = self.path / "traces" / ".part.npz"
        np.savez_compressed(part, **{name: x for name, x in trace._asdict().items() if x is not None})
        part.replace(self.path / record["trace"])

    def has_trace(self, record: dict) -> bool:
        return zipfile.is_zipfile(self.path / record["trace"])  # looks at the end, where a file that was cut off has nothing

    def records(self) -> Iterator[dict]:
        """Every line, in the order in which they were finished; the half line of a run that was killed is left out.

        Raises:
          ValueError: a line is no record of this version, or the second of its kind; names the file and the line.
        """
        return iter(processes.first(lambda: list(self._records())))

    def _records(self) -> Iterator[dict]:
        path, seen = self.path / "records.jsonl", set()
        if path.exists():
            with open(path, "rb") as file:
                for number, line in enumerate(file, start=1):
                    if not line.endswith(b"\n"):
                        return
                    row = checked(fields.parse(line, f"{path}:{number}"), f"{path}:{number}")
                    if key(row) in seen:
                        raise ValueError(f"{path}:{number}: a second record of {key(row)}: delete one of them")
                    seen.add(key(row))
                    yield row

    def _drop_half_line(self):
        """What a killed run had not finished writing."""
        path = self.path / "records.jsonl"
        if path.exists() and not (data := path.read_bytes()).endswith(b"\n"):
            os.truncate(path, data.rfind(b"\n") + 1)

    def __str__(self):
        return f"workdir={str(self.path)!r}"


class Kept:
    """The records of a folder while a run goes on: which are there, and what was answered."""

    def __init__(self, workdir: Workdir):
        rows = list(workdir.records())
        self.workdir = workdir
        self.answers = {key(r): r["text"] for r in rows}
        self.traced = processes.first(lambda: {key(r) for r in rows if workdir.has_trace(r)})

    def lacks(self, task: Task) -> bool:
        return task.key not in self.traced

    def keep(self, task: Task, line: dict, trace) -> None:
        """Write what is not there yet; a record whose trace was lost gets it again."""
        if task.key not in self.answers:
            self.workdir.append(line, trace)
        elif self.lacks(task):
            if self.answers[task.key] != line["text"]:
                raise RuntimeError(
                    f"{self.workdir}: the record of {task.key} has lost its trace, and now says something else: delete its line"
                )
            self.workdir.save_trace(line, trace)
        self.answers[task.key] = line["text"]
        self.traced.add(task.key)
