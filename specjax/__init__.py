"""specjax: speculative decoding in JAX, exact and measured."""

from specjax.api import LM, Decoder, Output, generate, load, place, stream
from specjax.drafters import BestFirst, Combined, Eagle3Drafter, EarlyExit, ModelDrafter, NGram, NoDraft, TreeDrafter
from specjax.lengths import Confidence, Fixed, Heuristic, Optimal, match
from specjax.rules import Greedy, Lenient, SampleAndMatch, Speculative
from specjax.sampling import Sampling
from specjax.sharding import Layout, mesh_of
from specjax.trained import load_drafter

__version__ = "0.1.0"

__all__ = [
    "LM", "BestFirst", "Combined", "Confidence", "Decoder", "Eagle3Drafter", "EarlyExit", "Fixed", "Greedy", "Heuristic", "Layout",
    "Lenient", "ModelDrafter", "NGram", "NoDraft", "Optimal", "Output", "SampleAndMatch", "Sampling", "Speculative", "TreeDrafter",
    "generate", "load", "load_drafter", "match", "mesh_of", "place", "stream",
]  # fmt: skip
