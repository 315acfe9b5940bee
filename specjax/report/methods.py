"""The methods there are, as tables: from the classes of rules, and from the first paragraph of each drafter's and length policy's file.

    python -m specjax.report.methods [--write README.md]

Without --write the tables are printed. With it they replace what stands between the two markers of that file.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable
from pathlib import Path

from specjax import drafters, lengths, rules, trained
from specjax.command import fail, say

BEGIN, END = "<!-- methods: python -m specjax.report.methods --write README.md -->", "<!-- end of methods -->"
DRAWN = {"iid": "i.i.d.", "without_replacement": "without replacement", "fixed": "fixed"}


def tables() -> str:
    """Markdown of all three."""
    parts = ("rule", "exact", "judges", "needs", "certified to have", "paper"), map(_rule, rules.ALL)
    by_path = "`trained`", linked(first_paragraph(trained.__doc__))
    kinds = {"drafter": [*files(drafters), by_path], "draft length": files(lengths)}
    described = [table((kind, "method"), rows) for kind, rows in kinds.items()]
    return "\n".join([table(*parts), *described])


def table(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _rule(rule) -> tuple[str, ...]:
    exact = "no" if not rule.exact else "yes, where the target is certain" if rule.one_hot_only else "yes"
    judges = f"trees ({', '.join(DRAWN[way] for way in rule.drawn)})" if rule.trees else "chains"
    return f"`{rule.name}`", exact, judges, rule.needs, _certified(rule), linked(rule.paper)


def _certified(rule) -> str:
    """What `specjax.certify` asks of it, see `specjax.certify.rule`."""
    if rule.exact:
        return "the target's law"
    if getattr(rule, "own_exact", False):
        return "its own law"
    return "its own law, at one place" if hasattr(rule, "token_law") else "a law"


def files(package) -> list[tuple[str, str]]:
    """(names, first paragraph) of each file that holds what a package exports, in the order of its `__all__`."""
    things = [getattr(package, name) for name in package.__all__]
    modules = {}
    for thing in things:
        if callable(thing):
            modules.setdefault(thing.__module__, []).append(f"`{getattr(thing, 'name', getattr(thing, '__name__', ''))}`")
    return [(", ".join(names), linked(first_paragraph(sys.modules[module].__doc__))) for module, names in modules.items()]


def first_paragraph(doc: str) -> str:
    """On one line, without the paragraph's full stop."""
    return " ".join(doc.split("\n\n")[0].split()).removesuffix(".").removesuffix(":")


def linked(text: str) -> str:
    """With each arXiv number as a link."""
    return re.sub(r"\b(\d{4}\.\d{5})\b", r"[\1](https://arxiv.org/abs/\1)", text)


def renewed(text: str, where: str) -> str:
    """A file's text with the tables of today between its markers."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{where} has no lines {BEGIN} and {END}: they say where the tables go")
    return f"{before}{BEGIN}\n\n{tables()}\n{END}{after}"


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m specjax.report.methods", description=__doc__.partition("\n")[0])
    parser.add_argument("--write", metavar="FILE", help="replace the tables in this file")
    parser.error = lambda message: fail(ValueError(message))
    path = parser.parse_args(argv).write
    try:
        if path is None:
            return say(tables())
        Path(path).write_text(renewed(Path(path).read_text(encoding="utf-8"), path), encoding="utf-8")
    except (ValueError, OSError) as error:
        fail(error)


if __name__ == "__main__":
    main()
