"""Length policies: how many tokens to draft."""

from specjax.lengths.fixed import EVERYTHING, Fixed, match
from specjax.lengths.heuristic import Heuristic

__all__ = ["EVERYTHING", "Fixed", "Heuristic", "match"]
