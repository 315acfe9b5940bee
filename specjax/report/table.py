"""The table of a run for the terminal."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

UNBOUNDED = 10_000  # columns


def show(summary: dict, console: Console) -> None:
    """Print it all. Nothing is cut off: a terminal that is too narrow wraps the lines."""
    tables, narrow = [arms(summary), categories(summary)], console.width
    console.width = UNBOUNDED
    console.width = max(narrow, *(console.measure(table).maximum for table in tables))
    console.print(*tables, sep="\n")
    for line in [*differences(summary), closing(summary)]:
        console.print(line, soft_wrap=True, highlight=False, markup=False, emoji=False)


def arms(summary: dict) -> Table:
    table = Table(title=f"Arms, {summary['prompts']} prompts", box=box.SIMPLE_HEAD)
    table.add_column("arm", no_wrap=True)
    priced = not all(row["exact"] for row in summary["arms"])
    prices = ["loglik/tok", "KL/tok"] if priced else []
    rest = ["predicted", "tok/pass", "alpha", "c", "v (width)", "first tok (est.)", "peak", "equal/ties/bugs"]
    for name in ["tok/s", "speedup", *prices, *rest]:
        table.add_column(name, justify="right", no_wrap=True)
    for row in summary["arms"]:
        widest = max(row["v"], key=int)
        table.add_row(
            Text(row["name"] + ("" if row["exact"] else " (inexact)")),  # a text, so that no [name] is taken for markup
            f"{row['tokens_per_second']:.1f}",
            interval(row["speedup"]),
            *([number(row["loglikelihood"]), kl(row)] if priced else []),
            number(row["predicted_speedup"]),
            number(row["tokens_per_pass"]),
            number(row["alpha"]),
            f"{row['c']:.3f}",
            f"{row['v'][widest]:.2f} ({widest})",
            "-" if row["time_to_first_token"] is None else f"{row['time_to_first_token']:.3f} s",
            f"{row['peak_memory_bytes'] / 2**20:.0f} MiB",
            agreement(row["matches_plain"]),
        )
    return table


def categories(summary: dict) -> Table:
    """Speedup of each arm that drafts, by category."""
    rows = [row for row in summary["arms"] if row["name"] != row["baseline"]]
    names = list(summary["arms"][0]["by_category"])
    table = Table(title="Speedup by category", box=box.SIMPLE_HEAD)
    table.add_column("arm", no_wrap=True)
    for name in names:
        table.add_column(Text(f"{name} ({summary['arms'][0]['by_category'][name]['prompts']})"), justify="right")
    for row in rows:
        table.add_row(Text(row["name"]), *(interval(row["by_category"][name]["speedup"]) for name in names))
    return table


def differences(summary: dict) -> list[str]:
    return [
        f"{d['kind']}: {d['arm']}, {d['question_id']}, {_which(d)}new token {d['place']}: {d['tokens'][1]} where plain has "
        f"{d['tokens'][0]}, gap {'unbounded' if d['gap'] is None else format(d['gap'], '.1e')}"
        for d in summary["differences"]
    ]


def _which(difference: dict) -> str:
    """Sample, repeat and turn, where they are not the first."""
    return "".join(f"{name} {difference[name]}, " for name in ("sample", "repeat", "turn") if difference[name])


def closing(summary: dict) -> str:
    """One sentence: what was gained, and what was predicted."""
    rows = [row for row in summary["arms"] if row["exact"] and row["name"] != row["baseline"]]
    if not rows:
        only = "plain arms" if all(row["exact"] for row in summary["arms"]) else "plain arms and rules that are not exact"
        return f"Only {only} were run: no exact arm can be quicker than plain."
    rows = [row for row in rows if row["speedup"]["value"] is not None]
    if not rows:
        return "The plain arms got no token out, so there is nothing to compare with."
    best = max(rows, key=lambda row: row["speedup"]["value"])
    predicted = best["predicted_speedup"]
    if best["speedup"]["value"] <= 1:
        return f"No exact arm was quicker than plain; the best, {best['name']}, was {interval(best['speedup'])} times {best['baseline']}."
    said = "made no prediction" if predicted is None else f"predicted {predicted:.2f}"
    return (
        f"Best exact arm: {best['name']}, {interval(best['speedup'])} times {best['baseline']} on {summary['prompts']} prompts "
        f"at {best['tokens_per_pass']:.2f} tokens per pass; the latency model {said}."
    )


def interval(speedup: dict) -> str:
    """The value alone where there is no interval, or none but the value."""
    value, low, high = speedup["value"], speedup["low"], speedup["high"]
    return number(value) if None in (low, high) or low == value == high else f"{value:.2f} ({low:.2f}-{high:.2f})"


def kl(row: dict) -> str:
    """An infinite one with the share of tokens where it is so."""
    return f"inf at {row['kl_infinite']:.1%}" if row["kl_infinite"] else number(row["kl_per_token"], 4)


def agreement(matches: dict | None) -> str:
    if matches is None:
        return "-"
    followed = f" ({matches['followed']} followed)" if matches["followed"] else ""
    return f"{matches['equal']}/{matches['ties']}/{matches['bugs']}{followed}"


def number(value: float | None, digits: int = 2) -> str:
    return "-" if value is None else f"{value:.{digits}f}"
