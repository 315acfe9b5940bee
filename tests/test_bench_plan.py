import dataclasses
import json

import numpy as np
import pytest

from specjax import Fixed, Greedy, NGram, Sampling
from specjax.bench.plan import Arm, DraftModel, Plan, Prompts, Target, baseline, with_plain_arms


def test_a_plan_is_spelled_out_as_json():
    arm = Arm("a", NGram(most=3), rule=Greedy(), length=Fixed(k=np.int32(2)))
    draft = Arm("b", DraftModel("folder"), length=with_plain_arms, sampling=Sampling(temperature=0.5))
    resolved = Plan(Target("x"), Prompts(categories=("chat",)), (arm, draft)).resolved()
    assert json.loads(json.dumps(resolved, allow_nan=False)) == resolved
    assert resolved["prompts"] == {"source": "own", "limit": None, "quick": False, "categories": ["chat"], "chat": True}
    first, second = resolved["arms"]
    ngram = {"most": 3, "max_n": 6, "min_n": 2, "per_match": "inf", "params": None}  # JSON has no infinity
    assert first["drafter"] == {"type": "specjax.drafters.ngram.NGram", **ngram}
    assert first["rule"] == {"type": "specjax.rules.greedy.Greedy"} and first["length"]["k"] == 2
    assert second["drafter"] == {"type": "specjax.bench.plan.DraftModel", "source": "folder", "most": 7, "dtype": None}
    assert second["length"] == "specjax.bench.plan.with_plain_arms" and second["sampling"]["temperature"] == 0.5


@pytest.mark.parametrize(("make", "where"), [(Target, "target"), (DraftModel, "drafter")])
def test_a_dtype_that_no_checkpoint_has_is_refused(make, where):
    with pytest.raises(ValueError, match=f"{where}.dtype='float16' must be None or one of float32, bfloat16, float64"):
        make("x", dtype="float16")


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
