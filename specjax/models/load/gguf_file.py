"""A GGUF file (llama.cpp's format) as it lies on disk: named fields, then named tensors, which are dequantised when they are read.

The package `gguf` reads such files too, but believes their headers: a length of 2 ** 60 makes it loop until memory ends. Here every
length is compared with what the file still holds before anything is made of it. https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import math
import reprlib
import struct
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize

TYPES = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K")
NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}  # kind -> struct's letter
STRING, ARRAY = 8, 9
MOST_ENTRIES = 2**22  # of an array: ten times the longest list of merges there is


class Stored(NamedTuple):
    """Where a tensor lies, and how."""

    shape: tuple[int, ...]  # NumPy's order: the file has the last axis first
    kind: GGMLQuantizationType
    offset: int  # bytes, from the start of the file
    size: int  # bytes

    @property
    def bytes_shape(self) -> tuple[int, ...]:
        return (*self.shape[:-1], self.size // math.prod(self.shape[:-1]))


class File:
    """An open GGUF file. ValueError, in one line, if it is none, is cut short, or says what cannot be."""

    def __init__(self, path: Path):
        try:
            self._data = np.memmap(path, np.uint8, "r")
        except OSError as error:
            raise ValueError(f"the file cannot be read: {error.strerror}") from None
        except ValueError as error:  # nothing can be mapped of an empty file
            raise ValueError(f"not a whole GGUF file: {error}") from None
        cursor = _Cursor(self._data)
        if bytes(cursor.take(4)) != b"GGUF":
            raise ValueError("not a GGUF file: it does not begin with the letters GGUF")
        if (version := cursor.number("I")) not in (2, 3):  # a file for machines of the other byte order has another version too
            raise ValueError(f"GGUF version {version} is not supported; supported: 2, 3")
        tensor_count, field_count = cursor.number("Q"), cursor.number("Q")
        self.fields: dict[str, Any] = _fields(cursor, field_count)
        if (parts := self.get("split.count", 1)) != 1:
            raise ValueError(f"split.count={parts!r}: split files are not supported: join them first")
        self.tensors: dict[str, Stored] = _tensors(cursor, tensor_count, self.get("general.alignment", 32))

    def get(self, key: str, default: Any = None) -> Any:
        return self.fields.get(key, default)

    def read(self, name: str) -> np.ndarray:
        """A tensor as floats."""
        stored = self.tensors[name]
        raw = self._data[stored.offset : stored.offset + stored.size].reshape(stored.bytes_shape)
        with np.errstate(all="ignore"):  # the scale of a damaged block may be NaN: whoever reads the tensor looks for it
            return dequantize(raw, stored.kind)


class _Cursor:
    """A place in the file that never passes its end, whatever a length in it says."""

    def __init__(self, data: np.ndarray):
        self._data, self.at, self.end = memoryview(data), 0, data.size

    def take(self, count: int) -> memoryview:
        if count > self.end - self.at:
            raise ValueError(f"not a whole GGUF file: {count} bytes are declared at byte {self.at}, but it has only {self.end}")
        self.at += count
        return self._data[self.at - count : self.at]

    def number(self, letter: str) -> int | float | bool:
        return self.numbers(letter, 1)[0]

    def numbers(self, letter: str, count: int) -> tuple:
        return struct.unpack(f"<{count}{letter}", self.take(count * struct.calcsize("<" + letter)))

    def text(self) -> str:
        start = self.at
        try:
            return str(self.take(self.number("Q")), "utf-8")
        except UnicodeDecodeError:
            raise ValueError(f"not a whole GGUF file: the text at byte {start} is not UTF-8") from None

    def value(self, kind: int) -> Any:
        if kind == STRING:
            return self.text()
        if kind == ARRAY:
            return self._array(self.number("I"), self.number("Q"))
        if kind not in NUMBERS:
            raise ValueError(f"not a whole GGUF file: a value of kind {kind} at byte {self.at}")
        return self.number(NUMBERS[kind])

    def _array(self, kind: int, count: int) -> list:
        if kind not in (*NUMBERS, STRING):
            raise ValueError(f"not a whole GGUF file: a list of values of kind {kind} at byte {self.at}")
        if count > MOST_ENTRIES:
            raise ValueError(f"not a whole GGUF file: a list of {count} values at byte {self.at}, at most {MOST_ENTRIES} are read")
        return [self.text() for _ in range(count)] if kind == STRING else list(self.numbers(NUMBERS[kind], count))


def _fields(cursor: _Cursor, count: int) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for _ in range(count):
        key = cursor.text()
        if key in fields:
            raise ValueError(f"field {reprlib.repr(key)} stands twice in the file")
        fields[key] = cursor.value(cursor.number("I"))
    return fields


def _tensors(cursor: _Cursor, count: int, alignment: Any) -> dict[str, Stored]:
    """Tensors by name. They lie one after the other, each at a multiple of `alignment`, as llama.cpp demands too."""
    if type(alignment) is not int or not 0 < alignment <= 2**16 or alignment & (alignment - 1):
        raise ValueError(f"general.alignment={reprlib.repr(alignment)} should be a power of two")
    declared: dict[str, tuple] = {}
    for _ in range(count):
        name = cursor.text()
        if name in declared:
            raise ValueError(f"tensor {reprlib.repr(name)} stands twice in the file")
        declared[name] = _declaration(cursor, name)
    place = start = _padded(cursor.at, alignment)
    tensors = {}
    for name, (shape, kind, size, offset) in declared.items():
        if start + offset != place or place + size > cursor.end:
            where = f"{size} bytes at {start + offset}, should be at {place} of {cursor.end}"
            raise ValueError(f"not a whole GGUF file: tensor {reprlib.repr(name)} has {where}")
        tensors[name] = Stored(shape, kind, place, size)
        place = _padded(place + size, alignment)
    return tensors


def _declaration(cursor: _Cursor, name: str) -> tuple:
    """(shape, kind, bytes, offset) of one tensor."""
    if not 1 <= (axes := cursor.number("I")) <= 4:
        raise ValueError(f"tensor {reprlib.repr(name)} has {axes} axes, should have 1 to 4")
    shape = cursor.numbers("Q", axes)[::-1]
    known = {kind.value: kind for kind in GGMLQuantizationType}
    kind = known.get(number := cursor.number("I"))
    if kind is None or kind.name not in TYPES:
        found = f"number {number}" if kind is None else kind.name
        raise ValueError(f"tensor {reprlib.repr(name)} has type {found}, which is not supported; supported: {', '.join(TYPES)}")
    block, block_bytes = GGML_QUANT_SIZES[kind]
    if not math.prod(shape) or shape[-1] % block:
        raise ValueError(f"tensor {reprlib.repr(name)} has shape {list(shape)}, should be rows of whole blocks of {block} ({kind.name})")
    return shape, kind, math.prod(shape) // block * block_bytes, cursor.number("Q")


def _padded(offset: int, alignment: int) -> int:
    return -(-offset // alignment) * alignment
