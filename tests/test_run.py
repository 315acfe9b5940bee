import errno
import functools
import json
import os
import pathlib
import resource
import signal
import subprocess
import sys
import time

import commands
import jax
import pytest
import tiny_run

from specjax import run

CONFIG = f"--config={tiny_run.__file__}"


@pytest.fixture
def main(monkeypatch):
    return functools.partial(commands.call, run, monkeypatch)


@pytest.fixture
def decoding(main, tmp_path, monkeypatch, capsys):
    """Runs the command with programs that are compiled already; `progress` ends it: (exit code, stderr)."""

    ready, manifest = tiny_run.experiment(), tiny_run.finished()[0].read("manifest.json")

    def whole(experiment, workdir, command, say, progress):
        workdir.create(experiment.plan.resolved())
        workdir.write("manifest.json", manifest)
        run.sweep.run(experiment, workdir, progress)
        return {}

    def call(progress, *args):
        monkeypatch.setattr(run.build, "load", lambda plan: ready)
        monkeypatch.setattr(run.sweep, "whole", whole)
        monkeypatch.setattr(run.table, "show", lambda summary, console: None)
        monkeypatch.setattr(run, "progress", progress)
        with pytest.raises(SystemExit) as stop:
            main(CONFIG, f"--workdir={tmp_path}", *args)
        return stop.value.code, capsys.readouterr().err

    return call


def raises(error):
    def progress(jobs):
        yield from jobs[:7]
        raise error

    return progress


def sends(number):
    def progress(jobs):
        yield from jobs[:7]
        os.kill(os.getpid(), number)
        time.sleep(10)

    return progress


def tokens(folder):
    return [json.loads(line)["token_ids"] for line in (folder / "records.jsonl").read_text().splitlines()]


def test_an_interrupted_run_says_how_to_go_on_and_does(main, tmp_path, monkeypatch, capsys):
    args, seconds = (CONFIG, f"--workdir={tmp_path}"), tiny_run.finished()[0].read("manifest.json")["seconds"]["compile"]
    monkeypatch.setattr(run.sweep, "compile_arms", lambda experiment: seconds)  # they are compiled
    monkeypatch.setattr(run, "progress", sends(signal.SIGINT))
    with pytest.raises(SystemExit) as stop:
        main(*args)
    monkeypatch.setattr(run, "progress", iter)
    assert stop.value.code == 130
    assert f"interrupted; 7 records are kept, to go on: python -m specjax.run {' '.join(args)}\n" in capsys.readouterr().err
    first = json.loads((tmp_path / "manifest.json").read_text())
    assert not (tmp_path / "summary.json").exists()
    main(*args)
    assert tokens(tmp_path) == tokens(tiny_run.finished()[0].path)
    last = json.loads((tmp_path / "manifest.json").read_text())
    assert last["costs"] == first["costs"] and last["wall_seconds"] > first["wall_seconds"] > 0
    out = capsys.readouterr().out
    gained = run.table.closing(json.loads((tmp_path / "summary.json").read_text()))  # which of its sentences, the clock decides
    assert gained[:15] in out
    assert f"records, traces and summary: {tmp_path}" in out
    with pytest.raises(SystemExit) as stop:  # another config in the same folder
        main(*args, "--config.repeats=5")
    assert stop.value.code == 2 and "holds a run of another config (other repeats)" in capsys.readouterr().err


def test_terminated(decoding, tmp_path, monkeypatch):
    note = run.note
    monkeypatch.setattr(run, "note", lambda line: time.sleep(0.2 * line.startswith("SIGTERM")) or note(line))  # a slow listener
    code, said = decoding(sends(signal.SIGTERM))
    assert code == 143 and said.endswith(
        f"interrupted; 7 records are kept, to go on: python -m specjax.run {CONFIG} --workdir={tmp_path}\n"
    )


def test_how_to_go_on_names_the_folder_and_quotes(decoding, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(run.stopping, "default_workdir", lambda: "runs/new one")
    _, said = decoding(raises(KeyboardInterrupt()), "--workdir=", "--config.prompts.limit=3")
    assert said.endswith("--config.prompts.limit=3 '--workdir=runs/new one'\n")


FAULTS = {
    OSError(errno.ENOSPC, "No space left on device", "records.jsonl"): "[Errno 28] No space left on device: 'records.jsonl'",
    RuntimeError("row 0: rule mine gave a law that does not sum to one"): "row 0: rule mine gave a law that does not sum to one",
    jax.errors.JaxRuntimeError(
        "RESOURCE_EXHAUSTED: Out of memory allocating 9 bytes.\nBuffers:\n1"
    ): "Out of memory allocating 9 bytes.; 7",
    MemoryError(): "MemoryError",
}


@pytest.mark.parametrize("error", FAULTS, ids=lambda e: type(e).__name__)
def test_faults_of_the_machine_or_a_part_are_one_line(decoding, error):
    code, said = decoding(raises(error))
    assert code == 1 and said.startswith("error: ") and said.count("\n") == 1 and FAULTS[error] in said
    assert "; 7 records are kept, to go on: python -m specjax.run " in said


@pytest.mark.parametrize("error", [KeyError("x"), NotImplementedError("trees"), jax.errors.JaxRuntimeError("INVALID_ARGUMENT: shapes")])
def test_a_bug_shows_where_it_is(decoding, error):
    with pytest.raises(type(error)):
        decoding(raises(error))


def test_a_full_disk(decoding, main, tmp_path, monkeypatch):
    """A limit on the size of files, since no disk is at hand to be filled: half a line is written."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)

    def fills(jobs):
        yield from jobs[:7]
        resource.setrlimit(resource.RLIMIT_FSIZE, ((tmp_path / "records.jsonl").stat().st_size + 100, before[1]))
        yield jobs[7]

    try:
        code, said = decoding(fills)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert code == 1 and "File too large" in said and "7 records are kept" in said
    monkeypatch.setattr(run, "progress", iter)
    main(CONFIG, f"--workdir={tmp_path}")
    assert tokens(tmp_path) == tokens(tiny_run.finished()[0].path)


def test_what_is_looked_at_in_the_end(decoding, main, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(run.look, "dump_hlo", lambda experiment, folder: [folder / "decode.match.txt"])
    monkeypatch.setattr(run.look, "profile", lambda experiment, folder: folder / "trace.gz")
    decoding(raises(KeyboardInterrupt()))
    monkeypatch.setattr(run, "progress", iter)
    main(CONFIG, f"--workdir={tmp_path}", "--dump_hlo", "--profile")
    out = capsys.readouterr().out
    assert f"text of 1 programs: {tmp_path / 'hlo'}" in out
    assert f"profile: open {tmp_path / 'profile' / 'trace.gz'} at https://ui.perfetto.dev" in out


BAD = {
    "--config.max_new_token=3": "max_new_tokens",
    "--config.max_new_tokens=three": "three",
    "--config.samples=3": "--config.samples=3 cannot be set: 'samples' (a flag changes what the config file has)",
    "--config.arms[9].name=x": "--config.arms[9].name=x cannot be set: tuple index out of range",
    "--config.batch=0": "config.batch=0 must be at least 1",
    "--config.target.source=nowhere": "'nowhere': no such file or folder",
    "--config.prompts.source=nothing.txt": "there is no such file",
    "--config.prompts.chat=True": "no chat template",
    "--config.target.dtype=floaty": "target.dtype='floaty' must be None or one of float32",
    "--config.seed=99999999999999999999": "config.seed is a number of 67 bits",
    "stray": "argument 'stray' is not a flag",
    "--config=missing.py": "missing.py",
}


@pytest.mark.parametrize("bad", BAD)
def test_bad_input_is_one_line_and_exit_code_2(main, bad, tmp_path, capsys):
    with pytest.raises(SystemExit) as stop:
        main(CONFIG, f"--workdir={tmp_path / 'run'}", bad)
    error = capsys.readouterr().err
    assert stop.value.code == 2 and error.startswith("error: ") and error.count("\n") == 1 and BAD[bad] in error
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("error", [OverflowError("Python int too large"), OSError("no space left")])
def test_what_loading_raises_for_bad_values_is_one_line_too(main, error, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(run.build, "load", lambda plan: (_ for _ in ()).throw(error))
    with pytest.raises(SystemExit) as stop:
        main(CONFIG, f"--workdir={tmp_path / 'run'}")
    assert stop.value.code == 2 and capsys.readouterr().err == f"error: {error}\n"


def test_the_command_itself(tmp_path):
    command = [sys.executable, "-m", "specjax.run", CONFIG, f"--workdir={tmp_path / 'run'}", "--config.max_new_token=3"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=pathlib.Path(run.__file__).parents[1])
    assert done.returncode == 2 and done.stdout == "" and "Did you mean" in done.stderr
