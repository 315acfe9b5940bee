"""GGUF files on disk: every supported type decoded as its format says, and headers that lie refused before anything is made of them."""

import struct

import gguf as ggml
import numpy as np
import pytest
from gguf.quants import quantize

from specjax.models.load.gguf_file import TYPES, File

TYPE = ggml.GGMLQuantizationType


def write(path, fields=(), tensors=()):
    """fields: (name of a method of the writer, key, value); tensors: (name, raw bytes or floats, type)."""
    writer = ggml.GGUFWriter(path, "llama")
    for method, key, value in fields:
        getattr(writer, f"add_{method}")(key, value)
    for name, data, kind in tensors:
        writer.add_tensor(name, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_fields_are_read(tmp_path):
    fields = [
        ("uint8", "a", 200), ("int8", "b", -3), ("uint16", "c", 60_000), ("int16", "d", -300), ("uint32", "e", 2**31), ("int32", "f", -5),
        ("uint64", "g", 2**40), ("int64", "h", -(2**40)), ("float32", "i", 0.5), ("float64", "j", 0.1), ("bool", "k", True),
        ("string", "l", "é\n"), ("array", "m", ["x", "", "日"]), ("array", "n", [1, -2]), ("array", "o", [0.25]),
    ]  # fmt: skip
    file = File(write(tmp_path / "a.gguf", fields))
    assert [file.get(key) for _, key, _ in fields] == [value for *_, value in fields]
    assert (file.get("none"), file.get("none", 7), file.get("general.architecture")) == (None, 7, "llama")


# ---------------------------------------------------------------- types, each against its definition in a plain loop


def half(raw):
    return np.frombuffer(bytes(raw), "<f2")[0].astype(np.float32)


def nibbles(raw):
    return [b & 15 for b in raw] + [b >> 4 for b in raw]


def bit(raw, i):
    return raw[i // 8] >> (i % 8) & 1


def scale_and_min(raw, j):
    """Q4_K and Q5_K: eight 6-bit scales, then eight 6-bit minima, in 12 bytes."""
    if j < 4:
        return raw[j] & 63, raw[j + 4] & 63
    return raw[j + 4] & 15 | (raw[j - 4] >> 6) << 4, raw[j + 4] >> 4 | (raw[j] >> 6) << 4


def k_quant(d, least, scales, value):
    """256 values in eight groups of 32, each with its own scale and minimum."""
    return [d * s * value(32 * j + i) - least * m for j in range(8) for s, m in [scale_and_min(scales, j)] for i in range(32)]


def low(raw, i):
    """Q4_K, Q5_K: groups 2g and 2g + 1 lie in the low and high halves of the same 32 bytes."""
    return raw[i // 64 * 32 + i % 32] >> (4 if i % 64 >= 32 else 0) & 15


def q6(raw):
    ql, qh, scales, d = raw[:128], raw[128:192], np.frombuffer(bytes(raw[192:208]), np.int8), half(raw[208:])
    values = []
    for i in range(256):
        half_, place = divmod(i, 128)
        row, column = divmod(place, 32)
        below = ql[64 * half_ + 32 * (row % 2) + column] >> (4 if row >= 2 else 0) & 15
        above = qh[32 * half_ + column] >> (2 * row) & 3
        values.append(d * np.float32(scales[i // 16]) * np.float32((below | above << 4) - 32))
    return values


SLOW = {  # bytes of one block -> its values
    "F32": lambda b: np.frombuffer(bytes(b), "<f4"),
    "F16": lambda b: np.frombuffer(bytes(b), "<f2"),
    "BF16": lambda b: [struct.unpack("<f", bytes([0, 0, *b]))[0]],
    "Q8_0": lambda b: [half(b[:2]) * np.float32(v) for v in np.frombuffer(bytes(b[2:]), np.int8)],
    "Q4_0": lambda b: [half(b[:2]) * np.float32(v - 8) for v in nibbles(b[2:])],
    "Q4_1": lambda b: [half(b[:2]) * np.float32(v) + half(b[2:4]) for v in nibbles(b[4:])],
    "Q5_0": lambda b: [half(b[:2]) * np.float32((v | bit(b[2:6], i) << 4) - 16) for i, v in enumerate(nibbles(b[6:]))],
    "Q5_1": lambda b: [half(b[:2]) * np.float32(v | bit(b[4:8], i) << 4) + half(b[2:4]) for i, v in enumerate(nibbles(b[8:]))],
    "Q4_K": lambda b: k_quant(half(b[:2]), half(b[2:4]), b[4:16], lambda i: low(b[16:], i)),
    "Q5_K": lambda b: k_quant(
        half(b[:2]), half(b[2:4]), b[4:16], lambda i: low(b[48:], i) | (b[16 + i % 32] >> (i // 32) & 1) << 4
    ),
    "Q6_K": q6,
}  # fmt: skip


def random_blocks(kind, rows, blocks):
    """Blocks of random bytes, whose scales are moderate numbers."""
    rng = np.random.default_rng(0)
    size, block_bytes = ggml.GGML_QUANT_SIZES[kind]
    if size == 1:
        return {"F32": lambda x: x, "F16": lambda x: x.astype(np.float16), "BF16": lambda x: quantize(x, kind)}[kind.name](
            rng.normal(size=(rows, 8)).astype(np.float32)
        )
    raw = rng.integers(0, 256, (rows, blocks, block_bytes), np.uint8)
    halves = {"Q6_K": [208], "Q4_1": [0, 2], "Q5_1": [0, 2], "Q4_K": [0, 2], "Q5_K": [0, 2]}.get(kind.name, [0])
    for at in halves:
        raw[..., at : at + 2] = rng.normal(size=(rows, blocks)).astype("<f2").view(np.uint8).reshape(rows, blocks, 2)
    return raw.reshape(rows, -1)


@pytest.mark.parametrize("name", TYPES)
def test_type_is_decoded_as_its_format_says(tmp_path, name):
    kind = TYPE[name]
    block_bytes = ggml.GGML_QUANT_SIZES[kind][1]
    stored = random_blocks(kind, rows=3, blocks=2)
    got = File(write(tmp_path / "a.gguf", tensors=[("x", stored, kind), ("y", np.ones(3, np.float32), TYPE.F32)]))
    blocks = stored.view(np.uint8).reshape(-1, block_bytes).tolist()
    wanted = np.array([v for block in blocks for v in SLOW[name](block)], np.float32).reshape(3, -1)
    assert got.read("x").shape == wanted.shape == got.tensors["x"].shape
    np.testing.assert_allclose(got.read("x"), wanted, rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(got.read("y"), [1, 1, 1])


@pytest.mark.parametrize("name", ["Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "BF16"])
def test_what_was_quantised_comes_back_near(tmp_path, name):
    wanted = np.random.default_rng(1).normal(size=(4, 64)).astype(np.float32)
    got = File(write(tmp_path / "a.gguf", tensors=[("x", quantize(wanted, TYPE[name]), TYPE[name])])).read("x")
    assert np.abs(got - wanted).max() < {"Q8_0": 0.02, "BF16": 0.02, "Q5_0": 0.2, "Q5_1": 0.1}.get(name, 0.4)


@pytest.mark.parametrize("name", ["Q2_K", "Q3_K", "IQ4_NL", "F64", "I32"])
def test_other_types_are_refused_by_name(tmp_path, name):
    block_bytes = ggml.GGML_QUANT_SIZES[TYPE[name]][1]
    path = write(tmp_path / "a.gguf", tensors=[("x", np.zeros((2, block_bytes), np.uint8), TYPE[name])])
    with pytest.raises(ValueError, match=f"^tensor 'x' has type {name}, which is not supported; supported: F32, F16, BF16, Q8_0"):
        File(path)


def test_scale_that_is_nan_is_read_as_nan(tmp_path):
    stored = np.full((1, 34), 0xFF, np.uint8)
    assert np.isnan(File(write(tmp_path / "a.gguf", tensors=[("x", stored, TYPE.Q8_0)])).read("x")).all()


# ---------------------------------------------------------------- headers that lie


def text(value):
    return struct.pack("<Q", len(value)) + value


def header(fields=(), tensors=(), *, magic=b"GGUF", version=3, field_count=None, tensor_count=None):
    """Bytes of a file: fields are (key, kind, raw value), tensors (name, axes, type, offset)."""
    counts = (len(tensors) if tensor_count is None else tensor_count, len(fields) if field_count is None else field_count)
    out = magic + struct.pack("<IQQ", version, *counts)
    for key, kind, value in fields:
        out += text(key) + struct.pack("<I", kind) + value
    for name, axes, kind, offset in tensors:
        out += text(name) + struct.pack(f"<I{len(axes)}QIQ", len(axes), *axes, kind, offset)
    return out


def array(kind, count, data=b""):
    return struct.pack("<IQ", kind, count) + data


FLOATS = bytes(4 * 64)
LIES = {
    "magic": (header(magic=b"GGML"), "not a GGUF file: it does not begin with the letters GGUF"),
    "version": (header(version=1), "GGUF version 1 is not supported; supported: 2, 3"),
    "byte order": (header(version=3 << 24), "GGUF version 50331648 is not supported"),
    "count of fields": (header(field_count=2**62), "not a whole GGUF file: 8 bytes are declared at byte 24, but it has only 24"),
    "count of tensors": (header(tensor_count=2**62), "not a whole GGUF file: 8 bytes are declared"),
    "fields in a sea of zeros": (header(field_count=2**62) + bytes(10**6), "field '' stands twice in the file"),
    "tensors in a sea of zeros": (header(tensor_count=2**62) + bytes(10**6), "tensor '' has 0 axes, should have 1 to 4"),
    "length of a key": (header(field_count=1) + struct.pack("<Q", 2**63), f"not a whole GGUF file: {2**63} bytes are declared at byte 32"),
    "length of a text": (header([(b"k", 8, struct.pack("<Q", 2**40))]), f"{2**40} bytes are declared"),
    "length of a list": (header([(b"k", 9, array(0, 2**60))]), f"a list of {2**60} values at byte 49, at most 4194304 are read"),
    "list past the end": (header([(b"k", 9, array(4, 2**20))]), f"{4 * 2**20} bytes are declared"),
    "texts past the end": (header([(b"k", 9, array(8, 2**20, text(b"a") * 3))]), "8 bytes are declared"),
    "lists of lists": (header([(b"k", 9, array(9, 1, array(4, 1, bytes(4))))]), "a list of values of kind 9"),
    "list of an unknown kind": (header([(b"k", 9, array(77, 1))]), "a list of values of kind 77"),
    "unknown kind": (header([(b"k", 77, b"")]), "a value of kind 77"),
    "key that is no text": (header([(b"\xff", 4, bytes(4))]), "the text at byte 24 is not UTF-8"),
    "value that is no text": (header([(b"k", 8, text(b"\xff"))]), "the text at byte 37 is not UTF-8"),
    "field twice": (header([(b"k", 4, bytes(4))] * 2), "field 'k' stands twice in the file"),
    "tensor twice": (header((), [(b"x", (8,), 0, 0), (b"x", (8,), 0, 32)]) + FLOATS, "tensor 'x' stands twice in the file"),
    "no axes": (header((), [(b"x", (), 0, 0)]) + FLOATS, "tensor 'x' has 0 axes, should have 1 to 4"),
    "five axes": (header((), [(b"x", (1,) * 5, 0, 0)]) + FLOATS, "tensor 'x' has 5 axes, should have 1 to 4"),
    "axes without end": (header(tensor_count=1) + text(b"x") + struct.pack("<I", 2**32 - 1), "has 4294967295 axes"),
    "axis of nothing": (header((), [(b"x", (0, 4), 0, 0)]) + FLOATS, r"tensor 'x' has shape \[4, 0\], should be rows of whole blocks"),
    "half a block": (header((), [(b"x", (16, 2), 8, 0)]) + FLOATS, r"shape \[2, 16\], should be rows of whole blocks of 32 \(Q8_0\)"),
    "huge axis": (header((), [(b"x", (2**62,), 0, 0)]) + FLOATS, f"tensor 'x' has {2**64} bytes at"),
    "axes whose product wraps": (header((), [(b"x", (2**32, 2**32), 0, 0)]) + FLOATS, f"tensor 'x' has {2**66} bytes at"),
    "unknown type": (header((), [(b"x", (8,), 250, 0)]) + FLOATS, "tensor 'x' has type number 250, which is not supported"),
    "offset past the end": (header((), [(b"x", (8,), 0, 2**40)]) + FLOATS, "not a whole GGUF file: tensor 'x' has 32 bytes at"),
    "offset into another tensor": (header((), [(b"x", (8,), 0, 0), (b"y", (8,), 0, 0)]) + FLOATS, "tensor 'y' has 32 bytes at"),
    "alignment of zero": (header([(b"general.alignment", 4, bytes(4))]), "general.alignment=0 should be a power of two"),
    "alignment that is no power": (header([(b"general.alignment", 4, b"\x18\0\0\0")]), "general.alignment=24 should be a power of two"),
    "alignment without end": (header([(b"general.alignment", 4, b"\0\0\0\x80")]), "general.alignment=2147483648 should be a power"),
    "alignment of another kind": (header([(b"general.alignment", 8, text(b"32"))]), "general.alignment='32' should be a power of two"),
    "split": (header([(b"split.count", 2, struct.pack("<H", 4))]), "split.count=4: split files are not supported: join them first"),
}


@pytest.mark.parametrize("name", LIES)
def test_lie_is_named(tmp_path, name):
    data, message = LIES[name]
    (tmp_path / "a.gguf").write_bytes(data)
    with pytest.raises(ValueError, match=message) as error:
        File(tmp_path / "a.gguf")
    assert "\n" not in str(error.value)


def test_the_builder_of_lies_can_tell_the_truth(tmp_path):
    data = header([(b"general.alignment", 4, struct.pack("<I", 64))], [(b"x", (2, 3), 0, 0), (b"y", (1,), 0, 64)])
    data += bytes(-len(data) % 64) + np.arange(6, dtype="<f4").tobytes().ljust(64, b"\0") + np.float32(7).tobytes()
    (tmp_path / "a.gguf").write_bytes(data)
    file = File(tmp_path / "a.gguf")
    np.testing.assert_array_equal(file.read("x"), [[0, 1], [2, 3], [4, 5]])
    np.testing.assert_array_equal(file.read("y"), [7])


@pytest.mark.parametrize("kept", [0, 3, 12, 100, -1])
def test_truncated_file(tmp_path, kept):
    path = write(tmp_path / "a.gguf", tensors=[("x", np.ones((40, 8), np.float32), TYPE.F32)])
    path.write_bytes(path.read_bytes()[:kept] if kept >= 0 else path.read_bytes()[: -(40 * 8 * 4) + 1200])
    with pytest.raises(ValueError, match=r"^not a whole GGUF file: "):
        File(path)


def test_folder_and_missing_file(tmp_path):
    for path, reason in [(tmp_path, "Is a directory"), (tmp_path / "none", "No such file or directory")]:
        with pytest.raises(ValueError, match=f"^the file cannot be read: {reason}$"):
            File(path)
