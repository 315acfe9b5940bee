"""What each token adds to a text, in bytes: stop strings need it, because a token may be half a character.

A tokenizer's decoder is a chain of small steps, each of which is here a function of one token. Steps that look at a token's neighbours
(WordPiece, CTC, suffixes) have no such function and are refused. One exception: SentencePiece's decoders leave out a text's first
space. That is not reproduced: the bytes are those of a token in the middle of a text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable

import tokenizers

PRINTABLE = [*range(33, 127), *range(161, 173), *range(174, 256)]  # GPT-2 writes these bytes as themselves
BYTE_OF = {chr(b): b for b in PRINTABLE} | {chr(256 + i): b for i, b in enumerate(sorted({*range(256)} - {*PRINTABLE}))}
Piece = str | bytes  # of one token, on its way: text, until a step has turned it into bytes


def token_bytes(backend: tokenizers.Tokenizer) -> list[bytes]:
    """The bytes of ids 0, 1, ...; none for special tokens (`decode` leaves them out) and for ids without a token.

    ValueError names a decoder that does more than turn each token into bytes.
    """
    steps = _steps(json.loads(backend.decoder.__getstate__()) if backend.decoder else {"type": "none"})
    special = {token.content for token in backend.get_added_tokens_decoder().values() if token.special}
    vocab = backend.get_vocab(with_added_tokens=True)
    pieces = [b""] * (max(vocab.values(), default=-1) + 1)
    for token, i in vocab.items():
        if token not in special:
            pieces[i] = _bytes(token, steps)
    return pieces


def _bytes(piece: Piece, steps: list[Callable[[str], Piece]]) -> bytes:
    for step in steps:
        piece = step(piece) if isinstance(piece, str) else piece
    return piece.encode() if isinstance(piece, str) else piece


def _steps(decoder: dict) -> list[Callable[[str], Piece]]:
    match decoder:
        case {"type": "Sequence", "decoders": [*first, {"type": "Fuse"}, {"type": "Strip", "content": " ", "stop": 0}]}:
            return [_step(d) for d in first]  # joined, and the text's first space taken off: see above
        case {"type": "Sequence", "decoders": [*first, {"type": "Fuse"}]}:
            return [_step(d) for d in first]
        case {"type": "Sequence", "decoders": several}:
            return [_step(d) for d in several]
        case {"type": "ByteLevel"}:
            return [_byte_level]
    return [_step(decoder)]


def _step(decoder: dict) -> Callable[[str], Piece]:
    match decoder:
        case {"type": "ByteFallback"}:
            return _byte_fallback
        case {"type": "Replace", "pattern": {"String": old}, "content": new}:
            return lambda token: token.replace(old, new)
        case {"type": "Metaspace", "replacement": mark}:
            return lambda token: token.replace(mark, " ")
    raise ValueError(f"the tokenizer's decoder ({decoder['type']}) does not give each token its bytes, which stop strings need")


def _byte_level(token: str) -> bytes:
    """GPT-2's letters for bytes; a token with any other letter stands for its own text."""
    return bytes(BYTE_OF[c] for c in token) if all(c in BYTE_OF for c in token) else token.encode()


def _byte_fallback(token: str) -> Piece:
    return bytes.fromhex(token[3:5]) if re.fullmatch("<0x[0-9A-Fa-f]{2}>", token) else token
