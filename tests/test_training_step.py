"""The training step against plain NumPy, against itself on eight devices, and where there is nothing to learn."""

import json
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import tiny_training
from tiny_training import TableKind, batch, program, train

from specjax.training import losses, step
from specjax.training.plan import Optimizer


def leaves(state):
    return [np.asarray(x) for x in jax.tree.leaves((state.params, state.optimizer))]


def test_a_first_step_is_adamw_on_the_mean_gradient():
    """Over all rows and places, clipped; only the table decays."""
    made = program(warmup=0, clip=0.01, weight_decay=0.5)
    params, one = TableKind().init(), batch(1)

    def mean(params):
        rows = jax.tree.map(jnp.asarray, one)
        places = TableKind().logits(params, {"scale": jnp.float32(1.5)}, rows)
        return losses.mean(*losses.total(places, rows, made.loss, decay=0.5, place_V=tiny_training.PLACE_V))

    loss, gradient = jax.jit(jax.value_and_grad(mean))(jax.tree.map(jnp.asarray, params))
    norm = np.sqrt(sum(np.sum(np.square(g)) for g in jax.tree.leaves(gradient)))
    clipped = {name: np.asarray(g) * min(1, 0.01 / norm) for name, g in gradient.items()}
    updated = {name: g / (np.abs(g) + 1e-8) for name, g in clipped.items()}  # both moments are the gradient's own, unbiased
    updated["table_VU"] = updated["table_VU"] + 0.5 * params["table_VU"]
    state = train(made, [one])
    for name, x in params.items():
        np.testing.assert_allclose(state.params[name], x - 0.1 * updated[name], rtol=2e-5, atol=2e-6)
    np.testing.assert_allclose(state.sums["norm"], norm, rtol=1e-5)
    np.testing.assert_allclose(state.sums["loss"] / state.sums["weight"], loss, rtol=1e-5)
    assert float(state.sums["tokens"]) == 8 * 10 and int(state.step) == 1 and int(state.skipped) == 0


def test_parts_of_a_batch_are_weighed_by_what_counts_in_them():
    one = batch(2)
    uneven = one._replace(mask_BT=one.mask_BT & (np.arange(8) % 2 == 0)[:, None] | (np.arange(8) == 1)[:, None])
    whole, parts = train(program(), [uneven] * 3), train(program(accumulate=2), [uneven] * 3)
    for a, b in zip(leaves(whole), leaves(parts), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7)


def test_a_batch_in_which_nothing_counts_is_skipped_and_counted():
    none = batch(3)._replace(mask_BT=np.zeros((8, tiny_training.T), bool))
    plain, skipping = train(program(), [batch(1), batch(2)]), train(program(), [batch(1), none, batch(2)])
    assert int(skipping.skipped) == 1 and int(skipping.step) == 3 and int(skipping.failed) == -1
    assert float(skipping.sums["steps"]) == 2 and skipping.sums["norm"] == plain.sums["norm"]  # their ratio is reported
    assert all(np.array_equal(a, b) for a, b in zip(leaves(plain), leaves(skipping), strict=True))


def test_what_is_not_finite_changes_nothing_from_there_on():
    bad = batch(2)
    bad = bad._replace(law=bad.law._replace(p_XN=np.full_like(bad.law.p_XN, np.nan)))
    before, after = train(program(), [batch(1)]), train(program(), [batch(1), bad, batch(2)])
    assert int(after.failed) == 1 and int(before.failed) == -1  # counted from 0: the second step
    assert all(np.array_equal(a, b) for a, b in zip(leaves(before), leaves(after), strict=True))


def test_parameters_stay_float32_where_the_passes_are_bfloat16():
    wide, narrow = train(program(), [batch(1)]), train(program(dtype="bfloat16"), [batch(1)])
    assert {x.dtype for x in jax.tree.leaves(narrow.params)} == {np.dtype(np.float32)}
    loss, rough = (float(s.sums["loss"] / s.sums["weight"]) for s in (wide, narrow))
    assert loss != rough and abs(loss - rough) < 0.02 * loss


def test_the_learning_rate_rises_in_a_line_and_falls_in_a_cosine():
    rate = step.schedule(Optimizer(steps=104, learning_rate=0.2, warmup=4, floor=0.1))
    np.testing.assert_allclose([rate(0), rate(2), rate(4), rate(54), rate(104)], [0.04, 0.12, 0.2, 0.11, 0.02], rtol=1e-5)


def test_only_matrices_decay():
    params = {"layers": {"0": {"qkv_bias_GJC": np.ones((1, 2, 3)), "up_DUF": np.ones((1, 2, 3)), "mlp_norm_D": np.ones(3)}}}
    decays = step._matrices(params)["layers"]["0"]
    assert decays == {"qkv_bias_GJC": False, "up_DUF": True, "mlp_norm_D": False}


def test_shares_of_eight_devices_give_the_losses_of_one():
    """Twenty steps, in a process that has eight."""
    done = subprocess.run([sys.executable, __file__], capture_output=True, text=True, check=True)
    alone, together = json.loads(done.stdout)
    assert len(alone) == 20 and alone[-1] < 0.8 * alone[0]
    np.testing.assert_allclose(alone, together, rtol=0, atol=1e-5)


def on_devices(devices) -> list[float]:
    made, said = program(devices), []
    state = step.start(made, made.kind.init())
    for i in range(20):
        state = train(made, [batch(i % 3)], state._replace(sums=step.everywhere(made.mesh, step.no_sums())))
        said.append(float(state.sums["loss"] / state.sums["weight"]))
    assert len(state.params["table_VU"].sharding.device_set) == len(devices)
    return said


if __name__ == "__main__":
    jax.config.update("jax_num_cpu_devices", 8)
    print(json.dumps([on_devices(jax.devices()[:1]), on_devices(jax.devices())]))
