"""Drafters, one method a file."""

from specjax.drafters.early_exit import EarlyExit
from specjax.drafters.model import ModelDrafter
from specjax.drafters.ngram import NGram
from specjax.drafters.none import NoDraft

__all__ = ["EarlyExit", "ModelDrafter", "NGram", "NoDraft"]
