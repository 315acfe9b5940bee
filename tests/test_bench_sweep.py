import dataclasses

import pytest
import tiny_run

from specjax import decode
from specjax.bench import sweep
from specjax.bench.records import Workdir


def outputs(workdir):
    return {(r["arm"], r["question_id"], r["repeat"]): (r["token_ids"], r["rounds"]) for r in workdir.records()}


def test_arms_of_one_program_compile_once():
    workdir, _ = tiny_run.finished()
    notes = workdir.read("manifest.json")
    seconds = notes["seconds"]["compile"]
    assert seconds["one"] == {"prefill": 0.0, "decode": 0.0} and notes["compiled_programs"] == 6 + 3  # of prefill one a drafter
    assert all(seconds[name]["decode"] > 0 for name in tiny_run.ARMS if name != "one")
    assert notes["costs"]["one"] == notes["costs"]["match"]


def test_two_runs_give_the_same_tokens_and_compile_nothing_again(tmp_path):
    first, _ = tiny_run.finished()
    before = decode.generate._cache_size(), decode.feed_prompts._cache_size()
    again = Workdir(tmp_path)
    again.create({})
    sweep.run(tiny_run.experiment(), again)
    assert outputs(again) == outputs(first)
    assert (decode.generate._cache_size(), decode.feed_prompts._cache_size()) == before


def test_a_run_goes_on_at_the_first_missing_record(tmp_path):
    experiment, seen = tiny_run.experiment(), []

    def stop_after(count):
        def progress(jobs):
            for i, job in enumerate(jobs):
                if i == count:
                    return
                seen.append((job[0].name, job[1][0].prompt.question_id))
                yield job

        return progress

    workdir = Workdir(tmp_path)
    workdir.create({})
    sweep.run(experiment, workdir, stop_after(8))
    assert len(outputs(workdir)) == 8
    sweep.run(experiment, workdir, stop_after(99))
    assert len(seen) == len(set(seen)) == 28 and outputs(workdir) == outputs(tiny_run.finished()[0])


def test_repeats_and_batches_give_the_same_tokens(tmp_path):
    """Three prompts in batches of two: the last batch is filled up, and its spare row leaves no trace."""
    whole = tiny_run.experiment()
    plan = dataclasses.replace(whole.plan, batch=2, repeats=2)
    arms = tuple(a for a in whole.arms if a.name in ("plain greedy", "match"))
    experiment = dataclasses.replace(whole, plan=plan, arms=arms, prompts=whole.prompts[:3])
    workdir = Workdir(tmp_path)
    workdir.create({})
    sweep.run(experiment, workdir)
    alone, got = outputs(tiny_run.finished()[0]), outputs(workdir)
    assert len(got) == 2 * 3 * 2
    assert all(tokens == alone[arm, name, 0] for (arm, name, _), tokens in got.items())
    file = tmp_path / "records.jsonl"
    file.write_text("".join(file.read_text().splitlines(keepends=True)[1:]))  # one of a batch is lost: only that one comes back
    sweep.run(experiment, workdir)
    assert len(list(workdir.records())) == 12 and outputs(workdir) == got


def test_all_buffers_have_the_size_of_the_run():
    experiment = dataclasses.replace(tiny_run.experiment(), size=384)
    for arm in experiment.arms:
        assert sweep._start(experiment, arm, experiment.prompts[:1]).token_BS.shape == (1, 384)


def test_a_run_of_other_prompts_or_weights_is_not_continued(tmp_path):
    experiment, (workdir, _) = tiny_run.experiment(), tiny_run.finished()
    sweep.check(experiment, workdir)
    sweep.check(experiment, Workdir(tmp_path))
    first, *rest = experiment.prompts
    for changed in (
        {"prompts": (first._replace(tokens=[1, 2, 3]), *rest)},
        {"prompts": tuple(rest)},
        {"target": dataclasses.replace(experiment.target, sha256="other")},
    ):
        with pytest.raises(ValueError, match="the prompts or the weights have changed since this run began"):
            sweep.check(dataclasses.replace(experiment, **changed), workdir)
