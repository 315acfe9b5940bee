"""The rule of `examples/my_rule.py` beside the p/q rule, on a random model of bytes.

    python -m specjax.run --config=examples/sweep_my_rule.py

Time: half a minute. Expect: fewer tokens per pass the more cautious the rule is, and all arms exact. The numbers of one rule share its
program, so another value of `caution` compiles nothing.
"""

from ml_collections import ConfigDict

DRAFT = dict(name="model", source="toy://tiny", noise=0.1, most=3)  # the target itself, made worse


def get_config() -> ConfigDict:
    rules = {
        "p/q": "speculative",
        "caution 1": dict(name="examples.my_rule:MyRule", caution=1.0),
        "caution 1.5": dict(name="examples.my_rule:MyRule", caution=1.5),
        "caution 3": dict(name="examples.my_rule:MyRule", caution=3.0),
    }
    config = ConfigDict()
    config.target = ConfigDict(dict(source="toy://tiny"))
    config.prompts = ConfigDict(dict(source="own", limit=6, chat=False))
    config.arms = tuple(dict(name=name, rule=rule, drafter=DRAFT, sampling=dict(temperature=2.0)) for name, rule in rules.items())
    config.max_new_tokens = 48
    return config.lock()
