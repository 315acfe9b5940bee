"""What a decode loop is made of (`Setup`) and what it carries from round to round (`State`, `Counts`, `Trace`)."""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from specjax.sampling import Sampling
from specjax.sharding import Layout, pin
from specjax.stops import StopTable
from specjax.types import Array, PyTree, static, struct

RUNNING, EOS, STOP_STRING, LENGTH, NONFINITE, BAD_PROCESSOR, BAD_RULE, BAD_DRAFT = range(8)
FINISH = ("running", "eos", "stop", "length", "nonfinite", "bad processor", "bad rule", "bad draft")  # bad parts: the host raises


@struct
class Setup:
    """Everything a decode loop is made of, except the target's parameters. Structure is static, numbers are leaves."""

    model: object = static()  # the target, see types.Model
    ladder: tuple[int, ...] = static()  # widths of verification, ascending; the last holds the drafter's largest draft
    chunk: int = static()  # tokens of a prefill pass
    drafter: PyTree
    rule: PyTree
    length: PyTree
    sampling: Sampling
    draft_sampling: Sampling
    kinds: tuple[type, ...] = static(default=())  # classes of the parts, for those that are not `types.struct`s (see there)
    processors: tuple = ()  # of target and draft, see types.Processor
    stop: StopTable | None = None
    least: int | Array = 0  # new tokens before a stop string counts
    eos_E: Array  # int32; -1 matches no token
    logprobs: bool = static(default=False)  # whether the state keeps the log-probability of every new token
    kl: bool = static(default=False)  # whether the trace keeps what a rule that is not exact gives away, see `specjax.price`
    seed: Array  # a key
    layout: Layout | None = static(default=None)  # where target and cache lie; None: on one device
    draft_layout: Layout | None = static(default=None)

    @property
    def layouts(self) -> tuple[Layout | None, Layout | None]:
        return self.layout, self.draft_layout


class Counts(NamedTuple):
    """Per row. drafted = accepted + rejected + cut: accepted drafts were committed, cut ones passed the rule but stood past the end."""

    rounds_B: Array  # target passes in which the row was running
    drafted_B: Array
    accepted_B: Array
    cut_B: Array


class Trace(NamedTuple):
    """What each round saw, [B, N] or [B, N, M]; rounds after a row's end are zero. Laws are those before coupled noise."""

    root_BN: Array  # position of the root
    drafted_BN: Array
    stop_BN: Array  # node where the rule ended the round: on a chain, drafts it accepted
    committed_BN: Array
    expected_BN: Array  # mean accepted drafts under the rule's law
    token_BNM: Array  # drafted tokens; node 0 is the root
    up_BNM: Array | None  # how far before a drafted node its parent stands, 0 where no node is; None: a chain
    emitted_BN: Array
    p_BNM: Array  # p and q at the token of each drafted node (0 at the root)
    q_BNM: Array
    overlap_BNM: Array  # 1 - TV(p, q) at each node with a child
    law_BNM: Array  # the rule's stop law
    kl_BNM: Array | None = None  # KL(m || p) at each node with a child, and at the last, see `specjax.price`; None: the rule is exact


class State(NamedTuple):
    """The decode state; donated from call to call."""

    token_BS: Array
    cursor_B: Array
    prompt_B: Array  # tokens of the prompt
    limit_B: Array  # tokens at which the row is full: prompt + budget
    finish_B: Array
    id_B: Array  # uint32, the prompt's id
    cache: PyTree
    drafter: PyTree
    length: PyTree
    stop_B: Array | None  # where the automaton of the stop strings is
    logprob_BS: Array | None  # of each new token, in the model's own law: no temperature, filters or processors
    counts: Counts
    trace: Trace  # a ring: round r of a row is in slot (began_B + r) mod N
    began_B: Array  # turn of the row's first round
    turn: Array  # rounds so far


def new_state(setup: Setup, token_BS, prompt_B, budget_B, id_B, stop_B, rounds: int, dtype) -> State:
    """An empty state for prompts of prompt_B tokens in token_BS; `rounds` bounds a row's trace. Prefill comes next."""
    B, S = token_BS.shape
    M = setup.ladder[-1]
    real = np.promote_types(dtype, jnp.float32)
    zero = functools.partial(jnp.zeros, (B,), jnp.int32)
    int_BN, real_BNM = jnp.zeros((B, rounds), jnp.int32), jnp.zeros((B, rounds, M), real)
    int_BNM = jnp.zeros((B, rounds, M), jnp.int32)
    chain = getattr(setup.drafter, "nodes", setup.drafter.most + 1) == setup.drafter.most + 1
    up_BNM, kl_BNM = None if chain else int_BNM, real_BNM if setup.kl else None
    trace = Trace(*[int_BN] * 4, jnp.zeros((B, rounds), real), int_BNM, up_BNM, int_BN, *[real_BNM] * 4, kl_BNM)
    return State(
        token_BS=token_BS,
        cursor_B=prompt_B - 1,
        prompt_B=prompt_B,
        limit_B=prompt_B + budget_B,
        finish_B=jnp.where(budget_B > 0, RUNNING, LENGTH).astype(jnp.int32),
        id_B=id_B,
        cache=setup.model.init_cache(B, S, dtype),
        drafter=None,
        length=setup.length.init(B),
        stop_B=stop_B,
        logprob_BS=jnp.zeros((B, S), real) if setup.logprobs else None,
        counts=Counts(zero(), zero(), zero(), zero()),
        trace=jax.tree.map(jnp.copy, trace),  # a donated state may hold no array twice
        began_B=zero(),
        turn=jnp.int32(0),
    )


def pinned(layouts: tuple[Layout | None, Layout | None], state: State, pin=pin) -> State:
    """A state that lies on the mesh as every state does, its drafter's part by the second layout. pin: or `spread`, see
    `specjax.sharding`."""
    batch, (layout, draft_layout) = len(state.cursor_B), layouts
    rest = pin(layout, batch, state._replace(drafter=None))
    return rest._replace(drafter=pin(draft_layout, batch, state.drafter))


def append(token_BS, start_B, block_BM, count_B):
    """Write the first count_B tokens of each row's block at start_B; nothing else changes."""
    at_BS = jnp.arange(token_BS.shape[1], dtype=jnp.int32)[None] - start_B[:, None]
    new_BS = jnp.take_along_axis(block_BM, jnp.clip(at_BS, 0, block_BM.shape[1] - 1), axis=1)
    return jnp.where((at_BS >= 0) & (at_BS < count_B[:, None]), new_BS, token_BS)
