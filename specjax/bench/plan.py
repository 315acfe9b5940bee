"""What a run is: frozen dataclasses, made by `specjax.build` from a config and read by everything else.

A *plan* is checked but holds no weights; an *experiment* is a plan with its models loaded and its prompts encoded.
"""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import json
import math
import zlib
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from specjax import LM, Decoder, NGram, NoDraft, Sampling
from specjax.api import sample_id
from specjax.bench.schema import nearest
from specjax.drafters import BestFirst, ModelDrafter, TreeDrafter
from specjax.drafters.tree import DRAWN
from specjax.models.load import fetch, hf
from specjax.models.load.names import DTYPES
from specjax.prompts import Prompt
from specjax.shapes import Shape

PLAIN, GREEDY = NoDraft(), Sampling()


@dataclasses.dataclass(frozen=True)
class Target:
    """source, dtype: as `specjax.load` takes them."""

    source: str
    dtype: str | None = None

    def __post_init__(self):
        _check_dtype("target", self.dtype)


@dataclasses.dataclass(frozen=True)
class Prompts:
    """As `specjax.prompts.load` takes them. chat: put each into the target's chat template."""

    source: str = "own"
    limit: int | None = None
    quick: bool = False
    categories: tuple[str, ...] | None = None
    chat: bool = True


@dataclasses.dataclass(frozen=True)
class DraftModel:
    """A drafter whose weights are not loaded yet. most: largest draft.

    noise: to make a worse draft of a good model, every matrix of its layers gets Gaussian noise of this share of its own standard
    deviation; embeddings, norms and head stay as they are.
    """

    source: str
    most: int = 7
    dtype: str | None = None
    noise: float = 0.0

    def __post_init__(self):
        _check_dtype("drafter", self.dtype)

    def over(self, draft: LM) -> ModelDrafter:
        return ModelDrafter(model=draft.model, params=draft.params, most=self.most)


@dataclasses.dataclass(frozen=True)
class TreeDraft:
    """A drafter of trees of a fixed shape, as `specjax.TreeDrafter`, whose weights are not loaded yet. noise: as in `DraftModel`."""

    source: str
    shape: Shape
    drawn: str = "without_replacement"
    dtype: str | None = None
    noise: float = 0.0

    def __post_init__(self):
        _check_dtype("drafter", self.dtype)
        if self.drawn not in DRAWN:
            raise ValueError(f"drafter.drawn={self.drawn!r} must be one of {', '.join(DRAWN)}{nearest(self.drawn, DRAWN)}")

    @property
    def most(self) -> int:
        return self.shape.depth

    def over(self, draft: LM) -> TreeDrafter:
        return TreeDrafter(model=draft.model, params=draft.params, shape=self.shape, drawn=self.drawn)


@dataclasses.dataclass(frozen=True)
class BestFirstDraft:
    """A drafter of trees that grow, as `specjax.BestFirst`, whose weights are not loaded yet. noise: as in `DraftModel`."""

    source: str
    nodes: int = 16
    most: int = 5
    beam: int = 4
    dtype: str | None = None
    noise: float = 0.0

    def __post_init__(self):
        _check_dtype("drafter", self.dtype)

    def over(self, draft: LM) -> BestFirst:
        return BestFirst(model=draft.model, params=draft.params, nodes=self.nodes, most=self.most, beam=self.beam)


WITH_WEIGHTS = DraftModel, TreeDraft, BestFirstDraft


@dataclasses.dataclass(frozen=True)
class EarlyExitDraft:
    """The target's first `exit_layer` layers as drafter, before the target is loaded. most: largest draft."""

    exit_layer: int
    most: int = 7


@dataclasses.dataclass(frozen=True)
class TrainedDraft:
    """A draft that `specjax.train` exported, or a published EAGLE-3 draft, not loaded yet. path: as `specjax.load_drafter` takes it."""

    path: str
    most: int = 7


@dataclasses.dataclass(frozen=True)
class CombinedDraft:
    """A `specjax.Combined` whose second drafter is not loaded yet: the n-gram drafts where it has a match, the second elsewhere."""

    second: Any
    first: NGram = dataclasses.field(default_factory=NGram)

    @property
    def most(self) -> int:
        return max(self.first.most, self.second.most)


NOT_LOADED = *WITH_WEIGHTS, EarlyExitDraft, TrainedDraft, CombinedDraft


@dataclasses.dataclass(frozen=True)
class Arm:
    """One way to decode. rule None: greedy matching or the p/q rule, as the sampling asks. length None: all that is offered. ladder:
    widths of verification, as `specjax.Decoder` takes them."""

    name: str
    drafter: Any = PLAIN
    rule: Any | None = None
    length: Any | None = None
    sampling: Sampling = GREEDY
    draft_sampling: Sampling | None = None
    ladder: tuple[int, ...] | None = None

    @property
    def plain(self) -> bool:
        return isinstance(self.drafter, NoDraft)

    @property
    def weights(self) -> Any:
        """The part of its drafter that may have weights of its own."""
        return self.drafter.second if isinstance(self.drafter, CombinedDraft) else self.drafter

    @property
    def tells_rules_apart(self) -> bool:
        """Whether it drafts for a target that samples with coins of its own: where tokens are certain all exact rules do the same."""
        return not self.plain and not self.sampling.one_hot


@dataclasses.dataclass(frozen=True)
class Laws:
    """Which drafts are recorded with their whole laws, see `specjax.bench.laws`.

    every: a root at so many places of a plain arm's output. drafts: at each root. megabytes: of all, before compression, at most.
    """

    every: int = 16
    drafts: int = 1
    megabytes: int = 300


@dataclasses.dataclass(frozen=True)
class Plan:
    """A checked run. max_new_tokens: of each turn. stop, min_new_tokens, forbidden, processors, logprobs: as `specjax.Decoder` takes them.

    samples: of each prompt by each arm that samples. refill: rows of a batch take the next prompt as they finish. ignore_eos: arms that
    sample do not end at EOS (stop strings end them all the same). record_laws: after the arms ran, for `specjax.replay`. mesh: all devices,
    like 'data:2,model:4'; None: one. split_drafts: over the model axis too, as the target; else each device of it has all of a draft.
    """

    target: Target
    prompts: Prompts
    arms: tuple[Arm, ...]
    max_new_tokens: int = 64
    min_new_tokens: int = 0
    stop: tuple[str, ...] = ()
    forbidden: tuple[int, ...] = ()
    processors: tuple[Any, ...] = ()
    logprobs: bool = False
    seed: int = 0
    batch: int = 1
    repeats: int = 1
    samples: int = 1
    refill: bool = False
    ignore_eos: bool = True
    record_laws: Laws | None = None
    mesh: str | None = None
    split_drafts: bool = False

    def resolved(self) -> dict:
        """The plan as JSON, everything spelled out."""
        return _resolved(self)


def _check_dtype(where: str, dtype: str | None) -> None:
    if dtype is not None and dtype not in DTYPES:
        raise ValueError(f"{where}.dtype={dtype!r} must be None or one of {', '.join(DTYPES)}{nearest(dtype, DTYPES)}")


def plain_of(sampling: Sampling) -> Sampling:
    """The sampling of the plain arm that others of this law are measured against; coupled noise and plain draws cost the same."""
    return sampling if sampling.temperature is None else dataclasses.replace(sampling, coupled=True)


def with_plain_arms(arms) -> tuple[Arm, ...]:
    """The arms, plain ones first, with one added for each target law that no plain arm serves."""
    added = []
    for arm in arms:
        if baseline(arm, [*added, *arms]) is None:
            added.append(Arm(name=_plain_name(arm.sampling), sampling=plain_of(arm.sampling)))
    arms = [*added, *arms]
    return tuple(sorted(arms, key=lambda a: not a.plain))  # sorted is stable


def baseline(arm: Arm, arms) -> Arm | None:
    """The plain arm of the same sampling; for sampling that is not coupled, one whose noise is coupled will do."""
    for sampling in (arm.sampling, plain_of(arm.sampling)):
        for other in arms:
            if other.plain and other.sampling == sampling:
                return other
    return None


def _plain_name(sampling: Sampling) -> str:
    numbers = {"t": sampling.temperature, "k": sampling.top_k, "top-p": sampling.top_p, "min-p": sampling.min_p, **sampling.penalties}
    said = [f"{name}={_short(value)}" for name, value in numbers.items() if value is not None]
    return " ".join(["plain", *(["greedy"] if sampling.temperature is None else []), *said])


def _short(value) -> str:
    return f"{value:g}" if float(f"{value:g}") == value else str(value)


class Encoded(NamedTuple):
    """A prompt and the token ids of its first turn. later: of each later turn, as if every answer before it were empty."""

    prompt: Prompt
    tokens: list[int]
    later: tuple[list[int], ...] = ()


class LoadedArm(NamedTuple):
    """An arm that can decode. baseline: the plain arm it is measured against. comparable: it must say what that arm says."""

    name: str
    decoder: Decoder
    baseline: str
    comparable: bool

    @property
    def plain(self) -> bool:
        return isinstance(self.decoder.setup.drafter, NoDraft)


class Task(NamedTuple):
    """What one record is about: an arm decodes one turn of a prompt."""

    arm: LoadedArm
    encoded: Encoded
    sample: int = 0
    repeat: int = 0
    turn: int = 0

    @property
    def key(self) -> tuple:
        """No two records of a run have the same."""
        return self.arm.name, str(self.encoded.prompt.question_id), self.sample, self.repeat, self.turn

    @property
    def id(self) -> int:
        """What with the seed decides every draw: the prompt's own id in the first sample's first turn.

        Each turn has another: a template may leave out what was said before, so that two turns are at the same positions.
        """
        sample = sample_id(self.encoded.prompt.id, self.sample)
        return sample if self.turn == 0 else zlib.crc32(f"{sample} turn {self.turn}".encode())


@dataclasses.dataclass(frozen=True)
class Experiment:
    """A plan with everything in memory. size: S, one for the run, so that prompts compile nothing."""

    plan: Plan
    target: LM
    arms: tuple[LoadedArm, ...]
    prompts: tuple[Encoded, ...]
    size: int
    load_seconds: float

    @property
    def fingerprint(self) -> str:
        """Digest of what a config only names: the prompts' token ids, of all turns, the weights, and the files of parts of one's own."""
        said = [[str(e.prompt.question_id), e.tokens, *e.later] for e in self.prompts]
        setups = [arm.decoder.setup for arm in self.arms]
        things = [*(kind for setup in setups for kind in setup.kinds), *map(inspect.unwrap, self.plan.processors)]
        own = {_source(thing) for thing in things if getattr(thing, "__module__", "").partition(".")[0] != "specjax"}
        files = [hashlib.sha256(Path(file).read_bytes()).hexdigest() for file in sorted(filter(None, own))]
        paths = {arm.weights.path for arm in self.plan.arms if isinstance(arm.weights, TrainedDraft)}
        drafts = [fetch.sha256(hf.weight_files(fetch.resolve(path))) for path in sorted(paths)]
        return hashlib.sha256(json.dumps([said, self.target.sha256, files, *drafts]).encode()).hexdigest()

    def samples(self, arm: LoadedArm) -> range:
        """One is enough of an arm that is certain of every token: the others would be equal."""
        return range(1 if arm.decoder.setup.sampling.temperature is None else self.plan.samples)

    @property
    def widths(self) -> tuple[int, ...]:
        return tuple(sorted({1, *(w for arm in self.arms for w in arm.decoder.setup.ladder)}))


def _source(thing) -> str | None:
    """The file of a class or function; None for what has none: what is built in or was written in a notebook, and objects, whose class is
    asked for by itself."""
    if not (inspect.isfunction(thing) or inspect.isclass(thing)):
        return None
    try:
        file = inspect.getsourcefile(thing)
    except (OSError, TypeError):
        return None
    return file if file and Path(file).exists() else None


def _resolved(thing):
    if dataclasses.is_dataclass(thing):
        kind = type(thing)
        fields = {f.name: _resolved(getattr(thing, f.name)) for f in dataclasses.fields(thing)}
        plain = kind.__module__ == __name__ and kind not in NOT_LOADED
        return fields if plain else {"type": f"{kind.__module__}.{kind.__qualname__}", **fields}
    if isinstance(thing, np.ndarray | np.generic):
        thing = thing.tolist()
    if isinstance(thing, list | tuple):
        return [_resolved(x) for x in thing]
    if isinstance(thing, float) and not math.isfinite(thing):
        return str(thing)  # JSON has no infinity
    if thing is None or isinstance(thing, bool | int | float | str):
        return thing
    named = thing if hasattr(thing, "__qualname__") else type(thing)  # a function or class, or an object of one
    return f"{named.__module__}.{named.__qualname__}"
