"""What a training run is: frozen dataclasses, made by `specjax.build_training` from a config and read by everything else."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from specjax.lm import LM
from specjax.training import shards
from specjax.training.drafts import Kind, eagle3, small


@dataclasses.dataclass(frozen=True)
class Target:
    """source, dtype: as `specjax.load` takes them."""

    source: str
    dtype: str | None = None


@dataclasses.dataclass(frozen=True)
class SmallDraft:
    """A `specjax.training.drafts.small.Small` before its target is loaded. vocab: size of the reduced vocabulary, None: all tokens."""

    layers: tuple[int, ...]
    vocab: int | None = None
    places: int = 5
    train_head: bool = False
    name = "small"
    reads_features = False

    def over(self, target: LM) -> Kind:
        return small.over(target, self.vocab, self.layers, self.places, self.train_head)


@dataclasses.dataclass(frozen=True)
class Eagle3Draft:
    """A `specjax.training.drafts.eagle3.Eagle3` before its target is loaded. taps: layers whose output it reads, from low to high."""

    taps: tuple[int, ...]
    vocab: int | None = None
    places: int = 3
    train_head: bool = True
    name = "eagle3"
    reads_features = True

    def over(self, target: LM) -> Kind:
        return eagle3.over(target, self.vocab, self.taps, self.places, self.train_head)


class Source(NamedTuple):
    """A part of the data: its settings, and the function that makes its shards of them."""

    name: str
    settings: Any
    make: Callable

    def texts(self, place) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """(token, mask) of its texts, of which the folder at `place` may hold more."""
        return shards.read(place, getattr(self.settings, "shards", None))


@dataclasses.dataclass(frozen=True)
class Data:
    """What is read. sources: how each part is made. length: T, tokens of a row. exclude: sets of prompts of which no piece of eight tokens
    may occur. top: tokens of the target's law that are kept at each place, None: all. cache: laws and features are made once and kept on
    disk; else anew in each step. folder: where shards are, and what is missing of them is made; None: in the run's own. whole: every token
    is learnt, of prompts too, and not only what a text's mask says: more to learn from the same data."""

    sources: tuple[Source, ...]
    length: int = 512
    exclude: tuple[str, ...] = ("own", "humaneval")
    top: int | None = 64
    cache: bool = False
    folder: str | None = None
    whole: bool = False


@dataclasses.dataclass(frozen=True)
class Optimizer:
    """AdamW under a linear warm-up and a cosine.

    steps: of the run. batch: rows a step, of all devices together. accumulate: parts that a batch is taken in. learning_rate: the
    highest, after `warmup` steps. floor: share of it that is left at the end. clip: largest norm of the gradient, None: any. dtype:
    of the computation; parameters and the optimizer's state are float32 always.
    """

    steps: int
    batch: int = 8
    accumulate: int = 1
    learning_rate: float = 1e-3
    warmup: int = 100
    floor: float = 0.1
    weight_decay: float = 0.01
    clip: float | None = 1.0
    dtype: str = "float32"

    @property
    def rows(self) -> int:
        """Of one part of a batch."""
        return self.batch // self.accumulate


@dataclasses.dataclass(frozen=True)
class OnPolicy:
    """A part of every batch is drawn from the draft itself (DistillSpec, Zhou et al., 2310.08461).

    fraction: of a batch's rows. every: steps between two drawings. texts: of a drawing. new_tokens: of each. temperature: of the draft.
    batch: rows of the decode loop.
    """

    fraction: float
    every: int = 100
    texts: int = 64
    new_tokens: int = 64
    temperature: float = 1.0
    batch: int = 32

    def rows(self, batch: int) -> int:
        """Of a batch."""
        return round(self.fraction * batch)


@dataclasses.dataclass(frozen=True)
class Evaluate:
    """Held-out prompts and how often they are looked at.

    prompts, categories, limit: as `specjax.prompts.load` takes them. chat: through the target's template. every: steps. new_tokens: of the
    target's own answer to each. temperature: of the answers and of the laws that are compared, 0 or 1.
    """

    prompts: str = "own"
    categories: tuple[str, ...] | None = None
    limit: int | None = None
    chat: bool = True
    every: int = 500
    new_tokens: int = 128
    temperature: float = 0.0


@dataclasses.dataclass(frozen=True)
class Plan:
    """A checked run. loss: weighed terms. decay: a row of place j of a draft weighs decay**j. log_every, checkpoint_every: steps. mesh: all
    devices, like 'data:2,model:4'; None: all along the data axis. A run may go on over another."""

    target: Target
    draft: Any
    data: Data
    loss: Any
    optimizer: Optimizer
    evaluate: Evaluate
    on_policy: OnPolicy | None = None
    decay: float = 1.0
    seed: int = 0
    log_every: int = 50
    checkpoint_every: int = 500
    mesh: str | None = None

    def resolved(self) -> dict:
        """What decides the draft, as JSON, everything spelled out, keys as the flags name them: {"optimizer.steps": 2000, ...}."""
        return {name: value for name, value in _flat(_resolved(self)) if name != "mesh"}


def _flat(fields: dict, before: str = ""):
    for name, value in fields.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{before}{name}.")
        else:
            yield before + name, value


def _resolved(thing):
    if dataclasses.is_dataclass(thing):
        fields = {f.name: _resolved(getattr(thing, f.name)) for f in dataclasses.fields(thing)}
        return {"name": thing.name, **fields} if hasattr(thing, "name") else fields
    if isinstance(thing, Source):
        return {"name": thing.name, **_resolved(thing.settings)}
    if isinstance(thing, np.ndarray | np.generic):
        thing = thing.tolist()
    if isinstance(thing, list | tuple):
        return [_resolved(x) for x in thing]
    if isinstance(thing, float) and not math.isfinite(thing):
        return str(thing)  # JSON has no infinity
    return thing
