"""Continuations drawn from the draft, to be scored by the target like any other text (on-policy distillation: DistillSpec, Zhou et al.,
2310.08461; GKD, Agarwal et al., 2306.13649). A draft then learns at the places where its own mistakes lead.

They come out of the decode loop with a rule that accepts whatever was drafted, so that every kind of drafter draws them as it drafts; only
the last token of each round is the target's. Losses on the target's laws can learn from them; cross-entropy cannot, for the text says
what the draft says already.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from specjax import LM, Decoder, Sampling, refill
from specjax.rules import chain
from specjax.types import Law, Tree, struct


@struct
class AcceptAll:
    """Accept every draft of a chain, and emit from p after the last. What it writes is the draft's, not the target's."""

    name = "accept_all"
    exact = False
    one_hot_only = False
    trees = False
    drawn = ("iid", "without_replacement", "fixed")
    needs = "nothing"
    paper = "a tool of on-policy distillation: Zhou et al. 2023, 2310.08461"
    equation = "accept x; emit p after the last draft"

    def __call__(self, tree: Tree, token_M, p_MV, q_MV) -> Law:
        return chain.law(tree, jnp.ones_like(p_MV[:, 0]), p_MV, p_MV)


class Drawn(NamedTuple):
    """texts: (token, mask) of each prompt, in their order: int32 and bool, the mask true on the continuation. share: drafted tokens among
    the new ones; with drafts of K tokens near K / (K + 1)."""

    texts: list[tuple[np.ndarray, np.ndarray]]
    share: float


def draw(
    target: LM, drafter, prompts: Sequence[Sequence[int]], new_tokens: int, *, temperature: float = 1.0, seed: int = 0, batch: int = 32,
    size: int | None = None,
) -> Drawn:  # fmt: skip
    """Let the draft continue prompts, given as token ids, by at most `new_tokens` each; an EOS of either model ends one.

    temperature: of both models. seed: another one for each drawing, or the same prompts give the same noise. batch: rows of the decode
    loop. size: slots of its buffers, at least. Drafters that differ in their parameters only share a program, where batch and size do not
    change.
    """
    decoder = Decoder(target, drafter=drafter, rule=AcceptAll(), sampling=Sampling(temperature=temperature), seed=seed)
    done = dict(refill.decode_all(decoder, prompts, [new_tokens] * len(prompts), range(len(prompts)), batch, size))
    outputs = [done[i] for i in range(len(prompts))]
    texts = [_text(prompt, output.token_ids[0]) for prompt, output in zip(prompts, outputs, strict=True)]
    said, drafted = (sum(int(output.counts[name][0]) for output in outputs) for name in ("tokens", "accepted"))
    return Drawn(texts, drafted / max(said, 1))


def _text(prompt: Sequence[int], new: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    token = np.asarray([*prompt, *new], np.int32)
    return token, np.arange(len(token)) >= len(prompt)
