"""What makes a draft better: the loss, data of its own, or more data? Each variant is one training run of as many steps.

    for v in before lk forward_kl tvd on_policy quarter sixteenth; do
        python -m specjax.train --config=experiments/distillation/config.py:$v --workdir=runs/distillation/$v || break
    done
    python -m specjax.run --config=experiments/distillation/compare.py --workdir=runs/distillation/compare
    python experiments/distillation/report.py runs/distillation/compare

All variants read one folder of data, that of the repository. One value runs it larger, on one accelerator, with data that the first run
makes: config.py:lk@accelerator. Drafts, prompts and data are those of configs/distill_smollm2.py, from which this differs only in what
PLACES, DECAY, VARIANTS and BUDGETS say, in its loss (lk) and in reading the self-prompted data alone.
"""

import runpy
from pathlib import Path

from ml_collections import ConfigDict

DISTILL = runpy.run_path(str(Path(__file__).parents[2] / "configs" / "distill_smollm2.py"))
FOLDER = "runs/distillation/data"  # of the accelerator
PLACES, DECAY = 3, 0.8  # of every variant
VARIANTS = {  # what differs from lk
    "before": dict(steps=1, learning_rate=1e-12),  # the draft as it begins
    "lk": {},
    "forward_kl": dict(loss="forward_kl"),
    "tvd": dict(loss="tvd"),
    "on_policy": dict(on_policy=dict(fraction=0.25, every=50, texts=64, new_tokens=64, temperature=1.0, batch=16)),
    "quarter": dict(share=4),  # of the data
    "sixteenth": dict(share=16),
}
BUDGETS = {"laptop": dict(steps=120, every=60), "accelerator": dict(steps=20_000, every=1000)}


def get_config(what: str = "lk") -> ConfigDict:
    variant, _, size = what.partition("@")
    chosen, budget, config = VARIANTS[variant], BUDGETS[size or "laptop"], DISTILL["get_config"](size or "laptop")
    steps = chosen.get("steps", budget["steps"])
    with config.unlocked():
        config.draft.places, config.decay = PLACES, DECAY
        config.data.folder = config.data.folder or FOLDER
        made = [s for s in config.data.sources if s["name"] == "self_prompted"]  # of shards that are there already half is not to be had
        config.data.sources = tuple({**s, "shards": max(1, s["shards"] // chosen.get("share", 1))} for s in made)
        config.loss = (dict(name=chosen.get("loss", "lk"), weight=1.0),)
        if "on_policy" in chosen:
            config.on_policy = ConfigDict(chosen["on_policy"])
        config.optimizer.update(steps=steps, warmup=steps // 20)
        config.optimizer.learning_rate = chosen.get("learning_rate", config.optimizer.learning_rate)
        config.evaluate.every = config.checkpoint_every = min(budget["every"], steps)
        config.log_every = min(20, steps)
    return config
