"""Planning for TPUs that are not here: what is read off a compiled program, and, where libtpu is installed, the command itself."""

import importlib.util
import json
import re
import runpy

import commands
import jax
import jax.numpy as jnp
import pytest

from specjax import aot, build, build_training, compiled, planned, topology
from specjax.sharding import Layout, mesh_of

TINY = dict(
    architectures=["LlamaForCausalLM"], hidden_act="silu", vocab_size=512, hidden_size=256, intermediate_size=512, num_hidden_layers=2,
    num_attention_heads=8, num_key_value_heads=2, max_position_embeddings=1024, rms_norm_eps=1e-5, rope_theta=1e4,
    tie_word_embeddings=False, attention_bias=False, mlp_bias=False,
)  # fmt: skip
TEXT = """
  %a = f32[8,5,8]{1,0,2:T(8,128)} all-gather(%x), channel_id=19, dimensions={2}
  %b = bf16[16,64]{1,0} all-reduce(%y), to_apply=%add
  %c = (f32[4]{0}, f32[2,2]{1,0}) all-reduce(%y, %z), to_apply=%add
  %d = (bf16[8]{0}, bf16[64]{0}) all-gather-start(%y), dimensions={0}
  %e = bf16[64]{0} all-gather-done(%d)
  %f = pred[3]{0} collective-permute(%y), source_target_pairs={{0,1}}
  %g = (bf16[8,1024]{1,0}, bf16[8,1024]{1,0}, u32[], u32[]) collective-permute-start(%y), source_target_pairs={{0,1}}
  %h = (f32[4096]{0}, f32[8]{0}) all-reduce-start(%y, %z), to_apply=%add
  %i = f32[9]{0} add(%y, %y)
"""


def test_what_devices_send():
    found = compiled.collectives(TEXT)
    assert found == {
        "all-gather": (2, 8 * 5 * 8 * 4 + 64 * 2, 320),
        "all-reduce": (3, 16 * 64 * 2 + 32 + (4096 + 8) * 4, 4096),
        "collective-permute": (2, 3 + 8 * 1024 * 2, 8192),
    }


@pytest.mark.parametrize(
    ("said", "found"),
    [
        ("memory required for HLO temporaries (17.50G) exceeds available HBM (15.75G).", (35 * 2**29, 63 * 2**28)),
        ("Used 20.25G of 15.75G hbm. Exceeded hbm capacity by 4.50G.", (81 * 2**28, 63 * 2**28)),
        ("INVALID_ARGUMENT: something else", None),
    ],
)
def test_how_much_is_too_much(said, found):
    assert compiled.too_much(RuntimeError(said)) == found


def test_accounts_of_a_program():
    x = jnp.zeros((64, 32), jnp.float32)
    made = compiled.read(jax.jit(lambda x, y: x @ y, donate_argnums=()).lower(x, x.T).compile())
    assert (made.arguments, made.results, made.aliased, made.loops, made.sent) == (2 * 64 * 32 * 4, 64 * 64 * 4, 0, 0, {})
    assert made.flops == pytest.approx(2 * 64 * 64 * 32, rel=0.1) and made.total >= made.arguments + made.results
    looped = jax.jit(lambda x: jax.lax.while_loop(lambda c: jnp.sum(c) < 9, lambda c: c + 1, x)).lower(x).compile()
    assert compiled.read(looped).loops == 1 and compiled.read(looped).seconds is None


def test_devices_that_are_here_are_not_planned_with():
    assert not Layout(mesh_of("data:1", jax.devices()[:1])).planned


@pytest.mark.skipif(importlib.util.find_spec("libtpu") is not None, reason="libtpu is here")
def test_without_libtpu_it_says_what_to_install():
    with pytest.raises(ValueError, match=r"topology='v5e:2x4': compiling for a TPU needs libtpu: pip install 'specjax\[tpu\]'"):
        topology.devices("v5e:2x4")


# ---------------------------------------------------------------- with libtpu

needs_libtpu = pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="no libtpu: pip install -e '.[tpu]'")


def on_tpus(test):
    return pytest.mark.tpu(needs_libtpu(test))


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """A config of shapes: a chain and a tree, over two layers of eight query and two key-value heads."""
    folder = tmp_path_factory.mktemp("shapes")
    (folder / "config.json").write_text(json.dumps(TINY))
    draft = dict(source=str(folder))
    arms = [
        dict(
            name="chain",
            drafter=dict(draft, name="model", most=3),
            length=dict(name="fixed", k=3),
            ladder=[4],
            sampling=dict(temperature=1),
        ),
        dict(name="tree", drafter=dict(draft, name="tree", shape="2x2"), rule="traversal", ladder=[7], sampling=dict(temperature=1)),
    ]
    return dict(target=dict(source=str(folder)), prompts=dict(source="own"), arms=arms, max_new_tokens=32, batch=8)


@on_tpus
@pytest.mark.parametrize("mesh", ["data:8", "model:8", "data:2,model:4"])
def test_no_cache_and_no_weight_is_gathered_in_a_round_on_a_tpu(tiny, mesh):
    """At most laws of a round are sent, [B, M, V]; a layer's cache has 8 x 2 x 256 x 32 numbers, its smallest kernel 256 x 256."""
    plan, (devices, _) = build.plan(dict(tiny, mesh=mesh, split_drafts="model" in mesh)), topology.devices("v5e:2x4")
    target, arms, size = planned.load(plan, devices, 256, shape_only=True)
    assert len(target.notes) == (mesh != "data:8")
    for arm in arms[1:]:
        function, inputs, _ = planned.round_of(plan, target, arm, size).whole
        sent = compiled.read(function.lower(*inputs).compile()).sent
        law = 8 * arm.decoder.setup.ladder[-1] * 512
        assert {kind: one.largest for kind, one in sent.items() if one.largest > law} == {}
        assert mesh == "data:8" or sent["all-reduce"].count >= 4


@on_tpus
@pytest.mark.parametrize(
    ("name", "count", "memory", "flops"),
    [("v4:2x2x2", 8, 32 * 2**30, 275e12), ("v5p:2x2x2", 8, 95 * 2**30, 459e12), ("tpu7x:2x2x1", 8, 96 * 2**30, 2307e12 / 2)],
)
def test_what_a_device_of_a_chip_with_two_cores_is(name, count, memory, flops):
    """Of v4 and v5p the whole chip, of tpu7x one of its cores."""
    devices, chip = topology.devices(name)
    assert (len(devices), chip.memory, chip.flops) == (count, memory, flops)


def said_by(capsys, monkeypatch, *flags) -> tuple[int, str]:
    with pytest.raises(SystemExit) as stop:
        commands.call(aot, monkeypatch, *flags)
    seen = capsys.readouterr()
    return stop.value.code, seen.out + seen.err


@on_tpus
def test_the_real_model_with_its_draft_on_eight_chips(capsys, monkeypatch):
    flags = "--config=configs/pod.py", "--topology=v5e:2x4", "--config.mesh=data:8", "--slots=512", "--arm=draft K=4"
    code, said = said_by(capsys, monkeypatch, *flags)
    chip = "v5e with 17.2 GB, 819 GB/s, 197 TFLOP/s in bfloat16, 200 GB/s each way over its links"
    assert code == 0 and f"v5e:2x4: 8 devices, each {chip}" in said
    # 134,515,008 parameters and the head's own copy of the embedding, 2 bytes each; a row's cache: 30 layers, 512 slots, 3 heads of 64
    assert f"target {(134_515_008 + 49_152 * 576) * 2 / 1e6:.0f} MB, cache {2 * 30 * 512 * 3 * 64 * 2 / 1e6:.1f} MB" in said
    assert "fits: " in said and re.search(r"so c = 0\.0\d+, v\(5\) = 1\.0", said)


@on_tpus
def test_a_model_of_70b_on_a_slice_that_holds_it():
    """Its round as it runs, of 80 unrolled layers and a draft of 32. Memory of each of eight chips, in bytes."""
    config = runpy.run_path("configs/pod_70b.py")["get_config"]()
    plan = build.plan(dict(config, mesh="model:8"))
    devices, chip = topology.devices("v6e:2x4")
    target, [_, arm], size = planned.load(plan, devices, 2048, shape_only=True)
    whole = planned.round_of(plan, target, arm, size).whole
    held = {name: compiled.nbytes(tree) for name, tree in whole.held.items()}
    layer, draft_layer = 8192 * (2 * 8192 + 2 * 1024 + 3 * 28672 + 2), 4096 * (2 * 4096 + 2 * 1024 + 3 * 14336 + 2)
    norms, draft_norms = (2 * 80 + 1) * 8192 * 7 * 2 // 8, (2 * 32 + 1) * 4096 * 7 * 2 // 8  # whole on every chip
    assert held["target"] == 2 * (80 * layer + 2 * 128256 * 8192 + 8192) // 8 + norms
    assert held["draft"] == 2 * (32 * draft_layer + 2 * 128256 * 4096 + 4096) // 8 + draft_norms
    assert held["cache"] == 2 * 80 * 8 * 2048 * 128 * 2 and held["draft's state"] >= 2 * 32 * 8 * 2048 * 128 * 2
    made = compiled.read(whole.function.lower(*whole.inputs).compile())
    assert sum(held.values()) < made.total < 24e9 < chip.memory
    assert made.aliased > held["cache"]  # the caches are written in place


@on_tpus
def test_a_step_of_training_and_its_parts(capsys, monkeypatch):
    """Over the data axis a step sends its gradients and little more; taken in two parts each has half of the tokens, so about the same
    arithmetic a token."""
    flags = "--config=configs/tiny_draft.py", "--topology=v5e:2x4"
    code, said = said_by(capsys, monkeypatch, *flags)
    assert code == 0 and re.search(r"\n  step: .* at least", said)
    plan, (devices, _) = build_training.plan(runpy.run_path("configs/tiny_draft.py")["get_config"]()), topology.devices("v5e:2x4")
    program = planned.training_step(plan, devices, False)
    gradient = compiled.nbytes(program.held["parameters"])
    sent = compiled.read(program.function.lower(*program.inputs).compile()).sent
    assert gradient <= sum(one.bytes for one in sent.values()) < gradient + 4096
    code, parts = said_by(capsys, monkeypatch, *flags, "--config.optimizer.batch=16", "--config.optimizer.accumulate=2")
    flops = [float(re.search(r"([\d.]+) GFLOP", text)[1]) for text in (said, parts)]
    assert code == 0 and "each of its 2 parts: " in parts and flops[1] == pytest.approx(flops[0], rel=0.3)


@on_tpus
def test_a_mesh_that_does_not_fit_says_by_how_much(capsys, monkeypatch):
    flags = "--config=configs/pod_70b.py", "--config.mesh=model:8", "--slots=2048", "--shape_only", "--arm=plain greedy"
    code, said = said_by(capsys, monkeypatch, *flags, "--topology=v5e:2x4")
    numbers = re.search(r"need ([\d,]+) bytes and has ([\d,]+), ([\d,]+) too many \(XLA says so to 0.01 GiB\)", said).groups()
    needs, has, more = (int(x.replace(",", "")) for x in numbers)
    assert code == 1 and has == 63 * 2**28 and more == needs - has and 18.3e9 < needs < 20e9


@on_tpus
@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--topology=v9:2x2"], "topology='v9:2x2' should be like v4:2x2x4, v5e:2x4"),
        (["--topology=v5e:2x4"], "config.mesh is missing: v5e:2x4 has 8 devices, as in --config.mesh=model:8"),
        (["--topology=v5e:2x4", "--config.mesh=model:4"], "mesh='model:4' has 4 devices, there are 8"),
        (["--topology=v5e:2x4", "--config.mesh=data:8", "--arm=none"], "arm='none' is none of plain greedy, draft K=4"),
    ],
)
def test_bad_input_is_one_line(flags, says, capsys, monkeypatch):
    code, said = said_by(capsys, monkeypatch, "--config=configs/pod.py", *flags)
    assert code == 2 and says in said and len(said.strip().splitlines()) <= 2
