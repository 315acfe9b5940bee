import copy
import dataclasses
import types

import jax
import numpy as np
import pytest
import tiny_run

import specjax
from specjax import Sampling
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


def test_a_transfer_while_the_clock_runs_is_an_error():
    """The tiny run, whose records are made under the same clock, has none."""
    add, on_device = jax.jit(lambda x: x + x), jax.numpy.ones(3)
    assert measure.timed(lambda: add(on_device))[0].tolist() == [2, 2, 2]
    with pytest.raises(jax.errors.JaxRuntimeError, match="Disallowed host-to-device transfer"):
        measure.timed(lambda: add(np.ones(3, np.float32)))
    assert set(tiny_run.finished()[0].read("manifest.json")["costs"]) == set(tiny_run.ARMS)


def test_costs_are_in_plain_steps_of_the_arms_own_sampling():
    workdir, _ = tiny_run.finished()
    costs = {name: Costs.from_json(row) for name, row in workdir.read("manifest.json")["costs"].items()}
    assert list(costs) == tiny_run.ARMS
    assert costs["plain greedy"].v == {1: 1.0} and costs["plain greedy"].c == costs["plain greedy"].catch_up == 0
    assert list(costs["match"].v) == [1, 3] and costs["match"].v[1] == 1.0 and costs["match"].c > 0
    assert costs["coupled"].step_seconds == costs["plain t=0.7"].step_seconds > costs["match"].step_seconds
    assert Costs.from_json(costs["match"].to_json()) == costs["match"]


def arm_named(name):
    return next(a for a in tiny_run.experiment().arms if a.name == name)


def test_the_cost_of_a_draft_is_shared_out_over_its_tokens(monkeypatch):
    monkeypatch.setattr(measure, "interleaved", lambda calls, repeats=0: dict(zip(calls, (8.0, 11.0), strict=True)))
    c, catch_up = measure.draft_seconds(tiny_run.experiment(), arm_named("match"))
    assert c == pytest.approx(8.0 / (measure.TURNS * 2))  # most = 2
    assert catch_up == pytest.approx(3.0 / (measure.TURNS - 1))  # the first turn of a call follows nothing
    monkeypatch.setattr(measure, "interleaved", lambda calls, repeats=0: dict(zip(calls, (8.0, 7.0), strict=True)))
    assert measure.draft_seconds(tiny_run.experiment(), arm_named("match"))[1] == 0.0
    branching = specjax.Decoder(tiny_run.experiment().target, drafter=specjax.NGram(most=2, branches=3))
    c, _ = measure.draft_seconds(tiny_run.experiment(), arm_named("match")._replace(decoder=branching))
    assert c == pytest.approx(8.0 / (measure.TURNS * 6))  # however many matches this prompt has


def test_a_draft_model_reads_one_token_more_after_full_acceptance(monkeypatch):
    """Passes of the draft model in the two timed loops, counted while they run."""
    passes, fed, calls = [0], [], {}
    arm = arm_named("draft model")

    class Counting(type(arm.decoder.setup.drafter.model)):
        def forward(self, params, token_BT, cache, cursor_B, **more):
            jax.debug.callback(lambda: passes.__setitem__(0, passes[0] + 1))
            return super().forward(params, token_BT, cache, cursor_B, **more)

    drafter = arm.decoder.setup.drafter
    model = Counting(**{f.name: getattr(drafter.model, f.name) for f in dataclasses.fields(drafter.model)})
    decoder = copy.copy(arm.decoder)
    decoder.setup = dataclasses.replace(decoder.setup, drafter=dataclasses.replace(drafter, model=model))
    monkeypatch.setattr(measure, "interleaved", lambda given, repeats=0: calls.update(given) or dict.fromkeys(given, 1.0))
    measure.draft_seconds(tiny_run.experiment(), arm._replace(decoder=decoder))
    for _ in range(3):  # the first is not counted, as in `interleaved`; each finds the drafter's cache where the other left it
        for name in ("level", "late"):
            jax.effects_barrier()
            passes[0] = 0
            jax.block_until_ready(calls[name]())
            jax.effects_barrier()
            fed.append(passes[0])
    level = measure.TURNS * 3  # most = 3
    assert fed[2:] == [level, level + measure.TURNS - 1] * 2


def test_only_arms_of_one_program_share_costs(monkeypatch):
    """Two draft models of one structure and two sizes, and a filter with two numbers."""
    experiment, asked = tiny_run.experiment(), []
    arm, small = arm_named("draft model"), arm_named("draft model")
    setup = arm.decoder.setup
    wide = jax.tree.map(lambda x: np.concatenate([x, x]), setup.drafter.params)

    def changed(name, **parts):
        decoder = copy.copy(arm.decoder)
        decoder.setup = dataclasses.replace(setup, **parts)
        return arm._replace(name=name, decoder=decoder)

    narrow, open_ = (dataclasses.replace(setup.sampling, top_p=np.float32(p)) for p in (0.5, 0.95))
    arms = (
        small,
        changed("same", seed=jax.random.key(9)),
        changed("wide", drafter=dataclasses.replace(setup.drafter, params=wide)),
        changed("narrow", sampling=narrow),
        changed("open", sampling=open_),
    )
    monkeypatch.setattr(measure, "pass_seconds", lambda e: dict.fromkeys(e.widths, 1.0))
    monkeypatch.setattr(measure, "choice_seconds", lambda e, own, law: asked.append(law) or dict.fromkeys(e.widths, float(len(asked))))
    monkeypatch.setattr(measure, "draft_seconds", lambda e, a: asked.append(a.name) or (1.0, 0.5))
    costs = measure.costs(dataclasses.replace(experiment, arms=arms))
    assert asked == [setup.sampling, "draft model", "wide", narrow, "narrow", open_]
    assert costs["draft model"] == costs["same"] and costs["narrow"].step_seconds != costs["open"].step_seconds
    assert costs["draft model"].c == 0.5 and costs["draft model"].catch_up == 0.25


def test_choices_are_timed_on_the_targets_own_logits(monkeypatch):
    experiment, seen = tiny_run.experiment(), {}
    monkeypatch.setattr(measure, "_choices", lambda own, law, seed, logits_BTV, *rest: seen.update({logits_BTV.shape[1]: logits_BTV}))
    measure.choice_seconds(experiment, (), arm_named("coupled").decoder.setup.sampling)
    target, tokens = experiment.target, experiment.prompts[0].tokens
    cache = target.model.init_cache(1, 128, np.float32)
    hidden, _, _ = target.model.forward(target.params, np.asarray([tokens]), cache, np.zeros(1, np.int32))
    logits_TV = np.asarray(target.model.head(target.params, hidden)[0])
    assert sorted(seen) == list(experiment.widths)
    for width, logits_BTV in seen.items():
        np.testing.assert_allclose(logits_BTV[0], logits_TV[-width:], rtol=0, atol=1e-4)
    short = experiment.prompts[0]._replace(tokens=tokens[:2])
    again_TV = measure._prompt_logits(dataclasses.replace(experiment, prompts=(short,)), 3)
    np.testing.assert_allclose(again_TV, logits_TV[[1, 0, 1]], rtol=0, atol=1e-4)


def test_a_greedy_choice_under_a_processor_draws_no_noise(monkeypatch):
    """As in a round: it would weigh more than the penalty itself."""
    monkeypatch.setattr(measure.sampling, "draw", lambda *_: pytest.fail("noise was drawn"))
    logits_BTV = np.zeros((1, 2, 9), np.float32)
    inputs = jax.random.key(0), logits_BTV, np.zeros((1, 128), np.int32), np.int32(2)
    assert int(measure._choices((), Sampling(repetition=np.float32(1.5)), *inputs)) >= 0


def test_peak_memory_is_the_devices_where_it_says_and_else_the_processs(monkeypatch):
    device = types.SimpleNamespace(memory_stats=lambda: {"peak_bytes_in_use": 7})
    monkeypatch.setattr(measure.jax, "local_devices", lambda: [device])
    assert measure.peak_memory_bytes() == 7
    device.memory_stats = lambda: None
    monkeypatch.setattr(measure.resource, "getrusage", lambda who: types.SimpleNamespace(ru_maxrss=3))
    for platform, peak in (("linux", 3 * 1024), ("darwin", 3)):  # kilobytes there, bytes here
        monkeypatch.setattr(measure.sys, "platform", platform)
        assert measure.peak_memory_bytes() == peak
