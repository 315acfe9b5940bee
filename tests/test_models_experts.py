"""A mixture of experts against the sum written out, in both of its forms."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.models import experts

D, E, X, K = 5, 6, 4, 2
RNG = np.random.default_rng(0)
ROUTER, UP, DOWN = RNG.normal(size=(D, E)), RNG.normal(size=(E, D, 2, X)), RNG.normal(size=(E, X, D))


def by_hand(x_ND, norm, up=UP):
    out = np.zeros_like(x_ND)
    for n, x in enumerate(x_ND):
        probability = np.exp(x @ ROUTER) / np.exp(x @ ROUTER).sum()
        chosen = np.argsort(-probability)[:K]
        for e in chosen:
            gate, value = x @ up[e][:, 0], x @ up[e][:, 1]
            weight = probability[e] / (probability[chosen].sum() if norm else 1)
            out[n] += weight * ((gate / (1 + np.exp(-gate)) * value) @ DOWN[e])
    return out


def mixture(x_ND, norm=False, up=UP):
    with jax.enable_x64(True):
        return np.asarray(experts.mixture(*map(jnp.asarray, (x_ND, ROUTER, up, DOWN)), jax.nn.silu, K, norm))


@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("tokens", [1, 2, 3, 7])  # 2 x 2 choices are fewer than 6 experts, 3 x 2 are not
def test_both_forms_are_the_sum_over_the_chosen(tokens, norm):
    x_ND = RNG.normal(size=(tokens, D))
    np.testing.assert_allclose(mixture(x_ND, norm), by_hand(x_ND, norm), rtol=1e-12, atol=1e-12)


def test_few_tokens_read_the_kernels_that_they_wake():
    """The compiled form of 2 tokens has no product with all experts; that of 3 has no gathered kernels."""

    def products(tokens):
        specs = [jax.ShapeDtypeStruct(a.shape, np.float32) for a in (np.zeros((tokens, D)), ROUTER, UP, DOWN)]
        jaxpr = jax.make_jaxpr(lambda *arrays: experts.mixture(*arrays, jax.nn.silu, K, False))(*specs)
        return {v.aval.shape for eqn in jaxpr.eqns if eqn.primitive.name == "dot_general" for v in eqn.invars}

    assert UP.shape not in products(2)
    assert UP.shape in products(3)


@pytest.mark.parametrize("tokens", [1, 7])
def test_an_expert_that_was_not_chosen_is_not_felt(tokens):
    """Its overflow would be 0 x infinity in a sum over all experts."""
    x_ND = np.tile(RNG.normal(size=(1, D)), (tokens, 1))
    last = np.argsort(-(x_ND[0] @ ROUTER))[-1]
    spoilt = UP.copy()
    spoilt[last] = np.inf
    np.testing.assert_allclose(mixture(x_ND, up=spoilt), by_hand(x_ND, False), rtol=1e-12)
