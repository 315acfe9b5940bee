"""A target of Llama 3 70B's shape with a draft of the 8B's, planned without either's weights.

    python -m specjax.aot --config=configs/pod_70b.py --topology=v6e:2x4 --config.mesh=model:8 --slots=4096 --shape_only

Time: some minutes on two cores. Expect: docs/scaling.md. With weights, name folders in target.source and the drafter's.
"""

from pathlib import Path

from ml_collections import ConfigDict
from ml_collections.config_dict import placeholder

SHAPES = Path(__file__).parent / "shapes"
DRAFT = dict(name="model", source=str(SHAPES / "llama-3-8b"), most=4)


def get_config() -> ConfigDict:
    config = ConfigDict()
    config.target = ConfigDict(dict(source=str(SHAPES / "llama-3-70b"), dtype="bfloat16"))
    config.prompts = ConfigDict(dict(source="own", chat=True))
    config.arms = (dict(name="draft K=4", drafter=DRAFT, length=dict(name="fixed", k=4), ladder=(5,), sampling=dict(temperature=0.0)),)
    config.max_new_tokens = 1024
    config.seed = 0
    config.batch = 8
    config.mesh = placeholder(str)
    config.split_drafts = True
    return config.lock()
