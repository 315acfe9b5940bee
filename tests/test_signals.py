import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

from specjax import signals

BUSY = """
import hashlib
from specjax import signals
with signals.heard(lambda line: print(line, flush=True)):
    print("ready", flush=True)
    hashlib.pbkdf2_hmac("sha256", b"", b"", 2**30)  # many minutes that Python cannot interrupt
"""


@pytest.mark.parametrize("number", signals.SIGNALS)
def test_the_first_signal_is_an_interrupt(number):
    before, lines = signal.getsignal(number), []
    with signals.heard(lines.append) as check:
        check()
        with pytest.raises(KeyboardInterrupt) as stop:
            os.kill(os.getpid(), number)
        assert stop.value.args == (number,)
        with pytest.raises(KeyboardInterrupt):  # wherever the first one was lost
            check()
    assert signal.getsignal(number) == before
    assert lines == [f"{number.name}: ends after the program that is running; a second one ends at once"]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_the_second_signal_ends_the_process_at_once(number, code):
    root = pathlib.Path(signals.__file__).parents[1]
    with subprocess.Popen([sys.executable, "-c", BUSY], stdout=subprocess.PIPE, text=True, cwd=root) as child:
        try:
            assert child.stdout.readline() == "ready\n"
            time.sleep(0.5)  # until it is busy
            child.send_signal(number)
            assert child.stdout.readline().startswith(f"{number.name}: ends after the program")
            child.send_signal(number)
            assert child.wait(timeout=10) == code
        finally:
            child.kill()
