"""Table, figure and answer of this experiment, from the folders of its runs.

    python experiments/batch_size/report.py WORKDIR

Writes results.json, figure.svg, and what stands between the marks of README.md, all beside this file.
"""

import itertools
import json
import re
import sys
from pathlib import Path

from specjax.bench.records import Workdir

HERE = Path(__file__).parent
POLICY = "goodput"


def main(folder: str) -> None:
    found = sorted((int(path.name), Workdir(str(path))) for path in Path(folder).iterdir() if path.name.isdigit())
    results = [row for batch, workdir in found for row in rows(batch, workdir)]
    (HERE / "results.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    (HERE / "figure.svg").write_text(figure(results), encoding="utf-8")
    readme = (HERE / "README.md").read_text(encoding="utf-8")
    made = f"{sentence(results)}\n\n{table(results)}"
    marks = r"(<!-- begin results -->\n).*(\n<!-- end results -->)"
    (HERE / "README.md").write_text(re.sub(marks, lambda m: m[1] + made + m[2], readme, flags=re.DOTALL), encoding="utf-8")
    print(made)


def rows(batch: int, workdir: Workdir) -> list[dict]:
    summary = workdir.read("summary.json")
    if summary is None:
        sys.exit(f"error: {workdir.path} holds no finished run")
    records = list(workdir.records())
    return [row(batch, arm, [r for r in records if r["arm"] == arm["name"]]) for arm in summary["arms"]]


def row(batch: int, arm: dict, records: list[dict]) -> dict:
    """drafted: tokens that a round drafts, of rows that run."""
    keep = "name", "tokens_per_second", "speedup", "tokens_per_pass", "v", "matches_plain"
    drafted = sum(r["counts"]["drafted"] for r in records) / max(sum(r["counts"]["passes"] for r in records), 1)
    return {"batch": batch, **{key: arm[key] for key in keep}, "drafted": drafted}


def sentence(results: list[dict]) -> str:
    """Up to which batch the better of the fixed lengths pays, by its interval, and what the policy does there and beyond."""
    batches = sorted({r["batch"] for r in results})
    own = {b: [r for r in results if r["batch"] == b] for b in batches}
    best = {b: max((r for r in own[b] if r["name"].startswith("fixed")), key=lambda r: r["speedup"]["value"]) for b in batches}
    policy = {b: next(r for r in own[b] if r["name"] == POLICY) for b in batches}
    pays = list(itertools.takewhile(lambda b: (best[b]["speedup"]["low"] or 0) > 1, batches))
    of = lambda b: f"{best[b]['name']} {interval(best[b]['speedup'])} with {b}"
    until = f"speculation pays up to {pays[-1]} rows of a batch" if pays else "speculation does not pay"
    named = ", ".join(of(b) for b in batches if not pays or b >= pays[-1])
    said = ", ".join(f"{interval(policy[b]['speedup'])} with {b}" for b in batches)
    drafted = ", ".join(f"{policy[b]['drafted']:.2f}" for b in batches)
    return (
        f"**Answer.** On two cores {until} (times plain: {named}); {POLICY} has {said}, drafting "
        f"{drafted} tokens a round of a row (95%: of one row over prompts, else over repeats of the same prompts)."
    )


def interval(x: dict) -> str:
    """Where too few prompts or repeats were measured apart there is none."""
    return f"{x['value']:.2f}" if x["low"] is None else f"{x['value']:.2f} ({x['low']:.2f} to {x['high']:.2f})"


def ends(x: dict) -> tuple[float, float]:
    return (x["value"], x["value"]) if x["low"] is None else (x["low"], x["high"])


def table(results: list[dict]) -> str:
    widths = sorted({int(width) for r in results for width in r["v"]})
    head = ["batch", "arm", "tokens/s", "speedup", "tokens a pass", "drafted a round", *(f"v({w})" for w in widths if w > 1)]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for r in results:
        v = [f"{r['v'][str(w)]:.2f}" if str(w) in r["v"] else "" for w in widths if w > 1]
        own = [str(r["batch"]), r["name"], f"{r['tokens_per_second']:.1f}", interval(r["speedup"])]
        lines.append("| " + " | ".join([*own, f"{r['tokens_per_pass']:.2f}", f"{r['drafted']:.2f}", *v]) + " |")
    return "\n".join(lines)


def figure(results: list[dict]) -> str:
    """Speedup over the batch, a line an arm, with intervals."""
    names = [name for name in dict.fromkeys(r["name"] for r in results) if not name.startswith("plain")]
    batches, colours = sorted({r["batch"] for r in results}), ("#4477aa", "#ee6677", "#228833", "#ccbb44")
    high = max(ends(r["speedup"])[1] for r in results) * 1.05
    low = min(0.5, *(ends(r["speedup"])[0] for r in results))
    x = {b: 70 + 430 * i / max(len(batches) - 1, 1) for i, b in enumerate(batches)}
    y = lambda s: 270 - 240 * (s - low) / (high - low)
    parts = [f'<line x1="60" x2="510" y1="{y(1):.1f}" y2="{y(1):.1f}" stroke="#999" stroke-dasharray="4"/>']
    for tick in (0.5, 0.75, 1.0, 1.25, 1.5, 1.75, 2.0):
        if low <= tick <= high:
            parts.append(f'<text x="52" y="{y(tick) + 4:.1f}" text-anchor="end">{tick:g}</text>')
    parts += [f'<text x="{x[b]:.0f}" y="292" text-anchor="middle">{b}</text>' for b in batches]
    for i, (name, colour) in enumerate(zip(names, colours, strict=False)):
        own = [r for r in results if r["name"] == name]
        shift = 4 * (i - 1)
        points = " ".join(f"{x[r['batch']] + shift:.1f},{y(r['speedup']['value']):.1f}" for r in own)
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>')
        for r in own:
            at, (bottom, top) = x[r["batch"]] + shift, map(y, ends(r["speedup"]))
            parts.append(f'<line x1="{at:.1f}" x2="{at:.1f}" y1="{bottom:.1f}" y2="{top:.1f}" stroke="{colour}"/>')
        parts.append(f'<text x="520" y="{40 + 18 * i}" fill="{colour}">{name}</text>')
    body = "\n".join(parts)
    title = '<text x="285" y="312" text-anchor="middle">rows of a batch</text><text x="60" y="16">speedup over plain</text>'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 620 320" font-family="sans-serif" font-size="13">\n{body}\n{title}\n</svg>\n'
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
