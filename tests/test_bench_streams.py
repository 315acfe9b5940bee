import itertools

import numpy as np
import pytest
import tiny_talk

from specjax import decode
from specjax.bench import streams, summary, sweep
from specjax.bench.measure import Costs
from specjax.bench.plan import Task
from specjax.bench.records import Workdir


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


def test_the_seconds_of_a_stream_are_shared_out_by_passes(monkeypatch):
    clock = itertools.count(0.0, 8.0)
    monkeypatch.setattr(streams.time, "perf_counter", lambda: next(clock))
    experiment = tiny_talk.experiment(refill=True)
    arm = next(a for a in experiment.arms if a.name == "match")
    stream = [task for batch in sweep.batches(experiment) for task in batch if task.arm is arm and task.turn == 0]
    rows = [row for _, row, _ in streams.decode_stream(experiment, stream, {})]
    assert len(rows) == 7 and all(row["seconds"]["prefill"] is None for row in rows)
    for part in (rows[:3], rows[3:6], rows[6:]):  # of a batch each, 8 seconds from one reading of the clock to the next
        passes = sum(row["counts"]["passes"] for row in part)
        assert [row["seconds"]["decode"] for row in part] == [8.0 * row["counts"]["passes"] / passes for row in part]


def test_what_a_stream_cannot_say_is_null():
    experiment = tiny_talk.experiment(refill=True)
    costs = {arm.name: Costs({1: 1.0, 3: 1.5}, 0.1, 0.0, 0.01) for arm in experiment.arms}
    compiled = {arm.name: {} for arm in experiment.arms}
    rows = list(tiny_talk.finished(refill=True).records())
    for row in summary.summarise(experiment, rows, costs, compiled, {}, [])["arms"]:
        assert row["prefill_seconds"] is None and row["time_to_first_token"] is None and row["predicted_speedup"] is None
        assert row["speedup"]["value"] > 0 and row["speedup"]["low"] is None and row["decode_seconds"] > 0
