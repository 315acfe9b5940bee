"""The training step against plain NumPy, against itself on eight devices, and where there is nothing to learn."""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import tiny_training
from tiny_training import TableKind, batch, program, train

import specjax
from specjax.training import losses, step, targets
from specjax.training.checkpoint import Checkpoints
from specjax.training.drafts import eagle3
from specjax.training.plan import Optimizer
from specjax.training.scores import Teacher


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


MESHES = "data:8", "model:8", "data:2,model:4"


def test_losses_do_not_hang_on_the_mesh():
    """Twenty steps of a table over eight devices, and of an EAGLE-3 draft over several meshes and, by checkpoints, from one to the next,
    in a process that has eight."""
    done = subprocess.run([sys.executable, __file__], capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    for kind, meshes in (("table", ["data:8"]), ("eagle3", [*MESHES, "from mesh to mesh"])):
        alone = found[f"{kind} alone"]
        assert len(alone) == 20 and alone[-1] < 0.8 * alone[0]
        for mesh in meshes:
            np.testing.assert_allclose(alone, found[f"{kind} {mesh}"], rtol=0, atol=1e-5, err_msg=mesh)
    split = ["P(None, None, 'model')"] * 2
    assert found["splits"] == {"data:8": ["P()"] * 2, "model:8": split, "data:2,model:4": split}


def table_losses(devices) -> list[float]:
    made, said = program(devices), []
    state = step.start(made, made.kind.init())
    for i in range(20):
        state = train(made, [batch(i % 3)], state._replace(sums=step.placed(made, step.no_sums())))
        said.append(float(state.sums["loss"] / state.sums["weight"]))
    assert len(state.params["table_VU"].sharding.device_set) == len(devices)
    return said


def eagle3_losses(*meshes) -> tuple[list[float], list[str]]:
    """(losses, how a kernel and what the optimizer keeps of it are split in the end) of a run that goes on over one mesh after the other,
    each time from its checkpoint."""
    target, id_U = specjax.load("toy://tiny"), np.arange(0, 256, 2, dtype=np.int32)
    kind = eagle3.over(target, len(id_U), (0, 1), 2, True)
    settings = Optimizer(steps=20, batch=8, learning_rate=3e-3, warmup=2)
    given = [jax.device_get(Teacher(target, kind.taps, 16)(batch(i)._replace(law=None))) for i in range(2)]
    said, steps = [], 20 // len(meshes)
    with tempfile.TemporaryDirectory() as folder:
        for mesh in meshes:
            made = step.Program(kind, losses.ForwardKL(), 0.8, settings, mesh)
            fixed = step.placed(made, step.Fixed(kind.frozen(target, id_U), targets.place_of(id_U, 257)))
            state = step.start(made, kind.init(target, id_U, 0))
            with Checkpoints(Path(folder)) as kept:
                if said:
                    state = step.placed(made, kept.restore(state)[0])
                for i in range(len(said), len(said) + steps):
                    state = step.train(made, fixed, state._replace(sums=step.placed(made, step.no_sums())), step.spread(mesh, given[i % 2]))
                    said.append(float(state.sums["loss"] / state.sums["weight"]))
                kept.save(state, {}, None)
    kernels = [x for path, x in jax.tree.leaves_with_path((state.params, state.optimizer)) if "up_DUF" in jax.tree_util.keystr(path)]
    return said, [str(x.sharding.spec) for x in kernels[:2]]


if __name__ == "__main__":
    jax.config.update("jax_num_cpu_devices", 8)
    one, eight = jax.devices()[:1], jax.devices()
    found = {
        "table alone": table_losses(one),
        "table data:8": table_losses(eight),
        "eagle3 alone": eagle3_losses(step.mesh(devices=one))[0],
    }
    found["eagle3 from mesh to mesh"] = eagle3_losses(*map(step.mesh, ("data:2,model:4", "model:8", "data:8")), step.mesh(devices=one))[0]
    found["splits"] = {}
    for mesh in MESHES:
        found[f"eagle3 {mesh}"], found["splits"][mesh] = eagle3_losses(step.mesh(mesh))
    print(json.dumps(found))
