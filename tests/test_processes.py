"""Two processes of four devices each: they agree, and decode and train as one device does.

This process has one device; what needs two processes is started by tests, and what they run is in here, too.
"""

import json
import os
import pathlib
import signal
import sys
import time

import commands
import jax
import numpy as np
import pytest
import test_sharding
import tiny_run
import tiny_talk
import tiny_training
import two_processes
from absl import flags
from safetensors.numpy import load_file

from specjax import Layout, build, build_training, mesh_of, processes, run
from specjax.bench import sweep
from specjax.bench.records import Workdir
from specjax.sharding import fetch
from specjax.training import checkpoint, metrics, prepare, step
from specjax.training.checkpoint import Checkpoints
from specjax.training.loop import Run

CASES = {  # of tests/test_sharding.py: programs of eight devices take long to compile
    "data:2,model:4": {test_sharding.table: [("chain", "p/q"), ("tree", "greedy")], test_sharding.transformer: [("tree", "p/q")]},
    "model:8": {test_sharding.transformer: [("chain", "coupled")]},
}
FOLDER = pathlib.Path(os.environ.get("FOLDER", ""))  # of what they say


pytestmark = pytest.mark.processes


# ---------------------------------------------------------------- what two processes run


def words() -> dict:
    """What each process gets to know."""
    mine = processes.index()
    small = np.float32([-0.0, np.nan, mine + 1.5]), np.int32(mine)
    return {
        "processes": [mine, processes.count(), jax.device_count(), jax.local_device_count()],
        "first": processes.first(lambda: {"from": (mine, processes.first(lambda: mine))}),
        "refused": said(lambda: processes.first(lambda: open(f"/nowhere/{mine}"))),
        "agreed": processes.agreed(lambda: mine),
        "one fails": said(lambda: processes.agreed(lambda: [0][mine])),
        "bad input": said(lambda: processes.agreed(lambda: int("x" * mine or "1"))),
        "both fail": said(lambda: processes.agreed(lambda: int(f"x{mine}"))),
        "another": said(lambda: processes.alike("config", {"seed": mine})),
        "alike": processes.alike("config", {"seed": 0}),
        "largest": processes.largest(7 * mine),
        "arrays": [x.tobytes().hex() for x in processes.arrays_of_first(lambda: small, small)],
        "on the way out": way_out(),
        "parted": said(lambda: processes.largest(0) if mine else processes.first(lambda: 0)),
        "no mesh": said(lambda: build.load(build.plan(tiny_run.get_config()))),
    }


def said(call) -> list:
    try:
        return [call()]
    except Exception as error:
        return [type(error).__name__, str(error), processes.shared(error), processes.speaks(error)]


def way_out():
    """One process ends by itself, what it still has to do it does alone; the other goes on to its next word."""
    try:
        try:
            if processes.index() == 0:
                raise KeyError("mine alone")
        finally:
            done = processes.first(lambda: "written") if processes.index() == 0 else "nothing to do"
    except KeyError:
        return [done, "left"]
    return [done, "stayed"]


def decoded() -> dict:
    """Tokens on one device and on all, by case. Process 0 alone has those of one."""
    jax.config.update("jax_enable_x64", True)
    found = {}
    for mesh, models in CASES.items():
        layout = Layout(mesh_of(mesh))
        for make, kinds in models.items():
            test_sharding.CASES[make] = kinds
            for name, tokens, _ in test_sharding.cases(make, layout, Layout(layout.mesh, model_axis=False)):
                found[f"{mesh} {make.__name__} {name}"] = [tokens]
            for name, tokens, _ in test_sharding.cases(make, None, None) if processes.index() == 0 else ():
                found[f"{mesh} {make.__name__} {name}"].append(tokens)
    jax.config.update("jax_enable_x64", False)
    return found


def trained() -> dict:
    """Losses of twenty steps, between which the run goes on from its checkpoint; and those of one device."""
    losses = {}
    for name, devices in {"one": jax.local_devices()[:1], "all": jax.devices()}.items():
        made = tiny_training.program(devices)
        state, losses[name] = step.start(made, made.kind.init()), []
        for i in range(20):
            if name == "all" and i == 11:
                with Checkpoints(FOLDER) as kept:
                    kept.save(state, {"feed": i}, 0.5)
                with Checkpoints(FOLDER) as kept:
                    state, data = kept.restore(step.start(made, made.kind.init()))
                    assert (kept.best, data) == (11, {"feed": 11})
                state = step.placed(made, state)
            state = tiny_training.train(made, [tiny_training.batch(i % 3)], state._replace(sums=step.placed(made, step.no_sums())))
            losses[name].append(float(state.sums["loss"] / state.sums["weight"]))
        losses[f"parameters of {name}"] = jax.tree.map(lambda x: x.tolist(), fetch(state.params))
    return losses


if __name__ == "__main__":
    flags.FLAGS(sys.argv)
    processes.join()
    told = {"words": words(), "trained": trained(), "decoded": decoded()}
    FOLDER.joinpath(f"{processes.index()}.json").write_text(json.dumps(told))
    processes.largest(0)  # nobody leaves before
    print("done")
    sys.exit()


# ---------------------------------------------------------------- what they found


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """What the two processes wrote, one after the other."""
    folder = tmp_path_factory.mktemp("two")
    (out, _), (other, _) = two_processes.ended(two_processes.start(4, __file__, FOLDER=str(folder)))
    assert out.endswith("done\n") and other == ""
    return [json.loads((folder / f"{i}.json").read_text()) for i in range(2)]


def test_process_0_decides_and_all_end_alike(told):
    one, other = (each["words"] for each in told)
    assert one.pop("processes") == [0, 2, 8, 4] and other.pop("processes") == [1, 2, 8, 4]
    assert one.pop("agreed") == 0 and other.pop("agreed") == 1
    assert one.pop("one fails") == ["RuntimeError", "process 1: IndexError: list index out of range", True, True]
    assert other.pop("one fails") == ["IndexError", "list index out of range", True, False]
    words = "invalid literal for int() with base 10: "
    assert one.pop("bad input") == ["ValueError", f"process 1: {words}'x'", True, True]
    assert other.pop("bad input") == ["ValueError", f"{words}'x'", True, False]
    assert one.pop("both fail") == ["ValueError", f"{words}'x0'", True, True]
    assert other.pop("both fail") == ["ValueError", f"process 0: {words}'x0'", True, False]
    assert one.pop("refused") == ["FileNotFoundError", "[Errno 2] No such file or directory: '/nowhere/0'", True, True]
    assert other.pop("refused") == ["FileNotFoundError", "[Errno 2] No such file or directory: '/nowhere/0'", True, False]
    another = "process 1 has another config than process 0: start all processes alike"
    assert one.pop("another") == ["ValueError", another, True, True] and other.pop("another") == ["ValueError", another, True, False]
    assert one.pop("on the way out") == ["written", "left"] and other.pop("on the way out") == ["nothing to do", "stayed"]
    mesh = "config.mesh=None leaves 2 processes without a common mesh: set it, as in 'data:8', over all their devices"
    rest = {
        "first": {"from": [0, 0]},
        "alike": None,
        "largest": 7,
        "arrays": [np.float32([-0.0, np.nan, 1.5]).tobytes().hex(), np.int32(0).tobytes().hex()],
        "parted": ["RuntimeError", "the processes went different ways: first, largest", False, True],  # each says it: it is a bug
        "no mesh": ["ValueError", mesh, False, True],
    }
    assert one == rest and other == rest


def test_tokens_are_those_of_one_device(told):
    one, other = (each["decoded"] for each in told)
    assert len(one) == 4 and all(len(tokens) == 2 and tokens[0] == tokens[1] for tokens in one.values())
    assert other == {name: tokens[:1] for name, tokens in one.items()}
    assert {tuple(map(len, tokens[0])) for tokens in one.values()} == {tuple(test_sharding.BUDGETS)}


def test_losses_are_those_of_one_device_and_go_on_from_a_checkpoint(told):
    one, other = (each["trained"] for each in told)
    assert len(one["one"]) == 20 and one["one"][-1] < 0.8 * one["one"][0]
    np.testing.assert_allclose(one["all"], one["one"], rtol=0, atol=1e-5)
    assert one["all"] == other["all"] and one["parameters of all"] == other["parameters of all"]


# ---------------------------------------------------------------- the commands


def test_a_run_makes_the_records_of_one_process(tmp_path):
    """Without a mesh. One device each: rows of a batch are split over the processes, and refilled. Stopped in one of them it ends in both,
    and goes on."""
    folder, alone = tmp_path / "run", Workdir(tmp_path / "alone")
    line = ["-m", "specjax.run", f"--config={tiny_talk.__file__}:p/q", "--config.batch=4", "--config.refill=True", "--config.mesh=data:2"]
    line, cache = [*line, f"--workdir={folder}"], {"SPECJAX_CACHE": str(tmp_path / "cache")}
    both, records = two_processes.start(1, *line, **cache), folder / "records.jsonl"
    while not records.exists() or records.read_bytes().count(b"\n") < 5:
        assert all(process.poll() is None for process in both), [process.communicate() for process in both]
        time.sleep(0.01)
    both[1].send_signal(signal.SIGTERM)
    two_processes.ended(both, 143)
    kept = records.read_bytes()
    (out, _), (none, nothing) = two_processes.ended(two_processes.start(1, *line, **cache))
    assert f"records, traces and summary: {folder}\n" in out and none == nothing == "" and records.read_bytes().startswith(kept)

    alone.create({})
    sweep.run(build.load(build.plan(tiny_talk.get_config("p/q"))), alone)
    records, expected = tiny_talk.timeless(Workdir(folder)), tiny_talk.timeless(alone)
    assert records.keys() == expected.keys()
    for key, row in expected.items():
        for name in ("logprobs", "overlap_sum", "expected_sum"):  # sums in another order
            np.testing.assert_allclose(np.float64(records[key].pop(name)), np.float64(row.pop(name)), rtol=1e-4, atol=1e-5)
    assert records == expected
    assert [arm["name"] for arm in json.loads((folder / "summary.json").read_text())["arms"]] == ["plain t=2", "p/q"]


def test_training_gives_the_losses_of_one_device(tmp_path):
    """Stopped in one of them it ends in both after the same step, and goes on at the last checkpoint."""
    folder, alone = tmp_path / "run", tmp_path / "alone"
    changes = {"optimizer.steps": 20, "optimizer.batch": 8, "log_every": 1, "evaluate.every": 10}
    line = ["-m", "specjax.train", f"--config={tiny_training.__file__}", *(f"--config.{name}={value}" for name, value in changes.items())]
    line, cache = [*line, f"--workdir={folder}"], {"SPECJAX_CACHE": str(tmp_path / "cache")}
    both = two_processes.start(4, *line, **cache)
    while (checkpoint.steps_kept(folder) or 0) < 6:
        assert all(process.poll() is None for process in both), [process.communicate() for process in both]
        time.sleep(0.01)
    both[1].send_signal(signal.SIGTERM)
    (_, said), (out, other) = two_processes.ended(both, 143)
    kept = checkpoint.steps_kept(folder)
    assert f"interrupted; the checkpoint after step {kept} is kept, to go on: python -m specjax.train --config" in said.splitlines()[-1]
    assert (out, other) == ("", "SIGTERM: ends after the program that is running; a second one ends at once\n") and 6 <= kept < 20
    (out, _), (none, nothing) = two_processes.ended(two_processes.start(4, *line, **cache))
    assert f"goes on after step {kept}\n" in out and none == nothing == ""

    config = tiny_training.get_config()
    config.update_from_flattened_dict(changes)
    plan = build_training.plan(config)
    Run(prepare.ready(plan, *prepare.loaded(plan), alone, print), alone, "", print, lambda: None).train()
    rows, expected = ([row for row in metrics.read(path) if row["kind"] == "train"] for path in (folder, alone))
    assert [row["step"] for row in rows] == list(range(1, 21))
    np.testing.assert_allclose([row["loss"] for row in rows], [row["loss"] for row in expected], rtol=0, atol=1e-5)
    assert load_file(folder / "draft" / "model.safetensors").keys() == load_file(alone / "draft" / "model.safetensors").keys()


# ---------------------------------------------------------------- how they meet

BAD = {
    ("--processes=2", "--process=0"): "--coordinator (or JAX_COORDINATOR_ADDRESS) is missing: processes meet by all of",
    ("--coordinator=here:1", "--processes=2"): "--process (or JAX_PROCESS_ID) is missing",
    ("--coordinator=here", "--processes=2", "--process=0"): "--coordinator=here should be HOST:PORT",
    ("--coordinator=here:1", "--processes=2", "--process=2"): "--process=2 must be one of 0 to 1: --processes=2",
    ("--coordinator=here:1", "--processes=2", "--process=-1"): "--process=-1 must be a whole number of at least 0",
    ("JAX_COORDINATOR_ADDRESS=here:1", "JAX_NUM_PROCESSES=two", "JAX_PROCESS_ID=0"): "JAX_NUM_PROCESSES=two must be a whole number",
}


@pytest.mark.parametrize("given", BAD, ids=" ".join)
def test_how_they_cannot_meet_is_one_line(given, monkeypatch, capsys):
    for one in given:
        if not one.startswith("--"):
            monkeypatch.setenv(*one.split("="))
    with pytest.raises(SystemExit) as stop:
        commands.call(run, monkeypatch, f"--config={tiny_run.__file__}", *(one for one in given if one.startswith("--")))
    error = capsys.readouterr().err
    assert stop.value.code == 2 and error.startswith("error: ") and error.count("\n") == 1 and BAD[given] in error


def test_flags_and_the_environment_say_the_same(monkeypatch):
    assert joined(monkeypatch, []) == []
    assert joined(monkeypatch, ["--distributed"]) == [[None, None, None]]
    for name, value in zip(processes.ENVIRONMENT.values(), ("there:7", "3", "1"), strict=True):
        monkeypatch.setenv(name, value)
    assert joined(monkeypatch, []) == [["there:7", 3, 1]]
    assert joined(monkeypatch, ["--coordinator=here:8", "--process=2"]) == [["here:8", 3, 2]]


def joined(monkeypatch, args) -> list:
    """What JAX is asked for."""
    asked, names = [], ("coordinator_address", "num_processes", "process_id")
    monkeypatch.setattr(jax.distributed, "initialize", lambda **named: asked.append([named[name] for name in names]))
    flags.FLAGS.unparse_flags()
    flags.FLAGS(["", *args])
    processes.join()
    flags.FLAGS.unparse_flags()
    return asked


def test_processes_that_do_not_find_each_other(monkeypatch):
    def initialize(**named):
        raise RuntimeError("DEADLINE_EXCEEDED: nobody came")

    monkeypatch.setattr(jax.distributed, "initialize", initialize)
    flags.FLAGS.unparse_flags()
    flags.FLAGS(["", "--distributed"])
    with pytest.raises(ValueError, match="the processes did not meet: DEADLINE_EXCEEDED: nobody came"):
        processes.join()
    flags.FLAGS.unparse_flags()


def test_one_process_needs_nobody():
    assert processes.first(lambda: 3) == processes.agreed(lambda: 3) == processes.largest(3) == 3
    assert processes.alike("config", 0) is None and processes.speaks() and processes.count() == 1
