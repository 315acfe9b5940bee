"""Prompts: JSON lines in Spec-Bench's fields, plain text with one prompt a line, our own set, or HumanEval.

A line of JSON has `turns` (a list of strings) or, for one turn, `prompt` or `text`; `question_id` (default: the line's
number) and `category` (default: the file's name) may be left out, other fields are ignored. The set that ships with the
package is `own`: ten prompts in each of six categories, of which two a category are marked `"quick": true`.
"""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from specjax.models.load.fields import parse

REWRITE = "Rewrite this Python function with type hints for all parameters and the return value. Return only the code."
OWN = Path(__file__).with_name("own.jsonl")


class Prompt(NamedTuple):
    id: int  # crc32 of str(question_id): the output's randomness hangs on it, so it may not depend on place or file
    question_id: str | int
    category: str
    turns: tuple[str, ...]


def load(
    source: str | Path = "own",
    *,
    limit: int | None = None,
    categories: Collection[str] | None = None,
    quick: bool = False,
) -> list[Prompt]:
    """The prompts of 'own', 'humaneval', or a .jsonl or .txt file, in the file's order.

    categories keeps those named, quick those marked so, limit the first of what is left. Raises ValueError, with
    file and line where there is one, on a line that is no prompt, on an id used twice, and if nothing is left.
    """
    if limit is not None and limit < 1:
        raise ValueError(f"limit={limit} must be at least 1, or None for all prompts")
    path, rows = _rows(source)
    entries = [(number, _prompt(row, number, path), row.get("quick") is True) for number, row in rows]
    _refuse_shared_ids(entries, path)
    known = list(dict.fromkeys(p.category for _, p, _ in entries))
    if categories is not None and not (isinstance(categories, Collection) and all(c in known for c in categories)):
        raise ValueError(f"categories={categories!r} must be a list of some of {', '.join(known)} ({path.name})")
    wanted = known if categories is None else categories
    kept = [p for _, p, marked in entries if p.category in wanted and (marked or not quick)]
    if not kept:
        raise ValueError(f"{path}: no prompt" + (' is marked "quick": true (quick=False keeps all)' if quick and entries else " is left"))
    return kept[:limit]


def _refuse_shared_ids(entries: list[tuple[int, Prompt, bool]], path: Path) -> None:
    line_of: dict[int, int] = {}
    for number, prompt, _ in entries:
        if (first := line_of.setdefault(prompt.id, number)) != number:
            raise ValueError(f"{path}:{number}: question_id {prompt.question_id!r} has the id (crc32) of line {first}")


def _rows(source: str | Path) -> tuple[Path, Iterator[tuple[int, dict[str, Any]]]]:
    """Path of the source, and its rows as (line number from 1, fields)."""
    if source == "humaneval":
        from specjax.models.load.fetch import HUMANEVAL, resolve

        path = resolve(HUMANEVAL)
        return path, ((n, _rewrite(row)) for n, row in _json(path, _unpacked(path)))
    path = OWN if source == "own" else Path(source)
    if path.suffix not in (".jsonl", ".txt"):
        raise ValueError(f"prompts={str(source)!r} must be 'own', 'humaneval', or a file that ends in .jsonl or .txt")
    if path.suffix == ".jsonl":
        return path, _json(path, _read(path))
    return path, ((n, {"text": text}) for n, text in _lines(path, _read(path)))


def _read(path: Path) -> bytes:
    try:
        if path.is_file():
            return path.read_bytes()
    except OSError as error:  # a closed file, a name too long
        raise ValueError(f"prompts={str(path)!r} cannot be read: {error.strerror}") from None
    raise ValueError(f"prompts={str(path)!r}: there is no such file")


def _unpacked(path: Path) -> bytes:
    try:
        return gzip.decompress(_read(path))
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"{path} is damaged ({error}): delete it, and it is fetched again") from None


def _lines(path: Path, data: bytes) -> Iterator[tuple[int, str]]:
    """Lines that are not blank, numbered. Split as bytes: str.splitlines also splits at characters inside a text."""
    for number, line in enumerate(data.removeprefix(b"\xef\xbb\xbf").split(b"\n"), start=1):
        try:
            text = line.decode("utf-8").strip()
        except UnicodeDecodeError as error:
            raise ValueError(f"{path}:{number}: not UTF-8 at byte {error.start} of the line") from None
        if text:
            yield number, text


def _json(path: Path, data: bytes) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, text in _lines(path, data):
        yield number, parse(text, f"{path}:{number}")


def _prompt(row: dict[str, Any], number: int, path: Path) -> Prompt:
    where = f"{path}:{number}"
    fields = [name for name in ("turns", "prompt", "text") if name in row]
    if len(fields) != 1:
        raise ValueError(f"{where}: exactly one of turns, prompt, text is needed, found {', '.join(fields) or 'none'}")
    turns = row["turns"] if fields == ["turns"] else [row[fields[0]]]
    if not isinstance(turns, list) or not turns or not all(isinstance(t, str) and t.strip() for t in turns):
        want = "a list of strings" if fields == ["turns"] else "a string"
        raise ValueError(f"{where}: {fields[0]}={row[fields[0]]!r} must be {want}, none empty")
    name, category = row.get("question_id", number), row.get("category", path.stem)
    if isinstance(name, bool) or not isinstance(name, str | int) or name == "":
        raise ValueError(f"{where}: question_id={name!r} must be a string or an integer")
    if not isinstance(category, str) or not category:
        raise ValueError(f"{where}: category={category!r} must be a string")
    if half := re.search("[\ud800-\udfff]", "".join([str(name), category, *turns])):
        raise ValueError(f"{where}: {half[0]!r} is half a surrogate pair, and no character")
    return Prompt(zlib.crc32(str(name).encode()), name, category, tuple(turns))


def _rewrite(problem: dict[str, Any]) -> dict[str, Any]:
    """One HumanEval problem as an editing task, whose answer repeats most of what it was given."""
    code = (problem["prompt"] + problem["canonical_solution"]).strip()
    turn = f"{REWRITE}\n\n```python\n{code}\n```"
    return {"question_id": problem["task_id"], "category": "humaneval", "turns": [turn]}
