"""Certify rules, drafters and the loop: exact laws by enumeration on small vocabularies, nothing is drawn for a rule.

    python -m specjax.certify [--rule=block] [--rule="my_rule:Mine(x=1)"] [--drafter=ngram] [--loop] [--nox64] [--json]

Without --rule and --drafter every rule of specjax is certified, in float32 and float64. Your own is named by package.module:Class, with
its numbers where it needs some. Exit codes: 0 all pass, 1 something fails, 2 bad input.
"""

from __future__ import annotations

import json
import sys

from absl import app, flags
from rich.console import Console

from specjax import build, command, rules
from specjax.certify import drafter, loop, report, rule, toys
from specjax.certify.drafts import DRAWN
from specjax.certify.verdict import Verdict
from specjax.command import CONFIG, fail, note, say

flags.adopt_module_key_flags(command)
RULE = flags.DEFINE_multi_string("rule", [], "Rules: block, lenient(lenience=0.5), package.module:Rule; may come again.")
DRAFTER = flags.DEFINE_multi_string("drafter", [], f"Drafters: {', '.join(toys.NAMED)}, package.module:Drafter.")
LOOP = flags.DEFINE_bool("loop", False, "Certify the loop around each exact rule too: its law over several rounds with real keys.")
X64 = flags.DEFINE_bool("x64", True, "Certify in float64 too.")
JSON = flags.DEFINE_bool("json", False, "Print one JSON object in place of the table.")
DTYPES = tuple(rule.CLOSE)
DECLARED = "name", "exact", "one_hot_only", "trees", "drawn", "paper", "equation"
USUAL = {  # numbers of rules that have none without being given
    "lenient": "lenient(lenience=0.5)",
    "argmax_lenience": "argmax_lenience(lenience=0.5)",
    "cascade": "cascade(delta=0.15)",
    "synthetic": "synthetic(rates=[0.8, 0.6])",
}


def main(argv: list[str]) -> None:
    if CONFIG.value is not None:
        fail(ValueError("--config changes nothing here: rules are certified on small laws, without a model"))
    try:
        texts = RULE.value or ([] if DRAFTER.value else [kind.name for kind in rules.ALL])
        asked = [one for text in texts for one in named(text)]
        beside = [toys.named(name) for name in DRAFTER.value]
    except ValueError as error:
        fail(error)
    verdicts = [done(rule.check(one, DTYPES if X64.value else DTYPES[:1])) for one in asked]
    others = [done(loop.check(one)) for one in asked if LOOP.value and one.exact]
    others += [done(drafter.check(*one)) for one in beside]
    if JSON.value:
        say(json.dumps({"passed": all(v.passed for v in verdicts + others), "verdicts": [v._asdict() for v in verdicts + others]}))
    else:
        report.show(verdicts, others, Console())
    sys.exit(0 if all(v.passed for v in verdicts + others) else 1)


def done(verdict: Verdict) -> Verdict:
    note(f"{'PASS' if verdict.passed else 'FAIL'} {verdict.name}")
    return verdict


def named(text: str) -> list:
    """The rules that a flag names, see `build.rules_of`.

    Raises:
      ValueError: there are none, or one lacks what a rule declares.
    """
    made = build.rules_of(USUAL.get(text, text).replace(":", "."))
    if not made:
        raise ValueError(f"rule={text!r} names none: there would be nothing to certify")
    for one in made:
        if missing := [name for name in DECLARED if not hasattr(one, name)]:
            raise ValueError(f"rule={text!r} has no {', '.join(missing)}: see specjax.types.Rule for what a rule declares")
        check_declared(text, one)
    return made


def check_declared(text: str, one) -> None:
    """Raises ValueError where a rule declares what no certificate could mean."""
    if not (isinstance(one.name, str) and one.name and one.name.isprintable()):
        raise ValueError(f"rule={text!r} has name={one.name!r}: it must be one printable line")
    for key in ("exact", "one_hot_only", "trees"):
        if not isinstance(getattr(one, key), bool):
            raise ValueError(f"rule={text!r} has {key}={getattr(one, key)!r}: it must be True or False")
    if not (isinstance(one.drawn, tuple) and one.drawn and set(one.drawn) <= set(DRAWN)):
        raise ValueError(f"rule={text!r} has drawn={one.drawn!r}: it must be a tuple of {', '.join(DRAWN)}, at least one")


if __name__ == "__main__":
    command.settle_jax()
    app.run(main, flags_parser=command.parse_flags)
