"""Where an output ends, nothing goes on: buffers, cache, counters, trace, and the passes that were spent."""

import dataclasses
import functools
import types

import jax
import pytest
from loop import counting, drafter, fixed, keep, mixed, random_lm

import specjax
from specjax.models import toy


@pytest.mark.parametrize("eos", [1, 3, 5, 6])
def test_nothing_after_an_eos_exists_anywhere(eos):
    """Draft = target counting 0, 1, 2, ...: an EOS as the first, a middle and the last draft of five, and as the bonus."""
    target = counting()
    decoder = specjax.Decoder(target, drafter=drafter(target), eos=[eos])
    state = keep(decoder.generate(decoder.prefill(decoder.start([[0]], 30))))
    assert state.cursor_B.tolist() == [eos]  # the prompt's token and the new ones, without the newest
    assert state.token_BS[0].tolist() == [*range(eos + 1), *[0] * (127 - eos)]
    assert state.drafter.cursor_B.tolist() == [min(eos, 5)]  # the fifth draft was drawn and not fed
    counts = [int(x[0]) for x in state.counts]
    assert counts == [1, 5, min(eos, 5), 5 - min(eos, 5)]  # rounds, drafted, accepted, cut
    assert state.turn == 1 and state.trace.committed_BN[0].tolist() == [eos, *[0] * 127]


def test_any_of_several_ends_a_row_and_without_one_only_the_budget_does():
    target = counting()
    run = lambda **more: specjax.generate(target, [[0], [3]], drafter=drafter(target), ladder=(6,), max_new_tokens=9, **more)
    both = run(eos=[5, 2])
    assert both.token_ids == [[1, 2], [4, 5]] and both.finish_reasons == ["eos", "eos"]
    none = run()
    assert none.token_ids == [[1, 2, 3, 4, 5, 6, 0, 1, 2], [4, 5, 6, 0, 1, 2, 3, 4, 5]] and none.finish_reasons == ["length"] * 2


def test_a_row_whose_budget_is_spent_leaves_its_neighbour_alone():
    target = random_lm(5)
    options = {"drafter": drafter(mixed(target, 6)), "ids": ["a", "b"], "sampling": specjax.Sampling(temperature=0.9), "ladder": (6,)}
    out = specjax.generate(target, [[1], [2]], max_new_tokens=[0, 9], **options)
    other = specjax.generate(target, [[1], [2]], max_new_tokens=[9, 9], **options)
    assert out.token_ids == [[], other.token_ids[1]] and out.finish_reasons == ["length", "length"]
    assert [int(c[0]) for c in out.counts.values()] == [0] * 6


def noting(lm, widths):
    """The same model; it notes how many tokens each pass is fed, while it runs."""

    class Noting(type(lm.model)):
        def forward(self, params, token_BT, *inputs, **more):
            jax.debug.callback(functools.partial(widths.append, token_BT.shape[1]))
            return super().forward(params, token_BT, *inputs, **more)

    return specjax.LM(Noting(lm.model.vocab, lm.model.order), lm.params, None, "noting")


@pytest.fixture(scope="module")
def passes():
    """run(budget, k) -> widths of the target's and of the draft's passes over one row; draft = target, K up to 5."""
    fed, drafted = [], []
    target, draft = noting(counting(), fed), noting(counting(), drafted)

    def run(budget, k):
        decoder = specjax.Decoder(target, drafter=drafter(draft), length=fixed(k))
        state = jax.block_until_ready(decoder.prefill(decoder.start([[0]], budget)))
        jax.effects_barrier()
        fed.clear(), drafted.clear()
        jax.block_until_ready(decoder.generate(state))
        jax.effects_barrier()
        return list(fed), list(drafted)

    return run


@pytest.mark.parametrize(("budget", "width"), [(1, 1), (2, 4), (4, 4), (5, 6), (6, 6)])
def test_no_pass_of_the_draft_for_tokens_past_the_budget(passes, budget, width):
    assert passes(budget, 5) == ([width], [1] * (budget - 1))


def test_no_drafts_cost_what_plain_decoding_costs(passes):
    """K = 0: single tokens through the target, nothing through the draft."""
    assert passes(9, 0) == ([1] * 9, [])


def test_as_many_passes_as_the_policy_asks_for(passes):
    """K = 2 and nine tokens: three rounds of three; after a full acceptance the draft also reads its last token."""
    fed, drafted = passes(9, 2)
    assert fed == [4] * 3 and drafted == [1] * (2 + 3 + 3)


class Limited(toy.TableModel):
    """A table that says it has 20 positions."""

    config = types.SimpleNamespace(max_positions=20)


def test_a_prompt_and_its_budget_may_fill_the_models_positions():
    table = random_lm(0)
    decoder = specjax.Decoder(dataclasses.replace(table, model=Limited(table.model.vocab, table.model.order)))
    assert decoder.start([[1] * 12, [1]], [8, 19]).limit_B.tolist() == [20, 20]
    with pytest.raises(ValueError, match=r"prompts\[1\]: 13 tokens \+ max_new_tokens=8 exceed the model's 20 positions"):
        decoder.start([[1], [1] * 13], 8)
