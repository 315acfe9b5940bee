"""The command: what it takes, what it says, and with which exit code."""

import json

import commands
import pytest
import tiny_run

from specjax.certify import __main__ as certify
from specjax.certify import rule
from specjax.rules import speculative
from specjax.types import struct


@struct
class Mine(speculative.Speculative):
    """One's own rule, right where others are."""

    name, drawn = "mine", ("iid",)


@struct
class Wrong(Mine):
    name = "wrong"

    def __call__(self, tree, token_M, p_MV, q_MV):
        law = super().__call__(tree, token_M, p_MV, q_MV)
        return law._replace(emit_MV=p_MV)


@struct
class Bare:
    """It judges, and says nothing of itself."""

    name, exact = "bare", True

    def __call__(self, tree, token_M, p_MV, q_MV):
        raise NotImplementedError


class Plain(speculative.Speculative):
    """A class that is no pytree."""


def declares(**changed):
    """Mine, but for what it says of itself."""
    return struct(type("Declares", (Mine,), changed))()


MINE = Mine()
NEVER_DRAWN, DRAWN_A_TEXT, TWO_LINES = declares(drawn=()), declares(drawn="iid"), declares(name="a\nb")
HALF_EXACT = declares(exact=0.5)


@pytest.fixture
def report(monkeypatch, capsys):
    """(exit code, stdout, stderr) of the command."""

    def call(*args):
        with pytest.raises(SystemExit) as stop:
            commands.call(certify, monkeypatch, "--nox64", *args)
        return stop.value.code, *capsys.readouterr()

    return call


def test_rules_by_name_and_by_path(report):
    code, out, _ = report("--rule=greedy", f"--rule={__name__}:Mine", f"--rule={__name__}.MINE")
    rows = [line.split() for line in out.splitlines() if "PASS" in line]
    assert code == 0 and {row[0] for row in rows} == {"greedy", "mine"}
    assert rows[-1][:4] == ["mine", "iid", "yes", "60"] and rows[-1] == rows[-2]


def test_a_failure_is_one_line_and_exit_code_1(report):
    code, out, _ = report(f"--rule={__name__}:Wrong", f"--rule={__name__}:Mine")
    assert code == 1 and out.splitlines()[-1].startswith("FAIL wrong: iid: A, 1 (float32): the first token has the law (")
    assert sum("PASS" in line for line in out.splitlines()) == 1


def test_json_is_one_object(report):
    code, out, _ = report("--json", f"--rule={__name__}:Mine", f"--rule={__name__}:Wrong")
    whole = json.loads(out)
    assert code == 1 and whole["passed"] is False and [v["passed"] for v in whole["verdicts"]] == [True, False]
    assert whole["verdicts"][0]["numbers"]["drawn"]["iid"]["expected_tokens"]["toy, 1x1"] == pytest.approx(19 / 9, abs=1e-6)


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (["--rule=gredy"], "error: rules='gredy' is none of greedy, "),
        (["--rule=nowhere:Rule"], "error: rules='nowhere.Rule': ModuleNotFoundError: No module named 'nowhere'"),
        ([f"--rule={__name__}:Bare"], f"error: rule='{__name__}:Bare' has no one_hot_only, trees, drawn, paper, equation: see"),
        ([f"--rule={__name__}:Plain"], f"error: rules: {__name__}.Plain is no pytree: "),
        (["--rule="], "error: rule='' names none"),
        (["--rule=lenient(0.5)"], "error: rules='lenient(0.5)' must be rules like: block, lenient(lenience=0.5)"),
        ([f"--rule={__name__}:NEVER_DRAWN"], f"error: rule='{__name__}:NEVER_DRAWN' has drawn=(): it must be a tuple of"),
        ([f"--rule={__name__}:DRAWN_A_TEXT"], f"error: rule='{__name__}:DRAWN_A_TEXT' has drawn='iid': it must be a tuple of"),
        ([f"--rule={__name__}:TWO_LINES"], f"error: rule='{__name__}:TWO_LINES' has name='a\\nb': it must be one printable line"),
        ([f"--rule={__name__}:HALF_EXACT"], f"error: rule='{__name__}:HALF_EXACT' has exact=0.5: it must be True or False"),
        (["--rule=block("], "error: rules='block(' must be rules like: block, lenient(lenience=0.5)"),
        (["--drafter=gram"], "error: drafter='gram' is none of ngram, "),
        ([f"--drafter={__name__}:MINE"], f"error: drafter='{__name__}:MINE' has no most, taps, params"),
        (["--config=" + tiny_run.__file__], "error: --config changes nothing here"),
        (["block"], "error: argument 'block' is not a flag"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(report, args, text):
    code, out, err = report(*args)
    assert (code, out) == (2, "") and err.startswith(text) and len(err.splitlines()) == 1


def test_without_a_rule_all_are_certified_in_both_precisions(monkeypatch, capsys):
    seen = []
    verdict = rule.check(Mine(), ("float32",))
    monkeypatch.setattr(rule, "check", lambda one, dtypes: seen.append((one.name, dtypes)) or verdict)
    with pytest.raises(SystemExit):
        commands.call(certify, monkeypatch)
    assert [name for name, _ in seen] == [one.name for one in certify.rules.ALL]
    assert {dtypes for _, dtypes in seen} == {("float32", "float64")}
