"""The examples of the README run. Its tables of methods: `test_report_methods.py`."""

import re
from pathlib import Path

import pytest

import specjax
from specjax import build
from specjax.models.load.fetch import SMOLLM2

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


def example(part: str) -> str:
    """The one with that in it."""
    [found] = [text for text in EXAMPLES if part in text]
    return found


def run(text) -> dict:
    scope = {"__name__": "example"}
    exec(compile(text, "README.md", "exec"), scope)
    return scope


def test_a_config_of_your_own():
    plan = build.plan(run(example("def get_config"))["get_config"]())
    assert [arm.name for arm in plan.arms] == ["plain greedy", "plain t=0.7", "K=3", "heuristic"]


@pytest.mark.real
def test_the_first_example(capsys):
    text = example("specjax.stream")
    assert SMOLLM2 in text and run(text)["out"].texts[0] in capsys.readouterr().out


@pytest.mark.real
def test_the_draft_that_ships(capsys):
    counts = run(example("load_drafter"))["out"].counts
    assert counts["accepted"][0] > 0.4 * counts["drafted"][0] > 4


def test_a_rule_of_your_own(tmp_path, monkeypatch):
    (tmp_path / "my_module.py").write_text(example("class Bold"))
    monkeypatch.syspath_prepend(tmp_path)
    counts = run(example("from my_module import Bold"))["out"].counts
    assert counts["tokens"].tolist() == [64] and counts["accepted"][0] > 0 and counts["rejected"][0] > 0


def test_version():
    assert specjax.__version__ == "0.1.0"
