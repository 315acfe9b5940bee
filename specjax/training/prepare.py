"""All that stands before the first step: the target, the draft's shape, and the data, of which only what is missing is made."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from specjax import lm
from specjax import prompts as prompt_sets
from specjax.lm import LM
from specjax.training import held_out, scores, step
from specjax.training.answers import Answers
from specjax.training.drafts import Kind
from specjax.training.mixing import beginning
from specjax.training.pack import Packed, pack
from specjax.training.plan import Plan, Source
from specjax.training.scores import Rows, Teacher


class Ready(NamedTuple):
    """What training reads. sources: rows and their shares. teacher: to be asked in each step, None where nothing is asked or all is kept
    on disk. held_out: rows that are never trained on. counts: what the data are, for the draft's card. begun: texts that the draft may go
    on with itself, and the tokens of each one's prompt. digest: of all that is read; a run goes on with the same only."""

    plan: Plan
    target: LM
    kind: Kind
    id_U: np.ndarray | None
    sources: list[tuple[Rows, float]]
    teacher: Teacher | None
    held_out: Packed
    counts: dict
    begun: list[tuple[np.ndarray, int]]
    digest: str


def loaded(plan: Plan) -> tuple[LM, Kind]:
    """(target, kind), and a look at all that can be refused before anything is written.

    Raises:
      ValueError: something cannot be loaded, or parts do not fit together.
    """
    target = lm.load(plan.target.source, dtype=plan.target.dtype)
    vocab = target.model.vocab
    if plan.draft.vocab is not None and plan.draft.vocab > vocab:
        raise ValueError(f"draft.vocab={plan.draft.vocab} must be at most {vocab}, the tokens of {plan.target.source}")
    if plan.data.top is not None and plan.data.top > vocab:
        raise ValueError(f"data.top={plan.data.top} must be at most {vocab}, the tokens of {plan.target.source}")
    if target.max_positions and plan.data.length > target.max_positions:
        raise ValueError(f"data.length={plan.data.length} must be at most {target.max_positions}, the positions of {plan.target.source}")
    kind = plan.draft.over(target)
    step.check_rows(plan.optimizer.rows, step.mesh(plan.mesh))
    for name in plan.data.exclude:
        prompt_sets.load(name)
    if plan.data.exclude and target.tokenizer is None:
        raise ValueError(f"data.exclude={list(plan.data.exclude)}: {target.source} has no tokenizer to compare texts by: take () for none")
    for i, source in enumerate(plan.data.sources):
        try:
            source.settings.check(target, plan.data.exclude)
        except ValueError as error:
            raise ValueError(f"data.sources[{i}]: {error}") from error
    _check_apart(plan)
    return target, kind


def _check_apart(plan: Plan) -> None:
    """No prompt may be both answered for training and evaluated on."""
    wanted = plan.evaluate
    held = {prompt.turns[0] for prompt in prompt_sets.load(wanted.prompts, categories=wanted.categories, limit=wanted.limit)}
    asked = {i: source.settings.asked() for i, source in enumerate(plan.data.sources) if isinstance(source.settings, Answers)}
    for i, prompts in asked.items() if wanted.prompts not in plan.data.exclude else ():
        if both := sum(prompt.turns[0] in held for prompt in prompts):
            said = f"data.sources[{i}] and evaluate.prompts={wanted.prompts!r} have {both} prompts in common"
            raise ValueError(f"{said}: take other categories, or put the set into data.exclude")


def ready(plan: Plan, target: LM, kind: Kind, workdir: Path, say: Callable[[str], None]) -> Ready:
    """Make the data that are missing.

    Raises:
      ValueError: no text is left, or a folder holds something else.
    """
    folder = workdir / "data" if plan.data.folder is None else Path(plan.data.folder)
    held = held_out.answered(plan.evaluate, target, folder / "held_out", say, plan.seed)
    places = [_made(i, source, plan, target, folder, say) for i, source in enumerate(plan.data.sources)]
    id_U = vocabulary(plan, target, places)
    teacher = Teacher(target, kind.taps, plan.data.top) if plan.loss.needs_law or kind.taps else None
    sources, counts, begun, read = [], {}, [], [held]
    for i, (source, place) in enumerate(zip(plan.data.sources, places, strict=True)):
        texts = ((token, mask | plan.data.whole) for token, mask in source.texts(place))
        packed, counts[f"{i}-{source.name}"] = pack(texts, plan.data.length)
        say(f"{source.name}: " + ", ".join(f"{number} {what}" for what, number in counts[f"{i}-{source.name}"].items()))
        kept = scores.keep(packed, teacher, folder / f"{i}-scores", say) if plan.data.cache else None
        sources.append((Rows(packed, kept), source.settings.share))
        read.append(packed)
        if plan.on_policy:
            begun += [beginning(token, mask, plan.data.length) for token, mask in source.texts(place)]
    return Ready(plan, target, kind, id_U, sources, None if plan.data.cache else teacher, held, counts, begun, _digest(id_U, read))


def _digest(id_U: np.ndarray | None, read: list[Packed]) -> str:
    digest = hashlib.sha256(b"all" if id_U is None else id_U.tobytes())
    for x_NT in (x_NT for packed in read for x_NT in packed):
        digest.update(repr(x_NT.shape).encode())
        digest.update(np.ascontiguousarray(x_NT))
    return digest.hexdigest()


def _made(i: int, source: Source, plan: Plan, target: LM, folder: Path, say) -> Path:
    return source.make(source.settings, target, folder / f"{i}-{source.name}", say, plan.data.exclude, plan.seed + i)


def vocabulary(plan: Plan, target: LM, places: Iterable[Path]) -> np.ndarray | None:
    """id_U, the tokens that the draft can say, ascending: those that the target says most often in these data, and its EOS. What others
    wrote counts only where the target wrote nothing."""
    if plan.draft.vocab is None:
        return None
    named = list(zip(plan.data.sources, places, strict=True))
    own = [pair for pair in named if pair[0].name != "texts"] or named
    texts = (text for source, place in own for text in source.texts(place))
    count_V = np.zeros(target.model.vocab, np.int64)
    for token, mask in texts:
        count_V += np.bincount(token[mask], minlength=len(count_V))
    eos = [i for i in getattr(target.tokenizer, "eos_ids", ()) if i < target.model.vocab]
    count_V[eos] = np.iinfo(count_V.dtype).max
    return np.sort(np.argsort(-count_V, kind="stable")[: plan.draft.vocab]).astype(np.int32)
