"""The letters of specjax, and what passes between its parts.

Array names carry their shape:

    B rows of the batch    T tokens fed in one call    S cache slots      K drafted tokens
    M nodes of the draft tree, root included           W width of a rung  V vocabulary
    D model width          H query heads               G key-value heads  R queries per group (H / G)
    C size of one head     F feed-forward width        L layers           N rounds

`p` is the target's law and `q` the draft's: the laws that are *sampled from*, after temperature and filters. A law is float32
(float64 when x64 is on) and sums to one. This module imports nothing of ours.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple, Protocol

import jax

Array = jax.Array
PyTree = Any


def struct(cls):
    """A frozen dataclass that is a pytree: `static()` fields are structure, all others are leaves (None is structure too)."""
    cls = dataclasses.dataclass(frozen=True, kw_only=True)(cls)
    meta = [f.name for f in dataclasses.fields(cls) if f.metadata.get("static")]
    data = [f.name for f in dataclasses.fields(cls) if not f.metadata.get("static")]

    def flatten(x):  # the class is part of the structure: jax 0.10's register_dataclass leaves it out of the comparison
        return [getattr(x, name) for name in data], (cls, *[getattr(x, name) for name in meta])

    def flatten_with_keys(x):
        leaves, structure = flatten(x)
        return list(zip(map(jax.tree_util.GetAttrKey, data), leaves, strict=True)), structure

    def unflatten(structure, leaves):
        new = object.__new__(cls)
        for name, value in zip([*meta, *data], [*structure[1:], *leaves], strict=True):
            object.__setattr__(new, name, value)
        return new

    jax.tree_util.register_pytree_with_keys(cls, flatten_with_keys, unflatten, flatten)
    return cls


def static(**kwargs):
    """A field that is part of the compiled program: it must be hashable, and another value is another program."""
    return dataclasses.field(metadata={"static": True}, **kwargs)


# ---------------------------------------------------------------- what passes between the parts


class Cache(NamedTuple):
    """Keys and values, one array a layer. Slot s holds the token at position s; slots at or past a row's cursor are garbage."""

    k: tuple[Array, ...]  # L arrays [B, G, S, C]; see models/cache.py
    v: tuple[Array, ...]


@struct
class Tree:
    """The shape of a draft; node 0 is the root, the newest committed token. Nodes stand by depth, siblings among them by rank.

    A chain of n drafts is 0 -> 1 -> ... -> n. `valid_M` is closed under parent; whatever stands at invalid nodes is garbage. Of siblings
    drawn without replacement only those with q > 0 are valid; siblings drawn 'iid' may be equal.
    """

    parent_M: Array  # int32, the root is its own parent
    depth_M: Array  # int32, 0 at the root
    rank_M: Array  # int32, place among the siblings
    valid_M: Array  # bool
    drawn: str = static()  # how children were drawn: 'iid', 'without_replacement' or 'fixed'
    chain: bool = static(default=True)  # every node's parent is the node before it; for the loop only, a rule's law must not depend on it


class Draft(NamedTuple):
    """What a drafter proposes, batched: tokens of a tree, and the laws its nodes' children were drawn from."""

    tree: Tree  # leaves [B, M]
    token_BM: Array  # int32; node 0 is the root
    q_BMV: Array | None  # row m: the law from which the children of m were drawn; None: each child is certain (one-hot q)


class Law(NamedTuple):
    """What an acceptance rule answers, for one row. A rule contains no randomness: the loop draws from this once."""

    stop_M: Array  # probability that the round ends at node m (node 0: nothing accepted)
    emit_MV: Array  # law of the token emitted after ending at node m


class View(NamedTuple):
    """The target as a drafter may see it, between rounds. The cache holds every committed token except the newest."""

    params: PyTree
    cache: PyTree
    token_BS: Array  # int32: prompt and output; garbage past the cursor
    cursor_B: Array  # int32: tokens in the cache; token_BS[b, cursor_B[b]] is the newest token, the root of the round


class Path(NamedTuple):
    """What stands before one place of one row: all that a processor may depend on."""

    token_S: Array  # int32: prompt, output and the drafted tokens on the way; garbage past the length
    length: Array  # int32, tokens of it
    prompt: Array  # int32, of which are the prompt


class Verdict(NamedTuple):
    """How a round ended, per row: what a length policy may learn from."""

    drafted_B: Array  # int32, the draft's length: depth of its deepest node
    accepted_B: Array  # int32, by the rule, before any cut
    committed_B: Array  # int32, tokens the row gained; 0 for a row that was finished before the round
    expected_B: Array  # float, mean accepted drafts under the rule's law
    overlap_BM: Array  # float, 1 - TV(p, q) at each node, 0 where no child was drafted
    most: int  # depth of the drafter's deepest draft


# ---------------------------------------------------------------- the things that plug in


class Model(Protocol):
    """A language model without its parameters: static and hashable."""

    vocab: int  # rows of the head that stand for real tokens; the head may be padded beyond

    def init_cache(self, batch: int, size: int, dtype=None) -> PyTree: ...

    def forward(self, params, token_BT, cache, cursor_B, *, position_BT=None, mask=None, layers=None, taps=()):
        """Feed T tokens a row at the row's cursor; returns (hidden_BTD, taps, cache). Writes at the cursor, does not move it.

        position_BT: default cursor + t. mask: bool [B, T, S], which slots each fed token sees (default: causal, those up to its own);
        in the order of slots they hold its path, see `specjax.ancestry`. layers: a range of layers to run. taps: layers whose output is
        returned too.
        """

    def head(self, params, hidden) -> Array:
        """Logits [..., V or more] of hidden states [..., D]."""

    def gather(self, cache, cursor_B, slot_BT, span: int) -> PyTree:
        """The cache with slot cursor + t holding what was in slot cursor + slot_BT[:, t], all under `span`. Only drafts that branch
        need it."""


class Draw(Protocol):
    """The loop's coin, lent to a drafter; no raw key reaches it."""

    certain: bool  # nothing is left to chance: laws are one-hot

    def __call__(self, law_BV: Array, node: int | Array, depth: int | Array | None = None) -> Array:
        """One token a row from law_BV for node `node` of the tree at depth `depth` (default: `node`, a chain); or [B, T] from law_BTV
        for nodes [T]."""

    def laws(self, logits_BTV: Array, token_BTM: Array, depth: int | Array, ranked: bool = False) -> Array:
        """The same for T nodes at one depth, each with tokens of its own on the way from the root. ranked: at temperature 1 and without
        filters, to tell likely tokens from others where drafts are certain."""

    def several(self, law_BV: Array, node: int | Array, count: int, depth: int | Array) -> Array:
        """`count` tokens on a last axis, without replacement, for siblings of which `node` is the first; the first of them is what a call
        for `node` draws. Under coupled sampling they are the best ones under the position's noise. Where fewer than `count` tokens
        have q > 0 the last ones are any."""

    def keep_going(self, q_BV: Array, depth: int | Array) -> Array:
        """Whether each row's length policy wants the token at `depth`, given its law; asked *before* that token is drawn."""

    def within(self, ids_U: Array | None) -> Draw:
        """The same coin for a draft that can say only the target's tokens ids_U, ascending: logits and laws over these, tokens drawn in
        the target's ids. None: all."""

    def spread(self, q_BMV: Array, token_BM: Array) -> Array:
        """The laws of a chain over the target's vocabulary, for its `Draft`; token_BM: its tokens."""

    def law(self, logits_BV: Array, token_BM: Array, depth: int | Array) -> Array:
        """The draft's law: logits after processors and the draft's temperature and filters. token_BM: the tokens on the way from the
        root, its column 0; `depth` of them were drafted."""


class Drafter(Protocol):
    """Proposes tokens. `params` are its own (None without); `most` is the depth of its deepest draft; `taps` are the target's layers
    whose output it wants to `observe`.

    A draft that branches says so by two attributes more: `nodes`, of its tree with the root (without it `most` + 1, a chain), and
    `drawn`, as in `Tree`.
    """

    name: str
    params: PyTree
    most: int
    taps: tuple[int, ...]

    def init(self, params, view: View) -> PyTree:
        """State after the target's prefill. Every leaf of it has the rows as its first axis."""

    def offer(self, state) -> Array:
        """offer_B: how many tokens it could draft now."""

    def propose(self, params, state, view: View, root_B, ask_B, draw: Draw) -> tuple[Draft, PyTree, View]:
        """Draft at most ask_B tokens a row. The view is returned, written or not."""

    def observe(self, params, state, committed: View, features) -> PyTree:
        """After a round: `committed` is the target's new view, `features` the taps of the verification, one [B, W, D] each (None without).
        Their first token is the round's root. A drafter with taps observes its prompt, too: right after `init`, from position 0 on."""


class Rule(Protocol):
    name: str
    exact: bool
    one_hot_only: bool  # needs a target whose law is one-hot: greedy or coupled sampling
    trees: bool  # judges nodes with several children; without it a rule sees chains (trees of width 1) only
    drawn: tuple[str, ...]  # ways of drawing siblings that it judges, its usual one first; see `Tree`
    paper: str
    equation: str

    def __call__(self, tree: Tree, token_M: Array, p_MV: Array, q_MV: Array) -> Law:
        """For one row; the loop vmaps. Row m of p is the target's law after node m."""

    # A rule that is not exact also has token_law(p_MV, q_MV) -> m_MV: the law of the token that a place of a chain gets when its draft
    # is drawn from q and the place is judged. Its distance from p is the rule's price. With own_exact = True the certifier holds the law of
    # K + 1 tokens against it. `needs`, a few words, stands in the README's table.


class Length(Protocol):
    """Decides how many tokens to draft. Pure: no clock, no batch, no rung. Rows that had finished show 0 committed tokens."""

    name: str

    def init(self, batch: int) -> PyTree:
        """State of so many rows. Every leaf of it has them as its first axis; None without."""

    def choose(self, state, offer_B: Array) -> Array:
        """ask_B."""

    def keep_going(self, state, q_BV: Array, depth) -> Array:
        """bool_B, before the token at `depth` (1 is the first draft) is drawn from q."""

    def observe(self, state, verdict: Verdict) -> PyTree: ...


class Processor(Protocol):
    def __call__(self, logits_V: Array, path: Path) -> Array:
        """Logits of one row at one place, changed; -inf forbids a token. At least one token is left."""
