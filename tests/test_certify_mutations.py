"""Known mistakes, each planted alone in a plainly written copy of a rule: every one must fail its certificate, with the wrong law that it
is known by. Without a mistake each copy passes."""

import functools

import jax.numpy as jnp
import numpy as np
import pytest

from specjax.certify import cases, exact_law, rule
from specjax.rules import chain
from specjax.rules.speculative import ratio
from specjax.sampling import residual
from specjax.types import Law, static, struct

SOFT_Q = [0.6, 0.3, 0.1, 0]  # case B's, from which an argmax draft takes token 0


class Copy:
    exact, one_hot_only, trees = True, False, False
    drawn = property(lambda self: (self.way,))


@struct
class Token(Copy):
    """The p/q rule."""

    mistake: str = static(default="")
    way: str = static(default="iid")
    name = "token"

    def __call__(self, tree, token_M, p_MV, q_MV):
        if self.mistake == "argmax draft scored with soft q":
            q_MV = jnp.broadcast_to(jnp.asarray(SOFT_Q, p_MV.dtype), p_MV.shape)
        refused_MV = p_MV if self.mistake == "residual replaced by p" else residual(p_MV, q_MV)
        bonus_MV = jnp.concatenate([p_MV[:1], p_MV[:-1]]) if self.mistake == "bonus from the wrong node" else p_MV
        return chain.law(tree, ratio(chain.at_child(token_M, p_MV), chain.at_child(token_M, q_MV)), refused_MV, bonus_MV)


@struct
class Block(Copy):
    """Block verification, equation by equation."""

    mistake: str = static(default="")
    way: str = static(default="iid")
    name = "block"

    def __call__(self, tree, token_M, p_MV, q_MV):
        has_M = chain.drafted(tree)
        weights = [jnp.ones((), p_MV.dtype)]
        for node, x in enumerate(token_M[1:]):
            weights.append(ratio(weights[-1] * p_MV[node, x], q_MV[node, x]))
        weight_M = jnp.stack(weights)
        left_MV = jnp.where(has_M[:, None], jnp.maximum(weight_M[:, None] * p_MV - q_MV, 0), p_MV)
        left_M = jnp.sum(left_MV, axis=-1)
        if self.mistake == "h_i from the laws of place i":
            left_M = jnp.roll(left_M, 1)
        accept_M = jnp.where(has_M, left_M / jnp.maximum(left_M + 1 - weight_M, 1e-30), weight_M)
        accept_M = jnp.where(tree.valid_M, accept_M, 0).at[0].set(1)
        if self.mistake == "stopping at the first miss":
            stop_M = jnp.cumprod(accept_M) * (1 - jnp.append(accept_M[1:], jnp.zeros(1, p_MV.dtype)))
        else:
            stop_M = accept_M * jnp.append(jnp.cumprod((1 - accept_M)[::-1])[::-1][1:], jnp.ones(1, p_MV.dtype))
        scaled_MV = p_MV if self.mistake == "residual without its factor" else weight_M[:, None] * p_MV
        return Law(stop_M, jnp.where(has_M[:, None], residual(scaled_MV, q_MV), p_MV))


@struct
class Rejection(Copy):
    """Recursive rejection on trees, child by child."""

    mistake: str = static(default="")
    way: str = static(default="iid")
    name, trees = "rejection", True

    def __call__(self, tree, token_M, p_MV, q_MV):
        stop_M = jnp.zeros_like(p_MV[:, 0]).at[0].set(1)
        for child in range(1, len(token_M)):
            node, x = tree.parent_M[child], token_M[child]
            judged = tree.valid_M[child]
            if self.mistake == "duplicates skipped":
                elder_M = (tree.parent_M == node) & (jnp.arange(len(token_M)) < child) & (tree.depth_M > 0)
                judged &= ~jnp.any(elder_M & (token_M == x))
            accept = jnp.where(judged, ratio(p_MV[node, x], q_MV[node, x]), 0)
            stop_M = stop_M.at[child].set(stop_M[node] * accept).at[node].multiply(1 - accept)
            p_MV = p_MV.at[node].set(jnp.where(judged, residual(p_MV[node], q_MV[node]), p_MV[node]))
            if self.way == "without_replacement" and self.mistake != "q not renormalised":
                rest_V = q_MV[node].at[x].set(0)
                q_MV = q_MV.at[node].set(jnp.where(judged, rest_V / jnp.maximum(jnp.sum(rest_V), 1e-30), q_MV[node]))
        return Law(stop_M, p_MV)


MISTAKES = {
    "residual replaced by p": (Token, "iid"),
    "argmax draft scored with soft q": (Token, "fixed"),
    "bonus from the wrong node": (Token, "iid"),
    "residual without its factor": (Block, "iid"),
    "stopping at the first miss": (Block, "iid"),
    "h_i from the laws of place i": (Block, "iid"),
    "q not renormalised": (Rejection, "without_replacement"),
    "duplicates skipped": (Rejection, "iid"),
}


@functools.cache
def verdict(copy, way, mistake=""):
    return rule.check(copy(mistake=mistake, way=way), ("float32",))


def mistaken(mistake, laws, widths):
    """The exact law of a mistake on a hand case."""
    copy, way = MISTAKES[mistake]
    return exact_law(copy(mistake=mistake, way=way), *cases.HAND[laws], len(widths), widths, nodes=cases.nodes(copy.trees))


@pytest.mark.parametrize(("copy", "way"), sorted(set(MISTAKES.values()), key=str))
def test_without_a_mistake_each_copy_passes(copy, way):
    assert verdict(copy, way).why == ""


@pytest.mark.parametrize("mistake", MISTAKES)
def test_every_mistake_fails(mistake):
    assert not verdict(*MISTAKES[mistake], mistake).passed


@pytest.mark.parametrize(
    ("mistake", "widths", "law"),
    [
        ("residual replaced by p", (1,), (0.39, 0.45, 0.16, 0)),
        ("argmax draft scored with soft q", (1,), (0.5, 1 / 3, 1 / 6, 0)),
        ("q not renormalised", (2,), (0.3, 0.525, 0.175, 0)),
        ("duplicates skipped", (3,), (0.3, 0.516, 0.184, 0)),
    ],
)
def test_the_wrong_law_of_the_first_token_on_case_b(mistake, widths, law):
    exact = mistaken(mistake, "B", widths)
    np.testing.assert_allclose(exact.first(exact.law_S), law, atol=1e-6)


@pytest.mark.parametrize(
    ("mistake", "laws", "distance", "accepted"),
    [
        ("residual without its factor", "A", 0.0033333333, 1.62),
        ("residual without its factor", "B", 0, 1.28),
        ("residual without its factor", "toy", 0, 11 / 9),
        ("stopping at the first miss", "A", 0.330952381, 0.9580952381),
        ("stopping at the first miss", "B", 0.3, 0.68),
        ("stopping at the first miss", "toy", 1 / 3, 5 / 9),
    ],
)
def test_the_wrong_law_of_three_tokens(mistake, laws, distance, accepted):
    exact = mistaken(mistake, laws, (1, 1))
    assert exact.total_variation == pytest.approx(distance, abs=1e-6)
    assert exact.expected_tokens - 1 == pytest.approx(accepted, abs=1e-6)


def test_case_a_is_there_for_the_missing_factor():
    """Neither B nor the toy shows it; and the place where it shows is told."""
    assert verdict(Block, "iid", "residual without its factor").why == (
        "iid: A, 1x1 (float32): tokens (1, 0, 0) have probability 0.076667, not 0.075000; total variation 0.00333 over 3 tokens"
    )


def test_a_wrong_bonus_shows_only_where_laws_depend_on_the_context():
    assert verdict(Token, "iid", "bonus from the wrong node").why.startswith("iid: Markov 1, 1 (float32): ")
