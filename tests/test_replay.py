import json
import re
import shutil
import sys

import numpy as np
import pytest
import tiny_laws
from absl import flags

from specjax import build, replay, rules, theory
from specjax.bench import alike, laws, replaying
from specjax.bench.judged import Expected, Way, see
from specjax.bench.measure import Costs
from specjax.bench.records import Workdir
from specjax.report import replayed

COST = Costs(v={1: 1.0, 4: 1.5}, c=0.2, catch_up=0.1, step_seconds=0.01)


@pytest.fixture(autouse=True, scope="module")
def _few_rules():
    with pytest.MonkeyPatch.context() as patch:
        for module in (alike, replaying):
            patch.setattr(module, "usual", tiny_laws.usual)
        yield


@pytest.fixture
def workdir(tmp_path) -> Workdir:
    """A finished run with laws; what its arms did is made up."""
    shutil.copytree(tiny_laws.recorded().path, tmp_path / "run")
    made = Workdir(tmp_path / "run")
    names = [arm.name for arm in tiny_laws.ready().arms]
    seconds = {"compile": {name: {} for name in names}}
    made.write("manifest.json", {"fingerprint": "", "wall_seconds": 1.0, "seconds": seconds, "costs": dict.fromkeys(names, COST.to_json())})
    rows = [{"name": name, "tokens_per_pass": 2.0, "speedup": {"value": 1.25}} for name in names]
    made.write("summary.json", {"arms": rows})
    return made


@pytest.fixture
def command(monkeypatch, capsys):
    """(exit code, stdout, stderr) of the command."""

    def call(*args):
        code = 0
        monkeypatch.setattr(sys, "argv", ["replay", *map(str, args)])
        flags.FLAGS.unparse_flags()
        try:
            replay.main(replay.parse_flags(sys.argv))
        except SystemExit as stop:
            code = stop.code
        return code, *capsys.readouterr()

    return call


class Mine:
    def __call__(self, *draft): ...


def of(*tokens) -> list[Expected]:
    """Prompts of which each has so many expected tokens in each of its drafts of one token."""
    return [Expected(np.asarray(t)[:, None] - 1.0, np.asarray(t) - 1.0, np.ones(len(t), int)) for t in tokens]


# ---------------------------------------------------------------- the arithmetic


def test_a_difference_is_paired_and_over_prompts():
    base, own = of([1.0, 1.5], [2.0], [1.2], [1.0], [1.9]), of([1.1, 1.6], [2.1], [1.3], [1.1], [2.0])
    found = replaying.difference(own, base)
    assert found == pytest.approx({"value": 0.1, "low": 0.1, "high": 0.1, "prompts": 2})  # whatever prompts are drawn
    mixed = replaying.difference(of([1.5, 1.5], [1.0], [1.0], [1.0], [1.1]), of([1.0, 1.0], [1.0], [1.1], [1.0], [1.0]))
    assert mixed["value"] == pytest.approx(1.0 / 6) and mixed["low"] < 0 < mixed["high"]
    assert replaying.difference(own[:4], base[:4])["low"] is None  # too few prompts to draw from
    assert replaying.difference(own, own) == {"value": 0.0, "low": 0.0, "high": 0.0, "prompts": None}


def test_prompts_needed_is_that_of_a_paired_test():
    """Effect 0.5 of a standard deviation, power .8, level .05: (1.95996 + .84162)^2 / .25 = 31.4."""
    assert replaying.prompts_needed(np.asarray([1.5, -0.5] * 500)) == 32
    assert replaying.prompts_needed(np.asarray([1.0])) is None and replaying.prompts_needed(np.asarray([1.0, -1.0])) is None
    assert replaying.prompts_needed(np.ones(9)) == 2


def test_a_predicted_speedup_is_tokens_over_costs():
    prompts = [Expected(np.asarray([[0.8, 0.5, 0.0], [0.0, 0.0, 0.0]]), np.asarray([0.5, 0.0]), np.asarray([2, 0]))]
    cost = 1.5 + 2 * 0.2 + 0.1 * 0.5 + 1.0
    assert replaying.predicted_speedup(prompts, COST) == pytest.approx((2.3 + 1.0) / cost)
    independent = [Expected(np.asarray([[0.8, 0.8 * 0.7, 0.0]]), np.asarray([0.8 * 0.7]), np.asarray([2]))]
    model = theory.predict([0, 0, 1.0], [0.8, 0.7], COST.v, COST.c, sorted(COST.v), COST.catch_up)
    assert replaying.predicted_speedup(independent, COST) == pytest.approx(model.speedup)


# ---------------------------------------------------------------- the command


def test_all_drafts_are_compared_and_predictions_stand_beside_arms(workdir, command):
    code, out, _ = command(workdir.path)
    result = workdir.read("replay.json")
    assert code == 0 and out.splitlines()[-1] == f"all numbers: {workdir.path / 'replay.json'}"
    model, ngram = result["groups"]
    assert (model["base"], model["prompts"], model["drafts"], ngram["drafts"]) == ("speculative", 4, 32, 32)
    speculative, block, _ = model["rules"]
    assert block["tokens"] > speculative["tokens"] == pytest.approx(1 + sum(speculative["reach"]))
    assert block["difference"]["value"] == pytest.approx(block["tokens"] - speculative["tokens"])
    whole = {(row["rule"], row["length"]): row for row in model["predictions"]}
    assert len(whole) == 7 and whole["speculative", "K=3"]["predicted"]["tokens"] == pytest.approx(speculative["tokens"])
    met = whole["block", "K=2"]
    assert met["arm"] == "block 2" and met["measured"] == {"tokens": 2.0, "speedup": 1.25}
    assert met["error"] == pytest.approx({"tokens": met["predicted"]["tokens"] / 2 - 1, "speedup": met["predicted"]["speedup"] / 1.25 - 1})
    assert whole["speculative", "K=1"]["arm"] is None and whole["speculative", "K=1"]["error"] == {}
    assert whole["speculative", "K=1"]["predicted"]["tokens"] == pytest.approx(1 + speculative["reach"][0])
    assert re.search(r"Predicted from these drafts, and what an arm of this run did in closed loop", out)


def test_a_certain_drafter_gains_nothing_and_the_output_says_so(workdir, command):
    _, out, _ = command(workdir.path)
    ngram = workdir.read("replay.json")["groups"][1]
    assert ngram["certain"] and ngram["rules"][1]["difference"] == {"value": 0.0, "low": 0.0, "high": 0.0, "prompts": None}
    assert "(q is one-hot), so a path has no probability to win back" in out
    assert "Equal to speculative on every draft: block." in out


def test_rules_of_ones_own_are_tried_on_the_drafts_that_were_kept(workdir, command):
    code, out, _ = command(workdir.path, "--rules=lenient(lenience=0.7), specjax.rules.sample_and_match.SampleAndMatch")
    assert code == 0 and "lenient lenience=0.7" in out
    model = workdir.read("replay.json")["groups"][0]
    assert [row["rule"] for row in model["rules"]] == ["speculative", "lenient lenience=0.7", "sample_and_match"]
    assert [row["exact"] for row in model["rules"]] == [True, False, True]
    kept = [laws.load_drafts(workdir.path / file) for file in laws.index(workdir)[0]["files"].values()]
    tokens = [see([Way(rules.Lenient(lenience=0.7))], drafts).way(0).tokens_N for drafts in kept]
    assert model["rules"][1]["tokens"] == pytest.approx(np.concatenate(tokens).mean())


def test_at_a_larger_batch_no_speed_is_predicted(workdir):
    workdir.write("config.json", workdir.read("config.json") | {"batch": 2})
    for row in replay.replay(workdir, [])["groups"][0]["predictions"]:
        assert row["predicted"]["speedup"] is None and "speedup" not in row["error"]


def test_a_narrow_terminal_shows_it_all(workdir, capsys):
    from rich.console import Console

    replayed.show(replay.replay(workdir, []), Console(width=20))
    assert "more than speculative" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("block lenient", "rules='block lenient' must be rules like: block, lenient"),
        ("lenient(0.5)", "rules='lenient(0.5)' must be rules like"),
        ("lenient(lenience=2)", "lenience=2 must be"),
        ("lenient(lenience=open)", "must be rules like"),
        ("blok", "rules='blok' is none of .*; did you mean 'block'"),
        ("test_replay.Mine", "test_replay.Mine is no pytree: make its class a specjax.types.struct"),
    ],
)
def test_what_is_no_rule_is_named(text, said):
    with pytest.raises(ValueError, match=said.replace("(", r"\(").replace(")", r"\)")):
        build.rules_of(text)


def test_rules_by_name_and_path():
    made = build.rules_of("block, lenient(lenience=0.5, scaled_residual=False), specjax.rules.Block")
    assert made == [rules.Block(), rules.Lenient(lenience=0.5, scaled_residual=False), rules.Block()]


def test_what_is_wrong_is_one_line(workdir, command, tmp_path):
    assert command() == (2, "", "error: WORKDIR is missing\n")
    assert command(workdir.path, "more") == (2, "", "error: argument 'more' is not a flag\n")
    (tmp_path / "none").mkdir()
    code, _, line = command(tmp_path / "none")
    assert code == 2 and line.endswith("the laws of this run were not recorded: set config.record_laws=True\n")
    (workdir.path / "summary.json").unlink()
    code, _, line = command(workdir.path)
    assert code == 2 and line.endswith("summary.json is missing: name the folder of a finished run\n")


def test_damage_is_one_line(workdir, command):
    [first, *_] = laws.index(workdir)[0]["files"].values()
    (workdir.path / first).unlink()
    code, _, line = command(workdir.path)
    assert code == 2 and line.endswith("npz is missing or damaged: delete it, and the run's own command records it again\n")
    workdir.write("laws.json", {"groups": [{"name": "p/q"}]})
    code, _, line = command(workdir.path)
    assert code == 2 and line == f"error: {workdir.path / 'laws.json'} is damaged: delete it, and the run's own command writes it again\n"
    (workdir.path / "laws.json").write_text(json.dumps({}))
    assert command(workdir.path)[2] == line
