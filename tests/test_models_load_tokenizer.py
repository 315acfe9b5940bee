"""Tokenizers: round trips, special tokens, chats through sandboxed templates, and comparing two vocabularies."""

import json

import pytest
import real_model
import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers, processors

from specjax.models.load import tokenizer as loading
from specjax.models.load.tokenizer import Tokenizer

LETTERS = sorted(pre_tokenizers.ByteLevel.alphabet())
SPECIAL = ["<s>", "</s>", "<|end|>"]
MERGES = [("h", "e"), ("l", "l"), ("he", "ll"), ("hell", "o"), ("Ġ", "hello"), ("1", "2")]
TOKENS = SPECIAL + LETTERS + ["".join(pair) for pair in MERGES]
CHAT = "{% for m in messages %}<s>{{ m['content'] }}<|end|>{% endfor %}"


def backend():
    made = tokenizers.Tokenizer(models.BPE({token: i for i, token in enumerate(TOKENS)}, MERGES))
    made.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(False)])
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL])
    return made


@pytest.fixture
def folder(tmp_path):
    made = backend()
    made.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    made.enable_truncation(4)
    made.enable_padding(length=4)
    made.save(str(tmp_path / "tokenizer.json"))
    put(tmp_path, "tokenizer_config.json", {"bos_token": {"content": "<s>"}, "eos_token": "</s>", "chat_template": CHAT})
    put(tmp_path, "generation_config.json", {"eos_token_id": [2, 1]})
    return tmp_path


def put(folder, name, content):
    (folder / name).write_text(json.dumps(content))


def test_folder(folder):
    tokenizer = loading.from_folder(folder)
    assert (tokenizer.bos_id, tokenizer.eos_ids, tokenizer.add_bos) == (0, (1, 2), True)
    assert (tokenizer.vocab_size, tokenizer.has_template) == (len(TOKENS), True)
    long = "hello" * 9
    assert tokenizer.encode(long, add_bos=False) == [TOKENS.index("hello")] * 9  # neither truncated nor padded
    assert tokenizer.encode(long) == [0] + [TOKENS.index("hello")] * 9


def test_config_may_switch_bos_off(folder):
    put(folder, "tokenizer_config.json", {"bos_token": "<s>", "add_bos_token": False})
    assert loading.from_folder(folder).encode("hello") == [TOKENS.index("hello")]


def test_bos_and_eos_that_stand_elsewhere(folder):
    """BOS in the post-processor alone, as where there is no tokenizer_config.json; EOS in the model's config."""
    (folder / "tokenizer_config.json").unlink()
    put(folder, "config.json", {"eos_token_id": 1})
    tokenizer = loading.from_folder(folder)
    assert (tokenizer.bos_id, tokenizer.add_bos, tokenizer.eos_ids) == (0, True, (2, 1))
    (folder / "generation_config.json").unlink()
    assert loading.from_folder(folder).eos_ids == (1,)
    backend().save(str(folder / "tokenizer.json"))
    assert loading.from_folder(folder).bos_id is None


def test_template_file_goes_before_the_config(folder):
    (folder / "chat_template.jinja").write_text("file")
    assert loading.from_folder(folder).render([]) == "file"


def test_default_of_several_templates(folder):
    several = [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "plain"}]
    put(folder, "tokenizer_config.json", {"chat_template": several})
    assert loading.from_folder(folder).render([]) == "plain"


def test_folder_without_tokenizer(tmp_path):
    assert loading.from_folder(tmp_path) is None
    (tmp_path / "tokenizer.model").write_bytes(b"")
    with pytest.raises(ValueError, match=r"tokenizer\.model without tokenizer\.json is not supported"):
        loading.from_folder(tmp_path)


@pytest.mark.parametrize("text", ["", "{}", '{"version": "1.0", "mod'])
def test_damaged_file_is_named(tmp_path, text):
    (tmp_path / "tokenizer.json").write_text(text)
    with pytest.raises(ValueError, match=r"^tokenizer\.json is not a whole tokenizer: [^\n]*$"):
        loading.from_folder(tmp_path)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("tokenizer_config.json", {"bos_token": 5}, "tokenizer_config.json: token 5 should be a string"),
        ("tokenizer_config.json", {"eos_token": {}}, "tokenizer_config.json: token {} should be a string"),
        ("tokenizer_config.json", {"eos_token": "<nowhere>"}, "tokenizer_config.json: token '<nowhere>' is not in tokenizer.json"),
        ("tokenizer_config.json", {"add_bos_token": "false"}, "add_bos_token='false' should be true or false"),
        ("tokenizer_config.json", {"chat_template": 5}, "tokenizer_config.json: chat_template=5 should be a string"),
        ("tokenizer_config.json", {"chat_template": ["x"]}, "tokenizer_config.json: chat_template: 'x' should be an object with name"),
        ("tokenizer_config.json", {"chat_template": [{"name": "default"}]}, "should be an object with name and template"),
        ("generation_config.json", {"eos_token_id": -1}, "the id of BOS or EOS, -1, should be a whole number under 265"),
        ("generation_config.json", {"eos_token_id": [265]}, "the id of BOS or EOS, 265, should be a whole number under 265"),
        ("generation_config.json", {"eos_token_id": [[2]]}, r"the id of BOS or EOS, \[2\], should be a whole number"),
        ("generation_config.json", {"eos_token_id": True}, "the id of BOS or EOS, True, should be a whole number"),
        ("generation_config.json", {"eos_token_id": ["2"]}, "the id of BOS or EOS, '2', should be a whole number"),
        ("generation_config.json", [], "generation_config.json: must be a JSON object"),
    ],
)
def test_value_of_another_kind_is_named(folder, name, content, message):
    put(folder, name, content)
    with pytest.raises(ValueError, match=message):
        loading.from_folder(folder)


FILES = ["tokenizer.json", "tokenizer_config.json", "generation_config.json", "chat_template.jinja"]


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("put", [lambda path: path.symlink_to("nowhere"), lambda path: path.symlink_to(path), lambda path: path.mkdir()])
def test_file_that_cannot_be_read_is_not_an_absent_one(folder, name, put):
    (folder / name).unlink(missing_ok=True)
    put(folder / name)
    with pytest.raises(ValueError, match=name):
        loading.from_folder(folder)


def test_template_file_that_is_no_text(folder):
    (folder / "chat_template.jinja").write_bytes(b"\xff")
    with pytest.raises(ValueError, match=r"^chat_template\.jinja cannot be read: [^\n]+$"):
        loading.from_folder(folder)


def test_text_that_a_tokenizer_cannot_encode(tmp_path):
    words = tokenizers.Tokenizer(models.WordLevel({"a": 0}, unk_token="[UNK]"))
    with pytest.raises(ValueError, match=r"^the tokenizer cannot encode 'b': .*UNK"):
        Tokenizer(words).encode("b")
    words.model = models.WordLevel({"b": 0}, unk_token="[UNK]")
    words.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(ValueError, match=r"^the tokenizer cannot encode 'a': .*UNK"):
        loading.from_folder(tmp_path)


def test_tokenizer_without_tokens(tmp_path):
    tokenizers.Tokenizer(models.BPE({}, [])).save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(ValueError, match="the tokenizer has no tokens"):
        loading.from_folder(tmp_path)


def make(template=None, **options):
    return Tokenizer(backend(), **{"bos_id": 0, "eos_ids": (1,), "template": template} | options)


@pytest.mark.parametrize("template", ["{{ bos_token }}hello", "hello"])
@pytest.mark.parametrize("add_bos", [True, False])
def test_bos_neither_missing_nor_doubled(template, add_bos):
    wanted = [0] if add_bos or "bos" in template else []
    assert make(template, add_bos=add_bos).chat([]) == [*wanted, TOKENS.index("hello")]


def test_add_bos_without_bos():
    with pytest.raises(ValueError, match="add_bos=True, but this tokenizer has no BOS token"):
        make(bos_id=None).encode("a", add_bos=True)


def test_chat_recognises_special_tokens():
    assert make(CHAT).chat([{"role": "user", "content": "hello"}]) == [0, TOKENS.index("hello"), 2]


MISTRAL = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}[{{ m.content }}]{% else %}{{ m.content ~ eos_token }}{% endif %}"
    "{% endfor %}"
)
LLAMA2 = (
    "{% for m in messages %}{% if m.role == 'user' %}{{ bos_token ~ m.content }}{% else %}{{ m.content ~ eos_token }}{% endif %}"
    "{% endfor %}"
)
TURNS = [{"role": role, "content": "hello"} for role in ("user", "assistant", "user")]


@pytest.mark.parametrize("add_bos", [True, False])
@pytest.mark.parametrize(
    ("template", "wanted"),
    [  # ids of <s> and </s> are 0 and 1
        (MISTRAL, ["<s>", "[", "hello", "]", "hello", "</s>", "[", "hello", "]"]),
        (LLAMA2, ["<s>", "hello", "hello", "</s>", "<s>", "hello"]),  # one BOS a turn, as the model was trained
    ],
)
def test_whole_conversation(template, wanted, add_bos):
    tokenizer = make(template, add_bos=add_bos)
    assert [tokenizer.token(i) for i in tokenizer.chat(TURNS)] == wanted


def test_template_runs_as_in_transformers():
    template = """{%- for m in messages %}
    {% if m.role == 'skip' %}
        {% continue %}
    {% endif %}
{{ m.content | tojson }}
{% endfor %}
{% if add_generation_prompt and tools is none %}{{ bos_token ~ eos_token }}{% endif %}"""
    chat = [{"role": "user", "content": "<é'>"}, {"role": "skip", "content": "x"}]
    assert make(template).render(chat) == '"<é\'>"\n<s></s>'


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{{ raise_exception('roles must alternate') }}", "refused the messages: roles must alternate"),
        ("{{ messages.append(1) }}", "refused the messages: .*unsafe|not safely"),
        ("{{ ''.__class__.__mro__ }}", "refused the messages: access to attribute '__class__'"),
        ("{% for %}", "refused the messages"),
        ("{{ 1 / 0 }}", "refused the messages: division by zero"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "refused the messages: maximum recursion"),
        ("{{ messages[0].content.nothing.more }}", "refused the messages"),
    ],
)
def test_template_cannot_misbehave(template, message):
    with pytest.raises(ValueError, match=message):
        make(template).chat([])


def test_chat_without_template():
    with pytest.raises(ValueError, match="no chat template"):
        make().chat([])


@pytest.mark.real
def test_real_chat_and_round_trip():
    tokenizer = real_model.smollm2().tokenizer
    system = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
    chat = [{"role": "user", "content": "Hi 123"}]
    assert tokenizer.render(chat) == (
        f"<|im_start|>system\n{system}<|im_end|>\n<|im_start|>user\nHi 123<|im_end|>\n<|im_start|>assistant\n"
    )
    assert tokenizer.chat(chat)[-14:] == [1, 4093, 198, 26843, 216, 33, 34, 35, 2, 198, 1, 520, 9531, 198]
    assert (tokenizer.bos_id, tokenizer.eos_ids, tokenizer.add_bos, tokenizer.vocab_size) == (1, (2,), False, 49152)
    text = "  two  spaces\t\ttabs\r\n x²½ ٣٤ I'LL we'll 日本語 😀👍🏽 <|im_end|>a 0x1F3 1,234.5\n\n\n   end   "
    assert tokenizer.decode(tokenizer.encode(text), skip_special=False) == text
    assert tokenizer.encode("I'll say 12 naïve\n\n x<|im_end|>") == [
        57, 3060, 1643, 216, 33, 34, 15486, 46494, 1116, 1792, 2,
    ]  # what llama.cpp gives too  # fmt: skip
