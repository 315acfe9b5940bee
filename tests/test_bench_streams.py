import dataclasses
import itertools

import numpy as np
import pytest
import tiny_talk

from specjax import decode
from specjax.bench import measure, streams, summary, sweep
from specjax.bench.measure import Costs
from specjax.bench.plan import Task
from specjax.bench.records import Workdir
from specjax.state import RUNNING


def test_the_same_tokens_as_without():
    """Batches of three, seven prompts of one to three turns, greedy and p/q."""
    plain, refilled = tiny_talk.timeless(tiny_talk.finished()), tiny_talk.timeless(tiny_talk.finished(refill=True))
    assert set(plain) == set(refilled)
    for key, record in plain.items():
        other = refilled[key]
        approximate = {k: (record.pop(k), other.pop(k)) for k in ("logprobs", "overlap_sum", "expected_sum")}
        assert record == other
        for one, two in approximate.values():
            np.testing.assert_allclose(one, two, atol=1e-4)


def test_arms_take_turns_as_wholes_and_turns_wait_for_each_other():
    order = [(r["turn"], r["arm"]) for r in tiny_talk.finished(refill=True).records()]
    arms = [arm.name for arm in tiny_talk.experiment().arms]
    assert list(dict.fromkeys(order)) == list(itertools.product(range(3), arms))
    assert order == sorted(order, key=lambda pair: (pair[0], arms.index(pair[1])))


def test_nothing_is_compiled_while_a_stream_is_timed():
    """Not even by a stream that is shorter than a batch."""

    def compiled():
        return decode.generate._cache_size(), decode.feed_prompts._cache_size(), decode.put_row._cache_size()

    experiment = tiny_talk.experiment(refill=True)
    sweep.warm_up(experiment)
    before = compiled()
    for arm in experiment.arms:
        stream = [Task(arm, encoded) for encoded in experiment.prompts]
        assert len(list(streams.decode_stream(experiment, stream[:2], {}))) == 2
        assert len(list(streams.decode_stream(experiment, stream[:5], {}))) == 5
    assert compiled() == before
    assert list(sweep.programs(experiment, experiment.arms[0])) == ["prefill", "decode", "prefill_row", "refill"]


def test_only_what_is_missing_is_decoded(tmp_path):
    whole = tiny_talk.finished(refill=True)
    lines = (whole.path / "records.jsonl").read_text().splitlines(keepends=True)
    workdir, seen = Workdir(tmp_path), []
    workdir.create({})
    (tmp_path / "records.jsonl").write_text("".join(lines[:17] + lines[18:-1]))
    for r in workdir.records():
        (tmp_path / r["trace"]).write_bytes((whole.path / r["trace"]).read_bytes())
    sweep.run(tiny_talk.experiment(refill=True), workdir, lambda tasks: seen.extend(tasks) or iter(tasks))
    assert len(seen) == 2
    plain, again = tiny_talk.timeless(whole), tiny_talk.timeless(workdir)
    assert {k: r["token_ids"] for k, r in again.items()} == {k: r["token_ids"] for k, r in plain.items()}


def test_progress_counts_records_and_an_interrupt_keeps_those_that_were_finished(tmp_path):
    workdir = Workdir(tmp_path)
    workdir.create({})

    def stop(tasks):
        yield from tasks[:3]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sweep.run(tiny_talk.experiment(refill=True), workdir, stop)
    assert len(list(workdir.records())) == 3


def test_a_prompt_is_charged_for_its_row_while_the_batch_is_full(monkeypatch):
    """Each call to the loop takes 8 seconds, each prefill too, of three rows at first, and so does putting a row in. Until the last of
    seven prompts ends no row is ever without one: a prompt pays a third of every call that it ran in."""
    clock, held = itertools.count(0.0, 8.0), []
    monkeypatch.setattr(measure.time, "perf_counter", lambda: next(clock))
    experiment = tiny_talk.experiment(refill=True)
    arm = next(a for a in experiment.arms if a.name == "match")
    stream = [task for batch in sweep.batches(experiment) for task in batch if task.arm is arm and task.turn == 0]

    def watched(self, state, running):
        held.append(int(np.sum(np.asarray(state.finish_B) == RUNNING)))
        return until(self, state, running)

    until = streams.Timed.generate_until
    monkeypatch.setattr(streams.Timed, "generate_until", watched)
    rows = {task.id: row for task, row, _ in streams.decode_stream(experiment, stream, {})}
    order = [rows[task.id] for task in stream]
    assert len(order) == 7 and set(held) == {3}
    assert [row["seconds"]["prefill"] for row in order] == [8 / 3] * 3 + [16.0] * 4
    calls = spans([row["counts"]["passes"] for row in order], 3)
    assert [row["seconds"]["decode"] for row in order] == pytest.approx([8 / 3 * n for n in calls])
    assert len(set(calls)) > 2


def spans(passes, rows: int) -> list[int]:
    """Calls of the loop in which each prompt ran, if a call ends as soon as a row does and the next prompt takes that row."""
    left, began, spans, call = [[n, passes[n]] for n in range(rows)], dict.fromkeys(range(rows), 0), {}, 0
    following = itertools.count(rows)
    while len(spans) < len(passes):
        rounds, call = min(need for _, need in left), call + 1
        for row, (number, need) in enumerate(left):
            left[row][1] = need - rounds
            if need == rounds:
                if number < len(passes):
                    spans[number] = call - began[number]
                number = next(following)
                began[number], left[row] = call, [number, passes[number % len(passes)]]
    return [spans[n] for n in range(len(passes))]


def test_each_repeat_is_another_order_and_one_measurement():
    """Of prompts, the same for all arms, and of arms."""
    experiment = tiny_talk.experiment(refill=True)
    experiment = dataclasses.replace(experiment, plan=dataclasses.replace(experiment.plan, repeats=2, samples=1))
    todo = [task for batch in sweep.batches(experiment) for task in batch if task.turn == 0]
    found = list(streams.split(experiment, todo))
    names, ids = [stream[0].arm.name for stream in found], [[task.id for task in stream] for stream in found]
    arms = [arm.name for arm in experiment.arms]
    assert names == arms + arms[1:] + arms[:1]
    assert ids[0] == [task.id for task in todo if task.arm.name == arms[0] and task.repeat == 0]
    assert ids[len(arms)] != ids[0] and sorted(ids[len(arms)]) == sorted(ids[0])
    for i, stream in enumerate(ids):
        assert stream == ids[i // len(arms) * len(arms)]


def test_an_interval_is_over_repeats():
    """Three, in which plain took 1, 2 and 4 times as long: as `test_bench_summary` has it."""
    experiment, rows = tiny_talk.experiment(refill=True), []
    for r in tiny_talk.finished(refill=True).records():
        slow = r["arm"].startswith("plain")
        rows += [{**r, "repeat": n, "seconds": {"prefill": 1.0, "decode": 2.0**n if slow else 1.0}} for n in range(3)]
    costs = {arm.name: Costs({1: 1.0, 3: 1.5}, 0.1, 0.0, 0.01) for arm in experiment.arms}
    for row in summary.summarise(experiment, rows, costs, {arm.name: {} for arm in experiment.arms}, {}, [])["arms"]:
        if not row["name"].startswith("plain"):
            assert row["speedup"] == pytest.approx({"value": 7 / 3, "low": 0.35744, "high": 11.19111}, rel=1e-4)


def test_what_a_stream_cannot_say_is_null():
    experiment = tiny_talk.experiment(refill=True)
    costs = {arm.name: Costs({1: 1.0, 3: 1.5}, 0.1, 0.0, 0.01) for arm in experiment.arms}
    compiled = {arm.name: {} for arm in experiment.arms}
    rows = list(tiny_talk.finished(refill=True).records())
    for row in summary.summarise(experiment, rows, costs, compiled, {}, [])["arms"]:
        assert row["time_to_first_token"] is None and row["predicted_speedup"] is None
        assert row["speedup"]["value"] > 0 and row["speedup"]["low"] is None and row["decode_seconds"] > 0
