"""SIGKILL at random moments of a run, and what it says after it went on. SPECJAX_KILLS=20 takes thirty prompts and some minutes."""

import contextlib
import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import time

import numpy as np
import tiny_talk

from specjax import build
from specjax.bench import sweep
from specjax.bench.records import Workdir

KILLS = int(os.environ.get("SPECJAX_KILLS", "3"))
TESTS = pathlib.Path(__file__).parent


def prompts(path) -> pathlib.Path:
    """Those of the small run, or thirty."""
    if KILLS == 3:
        return TESTS / "tiny_talk.jsonl"
    words = random.Random(1)
    with open(path / "thirty.jsonl", "w") as file:
        for i in range(30):
            turns = [" ".join(words.choices(["a", "ab", "cat", "the"], k=words.randint(1, 9))) for _ in range(1 + i % 3 // 2)]
            file.write(json.dumps({"question_id": f"q{i}", "category": "x", "turns": turns}) + "\n")
    return path / "thirty.jsonl"


def lines(folder) -> int:
    with contextlib.suppress(FileNotFoundError):
        return (folder / "records.jsonl").read_bytes().count(b"\n")
    return 0


def killed(command, folder, more: int, delay: float, env) -> int:
    """Start the command and kill it `delay` seconds after it has made `more` records (0: after it was started); its exit code."""
    before = lines(folder)
    process = subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, cwd=TESTS.parent)
    while process.poll() is None and lines(folder) < before + more:
        time.sleep(0.001)
    time.sleep(delay)
    process.kill()
    _, said = process.communicate()
    assert process.returncode in (0, -signal.SIGKILL), said.decode()
    return process.returncode


def traces(workdir) -> dict:
    def load(path):
        with np.load(path) as saved:
            return {name: saved[name].tolist() for name in saved}

    return {r["trace"]: load(workdir.path / r["trace"]) for r in workdir.records()}


def test_a_run_that_is_killed_says_the_same_in_the_end(tmp_path):
    source, folder, moments = prompts(tmp_path), tmp_path / "run", random.Random(KILLS)
    plan = build.plan({**build.plain(tiny_talk.get_config("p/q")), "prompts": dict(source=str(source), chat=False)})
    experiment = build.load(plan)
    unbroken = Workdir(tmp_path / "unbroken")
    unbroken.create({})
    sweep.run(experiment, unbroken)
    total = lines(unbroken.path)

    command = [sys.executable, "-m", "specjax.run", f"--config={tiny_talk.__file__}:p/q", f"--workdir={folder}"]
    command += [f"--config.prompts.source={source}"]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), str(TESTS.parent)]), "SPECJAX_CACHE": str(tmp_path / "cache")}
    codes = []
    for kill in range(KILLS):
        early = kill % 4 == 3  # while it loads, compiles, measures or warms up
        more, delay = (0, moments.uniform(0, 8)) if early else (moments.randint(1, total // KILLS), moments.uniform(0, 0.01))
        codes.append(killed(command, folder, more, delay, env))
    assert codes.count(-signal.SIGKILL) >= 0.8 * KILLS and lines(folder) > 0

    summary = sweep.whole(experiment, Workdir(folder), command, say=lambda line: None)
    assert tiny_talk.timeless(Workdir(folder)) == tiny_talk.timeless(unbroken) and lines(folder) == total
    assert traces(Workdir(folder)) == traces(unbroken)
    assert [p.name for p in folder.rglob(".*")] == [".lock"]
    assert [arm["name"] for arm in summary["arms"]] == ["plain t=2", "p/q"]
