"""Tokenizers from GGUF tables: the ids llama.cpp gives (written down here, and asked of it where it is installed), and damaged tables."""

import types

import gguf as ggml
import pytest
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from specjax.models.load import gguf_tokenizer as loading

LETTERS = sorted(pre_tokenizers.ByteLevel.alphabet())
SPECIAL = ["<s>", "</s>", "<|end|>"]
MERGES = [("h", "e"), ("l", "l"), ("he", "ll"), ("hell", "o"), ("Ġ", "hello"), ("1", "2"), ("12", "3"), ("Ċ", "Ċ")]
TOKENS = SPECIAL + LETTERS + ["".join(pair) for pair in MERGES]
NORMAL, UNKNOWN, CONTROL, USER, UNUSED, BYTE = range(1, 7)


def bpe(**changes):
    return {
        "model": "gpt2", "pre": "smollm", "tokens": TOKENS, "token_type": [CONTROL] * 3 + [NORMAL] * (len(TOKENS) - 3),
        "merges": [" ".join(pair) for pair in MERGES], "bos_token_id": 0, "eos_token_id": 1,
    } | changes  # fmt: skip


BYTES = [f"<0x{i:02X}>" for i in range(256)]
PIECES = ["▁", "h", "e", "l", "o", "w", "r", "d", "▁h", "el", "lo", "▁hel", "▁hello", "▁w", "or", "▁wor", "ld", "▁world", "▁▁", "é"]
SPM_TOKENS = ["<unk>", "<s>", "</s>", *BYTES, *PIECES]


def spm(**changes):
    return {
        "model": "llama", "tokens": SPM_TOKENS, "token_type": [UNKNOWN, CONTROL, CONTROL, *[BYTE] * 256, *[NORMAL] * len(PIECES)],
        "scores": [0.0] * 259 + [-float(i) for i in range(len(PIECES))], "bos_token_id": 1, "eos_token_id": 2,
    } | changes  # fmt: skip


def file(table, **more):
    fields = {f"tokenizer.ggml.{key}": value for key, value in table.items() if value is not None} | more
    return types.SimpleNamespace(get=lambda key, default=None: fields.get(key, default))


def made(table, **more):
    return loading.from_gguf(file(table, **more))


def texts(tokenizer, text):
    return [tokenizer.token(i) for i in tokenizer.encode(text, add_bos=False)]


# ---------------------------------------------------------------- byte-level BPE


@pytest.mark.parametrize(
    ("pre", "text", "wanted"),
    [
        ("smollm", "hello hello1234", ["hello", "Ġhello", "1", "2", "3", "4"]),
        ("gpt-2", "hello hello1234", ["hello", "Ġhello", "123", "4"]),
        ("default", "hello hello1234", ["hello", "Ġhello", "123", "4"]),
        ("llama-bpe", "hello hello1234", ["hello", "Ġhello", "123", "4"]),
        ("qwen2", "hello hello12", ["hello", "Ġhello", "1", "2"]),
        ("tekken", "hello hello12", ["hello", "Ġhello", "1", "2"]),
        ("gpt-2", "a\n\nhello", ["a", "Ċ", "Ċ", "hello"]),  # the last white space goes with what follows, or stands alone
        ("llama-bpe", "a\n\nhello", ["a", "ĊĊ", "hello"]),
        ("gpt-2", "12345678", ["123", *"45678"]),
        ("default", "12312345", ["123", "123", *"45"]),
        ("llama-bpe", "<|end|>hello</s>", ["<|end|>", "hello", "</s>"]),
    ],
)
def test_text_is_cut_as_the_name_says(pre, text, wanted):
    assert texts(made(bpe(pre=pre)), text) == wanted


def test_round_trip_and_special_tokens():
    tokenizer = made(bpe(eot_token_id=2))
    text = " hello hello12 3\n\nnaïve 日本 <|end|>hello"
    assert tokenizer.decode(tokenizer.encode(text), skip_special=False) == text
    assert tokenizer.decode(tokenizer.encode(text)) == text.replace("<|end|>", "")
    assert b"".join(tokenizer.token_bytes()[i] for i in tokenizer.encode(text)).decode() == text.replace("<|end|>", "")
    assert (tokenizer.bos_id, tokenizer.eos_ids, tokenizer.add_bos, tokenizer.has_template) == (0, (1, 2), False, False)


def test_token_that_no_merge_makes():
    """llama-bpe takes a piece that is a token as it is; gpt-2 merges, and cannot reach it."""
    table = bpe(tokens=[*TOKENS, "Ġworld"], token_type=[CONTROL] * 3 + [NORMAL] * (len(TOKENS) - 2))
    assert texts(made(table | {"pre": "llama-bpe"}), "hello world") == ["hello", "Ġworld"]
    assert texts(made(table | {"pre": "gpt-2"}), "hello world") == ["hello", "Ġ", *"world"]


def test_qwen_joins_accents_first():
    assert made(bpe(pre="qwen2")).encode("e\u0301") == made(bpe(pre="qwen2")).encode("\u00e9")


@pytest.mark.parametrize(("pre", "wanted"), [("gpt-2", False), ("llama-bpe", True), ("qwen2", False)])
def test_bos_where_the_file_does_not_say(pre, wanted):
    assert made(bpe(pre=pre)).add_bos is wanted
    assert made(bpe(pre=pre, add_bos_token=not wanted)).add_bos is not wanted
    assert not made(bpe(pre=pre, bos_token_id=None)).add_bos


def test_padding_tokens_are_no_tokens():
    table = bpe(tokens=[*TOKENS, "[PAD0]", "[PAD1]"])
    table["token_type"] = table["token_type"] + [UNUSED, UNUSED]
    assert made(table).vocab_size == len(TOKENS)


def test_user_defined_token_is_text():
    tokenizer = made(bpe(token_type=[CONTROL, CONTROL, USER] + [NORMAL] * (len(TOKENS) - 3)))
    assert texts(tokenizer, "a<|end|>") == ["a", "<|end|>"]
    assert tokenizer.decode([0, 2]) == "<|end|>"


def test_end_of_turn_ends_though_the_file_does_not_say_so():
    assert made(bpe()).eos_ids == (1, 2)
    assert made(bpe(tokens=["<s>", "</s>", "<|other|>", *TOKENS[3:]])).eos_ids == (1,)


def test_template():
    assert made(bpe(), **{"tokenizer.chat_template": "{{ bos_token }}hello"}).render([]) == "<s>hello"


# ---------------------------------------------------------------- SentencePiece


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("hello world", ["▁hello", "▁world"]),
        ("helo", ["▁hel", "o"]),
        ("  hello", ["▁▁", "▁hello"]),
        ("é日", ["▁", "é", "<0xE6>", "<0x97>", "<0xA5>"]),
        ("\n", ["▁", "<0x0A>"]),
        ("", []),
        ("</s>hello<s> world", ["</s>", "▁hello", "<s>", "▁", "▁world"]),  # a space also after a special token
    ],
)
def test_sentencepiece(text, wanted):
    tokenizer = made(spm())
    assert texts(tokenizer, text) == wanted
    assert tokenizer.decode(tokenizer.encode(text)) == text.replace("</s>", "").replace("<s>", " ")
    assert (tokenizer.bos_id, tokenizer.eos_ids, tokenizer.add_bos) == (1, (2,), True)


def test_without_space_prefix():
    tokenizer = made(spm(add_space_prefix=False))
    assert texts(tokenizer, "hello hello") == ["h", "el", "lo", "▁hello"]
    assert tokenizer.decode(tokenizer.encode(" hello")) == " hello"


def test_letter_without_byte_tokens_is_unknown():
    tokens = ["<unk>", "<s>", "</s>", *PIECES]
    table = spm(tokens=tokens, token_type=[UNKNOWN, CONTROL, CONTROL, *[NORMAL] * len(PIECES)], scores=[0.0] * len(tokens))
    assert texts(made(table), "日本h")[:2] == ["▁", "<unk>"]


def test_phi3_takes_white_space_behind_its_special_tokens():
    table = spm(tokens=[*SPM_TOKENS, "<|user|>"], scores=[0.0] * 259 + [-float(i) for i in range(len(PIECES) + 1)])
    table["token_type"] = table["token_type"] + [CONTROL]
    text = "<|user|>\nhello</s> hello<s> hello"
    phi3 = made(table, **{"general.architecture": "phi3"})
    assert texts(phi3, text) == ["<|user|>", "▁hello", "</s>", "▁hello", "<s>", "▁", "▁hello"]
    assert texts(made(table), text)[:4] == ["<|user|>", "▁", "<0x0A>", "h"]


# ---------------------------------------------------------------- the same asked of llama.cpp

VARIED = [
    "Hello world", "  two  spaces\t\ttabs\r\n\r\n x", "naïve café ½ x² ٣٤ १२", "I'LL we'll they're DON'T it'S", "日本語のテキスト 한국어",
    "😀👍🏽 emoji👩‍👩‍👧",
    "1234567 1,234.5 0x1F3 12a34", "<|end|>a </s> b<s>", "a\n\n\n   b   \n", "$+<=>^~| <<>> ... !!! foo_bar(baz)/qux",
    "\u00a0\u2003x\u200bz", "CamelCaseHTTP",
    " ", "\n", "", "e\u0301 \u00e9", "...\n\nnext//\n/x", "ÀÉ ßẞ Ǆ ǅ ǆ ʰx",
]  # fmt: skip
CORPUS = [*VARIED, "the quick brown fox jumps over the lazy dog and the hello world of words again, again 2024 1999 12 34"] * 3


def vocab_file(path, table):
    writer = ggml.GGUFWriter(path, "llama")
    writer.add_context_length(8)
    writer.add_embedding_length(8)
    writer.add_block_count(1)
    writer.add_feed_forward_length(8)
    writer.add_head_count(1)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model(table["model"])
    writer.add_token_list(table["tokens"])
    writer.add_token_types(table["token_type"])
    if "scores" in table:
        writer.add_token_scores(table["scores"])
    else:
        writer.add_tokenizer_pre(table["pre"])
        writer.add_token_merges(table["merges"])
    writer.add_bos_token_id(table["bos_token_id"])
    writer.add_eos_token_id(table["eos_token_id"])
    writer.add_add_space_prefix(table.get("add_space_prefix", True))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return str(path)


def trained(pre):
    """A byte-level BPE trained on the texts themselves, so that merges are many."""
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=900, initial_alphabet=LETTERS, show_progress=False))
    return table_of(backend, SPECIAL, pre=pre)


def table_of(backend, special, **more):
    import json

    model = json.loads(backend.to_str())["model"]
    learned = sorted(model["vocab"], key=model["vocab"].get)
    merges = [pair if isinstance(pair, str) else " ".join(pair) for pair in model["merges"]]
    tokens = [*special, *(t for t in learned if t not in special)]
    return bpe(tokens=tokens, token_type=[CONTROL] * 3 + [NORMAL] * (len(tokens) - 3), merges=merges, **more)


def trained_sentencepiece(**more):
    """Pieces in the order in which they were merged, which is what scores mean; single letters last."""
    backend = tokenizers.Tokenizer(models.BPE())
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    backend.decoder = decoders.Fuse()
    backend.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=500, max_token_length=8, show_progress=False))
    pieces = sorted(backend.get_vocab(), key=lambda t: (len(t) == 1, backend.get_vocab()[t]))
    pieces = [p for p in pieces if "日" not in p and p not in ("<s>", "</s>")]
    tokens = ["<unk>", "<s>", "</s>", *BYTES, *pieces]
    kinds = [UNKNOWN, CONTROL, CONTROL, *[BYTE] * 256, *[NORMAL] * len(pieces)]
    return spm(tokens=tokens, token_type=kinds, scores=[0.0] * 259 + [-float(i) for i in range(len(pieces))], **more)


def ids_of_llama_cpp(tmp_path, table):
    llama_cpp = pytest.importorskip("llama_cpp")
    model = llama_cpp.Llama(vocab_file(tmp_path / "v.gguf", table), vocab_only=True, verbose=False)
    return [model.tokenize(text.encode(), add_bos=False, special=True) for text in VARIED]


OTHERWISE = {  # where llama.cpp leaves the model's own tokenizer, and we do not
    "qwen2": ["e\u0301 \u00e9"],  # no NFC
    "tekken": ["ÀÉ ßẞ Ǆ ǅ ǆ ʰx"],  # of ASCII letters only it knows which are capitals
}


@pytest.mark.parametrize("pre", loading.PRE)
def test_byte_level_ids_are_llama_cpps(tmp_path, pre):
    table = trained(pre)
    wanted, tokenizer = ids_of_llama_cpp(tmp_path, table), made(table)
    other = [text for text, ids in zip(VARIED, wanted, strict=True) if tokenizer.encode(text, add_bos=False) != ids]
    assert other == OTHERWISE.get(pre, [])


@pytest.mark.parametrize("prefix", [True, False])
def test_sentencepiece_ids_are_llama_cpps(tmp_path, prefix):
    table = trained_sentencepiece(add_space_prefix=prefix)
    wanted, tokenizer = ids_of_llama_cpp(tmp_path, table), made(table)
    for text, ids in zip(VARIED, wanted, strict=True):
        assert tokenizer.encode(text, add_bos=False) == ids, text


# ---------------------------------------------------------------- damaged tables


def test_no_tokenizer():
    assert made({}) is None


@pytest.mark.parametrize(
    ("table", "changes", "message"),
    [
        (bpe, {"model": "t5"}, "tokenizer.ggml.model='t5' is not supported; supported: gpt2, llama"),
        (bpe, {"model": 5}, "tokenizer.ggml.model=5 should be a string"),
        (bpe, {"pre": "chatglm-bpe"}, "tokenizer.ggml.pre='chatglm-bpe' is not supported; supported: default, gpt-2, smollm, llama-bpe"),
        (bpe, {"pre": None}, "tokenizer.ggml.pre is missing or null, should be a string"),
        (bpe, {"pre": [1]}, r"tokenizer.ggml.pre=\[1\] should be a string"),
        (bpe, {"tokens": None}, "tokenizer.ggml.tokens is missing or null, should be a list"),
        (bpe, {"tokens": "abc"}, "tokenizer.ggml.tokens='abc' should be a list"),
        (bpe, {"tokens": [1, 2]}, "tokenizer.ggml.tokens begins with 1, should be a list of str"),
        (bpe, {"tokens": []}, "tokenizer.ggml.token_type has 267 entries, tokenizer.ggml.tokens 0: should be as many"),
        (bpe, {"tokens": [], "token_type": [], "merges": []}, "the tokenizer has no tokens"),
        (bpe, {"tokens": ["<s>", *TOKENS[:-1]]}, "tokenizer.ggml.tokens has '<s>' 2 times, should have it once"),
        (bpe, {"token_type": [1.0] * len(TOKENS)}, "tokenizer.ggml.token_type begins with 1.0, should be a list of int"),
        (bpe, {"token_type": [1]}, "tokenizer.ggml.token_type has 1 entries, tokenizer.ggml.tokens 267"),
        (bpe, {"merges": None}, "tokenizer.ggml.merges is missing or null, should be a list"),
        (bpe, {"merges": [5]}, "tokenizer.ggml.merges begins with 5, should be a list of str"),
        (bpe, {"merges": ["h e", "h e l"]}, "tokenizer.ggml.merges has 'h e l', should be two tokens and a space"),
        (bpe, {"merges": ["he"]}, "tokenizer.ggml.merges has 'he', should be two tokens and a space"),
        (bpe, {"merges": ["q z"]}, "tokenizer.ggml.merges do not fit tokenizer.ggml.tokens: "),
        (bpe, {"bos_token_id": "0"}, "the id of BOS or EOS, '0', should be a whole number under 267"),
        (bpe, {"eos_token_id": 267}, "the id of BOS or EOS, 267, should be a whole number under 267"),
        (bpe, {"eot_token_id": [2]}, r"the id of BOS or EOS, \[2\], should be a whole number"),
        (bpe, {"add_bos_token": 1}, "tokenizer.ggml.add_bos_token=1 should be true or false"),
        (spm, {"scores": None}, "tokenizer.ggml.scores is missing or null, should be a list"),
        (spm, {"scores": [0]}, "tokenizer.ggml.scores begins with 0, should be a list of float"),
        (spm, {"scores": [0.0]}, f"tokenizer.ggml.scores has 1 entries for {len(SPM_TOKENS)} tokens"),
        (spm, {"scores": [float("nan")] * len(SPM_TOKENS)}, "tokenizer.ggml.scores holds NaN or infinity"),
        (spm, {"add_space_prefix": "no"}, "tokenizer.ggml.add_space_prefix='no' should be true or false"),
        (spm, {"tokens": [*SPM_TOKENS[:-1], "x" * 10**6]}, "tokenizer.ggml.tokens: id 278 has 1000000 letters, at most 256 are supported"),
    ],
)
def test_damaged_table_is_named(table, changes, message):
    with pytest.raises(ValueError, match=f"^{message}") as error:
        made(table(**changes))
    assert "\n" not in str(error.value)
