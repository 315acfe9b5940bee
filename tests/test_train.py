"""The command: killed at a random step it ends with the same weights, and what it refuses it refuses in one line."""

import errno
import functools
import itertools
import json
import os
import pathlib
import random
import re
import signal
import subprocess
import sys
import time
import types

import commands
import jax
import numpy as np
import pytest
import tiny_training
from jax.experimental.compilation_cache import compilation_cache
from safetensors.numpy import load_file

import specjax
from specjax import build, build_training, command, train
from specjax.bench.records import Workdir
from specjax.training import checkpoint, loop, metrics, prepare
from specjax.training.loop import Run

CONFIG = f"--config={tiny_training.__file__}"
LEAST = "jax_persistent_cache_min_compile_time_secs"
TESTS = pathlib.Path(__file__).parent


@pytest.fixture
def main(monkeypatch):
    return functools.partial(commands.call, train, monkeypatch)


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    """Programs are kept on disk, so that this process and others run the very same; returns the environment of the others."""
    folder = tmp_path_factory.mktemp("cache")
    before = {name: getattr(jax.config, name) for name in ("jax_compilation_cache_dir", "jax_compilation_cache_max_size", LEAST)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPECJAX_CACHE", str(folder))
        command.settle_jax()
        compilation_cache.reset_cache()
        yield {**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), str(TESTS.parent)])}
    for name, value in before.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory, programs):
    """A whole run in this process. Others take its data."""
    folder, lines = tmp_path_factory.mktemp("unbroken"), []
    config = tiny_training.get_config()
    config.data.folder = str(folder / "data")
    ready = made_ready(config, folder, lines.append)
    return folder, Run(ready, folder, "a command", lines.append, lambda: None).train(), lines, ready


def made_ready(config, folder, say=lambda line: None):
    plan = build_training.plan(config)
    return prepare.ready(plan, *prepare.loaded(plan), folder, say)


def timeless(folder):
    return [{k: v for k, v in row.items() if k != "tokens_per_second"} for row in metrics.read(folder)]


def test_a_run_says_what_it_does(unbroken):
    folder, summary, lines, _ = unbroken
    rows = list(metrics.read(folder))
    assert [row["step"] for row in rows if row["kind"] == "train"] == [3, 6, 9, 12]
    assert [row["step"] for row in rows if row["kind"] == "evaluate"] == [0, 4, 8, 12]
    best = max((row for row in rows if row["kind"] == "evaluate"), key=lambda row: row["tokens_per_pass"])
    assert all(0.5 <= row["drafted_share"] <= 1 for row in rows if row["kind"] == "train")
    card = (folder / "draft" / "README.md").read_text()
    assert '    loss.parts: [[1.0, {"name": "forward_kl"}]]\n' in card and "    optimizer.steps: 12\n" in card
    assert summary["step"] == best["step"] > 0 and summary["after"] == best and summary["before"] == rows[0]
    assert any(re.fullmatch(r"step 3/12: loss \d+\.\d{4}, \d+ tokens/s, 0:\d\d:\d\d left", line) for line in lines)
    drafter = specjax.load_drafter(summary["path"], specjax.load("toy://tiny"))
    assert drafter.ids_U.shape == (40,) and 256 in drafter.ids_U


def test_killed_at_a_random_step_it_ends_with_the_same_weights(unbroken, programs, main, tmp_path):
    folder = tmp_path / "run"
    args = CONFIG, f"--workdir={folder}", f"--config.data.folder={unbroken[0] / 'data'}"
    line = [sys.executable, "-m", "specjax.train", *args]
    after = random.choice([2, 4, 6, 8])
    with open(tmp_path / "said", "w") as said:
        process = subprocess.Popen(line, env=programs, stdout=said, stderr=said, cwd=TESTS.parent)
        while process.poll() is None and (checkpoint.steps_kept(folder) or 0) < after:
            time.sleep(0.005)
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL, (tmp_path / "said").read_text()
    assert after <= checkpoint.steps_kept(folder) < 12

    main(*args)
    assert timeless(folder) == timeless(unbroken[0])
    one, other = (last_state(path) for path in (folder, unbroken[0]))
    assert jax.tree.structure(one) == jax.tree.structure(other)
    assert all(np.array_equal(a, b) for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True))
    written = [load_file(path / "draft" / "model.safetensors") for path in (folder, unbroken[0])]
    assert all(np.array_equal(written[0][name], written[1][name]) for name in written[0].keys() | written[1].keys())
    assert json.loads((folder / "summary.json").read_text())["before"] == unbroken[1]["before"]


def test_a_run_on_other_data_is_refused(unbroken):
    folder, _, _, ready = unbroken
    with pytest.raises(ValueError, match="holds a run on other data or held-out prompts than are there now: name another folder"):
        Run(ready._replace(digest="another"), folder, "", print, lambda: None)


def eagle3(data):
    """A run that reads features and laws from the disk; eight rows a step, so that eight devices can share them."""
    config = build.plain(tiny_training.get_config()) | dict(on_policy=None, log_every=3)
    config["draft"] = dict(name="eagle3", taps=(0, 1), vocab=40, places=2)
    config["data"] |= dict(cache=True, folder=str(data))
    config["optimizer"] |= dict(steps=4, batch=8, warmup=1)
    return build.plain(config)


def test_features_and_laws_from_the_disk(unbroken, programs, tmp_path, monkeypatch):
    """The same weights where a run was stopped between two reports, and the same losses on eight devices."""
    one, other, shared = (tmp_path / name for name in ("one", "other", "shared"))
    ready, lines = made_ready(eagle3(unbroken[0] / "data"), one), []
    Run(ready, one, "", lines.append, lambda: None).train()
    with pytest.raises(KeyboardInterrupt):
        Run(ready, other, "", lines.append, stopping_after(3)).train()
    assert checkpoint.steps_kept(other) == 2
    monkeypatch.setattr(loop, "time", types.SimpleNamespace(perf_counter=itertools.count().__next__))
    Run(ready, other, "", lines.append, lambda: None).train()
    [rate, _] = [row["tokens_per_second"] for row in metrics.read(other) if row["kind"] == "train"]
    assert 0 < 2 * rate <= 8 * 48  # two looks at the clock apart; of the one step that it took itself
    assert "goes on after step 2" in lines and timeless(one) == timeless(other)
    states = [jax.tree.leaves(last_state(folder)) for folder in (one, other)]
    assert all(np.array_equal(a, b) for a, b in zip(*states, strict=True))
    line = [sys.executable, __file__, str(unbroken[0] / "data"), str(shared)]
    done = subprocess.run(line, env=programs, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    losses = [[row["loss"] for row in metrics.read(folder) if row["kind"] == "train"] for folder in (one, shared)]
    assert len(losses[0]) == 2
    np.testing.assert_allclose(*losses, rtol=1e-4)


def stopping_after(steps):
    """A check that ends a run."""
    left = iter(range(steps))

    def check():
        if next(left) == steps - 1:
            raise KeyboardInterrupt(signal.SIGTERM)

    return check


REFUSED = {
    ("--config.evaluate.prompts=nowhere.jsonl",): "prompts='nowhere.jsonl': there is no such file",
    ("--config.draft.vocab=300",): "draft.vocab=300 must be at most 257, the tokens of toy://tiny",
    ("--config.data.top=300",): "data.top=300 must be at most 257",
    ("--config.data.exclude=('nowhere.jsonl',)",): "prompts='nowhere.jsonl': there is no such file",
    ("--config.data.length=2000",): "data.length=2000 must be at most 1024, the positions of toy://tiny",
}


@pytest.mark.parametrize("args", REFUSED, ids=lambda args: args[0])
def test_bad_input_is_one_line_and_nothing_is_written(args, main, tmp_path, capsys):
    assert REFUSED[args] in refused(main, capsys, tmp_path / "run", *args)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("file", "text", "said"),
    [
        ("draft/mine.txt", "keep me", "draft is there and holds no exported draft: name another folder"),
        ("draft/config.json", "{", "config.json: not JSON"),
        ("metrics.jsonl", "7\n", "metrics.jsonl:1: must be a JSON object, not int"),
        ("metrics.jsonl", '{"a": 1}\n', "metrics.jsonl:1: b'{\"a\": 1}\\n' is no line of a training run"),
        ("checkpoints/4/state", "", "holds a checkpoint and no metrics of its first evaluation: name another --workdir"),
    ],
)
def test_what_is_in_the_way_is_refused_before_training(main, tmp_path, capsys, file, text, said):
    path = tmp_path / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    assert said in refused(main, capsys, tmp_path)
    assert path.read_text() == text and not (tmp_path / "data").exists()


def test_another_config_in_the_folder_of_a_run_is_refused(main, tmp_path, capsys):
    Workdir(tmp_path).write("config.json", build_training.plan(tiny_training.get_config()).resolved())
    said = refused(main, capsys, tmp_path, "--config.optimizer.steps=13", "--config.data.top=9")
    assert "holds a run of another config (other data.top, optimizer.steps): name another folder" in said
    assert [path.name for path in tmp_path.iterdir()] == ["config.json"]


def refused(main, capsys, folder, *args) -> str:
    with pytest.raises(SystemExit) as stop:
        main(CONFIG, f"--workdir={folder}", *args)
    said = capsys.readouterr().err
    assert stop.value.code == 2 and said.startswith("error: ") and said.count("\n") == 1
    return said


def test_a_disk_that_is_full_while_data_are_made_is_no_bad_input(main, tmp_path, monkeypatch, capsys):
    def full(*parts):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(train.prepare, "ready", full)
    with pytest.raises(SystemExit) as stop:
        main(CONFIG, f"--workdir={tmp_path}")
    said = capsys.readouterr().err
    assert stop.value.code == 1 and said.startswith("error: ") and said.count("\n") == 1
    assert "No space left on device; no checkpoint is kept yet, to go on: python -m specjax.train" in said


ENDS = {
    KeyboardInterrupt(signal.SIGTERM): (143, "interrupted; "),
    FloatingPointError("step 9: the loss is not finite"): (1, "error: step 9: the loss is not finite; "),
}


@pytest.mark.parametrize("error", ENDS, ids=lambda e: type(e).__name__)
def test_a_run_that_ends_early_says_how_to_go_on(error, main, tmp_path, monkeypatch, capsys):
    class Ends:
        def __init__(self, *parts):
            (tmp_path / "checkpoints" / "8").mkdir(parents=True)
            (tmp_path / "checkpoints" / "10.orbax-checkpoint-tmp").mkdir()

        def train(self):
            raise error

    monkeypatch.setattr(train, "Run", Ends)
    monkeypatch.setattr(train.prepare, "ready", lambda *parts: None)
    with pytest.raises(SystemExit) as stop:
        main(CONFIG, f"--workdir={tmp_path}")
    code, said = ENDS[error]
    kept = f"the checkpoint after step 8 is kept, to go on: python -m specjax.train {CONFIG} --workdir={tmp_path}\n"
    assert stop.value.code == code and capsys.readouterr().err == said + kept


def last_state(folder):
    """Parameters and optimizer of the newest checkpoint."""
    import orbax.checkpoint as ocp

    with ocp.StandardCheckpointer() as reader:
        plain = reader.restore((folder / checkpoint.FOLDER / str(checkpoint.steps_kept(folder)) / "state").absolute())
    return {name: plain[name] for name in ("params", "optimizer", "step")}


if __name__ == "__main__":
    jax.config.update("jax_num_cpu_devices", 8)
    data, folder = map(pathlib.Path, sys.argv[1:])
    Run(made_ready(eagle3(data), folder), folder, "", print, lambda: None).train()
