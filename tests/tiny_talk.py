"""A run with conversations, samples and batches, and a config file of it: as tiny_run, seven prompts of one to three turns.

`--config=tiny_talk.py:p/q` leaves one arm and its plain arm.
"""

import dataclasses
import functools
import pathlib
import tempfile

import tiny_run
from ml_collections import ConfigDict


def get_config(only: str | None = None) -> ConfigDict:
    config = tiny_run.get_config().unlock()
    config.prompts.source = str(pathlib.Path(__file__).with_name("tiny_talk.jsonl"))
    arms = (
        dict(name="match", drafter=tiny_run.NGRAM, sampling=tiny_run.GREEDY),
        dict(name="p/q", drafter=tiny_run.NGRAM, sampling=dict(temperature=2.0)),
    )
    config.arms = tuple(arm for arm in arms if only in (None, arm["name"]))
    config.max_new_tokens = 6
    config.batch = 3
    config.samples = 2
    config.stop, config.min_new_tokens, config.refill = (), 0, False
    config.logprobs, config.record_laws = True, False
    return config.lock()


@functools.cache
def experiment(refill: bool = False):
    from specjax import build

    if refill:
        plain = experiment()
        return dataclasses.replace(plain, plan=dataclasses.replace(plain.plan, refill=True))
    return build.load(build.plan(get_config()))


@functools.cache
def finished(refill: bool = False):
    """The folder of the records of the whole run, made once a session."""
    from specjax.bench import sweep
    from specjax.bench.records import Workdir

    workdir = Workdir(pathlib.Path(tempfile.mkdtemp()))
    workdir.create({})
    sweep.run(experiment(refill), workdir)
    return workdir


def timeless(workdir) -> dict:
    """What a run must say again: records by their key, without seconds and memory."""
    from specjax.bench import line

    return {line.key(r): {k: v for k, v in r.items() if k not in ("seconds", "peak_memory_bytes")} for r in workdir.records()}
