import json
import pathlib
import runpy
import sys
import types

import jax
import numpy as np
import pytest
import tiny_run

import specjax
from specjax import Fixed, Greedy, Heuristic, Lenient, NGram, NoDraft, Sampling, build, match, rules
from specjax.bench import plan as bench_plan
from specjax.bench.plan import CombinedDraft, DraftModel, EarlyExitDraft, TrainedDraft
from specjax.training.drafts import eagle3, small
from specjax.training.export import export
from specjax.types import struct


class Double:
    """A user's own length policy."""

    def __init__(self, times=2):
        self.times = times

    def choose(self, state, offer_B):
        return offer_B


def config(**changes):
    return {**build.plain(tiny_run.get_config()), **changes}


def arms(*given):
    return build.plan(config(arms=list(given))).arms


def test_plain_arms_are_added_once_for_each_law():
    assert [arm.name for arm in build.plan(tiny_run.get_config()).arms] == tiny_run.ARMS
    own = dict(name="mine", drafter="none", sampling=tiny_run.COUPLED)
    assert [a.name for a in arms(dict(name="x", drafter="ngram", sampling=tiny_run.PQ), own)] == ["mine", "x"]
    filtered = dict(name="x", drafter="ngram", sampling=dict(temperature=0.7, top_p=0.9))
    assert [a.name for a in arms(filtered, own)] == ["plain t=0.7 top-p=0.9", "mine", "x"]
    pq = dict(name="own p/q", drafter="none", sampling=tiny_run.PQ)  # coupled output must equal coupled plain's
    coupled = dict(name="x", drafter="ngram", sampling=tiny_run.COUPLED)
    assert [a.name for a in arms(pq, coupled)] == ["plain t=0.7", "own p/q", "x"]


def test_strings_become_things():
    plain, arm = arms(
        dict(
            name="a",
            drafter=dict(name="ngram", most=5, max_n=3),
            rule=dict(name="lenient", lenience=0.5),
            length=dict(name="fixed", k=4),
            sampling=dict(temperature=1, top_k=8, min_p=0.1),
        )
    )
    assert plain.drafter == NoDraft() and plain.sampling == Sampling(temperature=1, top_k=8, min_p=0.1, coupled=True)
    assert arm.drafter == NGram(most=5, max_n=3)
    assert arm.rule == Lenient(lenience=0.5) and arm.length == Fixed(k=4)
    _, arm = arms(dict(name="b", drafter=dict(name="model", source="x"), draft_sampling=dict(temperature=0.5)))
    assert arm.drafter == DraftModel("x") and arm.draft_sampling == Sampling(temperature=0.5)


def test_absent_leaves_the_choice_to_the_decoder_and_match_takes_all():
    for extra in ({}, {"length": None, "rule": None}):
        arm = arms(dict(name="a", drafter="ngram", **extra))[1]
        assert arm.length is None and arm.rule is None and arm.sampling == Sampling()
    assert arms(dict(name="a", drafter="ngram", length="match"))[1].length == match()


@pytest.mark.parametrize(
    "given",
    [
        dict(name="confidence", threshold=0.5),
        dict(name="entropy", gamma=0.5, step=0),
        dict(name="tiers", tiers=(2, 5)),
        dict(name="optimal", rate=0.5),
        dict(name="optimal", v=(1, 1.5), c=0.25),
        dict(name="goodput", rate=0.5),
        dict(name="batch_table", table=((1, 7), (8, 2))),
        dict(name="stand_aside", policy=dict(name="heuristic", start=2), gain=2),
    ],
    ids=str,
)
def test_a_length_is_named_with_its_numbers_and_spelled_out(given):
    draft = dict(name="a", drafter=dict(name="model", source="x"), sampling=dict(temperature=1.0), length=given, ladder=(1, 8))
    plan = build.plan(config(arms=[draft]))
    length, spelled = plan.arms[1].length, json.loads(json.dumps(plan.resolved()["arms"][1], allow_nan=False))
    assert length.name == given["name"] and plan.arms[1].ladder == (1, 8) and spelled["ladder"] == [1, 8]
    for name, value in given.items():
        if name == "policy":
            assert length.policy == Heuristic(start=2) and spelled["length"]["policy"]["start"] == 2
        elif name != "name":
            assert np.array_equal(getattr(length, name), value) and np.array_equal(spelled["length"][name], value)


def test_temperature_zero_is_greedy():
    assert arms(dict(name="a", drafter="none", sampling=dict(temperature=0)))[0].sampling == Sampling()


@pytest.mark.parametrize("dots", ["test_build:Double", "test_build.Double"])
def test_dotted_paths(dots):
    arm = arms(dict(name="a", drafter="ngram", length=dict(name=dots, times=3)))[1]
    assert isinstance(arm.length, Double) and arm.length.times == 3
    assert isinstance(arms(dict(name="a", drafter="ngram", rule="specjax.rules:Greedy"))[1].rule, Greedy)


def test_a_draft_model_is_loaded_with_the_target_once():
    drafter = dict(name="model", source="toy://tiny", most=1)
    plan = build.plan(config(arms=[dict(name="a", drafter=drafter)]))
    assert plan.arms[1].drafter == DraftModel("toy://tiny", 1)
    experiment = build.load(plan)
    setup = experiment.arms[1].decoder.setup
    assert setup.drafter.most == 1 and setup.ladder == (1, 2)
    assert setup.drafter.params["embed_VD"] is experiment.target.params["embed_VD"]


def test_an_experiment_has_one_size_and_knows_what_to_compare():
    experiment = tiny_run.experiment()
    assert experiment.size == 128 and experiment.widths == (1, 3, 4)  # 19 bytes + 12 new + 4, rounded up
    assert {arm.name: (arm.baseline, arm.comparable) for arm in experiment.arms} == {
        "plain greedy": ("plain greedy", False),
        "plain t=0.7": ("plain t=0.7", False),
        "match": ("plain greedy", True),
        "one": ("plain greedy", True),
        "coupled": ("plain t=0.7", True),
        "p/q": ("plain t=0.7", False),
        "draft model": ("plain t=0.7", True),
    }
    assert [arm.decoder.setup.eos_E.tolist() for arm in experiment.arms] == [[256], [-1], [256], [256], [-1], [-1], [-1]]
    assert build.load(build.plan(config(ignore_eos=False))).arms[1].decoder.setup.eos_E.tolist() == [256]


def test_stops_and_processors_reach_the_decoder():
    more = dict(stop=["zz"], min_new_tokens=2, forbidden=[3, 5], processors=["test_build:shout", dict(name="test_build.Bias", by=2.0)])
    plan = build.plan(config(logprobs=True, **more))
    assert plan.processors == (shout, Bias(by=2.0)) and plan.stop == ("zz",) and plan.forbidden == (3, 5)
    assert plan.resolved()["processors"] == ["test_build.shout", {"type": "test_build.Bias", "by": 2.0}]
    setup = build.load(plan).arms[0].decoder.setup
    assert setup.logprobs and int(setup.least) == 2 and setup.stop is not None and len(setup.processors) == 4


def test_early_exit_and_heuristic():
    _, arm = arms(dict(name="a", drafter=dict(name="early_exit", exit_layer=1, most=3), length=dict(name="heuristic", start=2)))
    assert arm.drafter == EarlyExitDraft(1, 3) and arm.length == Heuristic(start=2)
    plan = build.plan(config(arms=[dict(name="a", drafter=dict(name="early_exit", exit_layer=1, most=3))]))
    assert build.load(plan).arms[1].decoder.setup.drafter.exit_layer == 1
    plan = build.plan(config(arms=[dict(name="a", drafter=dict(name="early_exit", exit_layer=9))]))
    with pytest.raises(ValueError, match=r"arm 'a': drafter.exit_layer=9 must be at least 1 and at most 2"):
        build.load(plan)


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """A small and an EAGLE-3 draft of the tiny target, before any training."""
    target, root = specjax.load("toy://tiny"), tmp_path_factory.mktemp("drafts")
    ids_U = np.arange(0, 257, 2, dtype=np.int32)
    kinds = small.over(target, None, (0,), 3, False), eagle3.over(target, len(ids_U), (0, 1), 3, True)
    return [
        export(root / kind.name, kind, kind.init(target, u, 0), u, target, card={}) for kind, u in zip(kinds, (None, ids_U), strict=True)
    ]


def trained(path, **more):
    return dict(name="trained", path=str(path), **more)


def test_trained_and_combined_drafts(exported):
    first, second = exported
    both = dict(name="combined", first=dict(name="ngram", most=2), second=trained(second, most=3))
    given = [dict(name="a", drafter=trained(first, most=2)), dict(name="b", drafter=both), dict(name="c", drafter=trained(second))]
    plan = build.plan(config(arms=given))
    assert [arm.drafter for arm in plan.arms[1:]] == [
        TrainedDraft(str(first), 2), CombinedDraft(TrainedDraft(str(second), 3), NGram(most=2)), TrainedDraft(str(second)),
    ]  # fmt: skip
    experiment = build.load(plan)
    a, b, c = (arm.decoder.setup.drafter for arm in experiment.arms[1:])
    assert (a.name, a.most, b.name, b.first.most, b.second.most, b.most, c.name, c.most) == ("model", 2, "combined", 2, 3, 3, "eagle3", 7)
    assert b.second.params["fc_XD"] is c.params["fc_XD"]  # loaded once
    assert a.params["embed_VD"] is experiment.target.params["embed_VD"] and b.taps == (0, 1)


def test_a_draft_that_was_trained_anew_is_another_experiment(exported, tmp_path):
    target, folder = specjax.load("toy://tiny"), tmp_path / "draft"
    kind = small.over(target, None, (1,), 3, False)
    experiment = None
    for scale in (1, 2):
        export(folder, kind, jax.tree.map(lambda x, scale=scale: x * scale, kind.init(target, None, 0)), None, target, card={})
        experiment = experiment or build.load(build.plan(config(arms=[dict(name="a", drafter=trained(folder))])))
        if scale == 1:
            before = experiment.fingerprint
            assert experiment.fingerprint == before
    assert experiment.fingerprint != before


def test_a_combined_draft_of_a_model(exported):
    drafter = dict(name="combined", second=dict(name="model", source="toy://tiny/1", most=2))
    setup = build.load(build.plan(config(arms=[dict(name="a", drafter=drafter)]))).arms[1].decoder.setup
    assert setup.drafter.second.name == "model" and setup.drafter.first == NGram() and setup.ladder[-1] == 8


def test_a_trained_draft_that_is_not_there_is_named_with_its_arm(tmp_path):
    plan = build.plan(config(arms=[dict(name="a", drafter=trained(tmp_path / "no"))]))
    with pytest.raises(ValueError, match=r"arm 'a': '.*/no': no such file or folder"):
        build.load(plan)


def test_penalties_change_greedy_output_too():
    arm = arms(dict(name="a", drafter="ngram", sampling=dict(temperature=0.0, repetition=1.5)))[1]
    assert arm.sampling == Sampling(repetition=1.5)


def test_numpys_numbers_are_numbers():
    given = config(max_new_tokens=np.int64(9), arms=[dict(name="a", drafter="ngram", sampling=dict(temperature=np.float32(0.5)))])
    plan = build.plan({**given, "forbidden": np.array([1, 2])})
    assert type(plan.max_new_tokens) is int and type(plan.arms[1].sampling.temperature) is float and plan.forbidden == (1, 2)


def shout(logits_V, path):
    return logits_V


@struct
class Bias:
    by: float

    def __call__(self, logits_V, path):
        return logits_V + self.by


class NoMost:
    propose = None


NGRAM, BEST_FIRST = dict(name="a", drafter="ngram"), dict(name="best_first", source="x")
BAD = {
    "config.max_new_token is not a key: .*; did you mean 'max_new_tokens'?": config(max_new_token=3),
    "target.sorce is not a key: target has source, dtype; did you mean 'source'?": config(target=dict(sorce="x")),
    "target.source is missing": config(target={}),
    r"prompts.limit='3' must be int or None, not str": config(prompts=dict(limit="3")),
    r"prompts.chat=1 must be bool, not int": config(prompts=dict(chat=1)),
    r"prompts.categories='chat' must be a list of str or None, not str": config(prompts=dict(categories="chat")),
    r"config.max_new_tokens=True must be int, not bool": config(max_new_tokens=True),
    r"config.batch=0 must be at least 1": config(batch=0),
    r"config.repeats=0 must be at least 1": config(repeats=0),
    r"config.seed=-1 must be at least 0": config(seed=-1),
    r"arms=\[\] must be a list of arms": config(arms=[]),
    r"arms: the name 'a' is used twice": config(arms=[NGRAM, NGRAM]),
    r"arms: the name 'plain greedy' is used twice": config(arms=[dict(name="plain greedy", drafter="ngram")]),
    r"arms\[0\].draftr is not a key: .*; did you mean 'drafter'?": config(arms=[dict(name="a", draftr="ngram")]),
    r"arms\[0\].drafter='ngramm' is none of none, ngram, model, .*did you mean 'ngram'?": config(arms=[dict(name="a", drafter="ngramm")]),
    r"arms\[0\].drafter.mst is not a key: .*; did you mean 'most'?": config(arms=[dict(name="a", drafter=dict(name="ngram", mst=3))]),
    r"arms\[0\].drafter.params is not a key": config(arms=[dict(name="a", drafter=dict(name="ngram", params=None))]),
    r"arms\[0\].drafter.most=0 must be at least 1": config(arms=[dict(name="a", drafter=dict(name="ngram", most=0))]),
    r"arms\[0\].drafter.min_n=5 must be at least 1 and at most 4": config(
        arms=[dict(name="a", drafter=dict(name="ngram", max_n=4, min_n=5))]
    ),
    r"arms\[0\].drafter=None must be a name": config(arms=[dict(name="a", drafter=None)]),
    r"arms\[0\].drafter: NoMost has no `most`": config(arms=[dict(name="a", drafter="test_build:NoMost")]),
    r"arms\[0\].length: .*unexpected keyword argument 'tims'": config(arms=[{**NGRAM, "length": dict(name="test_build:Double", tims=3)}]),
    r"arms\[0\].sampling.top_p changes nothing at temperature 0": config(arms=[{**NGRAM, "sampling": dict(temperature=0, top_p=0.5)}]),
    r"arms\[0\].rule changes nothing: the drafter 'none' drafts nothing": config(arms=[dict(name="a", drafter="none", rule="greedy")]),
    r"arms\[0\].length changes nothing: the drafter 'none' drafts nothing": config(arms=[dict(name="a", length="match")]),
    r"arms\[0\].ladder changes nothing: the drafter 'none' drafts nothing": config(arms=[dict(name="a", ladder=(1,))]),
    r"arms\[0\].ladder=\[1, 2.5\] must be a list of int": config(arms=[{**NGRAM, "ladder": (1, 2.5)}]),
    r"arms\[0\].length changes nothing: drafts of an n-gram, .*, take 'match'": config(arms=[{**NGRAM, "length": "confidence"}]),
    r"arms\[0\].length changes nothing: drafts of .* or at a temperature 0 of their own": config(
        arms=[
            dict(
                name="a",
                drafter=dict(name="model", source="x"),
                length=dict(name="stand_aside", policy="entropy"),
                sampling=dict(temperature=1),
                draft_sampling=dict(temperature=0),
            )
        ]
    ),
    r"arms\[0\].length.policy.k=9 must be at least 0 and at most 7": config(
        arms=[{**NGRAM, "length": dict(name="stand_aside", policy=dict(name="fixed", k=9))}]
    ),
    r"arms\[0\].length.policy.k is missing": config(arms=[{**NGRAM, "length": dict(name="stand_aside", policy="fixed")}]),
    r"arms\[0\].length.policy is missing": config(arms=[{**NGRAM, "length": "stand_aside"}]),
    r"arms\[0\].length.thresold is not a key: .*; did you mean 'threshold'?": config(
        arms=[{**NGRAM, "length": dict(name="confidence", thresold=1)}]
    ),
    r"arms\[0\].draft_sampling.coupled changes nothing: the draft takes the target's noise, which is not coupled": config(
        arms=[dict(name="a", drafter=dict(name="model", source="x"), draft_sampling=dict(temperature=1, coupled=True))]
    ),
    r"arms\[0\].draft_sampling changes nothing: the drafts of ngram are certain": config(
        arms=[{**NGRAM, "sampling": dict(temperature=1), "draft_sampling": dict(temperature=2)}]
    ),
    r"arms\[0\].drafter.per_match=nan must be at least 0": config(
        arms=[dict(name="a", drafter=dict(name="ngram", per_match=float("nan")))]
    ),
    r"arms\[0\].rule.lenience=nan must be": config(
        arms=[{**NGRAM, "sampling": dict(temperature=1), "rule": dict(name="lenient", lenience=float("nan"))}]
    ),
    r"arms\[0\].drafter=':::'": config(arms=[dict(name="a", drafter=":::")]),
    r"arms\[0\].drafter=3 must be a name": config(arms=[dict(name="a", drafter=3)]),
    r"arms\[0\].drafter='specjax.no:Thing': ": config(arms=[dict(name="a", drafter="specjax.no:Thing")]),
    r"arms\[0\].drafter='specjax.rules:Greedy' has no method propose, so it is no drafter": config(
        arms=[dict(name="a", drafter="specjax.rules:Greedy")]
    ),
    r"arms\[0\].length.k=8 must be at least 0 and at most 7": config(arms=[{**NGRAM, "length": dict(name="fixed", k=8)}]),
    r"arms\[0\].length.k is missing": config(arms=[{**NGRAM, "length": "fixed"}]),
    r"arms\[0\].length.k=1.5 must be int": config(arms=[{**NGRAM, "length": dict(name="fixed", k=1.5)}]),
    r"arms\[0\].length: match\(\) got an unexpected keyword argument 'k'": config(arms=[{**NGRAM, "length": dict(name="match", k=1)}]),
    r"arms\[0\].rule.lenience=2.0 must be": config(arms=[{**NGRAM, "rule": dict(name="lenient", lenience=2.0)}]),
    r"arms\[0\].sampling.top_p=1.5 must be between 0 and 1": config(arms=[{**NGRAM, "sampling": dict(temperature=1, top_p=1.5)}]),
    r"arms\[0\].sampling.topp is not a key: .*; did you mean 'top_p'?": config(arms=[{**NGRAM, "sampling": dict(topp=1)}]),
    r"arms\[0\].sampling.min_p changes nothing at temperature 0": config(arms=[{**NGRAM, "sampling": dict(min_p=0.0)}]),
    r"arms\[0\].sampling.temperature=inf must be at least 0 and at most": config(
        arms=[{**NGRAM, "sampling": dict(temperature=float("inf"))}]
    ),
    r"arms\[0\].sampling.temperature=nan must be": config(arms=[{**NGRAM, "sampling": dict(temperature=float("nan"))}]),
    r"arms\[0\].name='a\\nb' must be one printable line": config(arms=[dict(name="a\nb")]),
    r"arms\[0\].name='' must be one printable line": config(arms=[dict(name="")]),
    r"arms\[0\].name='a\\x00' holds '\\x00': it must be text without NUL": config(arms=[dict(name="a\0")]),
    r"target.source='\\ud800' holds '\\ud800': it must be text without NUL or half": config(target=dict(source="\ud800")),
    r"arms\[0\].drafter.most=1025 must be at least 1 and at most 1024": config(
        arms=[dict(name="a", drafter=dict(name="ngram", most=1025))]
    ),
    r"arms\[0\].drafter.max_n=99999 must be": config(arms=[dict(name="a", drafter=dict(name="ngram", max_n=99999))]),
    r"arms\[0\].drafter.exit_layer=0 must be at least 1": config(arms=[dict(name="a", drafter=dict(name="early_exit", exit_layer=0))]),
    r"arms\[0\].drafter.exit_layer is missing": config(arms=[dict(name="a", drafter="early_exit")]),
    r"arms\[0\].drafter.path is missing": config(arms=[dict(name="a", drafter="trained")]),
    r"arms\[0\].drafter.most=0 must be": config(arms=[dict(name="a", drafter=dict(name="trained", path="x", most=0))]),
    r"arms\[0\].drafter.second is missing": config(arms=[dict(name="a", drafter="combined")]),
    r"arms\[0\].drafter.second.pth is not a key: .*; did you mean 'path'": config(
        arms=[dict(name="a", drafter=dict(name="combined", second=dict(name="trained", pth="x")))]
    ),
    r"arms\[0\].drafter.second must be model, trained, early_exit": config(
        arms=[dict(name="a", drafter=dict(name="combined", second="none"))]
    ),
    r"arms\[0\].drafter.first must be an n-gram of one branch": config(
        arms=[dict(name="a", drafter=dict(name="combined", first=dict(name="ngram", branches=2), second=dict(name="model", source="x")))]
    ),
    r"config.max_new_tokens is a number of 20001 bits: it must have at most 63": config(max_new_tokens=2**20000),
    r"config.max_new_tokens=2097152 must be at least 1 and at most 1048576": config(max_new_tokens=2**21),
    r"config.max_new_tokens=nan must be int, not float": config(max_new_tokens=float("nan")),
    r"config.seed=4294967296 must be at least 0 and at most 4294967295": config(seed=2**32),
    r"config.repeats=True must be int, not bool": config(repeats=np.True_),
    r"config.batch=99999 must be": config(batch=99999),
    r"config.samples=0 must be at least 1": config(samples=0),
    r"config.samples=2 changes nothing: every arm has temperature 0": config(arms=[NGRAM], samples=2),
    r"config.refill=True changes nothing with batch=1": config(refill=True),
    r"config.refill=1 must be bool, not int": config(refill=1, batch=2),
    r"config.refil is not a key: .*; did you mean 'refill'?": config(refil=True),
    r"config.min_new_tokens=13 must be at least 0 and at most 12": config(min_new_tokens=13),
    r"config.min_new_tokens=1 changes nothing: every arm ignores EOS": config(arms=[{**NGRAM, "sampling": tiny_run.PQ}], min_new_tokens=1),
    r"config.stop='x' must be a list of str, not str": config(stop="x"),
    r"config.stop: '' is empty": config(stop=[""]),
    r"config.stop=\['x', 'x'\]: 'x' is there twice": config(stop=["x", "x"]),
    r"config.forbidden=-1 must be at least 0": config(forbidden=[-1]),
    r"config.forbidden=\[True\] must be a list of int, not list": config(forbidden=[True]),
    r"processors='x' must be a list of processors": config(processors="x"),
    r"processors\[0\]='shout' must be package.module:Thing": config(processors=["shout"]),
    r"processors\[0\]='test_build:NGRAM' has no method __call__, so it is no processor": config(processors=["test_build:NGRAM"]),
    r"processors\[0\].bi is not a key: .*; did you mean 'by'?": config(processors=[dict(name="test_build:Bias", bi=1.0)]),
    r"prompts.limit=0 must be at least 1": config(prompts=dict(limit=0)),
    r"prompts.categories=\(\) must name at least one": config(prompts=dict(categories=[])),
    r"prompts.categories=\['a', 'a'\]: 'a' is there twice": config(prompts=dict(categories=["a", "a"])),
    r"target.dtype='float33' must be .*; did you mean 'float32'?": config(target=dict(source="x", dtype="float33")),
}


@pytest.mark.parametrize("message", BAD)
def test_bad_configs_are_refused_in_one_line(message):
    with pytest.raises(ValueError, match=message) as error:
        build.plan(BAD[message])
    assert "\n" not in str(error.value)


def test_parts_that_do_not_fit_name_the_arm():
    plan = build.plan(config(arms=[{**NGRAM, "rule": "speculative", "sampling": tiny_run.COUPLED}]))
    with pytest.raises(ValueError, match="arm 'a': rule=speculative with coupled sampling"):
        build.load(plan)
    with pytest.raises(ValueError, match="no chat template"):
        build.load(build.plan(config(prompts=dict(source="own", limit=1))))
    with pytest.raises(ValueError, match="prompt 'one/0': 8 tokens \\+ max_new_tokens=1020 exceed the model's 1024 positions"):
        build.load(build.plan(config(max_new_tokens=1020)))
    with pytest.raises(ValueError, match=r"config.refill=True changes nothing: batch=4 rows hold all prompts \(4\) at once"):
        build.load(build.plan(config(refill=True, batch=4)))


def test_the_shipped_configs_are_plans():
    import importlib.util
    import pathlib

    numbers = {"quickstart": (14, 64), "full": (14, 128), "humaneval": (2, 128), "shipped_draft": (9, 64)}
    for name, (count, new) in numbers.items():
        path = pathlib.Path(__file__).parents[1] / "configs" / f"{name}.py"
        spec = importlib.util.spec_from_file_location(name, path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        given = module.get_config()
        plan = build.plan(given)
        assert given.is_locked and len(plan.arms) == count and plan.max_new_tokens == new
        assert f"--config=configs/{name}.py" in module.__doc__


@pytest.mark.parametrize("name", ["__main__", "session"])
def test_a_part_written_in_a_notebook_has_no_file(monkeypatch, name):
    session = types.ModuleType(name)
    session.__loader__ = "a notebook's"
    exec("class Mine:\n    pass\n\n\ndef mine(logits, path):\n    return logits\n", vars(session))
    monkeypatch.setitem(sys.modules, name, session)
    assert [bench_plan._source(x) for x in (session.Mine, session.mine, session.Mine())] == [None] * 3
    assert bench_plan._source(rules.Block).endswith("block.py")


def test_a_part_of_ones_own_is_in_the_fingerprint(tmp_path, monkeypatch):
    """A run may not go on with another rule under the same name."""
    file = tmp_path / "own_rule_of_a_run.py"
    text = "from specjax import SampleAndMatch\nfrom specjax.types import struct\n\n\n@struct\nclass Own(SampleAndMatch):\n    pass\n"
    file.write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    arm = {"name": "own", "drafter": "ngram", "rule": "own_rule_of_a_run:Own", "sampling": {"temperature": 1.0}}
    config = {"target": {"source": "toy://tiny"}, "prompts": {"source": "own", "limit": 1, "chat": False}, "arms": [arm]}
    experiment = build.load(build.plan(config))
    before = experiment.fingerprint
    assert experiment.fingerprint == before
    file.write_text(text + "# changed\n")
    assert experiment.fingerprint != before


def test_a_function_that_processes_is_in_the_fingerprint_too(tmp_path, monkeypatch):
    file = tmp_path / "own_processor_of_a_run.py"
    file.write_text("def same(logits_V, path):\n    return logits_V\n")
    monkeypatch.syspath_prepend(tmp_path)
    arm = {"name": "own", "drafter": "ngram"}
    config = {"target": {"source": "toy://tiny"}, "prompts": {"source": "own", "limit": 1, "chat": False}, "arms": [arm]}
    experiment = build.load(build.plan(config | {"processors": ["own_processor_of_a_run:same"]}))
    before = experiment.fingerprint
    file.write_text("def same(logits_V, path):\n    return logits_V + 0\n")
    assert experiment.fingerprint != before


def test_to_change_one_arm_of_the_quickstart_changes_no_other():
    folder = pathlib.Path(__file__).parents[1] / "configs"
    arms = runpy.run_path(str(folder / "quickstart.py"))["get_config"]().arms
    parts = [id(part) for arm in arms for part in arm.values() if isinstance(part, dict)]
    assert len(arms) == 12 and len(set(parts)) == len(parts) == 33
