import dataclasses
import json
import shutil

import numpy as np
import pytest
import tiny_run

from specjax.bench import line as line_
from specjax.bench import records, sweep
from specjax.bench.plan import Task
from specjax.bench.records import Workdir
from specjax.state import Trace


def trace(drafted, stop, overlap):
    empty = dict.fromkeys(Trace._fields)
    return Trace(**empty | {"drafted_BN": np.array(drafted), "stop_BN": np.array(stop), "overlap_BNM": np.array(overlap)})


def test_judged_places_end_at_the_first_refusal():
    judged = line_.judged_places(trace([0, 3, 3, 2], [0, 0, 3, 1], np.zeros((4, 4))))
    assert judged.astype(int).tolist() == [[0, 0, 0, 0], [1, 0, 0, 0], [1, 1, 1, 0], [1, 1, 0, 0]]


def test_a_number_that_is_not_finite_is_null_and_the_run_goes_on(tmp_path):
    experiment = tiny_run.experiment()
    arm, encoded = experiment.arms[2], experiment.prompts[0]
    state = arm.decoder.start([encoded.tokens], 4, [encoded.prompt.id], experiment.size)
    output = arm.decoder.output(arm.decoder.generate(arm.decoder.prefill(state)))
    whole = np.ones_like(output.trace.drafted_BN)
    nan = {"overlap_BNM": np.full_like(output.trace.overlap_BNM, np.nan), "expected_BN": np.full(whole.shape, np.inf)}
    broken = output.trace._replace(drafted_BN=whole, stop_BN=0 * whole, **nan)
    refused = {"drafted": whole.sum(axis=1), "accepted": [0], "rejected": whole.sum(axis=1), "cut": [0]}
    output = dataclasses.replace(output, counts=output.counts | refused)
    seconds = {"prefill": 1.0, "decode": 1.0}
    line, saved = line_.record(Task(arm, encoded), 8, dataclasses.replace(output, trace=broken), 0, seconds, 1)
    assert line["overlap_sum"] is None and line["expected_sum"] is None
    workdir = Workdir(tmp_path)
    workdir.create({})
    workdir.append(line, saved)
    assert next(workdir.records())["overlap_sum"] is None


def test_all_files_hold_what_the_docs_say():
    workdir, _ = tiny_run.finished()
    names = sorted(p.name for p in workdir.path.iterdir())
    assert names == [".lock", "config.json", "manifest.json", "records.jsonl", "summary.json", "traces"]
    lines = list(workdir.records())
    assert [(r["question_id"], r["arm"]) for r in lines] == [
        (q, a) for q in ("one/0", "one/1", "two/0", "two/1") for a in tiny_run.ARMS
    ]  # arms take turns
    for line in lines:
        assert set(line) == {
            "schema", "arm", "question_id", "category", "prompt_id", "sample", "repeat", "turn", "prompt_tokens", "token_ids", "text",
            "finish", "counts", "rounds", "overlap_sum", "expected_sum", "seconds", "peak_memory_bytes", "trace",
        }  # fmt: skip
        counts = line["counts"]
        assert counts["drafted"] == counts["accepted"] + counts["rejected"] + counts["cut"] == sum(line["rounds"]["drafted"])
        assert counts["tokens"] == len(line["token_ids"]) == 12 and line["finish"] == "length"
        assert counts["passes"] == len(line["rounds"]["drafted"]) == len(line["rounds"]["accepted"])
        assert set(line["seconds"]) == {"prefill", "decode"} and min(line["seconds"].values()) > 0
    assert len(list((workdir.path / "traces").iterdir())) == len(lines) == len({r["trace"] for r in lines})


def test_a_trace_and_its_record_agree():
    workdir, _ = tiny_run.finished()
    for line in workdir.records():
        with np.load(workdir.path / line["trace"]) as saved:
            got = Trace(**{**dict.fromkeys(Trace._fields), **saved})
        emitted = np.concatenate(
            [[*got.token_BNM[n, 1 : got.committed_BN[n]], got.emitted_BN[n]][: got.committed_BN[n]] for n in range(len(got.root_BN))]
        )
        assert emitted.tolist() == line["token_ids"]
        assert got.root_BN[0] == line["prompt_tokens"] - 1
        assert got.overlap_BNM[line_.judged_places(got)].sum() == pytest.approx(line["overlap_sum"], abs=1e-6)


def test_another_config_is_refused(tmp_path):
    workdir = Workdir(tmp_path / "run")
    workdir.check({"seed": 0})  # nothing there yet
    workdir.create({"seed": 0, "arms": (1,)})
    workdir.check({"seed": 0, "arms": (1,)})
    with pytest.raises(ValueError, match=r"holds a run of another config \(other seed\): name another folder"):
        workdir.check({"seed": 1, "arms": (1,)})
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "run"):
        with pytest.raises(ValueError, match=f"{path}' cannot be a folder: {tmp_path}/file is a file"):
            Workdir(path).check({})


def a_line(**changes):
    """A line of the finished run, changed; None leaves a field out."""
    row = {**next(tiny_run.finished()[0].records()), **changes}
    return json.dumps({name: value for name, value in row.items() if value is not None}).encode() + b"\n"


def test_a_half_written_line_does_not_count_and_is_dropped(tmp_path):
    workdir, file = Workdir(tmp_path), tmp_path / "records.jsonl"
    workdir.create({})
    whole = a_line()
    for half in (whole[:1], whole[:-2], whole[:-1]):
        file.write_bytes(whole + half)
        assert len(list(workdir.records())) == 1
        workdir.create({})
        assert file.read_bytes() == whole


@pytest.mark.parametrize("damage", [b'{"a": ', b"[1]", b"\xff\xfe{}", b"[" * 100_000, b"", b"\0" * 9])
def test_a_damaged_file_is_named(tmp_path, damage):
    workdir = Workdir(tmp_path)
    (tmp_path / "records.jsonl").write_bytes(a_line() + damage + b"\n" + a_line(repeat=1))
    with pytest.raises(ValueError, match=r"records\.jsonl:2: [^\n]*$"):
        list(workdir.records())
    (tmp_path / "config.json").write_bytes(damage)
    with pytest.raises(ValueError, match=r"config\.json: [^\n]*$") as error:
        workdir.check({})
    assert str(error.value).startswith(str(tmp_path))


FOREIGN = {
    "schema=1, but this version reads 3: name another folder": dict(schema=1),
    "schema=None, but this version reads 3": dict(schema=None),
    "record.text is missing": dict(text=None),
    "record.extra is not a key": dict(extra=1),
    "record.repeat='0' must be int, not str": dict(repeat="0"),
    r"record.token_ids=\[1.5\] must be a list of int, not list": dict(token_ids=[1.5]),
    "record.counts.tokens is missing": dict(counts={"passes": 1}),
    "record.seconds=3 must be a mapping of prefill, decode": dict(seconds=3),
    "record.rounds=.* must be two lists of one length, of at least 1": dict(rounds={"drafted": [], "accepted": []}),
    "record is damaged: counts.passes": dict(rounds={"drafted": [0], "accepted": [0]}),
    "record is damaged: counts.tokens": dict(token_ids=[7]),
    "record is damaged: seconds.decode": dict(seconds={"prefill": 0.1, "decode": 0.0}),
    "record is damaged: finish should be one of eos, stop, length, nonfinite": dict(finish="zzz"),
    "record is damaged: logprobs should be one for each": dict(logprobs=[0.5] * 99),
    "record is damaged: price should be at least 0": dict(price={"kl_sum": -1.0, "kl_infinite": 0}),
    "record is damaged: prompt_tokens should be at least 1": dict(prompt_tokens=0),
}


@pytest.mark.parametrize("message", FOREIGN)
def test_a_line_that_is_no_record_is_named(tmp_path, message):
    (tmp_path / "records.jsonl").write_bytes(a_line() + a_line(**{"repeat": 1, **FOREIGN[message]}))
    with pytest.raises(ValueError, match=rf"records\.jsonl:2: {message}"):
        list(Workdir(tmp_path).records())


def test_a_second_record_of_a_kind_is_named(tmp_path):
    (tmp_path / "records.jsonl").write_bytes(a_line() * 2)
    with pytest.raises(ValueError, match=r"records\.jsonl:2: a second record of \('plain greedy', 'one/0', 0, 0, 0\)"):
        list(Workdir(tmp_path).records())


def test_only_one_process_writes_in_a_folder(tmp_path):
    one, two = Workdir(tmp_path / "run"), Workdir(tmp_path / "run")
    with one.locked():
        for refused in (lambda: two.check({}), lambda: two.locked().__enter__()):
            with pytest.raises(OSError, match="run' is in use by another process: wait for it, or name another folder"):
                refused()
    two.check({})
    with pytest.raises(KeyError), two.locked():
        raise KeyError
    one.check({})  # whatever ended it


def test_a_folder_that_cannot_be_written_is_refused_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr(records.os, "access", lambda path, mode: path != tmp_path)
    with pytest.raises(OSError, match=f"run' cannot be written: {tmp_path} is read-only"):
        Workdir(tmp_path / "a" / "run").check({})
    assert list(tmp_path.iterdir()) == []


def test_records_without_their_config_or_manifest_are_refused(tmp_path):
    workdir = Workdir(tmp_path)
    (tmp_path / "records.jsonl").write_bytes(a_line())
    with pytest.raises(ValueError, match=r"holds records of a run without its config.json: name another folder"):
        workdir.check({})
    with pytest.raises(ValueError, match=r"holds records of a run without its manifest.json: name another folder"):
        sweep.check(tiny_run.experiment(), workdir)


@pytest.mark.parametrize(("field", "value"), [("category", "x"), ("prompt_id", 3), ("trace", "../x.npz"), ("token_ids", [10**6] * 12)])
def test_a_record_of_another_prompt_or_vocabulary_is_refused(tmp_path, field, value):
    whole, workdir = tiny_run.finished()[0], Workdir(tmp_path)
    (tmp_path / "manifest.json").write_bytes((whole.path / "manifest.json").read_bytes())
    row = next(whole.records())
    assert len(row["token_ids"]) == 12
    (tmp_path / "records.jsonl").write_text(json.dumps(row) + "\n")
    sweep.check(tiny_run.experiment(), workdir)
    (tmp_path / "records.jsonl").write_text(json.dumps(row | {field: value}) + "\n")
    with pytest.raises(ValueError, match="is of another prompt or vocabulary, or damaged: name another folder"):
        sweep.check(tiny_run.experiment(), workdir)


@pytest.mark.parametrize("break_", [lambda c: c["match"].update(c=None), lambda c: c["match"]["v"].pop("3")])
def test_costs_that_are_not_whole_are_refused(tmp_path, break_):
    notes = tiny_run.finished()[0].read("manifest.json")
    break_(notes["costs"])
    (tmp_path / "manifest.json").write_text(json.dumps(notes))
    with pytest.raises(ValueError, match=r"manifest\.json: (is no whole manifest|no cost of every width of arm 'match')"):
        sweep.check(tiny_run.experiment(), Workdir(tmp_path))


@pytest.mark.parametrize("rest", [0, 0.5, 0.99])
def test_a_trace_that_was_lost_is_made_again(tmp_path, rest):
    workdir, whole = Workdir(tmp_path), tiny_run.finished()[0]
    workdir.create({})
    shutil.copytree(whole.path, tmp_path, dirs_exist_ok=True)
    row = next(r for r in whole.records() if r["arm"] == "p/q")
    data = (whole.path / row["trace"]).read_bytes()
    if rest:
        (tmp_path / row["trace"]).write_bytes(data[: int(rest * len(data))])
    else:
        (tmp_path / row["trace"]).unlink()
    seen = []
    sweep.run(tiny_run.experiment(), workdir, lambda jobs: seen.extend(jobs) or iter(jobs))
    assert [[task.key for task in batch] for batch in seen] == [[line_.key(row)]]
    assert (tmp_path / "records.jsonl").read_bytes() == (whole.path / "records.jsonl").read_bytes()
    with np.load(tmp_path / row["trace"]) as again, np.load(whole.path / row["trace"]) as saved:
        assert again.files == saved.files and all((again[name] == saved[name]).all() for name in saved.files)


def test_a_lost_trace_is_not_made_of_another_text(tmp_path):
    workdir, whole = Workdir(tmp_path), tiny_run.finished()[0]
    workdir.create({})
    shutil.copytree(whole.path, tmp_path, dirs_exist_ok=True)
    lines = [json.loads(line) for line in (whole.path / "records.jsonl").read_text().splitlines()]
    row = next(r for r in lines if r["arm"] == "p/q")
    row["text"] += "!"
    (tmp_path / row["trace"]).unlink()
    (tmp_path / "records.jsonl").write_text("".join(json.dumps(r) + "\n" for r in lines))
    with pytest.raises(RuntimeError, match=r"the record of \('p/q', .* has lost its trace, and now says something else: delete its line"):
        sweep.run(tiny_run.experiment(), workdir)
    assert not (tmp_path / row["trace"]).exists()


def test_a_file_is_written_whole_or_not_at_all(tmp_path):
    workdir = Workdir(tmp_path)
    workdir.write("summary.json", {"a": 1})
    with pytest.raises(TypeError):
        workdir.write("summary.json", {"a": object()})
    assert json.loads((tmp_path / "summary.json").read_text()) == {"a": 1}


def test_names_of_files_keep_arms_apart():
    names = ["a b", "a_b", "a/b", "a.b", "K=3", "../x", "ä"]
    slugs = [line_.slug(n) for n in names]
    assert len(set(slugs)) == len(names) and not any(set(s) & set("/. ") for s in slugs)
    long = [line_.slug(n) for n in ("x" * 1024, "x" * 1023, "漢" * 1024, "🙂" * 1024)]
    assert len(set(long)) == 4 and max(len(s.encode()) for s in long) < 200
