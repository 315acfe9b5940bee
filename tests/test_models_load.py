"""The one entry: a source in, a checkpoint out, and errors that begin with the source."""

import hashlib
import pathlib
import shutil

import jax
import numpy as np
import pytest
import tokenizers
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
