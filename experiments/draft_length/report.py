"""Tables, figure and answer of this experiment, from the folders of its two runs.

    python experiments/draft_length/report.py GREEDY_WORKDIR HOT_WORKDIR

Writes results.json, figure.svg, and what stands between the marks of README.md, all beside this file.
"""

import json
import re
import sys
from pathlib import Path

import numpy as np

from specjax.bench.records import Workdir
from specjax.bench.summary import LEVEL, RESAMPLES

HERE = Path(__file__).parent
OPTIMAL, FIXED = "optimal", re.compile(r"fixed K=\d+")


def main(*folders: str) -> None:
    results = {run: result(Workdir(folder)) for run, folder in zip(("greedy", "hot"), folders, strict=True)}
    (HERE / "results.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    (HERE / "figure.svg").write_text(figure(results["greedy"]["arms"]), encoding="utf-8")
    readme = (HERE / "README.md").read_text(encoding="utf-8")
    heads = "Greedy, all 60 prompts:", "Coupled sampling at temperature 1.2, on chat, maths and questions:"
    tables = [part for head, found in zip(heads, results.values(), strict=True) for part in (head, table(found["arms"]))]
    made = "\n\n".join([sentence(results["greedy"]["answer"], results["hot"]["answer"]), *tables])
    marks = r"(<!-- begin results -->\n).*(\n<!-- end results -->)"
    (HERE / "README.md").write_text(re.sub(marks, lambda m: m[1] + made + m[2], readme, flags=re.DOTALL), encoding="utf-8")
    print(made)


def result(workdir: Workdir) -> dict:
    summary = workdir.read("summary.json")
    if summary is None:
        sys.exit(f"error: {workdir.path} holds no finished run")
    return {"arms": [arm(a) for a in summary["arms"]], "answer": answer(summary, list(workdir.records()))}


def arm(row: dict) -> dict:
    keep = "name", "tokens_per_second", "speedup", "predicted_speedup", "tokens_per_pass", "matches_plain"
    by_category = {name: category["speedup"]["value"] for name, category in row["by_category"].items()}
    return {key: row[key] for key in keep} | {"by_category": by_category}


def answer(summary: dict, rows: list) -> dict:
    """Optimal against the best and the longest fixed K and against plain: seconds over the same prompts."""
    speed = {a["name"]: a["tokens_per_second"] for a in summary["arms"]}
    fixed = [name for name in speed if FIXED.fullmatch(name)]
    best, longest = max(fixed, key=speed.get), max(fixed, key=lambda name: int(name.partition("=")[2]))
    [plain] = {a["baseline"] for a in summary["arms"]}
    return {
        "best": best,
        "longest": longest,
        "against_best": ratio(rows, best, OPTIMAL),
        "against_plain": ratio(rows, plain, OPTIMAL),
        "longest_against_plain": ratio(rows, plain, longest),
    }


def ratio(rows: list, base: str, own: str) -> dict:
    """Seconds of one arm over those of another, which said the same; interval by bootstrap over prompts."""
    seconds = {name: {str(r["question_id"]): r["seconds"]["decode"] for r in rows if r["arm"] == name} for name in (base, own)}
    both_P = np.asarray([[seconds[base][q], seconds[own][q]] for q in seconds[base]])
    drawn = np.random.default_rng(0).integers(len(both_P), size=(RESAMPLES, len(both_P)))
    total = both_P[drawn].sum(1)
    low, high = np.percentile(total[:, 0] / total[:, 1], [(100 - LEVEL) / 2, (100 + LEVEL) / 2])
    return {"value": float(np.divide(*both_P.sum(0))), "low": float(low), "high": float(high)}


# ---------------------------------------------------------------- what is written


def sentence(greedy: dict, hot: dict) -> str:
    said = (
        f"Where n-gram drafts pay (greedy) the cost-optimal policy is {interval(greedy['against_plain'])} times as fast as plain",
        f"and {interval(greedy['against_best'])} times as fast as the best fixed length ({greedy['best']});",
        f"where they do not (temperature 1.2) it runs at {interval(hot['against_plain'])} of plain,",
        f"and {hot['longest']} at {interval(hot['longest_against_plain'])}.",
    )
    return " ".join(["**Answer.**", *said])


def interval(x: dict) -> str:
    return f"{x['value']:.3f} ({x['low']:.3f} to {x['high']:.3f})"


def table(arms: list) -> str:
    categories = list(arms[0]["by_category"])
    head = ["policy", "tokens/s", "speedup", "predicted", "tokens a pass", *(c.replace("_", " ") for c in categories)]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for row in arms:
        own = [f"{row['by_category'][c]:.2f}" for c in categories]
        predicted = "" if row["predicted_speedup"] is None else f"{row['predicted_speedup']:.2f}"
        speed = f"{row['tokens_per_second']:.1f}", short(row["speedup"]), predicted, f"{row['tokens_per_pass']:.2f}"
        lines.append("| " + " | ".join([row["name"], *speed, *own]) + " |")
    return "\n".join(lines)


def short(x: dict) -> str:
    return f"{x['value']:.2f}" if x["low"] is None else f"{x['value']:.2f} ({x['low']:.2f} to {x['high']:.2f})"


def figure(arms: list) -> str:
    """Speedup of each policy with its interval, and in each category a dot."""
    arms = [a for a in arms if a["speedup"]["low"] is not None]
    at = lambda x: 150 + 180 * x
    rows, bottom = [], 40 + 26 * len(arms)
    for tick in (0.5, 1.0, 1.5, 2.0):
        rows.append(f'<line x1="{at(tick)}" x2="{at(tick)}" y1="20" y2="{bottom}" stroke="#{"333" if tick == 1 else "ddd"}"/>')
        rows.append(f'<text x="{at(tick) - 8}" y="14">{tick}</text>')
    for i, row in enumerate(arms):
        y, s = 40 + 26 * i, row["speedup"]
        rows.append(f'<text x="10" y="{y + 4}">{row["name"]}</text>')
        rows.append(f'<line x1="{at(s["low"]):.1f}" x2="{at(s["high"]):.1f}" y1="{y}" y2="{y}" stroke="#36c" stroke-width="3"/>')
        rows.append(f'<circle cx="{at(s["value"]):.1f}" cy="{y}" r="5" fill="#36c"/>')
        rows += [f'<circle cx="{at(x):.1f}" cy="{y + 8}" r="2" fill="#c63"/>' for x in row["by_category"].values()]
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="640" height="{bottom + 10}" font-family="sans-serif" font-size="12">'
    return "\n".join([head, '<rect width="100%" height="100%" fill="white"/>', *rows, "</svg>"]) + "\n"


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
