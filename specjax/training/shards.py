"""A folder of shards, with an index.json that says what each holds and what was dropped on the way.

A *text* is token ids and a mask, both of its length: whether a token is one that the draft should learn to say. An npz shard holds its
texts end to end:

    token  int32 [X]     mask  bool [X]     start  int64 [N + 1]: where each text begins, and where the last one ends
    key    uint64 [N, 2]: by which the same text is known again, see `specjax.training.filters`

A shard appears whole or not at all, and its line in the index after it. A process that is killed loses at most the shard in work; the
next one goes on at the first that the index lacks and makes the same bytes: shard n hangs on the settings and n, and on the shards before
it only where it leaves out what they hold. Nothing is synced to the disk: a machine that loses its power can leave a damaged shard.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import time
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np
from filelock import FileLock, Timeout

from specjax import LM, processes
from specjax.models.load import fields


class Text(NamedTuple):
    token: Sequence[int]
    mask: Sequence[bool]
    key: tuple[int, int]


def made_by(name: str, settings: dict, target: LM) -> dict:
    """What all shards of a folder hang on, as JSON: a folder that was made by anything else is refused."""
    return json.loads(json.dumps({"name": name, **settings, "target": weights(target), "dtype": str(target.dtype)}))


def weights(target: LM) -> str:
    """By which a target is known again."""
    return target.sha256 or target.source


def made(path: str | Path) -> dict:
    """What the shards of a folder hang on, as its index says; empty where there is none."""
    return (_index(Path(path)) or {}).get("made", {})


class Folder:
    """Shards and their index. made: see `made_by`."""

    def __init__(self, path: str | Path, made: dict):
        self.path, self.made = Path(path), made

    @property
    def fingerprint(self) -> str:
        return hashlib.sha256(json.dumps(self.made, sort_keys=True).encode()).hexdigest()

    def entries(self) -> list[dict]:
        """One a shard that is there.

        Raises:
          ValueError: the folder was made by other settings, or holds shards without an index.
        """
        index = _index(self.path)
        if index is None:
            if {file.stem for file in self.path.glob("*.np?")} - {_name(0, "")}:  # the first may be there, of a process that was killed
                raise ValueError(f"{self.path} holds shards without an index.json: name another folder")
            return []
        if index["fingerprint"] != self.fingerprint:
            there = index["made"]
            other = ", ".join(k for k in {**self.made, **there} if there.get(k) != self.made.get(k))
            raise ValueError(f"{self.path} holds data of other settings (other {other}): name another folder")
        return index["shards"]

    def seen(self, count: int) -> Path:
        """Where the shards are; ValueError in every process if one of them does not see what process 0 made."""

        def look():
            if len(self.entries()) < count:
                raise ValueError(f"{self.path} lacks what process 0 made there: name a folder that all processes see")

        processes.agreed(look)
        return self.path

    def add(self, entries: list[dict], suffix: str, save: Callable[[BinaryIO], None], **said) -> None:
        """Write the next shard, and then the index; `entries` gains its line."""
        name = _name(len(entries), suffix)
        part = self.path / f".{name}.part"
        with open(part, "wb") as file:
            save(file)
        part.replace(self.path / name)
        entries.append({"name": name, **said})
        part = self.path / ".index.json.part"
        index = {"fingerprint": self.fingerprint, "made": self.made, "shards": entries}
        part.write_text(json.dumps(index, indent=1, allow_nan=False) + "\n", encoding="utf-8")
        part.replace(self.path / "index.json")

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Nobody else writes here meanwhile. The lock dies with the process that holds it."""
        self.path.mkdir(parents=True, exist_ok=True)
        try:
            with FileLock(self.path / ".lock", timeout=0):
                yield
        except Timeout:
            raise BlockingIOError(f"{self.path} is in use by another process: wait for it, or name another folder") from None


def make(folder: Folder, count: int, one: Callable[[int, set[int]], tuple[list[Text], Counter]], progress: Callable[[str], None]) -> Path:
    """Make the shards that are missing of the first `count`, and say a line about each.

    one: (n, keys of the shards before) -> (texts of shard n, what was dropped by reason).
    """
    processes.first(lambda: _make(folder, count, one, progress))
    return folder.seen(count)


def _make(folder: Folder, count: int, one: Callable, progress: Callable[[str], None]) -> None:
    with folder.locked():
        entries = folder.entries()
        seen = {key for entry in entries for key in _load(folder.path / entry["name"])["key"].ravel().tolist()}
        for n in range(len(entries), count):
            began = time.perf_counter()
            texts, dropped = one(n, seen)
            seen.update(key for text in texts for key in text.key)
            said = {
                "texts": len(texts),
                "tokens": sum(len(text.token) for text in texts),
                "learnt": sum(map(sum, (text.mask for text in texts))),
                "dropped": dict(sorted(dropped.items())),
            }
            folder.add(entries, ".npz", lambda file, texts=texts: save(file, texts), **said)
            progress(_line(folder.made["name"], n, count, said, time.perf_counter() - began))


def _line(name: str, n: int, count: int, said: dict, seconds: float) -> str:
    dropped = ", ".join(f"{number} {reason}" for reason, number in said["dropped"].items()) or "none"
    rate = f"{said['learnt'] / seconds:.0f} a second"
    return f"{name} {n + 1}/{count}: {said['texts']} texts, {said['tokens']} tokens, {said['learnt']} to learn, {rate}; dropped: {dropped}"


def save(file: BinaryIO, texts: Sequence[Text]) -> None:
    start = np.cumsum([0, *(len(text.token) for text in texts)], dtype=np.int64)
    flat = lambda name, dtype: np.concatenate([np.zeros(0, dtype), *(np.asarray(getattr(text, name), dtype) for text in texts)])
    key = np.asarray([text.key for text in texts], np.uint64).reshape(-1, 2)
    np.savez_compressed(file, token=flat("token", np.int32), mask=flat("mask", bool), start=start, key=key)


def read(path: str | Path, count: int | None = None) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """(token, mask) of every text of a folder's first `count` shards (None: all), in the order of the index, or of the names where there
    is none.

    Raises:
      ValueError: no shard is there, or one is damaged; names it.
    """
    path, index = Path(path), _index(Path(path))
    names = sorted(p.name for p in path.glob("*.npz")) if index is None else [entry["name"] for entry in index["shards"]]
    if not names:
        raise ValueError(f"{path} holds no shards: it should be a folder of .npz files")
    for name in names[:count]:
        shard = _load(path / name)
        for begin, end in zip(shard["start"][:-1], shard["start"][1:], strict=True):
            yield shard["token"][begin:end], shard["mask"][begin:end]


def _name(n: int, suffix: str) -> str:
    return f"{n:05d}{suffix}"


def _index(path: Path) -> dict | None:
    file = path / "index.json"
    return fields.parse(file.read_bytes(), str(file)) if file.exists() else None


def _load(file: Path) -> dict[str, np.ndarray]:
    try:
        with np.load(file) as shard:
            return dict(shard)
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise ValueError(f"{file} is missing or damaged ({error}): delete the folder, or take it out of index.json") from None
