"""Laws from logits against the oracle (which sorts), draws, and keys."""

from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import reference, sampling
from specjax.sampling import Sampling

TEMPERATURES = (0, 1e-6, 0.3, 1, 2)
TOP_P = (0, 1e-6, 0.5, 0.8, 1)
MIN_P = (0, 0.1, 0.5, 1)


def logits_of(vocab, rows=6):
    """Rows of flat, peaked, tied, all-equal and partly forbidden logits; ties at the maximum and further down."""
    rng = np.random.default_rng(vocab)
    logits = (3 * rng.normal(size=(rows, vocab))).astype(np.float32)
    logits[0] /= 10
    logits[1] = np.round(logits[1])
    logits[2] = 0.5
    logits[3, rng.integers(0, vocab, vocab // 2)] = -np.inf
    logits[3, 0] = 1.0
    logits[4, [1, -1]] = logits[4].max() + 1
    return logits


def numbers(temperature, top_k, top_p, min_p):
    return Sampling(temperature=np.float32(temperature), top_k=np.int32(top_k), top_p=np.float32(top_p), min_p=np.float32(min_p))


@pytest.mark.parametrize(("vocab", "top_ks"), [(5, (1, 2, 3, 5, 9)), (300, (1, 2, 40, 63, 64, 65, 150, 300))])
def test_law_equals_the_oracles_in_every_combination_with_one_program(vocab, top_ks):
    traced = []

    @jax.jit
    def law(logits, numbers):
        traced.append(1)
        return sampling.law(logits, numbers)

    logits = logits_of(vocab)
    for temperature, *filters in product(TEMPERATURES, top_ks, TOP_P, MIN_P):
        ours = law(logits, numbers(temperature, *filters))
        assert ours.dtype == jnp.float32
        for row, p in zip(logits, np.asarray(ours), strict=True):
            expected = reference.law(row, temperature, *filters)
            np.testing.assert_allclose(p, expected, atol=1e-6, err_msg=str((temperature, filters)))
            assert set(np.flatnonzero(p)) <= set(np.flatnonzero(expected))
    assert len(traced) == 1


@pytest.mark.parametrize("present", list(product([False, True], repeat=3)))
@pytest.mark.parametrize("vocab", [5, 300])
def test_a_filter_left_out_is_a_filter_that_keeps_all(vocab, present):
    values = [v if on else None for v, on in zip((3, 0.7, 0.2), present, strict=True)]
    logits = logits_of(vocab)
    ours = sampling.law(logits, Sampling(temperature=0.8, **dict(zip(("top_k", "top_p", "min_p"), values, strict=True))))
    expected = [reference.law(row, 0.8, *values) for row in logits]
    np.testing.assert_allclose(ours, expected, atol=1e-6)


def test_no_temperature_is_the_one_hot_law_of_the_first_maximum():
    ours = sampling.law(jnp.array([[1.0, 3.0, 3.0], [2.0, -jnp.inf, 0.0]]), Sampling())
    np.testing.assert_array_equal(ours, [[0, 1, 0], [1, 0, 0]])


def test_a_rows_law_does_not_depend_on_its_neighbours():
    logits = logits_of(300)
    one = numbers(2.0, 150, 0.8, 0)
    together = sampling.law(logits, one)
    for row, law in zip(logits, together, strict=True):
        np.testing.assert_array_equal(sampling.law(row[None], one)[0], law)


@pytest.mark.parametrize("shape", [(3, 300), (2, 3, 300), (300,)])
def test_law_takes_leading_axes(shape):
    logits = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    ours = np.asarray(sampling.law(logits, numbers(1.5, 200, 0.8, 0.01))).reshape(-1, 300)
    expected = [reference.law(row, 1.5, 200, 0.8, 0.01) for row in logits.reshape(-1, 300)]
    np.testing.assert_allclose(ours, expected, atol=1e-6)


def test_a_bfloat16_model_gets_a_float32_law():
    logits = jnp.asarray(logits_of(300), jnp.bfloat16)
    ours = sampling.law(logits, numbers(0.7, 50, 0.9, 0))
    expected = [reference.law(row, 0.7, 50, 0.9, 0) for row in np.asarray(logits, np.float64)]
    assert ours.dtype == jnp.float32
    np.testing.assert_allclose(ours, expected, atol=1e-6)


def test_a_float64_law_is_exact_where_64_bit_is_on():
    with jax.enable_x64(True):
        logits = np.random.default_rng(0).normal(size=(4, 300))
        ours = np.asarray(sampling.law(jnp.asarray(logits), Sampling(temperature=1.5, top_k=200, top_p=0.8, min_p=0.01)))
    assert ours.dtype == np.float64
    np.testing.assert_allclose(ours, [reference.law(row, 1.5, 200, 0.8, 0.01) for row in logits], atol=1e-15)


# ---------------------------------------------------------------- settings


@pytest.mark.parametrize("temperature", [None, 0, 1e-6])
def test_a_temperature_of_zero_becomes_the_greedy_structure(temperature):
    assert sampling.checked(Sampling(temperature=temperature, top_p=0.5, coupled=True)) == Sampling()


def test_checked_numbers_have_one_type_each():
    one, other = (
        sampling.checked(Sampling(temperature=1, top_k=5)),
        sampling.checked(Sampling(temperature=0.5, top_k=7)),
    )
    types = [jax.tree.map(lambda x: x.dtype, s) for s in (one, other)]
    assert types[0] == types[1] == Sampling(temperature=np.dtype("float32"), top_k=np.dtype("int32"))


@pytest.mark.parametrize(
    ("field", "value", "right"),
    [
        ("temperature", -0.1, "0 and inf"),
        ("temperature", float("nan"), "0 and inf"),
        ("top_k", 0, "1 and 2147483647"),
        ("top_p", 1.1, "0 and 1"),
        ("min_p", -1, "0 and 1"),
    ],
)
def test_a_number_out_of_range_is_refused(field, value, right):
    with pytest.raises(ValueError, match=f"^draft.{field}={value} must be between {right}$"):
        sampling.checked(Sampling(**{"temperature": 1.0, field: value}), "draft")


# ---------------------------------------------------------------- residual


@pytest.mark.parametrize(
    ("p", "q"),
    [
        ([0.3, 0.5, 0.2], [0.6, 0.3, 0.1]),
        ([0.3, 0.5, 0.2], [0.3, 0.5, 0.2]),
        ([0.3, 0.5, 0.2], [1, 0, 0]),
        ([0, 1, 0], [0, 1, 0]),
    ],
)
def test_residual_equals_the_oracles(p, q):
    p, q = np.array(p, np.float32), np.array(q, np.float32)
    np.testing.assert_allclose(sampling.residual(p, q), reference.residual(p, q), atol=1e-7)


# ---------------------------------------------------------------- draws and keys


@pytest.mark.parametrize("seed", range(3))
def test_draw_is_the_oracles_choice_under_the_same_noise(seed):
    rng = np.random.default_rng(seed)
    law = rng.dirichlet(np.full(7, 0.3), 64).astype(np.float32)
    law[:, 2] = 0
    keys = jax.random.split(jax.random.key(seed), 64)
    gumbel = -np.log(np.asarray(sampling.noise(keys, 7)))
    np.testing.assert_array_equal(sampling.draw(keys, law), [reference.pick(p, g) for p, g in zip(law, gumbel, strict=True)])


def test_a_certain_token_is_drawn_and_a_zero_never():
    keys = jax.random.split(jax.random.key(0), 1000)
    np.testing.assert_array_equal(sampling.draw(keys, np.tile(np.float32([0, 1, 0]), (1000, 1))), 1)
    assert set(np.asarray(sampling.draw(keys, np.tile(np.float32([0.0, 1e-30, 0.0]), (1000, 1))))) == {1}


def test_frequencies_of_draws():
    law = np.array([0.5, 0.3, 0.15, 0.05, 0], np.float32)
    drawn = sampling.draw(jax.random.split(jax.random.key(0), 20_000), np.tile(law, (20_000, 1)))
    seen = np.bincount(drawn, minlength=5)
    assert seen[4] == 0
    assert np.sum((seen[:4] - 20_000 * law[:4]) ** 2 / (20_000 * law[:4])) < 16.3  # 3 degrees of freedom, p = .001


def test_the_stop_is_the_oracles_under_the_same_uniform():
    keys = jax.random.split(jax.random.key(0), 200)
    stop = np.random.default_rng(0).dirichlet(np.full(4, 0.5), 200).astype(np.float32)
    stop[::3, 2] = 0
    stop /= stop.sum(1, keepdims=True)
    u = np.asarray(jax.vmap(jax.random.uniform)(keys))
    expected = [reference._stop(row, x) for row, x in zip(stop, u, strict=True)]
    np.testing.assert_array_equal(sampling.draw_node(keys, stop), expected)
    assert set(expected) == {0, 1, 2, 3}


def test_a_sum_short_of_one_ends_at_the_last_possible_node():
    keys = jax.random.split(jax.random.key(0), 50)
    assert set(np.asarray(sampling.draw_node(keys, np.tile(np.float32([1e-9, 1e-9, 0, 0]), (50, 1))))) <= {1}


def test_keys_of_different_purpose_prompt_or_place_differ_and_a_rows_key_is_its_own():
    seed, ids = jax.random.key(0), jnp.array([7, 8], jnp.uint32)
    keys = [
        *[sampling.key(seed, purpose, ids, jnp.array([3, 3])) for purpose in range(4)],
        sampling.key(seed, sampling.DRAFT, ids, jnp.array([4, 5])),
        sampling.key(seed, sampling.DRAFT, ids, jnp.array([3, 3]), 1),
        sampling.key(seed, sampling.DRAFT, ids, jnp.array([3, 3]), 2),
        sampling.key(jax.random.key(1), sampling.DRAFT, ids, jnp.array([3, 3])),
    ]
    data = np.concatenate([jax.random.key_data(k) for k in keys])
    assert len(np.unique(data, axis=0)) == len(data) == 16
    alone = sampling.key(seed, sampling.STOP, ids[1:], jnp.array([3]))
    np.testing.assert_array_equal(jax.random.key_data(alone)[0], jax.random.key_data(keys[sampling.STOP])[1])
