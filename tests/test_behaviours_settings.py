"""Every key of a config changes what a run does, or is refused."""

import copy
import dataclasses
import functools
import pathlib

import jax
import numpy as np
import pytest
from test_build import config

from specjax import Fixed, Heuristic, Lenient, NGram, Sampling, build
from specjax.bench import plan, sweep
from specjax.types import struct

SAMPLED = dict(temperature=0.7)
ARMS = [
    dict(
        name="model", drafter=dict(name="model", source="toy://tiny/1", most=3, dtype=None), rule=dict(name="lenient", lenience=0.5),
        length=dict(name="heuristic", start=2), sampling=SAMPLED, draft_sampling=dict(temperature=0.5),
    ),
    dict(name="ngram", drafter=dict(name="ngram", most=3), length=dict(name="fixed", k=2), sampling=SAMPLED),
    dict(name="exit", drafter=dict(name="early_exit", exit_layer=1, most=2), sampling=SAMPLED),
]  # fmt: skip
BASE = dict(arms=ARMS, batch=2, min_new_tokens=2, stop=["never"])
FILTERS = dict(temperature=0.8, top_k=5, top_p=0.5, min_p=0.1, repetition=1.2, presence=0.5, frequency=0.5, coupled=True)
CHANGES = {  # one other value of each key
    "target": dict(source="toy://tiny/1", dtype="bfloat16"),
    "prompts": dict(source=str(pathlib.Path(__file__).with_name("tiny_talk.jsonl")), limit=1, quick=True, categories=["two"], chat=True),
    "": dict(
        max_new_tokens=7, min_new_tokens=3, stop=["a"], forbidden=[5], processors=["test_behaviours_settings:Shift"], logprobs=True, seed=1,
        batch=3, repeats=2, samples=2, refill=True, ignore_eos=False, record_laws=True,
        mesh="data:1", split_drafts=True,
    ),
    "arms.0": dict(name="other", rule=None, length=None, draft_sampling=None, ladder=[2, 4]),
    "arms.0.drafter": dict(source="toy://tiny/2", most=2, dtype="bfloat16", noise=0.5),
    "arms.0.rule": dict(lenience=0.4, scaled_residual=False),
    "arms.0.length": dict(start=1, most=2),
    "arms.0.sampling": FILTERS,
    "arms.0.draft_sampling": FILTERS,
    "arms.1.drafter": dict(most=2, max_n=3, min_n=1, per_match=1.5, branches=2),
    "arms.1.length": dict(k=1),
    "arms.2.drafter": dict(exit_layer=2, most=1),
}  # fmt: skip
KINDS = {
    "target": plan.Target, "prompts": plan.Prompts, "": plan.Plan, "arms.0": plan.Arm, "arms.0.drafter": plan.DraftModel,
    "arms.0.rule": Lenient, "arms.0.length": Heuristic, "arms.0.sampling": Sampling, "arms.1.drafter": NGram, "arms.1.length": Fixed,
    "arms.2.drafter": plan.EarlyExitDraft,
}  # fmt: skip
REFUSED = {
    "branches": "judges chains",
    "chat": "no chat template",
    "quick": "no prompt is marked",
    "split_drafts": "changes nothing without a mesh",
    "coupled": "coupled (sampling is|changes nothing)",
}
KEYS = [(where, key) for where, values in CHANGES.items() for key in values]


@struct
class Shift:
    def __call__(self, logits_V, path):
        return logits_V + 1


def digest(given):
    """What a run of this config would do, without running it."""
    experiment = build.load(build.plan(given))
    arms = [(arm.name, arm.baseline, *numbers(arm.decoder.setup)) for arm in experiment.arms]
    batches = list(sweep.batches(experiment))
    state, _ = sweep._start(experiment, batches[0], {})
    tasks = [[(task.key, task.id, tuple(task.encoded.tokens)) for task in batch] for batch in batches]
    programs = sorted(sweep.programs(experiment, experiment.arms[0]))
    return arms, numbers(experiment.target.params), tasks, numbers(state.limit_B), programs, experiment.plan.record_laws


def numbers(tree):
    leaves, structure = jax.tree.flatten(tree)
    key = lambda x: jax.random.key_data(x) if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key) else x
    return structure, [(x.shape, str(x.dtype), np.asarray(key(x)).tobytes()) for x in leaves]


@functools.cache
def base():
    return digest(config(**copy.deepcopy(BASE)))


@pytest.mark.parametrize(("where", "key"), KEYS)
def test_every_key_changes_the_experiment_or_is_refused(where, key):
    changed = config(**copy.deepcopy(BASE))
    place = changed
    for step in filter(None, where.split(".")):
        place = place[int(step) if step.isdigit() else step]
    place[key] = CHANGES[where][key]
    if key in REFUSED:
        with pytest.raises(ValueError, match=REFUSED[key]):
            digest(changed)
    else:
        assert digest(changed) != base()


def test_no_key_is_left_out_of_this_test():
    parts = {"target", "prompts", "arms", "drafter", "sampling"}  # have keys of their own
    for where, kind in KINDS.items():
        names = {f.name for f in dataclasses.fields(kind)} - {"params"}
        assert names - parts == set(CHANGES[where]) - parts, where
