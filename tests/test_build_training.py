import copy
import dataclasses
import json
import pathlib
import runpy

import pytest
from tiny_training import get_config

from configs import distill_smollm2, tiny_draft
from specjax import build, build_training
from specjax.training import losses
from specjax.training.texts import Texts


def changed(path: str, value):
    config = copy.deepcopy(build.plain(get_config()))
    *parts, last = path.split(".")
    inner = config
    for part in parts:
        inner = inner[int(part)] if part.isdigit() else inner[part]
    inner[last] = value
    return config


def test_a_config_becomes_a_plan():
    plan = build_training.plan(get_config())
    assert plan.draft.layers == (1,) and plan.draft.train_head is False
    assert plan.loss == losses.Weighted(((1.0, losses.ForwardKL()),)) and plan.on_policy.rows(4) == 2
    assert isinstance(plan.data.sources[0].settings, Texts) and plan.data.sources[0].name == "texts"
    resolved = plan.resolved()
    assert json.loads(json.dumps(resolved)) == resolved
    assert resolved["optimizer.steps"] == 12 and resolved["draft.name"] == "small" and resolved["data.sources"][0]["name"] == "texts"


def test_losses_are_summed_by_weight_and_may_be_ones_own():
    wanted = [dict(name="jsd", beta=0.1, weight=2), "ce", "specjax.training.losses:TVD"]
    plan = build_training.plan(changed("loss", wanted) | {"on_policy": None})
    assert plan.loss.parts == ((2.0, losses.JSD(0.1)), (1.0, losses.CE()), (1.0, losses.TVD()))


@pytest.mark.parametrize("config", [tiny_draft.get_config(), *map(distill_smollm2.get_config, distill_smollm2.SIZES)])
def test_the_configs_are_plans(config):
    assert build_training.plan(config).optimizer.steps == config.optimizer.steps


@dataclasses.dataclass
class Mutable:
    name, needs_law = "mutable", True

    def __call__(self, logits_XU, law, token_X): ...


@dataclasses.dataclass(frozen=True)
class Nameless:
    def __call__(self, logits_XU, law, token_X): ...


def function(logits_XU, law, token_X): ...


def test_the_variants_of_the_experiment_are_plans():
    made = runpy.run_path(str(pathlib.Path(__file__).parents[1] / "experiments" / "distillation" / "config.py"))
    for variant in made["VARIANTS"]:
        for size in ("", "@accelerator"):
            build_training.plan(made["get_config"](variant + size))


WRONG = [  # key, value, what is said
    ("optimizer.step", 3, "optimizer.step is not a key: .*; did you mean 'steps'"),
    ("optimizer.steps", 0, "optimizer.steps=0 must be at least 1"),
    ("optimizer.steps", 1.5, "optimizer.steps=1.5 must be int, not float"),
    ("optimizer.accumulate", 3, "optimizer.accumulate=3 must divide batch=4"),
    ("optimizer.learning_rate", 0, "optimizer.learning_rate=0 must be above 0"),
    ("optimizer.warmup", 13, "optimizer.warmup=13 must be at least 0 and at most 12"),
    ("optimizer.clip", 0.0, "optimizer.clip=0.0 must be above 0"),
    *[
        (f"optimizer.{name}", float("inf"), f"optimizer.{name}=inf must be at least 0")
        for name in ("learning_rate", "clip", "weight_decay")
    ],
    ("data.folder", "", "data.folder='' must name a folder"),
    ("loss", [{"name": "ce_l1", "ce": 0.0, "l1": 0.0}], "loss.0..ce=0 with l1=0 teaches nothing"),
    ("optimizer.dtype", "float16", "optimizer.dtype='float16' must be one of float32, bfloat16"),
    ("draft.name", "smal", "draft.name='smal' must be one of small, eagle3; did you mean 'small'"),
    ("draft.layers", [], r"draft.layers=\(\) must name at least one layer"),
    ("draft.taps", [1], "draft.taps is not a key"),
    ("draft.vocab", 1, "draft.vocab=1 must be at least 2"),
    ("draft.places", 0, "draft.places=0 must be at least 1"),
    ("data.sources", [], "data.sources=.* must be a list of sources, at least one"),
    ("data.sources.0.name", "text", r"data.sources\[0\].name='text' must be one of .*; did you mean 'texts'"),
    ("data.sources.0.file", "x", r"data.sources\[0\].file is not a key: .*; did you mean 'files'"),
    ("data.sources.0.repeated", 2.0, r"data.sources\[0\].repeated=2.0 must be between 0 and 1"),
    ("data.exclude", ["own", "own"], r"data.exclude=.*: 'own' is there twice"),
    ("data.length", 1, "data.length=1 must be at least 2"),
    ("data.top", 0, "data.top=0 must be at least 1"),
    ("data.sources.0.share", 0, r"data.sources\[0\].share=0 must be above 0"),
    ("loss", [], r"loss=\[\] must be a list of losses"),
    ("loss", ["forward"], r"loss\[0\]='forward' is none of .*; did you mean 'forward_kl'"),
    ("loss", [dict(name="ce", weight=0)], r"loss\[0\].weight=0 must be above 0"),
    ("loss", [dict(name="ce", weight="1")], r"loss\[0\].weight='1' must be a number"),
    ("loss", [dict(name="jsd", beta=1.0)], r"loss\[0\].beta=1.0 must be above 0 and below 1"),
    ("loss", [dict(name="ce", beta=1.0)], r"loss\[0\].beta is not a key"),
    *[
        ("loss", loss, "on_policy needs a loss that compares laws: 'weighted' would teach")
        for loss in (["ce"], ["ce_l1"], ["forward_kl", "ce"])
    ],
    ("decay", 0.0, "config.decay=0.0 must be above 0"),
    ("evaluate.temperature", 0.7, "evaluate.temperature=0.7 must be 0 or 1"),
    ("evaluate.every", 13, "evaluate.every=13 must be at least 1 and at most 12"),
    ("on_policy.fraction", 0.1, "on_policy.fraction=0.1 is 0 of optimizer.batch=4 rows"),
    ("on_policy.new_tokens", 48, "on_policy.new_tokens=48 leaves no room in data.length=48 for any prompt"),
    ("on_policy.temperature", 0, "on_policy.temperature=0 must be above 0"),
    ("log_every", 13, "config.log_every=13 must be at least 1 and at most 12"),
    ("seed", -1, "config.seed=-1 must be at least 0"),
    ("seed", 2**32, "config.seed=4294967296 must be .* at most 4294967295"),
    ("draft", dict(name="eagle3", taps=[1, 0]), r"draft.taps=\[1, 0\] must be layers from low to high, each once"),
    ("draft", dict(name="eagle3", taps=[0, 0]), r"draft.taps=\[0, 0\] must be layers from low to high, each once"),
    ("loss", ["test_build_training:Mutable"], r"loss\[0\]=.* must be a frozen dataclass that has `name`, `needs_law` and __call__"),
    ("loss", ["test_build_training:Nameless"], r"loss\[0\]=.* must be a frozen dataclass"),
    ("loss", ["test_build_training:function"], r"loss\[0\]=.* must be a frozen dataclass"),
    ("target.dtype", "float8", "target.dtype='float8' must be one of"),
]


@pytest.mark.parametrize(("path", "value", "said"), WRONG)
def test_what_cannot_be_is_named(path, value, said):
    with pytest.raises(ValueError, match=said) as error:
        build_training.plan(changed(path, value))
    assert "\n" not in str(error.value)


def test_a_cache_that_nobody_reads_is_refused():
    config = changed("loss", ["ce"]) | {"on_policy": None}
    config["data"]["cache"] = True
    with pytest.raises(ValueError, match=r"data.cache=True changes nothing: neither the loss nor the draft reads"):
        build_training.plan(config)


def test_a_seed_for_each_source():
    config = changed("seed", 2**32 - 1)
    config["data"]["sources"] *= 2
    with pytest.raises(ValueError, match=r"config.seed=4294967295 must be at least 0 and at most 4294967294"):
        build_training.plan(config)


def test_keys_that_change_nothing_are_refused():
    text_alone = changed("loss", ["ce"]) | {"on_policy": None}
    text_alone["evaluate"]["temperature"] = 0.0
    with pytest.raises(ValueError, match=r"data.top=8 changes nothing: neither the loss nor the evaluation reads the target's laws"):
        build_training.plan(text_alone)
    with pytest.raises(ValueError, match=r"config.decay=0.8 changes nothing: the draft has one place"):
        build_training.plan(changed("draft.places", 1) | {"decay": 0.8})
    cached = changed("data.top", None)
    cached["data"]["cache"] = True
    with pytest.raises(ValueError, match=r"data.cache=True needs data.top"):
        build_training.plan(cached)
