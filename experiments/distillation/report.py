"""Table, figure and answer of this experiment, from the folder of the comparison and those of the training runs beside it.

    python experiments/distillation/report.py runs/distillation/compare

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
BASE, SAMPLINGS = "lk", ("greedy", "t=1")


def main(folder: str) -> None:
    summary = Workdir(folder).read("summary.json")
    if summary is None:
        sys.exit(f"error: {folder} holds no finished run")
    rows, arms = list(Workdir(folder).records()), {arm["name"]: arm for arm in summary["arms"]}
    names = sorted({arm.rpartition(" ")[0] for arm in arms if not arm.startswith("plain")})
    results = {name: variant(Path(folder).parent / name, name, rows, arms) for name in names}
    (HERE / "results.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    (HERE / "figure.svg").write_text(figure(results), encoding="utf-8")
    readme, made = (HERE / "README.md").read_text(encoding="utf-8"), f"{answer(results)}\n\n{table(results)}"
    marks = r"(<!-- begin results -->\n).*(\n<!-- end results -->)"
    (HERE / "README.md").write_text(re.sub(marks, lambda m: m[1] + made + m[2], readme, flags=re.DOTALL), encoding="utf-8")
    print(made)


def variant(workdir: Path, name: str, rows: list, arms: dict) -> dict:
    """What it was trained on, and under each sampling its tokens per pass and what these are more than the base's, paired by prompt."""
    trained = json.loads((workdir / "summary.json").read_text(encoding="utf-8"))
    found = {"steps": trained["step"], "predicted": trained["after"]["tokens_per_pass"]}
    for s in SAMPLINGS:
        arm = arms[f"{name} {s}"]
        found[s] = {key: arm[key] for key in ("tokens_per_pass", "alpha", "speedup")}
        found[s]["more"] = None if name == BASE else more(rows, f"{BASE} {s}", f"{name} {s}")
    return found


def more(rows: list, base: str, own: str) -> dict:
    """Tokens per pass of one arm less those of another; interval by bootstrap over prompts, both of an arm taken together."""
    counts = {name: {str(r["question_id"]): r["counts"] for r in rows if r["arm"] == name} for name in (base, own)}
    pairs_P = np.asarray([[[counts[name][q][key] for key in ("tokens", "passes")] for name in (base, own)] for q in counts[base]], float)
    drawn = np.random.default_rng(0).integers(len(pairs_P), size=(RESAMPLES, len(pairs_P)))
    rate = lambda total: total[..., 0] / total[..., 1]
    all_ = rate(pairs_P.sum(0))
    each = rate(pairs_P[drawn].sum(1))
    low, high = np.percentile(each[:, 1] - each[:, 0], [(100 - LEVEL) / 2, (100 + LEVEL) / 2])
    return {"value": float(all_[1] - all_[0]), "low": float(low), "high": float(high)}


# ---------------------------------------------------------------- what is written


def answer(results: dict) -> str:
    best = max(results, key=lambda name: results[name]["greedy"]["tokens_per_pass"])
    told = {name: f"{found['greedy']['tokens_per_pass']:.3f}" for name, found in results.items()}
    before = (
        f"Distillation takes the draft from {told['before']} to {told[BASE]} tokens a pass (greedy, drafts of 3); "
        if "before" in told
        else ""
    )
    return f"**Answer.** {before}the most has {best} with {told[best]}."


def table(results: dict) -> str:
    head = [
        "variant",
        *(f"{what}, {s}" for s in SAMPLINGS for what in ("tokens a pass", f"more than {BASE}", "alpha")),
        "predicted, greedy",
    ]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for name, found in results.items():
        cells = [
            cell for s in SAMPLINGS for cell in (f"{found[s]['tokens_per_pass']:.3f}", short(found[s]["more"]), f"{found[s]['alpha']:.3f}")
        ]
        lines.append("| " + " | ".join([name, *cells, f"{found['predicted']:.3f}"]) + " |")
    return "\n".join(lines)


def short(x: dict | None) -> str:
    return "-" if x is None else f"{x['value']:+.3f} ({x['low']:+.3f} to {x['high']:+.3f})"


def figure(results: dict) -> str:
    """Tokens per pass of each variant, less the base's, with intervals: greedy in blue, at temperature 1 in orange."""
    others = {name: found for name, found in results.items() if name != BASE}
    ends = [x[end] for found in others.values() for x in (found[s]["more"] for s in SAMPLINGS) for end in ("low", "high")] + [0.0]
    low, high = min(ends), max(ends)
    at = lambda x: 150 + 440 * (x - low) / (high - low)
    bottom = 40 + 30 * len(others)
    rows = [
        f'<line x1="{at(0):.1f}" x2="{at(0):.1f}" y1="20" y2="{bottom}" stroke="#333"/>',
        f'<text x="{at(0) - 8:.1f}" y="14">{BASE}</text>',
    ]
    for i, (name, found) in enumerate(others.items()):
        rows.append(f'<text x="10" y="{44 + 30 * i}">{name}</text>')
        for y, colour, s in ((36 + 30 * i, "#36c", "greedy"), (46 + 30 * i, "#c63", "t=1")):
            x = found[s]["more"]
            rows.append(f'<line x1="{at(x["low"]):.1f}" x2="{at(x["high"]):.1f}" y1="{y}" y2="{y}" stroke="{colour}" stroke-width="3"/>')
            rows.append(f'<circle cx="{at(x["value"]):.1f}" cy="{y}" r="4" fill="{colour}"><title>{short(x)}</title></circle>')
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="640" height="{bottom + 10}" font-family="sans-serif" font-size="12">'
    return "\n".join([head, '<rect width="100%" height="100%" fill="white"/>', *rows, "</svg>"]) + "\n"


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
