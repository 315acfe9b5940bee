"""What speculative decoding should gain, in closed form."""

from specjax.theory.acceptance import (
    coupled_agreement,
    coupled_lower_bound,
    lenient_acceptance,
    one_hot,
    overlap,
    sample_and_match,
)
from specjax.theory.latency import (
    Prediction,
    expected_tokens,
    expected_tokens_from_rates,
    lower_bound,
    ops_factor,
    predict,
    rates_from_rounds,
    speedup,
    width,
)
from specjax.theory.optimum import best_k, oracle_tokens
from specjax.theory.trees import BestTree, best_tree, best_tree_of, expected_tokens_of_tree, rates_from_trees

__all__ = [
    "BestTree",
    "Prediction",
    "best_k",
    "best_tree",
    "best_tree_of",
    "coupled_agreement",
    "coupled_lower_bound",
    "expected_tokens",
    "expected_tokens_from_rates",
    "expected_tokens_of_tree",
    "lenient_acceptance",
    "lower_bound",
    "one_hot",
    "ops_factor",
    "oracle_tokens",
    "overlap",
    "predict",
    "rates_from_rounds",
    "rates_from_trees",
    "sample_and_match",
    "speedup",
    "width",
]
