import jax
import pytest
import tiny_run

from specjax.bench import measure
from specjax.bench.measure import Costs


def test_calls_take_turns_and_the_median_counts(monkeypatch):
    clock, order = [0.0], []
    seconds = {"a": iter([9, 1, 5, 2]), "b": iter([9, 4, 4, 7])}  # the first of each compiles and is not counted

    def call(name):
        def run():
            order.append(name)
            clock[0] += next(seconds[name])

        return run

    monkeypatch.setattr(measure.time, "perf_counter", lambda: clock[0])
    assert measure.interleaved({n: call(n) for n in "ab"}, repeats=3) == {"a": 2, "b": 4}
    assert order == list("abababab")


def test_costs_are_in_plain_steps_of_the_arms_own_sampling():
    workdir, _ = tiny_run.finished()
    costs = {name: Costs.from_json(row) for name, row in workdir.read("manifest.json")["costs"].items()}
    assert list(costs) == tiny_run.ARMS
    assert costs["plain greedy"].v == {1: 1.0} and costs["plain greedy"].c == 0
    assert list(costs["match"].v) == [1, 3] and costs["match"].v[1] == 1.0 and costs["match"].c > 0
    assert costs["coupled"].step_seconds == costs["plain t=0.7"].step_seconds > costs["match"].step_seconds
    assert Costs.from_json(costs["match"].to_json()) == costs["match"]


def test_the_cost_of_a_draft_is_shared_out_over_its_tokens(monkeypatch):
    experiment = tiny_run.experiment()
    arm = next(a for a in experiment.arms if a.name == "match")
    monkeypatch.setattr(measure, "interleaved", lambda calls, repeats=0: dict.fromkeys(calls, 8.0))
    assert measure.draft_seconds(experiment, arm) == pytest.approx(8.0 / (measure.TURNS * 2))  # most = 2


def test_peak_memory_only_grows():
    first = measure.peak_memory_bytes()
    held = jax.block_until_ready(jax.numpy.ones(40_000_000))
    assert first > 2**20 and measure.peak_memory_bytes() >= first and held.nbytes == 160_000_000
