import io
import sys

import jax
import pytest

from specjax import command
from specjax.command import one_line


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ValueError("one\n  two\t"), "one two"),
        (ValueError("\x1b[31m\ud800"), r"\x1b[31m\ud800"),
        (ValueError("a" * 300 + "b" * 300), f"{'a' * 250} ... {'b' * 250}"),
        (KeyError("a key"), "a key"),
        (MemoryError(), "MemoryError"),
        (jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: 9 bytes\nBuffer 1"), "RESOURCE_EXHAUSTED: 9 bytes"),
        (OSError(28, "No space left on device", "a\nb"), r"[Errno 28] No space left on device: 'a\nb'"),
    ],
)
def test_an_error_is_one_line(error, line):
    assert one_line(error) == line


@pytest.mark.parametrize("cache", ["{}/file", "~nobody-of-that-name/x"])
def test_a_cache_that_cannot_be_made_and_a_terminal_that_lacks_a_letter(tmp_path, monkeypatch, capsys, cache):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SPECJAX_CACHE", cache.format(tmp_path))
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), "ascii"))
    before = jax.config.jax_compilation_cache_dir
    command.settle_jax()
    command.say("✓ é")
    assert sys.stdout.buffer.getvalue() == b"\\u2713 \\xe9\n" and jax.config.jax_compilation_cache_dir == before
    said = capsys.readouterr().err
    assert said.startswith("compiled programs are not kept: ") and said.count("\n") == 1


@pytest.mark.parametrize("stdout", [None, io.StringIO()], ids=["closed", "a notebook's"])
def test_a_stdout_without_an_encoding(tmp_path, monkeypatch, capsys, stdout):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SPECJAX_CACHE", str(tmp_path / "file"))
    monkeypatch.setattr(sys, "stdout", stdout)
    command.settle_jax()
    assert capsys.readouterr().err.startswith("compiled programs are not kept: ")


def test_a_program_that_was_not_written_to_its_end_is_dropped(tmp_path, monkeypatch):
    kept = "jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs", "jax_compilation_cache_max_size"
    before = {name: getattr(jax.config, name) for name in kept}
    (tmp_path / "xla").mkdir()
    for name in ("whole-cache", "whole-atime", "half-cache"):
        (tmp_path / "xla" / name).write_bytes(b"x")
    monkeypatch.setenv("SPECJAX_CACHE", str(tmp_path))
    try:
        command.settle_jax()
        assert {path.name for path in (tmp_path / "xla").iterdir()} - {".lockfile"} == {"whole-cache", "whole-atime"}
    finally:
        for name, value in before.items():
            jax.config.update(name, value)
