"""Starts a program as two processes of several host devices each, which meet at a free port of this machine."""

import os
import pathlib
import socket
import subprocess
import sys

TESTS = pathlib.Path(__file__).parent


def start(devices: int, *args: str, **environment: str) -> list[subprocess.Popen]:
    """`python ARGS --coordinator=... --processes=2 --process=0`, and the same with 1. environment: more variables."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        place = f"--coordinator=localhost:{free.getsockname()[1]}"
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={devices}"
    env = {**os.environ, "XLA_FLAGS": flags, "PYTHONPATH": os.pathsep.join([str(TESTS), str(TESTS.parent)]), **environment}
    line = [sys.executable, *args, place, "--processes=2"]
    pipes = dict(stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env, cwd=TESTS.parent)
    return [subprocess.Popen([*line, f"--process={i}"], **pipes) for i in range(2)]


def ended(both: list[subprocess.Popen], code: int = 0) -> list[tuple[str, str]]:
    """(stdout, stderr) of each, once both have ended with this code."""
    try:
        said = [process.communicate(timeout=900) for process in both]
    finally:
        for process in both:
            process.kill()
    assert [process.returncode for process in both] == [code, code], "\n".join(err[-3000:] for _, err in said)
    return said
