"""A run that takes seconds, and a config file of it: the tiny random transformer, four short prompts, n-gram drafts and a draft model."""

import functools
import pathlib
import tempfile

from ml_collections import ConfigDict
from ml_collections.config_dict import placeholder

GREEDY, COUPLED, PQ = dict(temperature=0.0), dict(temperature=0.7, coupled=True), dict(temperature=0.7)
NGRAM, DRAFT = dict(name="ngram", most=2), dict(name="model", source="toy://tiny/1", most=3)


def get_config() -> ConfigDict:
    config = ConfigDict()
    config.target = ConfigDict(dict(source="toy://tiny", dtype=placeholder(str)))
    config.prompts = ConfigDict(
        dict(source=str(pathlib.Path(__file__).with_name("tiny_run.jsonl")), limit=placeholder(int), quick=False, chat=False)
    )
    config.arms = (
        dict(name="match", drafter=NGRAM, length="match", sampling=GREEDY),
        dict(name="one", drafter=NGRAM, length=dict(name="fixed", k=1), sampling=GREEDY),
        dict(name="coupled", drafter=NGRAM, sampling=COUPLED),
        dict(name="p/q", drafter=NGRAM, rule="speculative", sampling=PQ),
        dict(name="draft model", drafter=DRAFT, sampling=COUPLED),
    )
    config.max_new_tokens = 12
    config.seed = 0
    config.batch = 1
    config.mesh = placeholder(str)
    config.repeats = 1
    config.ignore_eos = True
    return config.lock()


ARMS = ["plain greedy", "plain t=0.7", "match", "one", "coupled", "p/q", "draft model"]


@functools.cache
def experiment():
    from specjax import build

    return build.load(build.plan(get_config()))


@functools.cache
def finished():
    """(workdir, summary) of the whole run, made once a session."""
    from specjax.bench import sweep
    from specjax.bench.records import Workdir

    workdir = Workdir(pathlib.Path(tempfile.mkdtemp()) / "run")
    return workdir, sweep.whole(experiment(), workdir, ["python"], say=lambda line: None)
