import dataclasses
import io

import numpy as np
import pytest
import tiny_training

import specjax
from specjax import build_training
from specjax.training import prepare, shards
from specjax.training.plan import Shards, Source
from specjax.training.self_prompt import SelfPrompted

TARGET = specjax.load("toy://tiny")


def folder(path, *texts):
    """A folder of one shard; a text is tokens, and how many of them are the prompt."""
    path.mkdir()
    made = [shards.Text(token, [False] * prompt + [True] * (len(token) - prompt), (i, i)) for i, (token, prompt) in enumerate(texts)]
    with io.BytesIO() as file:
        shards.save(file, made)
        (path / "00000.npz").write_bytes(file.getvalue())
    return path


def plan(vocab, *names):
    made = build_training.plan(tiny_training.get_config())
    sources = tuple(Source(name, Shards(""), None) for name in names)
    return dataclasses.replace(
        made, draft=dataclasses.replace(made.draft, vocab=vocab), data=dataclasses.replace(made.data, sources=sources)
    )


def test_the_reduced_vocabulary_is_what_the_target_says_most_often(tmp_path):
    own = folder(tmp_path / "own", ([9, 9, 9, 9, 5, 7, 7, 3], 4), ([5, 5, 3, 7, 7, 200], 1))
    others = folder(tmp_path / "others", ([8] * 50, 0))
    said = prepare.vocabulary(plan(4, "answers", "texts"), TARGET, [own, others])  # 7: 4, 5: 2, 3: 2, 200: 1; prompts do not count
    assert said.dtype == np.int32 and said.tolist() == [3, 5, 7, 256]  # EOS, though it was never said
    alone = prepare.vocabulary(plan(2, "texts"), TARGET, [others])
    assert alone.tolist() == [8, 256]
    assert prepare.vocabulary(plan(None, "answers"), TARGET, [own]) is None


def test_a_folder_of_shards_is_taken_as_it_is(tmp_path):
    path = folder(tmp_path / "mine", ([1, 2, 3, 4], 1), ([5, 6], 1), ([7], 1))
    config = build_training._plain(tiny_training.get_config())
    config["data"]["sources"] = [dict(name="shards", path=str(path), share=2.0)]
    config["evaluate"] |= dict(limit=2, new_tokens=3)
    lines = []
    plan = build_training.plan(config)
    ready = prepare.ready(plan, *prepare.loaded(plan), tmp_path / "run", lines.append)
    [(rows, share)] = ready.sources
    assert share == 2.0 and rows.packed.token_NT[:, :7].tolist() == [[1, 2, 3, 4, 5, 6, 0]]
    assert ready.counts["0-shards"]["skipped"] == 1 and any(line.startswith("shards: 3 texts") for line in lines)
    assert ready.teacher.top == 8 and ready.teacher.taps == () and ready.held_out.token_NT.shape[1] == prepare.held_out.BUCKET
    assert np.sum(ready.held_out.mask_NT) == 6 and (tmp_path / "run" / "data" / "held_out").is_dir()


def test_a_folder_may_hold_more_than_is_asked_for(tmp_path):
    path = folder(tmp_path / "mine", ([1, 2, 3], 1))
    (path / "00001.npz").write_bytes((folder(tmp_path / "more", ([4, 5], 1)) / "00000.npz").read_bytes())
    texts = lambda **of: [token.tolist() for token, _ in Source("self_prompted", SelfPrompted(**of), None).texts(path)]
    assert texts(shards=1) == [[1, 2, 3]] and texts(shards=3) == [[1, 2, 3], [4, 5]]


def test_the_whole_of_a_text_may_be_learnt(tmp_path):
    path = folder(tmp_path / "mine", ([1, 2, 3, 4], 3))
    config = build_training._plain(tiny_training.get_config())
    config["data"]["sources"] = [dict(name="shards", path=str(path))]
    config["data"]["whole"] = True
    config["evaluate"] |= dict(limit=1, new_tokens=3)
    plan = build_training.plan(config)
    ready = prepare.ready(plan, *prepare.loaded(plan), tmp_path / "run", lambda line: None)
    assert ready.counts["0-shards"]["learnt"] == 3 and ready.held_out.mask_NT.sum() == 3


def test_a_teacher_is_needed_only_by_those_who_ask(tmp_path):
    path = folder(tmp_path / "mine", ([1, 2, 3, 4], 1))
    config = build_training._plain(tiny_training.get_config())
    config |= dict(loss=["ce"], on_policy=None)
    config["data"]["sources"] = [dict(name="shards", path=str(path))]
    config["evaluate"] |= dict(limit=1, new_tokens=3)
    config["data"]["folder"] = str(tmp_path / "data")
    plan = build_training.plan(config)
    assert prepare.ready(plan, *prepare.loaded(plan), tmp_path / "run", lambda line: None).teacher is None
    assert not (tmp_path / "run").exists()


def test_shards_that_are_not_there(tmp_path):
    config = build_training._plain(tiny_training.get_config())
    config["data"]["sources"] = [dict(name="shards", path=str(tmp_path / "nowhere"))]
    config["evaluate"] |= dict(limit=1, new_tokens=3)
    plan = build_training.plan(config)
    with pytest.raises(ValueError, match="nowhere holds no shards"):
        prepare.ready(plan, *prepare.loaded(plan), tmp_path / "run", lambda line: None)


def test_rows_that_devices_cannot_share_are_refused(monkeypatch):
    monkeypatch.setattr(prepare.jax, "device_count", lambda: 8)
    with pytest.raises(ValueError, match=r"optimizer.batch / accumulate is 4 rows: 8 devices need a multiple of their number"):
        prepare.loaded(build_training.plan(tiny_training.get_config()))
