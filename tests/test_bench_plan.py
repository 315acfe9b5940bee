import dataclasses
import json

import numpy as np
import pytest

from specjax import Fixed, Greedy, NGram, Sampling
from specjax.api import sample_id
from specjax.bench.plan import (
    Arm,
    CombinedDraft,
    DraftModel,
    Encoded,
    Plan,
    Prompts,
    Target,
    Task,
    TrainedDraft,
    baseline,
    with_plain_arms,
)
from specjax.prompts import Prompt


def test_a_plan_is_spelled_out_as_json():
    arm = Arm("a", NGram(most=3), rule=Greedy(), length=Fixed(k=np.int32(2)))
    draft = Arm("b", DraftModel("folder"), length=with_plain_arms, sampling=Sampling(temperature=0.5))
    resolved = Plan(Target("x"), Prompts(categories=("chat",)), (arm, draft)).resolved()
    assert json.loads(json.dumps(resolved, allow_nan=False)) == resolved
    assert resolved["processors"] == [] and resolved["stop"] == [] and resolved["refill"] is False
    assert resolved["prompts"] == {"source": "own", "limit": None, "quick": False, "categories": ["chat"], "chat": True}
    first, second = resolved["arms"]
    ngram = {"most": 3, "max_n": 6, "min_n": 2, "per_match": "inf", "branches": 1, "params": None}  # JSON has no infinity
    assert first["drafter"] == {"type": "specjax.drafters.ngram.NGram", **ngram}
    assert first["rule"] == {"type": "specjax.rules.greedy.Greedy"} and first["length"]["k"] == 2
    assert second["drafter"] == {"type": "specjax.bench.plan.DraftModel", "source": "folder", "most": 7, "dtype": None, "noise": 0.0}
    assert second["length"] == "specjax.bench.plan.with_plain_arms" and second["sampling"]["temperature"] == 0.5


def test_a_combined_draft_is_spelled_out_too():
    arm = Arm("a", CombinedDraft(TrainedDraft("folder", most=9)))
    assert arm.drafter.most == 9 and arm.weights == TrainedDraft("folder", 9) and Arm("b", NGram()).weights == NGram()
    said = Plan(Target("x"), Prompts(), (arm,)).resolved()["arms"][0]["drafter"]
    assert said["type"] == "specjax.bench.plan.CombinedDraft" and said["first"]["type"] == "specjax.drafters.ngram.NGram"
    assert said["second"] == {"type": "specjax.bench.plan.TrainedDraft", "path": "folder", "most": 9}


@pytest.mark.parametrize(("make", "where"), [(Target, "target"), (DraftModel, "drafter")])
def test_a_dtype_that_no_checkpoint_has_is_refused(make, where):
    with pytest.raises(ValueError, match=f"{where}.dtype='float16' must be None or one of float32, bfloat16, float64"):
        make("x", dtype="float16")


def test_the_nearest_dtype_is_named():
    with pytest.raises(ValueError, match=r"target.dtype='float33' must be .*; did you mean 'float32'"):
        Target("x", dtype="float33")


def test_each_sample_and_turn_draws_by_a_number_of_its_own():
    prompt = Encoded(Prompt(123, "q", "c", ("a", "b", "c")), [1])
    ids = [Task(None, prompt, sample, repeat, turn).id for sample in range(3) for turn in range(3) for repeat in range(2)]
    assert ids[0] == 123 and ids[::2] == ids[1::2] and len(set(ids)) == 9  # a repeat says the same again
    assert Task(None, prompt, 2).id == sample_id(123, 2)


def test_penalties_are_in_the_name_of_a_plain_arm():
    greedy, sampled = Sampling(repetition=1.1), Sampling(temperature=0.7, presence=0.5, frequency=0.25)
    names = [a.name for a in with_plain_arms([Arm("a", NGram(), sampling=greedy), Arm("b", NGram(), sampling=sampled)])]
    assert names == ["plain greedy repetition=1.1", "plain t=0.7 presence=0.5 frequency=0.25", "a", "b"]


def test_an_object_of_no_dataclass_is_named_by_its_class():
    class Own:
        pass

    resolved = Plan(Target("x"), Prompts(), (Arm("a", length=Own()),)).resolved()
    assert resolved["arms"][0]["length"] == f"{__name__}.{Own.__qualname__}"


def test_a_coupled_plain_arm_serves_other_sampling_of_its_law_but_not_of_another():
    coupled = Arm("plain", sampling=Sampling(temperature=0.7, coupled=True))
    pq = Arm("x", NGram(), sampling=Sampling(temperature=0.7))
    assert baseline(pq, [coupled, pq]) is coupled
    own = Arm("own", sampling=Sampling(temperature=0.7))
    assert baseline(pq, [coupled, own, pq]) is own
    assert baseline(dataclasses.replace(pq, sampling=Sampling(temperature=0.8)), [coupled, own]) is None
