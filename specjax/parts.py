"""What plugs into a decoder, checked before anything is compiled: each fault is one line that names the part."""

from __future__ import annotations

import dataclasses
import functools
import operator
from collections.abc import Sequence

import jax
import numpy as np

from specjax import stops
from specjax.drafters import BestFirst, Combined, Eagle3Drafter, EarlyExit, ModelDrafter, NGram, NoDraft, TreeDrafter
from specjax.lengths import EVERYTHING, Fixed
from specjax.lm import LM
from specjax.processors import Forbidden, MinNewTokens
from specjax.sampling import Sampling, checked
from specjax.types import Path

RUNGS = (1, 4, 8, 16, 32)
STOP_BYTES = 500  # of all stop strings together


def numbers(part):
    """Python numbers become arrays of one dtype, so that another value is not another program."""
    kind = {int: np.int32, float: np.float32}
    return jax.tree.map(lambda x: np.asarray(x, kind[type(x)]) if type(x) in kind else x, part)


def whole(name: str, value, low: int, high: int) -> int:
    """A whole number within bounds, both included."""
    try:
        number = operator.index(value)
    except TypeError:
        raise ValueError(f"{name}={value!r} must be a whole number") from None
    if not low <= number <= high:
        raise ValueError(f"{name}={number} must be between {low} and {high}")
    return number


def several(name: str, value) -> tuple:
    """The entries of a list."""
    if not np.iterable(value) or isinstance(value, str):
        raise ValueError(f"{name}={value!r} must be a list")
    return tuple(value)


def name_of(plug_in) -> str:
    return getattr(plug_in, "name", type(plug_in).__name__)


def draft_sampling(given, target: Sampling) -> Sampling:
    """The draft's own sampling; its noise is the target's when coupled."""
    if given is None:
        return target
    given = checked(given, "draft_sampling")
    if given.coupled and not target.coupled:
        raise ValueError("draft_sampling.coupled=True with a target that is not coupled: the noise is the target's, couple its sampling")
    return dataclasses.replace(given, coupled=target.coupled)


PARTS = {
    "drafter": ("init", "offer", "propose", "observe", "params", "most", "taps"),
    "rule": ("__call__", "exact"),
    "length": ("init", "choose", "keep_going", "observe"),
}


def check(drafter, rule, length):
    """What plugs in has what `specjax.types` asks of it, and numbers only as leaves."""
    for kind, part in (("drafter", drafter), ("rule", rule), ("length", length)):
        if isinstance(part, type):
            raise ValueError(f"{kind}={part.__name__} is a class: give an object of it")
        missing = [name for name in PARTS[kind] if not hasattr(part, name)]
        if missing:
            raise ValueError(f"{kind}={name_of(part)} has no {', '.join(missing)}: see specjax.types")
        if not all(hasattr(leaf, "dtype") for leaf in jax.tree.leaves(numbers(part))):
            raise ValueError(f"{kind}={name_of(part)} is no pytree of numbers: make its class a specjax.types.struct")
    for name in ("most", "nodes"):
        whole(f"drafter.{name}", getattr(drafter, name, 0), 0, EVERYTHING)
    policy = getattr(length, "policy", length)
    if isinstance(policy, Fixed):
        k = whole("length.k", policy.k, -EVERYTHING, EVERYTHING)
        if not (0 <= k <= drafter.most or k == EVERYTHING):
            raise ValueError(f"length.k={k} must be between 0 and {drafter.most}, the drafter's largest draft (`most`)")
    if isinstance(drafter, NGram) and not (
        1 <= drafter.min_n <= drafter.max_n and min(drafter.most, drafter.branches) >= 1 <= drafter.per_match + 1
    ):
        raise ValueError(f"drafter={drafter} needs most >= 1, 1 <= min_n <= max_n, branches >= 1 and per_match >= 0")


def nodes(drafter) -> int:
    """Of its largest draft, the root included."""
    return getattr(drafter, "nodes", drafter.most + 1)


def check_tree(drafter, rule, target: Sampling, draft: Sampling):
    """A rule for chains sees no siblings, siblings may differ, and the rule judges such as they are drawn."""
    drawn, branches = getattr(drafter, "drawn", "iid"), nodes(drafter) > drafter.most + 1
    if branches and not getattr(rule, "trees", False):
        raise ValueError(f"rule={name_of(rule)} judges chains, and drafter={name_of(drafter)} branches: take a rule for trees")
    if branches and drawn == "iid" and target.coupled:
        raise ValueError("drafter.drawn='iid' with coupled sampling: all siblings would be equal, draw them without replacement")
    if branches and drawn != "fixed" and draft.temperature is None and target.temperature is not None:
        raise ValueError(f"drafter.drawn={drawn!r} with drafts at temperature 0: no node would have two children that differ, take 'fixed'")
    if not branches and drawn == "without_replacement":  # of one child the same
        drawn = "iid"
    if drawn not in getattr(rule, "drawn", (drawn,)):
        raise ValueError(f"rule={name_of(rule)} judges siblings drawn {' or '.join(rule.drawn)}, drafter.drawn={drawn!r}")


def check_rule(rule, target: Sampling):
    matching = getattr(rule, "one_hot_only", False)
    if target.coupled and not matching:
        raise ValueError(f"rule={name_of(rule)} with coupled sampling: coupled sampling is greedy matching, leave the rule out")
    if matching and not target.one_hot:
        raise ValueError(f"rule={name_of(rule)} at temperature {target.temperature}: it needs temperature 0 or coupled sampling")


def as_drafter(target: LM, drafter, most: int = 7):
    """A drafter for this target: an `LM` becomes one that drafts up to `most` tokens, None one that drafts nothing.

    Raises:
      ValueError: target and draft have other vocabularies, or the layers of an early exit are another model's.
    """
    if drafter is None:
        return NoDraft()
    if isinstance(drafter, LM):
        check_vocabularies(target, drafter)
        drafter = ModelDrafter(model=drafter.model, params=drafter.params, most=most)
    trained = drafter.second if isinstance(drafter, Combined) else drafter
    if isinstance(trained, ModelDrafter | TreeDrafter | BestFirst | Eagle3Drafter):
        _check_draft_vocabulary(target, trained)
    if isinstance(trained, Eagle3Drafter):
        _check_features(target, trained.model.config)
    if isinstance(drafter, EarlyExit) and drafter.model != target.model:
        raise ValueError("drafter early_exit is of another model: it drafts with the target's parameters, give it the target's `model`")
    return drafter


def _check_draft_vocabulary(target: LM, drafter):
    """The draft speaks the target's tokens, or names those that it can say."""
    vocab, ids_U = target.model.vocab, getattr(drafter, "ids_U", None)
    if ids_U is None:
        if drafter.model.vocab != vocab:
            raise ValueError(f"draft vocabulary of {drafter.model.vocab} tokens, target's has {vocab}: they must agree")
        return
    ids_U = np.asarray(ids_U)
    if ids_U.shape != (drafter.model.vocab,) or not np.issubdtype(ids_U.dtype, np.integer):
        raise ValueError(f"drafter.ids_U of shape {ids_U.shape} must name the target's token of each of the draft's {drafter.model.vocab}")
    if (np.diff(ids_U) <= 0).any() or ids_U[0] < 0 or ids_U[-1] >= vocab:
        raise ValueError(f"drafter.ids_U must ascend within the target's ids, 0 .. {vocab - 1}")


def _check_features(target: LM, config):
    """The target has the layers that the draft reads, in the width that it was trained for."""
    given = getattr(target.model, "config", None)
    layers, width = (getattr(given, name, None) for name in ("layers", "width"))
    if layers is None or not all(0 <= tap < layers for tap in config.taps):
        raise ValueError(f"drafter reads layers {list(config.taps)} of the target, which has {layers}")
    if width != config.target_width:
        raise ValueError(f"drafter was trained on features of width {config.target_width}, the target's are {width} wide")
    if given.vocab != config.base.vocab:
        raise ValueError(f"drafter embeds {config.base.vocab} tokens, the target {given.vocab}")


def check_vocabularies(target: LM, draft: LM):
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


def ladder(ladder, nodes: int) -> tuple[int, ...]:
    """Rungs, of which the widest holds a draft of so many nodes, the root included."""
    if ladder is None:
        return (*(w for w in RUNGS if w < nodes), nodes)
    ladder = tuple(whole("ladder", width, 1, 2**31 - 1) for width in several("ladder", ladder))
    if not ladder or list(ladder) != sorted(set(ladder)) or ladder[0] < 1 or ladder[-1] != nodes:
        raise ValueError(f"ladder={ladder} must ascend from at least 1 to the drafter's largest draft and its root, {nodes}")
    return ladder


def processors(vocab: int, eos: Sequence[int], min_new_tokens: int, forbidden: Sequence[int], own: Sequence) -> tuple:
    """The processors of a decoder in the order they are applied: the caller's own, then what must hold whatever those say."""
    for i, processor in enumerate(own):
        _check_processor(f"processors[{i}]={processor!r}", processor, vocab)
    made = [jax.tree_util.Partial(p) if jax.tree_util.all_leaves([p]) else numbers(p) for p in own]  # a function becomes structure
    if len(forbidden):
        made.append(Forbidden(forbidden_V=_mask("forbidden", forbidden, vocab)))
    if min_new_tokens and len(eos):  # without EOS only stop strings have to wait
        made.append(MinNewTokens(least=np.int32(min_new_tokens), eos_V=_mask("eos", eos, vocab)))
    return tuple(made)


def _check_processor(what: str, processor, vocab: int) -> None:
    """Trace it once, so that a fault of it is named before anything is compiled."""
    if isinstance(processor, type) or not callable(processor):
        raise ValueError(f"{what} must be a function (logits_V, path) -> logits_V, or an object that is one")
    shape = lambda *axes: jax.ShapeDtypeStruct(axes, np.int32)
    try:
        made = jax.eval_shape(processor, jax.ShapeDtypeStruct((vocab,), np.float32), Path(shape(8), shape(), shape()))
    except Exception as error:
        raise ValueError(f"{what} fails on logits of {vocab} tokens: {error}") from error
    if getattr(made, "shape", None) != (vocab,):
        raise ValueError(f"{what} made {made} of logits of {vocab} tokens")


def _mask(name: str, ids: Sequence[int], vocab: int) -> np.ndarray:
    """bool [V], true at the ids."""
    ids = np.asarray(ids)
    if ids.ndim != 1 or not np.issubdtype(ids.dtype, np.integer) or (ids < 0).any() or (ids >= vocab).any():
        raise ValueError(f"{name}={ids.tolist()} must be token ids, 0 .. {vocab - 1}")
    mask_V = np.zeros(vocab, bool)
    mask_V[ids] = True
    if mask_V.all():
        raise ValueError(f"{name} names every token: nothing would be left to say")
    return mask_V


@functools.lru_cache(maxsize=8)
def stop_table(strings: tuple[bytes, ...], tokenizer, vocab: int) -> stops.StopTable | None:
    return stops.table(strings, tokenizer.token_bytes(), vocab) if strings else None


def stop_strings(target: LM, stop) -> tuple[bytes, ...]:
    """Stop strings as bytes.

    Raises:
      ValueError: one is empty or no text, holds a special token (whose text is never part of the output), they are too long, or there
        is no tokenizer.
    """
    given = (stop,) if isinstance(stop, str) else several("stop", stop)
    if not given:
        return ()
    if target.tokenizer is None:
        raise ValueError(f"stop={given!r}: {target.source} has no tokenizer, so its output has no text")
    special = {target.tokenizer.token(i): i for i, text in enumerate(target.tokenizer.token_bytes()) if not text}
    for text in given:
        if not isinstance(text, str) or not text:
            raise ValueError(f"stop={text!r} must be a text of at least one character")
        if named := [(token, i) for token, i in special.items() if token and token in text]:
            raise ValueError(f"stop={text!r} holds the special token {named[0][0]!r}, which has no text: give its id, eos={named[0][1]}")
    strings = tuple(dict.fromkeys(text.encode("utf-8", errors="surrogatepass") for text in given))
    if (count := sum(map(len, strings))) > STOP_BYTES:
        raise ValueError(f"stop strings of {count} bytes in all: at most {STOP_BYTES}, each takes a number for every token")
    return strings
