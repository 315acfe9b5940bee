"""A part of every batch is rows that the draft wrote itself, drawn anew every so many steps; see `specjax.training.on_policy`.

What is drawn hangs on the seed, the number of the drawing and the parameters at that step. A run that goes on in between gets the texts
from its checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterable

import jax
import numpy as np

from specjax import processes
from specjax.lm import LM
from specjax.training import on_policy
from specjax.training.pack import Packed, pack
from specjax.training.plan import OnPolicy
from specjax.training.rows import Batch
from specjax.training.scores import Teacher
from specjax.types import Drafter

DRAWING = 1  # makes the random numbers of a drawing others than those of a shard of the same number


class Mixing:
    """begun: texts that are continued, and how many tokens of each are its prompt, see `beginning`. length: tokens of a row. teacher:
    scores the part where batches come scored. share: drafted tokens among the new ones of the last drawing."""

    def __init__(
        self, settings: OnPolicy, target: LM, begun: Iterable[tuple[np.ndarray, int]], length: int, seed: int, teacher: Teacher | None
    ):
        self.settings, self.target, self.length, self.seed, self.teacher = settings, target, length, seed, teacher
        most = length - settings.new_tokens
        self.begun = [(token, prompt) for token, prompt in begun if prompt <= most]
        if not self.begun:
            raise ValueError(f"on_policy.new_tokens={settings.new_tokens} leaves no room in data.length={length} for any prompt")
        self.drawn: list[tuple[np.ndarray, np.ndarray]] = []
        self.rows: Packed | None = None
        self.share = 0.0

    @property
    def state(self) -> dict:
        """As JSON. texts: tokens, and how many of them are the prompt."""
        return {"texts": [[token.tolist(), int(np.sum(~mask))] for token, mask in self.drawn], "share": self.share}

    def set_state(self, state: dict) -> None:
        texts = [(np.asarray(token, np.int32), np.arange(len(token)) >= prompt) for token, prompt in state["texts"]]
        self._hold(texts, state["share"])

    def due(self, number: int) -> bool:
        """Whether texts are drawn before step `number`, counted from 1."""
        return (number - 1) % self.settings.every == 0

    def draw(self, number: int, drafter: Drafter) -> None:
        """Texts of the draft as it is before step `number`."""
        how, chance = self.settings, np.random.default_rng([self.seed, number, DRAWING])
        chosen = chance.choice(len(self.begun), how.texts, replace=len(self.begun) < how.texts)
        prompts = [self._beginning(*self.begun[i], chance) for i in chosen]
        seed = int(chance.integers(2**32))
        batch = min(how.batch, how.texts)
        numbers = dict(temperature=how.temperature, seed=seed, batch=batch, size=self.length)
        drawn = processes.first(lambda: on_policy.draw(self.target, drafter, prompts, how.new_tokens, **numbers))
        self._hold(drawn.texts, drawn.share)

    def _beginning(self, token: np.ndarray, prompt: int, chance: np.random.Generator) -> list[int]:
        """The prompt, and any part of what follows, but not its end."""
        last = min(len(token) - 1, self.length - self.settings.new_tokens)
        return token[: chance.integers(prompt, max(prompt, last) + 1)].tolist()

    def _hold(self, texts: list, share: float) -> None:
        self.drawn, self.share = texts, share
        self.rows = pack(texts, self.length)[0] if texts else None

    def mixed(self, number: int, batch: Batch) -> Batch:
        """The batch of step `number`, its last rows replaced by rows that were drawn, each in its turn."""
        count = self.settings.rows(len(batch.token_BT))
        at = ((number - 1) % self.settings.every * count + np.arange(count)) % len(self.rows.token_NT)
        part = Batch(*(x_NT[at] for x_NT in self.rows))
        if self.teacher is not None:
            part = jax.device_get(self.teacher(part))
        return jax.tree.map(lambda all_B, new_B: np.concatenate([all_B[:-count], new_B.astype(all_B.dtype)]), batch, part)


def beginning(token: np.ndarray, mask: np.ndarray, length: int) -> tuple[np.ndarray, int]:
    """A text within a row of `length` tokens, and how many of them stand before the first that is to be learnt."""
    return token[:length], max(1, int(np.argmax(mask)))
