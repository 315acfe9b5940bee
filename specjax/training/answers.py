"""The target's own answers to given prompts: what it would say is what a draft should learn to say.

The draft is trained on the law it will be measured against (sequence-level distillation, Kim and Rush, 1606.07947; DistillSpec,
2310.08461). Answers run through the decode loop with refilled rows. An answer that its budget cut is kept: at each place of it the
target's law is as good as in one that came to its end.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from specjax import LM, Decoder, Sampling, api, parts, refill
from specjax import prompts as prompt_sets
from specjax.training import shards
from specjax.training.filters import Filters, Sieve, held_out
from specjax.training.shards import Folder, Text


@dataclasses.dataclass(frozen=True)
class Answering(Filters):
    """How the target answers. answer_tokens: at most. answer_temperature: of answers, one or several; answer_share: how often each is
    taken (None: equally often). cut: keep answers that the budget cut. batch: rows of the decode loop. share: how often each row of
    this source is read beside those of other sources, see `specjax.training.feed`."""

    answer_tokens: int = 192
    answer_temperature: tuple[float, ...] = (0.0,)
    answer_share: tuple[float, ...] | None = None
    cut: bool = True
    batch: int = 32
    share: float = 1.0

    def __post_init__(self):
        super().__post_init__()
        parts.whole("answer_tokens", self.answer_tokens, 1, 2**20)
        parts.whole("batch", self.batch, 1, 2**12)
        if not self.answer_temperature or min(self.answer_temperature) < 0:
            raise ValueError(f"answer_temperature={self.answer_temperature} must be a list of temperatures of at least 0")
        share = self.answer_share
        if share is not None and (len(share) != len(self.answer_temperature) or min(share) <= 0):
            raise ValueError(f"answer_share={share} must be one positive number for each of answer_temperature={self.answer_temperature}")

    def settings(self, **more) -> dict:
        """What the shards hang on."""
        return {k: v for k, v in dataclasses.asdict(self).items() if k not in ("share", "shards")} | more


@dataclasses.dataclass(frozen=True, kw_only=True)
class Answers(Answering):
    """Answers to a prompt set. prompts, limit, categories: as `specjax.prompts.load` takes them. chat: through the target's template.
    texts: prompts of a shard. The filters look at the prompt without its template, which all prompts have in common."""

    prompts: str
    limit: int | None = None
    categories: tuple[str, ...] | None = None
    chat: bool = True
    texts: int = 128

    def __post_init__(self):
        super().__post_init__()
        parts.whole("texts", self.texts, 1, 2**15)

    def asked(self) -> list[prompt_sets.Prompt]:
        return prompt_sets.load(self.prompts, limit=self.limit, categories=self.categories)

    def encoded(self, target: LM) -> list[list[int]]:
        """The first turn of each."""
        return api.encode(target, [prompt.turns[0] for prompt in self.asked()], self.chat)

    def check(self, target: LM, exclude: Sequence[str]) -> None:
        """What can be refused before anything is made."""
        self.encoded(target)


def make(plan: Answers, target: LM, folder: str | Path, progress: Callable[[str], None], exclude: Sequence[str] = (), seed: int = 0):
    """Shards of texts: prompt and answer, of which the answer is to be learnt. Only the first turn of a prompt is answered, others are
    counted as dropped. Returns the folder.

    Raises:
      ValueError: the prompts cannot be read or encoded, or the folder was made by other settings.
    """
    given, encoded = plan.asked(), plan.encoded(target)
    bare = dataclasses.replace(plan, chat=False).encoded(target)
    held = held_out(target.tokenizer, exclude)
    longest = max((len(asked) for asked, tokens in zip(encoded, bare, strict=True) if len(tokens) <= plan.max_tokens), default=1)
    answer = Answerer(plan, target, longest, seed)

    def one(n: int, seen: set[int]) -> tuple[list[Text], Counter]:
        sieve, asked = Sieve(plan, held, seen), []
        for i in range(n * plan.texts, min((n + 1) * plan.texts, len(given))):
            sieve.dropped.update({"later turn": len(given[i].turns) - 1} if len(given[i].turns) > 1 else {})
            if key := sieve.admit(bare[i], given[i].turns[0]):
                asked.append((encoded[i], given[i].id, key))
        return answer(n, asked, sieve), sieve.dropped

    digest = hashlib.sha256(json.dumps(encoded).encode()).hexdigest()
    made = shards.made_by("answers", plan.settings(encoded=digest, exclude=exclude, seed=seed), target)
    return shards.make(Folder(folder, made), -(-len(given) // plan.texts), one, progress)


class Answerer:
    """Lets the target answer. longest: tokens of any prompt, so that all of them share a program."""

    def __init__(self, plan: Answering, target: LM, longest: int, seed: int):
        self.plan, self.seed, self.size = plan, seed, longest + plan.answer_tokens + 1
        self.decoders = [Decoder(target, sampling=Sampling(temperature=t), seed=seed) for t in plan.answer_temperature]
        weight = np.asarray(plan.answer_share or np.ones(len(self.decoders)), np.float64)
        self.share = weight / weight.sum()

    def __call__(self, n: int, asked: Sequence[tuple[Sequence[int], int, tuple[int, int]]], sieve: Sieve) -> list[Text]:
        """The texts of shard n, in the order of `asked`: (tokens of the prompt, its id, its keys). Ids decide every draw."""
        which = np.random.default_rng([self.seed, n]).choice(len(self.decoders), len(asked), p=self.share)
        said = {}
        for d, decoder in enumerate(self.decoders):
            mine = np.flatnonzero(which == d).tolist()
            prompts, ids = [list(asked[i][0]) for i in mine], [asked[i][1] for i in mine]
            said |= zip(mine, decode(decoder, prompts, [self.plan.answer_tokens] * len(mine), ids, self.plan.batch, self.size), strict=True)
        kept = []
        for i, (prompt, _, key) in enumerate(asked):
            answer, ended = said[i]
            if sieve.passes(answer, ended or self.plan.cut):
                kept.append(Text([*prompt, *answer], [False] * len(prompt) + [True] * len(answer), key))
        return kept


def decode(decoder: Decoder, prompts: list[list[int]], budgets: list[int], ids: list[int], batch: int, size: int):
    """(new tokens, whether they came to an end) of each prompt. Few prompts are filled up with rows that have nothing to do, so that their
    number compiles nothing."""
    spare = max(0, batch - len(prompts)) if prompts else 0
    filled = prompts + prompts[:1] * spare, budgets + [0] * spare, ids + ids[:1] * spare
    done = dict(refill.decode_all(decoder, *filled, batch, size)) if prompts else {}
    return [(done[i].token_ids[0], done[i].finish_reasons[0] == "eos") for i in range(len(prompts))]
