"""The static tree that would have paid most, from the rates and costs of a run or given by hand.

    python -m specjax.best_tree WORKDIR --arm=NAME [--most=64]
    python -m specjax.best_tree --rates='.6 .2, .5 .1' --v='1:1 4:1.2 8:1.5 16:2.1' --c=.05

Rates are given by depth, and by rank in each; the last depth's stand for all deeper ones. v: cost of a pass by its width; c: of drafting
one level, both in plain steps. An arm knows the rates of the depths and ranks that it drafted, and v at the widths of its ladder.
Predictions take the places of a tree to be independent: `specjax/theory/trees.py`.
"""

from __future__ import annotations

import argparse
import math

import numpy as np

from specjax import theory
from specjax.bench import manifest
from specjax.bench.records import Workdir
from specjax.command import fail, say


def main(argv: list[str] | None = None) -> None:
    flags = parser().parse_args(argv)
    try:
        if flags.most < 1:
            raise ValueError(f"--most={flags.most} must be at least 1")
        check(flags)
        rate_DR, v, c = of_arm(flags) if flags.workdir else by_hand(flags)
        if flags.workdir:
            show_rates(rate_DR)
        show_trees(rate_DR, v, c, flags.most)
    except (ValueError, OSError) as error:
        fail(error)


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="python -m specjax.best_tree", description=__doc__.partition("\n")[0])
    made.add_argument("workdir", nargs="?", help="of a finished run")
    made.add_argument("--arm", help="of the run: a chain or a tree")
    made.add_argument("--rates", help="by depth, split by commas, and by rank, split by spaces")
    made.add_argument("--v", help="WIDTH:COST, split by spaces")
    made.add_argument("--c", type=float, help="of drafting one level")
    made.add_argument("--most", type=int, default=64, help="drafted nodes (default 64)")
    made.error = lambda message: fail(ValueError(message))
    return made


def check(flags) -> None:
    """Everything of one kind of source, and nothing of the other."""
    kinds = ("arm",), ("rates", "v", "c")
    asked, idle = kinds if flags.workdir else kinds[::-1]
    for name in asked:
        if getattr(flags, name) is None:
            raise ValueError(f"--{name} is missing: give a workdir and --arm, or --rates, --v and --c")
    for name in idle:
        if getattr(flags, name) is not None:
            raise ValueError(f"--{name} changes nothing {'beside' if flags.workdir else 'without'} a workdir: leave it out")


def by_hand(flags) -> tuple:
    """(rate_DR, v, c) as given."""
    rows = [[number("rates", x) for x in row.split()] for row in flags.rates.split(",")]
    ranks = max(map(len, rows))
    rows = [row + [0.0] * (ranks - len(row)) for row in rows]
    v = {}
    for pair in flags.v.split():
        width, _, cost = pair.partition(":")
        if number("v", width, low=1) % 1:
            raise ValueError(f"--v: the width {width} must be a whole number")
        v[int(float(width))] = number("v", cost, low=1e-6)
    number("c", flags.c)
    deepest = min(flags.most, max(v, default=1) - 1)
    return rows + rows[-1:] * (deepest - len(rows)), v, flags.c


def number(name: str, text: str | float, low: float = 0) -> float:
    try:
        value = float(text)
    except ValueError:
        raise ValueError(f"--{name}: {text!r} must be a number") from None
    if not low <= value < math.inf:  # NaN is not
        raise ValueError(f"--{name}: {value:g} must be a number of at least {low}")
    return value


def of_arm(flags) -> tuple:
    """(rate_DR, v, c) of an arm of a run: its rounds, and what was measured before them."""
    workdir = Workdir(flags.workdir)
    notes, rows = workdir.read("manifest.json"), [row for row in workdir.records() if row["arm"] == flags.arm]
    if notes is None or not rows:
        arms = ", ".join(notes["costs"]) if notes else "none: it holds no run"
        raise ValueError(f"--arm={flags.arm!r} has no records in {workdir.path}; its arms: {arms}")
    cost = manifest.costs(notes, [flags.arm], "manifest.json")[flags.arm]
    traces = [dict(np.load(workdir.path / row["trace"])) for row in rows]
    trees = tuple(np.concatenate(each) for each in zip(*map(tree_of, traces), strict=True))
    rate_DR = np.nan_to_num(theory.rates_from_trees(*trees))
    levels = deepest(*trees[:2]) if "up_BNM" in traces[0] else max(cost.v) - 1
    return rate_DR, cost.v, cost.c * (max(cost.v) - 1) / levels  # measured by the node


def deepest(parent_NM, valid_NM) -> int:
    """Levels of the deepest draft, whether or not any round reached the last one."""
    parent_NM = np.where(valid_NM, parent_NM, 0)
    at_NM, levels = parent_NM, 0
    while at_NM.any():
        at_NM, levels = np.take_along_axis(parent_NM, at_NM, axis=1), levels + 1
    return levels + 1


def tree_of(trace: dict) -> tuple:
    """(parent_NM, valid_NM, stop_N) of one record's rounds; a chain's trace does not say where its nodes hang."""
    node_M = np.arange(trace["token_BNM"].shape[1])
    up_NM = trace["up_BNM"] if "up_BNM" in trace else (node_M > 0) & (node_M <= trace["drafted_BN"][:, None])
    return node_M - up_NM, (up_NM > 0) | (node_M == 0), trace["stop_BN"]


def show_rates(rate_DR) -> None:
    say("depth  rates by rank")
    for depth, rate_R in enumerate(rate_DR, start=1):
        say(f"{depth:>5}  {' '.join(f'{rate:.3f}' for rate in rate_R)}")


def show_trees(rate_DR, v: dict[int, float], c: float, most: int) -> None:
    """The best tree at each width, and then the best of all."""
    best = theory.best_tree(rate_DR, v, c, most)
    say("nodes  tokens   cost  speedup  tree")
    for width in sorted(width for width in v if 1 < width <= most + 1):
        say(line(theory.best_tree(rate_DR, {width: v[width]}, c, most)))
    say(f"best: shape={[list(path) for path in best.shape.paths]}" if best.shape.paths else "best: no drafts, since none pays")


def line(best: theory.BestTree) -> str:
    return f"{best.shape.nodes:>5}  {best.tokens:6.3f} {best.cost:6.3f}  {best.speedup:7.3f}  {best.shape if best.shape.paths else '-'}"


if __name__ == "__main__":
    main()
