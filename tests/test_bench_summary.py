import math

import pytest
import tiny_run

from specjax.bench import summary
from specjax.bench.measure import Costs

COST = Costs(v={1: 1.0, 2: 1.5}, c=0.25, catch_up=0.0, step_seconds=0.1)
alone = summary.Together(lambda record: record["question_id"], summary.bootstrap)  # one prompt a batch


def record(name="A", tokens=10, seconds=1.0, category="x", drafted=(), accepted=(), judged=0, overlap=0.0, repeat=0):
    counts = dict.fromkeys(summary.COUNTS, 0) | {"tokens": tokens, "passes": max(len(drafted), 1), "judged": judged}
    return {
        "question_id": name, "category": category, "repeat": repeat, "counts": counts, "overlap_sum": overlap,
        "rounds": {"drafted": list(drafted), "accepted": list(accepted)}, "seconds": {"prefill": 0.5, "decode": seconds},
        "expected_sum": 1.0, "peak_memory_bytes": 7,
    }  # fmt: skip


def test_speedup_is_a_ratio_of_totals():
    own = [record("A", 10, 1.0), record("B", 40, 4.0)]
    plain = [record("B", 40, 4.0), record("A", 10, 2.0)]
    assert summary.speedup(own, plain, alone)["value"] == 1.2
    assert summary.tokens_per_second(own) == 10.0


def test_the_interval_is_a_bootstrap_over_prompts():
    own = [record(name, 10, 1.0) for name in "ABCDEF"]
    plain = [record(name, 10, 7.0 if name == "A" else 1.0) for name in "ABCDEF"]
    got = summary.speedup(own, plain, alone)
    # A is drawn j times of 6, j binomial(6, 1/6): P(0) = .335, P(j <= 2) = .938, P(j <= 3) = .991
    assert got == {"value": 2.0, "low": 1.0, "high": 4.0}


def test_fewer_than_five_prompts_have_no_interval():
    for count, bounds in ((4, (None, None)), (5, (2.0, 2.0))):
        own, plain = ([record(name, 10, s) for name in "ABCDE"[:count]] for s in (1.0, 2.0))
        assert summary.speedup(own, plain, alone) == {"value": 2.0, "low": bounds[0], "high": bounds[1]}


def test_batches_are_drawn_whole():
    """The seconds of a batch are one measurement, shared out: its prompts say nothing about the spread."""
    names = "ABCDEFGHIJKL"
    pairs = summary.Together(lambda r: names.index(r["question_id"]) // 2, summary.bootstrap)
    own = [record(name, 10, 1.0) for name in names]
    plain = [record(name, 10, 7.0 if name in "AB" else 1.0) for name in names]
    assert summary.speedup(own, plain, pairs) == {"value": 2.0, "low": 1.0, "high": 4.0}  # as above, of six batches
    assert summary.speedup(own[:8], plain[:8], pairs)["low"] is None  # four batches of eight prompts


def test_repeats_have_students_interval():
    """Logarithms of the ratios: 0, log 2 and log 4, so log 2 -+ 4.303 log 2 / sqrt(3), and 2 to the power of -1.4843 and 3.4843. Two are
    too few."""
    repeats = summary.Together(lambda r: r["repeat"], summary.student)
    own, plain = ([record("A", 10, s, repeat=n) for n, s in enumerate(seconds)] for seconds in ((4.0, 2.0, 1.0), (4.0, 4.0, 4.0)))
    got = summary.speedup(own, plain, repeats)
    assert got == pytest.approx({"value": 12 / 7, "low": 0.35744, "high": 11.19111}, rel=1e-4)
    assert summary.speedup(own[:2], plain[:2], repeats) == {"value": pytest.approx(4 / 3), "low": None, "high": None}


def test_the_interval_pairs_prompts_and_not_records():
    own = [record(name, 10 * i, i, repeat=r) for i, name in enumerate("ABCDEF", 1) for r in (0, 1)]
    plain = [record(name, 10 * i, 2.0 * i, repeat=r) for i, name in reversed(list(enumerate("ABCDEF", 1))) for r in (0, 1)]
    assert summary.speedup(own, plain, alone) == {"value": 2.0, "low": 2.0, "high": 2.0}


def test_a_run_without_a_token_has_no_speedup():
    own = [record(name, 0, 1.0) for name in "ABCDEF"]
    assert summary.speedup(own, own, alone) == {"value": None, "low": None, "high": None}
    assert summary.prediction([record(name, 0, drafted=[0], accepted=[0]) for name in "AB"], COST, (1, 2)) is None


def test_a_sum_that_is_null_makes_its_mean_null():
    rows = [record(name, drafted=[3], accepted=[2], judged=3, overlap=x) for name, x in (("A", 1.5), ("B", None))]
    assert summary.alpha(rows) is None
    assert summary.arm_row("x", [{**rows[0], "expected_sum": None}], [rows[0]], alone)["expected_tokens_per_pass"] is None


def test_a_half_is_predicted_from_the_other_half_and_from_costs():
    rows = [record("A", 4, drafted=[1, 1], accepted=[1, 1]), record("B", 6, drafted=[1, 1, 0], accepted=[1, 0, 0])]
    # A by B: a third of the rounds draft nothing, half of the drafts pass: 4/3 tokens for 3/2 steps -> 4 tokens in 4.5
    # B by A: 2 tokens for 1.75 steps -> 6 tokens in 5.25
    assert summary.prediction(rows, COST, (1, 2)) == pytest.approx(10 / (4.5 + 5.25), abs=1e-12)
    assert summary.prediction(rows[:1], COST, (1, 2)) is None
    plain = [record("A", 4, drafted=[0] * 4, accepted=[0] * 4), record("B", 6, drafted=[0] * 6, accepted=[0] * 6)]
    assert summary.prediction(plain, COST, (1, 2)) == 1.0


def test_a_prediction_uses_the_measured_catch_up():
    rows = [record(n, 4, drafted=[1, 1], accepted=[1, 1]) for n in "AB"]  # 2 tokens for 1.75 steps, and each round follows such a one
    assert summary.prediction(rows, COST._replace(catch_up=0.25), (1, 2)) == pytest.approx(2 / 2.0, abs=1e-12)


def test_a_prediction_is_blind_to_the_seconds_of_what_it_predicts():
    rows = [record(n, 4, s, drafted=[1, 1], accepted=[1, 1]) for n, s in (("A", 1.0), ("B", 9.0))]
    assert summary.prediction(rows, COST, (1, 2)) == pytest.approx(2 / 1.75, abs=1e-12)


def test_halves_take_turns_within_categories():
    rows = [record(f"{c}{i}", category=c, repeat=r) for r in (0, 1) for i in range(2) for c in "xyz"]
    even, odd = summary.split(rows)
    assert sorted({r["question_id"] for r in even}) == ["x0", "y0", "z0"]
    assert sorted({r["question_id"] for r in odd}) == ["x1", "y1", "z1"] and len(odd) == 6


def test_alpha_is_a_mean_over_judged_places():
    assert summary.alpha([record(judged=3, overlap=1.5), record(judged=1, overlap=1.0)]) == 0.625
    assert summary.alpha([record()]) is None


def test_the_price_is_a_mean_over_tokens():
    priced = lambda tokens, logprobs, kl_sum, infinite=0: {
        **record(tokens=tokens), "logprobs": logprobs, "price": {"kl_sum": kl_sum, "kl_infinite": infinite},
    }  # fmt: skip
    rows = [priced(3, [-1.0, -2.0, -0.5], 0.75), priced(1, [-0.5], 0.25)]
    assert summary.price(rows) == {"loglikelihood": -1.0, "kl_per_token": 0.25, "kl_infinite": 0.0}
    one = priced(4, [-1.0] * 4, 0.5, infinite=2)
    assert summary.price([*rows, one]) == {"loglikelihood": -1.0, "kl_per_token": None, "kl_infinite": 0.25}
    nothing = {"loglikelihood": None, "kl_per_token": None, "kl_infinite": None}
    assert summary.price([record()]) == nothing == summary.price([*rows, record()])
    plain = {k: x for k, x in rows[0].items() if k != "price"}
    assert summary.price([plain]) == {**nothing, "loglikelihood": -3.5 / 3}
    assert summary.price([priced(0, [], 0.0)]) == nothing
    assert summary.price([priced(1, [None], None)]) == {**nothing, "kl_infinite": 0.0}  # what was not finite is not known


def test_rates_are_conditional():
    rows = [record(drafted=[2, 2, 1, 3], accepted=[2, 1, 0, 0])]
    assert summary.rates(rows) == [0.5, 0.5, None]
    assert summary.rates([record(drafted=[0], accepted=[0])]) == []


def test_time_to_first_token_is_prefill_and_the_first_round():
    rows = [record(drafted=[1, 0], accepted=[1, 0]), record(drafted=[0, 1], accepted=[0, 1])]
    assert summary.time_to_first_token(rows, COST) == pytest.approx(0.5 + 0.1 * (1.75 + 1.0) / 2, abs=1e-12)


def test_rows_of_a_real_run():
    workdir, result = tiny_run.finished()
    assert result == workdir.read("summary.json")
    assert [row["name"] for row in result["arms"]] == tiny_run.ARMS and result["prompts"] == 4
    for row in result["arms"]:
        assert row["exact"] is True
        assert row["drafted"] == row["accepted"] + row["rejected"] + row["cut"]
        assert row["tokens"] == 4 * 12 == row["passes"] + row["accepted"]
        assert row["tokens_per_pass"] == 48 / row["passes"]
        assert list(row["by_category"]) == ["one", "two"]
        assert set(row["by_category"]["one"]) == {"prompts", "tokens_per_second", "speedup", "tokens_per_pass", "alpha"}
        assert row["v"]["1"] == 1.0 and row["predicted_speedup"] > 0 and math.isfinite(row["time_to_first_token"])
    equal = {"equal": 4, "ties": 0, "bugs": 0, "followed": 0}
    plain, one = result["arms"][0], result["arms"][3]
    assert plain["speedup"] == {"value": 1.0, "low": None, "high": None} and plain["predicted_speedup"] == 1.0
    assert plain["alpha"] is None and plain["c"] == 0.0 and plain["v"] == {"1": 1.0} and plain["matches_plain"] is None
    assert one["drafted"] > 0 and list(one["v"]) == ["1", "3"] and len(one["rates"]) == 1
    assert [row["matches_plain"] for row in result["arms"][2:]] == [*[equal] * 3, None, equal]
    greedy = result["arms"][2]  # certain: the law's mean is what was accepted, before the cut
    assert greedy["expected_tokens_per_pass"] == 1 + (greedy["accepted"] + greedy["cut"]) / greedy["passes"]


def test_every_field_is_in_docs_metrics():
    import pathlib

    text = (pathlib.Path(__file__).parents[1] / "docs" / "metrics.md").read_text()
    _, result = tiny_run.finished()
    for name in [*result, *result["arms"][0], *result["arms"][0]["by_category"]["one"]]:
        assert f"`{name}`" in text, name
