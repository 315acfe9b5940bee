"""Length policies: how many tokens to draft."""

from specjax.lengths.fixed import EVERYTHING, Fixed, match

__all__ = ["EVERYTHING", "Fixed", "match"]
