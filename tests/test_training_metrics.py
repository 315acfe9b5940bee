import json

import pytest
from tensorboardX.proto.event_pb2 import Event
from tensorboardX.record_writer import masked_crc32c

from specjax.training.metrics import Metrics, read


def events(folder):
    """(tag, step) of every number of the board, in the order of its files."""
    for path in sorted((folder / "tensorboard").iterdir(), key=lambda path: path.stat().st_mtime_ns):
        data, at = path.read_bytes(), 0
        while at < len(data):
            size = int.from_bytes(data[at : at + 8], "little")
            assert int.from_bytes(data[at + 8 : at + 12], "little") == masked_crc32c(data[at : at + 8])
            event = Event.FromString(data[at + 12 : at + 12 + size])
            at += size + 16
            if event.session_log.status:
                yield "start", event.step
            yield from ((value.tag, event.step) for value in event.summary.value)


def test_a_run_that_goes_on_takes_back_what_was_said_after_its_checkpoint(tmp_path):
    with Metrics(tmp_path, -1) as said:
        for step in (0, 5, 10):
            said.write(step, "train", {"loss": step / 2, "rate": [0.5, 0.25]})
    with open(tmp_path / "metrics.jsonl", "a") as file:
        file.write('{"step": 5, "ki')  # killed while it wrote
    assert [row["step"] for row in read(tmp_path)] == [0, 5, 10]
    with Metrics(tmp_path, 5) as said:
        said.write(10, "train", {"loss": 7.0, "rate": [0.5, 0.125]})
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [(row["step"], row["loss"]) for row in lines] == [(0, 0.0), (5, 2.5), (10, 7.0)]
    assert lines[2] == {"step": 10, "kind": "train", "loss": 7.0, "rate": [0.5, 0.125]}
    shown = list(events(tmp_path))
    assert shown[-4:] == [("start", 6), ("train/loss", 10), ("train/rate/1", 10), ("train/rate/2", 10)]  # the board hides step 6 on


def test_without_a_checkpoint_all_is_taken_back(tmp_path):
    for _ in range(2):
        with Metrics(tmp_path, -1) as said:
            said.write(0, "evaluate", {"roots": 3})
    assert list(read(tmp_path)) == [{"step": 0, "kind": "evaluate", "roots": 3}]


def test_what_json_cannot_hold_is_not_written(tmp_path):
    with Metrics(tmp_path, -1) as said, pytest.raises(ValueError):
        said.write(1, "train", {"loss": float("nan")})
    assert list(read(tmp_path)) == []
