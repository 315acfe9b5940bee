"""Over a mesh: the same tokens as on one device, no program compiled twice, and no gathering of a cache or a weight in a round.

This process has one device; what needs eight runs in another, which this file starts once (`pytest -m processes`).
"""

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import commands
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny_run
import tiny_talk

import specjax
from specjax import Layout, NGram, Sampling, compiled, decode, mesh_of, parts, run
from specjax.bench.records import Workdir
from specjax.drafters import TreeDrafter
from specjax.models import toy
from specjax.models.border import border, init
from specjax.models.config import ModelConfig
from specjax.sharding import _repeated, shape_of

CONFIG = ModelConfig(vocab=64, width=64, layers=2, heads=8, kv_heads=2, head_size=8, ff=64, tied=True, max_positions=256)
PROMPTS = [[1, 2, 3, 1, 2, 3, 1], [5, 6], [7] * 9, [9, 8, 7, 6, 9, 8], [3], [4, 4, 5, 4, 4], [2, 1, 2, 1], [8, 3, 8]]
BUDGETS = [14, 3, 9, 14, 1, 12, 0, 14]
MESHES = "data:8", "model:8", "data:2,model:4"
STOPPED, STOPS = ["abcabcabc", "x", "some longer text", "zzzz", "ab", "1 2 3 1 2", "the the", "q"], ["eeee", "{$", "ttt"]
SAMPLINGS = {"greedy": {}, "coupled": dict(temperature=1.0, top_p=0.9, coupled=True), "p/q": dict(temperature=1.0)}


# ---------------------------------------------------------------- on eight devices


def transformer(seed):
    params = jax.tree.map(lambda x: x * 4 if x.ndim > 1 else x, init(CONFIG, seed, jnp.float64))
    return specjax.LM(*border(CONFIG, params), None, f"transformer {seed}")


def table(seed):
    law = np.random.default_rng(seed).dirichlet(np.ones(8) * 0.3, 64).repeat(8, axis=1)[:, :64]
    return specjax.LM(*toy.table(law / law.sum(-1, keepdims=True)), None, f"table {seed}")


CASES = {  # programs of eight devices take long to compile
    table: [("chain", "p/q"), ("tree", "greedy")],
    transformer: [("chain", "coupled"), ("chain", "p/q"), ("tree", "greedy"), ("tree", "p/q")],
}


def drafters(lm):
    yield "chain", specjax.ModelDrafter(model=lm.model, params=lm.params, most=3)
    yield "tree", TreeDrafter(model=lm.model, params=lm.params, shape="2x2")


def on_eight_devices() -> dict:
    """What differs from one device, programs by case, and what rounds send."""
    found = {"differs": [], "programs": {}, "moved": {}, "splits": {}}
    found["endings"] = {mesh: endings(Layout(mesh_of(mesh)) if mesh else None) for mesh in ("", *MESHES)}
    for make in (table, transformer):
        alone = {name: tokens for name, tokens, _ in cases(make, None, None)}
        for mesh in MESHES:
            layout, split = Layout(mesh_of(mesh)), mesh == "data:2,model:4"
            for name, tokens, decoder in cases(make, layout, Layout(layout.mesh, split)):
                where = f"{make.__name__} {mesh} {name}" + " split" * split
                if tokens != alone[name]:
                    found["differs"].append(where)
                found["programs"][where] = decoder.programs
                if make is transformer and name == "tree p/q":
                    found["moved"][where] = moved(decoder)
                    found["splits"][where] = decoder.splits
    return found


def cases(make, layout, draft_layout):
    target, draft = make(0), make(1)
    if layout is not None:
        target, draft = specjax.place(target, layout), specjax.place(draft, draft_layout)
    for kind, drafter in drafters(draft):
        for name, sampling in SAMPLINGS.items():
            if (kind, name) not in CASES[make]:
                continue
            rule = specjax.rules.Traversal() if (kind, name) == ("tree", "p/q") else None
            decoder = specjax.Decoder(
                target, drafter=drafter, rule=rule, sampling=Sampling(**sampling), eos=(), ladder=(parts.nodes(drafter),), seed=3
            )
            before = decode.generate._cache_size()
            state = decoder.prefill(decoder.start(PROMPTS, BUDGETS))
            decoder.state = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), state)
            state = decoder.generate_until(decoder.generate_until(state, 4), 0)
            decoder.programs = decode.generate._cache_size() - before
            decoder.splits = str(jax.tree.leaves(state.cache)[0].sharding.spec) if layout else None
            yield f"{kind} {name}", decoder.output(state).token_ids, decoder


def endings(layout=None) -> dict:
    """Sixteen prompts through eight rows, which end by EOS, by a law that is NaN, and by their budget, inside of blocks and at their ends;
    and stop strings of a toy."""
    place = (lambda lm: lm) if layout is None else lambda lm: specjax.place(lm, layout)
    model, params = toy.table(np.roll(np.eye(64), 1, axis=1))  # the token after t is t + 1
    draft = place(specjax.LM(model, params, None, "counting"))
    target = place(specjax.LM(model, np.where(np.arange(64)[:, None] == 20, np.nan, params), None, "counting to 20"))
    drafter = specjax.ModelDrafter(model=draft.model, params=draft.params, most=3)
    options = dict(max_new_tokens=[20, 20, 20, 20, 20, 6, 20, 20] * 2, eos=(13,), ladder=(4,), batch=8)
    out = specjax.generate(target, [[n] for n in (1, 9, 11, 15, 18, 30, 40, 12)] * 2, drafter=drafter, **options)
    found = {"tokens": out.token_ids, "finish": out.finish_reasons}
    if layout is None or layout.mesh.shape["model"] == 4:
        said = specjax.generate(specjax.load("toy://tiny", layout=layout), STOPPED, drafter=NGram(), stop=STOPS, max_new_tokens=12)
        found |= {"texts": said.texts, "stopped": said.finish_reasons}
    return found


def moved(decoder) -> dict[str, int]:
    """The largest array that each kind of collective of the loop sends, in numbers."""
    program = decode.generate.lower(decoder.setup, decoder.target.params, decoder.state, np.int32(0)).compile()
    return {kind: sent.largest for kind, sent in compiled.collectives(program.as_text()).items()}


if __name__ == "__main__":
    jax.config.update("jax_enable_x64", True)
    print(json.dumps(on_eight_devices()))
    sys.exit()


# ---------------------------------------------------------------- on one

FLAGS = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"
EIGHT = {**os.environ, "XLA_FLAGS": FLAGS, "PYTHONPATH": str(Path(__file__).parents[1])}


@pytest.fixture(scope="module")
def eight():
    process = subprocess.run([sys.executable, __file__], env=EIGHT, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr[-3000:]
    return json.loads(process.stdout.splitlines()[-1])


@pytest.mark.processes
def test_tokens_do_not_depend_on_the_mesh(eight):
    assert len(eight["programs"]) == 2 * 3 + 4 * 3 and eight["differs"] == []


@pytest.mark.processes
def test_nothing_is_compiled_twice(eight):
    assert {name: count for name, count in eight["programs"].items() if count != 1} == {}


@pytest.mark.processes
def test_no_cache_and_no_weight_is_gathered_in_a_round(eight):
    """What is sent is at most laws of a round, [B, M, V]; a layer's smallest weight and a cache are larger, each on every device."""
    law = len(PROMPTS) * 7 * 64
    assert {name: sent for name, sent in eight["moved"].items() if max(sent.values(), default=0) > law} == {}
    assert eight["splits"]["transformer data:2,model:4 tree p/q split"] == "P('data', 'model')"
    assert eight["splits"]["transformer model:8 tree p/q"] == "P(None, 'model')"
    assert eight["splits"]["transformer data:8 tree p/q"] == "P('data',)"


@pytest.mark.processes
def test_rows_end_and_are_refilled_as_on_one_device(eight):
    """By what the counting model says after each prompt: until 13, until 20 after which it has no law, or as long as it may."""
    until = lambda first, last: list(range(first + 1, last + 1))
    tokens = [until(1, 13), until(9, 13), until(11, 13), until(15, 20), until(18, 20), until(30, 36), until(40, 60), until(12, 13)]
    finish = ["eos", "eos", "eos", "nonfinite", "nonfinite", "length", "length", "eos"]
    for mesh, found in eight["endings"].items():
        assert (found["tokens"], found["finish"]) == (tokens * 2, finish * 2), mesh
    alone, over = eight["endings"][""], eight["endings"]["data:2,model:4"]
    assert (over["texts"], over["stopped"]) == (alone["texts"], alone["stopped"]) and {"stop", "length"} == set(alone["stopped"])


@pytest.mark.parametrize(
    ("text", "shape"), [("data:2,model:4", (2, 4)), ("model:8", (1, 8)), ("data:3", (3, 1)), ("model:2,data:5", (5, 2))]
)
def test_shapes(text, shape):
    assert shape_of(text) == shape


@pytest.mark.parametrize("text", ["", "data", "data:0", "data:2;model:4", "data:2,data:4", "rows:2", "data:2,", "data:-1", "data: 2"])
def test_other_texts_are_refused(text):
    with pytest.raises(ValueError, match="should be like 'data:2,model:4'"):
        shape_of(text)


@pytest.mark.processes
def test_a_run_over_a_mesh_makes_the_same_records(tmp_path):
    """Refilled, with its laws recorded and a profile."""
    more = "--config.mesh=data:2,model:4", "--config.batch=4", "--config.refill=True", "--config.record_laws=True", "--profile"
    over = [sys.executable, "-m", "specjax.run", f"--config={tiny_talk.__file__}:p/q", *more, f"--workdir={tmp_path}"]
    env = {**EIGHT, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), EIGHT["PYTHONPATH"]])}
    process = subprocess.run(over, env=env, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr[-3000:]
    assert "model:4 does not divide 257 tokens: they are whole on every device" in process.stdout + process.stderr
    records, alone = tiny_talk.timeless(Workdir(tmp_path)), tiny_talk.timeless(tiny_talk.finished())
    assert {key: r["token_ids"] for key, r in records.items()} == {key: alone[key]["token_ids"] for key in records} and len(records) > 40
    assert list((tmp_path / "laws").iterdir()) and list((tmp_path / "profile").iterdir())


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (["--config.mesh=data:3", "--config.batch=2"], "config.batch=2 must be a multiple of 3: mesh='data:3' splits rows over so many"),
        (["--config.mesh=rows:3"], "mesh='rows:3' should be like 'data:2,model:4'"),
        (["--config.mesh=model:4"], "mesh='model:4' has 4 devices, there are 1"),
    ],
)
def test_a_mesh_that_does_not_fit_is_refused(changes, says, monkeypatch, capsys):
    with pytest.raises(SystemExit) as stop:
        commands.call(run, monkeypatch, f"--config={tiny_run.__file__}", *changes)
    assert stop.value.code == 2 and says in capsys.readouterr().err


class Ways(Layout):
    """A layout as if there were so many devices."""

    def __init__(self, ways):
        object.__setattr__(self, "_ways", ways)
        object.__setattr__(self, "model_axis", True)

    ways = property(lambda self: self._ways)


@pytest.mark.parametrize(
    ("ways", "heads", "lines"),
    [
        (1, 2, []),
        (2, 2, []),
        (4, 4, ["model:4: each of 2 key-value heads is stored 2 times"]),
        (8, 8, ["model:8: each of 2 key-value heads is stored 4 times"]),
        (16, 2, ["model:16 does not divide 2 key-value heads: they are whole on every device"]),
        (
            5,
            2,
            [
                "model:5 does not divide 2 key-value heads: they are whole on every device",
                "model:5 does not divide 64 feed-forward channels: they are whole on every device",
                "model:5 does not divide 64 tokens: they are whole on every device",
            ],
        ),
    ],
)
def test_what_the_mesh_does_not_divide_is_said(ways, heads, lines):
    assert Ways(ways).config(CONFIG).kv_heads == heads
    assert list(Ways(ways).told(CONFIG)) == lines


def test_the_size_that_is_not_divided_is_named():
    """Two devices divide a head of 8,192 tokens, and no embedding of 50,257."""
    config = dataclasses.replace(CONFIG, vocab=50257, head_vocab=8192, tied=False)
    assert list(Ways(2).told(config)) == ["model:2 does not divide 50257 tokens: they are whole on every device"]


@pytest.mark.parametrize("times", [2, 4])
def test_a_head_that_is_stored_often_changes_nothing(times):
    whole = border(CONFIG, init(CONFIG, 0))
    config = Ways(2 * times).config(whole[0].config)
    repeated = jax.tree_util.tree_map_with_path(
        lambda path, x: _repeated(np.asarray(x), CONFIG.group, times) if "qkv" in jax.tree_util.keystr(path) else x, whole[1]
    )
    logits = []
    for model, params in (whole, border(config, repeated)):
        token_BT = jnp.asarray([[3, 1, 4, 1, 5, 9, 2, 6]])
        hidden, _, _ = model.forward(params, token_BT, model.init_cache(1, 16), jnp.zeros(1, jnp.int32))
        logits.append(model.head(params, hidden))
    np.testing.assert_allclose(*logits, rtol=1e-5, atol=1e-5)


def test_a_model_lies_on_one_mesh():
    layout = Layout(mesh_of("data:1"))
    lm = specjax.load("toy://tiny", layout=layout)
    alone = specjax.generate(specjax.load("toy://tiny"), ["ab"], max_new_tokens=8, drafter=NGram())
    assert specjax.generate(lm, ["ab"], max_new_tokens=8, drafter=NGram()).token_ids == alone.token_ids
    with pytest.raises(ValueError, match="toy://tiny lies on a mesh already"):
        specjax.place(lm, layout)
