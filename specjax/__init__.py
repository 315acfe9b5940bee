"""specjax: speculative decoding in JAX, exact and measured."""

from specjax.api import LM, Decoder, Output, generate, load, stream
from specjax.drafters import BestFirst, EarlyExit, ModelDrafter, NGram, NoDraft, TreeDrafter
from specjax.lengths import Fixed, Heuristic, match
from specjax.rules import Greedy, Lenient, SampleAndMatch, Speculative
from specjax.sampling import Sampling

__version__ = "0.1.0"

__all__ = [
    "LM", "BestFirst", "Decoder", "EarlyExit", "Fixed", "Greedy", "Heuristic", "Lenient", "ModelDrafter", "NGram", "NoDraft", "Output",
    "SampleAndMatch", "Sampling", "Speculative", "TreeDrafter", "generate", "load", "match", "stream",
]  # fmt: skip
