"""SIGINT and SIGTERM: the first ends a run in order, the second ends the process at once.

Python hands a signal to its handler only between two of its own steps, and a compiled program is one step, however long it runs. So a
thread reads the signals as they come (`signal.set_wakeup_fd`): it says that the first was heard, and obeys the second.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator

from specjax import processes

SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextlib.contextmanager
def heard(say: Callable[[str], None]) -> Iterator[Callable[[], None]]:
    """While this is open the first signal raises KeyboardInterrupt(number). For the main thread only.

    Yields `check`, which raises it again if it was lost: Python drops what is raised inside a callback of the garbage collector. Of several
    processes only `check` raises it, in all of them, whichever heard it: they must not part halfway.
    """
    raised: list[int] = []

    def stop(number, frame):
        if not raised:
            raised.append(number)
            if processes.count() == 1:
                raise KeyboardInterrupt(number)

    def check():
        if number := processes.largest(raised[0] if raised else 0):
            raise processes.marked(KeyboardInterrupt(number))

    reader, writer = socket.socketpair()
    writer.setblocking(False)
    thread = threading.Thread(target=_listen, args=(reader, say), daemon=True)
    thread.start()
    wakeup = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
    handlers = {number: signal.signal(number, stop) for number in SIGNALS}
    try:
        yield check
    finally:
        signal.set_wakeup_fd(wakeup)
        writer.close()
        thread.join()
        reader.close()
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _listen(reader: socket.socket, say: Callable[[str], None]) -> None:
    """Reads the number of each signal until the other end is closed."""
    numbers = (byte[0] for byte in iter(lambda: reader.recv(1), b"") if byte[0] in SIGNALS)
    for count, number in enumerate(numbers):
        if count:
            os._exit(exit_code(number))
        say(f"{signal.Signals(number).name}: ends after the program that is running; a second one ends at once")


def exit_code(number: int = signal.SIGINT) -> int:
    """As a shell counts: 130 after SIGINT, 143 after SIGTERM."""
    return 128 + number
