"""Length policies: how many tokens to draft."""

from specjax.lengths.batch_table import BatchTable
from specjax.lengths.confidence import Confidence
from specjax.lengths.entropy import Entropy
from specjax.lengths.fixed import Fixed, match
from specjax.lengths.goodput import Goodput
from specjax.lengths.heuristic import Heuristic
from specjax.lengths.numbers import EVERYTHING
from specjax.lengths.optimal import Optimal
from specjax.lengths.stand_aside import StandAside
from specjax.lengths.tiers import Tiers

__all__ = [
    "EVERYTHING", "BatchTable", "Confidence", "Entropy", "Fixed", "Goodput", "Heuristic", "Optimal", "StandAside", "Tiers", "match",
]  # fmt: skip
