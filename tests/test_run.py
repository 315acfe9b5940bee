import json
import pathlib
import subprocess
import sys

import pytest
import tiny_run
from absl import flags

from specjax import run

CONFIG = f"--config={tiny_run.__file__}"


@pytest.fixture
def main(monkeypatch):
    def call(*args):
        monkeypatch.setattr(sys, "argv", ["run", *args])  # where config_flags looks for --config.x=y
        flags.FLAGS.unparse_flags()
        run.main(run.parse_flags(sys.argv))

    return call


def tokens(folder):
    return [json.loads(line)["token_ids"] for line in (folder / "records.jsonl").read_text().splitlines()]


def test_an_interrupted_run_says_how_to_go_on_and_does(main, tmp_path, monkeypatch, capsys):
    def interrupted(jobs):
        yield from jobs[:7]
        raise KeyboardInterrupt

    args = CONFIG, f"--workdir={tmp_path}"
    monkeypatch.setattr(run, "progress", interrupted)
    with pytest.raises(SystemExit) as stop:
        main(*args)
    monkeypatch.setattr(run, "progress", iter)
    assert stop.value.code == 130
    assert f"7 records are kept: the same command with --workdir={tmp_path} goes on" in capsys.readouterr().err
    first = json.loads((tmp_path / "manifest.json").read_text())
    assert not (tmp_path / "summary.json").exists()
    main(*args)
    assert tokens(tmp_path) == tokens(tiny_run.finished()[0].path)
    last = json.loads((tmp_path / "manifest.json").read_text())
    assert last["costs"] == first["costs"] and last["wall_seconds"] > first["wall_seconds"] > 0
    out = capsys.readouterr().out
    assert "Best exact arm: " in out and f"records, traces and summary: {tmp_path}" in out
    with pytest.raises(SystemExit) as stop:  # another config in the same folder
        main(*args, "--config.repeats=5")
    assert stop.value.code == 2 and "holds a run of another config (other repeats)" in capsys.readouterr().err


BAD = {
    "--config.max_new_token=3": "max_new_tokens",
    "--config.max_new_tokens=three": "three",
    "--config.batch=0": "config.batch=0 must be at least 1",
    "--config.target.source=nowhere": "'nowhere': no such file or folder",
    "--config.prompts.source=nothing.txt": "there is no such file",
    "--config.prompts.chat=True": "no chat template",
    "--config.target.dtype=floaty": "target.dtype='floaty' must be None or one of float32",
    "--config.seed=99999999999999999999": "seed=99999999999999999999",
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
