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

__all__ = [
    "Prediction",
    "best_k",
    "coupled_agreement",
    "coupled_lower_bound",
    "expected_tokens",
    "expected_tokens_from_rates",
    "lenient_acceptance",
    "lower_bound",
    "one_hot",
    "ops_factor",
    "oracle_tokens",
    "overlap",
    "predict",
    "rates_from_rounds",
    "sample_and_match",
    "speedup",
    "width",
]
