"""Drafters, one method a file."""

from specjax.drafters.model import ModelDrafter
from specjax.drafters.ngram import NGram
from specjax.drafters.none import NoDraft

__all__ = ["ModelDrafter", "NGram", "NoDraft"]
