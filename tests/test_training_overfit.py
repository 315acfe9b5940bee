"""A draft that has learnt one text by heart drafts it in the decode loop, and all of it is accepted: both are one function."""

import functools

import jax
import numpy as np
import pytest
import tiny_eagle

import specjax
from specjax.training import losses, pack, scores, step, targets
from specjax.training.drafts import eagle3, small
from specjax.training.plan import Optimizer
from specjax.training.rows import Batch

PROMPT, NEW = [1, 2, 3, 1, 2], 40
REDUCED = 60
KINDS = {
    "small": lambda target, vocab: small.over(target, vocab, (0,), 3, True),
    "eagle3": lambda target, vocab: eagle3.over(target, vocab, tiny_eagle.TAPS, 3, True),
}


@functools.cache
def text() -> list[int]:
    return PROMPT + specjax.generate(tiny_eagle.target(), [PROMPT], max_new_tokens=NEW).token_ids[0]


def learnt(kind, id_U, steps=150):
    target = tiny_eagle.target()
    packed, _ = pack.pack([(np.asarray(text()), np.arange(len(text())) >= len(PROMPT))], 48)
    batch = scores.Teacher(target, kind.taps, 8)(Batch(*packed))
    settings = Optimizer(steps=steps, batch=1, learning_rate=1e-2, warmup=10, weight_decay=0.0)
    program = step.Program(kind, losses.CE(), 1.0, settings, step.mesh(devices=jax.devices()[:1]))
    place_V = None if id_U is None else targets.place_of(id_U, target.model.vocab)
    fixed = step.Fixed(kind.frozen(target, id_U), place_V)
    state = step.start(program, kind.init(target, id_U, 0))
    for _ in range(steps):
        state = step.train(program, fixed, state, batch)
    return kind.drafter(state.params, fixed.frozen, id_U, 3, target)


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("vocab", [None, REDUCED])
def test_what_was_learnt_is_drafted(name, vocab):
    target = tiny_eagle.target()
    others = [i for i in range(target.model.vocab) if i not in text()]
    id_U = None if vocab is None else np.sort([*set(text()), *others[: vocab - len(set(text()))]]).astype(np.int32)
    drafter = learnt(KINDS[name](target, vocab), id_U)
    out = specjax.generate(target, [PROMPT], drafter=drafter, max_new_tokens=NEW, ladder=(4,))
    assert PROMPT + out.token_ids[0] == text()
    assert out.counts["rejected"].tolist() == [0]
    assert out.counts["passes"].tolist() == [NEW // 4]
