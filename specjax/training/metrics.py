"""What a run says of itself: JSON lines in metrics.jsonl, and the same numbers for TensorBoard."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from tensorboardX import SummaryWriter

from specjax import processes
from specjax.models.load import fields


class Metrics:
    """The metrics of a run's folder; process 0 alone writes them. step: of the checkpoint from which it goes on, -1 without one; what was
    said after it is taken back, because it will be said again. To be closed: it is a context."""

    def __init__(self, folder: Path, step: int):
        self._path, self._board = folder / "metrics.jsonl", None
        processes.first(lambda: self._begin(folder, step))

    def _begin(self, folder: Path, step: int) -> None:
        kept = [row for row in read(folder) if row["step"] <= step]
        part = folder / ".metrics.jsonl.part"
        part.write_text("".join(map(_line, kept)), encoding="utf-8")
        part.replace(self._path)
        self._board = SummaryWriter(str(folder / "tensorboard"), purge_step=max(step + 1, 0))

    def __enter__(self):
        return self

    def __exit__(self, *why):
        if self._board:
            self._board.close()

    @processes.of_first
    def write(self, step: int, kind: str, numbers: dict) -> None:
        """One line. numbers: or lists of numbers, one a place of a draft; kind: 'train' or 'evaluate'."""
        with open(self._path, "a", encoding="utf-8") as file:
            file.write(_line({"step": step, "kind": kind, **numbers}))
        for name, value in numbers.items():
            for place, one in enumerate(value) if isinstance(value, list) else [(None, value)]:
                self._board.add_scalar(f"{kind}/{name}" + ("" if place is None else f"/{place + 1}"), one, step)
        self._board.flush()


@processes.of_first
def read(folder: Path) -> list[dict]:
    """The lines of a run; the half one of a run that was killed is left out.

    Raises:
      ValueError: a line is none of ours; says which.
    """
    return list(_rows(folder))


def _rows(folder: Path) -> Iterator[dict]:
    path = folder / "metrics.jsonl"
    for number, line in enumerate(path.read_bytes().splitlines(keepends=True) if path.exists() else (), start=1):
        if line.endswith(b"\n"):
            row = fields.parse(line, f"{path}:{number}")
            if not {"step", "kind"} <= row.keys():
                raise ValueError(f"{path}:{number}: {line[:50]!r} is no line of a training run")
            yield row


def _line(row: dict) -> str:
    return json.dumps(row, allow_nan=False) + "\n"
