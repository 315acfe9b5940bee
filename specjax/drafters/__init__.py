"""Drafters, one method a file."""

from specjax.drafters.best_first import BestFirst
from specjax.drafters.combined import Combined
from specjax.drafters.eagle3 import Eagle3Drafter
from specjax.drafters.early_exit import EarlyExit
from specjax.drafters.model import ModelDrafter
from specjax.drafters.ngram import NGram
from specjax.drafters.none import NoDraft
from specjax.drafters.tree import TreeDrafter

__all__ = ["BestFirst", "Combined", "Eagle3Drafter", "EarlyExit", "ModelDrafter", "NGram", "NoDraft", "TreeDrafter"]
