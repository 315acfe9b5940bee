"""Damaged input of every kind a user may bring: configs, prompt files, GGUF, safetensors, config.json.

Whatever comes, it works, or it is refused with a ValueError or OSError of one line, soon, in little memory, and nothing is left behind.

    python tests/fuzz.py --minutes 10 [--only gguf]

The suite runs a few examples of each (test_fuzz.py).
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import math
import pathlib
import re
import resource
import signal
import string
import struct
import tempfile
import time

import gguf as ggml
import hypothesis
import tiny_run
from damage import NUMBERS, Blob, damaged_bytes, damaged_tree
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file

import specjax
from specjax import build, prompts
from specjax.command import one_line
from specjax.models.load import load

GOLDENS = pathlib.Path(__file__).parent / "goldens"
SECONDS, BYTES = 5, 200 << 20  # of one example


# ---------------------------------------------------------------- what must hold


class TooSlow(BaseException):
    pass


@contextlib.contextmanager
def limits():
    """TooSlow after SECONDS; MemoryError where more than BYTES are asked for, touched or not."""

    def stop(*_):
        raise TooSlow(f"took more than {SECONDS} s")

    before = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(pathlib.Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + BYTES, before[1]))
    handler = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
        resource.setrlimit(resource.RLIMIT_AS, before)


def survives(call, folder: pathlib.Path | None = None) -> str | None:
    """The property of this file: None if the call worked, else what it said."""
    there = folder and sorted(folder.rglob("*"))
    said = None
    try:
        with limits():
            call()
    except (ValueError, OSError) as error:
        said = one_line(error)  # as a command prints it
    assert said not in ("ValueError", "OSError"), "an error that says nothing"
    assert folder is None or sorted(folder.rglob("*")) == there, "something was left behind"
    return said


# ---------------------------------------------------------------- what is fuzzed


@st.composite
def config(draw):
    return draw(damaged_tree({**BASE, "arms": [*BASE["arms"], *ARMS]}))


ARMS = [  # every key that an arm may have
    dict(name="a", drafter=dict(name="ngram", most=3, max_n=4, min_n=1, per_match=1.5), length=dict(name="fixed", k=2),
         sampling=dict(temperature=0.7, top_k=4, top_p=0.9, min_p=0.1)),
    dict(name="b", drafter=dict(name="model", source="toy://tiny", most=3), rule=dict(name="lenient", lenience=0.5),
         sampling=dict(temperature=0.5), draft_sampling=dict(temperature=0.7)),
    dict(name="c", drafter=dict(name="early_exit", exit_layer=1, most=2), length="heuristic",
         sampling=dict(temperature=0.0, repetition=1.1)),
]  # fmt: skip
BASE, TOY = build.plain(tiny_run.get_config()), specjax.load("toy://tiny")


def check_config(tree):
    """The whole way to an experiment; whatever names a model gets the toy."""

    def whole():
        plan = build.plan(tree)
        json.dumps(plan.resolved(), allow_nan=False)
        build.load(plan, lambda source, dtype, layout: TOY)

    return survives(whole)


@st.composite
def prompt_file(draw):
    row = {"question_id": 1, "category": "chat", "turns": ["one", "two"], "quick": True}
    rows = [draw(damaged_tree(row) | st.just(row)) for _ in range(draw(st.integers(1, 3)))]
    lines = [json.dumps(r, ensure_ascii=draw(st.booleans())).encode("utf-8", "surrogatepass") for r in rows]
    whole = b"\n".join(lines)
    deep = st.integers(1, 100_000).map(lambda n: b'{"text": ' + b"[" * n)
    digits = st.integers(1, 10_000).map(lambda n: b'{"text": "a", "question_id": ' + b"9" * n + b"}")
    data = draw(st.just(whole) | damaged_bytes(whole) | st.binary(max_size=64) | deep | digits)
    return draw(st.sampled_from([".jsonl", ".txt"])), data


def check_prompt_file(given):
    suffix, data = given
    with tempfile.TemporaryDirectory() as name:
        path = pathlib.Path(name) / f"prompts{suffix}"
        path.write_bytes(data)
        return survives(lambda: prompts.load(path), path.parent)


LETTERS_48 = ["<s>", "</s>", "<unk>", *string.ascii_letters[:44], "ab"]
NUMBERS_OF_LLAMA = {
    "vocab_size": 48, "embedding_length": 16, "block_count": 2, "attention.head_count": 4, "attention.head_count_kv": 2,
    "attention.key_length": 6, "attention.value_length": 6, "feed_forward_length": 24, "context_length": 64, "rope.dimension_count": 6,
}  # fmt: skip


@functools.cache
def gguf_bytes(tokenizer: str) -> bytes:
    """A tiny Llama with its tokenizer, "gpt2" or "llama", in one file. What its weights say does not matter."""
    theirs = ggml.get_tensor_name_map(ggml.MODEL_ARCH.LLAMA, 2)
    with tempfile.TemporaryDirectory() as name:
        path = pathlib.Path(name) / "a.gguf"
        writer = ggml.GGUFWriter(path, "llama")
        for key, value in NUMBERS_OF_LLAMA.items():
            writer.add_uint32(f"llama.{key}", value)
        writer.add_float32("llama.attention.layer_norm_rms_epsilon", 1e-5)
        writer.add_tokenizer_model(tokenizer)
        writer.add_tokenizer_pre("gpt-2" if tokenizer == "gpt2" else "default")
        writer.add_token_list(LETTERS_48)
        writer.add_token_types([3, 3, 2, *[1] * 45])
        writer.add_token_merges(["a b"])
        writer.add_token_scores([-float(i) for i in range(48)])
        writer.add_bos_token_id(0)
        writer.add_eos_token_id(1)
        writer.add_chat_template("{{ messages[0].content }}")
        for tensor, weight in load_file(GOLDENS / "llama_tied_grouped" / "model.safetensors").items():
            writer.add_tensor(theirs.get_name(tensor, try_suffixes=(".weight",)), weight)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path.read_bytes()


@st.composite
def gguf_file(draw):
    """What lies is the header; behind it come the weights, which are most of the file."""
    data = gguf_bytes(draw(st.sampled_from(["gpt2", "llama"])))
    header = data.rindex(b"output_norm.weight") + 50
    texts = [match.span() for match in re.finditer(rb"[\w.]{3,}", data[:header])]
    marks = [4, 8, 16] + [at for start, end in texts for at in (start - 8, end, end + 4, end + 8, end + 12, end + 20, end + 24)]
    return draw(damaged_bytes(data, marks, draw(st.sampled_from([header, len(data)]))))


def check_gguf_file(data):
    with tempfile.TemporaryDirectory() as name:
        path = pathlib.Path(name) / "model.gguf"
        path.write_bytes(data)
        return survives(lambda: load(str(path)), path.parent)


def folder_files(name: str) -> dict[str, bytes]:
    return {p.name: Blob(p.read_bytes()) for p in (GOLDENS / name).iterdir() if p.suffix in (".json", ".safetensors")}


def check_folder(files):
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name) / "model"
        folder.mkdir()
        for file, data in files.items():
            (folder / file).write_bytes(data)
        return survives(lambda: load(str(folder)), folder)


@st.composite
def plausible_header(draw, header: dict):
    """One to three tensors of another name, shape or type that take as many bytes."""
    header = dict(header)
    for name in draw(st.lists(st.sampled_from(sorted(header)), min_size=1, max_size=3, unique=True)):
        tensor = header.pop(name)
        if name != "__metadata__":
            size = math.prod(tensor["shape"])
            tensor = tensor | {"shape": draw(st.sampled_from([tensor["shape"][::-1], [size], [1, size], [size, 1]]))}
            tensor |= {"dtype": draw(st.sampled_from(["F32", "I32", "U32"]))}
        header[draw(st.just(name) | st.sampled_from(["", "lm_head.weight", name.replace("0", "1"), name.replace("0", "9")]))] = tensor
    return header


@st.composite
def safetensors_header(draw):
    files = folder_files("llama_tied_grouped")
    data = files["model.safetensors"]
    size = struct.unpack("<Q", data[:8])[0]
    if draw(st.integers(0, 2)):
        header = json.loads(data[8 : 8 + size])
        text = json.dumps(draw(damaged_tree(header) | plausible_header(header))).encode()
        length = draw(st.just(len(text)) | st.just(len(text)) | NUMBERS) % 2**64
        files["model.safetensors"] = Blob(struct.pack("<Q", length) + text + data[8 + size :])
    else:
        files["model.safetensors"] = draw(damaged_bytes(data, [0], draw(st.sampled_from([8 + size, len(data)]))))
    return files


@st.composite
def folder_json(draw):
    """config.json, generation_config.json or the index of the shards."""
    files = folder_files(draw(st.sampled_from(["llama_tied_grouped", "llama_sharded"])))
    name = draw(st.sampled_from(sorted(n for n in files if n.endswith(".json"))))
    if draw(st.integers(0, 3)):
        files[name] = Blob(json.dumps(draw(damaged_tree(json.loads(files[name])))).encode())
    else:
        files[name] = draw(damaged_bytes(files[name]))
    return files


PROPERTIES = {  # name -> (what it makes, what it does with it)
    "config": (config(), check_config),
    "prompts": (prompt_file(), check_prompt_file),
    "gguf": (gguf_file(), check_gguf_file),
    "safetensors": (safetensors_header(), check_folder),
    "json": (folder_json(), check_folder),
}


# ---------------------------------------------------------------- how it is run


def fuzz(name: str, examples: int, seed: int) -> None:
    """Some examples of one kind; raises at the first that does not survive, made as small as hypothesis can."""
    made, check = PROPERTIES[name]
    quiet = settings(max_examples=examples, deadline=None, database=None, suppress_health_check=list(HealthCheck))

    def survives_all(given):
        try:
            check(given)
        except BaseException as error:
            error.add_note(f"the input is in {keep(name, given)}")
            raise

    hypothesis.seed(seed)(quiet(given(made)(survives_all)))()


def keep(name: str, given) -> pathlib.Path:
    """Write the input of an example down."""
    folder = pathlib.Path(tempfile.gettempdir()) / "specjax-fuzz" / name
    folder.mkdir(parents=True, exist_ok=True)
    files = given if name in ("safetensors", "json") else {"input": given}
    for file, content in files.items():
        (folder / file).write_bytes(content if isinstance(content, bytes) else repr(content).encode())
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--only", choices=PROPERTIES, action="append")
    options = parser.parse_args()
    end, seed, examples = time.monotonic() + 60 * options.minutes, 0, 200
    while time.monotonic() < end:
        for name in options.only or PROPERTIES:
            fuzz(name, examples, seed)
        seed += 1
    print(f"{seed * examples} examples each of {', '.join(options.only or PROPERTIES)}: none does harm")


if __name__ == "__main__":
    main()
