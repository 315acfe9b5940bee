import dataclasses

import pytest
import tiny_run
import tiny_talk

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
    sizes = []
    for name in "ab":  # the first may have to compile: programs are forgotten between modules
        again = Workdir(tmp_path / name)
        again.create({})
        sweep.run(tiny_run.experiment(), again)
        assert outputs(again) == outputs(first)
        sizes.append((decode.generate._cache_size(), decode.feed_prompts._cache_size()))
    assert sizes[0] == sizes[1]


def test_a_run_goes_on_at_the_first_missing_record(tmp_path):
    experiment, seen = tiny_run.experiment(), []

    def stop_after(count):
        def progress(jobs):
            for i, job in enumerate(jobs):
                if i == count:
                    return
                seen.append([task.key for task in job])
                yield job

        return progress

    workdir = Workdir(tmp_path)
    workdir.create({})
    sweep.run(experiment, workdir, stop_after(8))
    assert len(outputs(workdir)) == 8
    sweep.run(experiment, workdir, stop_after(99))
    assert len(seen) == len({key for [key] in seen}) == 28 and outputs(workdir) == outputs(tiny_run.finished()[0])


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
        assert sweep._start(experiment, sweep.first_batch(experiment, arm), {})[0].token_BS.shape == (1, 384)


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
        with pytest.raises(ValueError, match="the prompts, the weights or a part of your own have changed since this run began"):
            sweep.check(dataclasses.replace(experiment, **changed), workdir)


def test_a_manifest_or_records_that_are_not_this_runs_are_refused(tmp_path):
    experiment, whole = tiny_run.experiment(), tiny_run.finished()[0]
    notes = whole.read("manifest.json")
    workdir = Workdir(tmp_path)
    for lost in ("fingerprint", "costs", "seconds", "wall_seconds"):
        workdir.write("manifest.json", {k: v for k, v in notes.items() if k != lost})
        with pytest.raises(ValueError, match=r"manifest.json: is no whole manifest: name another folder"):
            sweep.check(experiment, workdir)
    workdir.write("manifest.json", notes)
    lines = (whole.path / "records.jsonl").read_text()
    (tmp_path / "records.jsonl").write_text(lines.replace('"arm": "one"', '"arm": "gone"', 1))
    with pytest.raises(ValueError, match=r"records.jsonl: a record of \('gone', 'one/0', 0, 0, 0\), which is no part of this run"):
        sweep.check(experiment, workdir)


def test_a_second_process_is_refused_before_it_writes(tmp_path):
    with Workdir(tmp_path).locked(), pytest.raises(OSError, match="is in use by another process"):
        sweep.whole(tiny_run.experiment(), Workdir(tmp_path), [])
    assert [p.name for p in tmp_path.iterdir()] == [".lock"]


def test_arms_that_are_certain_have_one_sample():
    experiment = tiny_talk.experiment()
    order = [(b[0].sample, b[0].turn, b[0].arm.name, [t.encoded.prompt.question_id for t in b]) for b in sweep.batches(experiment)]
    arms = [a.name for a in experiment.arms]
    assert arms == ["plain greedy", "plain t=2", "match", "p/q"]
    groups = {0: ("abc", "def", "g"), 1: ("ab", "e"), 2: ("a",)}  # of each turn: who is still talking
    want = [
        (sample, turn, arm, list(groups[turn][i]))
        for sample in (0, 1)
        for i, turns in enumerate((3, 2, 1))
        for turn in range(turns)
        for arm in (arms if sample == 0 else ["plain t=2", "p/q"])
    ]
    assert order == want
