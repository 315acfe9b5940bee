"""Shards: what is written is what is read, whatever is killed on the way; folders of others are refused."""

import json
import types
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import tiny_chat

from specjax.training import shards
from specjax.training.shards import Folder, Text

MADE = {"name": "numbers", "seed": 1}
SHARDS = [
    [Text([1, 2, 3], [False, True, True], (10, 11)), Text([4], [True], (12, 12))],
    [],
    [Text([5, 6], [False, False], (2**64 - 1, 13))],
]


def make(folder, count=3, made=MADE, one=lambda n, seen: (SHARDS[n], Counter(short=n)), say=lambda line: None):
    return shards.make(Folder(folder, made), count, one, say)


def test_texts_come_back_in_order(tmp_path):
    texts = [(token.tolist(), mask.tolist()) for token, mask in shards.read(make(tmp_path))]
    assert texts == [([1, 2, 3], [False, True, True]), ([4], [True]), ([5, 6], [False, False])]
    with np.load(tmp_path / "00000.npz") as first:
        assert {name: (x.dtype.name, x.tolist()) for name, x in first.items()} == {
            "token": ("int32", [1, 2, 3, 4]),
            "mask": ("bool", [False, True, True, True]),
            "start": ("int64", [0, 3, 4]),
            "key": ("uint64", [[10, 11], [12, 12]]),
        }
    index = json.loads((tmp_path / "index.json").read_text())
    assert index["made"] == MADE and index["fingerprint"] == Folder(tmp_path, MADE).fingerprint
    assert index["shards"] == [
        {"name": "00000.npz", "texts": 2, "tokens": 4, "learnt": 3, "dropped": {"short": 0}},
        {"name": "00001.npz", "texts": 0, "tokens": 0, "learnt": 0, "dropped": {"short": 1}},
        {"name": "00002.npz", "texts": 1, "tokens": 2, "learnt": 0, "dropped": {"short": 2}},
    ]


def test_shards_without_an_index_are_read_by_name(tmp_path):
    for name, token in (("w1", [3]), ("w0", [1, 2])):
        np.savez(tmp_path / f"{name}.npz", token=np.int32(token), mask=np.ones(len(token), bool), start=np.array([0, len(token)]))
    assert [token.tolist() for token, _ in shards.read(tmp_path)] == [[1, 2], [3]]


@pytest.mark.parametrize("killed_at", range(6))
def test_a_killed_run_goes_on_to_the_same_bytes(tmp_path, monkeypatch, killed_at):
    """Killed before each of the files appears: three shards, and the index after each of them."""
    whole = tiny_chat.files(make(tmp_path / "whole"))
    appear, count = Path.replace, iter(range(killed_at))
    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", lambda self, to: appear(self, to) if next(count, None) is not None else die())
        with pytest.raises(KeyboardInterrupt):
            make(tmp_path / "killed")
    asked = []
    make(tmp_path / "killed", one=lambda n, seen: asked.append(n) or (SHARDS[n], Counter(short=n)))
    assert tiny_chat.files(tmp_path / "killed") == whole
    assert asked == list(range(killed_at // 2, 3))


def die():
    raise KeyboardInterrupt


def test_each_shard_is_told_the_keys_of_those_before_it(tmp_path):
    told = []

    def one(n, seen):
        told.append(set(seen))
        return SHARDS[n], Counter()

    make(tmp_path, 2, one=one)
    make(tmp_path, 3, one=one)
    make(tmp_path, 3, one=one)
    assert told == [set(), {10, 11, 12}, {10, 11, 12}]


def test_a_line_a_shard(tmp_path, monkeypatch):
    clock = iter([0.0, 2.0, 0.0, 1.0])
    monkeypatch.setattr(shards, "time", types.SimpleNamespace(perf_counter=lambda: next(clock)))
    said = []
    make(tmp_path, 2, one=lambda n, seen: (SHARDS[n], Counter({"short": n, "long": 7} if n else {})), say=said.append)
    assert said == [
        "numbers 1/2: 2 texts, 4 tokens, 3 to learn, 2 a second; dropped: none",
        "numbers 2/2: 0 texts, 0 tokens, 0 to learn, 0 a second; dropped: 7 long, 1 short",
    ]


def test_what_is_refused(tmp_path):
    make(tmp_path / "a")
    with pytest.raises(ValueError, match=r"a holds data of other settings \(other seed\): name another folder$"):
        make(tmp_path / "a", made={**MADE, "seed": 2})
    (tmp_path / "a" / "index.json").unlink()
    with pytest.raises(ValueError, match=r"a holds shards without an index.json: name another folder$"):
        make(tmp_path / "a")
    with pytest.raises(ValueError, match=r"/none holds no shards: it should be a folder of .npz files$"):
        list(shards.read(tmp_path / "none"))
    (tmp_path / "a" / "00000.npz").write_bytes(b"PK")
    with pytest.raises(ValueError, match=r"00000.npz is missing or damaged"):
        list(shards.read(tmp_path / "a"))
    with Folder(tmp_path / "a", MADE).locked(), pytest.raises(BlockingIOError, match="in use by another process"):
        make(tmp_path / "a")


def test_what_a_folder_hangs_on():
    made = shards.made_by("x", {"a": (1, 2.5)}, tiny_chat.target())
    assert made == {"name": "x", "a": [1, 2.5], "target": "toy chat", "dtype": "float32"}
