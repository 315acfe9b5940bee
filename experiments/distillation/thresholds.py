"""How sure the shipped draft must be, and how long its drafts: chosen on the validation prompts, none of which it is reported on.

    python -m specjax.run --config=experiments/distillation/thresholds.py

Time: 4 minutes on two cores. Expect: README of this folder, "How the draft was set".
"""

import copy
import runpy
from pathlib import Path

from ml_collections import ConfigDict

ROOT = Path(__file__).parents[2]
SHIPPED = runpy.run_path(str(ROOT / "configs" / "shipped_draft.py"))
LENGTHS = {
    "K=1": dict(name="fixed", k=1),
    **{f"sure {threshold}": dict(name="confidence", threshold=threshold) for threshold in (0.3, 0.4, 0.5)},
    "optimal": dict(name="optimal", rate=0.4, weight=6.0),
}


def get_config() -> ConfigDict:
    config = SHIPPED["get_config"]()
    draft = dict(drafter=SHIPPED["DRAFT"], ladder=SHIPPED["NARROW"], sampling=dict(temperature=0.0))
    with config.unlocked():
        config.prompts.source = str(ROOT / "experiments" / "distillation" / "validation.jsonl")
        config.arms = tuple(copy.deepcopy(dict(draft, name=name, length=length)) for name, length in LENGTHS.items())
    return config
