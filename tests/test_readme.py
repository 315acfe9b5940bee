"""The examples of the README run, and its table of rules is that of the code."""

import re
from pathlib import Path

import pytest

import specjax
from specjax import rules
from specjax.models.load.fetch import SMOLLM2

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


def run(example) -> dict:
    scope = {"__name__": "example"}
    exec(compile(example, "README.md", "exec"), scope)
    return scope


@pytest.mark.real
def test_the_first_example(capsys):
    scope = run(EXAMPLES[0])
    assert SMOLLM2 in EXAMPLES[0] and scope["out"].texts[0] in capsys.readouterr().out


def test_a_rule_of_your_own():
    scope = run(EXAMPLES[1])
    assert scope["out"].counts["tokens"].tolist() == [64]
    assert scope["out"].counts["rejected"][0] > 0


@pytest.mark.parametrize("rule", rules.ALL)
def test_the_table_of_rules(rule):
    [row] = [line for line in README.splitlines() if line.startswith(f"| `{rule.name}` |")]
    _, exact, equation, paper = (cell.strip() for cell in row.strip("|").split("|"))
    assert exact.startswith("yes") == rule.exact and equation == rule.equation and paper == rule.paper


def test_version():
    assert specjax.__version__ == "0.1.0"
