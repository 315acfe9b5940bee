"""A target with everything else a decode loop needs, checked once: what the API, the runs and the tests drive."""

from __future__ import annotations

import dataclasses
import functools
import operator
import warnings
import zlib
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from specjax import decode, parts, sharding, stops
from specjax.lengths import match
from specjax.lm import LM
from specjax.parts import as_drafter
from specjax.rules import Greedy, Speculative
from specjax.sampling import Sampling, checked
from specjax.state import FINISH, Counts, Setup, State, Trace, new_state, pinned

BUCKET = 128  # buffers are a multiple of it, so that prompts of other lengths compile nothing


@dataclasses.dataclass(frozen=True)
class Output:
    """What was decoded, one entry a prompt. Counts are metrics of docs/metrics.md; the trace is `specjax.state.Trace` as NumPy arrays."""

    token_ids: list[list[int]]
    texts: list[str] | None
    finish_reasons: list[str]
    counts: dict[str, np.ndarray]
    logprobs: list[list[float]] | None  # of each token, if they were asked for
    trace: Trace


class Decoder:
    """A target with everything else a decode loop needs, checked once. `generate` and `stream` below make one for a single call.

    target: the model that decides. drafter: an object of `specjax.drafters`, an `LM`, or None (plain decoding).
    rule: default greedy matching where emission is certain (greedy or coupled sampling), else the p/q rule.
    length: default as many as the drafter offers. draft_sampling: default as the target's.
    ladder: widths of verification; default 1, 4, 8, 16, 32 up to what the drafter can fill. eos: default the tokenizer's.
    stop: texts that end a row where one ends in its output; they may begin in the prompt. min_new_tokens: no EOS, and no stop, before
    so many. forbidden: token ids that are never said. processors: functions (logits_V, `specjax.types.Path`) -> logits_V, applied in
    this order, after penalties; structs with numbers as leaves share a program. logprobs: keep log p of every new token, in the model's
    own law (before penalties, processors, temperature and filters).

    Raises:
      ValueError: the parts do not fit together; says which.
    """

    def __init__(
        self, target: LM, *, drafter=None, rule=None, length=None, sampling=None, draft_sampling=None, seed=0, ladder=None,
        eos=None, stop=(), min_new_tokens=0, forbidden=(), processors=(), logprobs=False, chunk=64,
    ):  # fmt: skip
        if not getattr(jax.config, "jax_threefry_partitionable", True):
            raise ValueError("jax_threefry_partitionable is off: draws would depend on the number of devices")
        if chunk < 1 or BUCKET % chunk:
            raise ValueError(f"chunk={chunk} must divide {BUCKET}")
        self.target = target
        if not isinstance(sampling or Sampling(), Sampling):
            raise ValueError(f"sampling={sampling!r} must be a specjax.Sampling")
        target_sampling = checked(sampling or Sampling())
        drafter = as_drafter(target, drafter)
        rule = rule or (Greedy() if target_sampling.one_hot else Speculative())
        parts.check_rule(rule, target_sampling)
        eos = getattr(target.tokenizer, "eos_ids", ()) if eos is None else np.atleast_1d(eos).tolist()
        eos = tuple(parts.whole("eos", i, 0, target.model.vocab - 1) for i in eos)
        length = length or match()
        parts.check(drafter, rule, length)
        how = parts.draft_sampling(draft_sampling, target_sampling)
        parts.check_tree(drafter, rule, target_sampling, how)
        min_new_tokens = parts.whole("min_new_tokens", min_new_tokens, 0, 2**31 - 1)
        forbidden, processors = parts.several("forbidden", forbidden), parts.several("processors", processors)
        self.stops = parts.stop_strings(target, stop)
        self._stop_table = parts.stop_table(self.stops, target.tokenizer, target.model.vocab)  # on the host, for prompts
        seed = parts.whole("seed", seed, 0, 2**32 - 1)
        setup = Setup(
            model=target.model,
            ladder=parts.ladder(ladder, parts.nodes(drafter)),
            chunk=chunk,
            drafter=parts.numbers(drafter),
            rule=parts.numbers(rule),
            length=parts.numbers(length),
            kinds=(type(drafter), type(rule), type(length), *map(type, processors)),
            sampling=target_sampling,
            draft_sampling=how,
            processors=parts.processors(target.model.vocab, eos, min_new_tokens, forbidden, processors),
            stop=self._stop_table,
            least=np.int32(min_new_tokens),
            logprobs=bool(logprobs),
            kl=not rule.exact and hasattr(rule, "token_law") and parts.nodes(drafter) == drafter.most + 1,
            eos_E=np.asarray(eos or (-1,), np.int32),
            seed=jax.random.key(seed),
            layout=target.layout,
            draft_layout=target.layout and sharding.layout_of(target.layout.mesh, drafter.params),
        )
        self.setup = sharding.everywhere(target.layout, setup)  # all of it on the devices, so that no call moves any of it again

    def slots(self, prompts: Sequence[Sequence[int]], max_new_tokens) -> int:
        """S that holds these prompts, what follows them, and the widest rung; checks them."""
        if not len(prompts):
            raise ValueError("prompts is empty: it needs at least one prompt")
        budgets = budgets_of(max_new_tokens, len(prompts))
        for i, (prompt, budget) in enumerate(zip(prompts, budgets, strict=True)):
            self._check_prompt(i, prompt, budget)
        return _bucket(max(len(p) + b for p, b in zip(prompts, budgets, strict=True)) + self.setup.ladder[-1])

    def start(self, prompts: Sequence[Sequence[int]], max_new_tokens, ids=None, size: int | None = None, most: int | None = None) -> State:
        """The state of a batch before prefill.

        max_new_tokens: a number, or one a prompt. size: slots of the buffers, at least (rounded up). most: the largest budget that a
        row will have, if a later prompt brings a larger one.
        """
        size = max(self.slots(prompts, max_new_tokens), _bucket(size or 0))
        budgets = budgets_of(max_new_tokens, len(prompts))
        token_BS = np.zeros((len(prompts), size), np.int32)
        for row, prompt in zip(token_BS, prompts, strict=True):
            row[: len(prompt)] = prompt
        rows = [
            token_BS,
            np.asarray([len(p) for p in prompts], np.int32),
            budgets,
            ids_of(ids, len(prompts)),
            self._stop_table and np.asarray([stops.start(self._stop_table, p) for p in prompts], np.int32),
        ]
        rounds, dtype = _bucket(max(*budgets, most or 0, 1)), self.target.dtype
        if self.target.layout is None:
            return new_state(self.setup, *jax.tree.map(jnp.asarray, rows), rounds, dtype)
        return _spread_state(self.setup, *rows, rounds=rounds, dtype=dtype)

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

    def put_row(self, state: State, one: State, row: int) -> State:
        """The state with row `row` replaced by the state of one row."""
        return decode.put_row(state, one, sharding.everywhere(self.target.layout, np.int32(row)), layouts=self.setup.layouts)

    def generate(self, state: State) -> State:
        """Decode until every row has finished."""
        return self.generate_until(state, 0)

    def generate_until(self, state: State, running: int) -> State:
        """Decode until at most `running` rows are still running; the same program."""
        return decode.generate(self.setup, self.target.params, state, sharding.everywhere(self.target.layout, np.int32(running)))

    def step(self, state: State) -> State:
        return decode.step(self.setup, self.target.params, state)

    def output(self, state: State, rows: Sequence[int] | None = None) -> Output:
        """Fetch what was decoded, of all rows or of some.

        Raises:
          RuntimeError: the rule's law did not sum to one, the draft had none, or processors left no token.
        """
        got = sharding.fetch(state._replace(cache=None, drafter=None, length=None))
        rows = range(len(got.cursor_B)) if rows is None else rows
        finish = [FINISH[got.finish_B[row]] for row in rows]
        for row, reason in zip(rows, finish, strict=True):
            self._raise_or_warn(row, reason)
        start = [int(got.prompt_B[row]) for row in rows]
        prompts = [got.token_BS[r, :s].tolist() for r, s in zip(rows, start, strict=True)]
        token_ids = [got.token_BS[r, s : got.cursor_B[r] + 1].tolist() for r, s in zip(rows, start, strict=True)]
        logprobs = self.setup.logprobs and [
            got.logprob_BS[r, s : s + len(ids)].tolist() for r, s, ids in zip(rows, start, token_ids, strict=True)
        ]
        counts = jax.tree.map(lambda x_B: x_B[list(rows)], got.counts)
        return Output(
            token_ids=token_ids,
            texts=self.target.tokenizer and [self._text(*said) for said in zip(prompts, token_ids, finish, strict=True)],
            finish_reasons=finish,
            counts=_counts(counts, np.asarray(list(map(len, token_ids)))),
            logprobs=logprobs or None,
            trace=_unroll(got, rows, int(counts.rounds_B.max())),
        )

    def _raise_or_warn(self, row: int, reason: str):
        if reason == "bad rule":
            name = parts.name_of(self.setup.rule)
            raise RuntimeError(f"row {row}: rule {name} gave a law that does not sum to one over what was drafted")
        if reason == "bad draft":
            name = parts.name_of(self.setup.drafter)
            raise RuntimeError(f"row {row}: drafter {name} drafted a token outside the vocabulary, or from a law that is not finite")
        if reason == "bad processor":
            raise RuntimeError(f"row {row}: processors and forbidden tokens left no token to say, or gave NaN or infinity")
        if reason == "nonfinite":
            warnings.warn(f"row {row} ended early: the target's logits were not finite", stacklevel=4)

    def _text(self, prompt: list[int], token_ids: list[int], finish: str) -> str:
        text = self.target.tokenizer.decode(token_ids)
        if finish != "stop":
            return text
        return stops.cut(text, self.target.tokenizer.token_bytes(), self.stops, prompt, token_ids)


@functools.partial(jax.jit, static_argnames=("rounds", "dtype"))
def _spread_state(setup: Setup, *rows, rounds: int, dtype) -> State:
    """A new state over a mesh, made where it lies: no device ever holds more than its part."""
    return pinned(setup.layouts, new_state(setup, *rows, rounds, dtype))


def _unroll(got: State, rows, rounds: int) -> Trace:
    """The rows of the trace from their first round on; slots past a row's end are zero."""
    slots = got.trace.root_BN.shape[1]
    round_N = np.arange(rounds)

    def take(x_BN, row):
        picked = x_BN[row, (got.began_B[row] + round_N) % slots]
        return np.where((round_N < got.counts.rounds_B[row]).reshape(-1, *[1] * (picked.ndim - 1)), picked, 0)

    return jax.tree.map(lambda x_BN: np.stack([take(x_BN, row) for row in rows]), got.trace)


def _bucket(size: int) -> int:
    return -(-int(size) // BUCKET) * BUCKET


def budgets_of(max_new_tokens, count: int) -> np.ndarray:
    budgets = np.asarray(max_new_tokens)
    if budgets.size and np.max(budgets) >= 2**31:
        raise ValueError(f"max_new_tokens={max_new_tokens} must be under {2**31}")
    if not np.issubdtype(budgets.dtype, np.integer):
        raise ValueError(f"max_new_tokens={max_new_tokens} must be whole numbers")
    if budgets.ndim and budgets.shape != (count,):
        raise ValueError(f"max_new_tokens has {len(budgets)} entries for {count} prompts")
    return np.broadcast_to(budgets.astype(np.int32), count)


def ids_of(ids, count: int) -> np.ndarray:
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
