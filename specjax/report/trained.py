"""What training gained, for the terminal."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.table import Table


def show(summary: dict, console: Console) -> None:
    """summary: as `specjax.training.loop.Run.train` gives it."""
    before, after = summary["before"], summary["after"]
    table = Table(title=f"Held-out prompts, before training and after step {summary['step']}", box=box.SIMPLE_HEAD)
    for name in ("place of a draft", "overlap before", "after", "accepted if reached, before", "after"):
        table.add_column(name, justify="right")
    columns = [row[name] for name in ("overlap", "rate") for row in (before, after)]
    for place, numbers in enumerate(zip(*columns, strict=True), start=1):
        table.add_row(str(place), *(f"{number:.3f}" for number in numbers))
    console.print(table)
    lines = (
        f"tokens per pass, predicted for drafts of {len(after['rate'])}: {before['tokens_per_pass']:.2f} -> {after['tokens_per_pass']:.2f}",
        f"the draft: specjax.load_drafter({summary['path']!r}, target)",
        f"in a config of specjax.run: drafter=dict(name='trained', path={summary['path']!r})",
    )
    for line in lines:
        console.print(line, soft_wrap=True, highlight=False, markup=False, emoji=False)
