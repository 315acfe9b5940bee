"""How good a draft is, in the loop's own terms, without running the loop: from its laws along held-out texts of the target's own.

A *root* is a row t from which a draft may begin: token t + 1 is to be learnt. The draft's (j + 1)-th token stands at row t + j of place j.
At temperature 0 on the target's greedy text this is exact: a draft is kept as long as it says what the text says, so that what is drafted
after kept tokens is what the rows hold. At temperature 1 a root's drafts 1 .. k are all kept with the product of their overlaps, along
texts that the target drew: an expectation. For the loop both are a prediction: its rounds begin where the one before ended, not at every
row, and above temperature 0 its texts go on with accepted tokens.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from specjax.sampling import first_argmax
from specjax.theory.latency import expected_tokens_from_rates
from specjax.training.losses import outcomes
from specjax.training.rows import Batch, counts, following
from specjax.training.targets import reduced
from specjax.types import Array


class Tally(NamedTuple):
    """Sums over rows, one entry a place; those of several batches are added (`add`)."""

    overlap_K: Array  # of the rows that count
    rows_K: Array
    reached_K: Array  # over roots that have this place: how likely all places before it are accepted
    kept_K: Array  # and this one too


def tally(logits, batch: Batch, temperature: float | None = None, place_V=None) -> Tally:
    """Of one batch; a pure function. logits, place_V: as `losses.total` takes them.

    temperature: None or 0, where the overlap is whether the two likeliest tokens are one, or 1, where it is 1 - TV(p, q). Of laws that name
    some tokens only these are summed: a lower bound. Rows without laws have the target's greedy text: its tokens are the likeliest.

    Raises:
      ValueError: another temperature, or 1 without laws.
    """
    if temperature not in (None, 0, 1):
        raise ValueError(f"evaluate.temperature={temperature} must be 0 or 1: laws are kept at temperature 1")
    if temperature and batch.law is None:
        raise ValueError(f"evaluate.temperature={temperature} needs the target's laws, and the rows hold none: score them, or take 0")
    overlap = _overlap if temperature else _agreement
    places = [(overlap(logits_BTU, batch, place_V), counts(batch) & valid_BT) for logits_BTU, valid_BT in logits]
    total = lambda keep_BT, x_BT: jnp.sum(jnp.where(keep_BT, x_BT, 0))
    overlap_K = [total(keep_BT, overlap_BT) for overlap_BT, keep_BT in places]
    rows_K = [total(keep_BT, jnp.ones_like(overlap_BT)) for overlap_BT, keep_BT in places]
    reached_K, kept_K = [], []
    reach_BT, has_BT = jnp.ones_like(places[0][0]), jnp.ones_like(places[0][1])
    for j, (overlap_BT, keep_BT) in enumerate(places):
        has_BT = has_BT & _at_root(keep_BT, j)
        reached_K.append(total(has_BT, reach_BT))
        reach_BT = reach_BT * _at_root(overlap_BT, j)
        kept_K.append(total(has_BT, reach_BT))
    return Tally(*map(jnp.stack, (overlap_K, rows_K, reached_K, kept_K)))


def _at_root(x_BT, j: int):
    """What row t + j holds, at row t; nothing past the end. Rows that count one after the other are of one text."""
    return jnp.pad(x_BT[:, j:], ((0, 0), (0, min(j, x_BT.shape[1]))))


def _overlap(logits_BTU, batch: Batch, place_V):
    law = batch.law if place_V is None else reduced(batch.law, place_V, logits_BTU.shape[-1])
    named, _ = outcomes(logits_BTU, law)
    return jnp.sum(jnp.minimum(named.p, named.q), axis=-1)


def _agreement(logits_BTU, batch: Batch, place_V):
    """1 where the draft's likeliest token is the target's, which a reduced vocabulary may not have; the first among equals."""
    said_BT, law = following(batch), batch.law
    if law is not None:
        said_BT = first_argmax(law.p_XN)
        if law.id_XN is not None:
            said_BT = jnp.take_along_axis(law.id_XN, said_BT[..., None], axis=-1)[..., 0]
    if place_V is not None:
        said_BT = jnp.asarray(place_V)[said_BT]
    return (first_argmax(logits_BTU) == said_BT).astype(jnp.float32)


def add(tallies) -> Tally:
    """The sum of tallies of several batches, in NumPy and float64."""
    return jax.tree.map(lambda *x: np.sum([np.asarray(one, np.float64) for one in x], axis=0), *tallies)


def figures(counted: Tally) -> dict:
    """What is reported: `overlap`, the mean of each place over all rows that count; `rate`, that of each place given that it was reached
    (0 where no root reached it); `tokens_per_pass`, predicted for drafts of all K places: 1 + a1 + a1 a2 + ...; `roots`, how many.

    Raises:
      ValueError: no row counts.
    """
    overlap_K, rows_K, reached_K, kept_K = (np.asarray(x, np.float64) for x in counted)
    if not reached_K[0]:
        raise ValueError("nothing to evaluate on: no held-out row has a token to be learnt")
    ratio = lambda a_K, b_K: np.divide(a_K, b_K, out=np.zeros_like(a_K), where=b_K > 0).tolist()
    rate_K = ratio(kept_K, reached_K)
    return {
        "overlap": ratio(overlap_K, rows_K),
        "rate": rate_K,
        "tokens_per_pass": expected_tokens_from_rates(rate_K),
        "roots": int(reached_K[0]),
    }
