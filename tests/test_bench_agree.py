import copy
import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest
import tiny_run

from specjax import Sampling
from specjax.bench import agree
from specjax.models.load.names import DTYPES


def rows():
    return copy.deepcopy(list(tiny_run.finished()[0].records()))


def planted(arm, name, place, token):
    """The finished run's records with one token of an arm put in another's place."""
    all_ = rows()
    for row in all_:
        if row["arm"] == arm and row["question_id"] == name:
            row["token_ids"][place] = token
    return all_


def logits_after(experiment, tokens):
    """The target's logits after `tokens`, by one pass over all of them."""
    target = experiment.target
    cache = target.model.init_cache(1, len(tokens), jnp.float32)
    hidden, _, _ = target.model.forward(target.params, jnp.asarray([tokens]), cache, jnp.zeros(1, jnp.int32))
    return np.asarray(target.model.head(target.params, hidden)[0, -1], np.float64)


def test_equal_output_is_equal():
    agreements, differences = agree.compare(tiny_run.experiment(), rows())
    assert agreements == dict.fromkeys(["match", "one", "coupled", "draft model"], agree.Agreement(4, 0, 0)) and differences == []


@pytest.mark.parametrize("place", [0, 5, 11])
def test_a_wrong_greedy_token_is_a_bug_with_the_gap_of_its_logit(place):
    experiment = tiny_run.experiment()
    plain = next(r["token_ids"] for r in rows() if r["arm"] == "plain greedy" and r["question_id"] == "one/1")
    logits = logits_after(experiment, [*b"the cat the cat", *plain[:place]])
    token = int(np.argsort(logits)[-2])
    agreements, [difference] = agree.compare(experiment, planted("match", "one/1", place, token))
    assert agreements["match"] == agree.Agreement(3, 0, 1) and agreements["one"] == agree.Agreement(4, 0, 0)
    assert difference[:7] == ("match", "one/1", 0, 0, 0, place, (plain[place], token)) and difference.kind == "bug"
    assert difference.gap == pytest.approx(logits.max() - logits[token], abs=1e-4) and difference.gap > 0.01


@pytest.mark.parametrize(("apart", "kind"), [(5e-4, "tie"), (2e-3, "bug")])
def test_tokens_that_argmax_cannot_tell_apart_are_a_tie(apart, kind):
    experiment = tiny_run.experiment()
    plain = next(r["token_ids"] for r in rows() if r["arm"] == "plain greedy" and r["question_id"] == "two/1")
    twin = 200 if plain[3] != 200 else 201
    head = np.array(experiment.target.params["head_DV"])
    logit = logits_after(experiment, [*b"one two one two one", *plain[:3]])[plain[3]]
    head[:, twin] = head[:, plain[3]] * (1 - apart / logit)
    target = dataclasses.replace(experiment.target, params={**experiment.target.params, "head_DV": jnp.asarray(head)})
    changed = dataclasses.replace(experiment, target=target)
    agreements, [difference] = agree.compare(changed, planted("one", "two/1", 3, twin))
    assert difference.kind == kind and difference.gap == pytest.approx(apart, abs=1e-4)
    assert agreements["one"] == agree.Agreement(3, int(kind == "tie"), int(kind == "bug"))


def test_coupled_tokens_are_scored_with_their_noise():
    experiment, all_ = tiny_run.experiment(), rows()
    arm = next(a for a in experiment.arms if a.name == "coupled")
    for encoded in experiment.prompts:
        own = next(r for r in all_ if r["arm"] == "coupled" and r["question_id"] == encoded.prompt.question_id)["token_ids"]
        for place in (0, 4, 11):
            seen_V = agree.scores(experiment, arm, encoded.tokens + own[:place], len(encoded.tokens), encoded.prompt.id)
            assert int(seen_V.argmax()) == own[place]
    second = int(np.argsort(seen_V)[-2])
    _, [difference] = agree.compare(experiment, planted("coupled", "two/1", 11, second))
    assert difference.kind == "bug" and difference.gap == pytest.approx(np.sort(seen_V)[-1] - np.sort(seen_V)[-2], abs=1e-6)


def test_a_token_outside_the_filters_has_a_finite_gap_by_the_law_without_them():
    """Whether a token is inside a filter can hang on the last bits: at width 1 it may not be."""
    experiment = tiny_run.experiment()
    names = "plain t=0.7", "coupled"
    filtered = Sampling(temperature=np.float32(0.7), top_k=np.int32(1), coupled=True)

    def narrowed(arm):
        decoder = copy.copy(arm.decoder)
        decoder.setup = dataclasses.replace(decoder.setup, sampling=filtered)
        return arm._replace(decoder=decoder) if arm.name in names else arm

    changed = dataclasses.replace(experiment, arms=tuple(map(narrowed, experiment.arms)))
    arm = next(a for a in experiment.arms if a.name == "coupled")
    encoded = next(e for e in experiment.prompts if e.prompt.question_id == "two/1")
    plain = next(r["token_ids"] for r in rows() if r["arm"] == "coupled" and r["question_id"] == "two/1")
    seen_V = agree.scores(experiment, arm, encoded.tokens + plain[:11], len(encoded.tokens), encoded.prompt.id)
    second = int(np.argsort(seen_V)[-2])
    _, differences = agree.compare(changed, planted("coupled", "two/1", 11, second))
    [difference] = [d for d in differences if d.arm == "coupled"]
    assert difference.gap == pytest.approx(seen_V.max() - seen_V[second], abs=1e-6) and difference.tokens == (plain[11], second)


def test_there_is_a_bound_for_each_dtype_that_can_be_loaded():
    assert sorted(agree.TIE_BELOW) == sorted(DTYPES) and agree.TIE_BELOW["float64"] == 1e-9


def test_an_output_that_ended_early_is_a_bug():
    all_ = rows()
    row = next(r for r in all_ if r["arm"] == "match")
    row["token_ids"] = row["token_ids"][:5]
    agreements, [difference] = agree.compare(tiny_run.experiment(), all_)
    assert agreements["match"] == agree.Agreement(3, 0, 1)
    assert difference.place == 5 and difference.gap is None and difference.tokens[1] is None
