import dataclasses
import json

import numpy as np
import pytest
import tiny_run

from specjax.bench import records
from specjax.bench.records import Workdir
from specjax.state import Trace


def trace(drafted, stop, overlap):
    empty = dict.fromkeys(Trace._fields)
    return Trace(**empty | {"drafted_BN": np.array(drafted), "stop_BN": np.array(stop), "overlap_BNM": np.array(overlap)})


def test_judged_places_end_at_the_first_refusal():
    judged = records.judged_places(trace([0, 3, 3, 2], [0, 0, 3, 1], np.zeros((4, 4))))
    assert judged.astype(int).tolist() == [[0, 0, 0, 0], [1, 0, 0, 0], [1, 1, 1, 0], [1, 1, 0, 0]]


def test_a_number_that_is_not_finite_is_null_and_the_run_goes_on(tmp_path):
    experiment = tiny_run.experiment()
    arm, encoded = experiment.arms[2], experiment.prompts[0]
    state = arm.decoder.start([encoded.tokens], 4, [encoded.prompt.id], experiment.size)
    output = arm.decoder.output(arm.decoder.generate(arm.decoder.prefill(state)))
    whole = np.ones_like(output.trace.drafted_BN)
    broken = output.trace._replace(
        drafted_BN=whole, overlap_BNM=np.full_like(output.trace.overlap_BNM, np.nan), expected_BN=np.full(whole.shape, np.inf)
    )
    line, saved = records.record(arm, encoded, 0, dataclasses.replace(output, trace=broken), 0, {"prefill": 1.0, "decode": 1.0}, 1)
    assert line["overlap_sum"] is None and line["expected_sum"] is None
    workdir = Workdir(tmp_path)
    workdir.create({})
    workdir.append(line, saved)
    assert next(workdir.records())["overlap_sum"] is None


def test_all_files_hold_what_the_docs_say():
    workdir, _ = tiny_run.finished()
    names = sorted(p.name for p in workdir.path.iterdir())
    assert names == ["config.json", "manifest.json", "records.jsonl", "summary.json", "traces"]
    lines = list(workdir.records())
    assert [(r["question_id"], r["arm"]) for r in lines] == [
        (q, a) for q in ("one/0", "one/1", "two/0", "two/1") for a in tiny_run.ARMS
    ]  # arms take turns
    for line in lines:
        assert set(line) == {
            "schema", "arm", "question_id", "category", "prompt_id", "repeat", "prompt_tokens", "token_ids", "text", "finish",
            "counts", "rounds", "overlap_sum", "expected_sum", "seconds", "peak_memory_bytes", "trace",
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
            got = Trace(**saved)
        emitted = np.concatenate(
            [[*got.token_BNM[n, 1 : got.committed_BN[n]], got.emitted_BN[n]][: got.committed_BN[n]] for n in range(len(got.root_BN))]
        )
        assert emitted.tolist() == line["token_ids"]
        assert got.root_BN[0] == line["prompt_tokens"] - 1
        assert got.overlap_BNM[records.judged_places(got)].sum() == pytest.approx(line["overlap_sum"], abs=1e-6)


def test_another_config_is_refused(tmp_path):
    workdir = Workdir(tmp_path / "run")
    workdir.check({"seed": 0})  # nothing there yet
    workdir.create({"seed": 0, "arms": (1,)})
    workdir.check({"seed": 0, "arms": (1,)})
    with pytest.raises(ValueError, match=r"holds a run of another config \(other seed\): name another folder"):
        workdir.check({"seed": 1, "arms": (1,)})
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="is a file"):
        Workdir(tmp_path / "file").check({})


def test_a_half_written_line_is_dropped(tmp_path):
    workdir = Workdir(tmp_path)
    workdir.create({})
    (tmp_path / "records.jsonl").write_text('{"a": 1}\n{"a": ')
    workdir.create({})
    assert list(workdir.records()) == [{"a": 1}]


@pytest.mark.parametrize("damage", [b'{"a": ', b"[1]", b"\xff\xfe{}", b"[" * 100_000])
def test_a_damaged_file_is_named(tmp_path, damage):
    workdir = Workdir(tmp_path)
    (tmp_path / "records.jsonl").write_bytes(b'{"a": 1}\n' + damage + b'\n{"a": 2}\n')
    with pytest.raises(ValueError, match=r"records\.jsonl:2: [^\n]*$"):
        list(workdir.records())
    (tmp_path / "config.json").write_bytes(damage)
    with pytest.raises(ValueError, match=r"config\.json: [^\n]*$") as error:
        workdir.check({})
    assert str(error.value).startswith(str(tmp_path))


def test_a_file_is_written_whole_or_not_at_all(tmp_path):
    workdir = Workdir(tmp_path)
    workdir.write("summary.json", {"a": 1})
    with pytest.raises(TypeError):
        workdir.write("summary.json", {"a": object()})
    assert json.loads((tmp_path / "summary.json").read_text()) == {"a": 1}


def test_names_of_files_keep_arms_apart():
    names = ["a b", "a_b", "a/b", "a.b", "K=3", "../x", "ä"]
    slugs = [records._slug(n) for n in names]
    assert len(set(slugs)) == len(names) and not any(set(s) & set("/. ") for s in slugs)
