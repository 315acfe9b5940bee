"""Table, figure and answer of this experiment, from the folders of its two runs.

    python experiments/acceptance_rules/report.py CHAIN_WORKDIR TREE_WORKDIR

Writes results.json, figure.svg, and what stands between the marks of README.md, all beside this file.
"""

import json
import re
import sys
from pathlib import Path

import numpy as np

from specjax import replay
from specjax.bench.records import Workdir
from specjax.bench.summary import RESAMPLES

HERE = Path(__file__).parent
QUESTIONS = (  # which run, group, rule, its base; then the arms that did the same in closed loop
    ("block verification", 0, "p/q K=8", "block", "p/q K=8", "block K=8"),
    ("traversal", 1, "top-down 2x2", "traversal", "top-down 2x2", "traversal 2x2"),
)


def main(*folders: str) -> None:
    workdirs = [Workdir(folder) for folder in folders]
    replays = [replay.replay(workdir, []) for workdir in workdirs]
    results = {"replays": replays, "answers": [answer(workdirs, replays, *question) for question in QUESTIONS]}
    (HERE / "results.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    (HERE / "figure.svg").write_text(figure(replays), encoding="utf-8")
    readme = (HERE / "README.md").read_text(encoding="utf-8")
    made = "\n\n".join([sentence(results), table(replays), predictions(replays)])
    marks = r"(<!-- begin results -->\n).*(\n<!-- end results -->)"
    (HERE / "README.md").write_text(re.sub(marks, lambda m: m[1] + made + m[2], readme, flags=re.DOTALL), encoding="utf-8")
    print(made)


def answer(workdirs, replays, name, run, group, rule, base_arm, own_arm) -> dict:
    [found] = [g for g in replays[run]["groups"] if g["name"] == group]
    [row] = [r for r in found["rules"] if r["rule"] == rule]
    return {
        "rule": name,
        "base": found["base"],
        "equal_roots": row["difference"],
        "closed_loop": closed_loop(workdirs[run], base_arm, own_arm),
    }


def closed_loop(workdir: Workdir, base: str, own: str) -> dict:
    """Expected tokens a pass of one arm more than of another, each at the roots that it met; interval by bootstrap over prompts."""
    sums = {base: {}, own: {}}
    for row in workdir.records():
        if row["arm"] in sums:
            total = sums[row["arm"]].setdefault(str(row["question_id"]), np.zeros(2))
            total += [row["expected_sum"] + row["counts"]["passes"], row["counts"]["passes"]]
    both_P = np.stack([[sums[base][q], sums[own][q]] for q in sums[base]])
    drawn = np.random.default_rng(0).integers(len(both_P), size=(RESAMPLES, len(both_P)))
    gain = lambda total: total[..., 1, 0] / total[..., 1, 1] - total[..., 0, 0] / total[..., 0, 1]
    low, high = np.percentile(gain(both_P[drawn].sum(1)), [2.5, 97.5])
    return {"value": float(gain(both_P.sum(0))), "low": float(low), "high": float(high)}


# ---------------------------------------------------------------- what is written


def sentence(results: dict) -> str:
    said = [
        f"{a['rule']} expects {signed(a['equal_roots'])} tokens a round more than {a['base']} on the same drafts "
        f"({signed(a['closed_loop'])} in closed loop)"
        for a in results["answers"]
    ]
    [certain] = [g for run in results["replays"] for g in run["groups"] if g["certain"]]
    [block] = [r["difference"]["value"] for r in certain["rules"] if r["rule"] == "block"]
    return f"**Answer.** {'; '.join(said)}; on n-gram drafts, which are certain, block verification gains {block:.3f}."


def table(replays: list) -> str:
    lines = ["| drafts | rule | exact | tokens a round | more than the base | prompts to see it |", "|---|---|---|---|---|---|"]
    for group in (g for run in replays for g in run["groups"]):
        for row in group["rules"]:
            exact, more = "yes" if row["exact"] else "no", "base" if row["rule"] == group["base"] else signed(row["difference"])
            cells = group["name"], row["rule"], exact, f"{row['tokens']:.3f}", more, row["difference"]["prompts"] or "-"
            lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines)


def predictions(replays: list) -> str:
    lines = ["| arm | predicted tokens a round | in closed loop | error |", "|---|---|---|---|"]
    for row in (row for run in replays for g in run["groups"] for row in g["predictions"] if row["arm"]):
        cells = row["arm"], f"{row['predicted']['tokens']:.2f}", f"{row['measured']['tokens']:.2f}", f"{row['error']['tokens']:+.1%}"
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def signed(difference: dict) -> str:
    value, low, high = (difference[name] for name in ("value", "low", "high"))
    return f"{value:+.3f}" if low is None or low == high else f"{value:+.3f} ({low:+.3f} to {high:+.3f})"


def figure(replays: list) -> str:
    """Differences of exact rules to the base, with their intervals; without those that are surely worse, which would set the scale."""
    rows, y = [], 20
    for group in (g for run in replays for g in run["groups"] if not g["certain"]):
        rules = [(r["rule"], r["difference"]) for r in group["rules"] if r["exact"] and r["rule"] != group["base"]]
        found = [(rule, d) for rule, d in rules if d["high"] is not None and d["high"] >= 0]
        reach = max(abs(x) for _, d in found for x in (d["low"], d["high"])) or 1.0
        at = lambda x, reach=reach: 400 + 190 * x / reach
        rows.append(f'<text x="10" y="{y}" font-weight="bold">{group["name"]}: tokens a round more than {group["base"]}</text>')
        rows.append(f'<line x1="400" x2="400" y1="{y + 8}" y2="{y + 12 + 22 * len(found)}" stroke="#999"/>')
        for i, (rule, d) in enumerate(found):
            middle = y + 24 + 22 * i
            rows.append(f'<text x="10" y="{middle + 4}">{rule} {signed(d)}</text>')
            rows.append(
                f'<line x1="{at(d["low"]):.1f}" x2="{at(d["high"]):.1f}" y1="{middle}" y2="{middle}" stroke="#36c" stroke-width="2"/>'
            )
            rows.append(f'<circle cx="{at(d["value"]):.1f}" cy="{middle}" r="4" fill="#36c"/>')
        y += 50 + 22 * len(found)
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="600" height="{y}" font-family="sans-serif" font-size="12">'
    return "\n".join([head, '<rect width="100%" height="100%" fill="white"/>', *rows, "</svg>"]) + "\n"


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
