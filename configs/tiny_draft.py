"""Train a draft of one layer for the toy target: all that training does, in a minute and without a download.

    python -m specjax.train --config=configs/tiny_draft.py

Time: a minute on two cores. Expect: the overlap with the target on prompts that were not trained on rises from 0.17 to 0.52, and
with it the tokens per pass that are predicted for drafts of four from 1.4 to 2.6.
"""

from pathlib import Path

from ml_collections import ConfigDict
from ml_collections.config_dict import placeholder

ROOT = Path(__file__).parents[1]
ANSWERS = dict(  # the target's own, to four of the six categories
    name="answers",
    prompts="own",
    categories=("translation", "question_answering", "maths", "retrieval_edit"),
    chat=False,  # the toy has no template
    max_tokens=600,
    repeated=1.0,  # and repeats itself
    answer_tokens=192,
    answer_temperature=(1.0,),
)
TEXTS = dict(name="texts", files=(str(ROOT / "README.md"), str(ROOT / "docs" / "*.md")), texts=4096)


def get_config() -> ConfigDict:
    config = ConfigDict()
    config.target = ConfigDict(dict(source="toy://tiny", dtype=placeholder(str)))
    config.draft = ConfigDict(dict(name="small", layers=(1,), vocab=128, places=4, train_head=True))
    config.data = ConfigDict(
        dict(
            sources=(dict(ANSWERS), dict(TEXTS)),
            length=512,
            exclude=(),
            top=32,
            cache=False,
            folder=placeholder(str),
        )
    )
    config.loss = (dict(name="forward_kl", weight=1.0),)
    config.decay = 0.8  # each later place of a draft weighs less
    config.optimizer = ConfigDict(
        dict(
            steps=150,
            batch=8,
            accumulate=1,
            learning_rate=5e-3,
            warmup=20,
            floor=0.1,
            weight_decay=0.01,
            clip=1.0,
            dtype="float32",
        )
    )
    config.evaluate = ConfigDict(
        dict(prompts="own", categories=("chat",), limit=placeholder(int), chat=False, every=50, new_tokens=128, temperature=1.0)
    )
    config.on_policy = placeholder(ConfigDict)  # a part of each batch in the draft's own words
    config.seed = 0
    config.log_every = 25
    config.checkpoint_every = 50
    return config.lock()
