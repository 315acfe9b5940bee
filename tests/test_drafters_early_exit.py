"""The target's first layers as its draft."""

import dataclasses

import jax
import pytest
from loop import fixed, random_lm, rounds
from test_decode_cache import PROMPTS, assert_holds

import specjax
from specjax import EarlyExit, Sampling
from specjax.models import toy

MODES = {"greedy": Sampling(), "coupled": Sampling(temperature=0.7, coupled=True), "p/q": Sampling(temperature=0.7)}
BUDGETS = [20, 7, 1]


def exiting(dtype="float32"):
    """A tiny transformer of two layers of which the second changes little, so that exits are accepted 0 .. K times."""
    model, params = toy.tiny(dtype=dtype, scale=8.0)
    first, second = params["layers"]["0"], params["layers"]["1"]
    second = {**second, **{name: 0.2 * second[name] for name in ("out_HCD", "down_FD")}}
    return specjax.LM(model, {**params, "layers": {"0": first, "1": second}}, None, "exiting")


def early(target, exit_layer, most=5):
    return EarlyExit(model=target.model, exit_layer=exit_layer, most=most)


def run(target, drafter, mode, **more):
    options = {"ids": ["a", "b", "c"], "seed": 2, "max_new_tokens": BUDGETS, "sampling": MODES[mode], **more}
    options["ladder"] = drafter and (drafter.most + 1,)  # one rung compiles quicker
    return specjax.generate(target, PROMPTS, drafter=drafter, **options)


@pytest.mark.parametrize("mode", MODES)
def test_all_layers_are_the_target_itself(mode):
    """In 64 bit, where a pass of width 1 and a wider one agree far below any gap: every draft is accepted."""
    with jax.enable_x64(True):
        target = exiting("float64")
        for k in (1, 2, 5):
            out = run(target, early(target, 2), mode, length=fixed(k))
            assert (out.counts["rejected"] == 0).all() and (out.counts["cut"] == 0).all()
            assert out.counts["passes"].tolist() == [-(-budget // (k + 1)) for budget in BUDGETS]


@pytest.mark.parametrize("mode", ["greedy", "coupled"])
def test_the_first_layers_change_nothing_of_what_is_said(mode):
    with jax.enable_x64(True):
        target = exiting("float64")
        out = run(target, early(target, 1), mode)
        assert 0 < out.counts["accepted"].sum() < out.counts["drafted"].sum()
        assert out.trace.drafted_BN[0, 0] == 5  # the very first round drafts
        assert out.token_ids == run(target, None, mode).token_ids


def test_the_shared_cache_after_every_round_is_a_fresh_prefill():
    """Verification overwrites what was drafted: all layers hold the committed tokens, after 0 .. K accepted drafts."""
    target, seen = exiting(), set()
    decoder = specjax.Decoder(target, drafter=early(target, 1, 3), sampling=MODES["p/q"], seed=1, ladder=(4,))
    for state in rounds(decoder, PROMPTS, 24, ids=["a", "b", "c"]):
        assert_holds(state.cache, target.model, target.params, state, state.cursor_B)
        seen |= set(state.trace.stop_BN[:, max(int(state.turn) - 1, 0)].tolist())
    assert seen >= {0, 1, 2, 3}


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        (dict(exit_layer=0), "drafter.exit_layer=0 must be at least 1 and at most 2, the target's layers"),
        (dict(exit_layer=3), "drafter.exit_layer=3 must be at least 1 and at most 2"),
        (dict(exit_layer=1, most=0), "drafter.most=0 must be at least 1"),
    ],
)
def test_layers_that_are_not_there_are_refused(numbers, message):
    with pytest.raises(ValueError, match=message):
        EarlyExit(model=exiting().model, **numbers)


def test_the_layers_of_another_model_are_refused():
    other, _ = toy.tiny(config=dataclasses.replace(toy.TINY, layers=3))
    with pytest.raises(ValueError, match="early_exit is of another model"):
        specjax.Decoder(exiting(), drafter=EarlyExit(model=other, exit_layer=1))


def test_a_model_without_layers_is_refused():
    with pytest.raises(ValueError, match="early_exit needs a model of several layers: TableModel has no"):
        early(random_lm(0), 1)
