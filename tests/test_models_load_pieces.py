"""The bytes of each token: joined, they are what the decoder says."""

import pytest
import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers

from specjax.models.load.pieces import token_bytes
from specjax.models.load.tokenizer import Tokenizer
from specjax.models.toy import ByteTokenizer

LETTERS = sorted(pre_tokenizers.ByteLevel.alphabet())
BYTES = [f"<0x{i:02X}>" for i in range(256)]
LLAMA = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
TEXT = "naïve 日本 \n\t😀👍🏽 end"


def made(tokens, decoder, special=(), user=()):
    backend = tokenizers.Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, [], byte_fallback=True))
    backend.decoder = decoder
    backend.add_tokens([AddedToken(t, special=True) for t in special] + [AddedToken(t, special=False) for t in user])
    return backend


def test_byte_level_letters_are_the_256_bytes():
    backend = made([*LETTERS, "Ġhe", "<s>", "日本"], decoders.ByteLevel(), special=["<s>"])
    pieces = token_bytes(backend)
    assert sorted(pieces[:256]) == [bytes([i]) for i in range(256)]
    assert pieces[256:] == [b" he", b"", "日本".encode()]
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    ids = backend.encode(TEXT).ids
    assert b"".join(pieces[i] for i in ids).decode() == backend.decode(ids) == TEXT


@pytest.mark.parametrize("tail", [[], [decoders.Strip(" ", 1, 0)]])
def test_sentencepiece(tail):
    backend = made([*BYTES, "▁", "▁a▁", "<s>", "日", "<u▁>"], decoders.Sequence([*LLAMA, *tail]), special=["<s>"], user=["<u▁>"])
    pieces = token_bytes(backend)
    assert pieces == [*(bytes([i]) for i in range(256)), b" ", b" a ", b"", "日".encode(), b"<u >"]
    ids = [257, 258, *"é😀".encode(), 256, 259, 260]
    text = b"".join(pieces[i] for i in ids).decode()
    assert text == " a é😀 日<u >"
    assert backend.decode(ids) == (text[1:] if tail else text)


def test_metaspace():
    backend = made(["▁a", "b", "▁"], decoders.Metaspace())
    assert token_bytes(backend) == [b" a", b"b", b" "]
    assert backend.decode([0, 1, 2, 0]) == "ab  a"


def test_id_without_a_token_adds_nothing():
    backend = tokenizers.Tokenizer(models.BPE({"a": 0, "b": 3}, []))
    backend.decoder = decoders.ByteLevel()
    assert token_bytes(backend) == [b"a", b"", b"", b"b"]


@pytest.mark.parametrize(
    ("decoder", "name"),
    [
        (None, "none"),
        (decoders.WordPiece(), "WordPiece"),
        (decoders.CTC(), "CTC"),
        (decoders.BPEDecoder(), "BPEDecoder"),
        (decoders.Sequence([decoders.Strip(" ", 1, 0), decoders.Fuse()]), "Strip"),  # of every token, not of the text
        (decoders.Sequence([decoders.Replace(tokenizers.Regex("a"), "b")]), "Replace"),
    ],
)
def test_other_decoders_are_refused(decoder, name):
    backend = made(["a"], decoders.Fuse())
    backend.decoder = decoder
    with pytest.raises(ValueError, match=rf"^the tokenizer's decoder \({name}\) does not give each token its bytes"):
        token_bytes(backend)


def test_method_of_both_tokenizers():
    assert Tokenizer(made(["Ġa"], decoders.ByteLevel())).token_bytes() == [b" a"]
    assert ByteTokenizer().token_bytes() == [*(bytes([i]) for i in range(256)), b""]
