"""Measured costs in the policies that weigh them: before a run, and when it goes on."""

import dataclasses
import functools
import types

import jax
import numpy as np
import pytest
import tiny_run
from loop import mixed, random_lm

from specjax import NGram, api, build
from specjax.bench import measure, pricing, sweep
from specjax.bench.measure import Costs
from specjax.bench.records import Workdir
from specjax.lengths import EVERYTHING
from specjax.shapes import parse

LENGTHS = {
    "optimal": dict(name="optimal", share=0.25, weight=0.5, memory=0.5),
    "own": dict(name="optimal", v=(1.0, 1.25, 1.5)),
    "aside": dict(name="stand_aside", policy=dict(name="heuristic", start=1)),
}


def config():
    config = tiny_run.get_config().copy_and_resolve_references()
    config.unlock()
    draft = dict(name="model", source="toy://tiny/1", most=2)
    config.arms = tuple(dict(name=n, drafter=draft, length=x, sampling=tiny_run.PQ, ladder=(1, 2, 3)) for n, x in LENGTHS.items())
    config.prompts.limit = 2
    return config


@functools.cache
def table(source, dtype, layout):
    """Tables of laws with the tokenizer of the tiny model: their programs compile fast."""
    target = random_lm(0, 1, 257, 0.01)
    made = target if source == "toy://tiny" else mixed(target, 1, 0.6)
    return dataclasses.replace(made, params=jax.device_put(made.params), tokenizer=api.load("toy://tiny").tokenizer)


@functools.cache
def experiment(*names):
    made = build.load(build.plan(config()), table)
    return dataclasses.replace(made, arms=tuple(arm for arm in made.arms if arm.plain or not names or arm.name in names))


def setups(experiment):
    return {arm.name: arm.decoder.setup for arm in experiment.arms if not arm.plain}


def known(experiment, v=1.125):
    return {arm.name: Costs({1: 1.0, 2: v, 3: v + 0.125}, 0.125, 0.0625, 0.01) for arm in experiment.arms}


def test_costs_are_numbers_of_the_same_program():
    before, after = setups(experiment()), setups(pricing.priced(experiment(), known(experiment())))
    for name in LENGTHS:
        assert measure.program_key(before[name]) == measure.program_key(after[name])
    for name in ("optimal", "aside"):
        assert before[name].length.v.tolist() == [np.inf] * 3 and after[name].length.v.tolist() == [1, 1.125, 1.25]
        assert (after[name].length.c, after[name].length.catch_up) == (0.125, 0.0625)
    assert after["optimal"].length.share == 0.25 and after["aside"].length.policy.start == 1
    assert after["own"].length.v.tolist() == [1, 1.25, 1.5] and after["own"].length.c == 0  # what a config gives is not measured


def test_costs_do_not_depend_on_what_stops_a_draft(monkeypatch):
    asked = []
    monkeypatch.setattr(measure, "pass_seconds", lambda e: dict.fromkeys(e.widths, 1.0))
    monkeypatch.setattr(measure, "choice_seconds", lambda e, own, law: dict.fromkeys(e.widths, 1.0))
    monkeypatch.setattr(measure, "draft_seconds", lambda e, arm: asked.append(arm.decoder.setup.length.k) or (1.0, 0.5))
    costs = measure.costs(experiment())
    assert asked == [EVERYTHING]  # once for all policies
    assert costs["optimal"] == costs["own"] == costs["aside"] == Costs({1: 1.0, 2: 1.0, 3: 1.0}, 0.5, 0.25, 2.0)
    assert type(setups(experiment())["optimal"].length).__name__ == "Optimal"  # of a copy


def test_nodes_of_a_draft_by_its_depth():
    assert pricing.nodes_by_depth(NGram(most=3)) == [1, 2, 3, 4]
    assert pricing.nodes_by_depth(NGram(most=3, branches=2)) == [1, 3, 5, 7]
    assert pricing.nodes_by_depth(types.SimpleNamespace(most=3)) == [1, 2, 3, 4]
    shape = parse("2x2")
    assert pricing.nodes_by_depth(types.SimpleNamespace(shape=shape, most=2, nodes=7)) == [1, 3, 7]
    assert pricing.nodes_by_depth(types.SimpleNamespace(most=3, nodes=9)) == [1, 9, 9, 9]  # it may have all of them on one level


def outputs(workdir):
    return {(r["arm"], r["question_id"]): (r["token_ids"], r["rounds"]) for r in workdir.records()}


def test_a_run_that_goes_on_takes_its_costs_from_the_manifest(tmp_path, monkeypatch):
    """And says what it would have said in one go. With other costs it would have drafted otherwise."""

    class Stop(Exception):
        pass

    def stopping(jobs):
        for i, job in enumerate(jobs):
            if i == 2:
                raise Stop
            yield job

    def run(name, v, progress=iter):
        monkeypatch.setattr(measure, "costs", lambda e: known(e, v))
        workdir = Workdir(tmp_path / name)
        sweep.whole(experiment("optimal"), workdir, ["python"], say=lambda line: None, progress=progress)
        return outputs(workdir)

    whole = run("whole", 1.125)
    with pytest.raises(Stop):
        run("stopped", 1.125, stopping)
    assert len(outputs(Workdir(tmp_path / "stopped"))) == 2
    assert run("stopped", 99.0) == whole  # no longer measured
    other = run("other", 99.0)
    drafted = lambda made: {n for (arm, _), (_, rounds) in made.items() if arm == "optimal" for n in rounds["drafted"]}
    assert drafted(whole) == {0, 1, 2} and drafted(other) == {0}
    priced = sweep.priced(experiment("optimal"), Workdir(tmp_path / "stopped"))
    assert setups(priced)["optimal"].length.v.tolist() == [1, 1.125, 1.25]


def test_a_ladder_that_does_not_fit_is_refused():
    bad = config()
    bad.arms = ({**bad.arms[0], "ladder": (1, 2)},)
    with pytest.raises(ValueError, match=r"arm 'optimal': ladder=\(1, 2\) must ascend from at least 1 to the drafter's"):
        build.load(build.plan(bad), table)
