import jax
import pytest

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
