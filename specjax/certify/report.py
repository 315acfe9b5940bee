"""The certificates for the terminal."""

from __future__ import annotations

import itertools

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from specjax.certify.rule import CLOSE, SHOWN
from specjax.certify.verdict import Verdict

UNBOUNDED = 10_000  # columns
LEGEND = (
    "TV: total variation of the next K + 1 tokens' law from the target's, in the worst case. toy, A, B: expected tokens of a round.",
    "accepted: probability that one of so many children is accepted on case B, and the bound that no exact rule can pass with such.",
)


def show(rules: list[Verdict], others: list[Verdict], console: Console) -> None:
    """Print it all: a row for each rule and way of drawing, and a line for whatever failed or is worth a word."""
    lines = [f"{verdict.name}: {note}" for verdict in rules for note in verdict.numbers["notes"]]
    lines += [f"PASS {verdict.name}" for verdict in others if verdict.passed]
    lines += [f"FAIL {verdict.name}: {verdict.why}" for verdict in [*rules, *others] if not verdict.passed]
    if rules:
        table, narrow = rows(rules), console.width
        console.width = UNBOUNDED
        console.width = max(narrow, console.measure(table).maximum)
        console.print(table)
        lines = [*LEGEND, *lines]
    for line in lines:
        console.print(line, soft_wrap=True, highlight=False, markup=False, emoji=False)


def rows(rules: list[Verdict]) -> Table:
    table = Table(title="Rules, by enumeration of every draft and every ending", box=box.SIMPLE_HEAD)
    for name in ("rule", "children", "exact"):
        table.add_column(name, no_wrap=True)
    for name in ("cases", *(f"TV {dtype}" for dtype in CLOSE), "worst case", *SHOWN, "accepted (bound)"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    for verdict in rules:
        exact, mark = "yes" if verdict.numbers["exact"] else "no", Text("PASS", "green") if verdict.passed else Text("FAIL", "bold red")
        cells = {drawn: numbers(told, verdict.numbers["exact"]) for drawn, told in verdict.numbers["drawn"].items()}
        cells = cells or {"-": ["-"] * len(table.columns[3:-1])}  # a rule that raised
        for same, ways in itertools.groupby(cells, cells.get):  # on a chain i.i.d. and without replacement are one
            table.add_row(Text(verdict.name), ", ".join(ways), exact, *same, mark)
    return table


def numbers(told: dict, exact: bool) -> list[str]:
    expected, bound = told["expected_tokens"], told["bound"]
    return [
        str(told["cases"]),
        *(f"{told['total_variation'][dtype]:.1e}" if dtype in told["total_variation"] else "-" for dtype in CLOSE),
        list(told["worst_case"].values())[-1],
        *(f"{expected[name]:.4f}" if name in expected else "-" for name in SHOWN),
        "-" if bound is None else f"{told['accepted']:.4f} of {told['children']}" + (f" ({bound:.4f})" if exact else ""),
    ]
