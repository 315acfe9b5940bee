"""What is sampled: the reported law is the drawn one under every filter, coins at their ends, and devices that change nothing."""

import itertools
import json
import os
import pathlib
import subprocess
import sys

import jax
import numpy as np
import pytest
from loop import drafter, lm, mixed, random_lm
from test_decode_law import P, Q, close, first_token

import specjax
from specjax import Sampling, reference, sampling
from specjax.certify.chi_squared import p_value

V = 5
OFF, ON = dict(top_k=V, top_p=1.0, min_p=0.0), dict(top_k=3, top_p=0.8, min_p=0.25)
TARGET, DRAFT = (random_lm(seed, order=1, vocab=V, flat=1.0) for seed in (30, 31))


@pytest.mark.parametrize("temperature", [0.6, 2.0])
@pytest.mark.parametrize("present", list(itertools.product([False, True], repeat=3)), ids=str)
def test_drafts_are_drawn_from_the_law_that_is_reported(temperature, present):
    """Both drafts of 5,000 rows; one program serves all sixteen cases, since filters are numbers."""
    filters = {name: (ON if on else OFF)[name] for name, on in zip(OFF, present, strict=True)}
    law = np.array([reference.law(row, temperature, **filters) for row in DRAFT.params])
    decoder = specjax.Decoder(
        TARGET, drafter=drafter(DRAFT, 2), sampling=Sampling(temperature=1.0), draft_sampling=Sampling(temperature=temperature, **filters)
    )
    state = decoder.generate(decoder.prefill(decoder.start([[0]] * 5_000, 3)))
    token_BM, q_BM = np.asarray(state.trace.token_BNM[:, 0]), np.asarray(state.trace.q_BNM[:, 0])
    for node in (1, 2):
        before, drawn = token_BM[:, node - 1], token_BM[:, node]
        np.testing.assert_allclose(q_BM[:, node], law[before, drawn], rtol=1e-5)
    counts = np.zeros((V, V))
    np.add.at(counts, (token_BM[:, 1], token_BM[:, 2]), 1)
    assert p_value(counts.reshape(1, -1), (law[0][:, None] * law * counts.sum()).reshape(1, -1)) > 1e-4


def test_an_argmax_draft_has_a_one_hot_law_and_stays_exact():
    """Case B: scored by its soft law it would give (.5, 1/3, 1/6)."""
    decoder = specjax.Decoder(lm(P), drafter=drafter(lm(Q), 1), sampling=Sampling(temperature=1.0), draft_sampling=Sampling())
    law = first_token(decoder, 40_000)
    np.testing.assert_allclose(law, P, atol=0.012)
    state = decoder.generate(decoder.prefill(decoder.start([[0]] * 50, 2)))
    assert (state.trace.token_BNM[:, 0, 1] == 0).all() and (state.trace.q_BNM[:, 0, 1] == 1).all()
    with pytest.raises(AssertionError):
        close(law, [0.5, 1 / 3, 1 / 6])


@pytest.mark.parametrize(("coin", "stops"), [(0.0, [1, 0, 2, 0]), (1 - 2.0**-24, [2, 0, 2, 1])])
def test_a_coin_at_either_end_never_stops_where_that_is_impossible(monkeypatch, coin, stops):
    """A draft with p(x) = 0 is refused and one that cannot be refused is kept, with the smallest coin and the largest."""
    monkeypatch.setattr(jax.random, "uniform", lambda key, dtype: jax.numpy.asarray(coin, dtype))
    stop_BM = np.array([[0, 0.4, 0.6], [1, 0, 0], [0, 0, 1], [0.5, 0.5, 0]], np.float32)
    assert sampling.draw_node(jax.random.split(jax.random.key(0), 4), stop_BM).tolist() == stops


def test_the_same_seed_gives_the_same_rows_on_another_number_of_devices():
    """Four rows over four devices, in a process of its own, and over one."""
    code = "import test_behaviours_sampling as t; t.print_sharded()"
    devices = {"XLA_FLAGS": os.environ["XLA_FLAGS"] + " --xla_force_host_platform_device_count=4", "JAX_PLATFORMS": "cpu"}
    paths = os.pathsep.join([str(pathlib.Path(specjax.__file__).parents[1]), str(pathlib.Path(__file__).parent)])
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, **devices, "PYTHONPATH": paths})
    assert done.returncode == 0, done.stderr
    here = run(jax.devices()[:1])
    assert json.loads(done.stdout) == here and len({str(row) for row in here}) == 4


def run(devices):
    """Token ids of four rows, one or more of them on each device."""
    target = random_lm(1)
    decoder = specjax.Decoder(target, drafter=drafter(mixed(target, 2)), sampling=Sampling(temperature=0.9), seed=4, ladder=(6,))
    state = decoder.prefill(decoder.start([[1], [2, 3], [4, 5, 6], [1]], 20))
    mesh = jax.sharding.Mesh(np.array(devices), "b", axis_types=(jax.sharding.AxisType.Auto,))
    spread, whole = (jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*axes)) for axes in (["b"], []))
    state = jax.tree.map(lambda x: jax.device_put(x, spread if x.ndim else whole), state)
    assert len(state.token_BS.sharding.device_set) == len(devices)
    return decoder.output(decoder.generate(state)).token_ids


def print_sharded():
    assert len(jax.devices()) == 4
    print(json.dumps(run(jax.devices())))
