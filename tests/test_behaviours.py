"""docs/behaviours.md names tests that exist."""

import ast
import pathlib
import re

ROOT = pathlib.Path(__file__).parents[1]
ROWS = [line for line in (ROOT / "docs" / "behaviours.md").read_text().splitlines() if line.startswith("| ")]


def test_every_named_test_exists():
    named = re.findall(r"`(tests/\w+\.py)::(\w+)`", "\n".join(ROWS))
    assert len(named) > 50
    functions = {}
    for path, _ in named:
        tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
        functions[path] = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    assert [(path, name) for path, name in named if name not in functions[path]] == []


def test_every_condition_names_a_test():
    rows = [row for row in ROWS if row != "| condition | tests |"]
    assert len(rows) == 48
    assert [row for row in rows if "::" not in row] == []
