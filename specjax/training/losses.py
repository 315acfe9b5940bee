"""Losses of distillation: each is `loss(logits_XU, law, token_X) -> loss_X`, at places X, for a draft of U tokens.

law: the target's, in draft ids (`targets.reduced`). token_X: draft index of the text's next token, U where the draft cannot say it.
All are losses between laws over N + 2 outcomes: the tokens that the law names; "any other", which has the law's rest under p and what the
draft puts on unnamed tokens under q; and named tokens that the draft cannot say, where q is 0. A whole law names all U tokens: its rest
holds only what the draft cannot say.
Laws are at temperature 1, float32 or wider whatever the logits' dtype; values and gradients are finite wherever the logits are.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from specjax.training.rows import Batch, counts, following
from specjax.training.targets import TargetLaw, reduced
from specjax.types import Array

NOTHING = -1e30  # stands for log 0 where a logarithm is compared, never where it is multiplied
TINY = float(np.finfo(np.float32).tiny)  # e^-87, the least normal number of float32


class Outcome(NamedTuple):
    """Both laws at some outcomes: all named ones [..., N], or any other [...]."""

    p: Array
    log_p: Array  # p under e^-87 counts as that, so that a draft pays for what the target never says
    q: Array
    log_q: Array  # 0 where not said
    said: Array  # bool: whether the draft can say it at all


def outcomes(logits_XU, law: TargetLaw) -> tuple[Outcome, Outcome]:
    """(the named tokens, any other)."""
    dtype = np.promote_types(np.promote_types(logits_XU.dtype, law.p_XN.dtype), jnp.float32)
    log_XU = jax.nn.log_softmax(logits_XU.astype(dtype), axis=-1)
    if law.id_XN is None:
        log_XN, other_X = log_XU, jnp.full_like(log_XU[..., 0], -jnp.inf)
    else:
        log_XN = jnp.take_along_axis(log_XU, law.id_XN, axis=-1, mode="fill", fill_value=-jnp.inf)
        other_X = _log_sum(_without(log_XU, law.id_XN))
    return _outcome(law.p_XN.astype(dtype), log_XN), _outcome(law.rest_X.astype(dtype), other_X)


def _outcome(p, log_q) -> Outcome:
    said = log_q > -jnp.inf
    log_q = jnp.where(said, log_q, 0)
    log_p = jnp.log(jnp.maximum(p, TINY))
    return Outcome(p, log_p, jnp.where(said, jnp.exp(log_q), 0), log_q, said)


def _without(log_XU, id_XN):
    """-inf at the named tokens; an id of U is none."""
    nothing_XN = jnp.full(id_XN.shape, -jnp.inf, log_XU.dtype)
    return jnp.put_along_axis(log_XU, id_XN, nothing_XN, axis=-1, inplace=False, mode="drop")


def _log_sum(log_XU):
    """log of the sum of exponentials; -inf, with gradient zero, where there is nothing to add."""
    peak = jax.lax.stop_gradient(jnp.max(log_XU, axis=-1, keepdims=True))
    some = peak[..., 0] > -jnp.inf
    mass = jnp.sum(jnp.exp(log_XU - jnp.where(some[..., None], peak, 0)), axis=-1)
    return jnp.where(some, jnp.log(jnp.where(some, mass, 1)) + peak[..., 0], -jnp.inf)


def summed(term, logits_XU, law: TargetLaw):
    """The sum over all outcomes of term(outcome)."""
    named, other = outcomes(logits_XU, law)
    both = jnp.sum(term(named), axis=-1) + term(other)
    if law.lost_X is None:
        return both
    lost_X = law.lost_X.astype(other.p.dtype)
    return both + term(_outcome(lost_X, jnp.full_like(lost_X, -jnp.inf)))


def total_variation(logits_XU, law: TargetLaw):
    """TV(p, q) = 1/2 sum |p - q|, [...]; the overlap is 1 less it."""
    return summed(lambda o: jnp.abs(o.p - o.q), logits_XU, law) / 2


# ---------------------------------------------------------------- the losses


@dataclasses.dataclass(frozen=True)
class CE:
    """-log q(x) of the text's next token x. 0 where the draft cannot say x: the place teaches nothing, yet counts as a row."""

    name = "ce"
    needs_law = False
    reads_text = True
    paper = "maximum likelihood; sequence-level distillation where the text is the target's own (Kim & Rush 2016, 1606.07947)"
    equation = "-log q(x)"

    def __call__(self, logits_XU, law, token_X):
        log_XU = jax.nn.log_softmax(logits_XU.astype(np.promote_types(logits_XU.dtype, jnp.float32)), axis=-1)
        said_X = token_X < log_XU.shape[-1]
        log_X = jnp.take_along_axis(log_XU, jnp.where(said_X, token_X, 0)[..., None], axis=-1)[..., 0]
        return jnp.where(said_X, -log_X, 0)


@dataclasses.dataclass(frozen=True)
class ForwardKL:
    """KL(p || q). What the draft cannot say would cost infinitely much whatever it does, so p is normed over what it can say: with s its
    mass there, s KL(p / s || q). The gradient is that of the whole."""

    name = "forward_kl"
    needs_law = True
    paper = "Hinton et al. 2015, 1503.02531; DistillSpec, Zhou et al. 2023, 2310.08461"
    equation = "sum p log(p / q)"

    def __call__(self, logits_XU, law, token_X):
        apart_X = summed(lambda o: jnp.where(o.said, o.p * (o.log_p - o.log_q), 0), logits_XU, law)
        mass_X = summed(lambda o: jnp.where(o.said, o.p, 0), logits_XU, law)
        return apart_X - mass_X * jnp.log(jnp.maximum(mass_X, TINY))


@dataclasses.dataclass(frozen=True)
class ReverseKL:
    """KL(q || p), with p at least e^-87, see `Outcome`."""

    name = "reverse_kl"
    needs_law = True
    paper = "MiniLLM, Gu et al. 2023, 2306.08543; DistillSpec, 2310.08461"
    equation = "sum q log(q / p)"

    def __call__(self, logits_XU, law, token_X):
        return summed(lambda o: o.q * (o.log_q - o.log_p), logits_XU, law)


@dataclasses.dataclass(frozen=True)
class JSD:
    """The generalised Jensen-Shannon divergence, m = beta p + (1 - beta) q. Divided by beta it nears KL(p || q) as beta nears 0.

    Raises:
      ValueError: beta is not between 0 and 1, both excluded.
    """

    beta: float = 0.5

    name = "jsd"
    needs_law = True
    paper = "GKD, Agarwal et al. 2023, 2306.13649, eq. 1; DistillSpec, 2310.08461"
    equation = "beta KL(p || m) + (1 - beta) KL(q || m), m = beta p + (1 - beta) q"

    def __post_init__(self):
        if not 0 < self.beta < 1:
            raise ValueError(f"loss.beta={self.beta} must be above 0 and below 1; the ends are forward_kl and reverse_kl")

    def __call__(self, logits_XU, law, token_X):
        def term(o):
            log_q = jnp.where(o.said, o.log_q, NOTHING)
            log_m = jnp.logaddexp(o.log_p + np.log(self.beta).astype(o.p.dtype), log_q + np.log1p(-self.beta).astype(o.p.dtype))
            return self.beta * o.p * (o.log_p - log_m) + (1 - self.beta) * o.q * (o.log_q - log_m)

        return summed(term, logits_XU, law)


@dataclasses.dataclass(frozen=True)
class TVD:
    """TV(p, q): one minus the acceptance of the p/q rule. Its gradient -q (1[q < p] - E_q 1[q < p]) vanishes where they hardly overlap."""

    name = "tvd"
    needs_law = True
    paper = "DistillSpec, Zhou et al. 2023, 2310.08461"
    equation = "1/2 sum |p - q|"

    def __call__(self, logits_XU, law, token_X):
        return total_variation(logits_XU, law)


@dataclasses.dataclass(frozen=True)
class NLA:
    """-log of the acceptance; in logarithms throughout, so that it pulls from afar too. 0 where the draft can say nothing of p."""

    name = "nla"
    needs_law = True
    paper = "LK losses 2026, 2602.23881"
    equation = "-log sum min(p, q)"

    def __call__(self, logits_XU, law, token_X):
        named, other = (jnp.where(o.said & (o.p > 0), jnp.minimum(o.log_p, o.log_q), NOTHING) for o in outcomes(logits_XU, law))
        log_X = jnp.logaddexp(jax.nn.logsumexp(named, axis=-1), other)
        return jnp.where(log_X > NOTHING / 2, -log_X, 0)


@dataclasses.dataclass(frozen=True)
class LK:
    """The hybrid: KL far away, TV near by. No gradient passes through lam.

    Raises:
      ValueError: eta is negative.
    """

    eta: float = 3.0

    name = "lk"
    needs_law = True
    paper = "LK losses 2026, 2602.23881"
    equation = "lam KL(p || q) + (1 - lam) TV(p, q), lam = exp(-eta alpha), alpha = 1 - TV"

    def __post_init__(self):
        if not self.eta >= 0:
            raise ValueError(f"loss.eta={self.eta} must be at least 0")

    def __call__(self, logits_XU, law, token_X):
        tv_X, kl_X = total_variation(logits_XU, law), ForwardKL()(logits_XU, law, token_X)
        lam_X = jax.lax.stop_gradient(jnp.exp(-self.eta * (1 - tv_X)))
        return lam_X * kl_X + (1 - lam_X) * tv_X


@dataclasses.dataclass(frozen=True)
class CEL1:
    """Cross-entropy on the text and the distance of the laws, as DSpark weighs them (without its confidence head).

    Raises:
      ValueError: a weight is negative, or both are 0.
    """

    ce: float = 0.1
    l1: float = 0.9

    name = "ce_l1"
    needs_law = True
    reads_text = True
    paper = "DSpark 2026, 2607.05147"
    equation = "ce CE + l1 sum |p - q|"

    def __post_init__(self):
        for name, weight in dataclasses.asdict(self).items():
            if not weight >= 0:
                raise ValueError(f"loss.{name}={weight} must be at least 0")
        if not self.ce + self.l1 > 0:
            raise ValueError("loss.ce=0 with l1=0 teaches nothing: one of them must be above 0")

    def __call__(self, logits_XU, law, token_X):
        return self.ce * CE()(logits_XU, law, token_X) + self.l1 * 2 * total_variation(logits_XU, law)


@dataclasses.dataclass(frozen=True)
class Weighted:
    """A weighted sum of losses: parts are (weight, loss).

    Raises:
      ValueError: there is no part, or a weight is not above 0.
    """

    parts: tuple[tuple[float, object], ...]

    name = "weighted"

    def __post_init__(self):
        if not self.parts:
            raise ValueError("loss=[] must have at least one part")
        for weight, loss in self.parts:
            if not weight > 0:
                raise ValueError(f"loss: weight={weight} of {loss.name} must be above 0")

    @property
    def needs_law(self) -> bool:
        return any(loss.needs_law for _, loss in self.parts)

    @property
    def reads_text(self) -> bool:
        """Whether a part learns the text's own tokens, which must then be the target's."""
        return any(getattr(loss, "reads_text", False) for _, loss in self.parts)

    def __call__(self, logits_XU, law, token_X):
        return sum(weight * loss(logits_XU, law, token_X) for weight, loss in self.parts)


ALL = (CE, ForwardKL, ReverseKL, JSD, TVD, NLA, LK, CEL1)


# ---------------------------------------------------------------- of a batch


def total(logits, batch: Batch, loss, *, decay: float = 1.0, place_V=None):
    """(sum of the loss, number of rows) over all places of a draft and all rows that count; `mean` makes one of them.

    logits: list of (logits_BTU, valid_BT), one entry a place. decay: a row of place j weighs decay**j, in the sum and in the number, so
    that the mean is a weighted one. place_V: draft index of each target id (`targets.place_of`); None: the draft says all, in order.
    Rows that do not count may hold anything, NaN included: neither value nor gradient sees them.
    """
    if loss.needs_law and batch.law is None:
        raise ValueError(f"loss {loss.name!r} needs the target's laws, and the rows hold none: score them, or take 'ce'")
    size = logits[0][0].shape[-1]
    token_BT, law, counted_BT = following(batch), batch.law, counts(batch)
    if place_V is not None:
        token_BT, law = jnp.asarray(place_V)[token_BT], law and reduced(law, place_V, size)
    weighed: dict[int, tuple[Array, Array]] = {}  # a language model has one array at all places: its loss is computed once
    for place, (logits_BTU, valid_BT) in enumerate(logits):
        weight_BT = decay**place * (counted_BT & valid_BT).astype(jnp.float32)
        _, before_BT = weighed.get(id(logits_BTU), (None, jnp.zeros_like(weight_BT)))
        weighed[id(logits_BTU)] = logits_BTU, before_BT + weight_BT
    summed_up, number = 0.0, 0.0
    for logits_BTU, weight_BT in weighed.values():
        kept_BT = weight_BT > 0
        loss_BT = loss(jnp.where(kept_BT[..., None], logits_BTU, 0), law, token_BT)
        summed_up += jnp.sum(jnp.where(kept_BT, weight_BT.astype(loss_BT.dtype) * loss_BT, 0))
        number += jnp.sum(weight_BT)
    return summed_up, number


def mean(summed_up, number):
    """Their ratio; 0 where no row counted."""
    return jnp.where(number > 0, summed_up / jnp.where(number > 0, number, 1), 0)
