"""Text to token ids and back, from tokenizer.json or a GGUF file's tables; chats by the checkpoint's own template."""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from pathlib import Path

import jinja2
import tokenizers
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import AddedToken, decoders, models, pre_tokenizers

from specjax.models.load import gguf
from specjax.models.load.fields import Fields, read_json

CONTROL, USER_DEFINED, UNUSED = 3, 4, 5  # GGUF's token types that matter here
PRE_TOKENIZERS = {  # GGUF names the way text is cut before merging, and does not describe it
    "smollm": lambda: [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)],
}


class Tokenizer:
    """A checkpoint's tokenizer. Ids are Python ints; `vocab_size` is one more than the largest."""

    def __init__(self, backend: tokenizers.Tokenizer, *, bos_id=None, eos_ids=(), add_bos=False, template=None):
        backend.no_truncation()  # tokenizer.json may carry the settings of somebody's training run
        backend.no_padding()
        self._backend = backend
        self._template = template
        self.bos_id: int | None = bos_id
        self.eos_ids: tuple[int, ...] = tuple(eos_ids)  # the first is the one a template writes
        self.add_bos: bool = add_bos and bos_id is not None  # the checkpoint's texts begin with BOS
        self.vocab_size: int = max(backend.get_vocab(with_added_tokens=True).values(), default=-1) + 1
        if not self.vocab_size:
            raise ValueError("the tokenizer has no tokens")
        if odd := [i for i in (bos_id, *self.eos_ids) if i is not None and type(i) is not int]:
            raise ValueError(f"the id of BOS or EOS, {odd[0]!r}, should be a whole number")

    @property
    def has_template(self) -> bool:
        return self._template is not None

    def encode(self, text: str, *, add_bos: bool | None = None) -> list[int]:
        """Ids of a text. No special token is added but BOS, if `add_bos` (None: as the checkpoint was trained)."""
        ids = self._backend.encode(text, add_special_tokens=False).ids
        begin = self.add_bos if add_bos is None else add_bos
        if begin and self.bos_id is None:
            raise ValueError("add_bos=True, but this tokenizer has no BOS token: should be False")
        return [self.bos_id, *ids] if begin and ids[:1] != [self.bos_id] else ids

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        return self._backend.decode([int(i) for i in ids], skip_special_tokens=skip_special)

    def token(self, id: int) -> str:
        """The vocabulary's own entry for one id ('' if it has none): what two vocabularies are compared by."""
        return self._backend.id_to_token(id) or ""

    def render(self, messages: Sequence[dict[str, str]]) -> str:
        """The chat as the model was trained to read it, up to where its answer begins.

        Settings as in transformers' `apply_chat_template`, except that the date is not given: a prompt is the same text
        every day (templates that want one have a default). ValueError if there is no template, or it refuses the chat.
        """
        if self._template is None:
            raise ValueError("this tokenizer has no chat template: use plain text")
        given = {"messages": messages, "add_generation_prompt": True, "tools": None, "documents": None}
        given["bos_token"] = "" if self.bos_id is None else self.token(self.bos_id)
        given["eos_token"] = self.token(self.eos_ids[0]) if self.eos_ids else ""
        try:
            return _sandbox().from_string(self._template).render(given)
        except (jinja2.TemplateError, TypeError) as error:  # SecurityError, from the sandbox, is a TemplateError
            raise ValueError(f"the chat template refused the messages: {error}") from error

    def chat(self, messages: Sequence[dict[str, str]]) -> list[int]:
        """Ids of a chat of {"role", "content"} messages. BOS stands once, whether template or tokenizer brings it."""
        return self.encode(self.render(messages))


def from_folder(folder: Path) -> Tokenizer | None:
    """The tokenizer of a Hugging Face folder; None if it has none. ValueError if it has one without tokenizer.json."""
    if not (folder / "tokenizer.json").exists():
        for name in ("tokenizer.model", "vocab.json", "vocab.txt"):
            if (folder / name).exists():
                raise ValueError(f"{name} without tokenizer.json is not supported: save the fast tokenizer beside it")
        return None
    backend = _backend(folder / "tokenizer.json")
    config = _optional_json(folder / "tokenizer_config.json")
    bos = _id(backend, config.get("bos_token"))
    more = _optional_json(folder / "generation_config.json").get("eos_token_id")
    eos = [_id(backend, config.get("eos_token")), *(more if isinstance(more, list) else [more])]
    began = backend.encode("a").ids[:1] == [bos]  # what the file's own post-processor does
    return Tokenizer(
        backend,
        bos_id=bos,
        eos_ids=dict.fromkeys(i for i in eos if i is not None),
        add_bos=Fields(config.get, "tokenizer_config.json: ").flag("add_bos_token", began),
        template=_folder_template(folder, config),
    )


def _backend(path: Path) -> tokenizers.Tokenizer:
    try:
        return tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the package raises nothing narrower
        raise ValueError(f"{path.name} is not a whole tokenizer: {error}") from None


def from_gguf(file: gguf.File) -> Tokenizer | None:
    """The tokenizer in a GGUF file's tables; None if it has none. ValueError names a kind that is not supported."""
    kind = file.get("tokenizer.ggml.model")
    if kind is None:
        return None
    if kind != "gpt2":
        raise ValueError(f"tokenizer.ggml.model={kind!r} is not supported; supported: 'gpt2'")
    eos = [file.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot", "eom")]
    return Tokenizer(
        _byte_level_bpe(file),
        bos_id=file.get("tokenizer.ggml.bos_token_id"),
        eos_ids=dict.fromkeys(i for i in eos if i is not None),
        add_bos=file.get("tokenizer.ggml.add_bos_token", False),
        template=file.get("tokenizer.chat_template"),
    )


def _byte_level_bpe(file: gguf.File) -> tokenizers.Tokenizer:
    pre = file.get("tokenizer.ggml.pre")
    if pre not in PRE_TOKENIZERS:
        raise ValueError(f"tokenizer.ggml.pre={pre!r} is not supported; supported: {', '.join(PRE_TOKENIZERS)}")
    tokens, types = file.need("tokenizer.ggml.tokens"), file.need("tokenizer.ggml.token_type")
    while types and types[-1] == UNUSED:  # converters fill a padded vocabulary up with these
        types.pop()
    tokens = tokens[: len(types)]
    merges = [tuple(merge.split(" ")) for merge in file.need("tokenizer.ggml.merges")]
    backend = tokenizers.Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, merges))
    backend.pre_tokenizer = pre_tokenizers.Sequence(PRE_TOKENIZERS[pre]())
    backend.decoder = decoders.ByteLevel()
    added = [(t, kind) for t, kind in zip(tokens, types, strict=True) if kind in (CONTROL, USER_DEFINED)]
    backend.add_tokens([AddedToken(t, special=kind == CONTROL, normalized=False) for t, kind in added])
    return backend


def _folder_template(folder: Path, config: dict) -> str | None:
    if (file := folder / "chat_template.jinja").exists():
        return file.read_text(encoding="utf-8")
    template = config.get("chat_template")
    if isinstance(template, list):  # several, by name
        template = {t["name"]: t["template"] for t in template}.get("default")
    return template


def _optional_json(path: Path) -> dict:
    return read_json(path) if path.exists() else {}


def _id(backend: tokenizers.Tokenizer, token: str | dict | None) -> int | None:
    """The id of a special token as tokenizer_config.json writes it: a text, or a dict with its text."""
    text = token.get("content") if isinstance(token, dict) else token
    if token is not None and not isinstance(text, str):
        raise ValueError(f"tokenizer_config.json: token {token!r} should be a string or an object with content")
    return None if text is None else backend.token_to_id(text)


def _sandbox() -> ImmutableSandboxedEnvironment:
    """What a template may use: as in transformers, and nothing that reaches out of it."""
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"])
    env.filters["tojson"] = functools.partial(json.dumps, ensure_ascii=False)  # jinja2's own escapes for HTML
    env.globals["raise_exception"] = _raise
    return env


def _raise(message: str) -> None:
    raise jinja2.TemplateError(message)
