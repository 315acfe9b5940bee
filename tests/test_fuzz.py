"""A few examples of each kind of damaged input; `python tests/fuzz.py --minutes 10` makes many."""

import fuzz
import numpy as np
import pytest


@pytest.mark.parametrize("name", fuzz.PROPERTIES)
def test_damaged_input_is_refused_in_one_line(name):
    fuzz.fuzz(name, examples=30, seed=0)


def leaves_a_file(folder):
    (folder / "part").touch()
    raise ValueError("bad")


def says_nothing():
    raise ValueError


def loops():
    while True:
        pass


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        (lambda folder: {}["x"], KeyError),
        (lambda folder: says_nothing(), AssertionError),
        (lambda folder: np.empty(1 << 30, np.uint8), MemoryError),
        (lambda folder: loops(), fuzz.TooSlow),
        (leaves_a_file, AssertionError),
    ],
)
def test_each_fault_is_seen(fault, error, tmp_path, monkeypatch):
    monkeypatch.setattr(fuzz, "SECONDS", 0.2)
    with pytest.raises(error):
        fuzz.survives(lambda: fault(tmp_path), tmp_path)


def test_what_is_whole_survives_and_a_refusal_is_told():
    for kind in ("gpt2", "llama"):
        assert fuzz.check_gguf_file(fuzz.gguf_bytes(kind)) is None
    for kind in ("llama_tied_grouped", "llama_sharded"):
        assert fuzz.check_folder(fuzz.folder_files(kind)) is None
    assert fuzz.check_config({**fuzz.BASE, "arms": [*fuzz.BASE["arms"], *fuzz.ARMS]}) is None
    assert "not a whole GGUF file" in fuzz.check_gguf_file(b"GGUF")
