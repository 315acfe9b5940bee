"""The tokenizer in a GGUF file's tables, built to give the ids llama.cpp gives: byte-level BPE ("gpt2") and SentencePiece's BPE ("llama").

The file names the way text is cut before merging and does not describe it: the patterns below are those of the tokenizers so named.
llama.cpp's are the same but for two shortcuts, which are not taken here: no NFC for qwen2, and ASCII's capitals only for tekken.
"""

from __future__ import annotations

import collections
import math
import reprlib
from typing import NamedTuple

from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Backend

from specjax.models.load.fields import Fields
from specjax.models.load.gguf_file import File
from specjax.models.load.tokenizer import Tokenizer

UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 2, 3, 4, 5, 6  # the file's kinds of tokens that matter here
END_OF_TURN = ("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<end_of_turn>")  # end an answer though the file may not say so
LONGEST = 256  # letters of a SentencePiece token that is looked at in all its halves

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


class Pre(NamedTuple):
    """What a name in tokenizer.ggml.pre stands for."""

    patterns: tuple[str, ...]  # each cuts further what the ones before it have left whole
    whole: bool = False  # a piece that is a token is not built by merges
    add_bos: bool = False  # where the file does not say
    nfc: bool = False  # letters and their accents are joined first


PRE = {
    "default": Pre((r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]")),
    "gpt-2": Pre((GPT2,)),
    "smollm": Pre((r"\p{N}", GPT2)),
    "llama-bpe": Pre((LLAMA3,), whole=True, add_bos=True),
    "qwen2": Pre((QWEN2,), nfc=True),
    "tekken": Pre((TEKKEN,), whole=True, add_bos=True),
}


def from_gguf(file: File) -> Tokenizer | None:
    """The file's tokenizer; None if it has none. ValueError names a kind that is not supported, or a table that cannot be."""
    fields = Fields(lambda name: file.get(f"tokenizer.{name}"), "tokenizer.")
    kind = fields.text("ggml.model", None)
    if kind is None:
        return None
    if kind not in ("gpt2", "llama"):
        raise ValueError(f"tokenizer.ggml.model={reprlib.repr(kind)} is not supported; supported: gpt2, llama")
    tokens, types = _tokens(fields)
    if kind == "gpt2":
        pre = _pre(fields)
        backend, bos_default = _byte_level(fields, tokens, pre), pre.add_bos
    else:
        backend, bos_default = _sentencepiece(fields, tokens, types), True
    _add_special(backend, tokens, types, strip=kind == "llama" and file.get("general.architecture") == "phi3")
    ends = [backend.token_to_id(t) for t, k in zip(tokens, types, strict=True) if k in (CONTROL, USER_DEFINED) and t in END_OF_TURN]
    eos = [file.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot", "eom")]
    return Tokenizer(
        backend,
        bos_id=file.get("tokenizer.ggml.bos_token_id"),
        eos_ids=[*eos, *ends],
        add_bos=fields.flag("ggml.add_bos_token", bos_default),
        template=fields.text("chat_template", None),
    )


def _add_special(backend: Backend, tokens: list[str], types: list[int], strip: bool) -> None:
    """Tokens that are found in a text before anything is cut. strip: most take the white space behind them (Phi-3's do)."""
    added = [
        AddedToken(token, special=kind != USER_DEFINED, normalized=False, rstrip=strip and token not in ("<s>", "<unk>", "<|endoftext|>"))
        for token, kind in zip(tokens, types, strict=True)
        if kind in (UNKNOWN, CONTROL, USER_DEFINED)
    ]
    backend.add_tokens(added)  # at once: each call builds its automaton anew


def _tokens(fields: Fields) -> tuple[list[str], list[int]]:
    """Texts and kinds of all tokens. Those at the end that are never used fill a padded vocabulary up, and are left out."""
    tokens, types = _list(fields, "ggml.tokens", str), _list(fields, "ggml.token_type", int)
    if len(tokens) != len(types):
        raise ValueError(f"tokenizer.ggml.token_type has {len(types)} entries, tokenizer.ggml.tokens {len(tokens)}: should be as many")
    count = len(tokens)
    while count and types[count - 1] == UNUSED:
        count -= 1
    token, times = collections.Counter(tokens[:count]).most_common(1)[0] if count else ("", 1)
    if times > 1:
        raise ValueError(f"tokenizer.ggml.tokens has {reprlib.repr(token)} {times} times, should have it once")
    return tokens[:count], types[:count]


def _list(fields: Fields, name: str, kind: type) -> list:
    values = fields.list(name)
    if odd := [value for value in values[:1] if type(value) is not kind]:  # a list in a GGUF file is of one kind
        raise ValueError(f"tokenizer.{name} begins with {reprlib.repr(odd[0])}, should be a list of {kind.__name__}")
    return values


def _pre(fields: Fields) -> Pre:
    name = fields.text("ggml.pre")
    if name not in PRE:
        raise ValueError(f"tokenizer.ggml.pre={reprlib.repr(name)} is not supported; supported: {', '.join(PRE)}")
    return PRE[name]


def _byte_level(fields: Fields, tokens: list[str], pre: Pre) -> Backend:
    merges = [tuple(merge.split(" ")) for merge in _list(fields, "ggml.merges", str)]
    if odd := [" ".join(merge) for merge in merges if len(merge) != 2]:
        raise ValueError(f"tokenizer.ggml.merges has {reprlib.repr(odd[0])}, should be two tokens and a space")
    backend = _backend(tokens, merges, ignore_merges=pre.whole)
    cuts = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in pre.patterns]
    backend.pre_tokenizer = pre_tokenizers.Sequence([*cuts, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    backend.decoder = decoders.ByteLevel()
    if pre.nfc:
        backend.normalizer = normalizers.NFC()
    return backend


def _sentencepiece(fields: Fields, tokens: list[str], types: list[int]) -> Backend:
    """Neighbours whose union has the highest score are joined first; what then is no token is written in bytes."""
    scores = _list(fields, "ggml.scores", float)
    if len(scores) < len(tokens):
        raise ValueError(f"tokenizer.ggml.scores has {len(scores)} entries for {len(tokens)} tokens")
    if not all(map(math.isfinite, scores)):
        raise ValueError("tokenizer.ggml.scores holds NaN or infinity")
    unknown = next((t for t, kind in zip(tokens, types, strict=True) if kind == UNKNOWN), None)
    backend = _backend(tokens, _merges(tokens, types, scores), byte_fallback=True, unk_token=unknown, fuse_unk=True)
    prefix = fields.flag("ggml.add_space_prefix", True)
    spaces = normalizers.Replace(" ", "▁")
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), spaces]) if prefix else spaces
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if prefix else steps)
    return backend


def _merges(tokens: list[str], types: list[int], scores: list[float]) -> list[tuple[str, str]]:
    """All ways to make a token of two others, best score first; of one token's, in the order of its halves' ids as transformers has it."""
    id_of = {token: i for i, token in enumerate(tokens)}
    ranked = []
    for token, i in id_of.items():
        if types[i] in (UNKNOWN, CONTROL, USER_DEFINED, BYTE):  # never made by merging
            continue
        if len(token) > LONGEST:
            raise ValueError(f"tokenizer.ggml.tokens: id {i} has {len(token)} letters, at most {LONGEST} are supported")
        halves = [(token[:cut], token[cut:]) for cut in range(1, len(token))]
        ranked += [(-scores[i], i, id_of[a], id_of[b], a, b) for a, b in halves if a in id_of and b in id_of]
    return [(a, b) for *_, a, b in sorted(ranked)]


def _backend(tokens: list[str], merges: list[tuple[str, str]], **options) -> Backend:
    try:
        return Backend(models.BPE({token: i for i, token in enumerate(tokens)}, merges, **options))
    except Exception as error:  # the package raises nothing narrower
        raise ValueError(f"tokenizer.ggml.merges do not fit tokenizer.ggml.tokens: {error}") from None
