"""Plain text: cut at paragraphs, at lines, between tokens; nothing is lost but what is counted."""

import json

import pytest
import tiny_chat

from specjax.training import shards, texts
from specjax.training.texts import Texts


def cut(text, most):
    return [bytes(piece).decode() for piece in texts.cut(text, tiny_chat.Chat().encode, most)]


def test_paragraphs_go_together_where_they_fit():
    assert cut("one\n\ntwo\n\nthree\n", 10) == ["one\n\ntwo", "three"]
    assert cut("one\n\ntwo\n\nthree\n", 9) == ["one", "two", "three"]
    assert cut("one\n\n\n\n  two", 30) == ["one\n\n\n\n  two"]


def test_long_paragraphs_are_cut_at_lines_and_long_lines_between_tokens():
    assert cut("a\n\nline 1\nline 2\nline 3\n\nb", 14) == ["a\n\nline 1", "line 2\nline 3", "b"]
    assert cut("abcdefgh\nij", 3) == ["abc", "def", "gh", "ij"]


@pytest.mark.parametrize("most", [1, 2, 5, 17, 1000])
def test_nothing_is_lost_but_line_ends(most):
    text = "Title\n\n\nA first paragraph.\nIt has two lines.\n\n    code = 1\n\n\nthe end"
    pieces = cut(text, most)
    assert "".join(pieces).replace("\n", "") == text.replace("\n", "") and max(map(len, pieces)) <= most


def test_an_empty_text_has_no_pieces():
    assert cut("", 5) == cut("\n\n\n", 5) == []


def make(folder, plan, **options):
    return texts.make(plan, tiny_chat.target(), folder, lambda line: None, **options)


@pytest.fixture
def files(tmp_path):
    for name, text in {
        "b.txt": "second file\n\nsecond FILE!",
        "a.txt": "\ufefffirst file\n\nx",
        "c.md": "a third\n\nfour five six",
    }.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    return tmp_path


def test_shards_of_pieces(files):
    plan = Texts(files=(f"{files}/*.txt", f"{files}/c.md", f"{files}/a.txt"), min_tokens=3, max_tokens=13, texts=2, repeated=1.0)
    kept = list(shards.read(make(files / "data", plan)))
    assert [bytes(token.tolist()) for token, _ in kept] == [b"first file\n\nx", b"second file", b"a third", b"four five six"]
    assert all(mask.tolist() == [False] + [True] * (len(token) - 1) for token, mask in kept)
    index = json.loads((files / "data" / "index.json").read_text())
    assert [(s["texts"], s["dropped"]) for s in index["shards"]] == [(2, {}), (1, {"duplicate": 1}), (1, {})]
    (files / "c.md").write_text("changed since")
    with pytest.raises(ValueError, match=r"other settings \(other files\)"):
        make(files / "data", plan)


def test_what_is_held_out_is_left_out(files):
    (files / "held.txt").write_text("cond file\n")
    plan = Texts(files=(f"{files}/b.txt",), min_tokens=3, max_tokens=13)
    make(files / "data", plan, exclude=(f"{files}/held.txt",))
    [shard] = json.loads((files / "data" / "index.json").read_text())["shards"]
    assert (shard["texts"], shard["dropped"]) == (1, {"held out": 1})  # 'FILE' is other bytes


def test_what_is_refused(files):
    with pytest.raises(ValueError, match=r"files: '.*/no\*' fits no file"):
        make(files / "data", Texts(files=(f"{files}/no*",)))
    (files / "bad.txt").write_bytes(b"ab\xff")
    with pytest.raises(ValueError, match=r"bad.txt: not UTF-8 at byte 2$"):
        make(files / "data", Texts(files=(f"{files}/bad.txt",)))
    with pytest.raises(ValueError, match="files is missing"):
        Texts(files=())
    assert not (files / "data").exists()
