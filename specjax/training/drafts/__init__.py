"""The kinds of draft that can be trained, one a file. All that the trainer and the evaluation know of a kind is `Kind`.

A new one is a file here, and a line or a few elsewhere: its settings in `plan`, its name in `build_training.DRAFTS`, how its
folder is written in `export`, and how that is read in `specjax.models.load.drafts.KINDS` and `specjax.trained`.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from specjax.lm import LM
from specjax.training.rows import Batch
from specjax.types import Array, Drafter


class Kind(Protocol):
    """A frozen, hashable dataclass of settings. `params` are trained, `frozen` is used with them and never changes: both nested dicts."""

    name: str
    model: Any  # the draft's functions, by the config of which it is exported
    taps: tuple[int, ...]  # layers of the target whose output it reads
    places: int  # of a draft, that training and evaluation see

    def init(self, target: LM, id_U: np.ndarray | None, seed: int) -> dict:
        """The parameters before training, float32. id_U: the reduced vocabulary, ascending target ids, int32; None: all.

        Raises:
          ValueError: the target is none that this kind can draft for.
        """

    def frozen(self, target: LM, id_U: np.ndarray | None) -> dict:
        """What it uses of the target as it is."""

    def logits(self, params: dict, frozen: dict, batch: Batch) -> list[tuple[Array, Array]]:
        """(logits_BTU, valid_BT), one a place. Row t of place j is the draft's law of token t + 1 when that is the (j + 1)-th of a draft;
        valid_BT is false where a text has too few tokens before it."""

    def drafter(self, params: dict, frozen: dict, id_U: np.ndarray | None, most: int, target: LM) -> Drafter:
        """For the decode loop. most: its largest draft."""
