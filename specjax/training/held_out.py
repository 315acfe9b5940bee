"""Prompts that are never trained on, the target's own answers to them, and how well a draft would draft those."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np

from specjax.lm import LM
from specjax.sharding import fetch
from specjax.training import answers, evaluate, shards, step
from specjax.training.pack import Packed, pack
from specjax.training.plan import Evaluate
from specjax.training.rows import Batch
from specjax.training.scores import Teacher
from specjax.training.shards import Folder
from specjax.training.step import Fixed, Program
from specjax.types import PyTree

BUCKET = 128  # rows are a multiple of it


def answered(wanted: Evaluate, target: LM, folder: Path, say: Callable[[str], None], seed: int) -> Packed:
    """Prompts with answers of any length; left out are later turns, and a prompt that says what one before it says. They are made once:
    other prompts, or other answers to them, have a folder of their own within the folder."""
    every = dict(min_tokens=1, max_tokens=2**20, repeated=1.0, near=2**20, texts=2**15)
    how = dict(answer_tokens=wanted.new_tokens, answer_temperature=(float(wanted.temperature),), chat=wanted.chat)
    asked = answers.Answers(prompts=wanted.prompts, categories=wanted.categories, limit=wanted.limit, **how, **every)
    made = shards.made_by("held_out", asked.settings(asked=asked.asked(), seed=seed), target)
    place = folder / Folder(folder, made).fingerprint[:16]
    texts = list(shards.read(answers.make(asked, target, place, say, seed=seed)))
    longest = max(len(token) for token, _ in texts)
    return pack(texts, -(-longest // BUCKET) * BUCKET)[0]


class HeldOut:
    """Batches of held-out rows with all that a draft reads, in memory. batch: rows at once."""

    def __init__(self, packed: Packed, teacher: Teacher | None, batch: int):
        count, self.batches = len(packed.token_NT), []
        for begin in range(0, count, batch):
            chosen = np.arange(begin, begin + batch)
            one = Batch(*(x_NT[chosen % count] for x_NT in packed))
            one = one._replace(mask_BT=one.mask_BT & (chosen < count)[:, None])  # the last batch is filled up with rows that do not count
            self.batches.append(one if teacher is None else jax.device_get(teacher(one)))

    def figures(self, program: Program, fixed: Fixed, params: PyTree, temperature: float) -> dict:
        """See `evaluate.figures`."""
        measured = [measure(program, temperature, fixed, params, step.spread(program.mesh, batch)) for batch in self.batches]
        return evaluate.figures(evaluate.add(fetch(measured)))


@functools.partial(jax.jit, static_argnames=("program", "temperature"))
def measure(program: Program, temperature: float, fixed: Fixed, params: PyTree, batch: Batch) -> evaluate.Tally:
    places = step.logits(program, fixed, params, batch)
    return evaluate.tally(places, batch, temperature, fixed.place_V)
