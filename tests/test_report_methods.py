"""The README's tables of methods are those of the code: `python -m specjax.report.methods --write README.md` makes them anew."""

from pathlib import Path

import pytest

from specjax import build, rules
from specjax.report import methods

README = Path(__file__).parents[1] / "README.md"


def test_the_readmes_tables_are_those_of_the_code():
    text = README.read_text(encoding="utf-8")
    assert methods.renewed(text, "README.md") == text, "stale: python -m specjax.report.methods --write README.md"


@pytest.mark.parametrize("known", [build.RULES, build.DRAFTERS, build.LENGTHS])
def test_all_that_a_config_can_name_is_there(known):
    first = [line.split("|")[1] for line in methods.tables().splitlines() if line]
    assert [name for name in known if not any(f"`{name}`" in cell for cell in first)] == []


@pytest.mark.parametrize("rule", rules.ALL)
def test_the_row_of_a_rule(rule):
    [row] = [line for line in methods.tables().splitlines() if line.startswith(f"| `{rule.name}` |")]
    _, exact, judges, needs, certified, paper = (cell.strip() for cell in row.strip("|").split("|"))
    assert exact.startswith("yes") == rule.exact == (certified == "the target's law")
    assert judges.startswith("trees") == rule.trees and needs == rule.needs
    assert paper == methods.linked(rule.paper)


def test_cells_are_one_line_and_numbers_of_papers_are_links():
    assert methods.table(("a", "b"), [("1", "2")]) == "| a | b |\n| --- | --- |\n| 1 | 2 |\n"
    assert methods.first_paragraph("A method\n(2211.17192).\n\nMore.\n") == "A method (2211.17192)"
    assert methods.linked("Chen 2023, 2302.01318, 3.1") == "Chen 2023, [2302.01318](https://arxiv.org/abs/2302.01318), 3.1"
    assert all(line.count("|") - 1 in (2, 6) for line in methods.tables().splitlines() if line)


def test_the_command_writes_between_the_markers(tmp_path, capsys):
    path = tmp_path / "README.md"
    path.write_text(f"before\n{methods.BEGIN}\nold\n{methods.END}\nafter\n")
    methods.main(["--write", str(path)])
    methods.main([])
    assert path.read_text() == f"before\n{methods.BEGIN}\n\n{capsys.readouterr().out}{methods.END}\nafter\n"
    path.write_text("no markers")
    with pytest.raises(SystemExit, match="2"):
        methods.main(["--write", str(path)])
    assert capsys.readouterr().err.startswith(f"error: {path} has no lines <!-- methods")
    assert path.read_text() == "no markers"
