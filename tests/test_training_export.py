"""A draft that was exported is the draft that was trained, wherever it is loaded."""

import dataclasses
import functools
import hashlib
import json
import os
import pathlib
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import specjax
from specjax.models import toy
from specjax.models.border import LanguageModel
from specjax.training.drafts import eagle3, small
from specjax.training.export import export

IDS = np.arange(3, 250, 5, dtype=np.int32)
CARD = {"Data": ["own texts, 3 rows"], "Command": "python -m specjax.train", "Figures": {"overlap": 0.5}}


@functools.cache
def target(**options) -> specjax.LM:
    config = dataclasses.replace(toy.TINY, layers=3, **options)
    return specjax.LM(*toy.tiny(config=config, scale=8.0), toy.ByteTokenizer(), "toy://of three layers", "abc")


KINDS = {
    "small": (small.over(target(), None, (0, 2), 5, False), None),
    "small, own head": (small.over(target(), len(IDS), (1,), 5, True), IDS),
    "small, shared head": (small.over(target(), len(IDS), (1,), 5, False), IDS),
    "eagle3": (eagle3.over(target(), len(IDS), (0, 1, 2), 3, True), IDS),
    "eagle3, shared head": (eagle3.over(target(), len(IDS), (2,), 3, False), IDS),
    "eagle3, all tokens": (eagle3.over(target(), None, (0, 2), 3, True), None),
}


def trained(name):
    """(kind, params, id_U): parameters as if they had been trained, in none of the stored dtypes' numbers."""
    kind, id_U = KINDS[name]
    rng = np.random.default_rng(0)
    moved = jax.tree.map(lambda x: x + 0.01 * rng.standard_normal(x.shape).astype(np.float32), kind.init(target(), id_U, 0))
    return kind, moved, id_U


def logits(drafter) -> np.ndarray:
    """Of a text of six tokens."""
    model, params, rng = drafter.model, drafter.params, np.random.default_rng(1)
    token_BT, cursor_B, cache = jnp.asarray(rng.integers(0, 257, (1, 6)), jnp.int32), jnp.zeros(1, jnp.int32), model.init_cache(1, 8)
    if drafter.taps:
        features = tuple(jnp.asarray(rng.standard_normal((1, 6, 32)), jnp.float32) for _ in drafter.taps)
        hidden, _ = model.cell(params, model.fuse(params, features), token_BT, cache, cursor_B)
    else:
        hidden, _, _ = model.forward(params, token_BT, cache, cursor_B)
    return np.asarray(model.head(params, hidden))


def digests(root, names) -> dict:
    """What another process says of these folders."""
    return {name: hashlib.sha256(logits(specjax.load_drafter(pathlib.Path(root, name), target())).tobytes()).hexdigest() for name in names}


def rounded(params, dtype):
    return jax.tree.map(lambda x: jnp.asarray(np.asarray(x).astype(dtype)), params)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("exported")
    for name in KINDS:
        kind, params, id_U = trained(name)
        export(root / name, kind, params, id_U, target(), card=CARD, dtype="float32" if "head" in name else "bfloat16")
    return root


def test_the_same_logits_in_another_process(root):
    names = ["small", "eagle3"]  # the others are compared number by number, below
    code = f"import json, test_training_export as t; print(json.dumps(t.digests({str(root)!r}, {names})))"
    here = pathlib.Path(__file__).parent
    env = os.environ | {"PYTHONPATH": f"{here.parent}{os.pathsep}{here}"}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for name, digest in json.loads(done.stdout).items():
        kind, params, id_U = trained(name)
        stored = rounded(params, "bfloat16")
        wanted = logits(kind.drafter(stored, kind.frozen(target(), id_U), id_U, 4, target()))
        assert digest == hashlib.sha256(wanted.tobytes()).hexdigest(), name


@pytest.mark.parametrize("name", KINDS)
def test_the_same_draft(root, name):
    kind, params, id_U = trained(name)
    loaded = specjax.load_drafter(root / name, target(), most=4)
    stored = rounded(params, "float32" if "head" in name else "bfloat16")
    given = kind.drafter(stored, kind.frozen(target(), id_U), id_U, 4, target())
    jax.tree.map(np.testing.assert_array_equal, loaded, given)  # their structures, too: kind, functions, taps, most
    assert (loaded.ids_U is None) == (id_U is None)


def test_what_is_shared_is_not_stored(root):
    stored = {name: load_file(root / name / "model.safetensors") for name in KINDS}
    for name in KINDS:
        assert not {"embed_VD", "embed_tokens.weight"} & stored[name].keys()
        assert bool({"head_DV", "lm_head.weight"} & stored[name].keys()) == ("shared" not in name and name != "small")
    assert stored["eagle3"]["fc.weight"].dtype.name == "bfloat16" and stored["eagle3"]["lm_head.weight"].shape == (len(IDS), 32)
    np.testing.assert_array_equal(stored["eagle3"]["d2t"] + np.arange(len(IDS)), IDS)
    np.testing.assert_array_equal(np.flatnonzero(stored["eagle3"]["t2d"]), IDS)


def test_what_others_read_of_an_eagle3_draft(root):
    said = json.loads((root / "eagle3" / "config.json").read_text())
    wanted = dict(
        architectures=["LlamaForCausalLMEagle3"], hidden_size=32, num_attention_heads=4, num_key_value_heads=2, head_dim=8, vocab_size=257,
        draft_vocab_size=len(IDS), rope_scaling=None, hidden_act="silu", eagle_aux_hidden_state_layer_ids=[1, 2, 3], torch_dtype="bfloat16",
        eagle_config={"use_aux_hidden_state": True, "eagle_aux_hidden_state_layer_ids": [0, 1, 2]}, intermediate_size=64,
    )  # fmt: skip
    assert {name: said[name] for name in wanted} == wanted
    assert said["specjax"]["settings"] == {"places": 3, "train_head": True} and said["specjax"]["target"]["sha256"] == "abc"


def test_the_card(root):
    text = (root / "eagle3" / "README.md").read_text()
    assert "## Data\n\n- own texts, 3 rows\n" in text and "| overlap | 0.5 |" in text
    assert "## Command\n\npython -m specjax.train\n" in text and 'specjax.load("toy://of three layers")' in text


def test_stretched_positions_come_back(tmp_path):
    lm = target(rope_stretch=(1.0, 1.5, 2.0, 7.0), rope_gain=1.25)
    kind = eagle3.over(lm, None, (0,), 3, True)
    folder = export(tmp_path / "draft", kind, kind.init(lm, None, 0), None, lm, card={})
    assert specjax.load_drafter(folder, lm).model == kind.model


def test_no_place_in_the_published_layout(tmp_path):
    lm = target(qk_norm=True)
    kind = eagle3.over(lm, None, (0,), 3, True)
    with pytest.raises(ValueError, match=r"^the published layout of EAGLE-3 has no place for qk_norm=True$"):
        export(tmp_path / "draft", kind, kind.init(lm, None, 0), None, lm, card={})
    assert list(tmp_path.iterdir()) == []  # nothing half-written


def test_an_export_replaces_an_export_and_nothing_else(tmp_path):
    kind, params, id_U = trained("small")
    (tmp_path / "draft").mkdir()
    for dtype in ("float32", "bfloat16"):
        export(tmp_path / "draft", kind, params, id_U, target(), card=CARD, dtype=dtype)
        assert load_file(tmp_path / "draft" / "model.safetensors")["norm_D"].dtype.name == dtype
    assert [path.name for path in tmp_path.iterdir()] == ["draft"]
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.txt").write_text("mine")
    with pytest.raises(ValueError, match="thesis is there and holds no exported draft: name another folder"):
        export(tmp_path / "thesis", kind, params, id_U, target(), card=CARD)
    assert (tmp_path / "thesis" / "chapter.txt").read_text() == "mine"


# ---------------------------------------------------------------- refused


class Shifted(toy.ByteTokenizer):
    def token(self, i):
        return super().token((i + 1) % 257)


class Shorter(toy.ByteTokenizer):
    vocab_size = 256


def like(**options):
    """The functions of another target, whose parameters are not asked for before it is refused."""
    return LanguageModel(dataclasses.replace(target().model.config, **options))


@pytest.mark.parametrize("name", ["small", "eagle3"])
def test_another_target(root, name):
    for options, message in (
        (dict(width=16), "(width is 32, the target's is 16|target_hidden_size is 32, the target's is 16)"),
        (dict(vocab=300), "(vocab is 257, the target's is 300|vocab_size is 257, the target's is 300)"),
    ):
        with pytest.raises(ValueError, match=message):
            specjax.load_drafter(root / name, dataclasses.replace(target(), model=like(**options)))
    for tokenizer, size in ((Shifted(), 257), (Shorter(), 256)):
        other = dataclasses.replace(target(), tokenizer=tokenizer)
        with pytest.raises(ValueError, match=f"with another tokenizer, of 257 tokens, the target's {size}: its ids would mean"):
            specjax.load_drafter(root / name, other)
    with pytest.warns(UserWarning, match="trained for toy://of three layers, of other weights than mine: fewer drafts may be accepted"):
        specjax.load_drafter(root / name, dataclasses.replace(target(), sha256="def", source="mine"))


def damaged(root, tmp_path, name, change, note=None):
    folder = tmp_path / "draft"
    folder.mkdir()
    said, tensors = json.loads((root / name / "config.json").read_text()), load_file(root / name / "model.safetensors")
    change(tensors)
    said["specjax"] |= note or {}
    (folder / "config.json").write_text(json.dumps(said))
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(ValueError) as caught:
        specjax.load_drafter(folder, target())
    assert "\n" not in str(caught.value)
    return str(caught.value).removeprefix(f"{folder}: ")


@pytest.mark.parametrize("name", KINDS)
def test_a_tensor_that_is_missing(root, tmp_path, name):
    """Each of them, in turn, but the mask, which the map gives away."""
    for i, tensor in enumerate(load_file(root / name / "model.safetensors").keys() - {"t2d"}):
        (tmp_path / str(i)).mkdir()
        assert tensor in damaged(root, tmp_path / str(i), name, lambda tensors, tensor=tensor: tensors.pop(tensor))


@pytest.mark.parametrize(
    ("message", "change", "note"),
    [
        ("tensors not part of this draft: more", lambda t: t.update(more=t["norm_D"]), {}),
        ("tensor norm_D has shape [31], should be [32]", lambda t: t.update(norm_D=t["norm_D"][1:]), {}),
        ("tensor d2t has shape [49], should be [50]", lambda t: t.update(d2t=t["d2t"][1:]), {}),
        ("tensor head_DV holds NaN or infinity", lambda t: t.update(head_DV=t["head_DV"] + np.float32(np.inf)), {}),
        ("config.json: specjax.lent names 'all', should be of embed_VD, head_DV, position_PD", len, {"lent": ["all"]}),
        ("config.json: specjax.model: ModelConfig.__init__() missing 8", len, {"model": {"tied": False}}),
        ("config.json: specjax.model.widht is not a field of a model", len, {"model": {"widht": 3}}),
        ("config.json: specjax.model.width='x' should be int", len, {"model": {"width": "x"}}),
        ("config.json: specjax.model.sliding=[0.5] should be tuple[int, ...]", len, {"model": {"sliding": [0.5]}}),
        ("config.json: specjax.model is missing or null, should be an object", len, {"model": None}),
    ],
)
def test_a_damaged_small_draft(root, tmp_path, message, change, note):
    assert damaged(root, tmp_path, "small, own head", change, note).startswith(message)
