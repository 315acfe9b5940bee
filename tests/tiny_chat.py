"""A chat model that needs no download: bytes in a template, and a table of laws whose greedy text runs through the alphabet and ends."""

import functools

import numpy as np

from specjax import LM
from specjax.models import toy

END, LETTERS = 256, b"abcdefghijklmnop"
BEFORE, AFTER = b"<u>", b"</u><a>"


class Chat(toy.ByteTokenizer):
    has_template = True

    def chat(self, messages):
        return self.encode("".join(f"<{m['role'][0]}>{m['content']}</{m['role'][0]}>" for m in messages) + "<a>")


@functools.cache
def target() -> LM:
    """Every letter is most likely followed by the next one, the last by the end; after anything else stands any letter, 'a' first."""
    law = np.zeros((257, 257))
    law[:, list(LETTERS)] = 1 / 32
    law[:, LETTERS[0]] += 1 / 2
    for letter, following in zip(LETTERS, [*LETTERS[1:], END], strict=True):
        law[letter] = 0
        law[letter, list(LETTERS)] = 1 / 64
        law[letter, following] += 1 / 2
        law[letter, END] += 1 / 4
    return LM(*toy.table(law), Chat(), "toy chat")


def files(folder) -> dict[str, bytes]:
    """All that a folder holds but its lock."""
    return {p.name: p.read_bytes() for p in sorted(folder.iterdir()) if p.name != ".lock"}
