"""Length policies: how many tokens to draft."""

from specjax.lengths.fixed import Fixed

__all__ = ["Fixed"]
