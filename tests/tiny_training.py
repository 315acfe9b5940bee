"""A training run that takes seconds, and a kind of draft that compiles in a moment: a table of logits by the token before."""

import dataclasses
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict
from ml_collections.config_dict import placeholder

from specjax.training import losses, plan, rows, step, targets

V, U, T = 11, 5, 12
ID_U = np.array([0, 2, 3, 7, 10], np.int32)
PLACE_V = targets.place_of(ID_U, V)


@dataclasses.dataclass(frozen=True)
class TableKind:
    """places: alike, each wants one token more before it."""

    places: int = 2
    name = "table"
    taps = ()

    def init(self):
        rng = np.random.default_rng(3)
        return {"table_VU": rng.normal(size=(V, U)).astype(np.float32), "bias_U": np.full(U, 0.5, np.float32)}

    def logits(self, params, frozen, batch):
        logits_BTU = (params["table_VU"] * frozen["scale"])[batch.token_BT] + params["bias_U"][None, None]
        return [(logits_BTU, (batch.segment_BT > 0) & (batch.position_BT >= place)) for place in range(self.places)]


def batch(seed: int, count: int = 8) -> rows.Batch:
    """Rows of two texts and padding, with laws over all tokens, on the host."""
    rng = np.random.default_rng(seed)
    segment = np.array([[1] * 5 + [2] * (T - 7) + [0] * 2] * count, np.int32)
    law = jax.device_get(targets.full(jnp.asarray(2 * rng.normal(size=(count, T, V)), jnp.float32)))
    tokens = rng.integers(0, V, (count, T)).astype(np.int32)
    return rows.Batch(tokens, rng.random((count, T)) < 0.6, segment, np.asarray(rows.positions(jnp.asarray(segment))), (), law)


def program(devices=None, decay=0.5, **numbers) -> step.Program:
    numbers = dict(steps=20, batch=8, learning_rate=0.1, warmup=4) | numbers
    loss = losses.Weighted(((1.0, losses.ForwardKL()), (0.5, losses.CE())))
    mesh = step.mesh(devices=jax.devices()[:1] if devices is None else devices)
    return step.Program(TableKind(), loss, decay, plan.Optimizer(**numbers), mesh)


def fixed(made: step.Program) -> step.Fixed:
    return step.placed(made, step.Fixed({"scale": np.float32(1.5)}, PLACE_V))


def train(made: step.Program, batches, state=None) -> step.State:
    state = step.start(made, made.kind.init()) if state is None else state
    for one in batches:
        state = step.train(made, fixed(made), state, step.spread(made.mesh, one))
    return state


def get_config() -> ConfigDict:
    """Of the tiny random transformer: teacher-forced text, and a part of every batch in the draft's own words."""
    config = ConfigDict()
    config.target = ConfigDict(dict(source="toy://tiny", dtype=placeholder(str)))
    config.draft = ConfigDict(dict(name="small", layers=(1,), vocab=40, places=2))
    talk = str(pathlib.Path(__file__).with_name("tiny_talk.jsonl"))
    source = dict(name="texts", files=(talk,), min_tokens=4, max_tokens=40, repeated=1.0)
    config.data = ConfigDict(dict(sources=(source,), length=48, exclude=(), top=8, cache=False, folder=placeholder(str)))
    config.loss = (dict(name="forward_kl", weight=1.0),)
    config.optimizer = ConfigDict(dict(steps=12, batch=4, learning_rate=3e-3, warmup=2))
    config.evaluate = ConfigDict(dict(prompts=talk, chat=False, new_tokens=8, every=4, temperature=1.0))
    config.on_policy = ConfigDict(dict(fraction=0.5, every=5, texts=4, new_tokens=8, batch=4))
    config.seed = 0
    config.log_every = 3
    config.checkpoint_every = 2
    return config.lock()
