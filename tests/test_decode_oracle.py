"""The compiled loop against the slow NumPy decoder, token for token and count for count, on the very same coins."""

import pytest
from loop import Coins, drafter, fixed, mixed, random_lm

import specjax
from specjax import Lenient, SampleAndMatch, Sampling, Speculative, reference

PROMPTS = [[1, 2, 3, 1, 2], [4], [5, 5, 5], [0, 1, 2, 3, 4, 5, 6, 0, 1]]
BUDGETS = [20, 7, 1, 30]
SEED = 11


def law_of(target, filters):
    return lambda context: reference.law(target.params[tuple((0, *context)[-2:])], **filters)


def oracle(target, draft, filters, prompt, budget, k, rule, prompt_id, coupled):
    p, q = law_of(target, filters), law_of(draft, filters)
    return reference.speculative_decode(
        p, lambda committed, drafted: q((*committed, *drafted)), prompt, budget, [3], k, rule, Coins(SEED, prompt_id), coupled=coupled
    )


RULES = {
    "greedy": (None, reference.greedy, dict(temperature=0.0), False),
    "coupled": (None, reference.greedy, dict(temperature=0.9), True),
    "p/q": (Speculative(), reference.speculative, dict(temperature=0.9), False),
    "p/q, top-k, top-p": (Speculative(), reference.speculative, dict(temperature=1.2, top_k=5, top_p=0.9), False),
    "lenient": (Lenient(lenience=0.4), reference.lenient(0.4), dict(temperature=0.9), False),
    "sample and match": (SampleAndMatch(), reference.sample_and_match, dict(temperature=0.9, min_p=0.05), False),
}


@pytest.mark.parametrize("k", [1, 4])
@pytest.mark.parametrize("name", RULES)
def test_tokens_and_counters_are_the_oracles(name, k):
    rule, slow, filters, coupled = RULES[name]
    target = random_lm(21, flat=1.0)
    draft = mixed(target, 22)
    out = specjax.generate(
        target, PROMPTS, drafter=drafter(draft, 4), length=fixed(k), rule=rule, sampling=Sampling(coupled=coupled, **filters),
        eos=[3], seed=SEED, ids=[5, 6, 7, 8], max_new_tokens=BUDGETS,
    )  # fmt: skip
    for row, (prompt, budget) in enumerate(zip(PROMPTS, BUDGETS, strict=True)):
        right = oracle(target, draft, filters, prompt, budget, k, slow, 5 + row, coupled)
        assert out.token_ids[row] == list(right.tokens)
        assert out.finish_reasons[row] == right.finish
        counts = {name: int(c[row]) for name, c in out.counts.items()}
        assert counts == {
            "tokens": len(right.tokens), "passes": right.rounds, "drafted": right.drafted, "accepted": right.accepted,
            "rejected": right.rejected, "cut": right.cut,
        }  # fmt: skip
    assert "eos" in out.finish_reasons
