import io

import pytest

from specjax.report import progress


@pytest.fixture
def clock(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


def test_a_log_gets_a_line_now_and_then_and_one_at_the_end(clock):
    file = io.StringIO()
    for _ in progress.progress(range(10), file):
        clock[0] += 12.5
    assert file.getvalue().splitlines() == [
        "decoding: 3/10, 0:00:38 so far, 0:01:28 left",
        "decoding: 6/10, 0:01:15 so far, 0:00:50 left",
        "decoding: 9/10, 0:01:52 so far, 0:00:12 left",
        "decoding: 10/10, 0:02:05 so far, 0:00:00 left",
    ]


def test_a_job_is_done_when_the_next_is_asked_for(clock):
    file = io.StringIO()
    jobs = progress.progress("ab", file)
    assert next(jobs) == "a" and next(jobs) == "b" and file.getvalue() == ""
    assert list(jobs) == [] and "2/2" in file.getvalue()
    assert list(progress.progress([], file)) == [] and file.getvalue().count("\n") == 1


def test_a_terminal_gets_a_bar():
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    file = Terminal()
    assert list(progress.progress([1, 2, 3], file)) == [1, 2, 3]
    assert "decoding" in file.getvalue() and "100%" in file.getvalue()


def test_a_closed_stderr_gets_nothing(monkeypatch):
    monkeypatch.setattr(progress.sys, "stderr", None)
    assert list(progress.progress([1, 2, 3])) == [1, 2, 3]


def test_hours():
    assert [progress.clock(s) for s in (0, 59.6, 3600, 36_061)] == ["0:00:00", "0:01:00", "1:00:00", "10:01:01"]
