import io

import tiny_run
from rich.console import Console

from specjax.report import table


def row(name, value, **more):
    speedup = {"value": value, "low": value - 0.25, "high": value + 0.25}
    return {
        "name": name, "baseline": "plain", "exact": True, "tokens_per_second": 30.0, "speedup": speedup, "tokens_per_pass": 1.5,
        "predicted_speedup": 1.75, "alpha": 0.5, "c": 0.125, "v": {"1": 1.0, "8": 1.65}, "time_to_first_token": 0.25,
        "loglikelihood": None, "kl_per_token": None, "kl_infinite": None,
        "peak_memory_bytes": 2**21, "matches_plain": {"equal": 3, "ties": 1, "bugs": 0, "followed": 0},
        "by_category": {"chat": {"prompts": 4, "speedup": speedup}}, **more,
    }  # fmt: skip


SUMMARY = {
    "prompts": 4,
    "arms": [
        row("plain", 1.0, speedup={"value": 1.0, "low": 1.0, "high": 1.0}, alpha=None, matches_plain=None, v={"1": 1.0}),
        row("slow", 1.25),
        row("quick", 2.0),
        row("loose", 9.0, exact=False, loglikelihood=-1.25, kl_per_token=0.0625, kl_infinite=0.0),
    ],
    "differences": [
        {
            "kind": "tie",
            "arm": "quick",
            "question_id": "q",
            "sample": 0,
            "repeat": 0,
            "turn": 0,
            "place": 7,
            "tokens": [5, 6],
            "gap": 2e-5,
        }
    ],
}


def shown(summary):
    console = Console(file=io.StringIO(), width=80)
    table.show(summary, console)
    return console.file.getvalue()


def test_the_table_shows_each_metric():
    lines = shown(SUMMARY).splitlines()
    cells = {line.split()[0]: line.split() for line in reversed(lines) if line.strip()}  # the first line of a name: the arms
    assert cells["quick"][1:] == [
        "30.0",
        "2.00",
        "(1.75-2.25)",
        *["-", "-"],
        "1.75",
        "1.50",
        "0.50",
        "0.125",
        "1.65",
        "(8)",
        *["0.250", "s", "2", "MiB", "3/1/0"],
    ]
    assert cells["plain"][1:3] == ["30.0", "1.00"] and cells["plain"][-1] == "-"
    assert cells["loose"][1] == "(inexact)" and cells["loose"][5:7] == ["-1.25", "0.0625"]
    assert "tie: quick, q, new token 7: 6 where plain has 5, gap 2.0e-05" in lines


def test_a_difference_names_its_sample_repeat_and_turn_where_they_are_not_the_first():
    difference = {**SUMMARY["differences"][0], "sample": 2, "turn": 1}
    assert table.differences({"differences": [difference]}) == [
        "tie: quick, q, sample 2, turn 1, new token 7: 6 where plain has 5, gap 2.0e-05"
    ]


def test_the_price_of_rules_is_shown_only_where_one_is_not_exact():
    assert "KL/tok" in shown(SUMMARY) and "loglik/tok" in shown(SUMMARY)
    assert "KL/tok" not in (text := shown({**SUMMARY, "arms": SUMMARY["arms"][:3]})) and "loglik" not in text
    assert table.kl({"kl_per_token": None, "kl_infinite": 0.034}) == "inf at 3.4%"
    assert table.kl({"kl_per_token": None, "kl_infinite": None}) == "-"


def test_what_followed_a_difference_and_what_was_not_timed():
    assert table.agreement({"equal": 3, "ties": 1, "bugs": 0, "followed": 2}) == "3/1/0 (2 followed)"
    assert " s " not in shown({**SUMMARY, "arms": [row("plain", 1.0, time_to_first_token=None)]}).partition("peak")[2]


def test_the_closing_sentence_names_the_best_exact_arm():
    assert table.closing(SUMMARY) == (
        "Best exact arm: quick, 2.00 (1.75-2.25) times plain on 4 prompts at 1.50 tokens per pass; the latency model predicted 1.75."
    )
    assert table.closing({**SUMMARY, "arms": SUMMARY["arms"][:1]}) == "Only plain arms were run: no exact arm can be quicker than plain."


NOTHING = {"value": None, "low": None, "high": None}


def test_without_an_interval_the_value_stands_alone():
    assert table.interval({**NOTHING, "value": 1.5}) == "1.50" and table.interval(NOTHING) == "-"
    assert table.interval({"value": 1.5, "low": 1.0, "high": None}) == "1.50"
    arms = [SUMMARY["arms"][0], row("quick", 2.0, speedup=NOTHING)]
    assert table.closing({**SUMMARY, "arms": arms}) == "The plain arms got no token out, so there is nothing to compare with."


def test_time_to_first_token_is_called_an_estimate():
    assert "first tok (est.)" in shown(SUMMARY)


def test_long_names_are_not_cut():
    name = "a drafter of a very long name " * 5
    text = shown({**SUMMARY, "arms": [*SUMMARY["arms"], row(name, 1.5)]})
    assert text.count(name) == 2 and "…" not in text


def test_a_real_run_is_shown_without_cutting():
    text = shown(tiny_run.finished()[1])
    assert all(name in text for name in tiny_run.ARMS) and "…" not in text


def test_names_are_shown_as_they_are():
    names = ["[/x]", "[red]a", ":smile:"]
    differences = [SUMMARY["differences"][0] | {"arm": "[/y]"}]
    text = shown({**SUMMARY, "arms": [row("plain", 1.0), *(row(name, 2.0) for name in names)], "differences": differences})
    assert all(name in text for name in [*names, "[/y]"])
