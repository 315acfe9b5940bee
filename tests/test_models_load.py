"""The one entry: a source in, a checkpoint out, and errors that begin with the source."""

import hashlib
import json
import pathlib
import pickle
import shutil
import struct

import jax
import numpy as np
import pytest
import tokenizers
from safetensors.numpy import load_file, save_file
from tokenizers import models

from specjax.models.load import load

GOLDENS = pathlib.Path(__file__).parent / "goldens"
TIED = GOLDENS / "llama_tied_grouped"


def test_folder():
    checkpoint = load(str(TIED))
    assert checkpoint.source == str(TIED)
    assert checkpoint.tokenizer is None
    assert checkpoint.config.real_vocab is None
    assert checkpoint.sha256 == hashlib.sha256((TIED / "model.safetensors").read_bytes()).hexdigest()
    assert {leaf.dtype.name for leaf in jax.tree.leaves(checkpoint.params)} == {"float32"}


def test_dtype():
    assert {leaf.dtype.name for leaf in jax.tree.leaves(load(str(TIED), dtype="bfloat16").params)} == {"bfloat16"}
    with pytest.raises(ValueError, match="dtype='int8' is not supported for parameters"):
        load(str(TIED), dtype=np.int8)


def with_tokens(tmp_path, count):
    folder = shutil.copytree(TIED, tmp_path / "model")
    tokenizers.Tokenizer(models.BPE({chr(65 + i): i for i in range(count)}, [])).save(str(folder / "tokenizer.json"))
    return str(folder)


@pytest.mark.parametrize(("count", "real_vocab"), [(48, None), (45, 45)])
def test_rows_without_a_token_are_padding(tmp_path, count, real_vocab):
    config = load(with_tokens(tmp_path, count)).config
    assert (config.vocab, config.real_vocab) == (48, real_vocab)


def test_more_tokens_than_rows(tmp_path):
    with pytest.raises(ValueError, match="the tokenizer has 50 tokens, the embedding only 48 rows"):
        load(with_tokens(tmp_path, 50))


def test_errors_begin_with_the_source(tmp_path):
    with pytest.raises(ValueError) as error:
        load(str(tmp_path))
    assert str(error.value) == f"{tmp_path}: no config.json in the folder"


def test_file_that_is_no_gguf():
    with pytest.raises(ValueError, match=r"a file of weights should end in \.gguf, not '\.safetensors'"):
        load(str(TIED / "model.safetensors"))


# ---------------------------------------------------------------- what a folder may have instead of what it should


@pytest.fixture
def folder(tmp_path):
    return shutil.copytree(TIED, tmp_path / "model")


def edit(folder, **changes):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def rewrite(folder, **changes):
    """Tensors by a part of their name: None takes them out, a text takes the part's place, a function changes the weight."""
    tensors = load_file(folder / "model.safetensors")
    for name in list(tensors):
        for part, change in changes.items():
            if part in name and name in tensors:
                weight = tensors.pop(name)
                if isinstance(change, str):
                    tensors[name.replace(part, change)] = weight
                elif change:
                    tensors[name] = change(weight)
    save_file(tensors, folder / "model.safetensors")


def refused(folder, message):
    with pytest.raises(ValueError, match=message) as error:
        load(str(folder))
    assert str(error.value).startswith(f"{folder}: ")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"o_proj": None}, r"tensors missing: model\.layers\.0\.self_attn\.o_proj\.weight, model\.layers\.1\.self_attn\.o_proj\.weight$"),
        ({"o_proj": "output"}, r"tensors missing: model\.layers\.0\.self_attn\.o_proj\.weight, "),
        ({"o_proj": lambda w: np.ascontiguousarray(w.T)}, r"o_proj\.weight has shape \[24, 16\], should be \[16, 24\]"),
        ({"o_proj": lambda w: w[..., None]}, r"o_proj\.weight has shape \[16, 24, 1\], should be \[16, 24\]"),
        ({"o_proj": lambda w: w * np.nan}, r"tensor model\.layers\.0\.self_attn\.o_proj\.weight holds NaN or infinity$"),
        ({"norm": lambda w: w / 0}, "holds NaN or infinity$"),
        ({"o_proj": lambda w: w.astype(np.int64)}, "is stored as I64; supported: F64, F32, F16, BF16$"),
    ],
)
@pytest.mark.filterwarnings("ignore:divide by zero")
def test_weights_that_do_not_fit(folder, changes, message):
    rewrite(folder, **changes)
    refused(folder, message)


def test_weight_too_many(folder):
    tensors = load_file(folder / "model.safetensors")
    save_file(tensors | {"model.layers.2.mlp.up_proj.weight": np.zeros((24, 16), np.float32)}, folder / "model.safetensors")
    refused(folder, r"tensors not known to this family: model\.layers\.2\.mlp\.up_proj\.weight$")


@pytest.mark.parametrize(
    ("flag", "head", "outcome"),
    [
        (True, "none", True),
        (True, "other", r"tie_word_embeddings=True, but the file's lm_head\.weight differs"),
        (False, "none", r"tie_word_embeddings=False, but the file has no lm_head\.weight"),
        (False, "other", False),
    ],
)
def test_tie_flag_against_the_file(folder, flag, head, outcome):
    edit(folder, tie_word_embeddings=flag)
    tensors = load_file(folder / "model.safetensors")
    if head == "other":
        save_file(tensors | {"lm_head.weight": tensors["model.embed_tokens.weight"] + 1}, folder / "model.safetensors")
    if isinstance(outcome, bool):
        assert load(str(folder)).config.tied is outcome
    else:
        refused(folder, outcome)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "consolidated.00.pth"])
def test_pickle_is_never_opened(folder, name, monkeypatch):
    (folder / "model.safetensors").unlink()
    (folder / name).write_bytes(pickle.dumps({}))
    monkeypatch.setattr(pickle, "load", None)
    monkeypatch.setattr(pickle, "loads", None)
    refused(folder, rf"\({name} is a pickle, and those are never read\)$")


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
@pytest.mark.parametrize("kind", ["folder", "link to nowhere", "link to itself", "empty", "noise"])
def test_file_of_another_kind(folder, name, kind):
    (folder / name).unlink()
    if kind == "folder":
        (folder / name).mkdir()
    elif kind.startswith("link"):
        (folder / name).symlink_to(name if kind == "link to itself" else "nowhere")
    else:
        (folder / name).write_bytes(b"" if kind == "empty" else bytes(range(256)) * 9)
    refused(folder, name)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_closed_file(folder, name, monkeypatch):
    def closed(path, *args, **kwargs):
        raise PermissionError(13, "Permission denied", str(path))

    if name == "config.json":
        monkeypatch.setattr(pathlib.Path, "read_bytes", closed)
    else:
        monkeypatch.setattr("specjax.models.load.hf.safe_open", closed)
    refused(folder, f"{name} .*Permission denied")


@pytest.mark.parametrize(
    ("length", "message"),
    [(2**63, "HeaderTooLarge|not a whole"), (10**6, "not a whole"), (0, "not a whole"), (2**40, "not a whole")],
)
def test_safetensors_header_that_lies(folder, length, message):
    data = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", length) + data[8:])
    refused(folder, rf"model\.safetensors .*({message})")


def test_positions_without_end_cost_nothing(folder):
    edit(folder, max_position_embeddings=10**15)
    assert load(str(folder)).config.max_positions == 10**15


def test_folder_that_is_named_like_a_file(tmp_path):
    (tmp_path / "x.gguf").mkdir()
    refused(tmp_path / "x.gguf", "no config.json in the folder$")


def test_gguf_file_that_is_none(tmp_path):
    (tmp_path / "x.gguf").write_text("hello")
    refused(tmp_path / "x.gguf", "not a GGUF file: it does not begin with the letters GGUF$")
