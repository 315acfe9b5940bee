import dataclasses
import io
import json
import pathlib
import types

import numpy as np
import pytest
import tiny_training

import specjax
from specjax import build, build_training
from specjax.training import prepare, shards
from specjax.training.existing import Shards
from specjax.training.plan import Source
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
    config = build.plain(tiny_training.get_config())
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
    assert [(token.tolist(), prompt) for token, prompt in ready.begun] == [([1, 2, 3, 4], 1), ([5, 6], 1), ([7], 1)]
    digests = {prepare._digest(ids, read) for ids in (ready.id_U, None) for read in ([ready.held_out], [ready.held_out, rows.packed])}
    assert prepare._digest(ready.id_U, [ready.held_out, rows.packed]) == ready.digest in digests and len(digests) == 4


def test_a_folder_may_hold_more_than_is_asked_for(tmp_path):
    path = folder(tmp_path / "mine", ([1, 2, 3], 1))
    (path / "00001.npz").write_bytes((folder(tmp_path / "more", ([4, 5], 1)) / "00000.npz").read_bytes())
    texts = lambda **of: [token.tolist() for token, _ in Source("self_prompted", SelfPrompted(**of), None).texts(path)]
    assert texts(shards=1) == [[1, 2, 3]] and texts(shards=3) == [[1, 2, 3], [4, 5]]


def test_the_whole_of_a_text_may_be_learnt(tmp_path):
    path = folder(tmp_path / "mine", ([1, 2, 3, 4], 3))
    config = build.plain(tiny_training.get_config())
    config["data"]["sources"] = [dict(name="shards", path=str(path))]
    config["data"]["whole"] = True
    config["evaluate"] |= dict(limit=1, new_tokens=3)
    plan = build_training.plan(config)
    ready = prepare.ready(plan, *prepare.loaded(plan), tmp_path / "run", lambda line: None)
    assert ready.counts["0-shards"]["learnt"] == 3 and ready.held_out.mask_NT.sum() == 3
    assert [prompt for _, prompt in ready.begun] == [3]  # what the draft may go on with is a prompt as before


def test_a_teacher_is_needed_only_by_those_who_ask(tmp_path):
    path = folder(tmp_path / "mine", ([1, 2, 3, 4], 1))
    config = build.plain(tiny_training.get_config())
    config |= dict(loss=["ce"], on_policy=None)
    config["data"]["sources"] = [dict(name="shards", path=str(path))]
    config["evaluate"] |= dict(limit=1, new_tokens=3)
    config["data"]["folder"] = str(tmp_path / "data")
    plan = build_training.plan(config)
    assert prepare.ready(plan, *prepare.loaded(plan), tmp_path / "run", lambda line: None).teacher is None
    assert not (tmp_path / "run").exists()


def test_without_any_text_no_token_is_said_most_often(tmp_path):
    assert prepare.vocabulary(plan(2, "answers"), TARGET, [folder(tmp_path / "none")]).tolist() == [0, 256]


# ---------------------------------------------------------------- refused before anything is made

TALK = tiny_training.get_config().evaluate.prompts
ANSWERS = dict(name="answers", prompts="own", chat=False)


def refused(said, **data):
    config = build.plain(tiny_training.get_config())
    evaluated = data.pop("evaluate", {})
    config["data"] |= data
    config["evaluate"] |= evaluated
    plan = build_training.plan(build.plain(config))
    with pytest.raises(ValueError, match=said) as error:
        prepare.loaded(plan)
    assert "\n" not in str(error.value)


def test_sources_that_cannot_be_made():
    refused(r"data.sources\[0\]: files: 'nowhere/\*' fits no file", sources=[dict(name="texts", files=["nowhere/*"])])
    refused(r"data.sources\[1\]: categories=.* must be a list of some of", sources=[ANSWERS, ANSWERS | dict(categories=["sums"])])
    refused(r"data.sources\[0\]: toy://tiny has no chat template", sources=[dict(name="self_prompted")])
    refused(r"data.sources\[0\]: toy://tiny has no chat template: use chat=False", sources=[ANSWERS | dict(chat=True)])
    refused(r"prompts='nobodys' must be 'own'", exclude=["nobodys"])


def test_prompts_that_are_trained_and_evaluated_on():
    said = r"data.sources\[0\] and evaluate.prompts='own' have 2 prompts in common: take other categories, or put the set into data.exclude"
    refused(said, sources=[ANSWERS | dict(limit=2)], evaluate=dict(prompts="own"))
    config = build.plain(tiny_training.get_config())
    config["data"]["sources"], config["evaluate"]["prompts"] = [ANSWERS | dict(categories=["chat"])], "own"
    config["evaluate"]["categories"] = ["maths"]
    prepare.loaded(build_training.plan(config))
    config["evaluate"]["categories"], config["data"]["exclude"] = None, ["own"]  # what is asked there is dropped
    prepare.loaded(build_training.plan(config))


def test_shards_of_others(tmp_path):
    said = list(json.loads(pathlib.Path(TALK).read_text().splitlines()[0])["turns"][0].encode())[:8]
    path, there = str(folder(tmp_path / "mine", ([1, 2, *said], 1), ([3, *said[:7]], 1))), [TALK]
    sources = [dict(name="shards", path=path)]
    refused(
        r"data.sources\[0\]: path=.*: 1 texts of it share 8 tokens in a row with prompts of data.exclude", sources=sources, exclude=there
    )
    made = shards.made_by("anything", {"exclude": []}, TARGET)
    index = dict(fingerprint="", shards=[dict(name="00000.npz")])
    for said_by, found in (
        (made, "1 texts of it share"),
        (made | dict(exclude=there, target="another"), "was made by another target than toy://tiny: name another folder"),
    ):
        pathlib.Path(path, "index.json").write_text(json.dumps(index | dict(made=said_by)))
        refused(found, sources=sources, exclude=there)
    pathlib.Path(path, "index.json").write_text(json.dumps(index | dict(made=made | dict(exclude=["own", *there], target="toy://tiny"))))
    Shards(path).check(TARGET, there)  # whoever made it left these prompts out already
    strange = str(folder(tmp_path / "strange", ([1, 257], 1)))
    refused(r"holds other ids than 0 .. 256, the tokens of toy://tiny", sources=[dict(name="shards", path=strange)])
    refused("nowhere holds no shards", sources=[dict(name="shards", path=str(tmp_path / "nowhere"))])


def test_rows_that_devices_cannot_share_are_refused(monkeypatch):
    monkeypatch.setattr(prepare.step, "mesh", lambda text: types.SimpleNamespace(shape={"data": 8, "model": 1}))
    with pytest.raises(ValueError, match=r"optimizer.batch / accumulate is 4 rows: 8 devices along the data axis need a multiple"):
        prepare.loaded(build_training.plan(tiny_training.get_config()))
