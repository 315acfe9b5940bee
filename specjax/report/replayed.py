"""What a replay says, for the terminal: rules at equal roots, then predictions beside what was measured."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from specjax.report.table import UNBOUNDED, number


def show(result: dict, console: Console) -> None:
    """Print it all; a terminal that is too narrow wraps the lines."""
    tables = [table for group in result["groups"] for table in (rules(group), predictions(group))]
    console.width = max(
        console.width, *(console.measure(table, options=console.options.update(width=UNBOUNDED)).maximum for table in tables)
    )
    for group in result["groups"]:
        console.print(rules(group))
        for line in notes(group):
            console.print(line, soft_wrap=True, highlight=False, markup=False, emoji=False)
        console.print(predictions(group))


def rules(group: dict) -> Table:
    shared = f"{group['drafts']} drafts on {group['prompts']} prompts, of up to {group['depth']} tokens, drawn {group['drawn']}"
    table = Table(title=Text(f"Rules at equal roots: {', '.join(group['arms'])}\n{shared}"), box=box.SIMPLE_HEAD)
    table.add_column("rule", no_wrap=True)
    table.add_column("exact", no_wrap=True)
    for name in ("tokens", f"more than {group['base']}", "prompts to see it", *(f">={k}" for k in range(1, group["depth"] + 1))):
        table.add_column(name, justify="right", no_wrap=True)
    for row in group["rules"]:
        needed = row["difference"]["prompts"]
        table.add_row(
            Text(row["rule"]),
            "yes" if row["exact"] else "no",
            f"{row['tokens']:.3f}",
            "-" if row["rule"] == group["base"] else signed(row["difference"]),
            "-" if needed is None else str(needed),
            *map(number, row["reach"]),
        )
    return table


def notes(group: dict) -> list[str]:
    """How to read the table."""
    said = ["tokens: expected in a round, the emitted one counted; >=k: chance that k drafts are accepted; interval: 95%, over prompts."]
    if group["certain"]:
        equal = [row["rule"] for row in group["rules"] if row["rule"] != group["base"] and row["difference"]["prompts"] is None]
        said.append(
            "These drafts are certain (q is one-hot), so a path has no probability to win back: block verification expects exactly what "
            f"the p/q rule does. Equal to {group['base']} on every draft: {', '.join(equal) or 'none'}."
        )
    return said


def predictions(group: dict) -> Table:
    table = Table(title="Predicted from these drafts, and what an arm of this run did in closed loop", box=box.SIMPLE_HEAD)
    for name in ("rule", "length"):
        table.add_column(name, no_wrap=True)
    for name in ("predicted tokens", "predicted speedup", "arm", "tokens", "error", "speedup", "error"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in group["predictions"]:
        real, error = row["measured"], row["error"]
        done = number(real.get("tokens")), percent(error.get("tokens")), number(real.get("speedup")), percent(error.get("speedup"))
        guess = number(row["predicted"]["tokens"]), number(row["predicted"]["speedup"])
        table.add_row(Text(row["rule"]), Text(row["length"]), *guess, Text(row["arm"] or "-"), *done)
    return table


def signed(difference: dict) -> str:
    value, low, high = (difference[name] for name in ("value", "low", "high"))
    if low is None:
        return f"{value:+.3f}"
    return "0" if value == low == high == 0 else f"{value:+.3f} ({low:+.3f} to {high:+.3f})"


def percent(share: float | None) -> str:
    return "-" if share is None else f"{share:+.1%}"
