"""What is compiled: one program over all numbers, and no copy of a cache inside the loop."""

import dataclasses
import os
import re

import jax
import numpy as np
import pytest
from loop import drafter, fixed, mixed, random_lm

import specjax
from specjax import Lenient, Sampling, decode, shapes
from specjax.models import cache, layers
from specjax.models.border import border, init
from specjax.models.config import ModelConfig
from specjax.rules import RecursiveRejection


def test_numbers_compile_nothing_new():
    """Prompts, seeds, temperatures, filters, lenience, K below its maximum and other budgets share one program."""
    target = random_lm(0)
    draft = drafter(mixed(target, 1))

    def run(prompts, seed, temperature, lenience, k, budget):
        specjax.generate(
            target, prompts, drafter=draft, rule=Lenient(lenience=lenience), length=fixed(k), seed=seed, max_new_tokens=budget,
            sampling=Sampling(temperature=temperature, top_p=0.9), ids=[seed, 7], eos=[seed % 3],
        )  # fmt: skip

    run([[1], [2, 3]], 0, 0.5, 0.5, 5, 10)
    before = decode.generate._cache_size(), decode.feed_prompts._cache_size()
    run([[3, 3, 3, 3], [2]], 1, 1.0, 0.5, 5, 10)
    run([[1] * 30, [2]], 2, 2.0, 0.1, 3, 60)
    run([[1], [2]], 3, 0.001, 1.0, 0, 1)
    assert (decode.generate._cache_size(), decode.feed_prompts._cache_size()) == before


def test_a_prefill_serves_every_rule_and_sampling():
    target = random_lm(0)
    specjax.generate(target, [[1]], max_new_tokens=2)
    before = decode.feed_prompts._cache_size()
    for sampling in (Sampling(temperature=1.0), Sampling(temperature=1.0, coupled=True), Sampling(temperature=1.0, top_k=2)):
        specjax.generate(target, [[1]], sampling=sampling, max_new_tokens=2)
    assert decode.feed_prompts._cache_size() == before


@pytest.fixture(scope="module")
def models():
    """A target with the real model's attention (grouped heads), and a draft with a single head."""
    shape = dict(vocab=64, layers=2, ff=32, tied=True, max_positions=512)
    wide = ModelConfig(width=36, heads=9, kv_heads=3, head_size=48, **shape)
    narrow = ModelConfig(width=16, heads=2, kv_heads=1, head_size=24, **shape)
    return tuple(specjax.LM(*border(config, init(config)), None, "random") for config in (wide, narrow))


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("kind", ["none", "ngram", "model", "early_exit", "tree", "best_first"])
def test_no_copy_of_a_cache_inside_a_while_body(models, kind, batch):
    target, draft = models
    own = dict(model=draft.model, params=draft.params)
    parts = {
        "none": None,
        "ngram": specjax.NGram(),
        "model": draft,
        "early_exit": specjax.EarlyExit(model=target.model, exit_layer=1),
        "tree": specjax.TreeDrafter(**own, shape=shapes.parse("2x2")),  # draft caches of trees have slots for what is fed
        "best_first": specjax.BestFirst(**own, nodes=6, most=3, beam=2),
    }
    text = program(target, parts[kind], batch, RecursiveRejection() if kind in ("tree", "best_first") else None)
    assert "while(" in text and not list(cache_copies(text, sizes=[batch * 3 * 128 * 48, *(batch * n * 24 for n in (128, 135, 134))]))


# Fused as users' programs are, unlike those of the other tests (conftest.py).
FUSED = {flag: True for flag in ["xla_cpu_use_fusion_emitters"] if flag in os.environ["XLA_FLAGS"]}


def program(target, draft, batch, rule=None):
    decoder = specjax.Decoder(target, drafter=draft, rule=rule, sampling=Sampling(temperature=0.7))
    setup = dataclasses.replace(decoder.setup, ladder=tuple(sorted({1, decoder.setup.ladder[-1]})))  # more rungs would show the same
    state = jax.eval_shape(decode.prefill, setup, target.params, decoder.start([[1, 2]] * batch, 8))
    return decode.generate.lower(setup, target.params, state, np.int32(0)).compile(FUSED).as_text()


VIEWS = {"get-tuple-element", "parameter", "bitcast", "dynamic-update-slice"}  # these move no data but the update itself


def cache_copies(text, sizes):
    """Instructions inside while bodies that make a whole cache array anew: anything but an update in place, alone or as a fusion's root."""
    bodies, roots, made, inside = set(re.findall(r"body=%?([\w.\-]+)", text)), {}, [], None
    for line in text.splitlines():
        if opened := re.match(r"(?:ENTRY )?%?([\w.\-]+) \(.*\{$", line):
            inside = opened[1]
        elif found := re.match(r"\s+(ROOT )?%?[\w.\-]+ = \w+\[([\d,]*)\]\S* ([\w\-]+)\(", line):
            root, shape, kind = found.groups()
            if root:
                roots[inside] = kind
            if inside in bodies and np.prod([int(n) for n in shape.split(",") if n]) in sizes:
                made.append((kind, line))
    for kind, line in made:
        if kind == "fusion":
            kind = roots.get(re.search(r"calls=%?([\w.\-]+)", line)[1], "fusion")
        if kind not in VIEWS:
            yield line


def test_the_reader_of_programs_sees_copies(models, monkeypatch):
    """With an axis of size one in the cache, XLA copies it: what `models/cache.py` avoids."""

    def write(array, new_BTGC, cursor_B):
        return jax.lax.dynamic_update_slice(array, new_BTGC.transpose(0, 2, 1, 3), (0, 0, cursor_B[0], 0))

    for module in (cache, layers):
        monkeypatch.setattr(module, "lead", lambda batch, kv_heads: (batch, kv_heads))
    monkeypatch.setattr(layers, "write", write)
    config = dataclasses.replace(models[0].model.config, vocab=65)  # a model of its own: nothing is taken from a jit cache
    assert list(cache_copies(program(specjax.LM(*border(config, init(config)), None, "random"), None, 1), [3 * 128 * 48]))
