"""A run of table models that records its laws: seconds, and every law is known."""

import dataclasses
import functools
import pathlib
import tempfile

import jax.numpy as jnp
import numpy as np
from tiny_run import NGRAM

import specjax
from specjax import build, rules
from specjax.bench import laws, sweep
from specjax.bench.records import Workdir
from specjax.models import toy

T1, DRAFT = dict(temperature=1.0), dict(name="model", source="draft", most=3)
CONFIG = dict(
    target=dict(source="target"),
    prompts=dict(source=str(pathlib.Path(__file__).with_name("tiny_run.jsonl")), chat=False),
    arms=[
        dict(name="p/q", drafter=DRAFT, sampling=T1),
        dict(name="block 2", drafter=DRAFT, rule="block", length=dict(name="fixed", k=2), sampling=T1),
        dict(name="up and down", drafter=DRAFT, length="heuristic", sampling=T1),
        dict(name="surely", drafter=DRAFT, length=dict(name="confidence", threshold=0.3), sampling=T1),
        dict(name="ngram", drafter=NGRAM, sampling=T1),
        dict(name="greedy", drafter=NGRAM, sampling=dict(temperature=0.0)),
    ],
    max_new_tokens=12,
    record_laws=dict(every=3, drafts=2),
)


def usual() -> list:
    """Few rules, since each is a program for each shape of draft; the modules that use these fixtures patch them in."""
    return [rules.Speculative(), rules.Block(), rules.Lenient(lenience=0.5)]


@functools.cache
def tables() -> dict[str, np.ndarray]:
    """Laws of target and draft after each byte; eight tokens have nearly all the mass, so that n-grams come back."""
    rng = np.random.default_rng(0)
    often = np.where(np.arange(257) < 8, 1.0, 1e-4)
    p, noise = (rng.gamma(1.0, size=(257, 257)) * often for _ in range(2))
    p, noise = (x / x.sum(-1, keepdims=True) for x in (p, noise))
    return {"target": p, "draft": 0.6 * p + 0.4 * noise}


def load_model(source, dtype, layout=None):
    model, params = toy.table(tables()[source])
    return specjax.LM(model, jnp.asarray(params), toy.ByteTokenizer(), source)


def experiment(**changes):
    return build.load(build.plan(CONFIG | changes), load_model)


@functools.cache
def ready():
    return experiment()


@functools.cache
def decoded() -> Workdir:
    """The run up to its laws, which only read what the plain arm said."""
    workdir = Workdir(pathlib.Path(tempfile.mkdtemp()) / "run")
    workdir.create(ready().plan.resolved())
    [plain] = [arm for arm in ready().arms if arm.name == "plain t=1"]
    sweep.run(dataclasses.replace(ready(), arms=(plain,)), workdir)
    return workdir


@functools.cache
def recorded() -> Workdir:
    laws.record(ready(), decoded(), say=lambda line: None)
    return decoded()
