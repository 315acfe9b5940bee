"""Text to token ids and back, by a folder's tokenizer.json; chats by the checkpoint's own template."""

from __future__ import annotations

import functools
import json
import os
import reprlib
from collections.abc import Sequence
from pathlib import Path

import jinja2
import tokenizers
from jinja2.sandbox import ImmutableSandboxedEnvironment

from specjax.models.load import pieces
from specjax.models.load.fields import Fields, read_json


class Tokenizer:
    """A checkpoint's tokenizer. Ids are Python ints; `vocab_size` is one more than the largest."""

    def __init__(self, backend: tokenizers.Tokenizer, *, bos_id=None, eos_ids=(), add_bos=False, template=None):
        self._backend = backend
        self._template = template
        self.bos_id: int | None = bos_id
        self.add_bos: bool = add_bos and bos_id is not None  # the checkpoint's texts begin with BOS
        self.vocab_size: int = max(backend.get_vocab(with_added_tokens=True).values(), default=-1) + 1
        if not self.vocab_size:
            raise ValueError("the tokenizer has no tokens")
        eos_ids = [i for i in eos_ids if i is not None]
        ids = [i for i in (bos_id, *eos_ids) if i is not None]
        if odd := [i for i in ids if type(i) is not int or not 0 <= i < self.vocab_size]:
            raise ValueError(f"the id of BOS or EOS, {odd[0]!r}, should be a whole number under {self.vocab_size}")
        self.eos_ids: tuple[int, ...] = tuple(dict.fromkeys(eos_ids))  # the first is the one a template writes

    @property
    def has_template(self) -> bool:
        return self._template is not None

    def encode(self, text: str, *, add_bos: bool | None = None) -> list[int]:
        """Ids of a text. No special token is added but BOS, if `add_bos` (None: as the checkpoint was trained)."""
        ids = _ids(self._backend, text)
        begin = self.add_bos if add_bos is None else add_bos
        if begin and self.bos_id is None:
            raise ValueError("add_bos=True, but this tokenizer has no BOS token: should be False")
        return [self.bos_id, *ids] if begin and ids[:1] != [self.bos_id] else ids

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        return self._backend.decode([int(i) for i in ids], skip_special_tokens=skip_special)

    def token(self, id: int) -> str:
        """The vocabulary's own entry for one id ('' if it has none): what two vocabularies are compared by."""
        return self._backend.id_to_token(id) or ""

    def token_bytes(self) -> list[bytes]:
        """What each id adds to a text; b"" where `decode` leaves it out. ValueError if its decoder is not known to `pieces`."""
        return pieces.token_bytes(self._backend)

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
        except Exception as error:  # a template is a stranger's program: whatever it raises, the sandbox's refusal too, is its answer
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise ValueError(f"the chat template refused the messages: {reason}") from error

    def chat(self, messages: Sequence[dict[str, str]]) -> list[int]:
        """Ids of a chat of {"role", "content"} messages. BOS stands once, whether template or tokenizer brings it."""
        return self.encode(self.render(messages))


def from_folder(folder: Path) -> Tokenizer | None:
    """The tokenizer of a Hugging Face folder; None if it has none. ValueError if it has one without tokenizer.json."""
    if not os.path.lexists(folder / "tokenizer.json"):
        for name in ("tokenizer.model", "vocab.json", "vocab.txt"):
            if (folder / name).exists():
                raise ValueError(f"{name} without tokenizer.json is not supported: save the fast tokenizer beside it")
        return None
    backend = _backend(folder / "tokenizer.json")
    config = Fields(_optional_json(folder / "tokenizer_config.json").get, "tokenizer_config.json: ")
    bos, first = _id(backend, config.get("bos_token")), _first(backend)
    bos = first if bos is None else bos
    generation = folder / "generation_config.json"  # without it transformers takes these ids from the model's config
    more = _optional_json(generation if os.path.lexists(generation) else folder / "config.json").get("eos_token_id")
    eos = [_id(backend, config.get("eos_token")), *(more if isinstance(more, list) else [more])]
    return Tokenizer(
        backend,
        bos_id=bos,
        eos_ids=eos,
        add_bos=config.flag("add_bos_token", bos == first),
        template=_folder_template(folder, config),
    )


def _backend(path: Path) -> tokenizers.Tokenizer:
    try:
        backend = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the package raises nothing narrower
        raise ValueError(f"{path.name} is not a whole tokenizer: {error}") from None
    backend.no_truncation()  # the file may carry the settings of somebody's training run
    backend.no_padding()
    return backend


def _ids(backend: tokenizers.Tokenizer, text: str, special: bool = False) -> list[int]:
    try:
        return backend.encode(text, add_special_tokens=special).ids
    except Exception as error:  # the package raises nothing narrower
        raise ValueError(f"the tokenizer cannot encode {reprlib.repr(text)}: {error}") from error


def _first(backend: tokenizers.Tokenizer) -> int | None:
    """The id that the file's own post-processor puts before a text, if it puts one there."""
    first, *rest = [*_ids(backend, "a", special=True), None]
    text = _ids(backend, "a")
    return first if rest[: len(text)] == text else None


def _folder_template(folder: Path, config: Fields) -> str | None:
    if os.path.lexists(file := folder / "chat_template.jinja"):
        try:
            return file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ValueError(f"{file.name} cannot be read: {error}") from None
    if not isinstance(config.get("chat_template"), list):
        return config.text("chat_template", None)
    for named in config.list("chat_template"):  # several, by name
        if not isinstance(named, dict) or not isinstance(named.get("template"), str):
            raise ValueError(f"{config.where}chat_template: {reprlib.repr(named)} should be an object with name and template")
        if named.get("name") == "default":
            return named["template"]
    return None


def _optional_json(path: Path) -> dict:
    """Empty where there is no such file; a link that leads nowhere is an error."""
    return read_json(path) if os.path.lexists(path) else {}


def _id(backend: tokenizers.Tokenizer, token: str | dict | None) -> int | None:
    """The id of a special token as tokenizer_config.json writes it: a text, or a dict with its text."""
    text = token.get("content") if isinstance(token, dict) else token
    if token is not None and not isinstance(text, str):
        raise ValueError(f"tokenizer_config.json: token {token!r} should be a string or an object with content")
    if (id := None if text is None else backend.token_to_id(text)) is None and text is not None:
        raise ValueError(f"tokenizer_config.json: token {text!r} is not in tokenizer.json")
    return id


def _sandbox() -> ImmutableSandboxedEnvironment:
    """What a template may use: as in transformers, and nothing that reaches out of it."""
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"])
    env.filters["tojson"] = functools.partial(json.dumps, ensure_ascii=False)  # jinja2's own escapes for HTML
    env.globals["raise_exception"] = _raise
    return env


def _raise(message: str) -> None:
    raise jinja2.TemplateError(message)
