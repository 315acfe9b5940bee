"""The slow, obvious decoder that defines what is right: NumPy, float64, one row, straight loops.

Nothing here is fast and nothing here is shared with the code it judges. A context is a tuple of token ids, a law an
array over the vocabulary; row m of p_MV is the target's law after m drafts, row i of q_KV the law that drafted token i
was drawn from. Leviathan et al. (2211.17192) and Chen et al. (2302.01318) for the rules, Keskar et al. (1909.05858) for
the repetition penalty.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection
from typing import NamedTuple

import numpy as np

Context = tuple[int, ...]
Rule = Callable[[Context, list[np.ndarray], list[np.ndarray]], tuple[np.ndarray, list[np.ndarray]]]

# ---------------------------------------------------------------- laws


def processed(
    logits_V, context, prompt: int, *, repetition=1.0, presence=0.0, frequency=0.0, forbidden=(), eos=(), least=0
) -> np.ndarray:  # fmt: skip
    """Logits after `context`, whose first `prompt` tokens were given and whose others, drafted ones too, were written.

    Forbidden tokens, and each EOS while fewer than `least` tokens were written, are left no probability at all.
    """
    logits_V = np.array(logits_V, np.float64)
    written = context[prompt:]
    for x in set(context):
        logits_V[x] = logits_V[x] / repetition if logits_V[x] > 0 else logits_V[x] * repetition
    for x in set(written):
        logits_V[x] -= presence + frequency * written.count(x)
    for x in (*forbidden, *(eos if len(written) < least else ())):
        logits_V[x] = -np.inf
    return logits_V


def law(logits_V, temperature=1.0, top_k=None, top_p=None, min_p=None) -> np.ndarray:
    """Temperature, then top-k, top-p of what is left, min-p of what is left. Ties with the last kept token are kept."""
    logits_V = np.asarray(logits_V, np.float64)
    if temperature < 1e-5:
        return one_hot(np.argmax(logits_V), len(logits_V))
    p = np.exp((logits_V - logits_V.max()) / temperature)
    if top_k is not None:
        p = _keep(p, np.sort(p)[::-1][min(top_k, len(p)) - 1])
    if top_p is not None and top_p < 1:
        falling = np.sort(p)[::-1]
        mass = np.cumsum(falling)
        p = _keep(p, falling[np.argmax(mass >= top_p * mass[-1])])
    if min_p is not None:
        p = _keep(p, min_p * p.max())
    return p / p.sum()


def _keep(p, threshold):
    return np.where(p >= threshold, p, 0.0)


def one_hot(token, vocab) -> np.ndarray:
    return np.eye(vocab)[token]


def residual(p, q) -> np.ndarray:
    """norm (p - q)+, or p when nothing is left."""
    left = np.maximum(p - q, 0.0)
    return left / left.sum() if left.sum() > 0 else p


# ---------------------------------------------------------------- rules: (token_K, p_MV, q_KV) -> (stop_M, emit_MV)


def chain_rule(accept: Callable, emit: Callable) -> Rule:
    """Judge drafts one by one: accept(x, p, q) is a probability, emit(x, p, q) the law after a rejection of x."""

    def rule(token_K, p_MV, q_KV):
        judged = [(x, p_MV[i], q_KV[i]) for i, x in enumerate(token_K)]
        stop_M, survived = [], 1.0
        for x, p, q in judged:
            stop_M.append(survived * (1 - accept(x, p, q)))
            survived *= accept(x, p, q)
        return np.array([*stop_M, survived]), [emit(x, p, q) for x, p, q in judged] + [p_MV[len(token_K)]]

    return rule


def ratio(x, p, q) -> float:
    """min(1, p(x) / q(x)) as the probability that u q(x) < p(x), u uniform on [0, 1)."""
    if p[x] == 0:
        return 0.0
    return 1.0 if p[x] >= q[x] else p[x] / q[x]


def greedy(token_K, p_MV, q_KV):
    """Keep what the target finds likeliest (the first such token), and emit it."""
    top_M = [one_hot(np.argmax(p), len(p)) for p in p_MV]
    return chain_rule(lambda x, p, q: p[x], lambda x, p, q: p)(token_K, top_M, q_KV)


speculative = chain_rule(ratio, lambda x, p, q: residual(p, q))


def lenient(lenience, subtract="p-lq") -> Rule:
    """Accept with min(1, p / (l q)); after a rejection the residual of p and l q, or of p and q."""
    scale = {"p-lq": lenience, "p-q": 1.0}[subtract]
    return chain_rule(lambda x, p, q: ratio(x, p, lenience * q), lambda x, p, q: residual(p, scale * q))


# Emitted is always a draw y from p, and the draft was accepted if it equals y.
sample_and_match = chain_rule(lambda x, p, q: p[x], lambda x, p, q: residual(p, one_hot(x, len(p))))


# ---------------------------------------------------------------- exact laws, by enumeration


def path_law(model, length, prefix=()) -> dict[Context, float]:
    """The law of the next `length` tokens when each is drawn from model(context)."""
    paths = {(): 1.0}
    for _ in range(length):
        paths = {c + (x,): w * px for c, w in paths.items() for x, px in enumerate(model(prefix + c)) if w * px > 0}
    return paths


def _endings(rule, target, draft, k, prefix):
    """Every (draft, place where the round ends, law emitted there, probability)."""
    for token_K, weight in path_law(draft, k, prefix).items():
        context_M = [prefix + token_K[:m] for m in range(k + 1)]
        stop_M, emit_MV = rule(token_K, [target(c) for c in context_M], [draft(c) for c in context_M[:k]])
        for m in range(k + 1):
            yield token_K, m, emit_MV[m], weight * stop_M[m]


def exact_law(rule, target, draft, k, prefix=()) -> dict[Context, float]:
    """The law of the next k + 1 tokens: one round of k drafts, completed by the target where the round was shorter."""
    committed = defaultdict(float)
    for token_K, m, emit_V, weight in _endings(rule, target, draft, k, prefix):
        for x in np.flatnonzero(weight * emit_V):
            committed[token_K[:m] + (int(x),)] += weight * emit_V[x]
    whole = defaultdict(float)
    for start, weight in committed.items():
        for tail, w in path_law(target, k + 1 - len(start), prefix + start).items():
            whole[start + tail] += weight * w
    return dict(whole)


def expected_tokens(rule, target, draft, k, prefix=()) -> float:
    """E[N]: tokens committed by a round of k drafts."""
    return float(sum(weight * (m + 1) for _, m, _, weight in _endings(rule, target, draft, k, prefix)))


def total_variation(one, other) -> float:
    return sum(abs(one.get(c, 0.0) - other.get(c, 0.0)) for c in one.keys() | other.keys()) / 2


# ---------------------------------------------------------------- decoding


class Decoded(NamedTuple):
    """One row's output and counts. drafted = accepted + rejected + cut; cut: accepted by the rule, but past the end."""

    tokens: Context
    finish: str  # 'eos', 'stop' or 'length'
    drafted: int = 0
    accepted: int = 0
    rejected: int = 0
    cut: int = 0
    rounds: int = 0


def pick(p, gumbel_V) -> int:
    """A draw from p: argmax(log p + gumbel), the first index on ties."""
    with np.errstate(divide="ignore"):
        return int(np.argmax(np.log(p) + gumbel_V))


def no_stop(prompt, out) -> bool:
    return False


def stop_on(texts, stops, least=0) -> Callable[[Context, Context], bool]:
    """Whether the newest token of an output completes one of `stops`, and at least `least` tokens are out.

    texts: the bytes of every token. A stop may begin in the prompt; it completes where it ends.
    """

    def stop(prompt, out):
        before = b"".join(texts[x] for x in (*prompt, *out[:-1]))
        whole = before + texts[out[-1]]
        ends = range(len(before) + 1, len(whole) + 1)
        return len(out) >= least and any(whole[:end].endswith(s) for end in ends for s in stops)

    return stop


def _finish(prompt, out, eos, stop) -> str | None:
    """How the newest token ends the output, if it does."""
    return "eos" if out[-1] in eos else "stop" if stop(prompt, out) else None


def plain(target, prompt, max_new, eos: Collection[int], choose, stop=no_stop) -> Decoded:
    """One token at a time: choose(target(context), position of the new token)."""
    prompt, out = tuple(prompt), ()
    while len(out) < max_new:
        context = prompt + out
        out += (choose(target(context), len(context)),)
        if finish := _finish(prompt, out, eos, stop):
            return Decoded(out, finish, rounds=len(out))
    return Decoded(out, "length", rounds=len(out))


def speculative_decode(
    target, draft, prompt, max_new, eos: Collection[int], k, rule: Rule, coins, coupled=False, stop=no_stop
) -> Decoded:  # fmt: skip
    """Rounds of at most k drafts; k may be a function of the rounds so far, each (drafted, accepted by the rule).

    target(context) -> law. draft(committed, drafted) -> law of the next draft, or None: nothing to offer.
    coins(purpose, *place): Gumbel noise over the vocabulary for ('draft', root, node), ('emit', position) and
    ('noise', position); a uniform for ('stop', root). `root` is the position of the newest committed token; nodes count
    from 1. Coupled: every choice at a position, the target's and the draft's, takes that position's noise, and `rule`
    must be `greedy`.
    """
    if coupled and rule is not greedy:
        raise ValueError("coupled sampling keeps drafts while they equal the target's choice: its rule must be greedy")
    prompt, out, rounds, counts = tuple(prompt), (), [], np.zeros(5, int)
    while len(out) < max_new:
        committed = prompt + out
        root = len(committed) - 1
        most = k(rounds) if callable(k) else k
        token_K, q_KV = _draft(draft, committed, min(most, max_new - len(out) - 1), root, coins, coupled)
        p_MV = [target(committed + token_K[:m]) for m in range(len(token_K) + 1)]
        if coupled:
            p_MV = [one_hot(pick(p, coins("noise", root + m + 1)), len(p)) for m, p in enumerate(p_MV)]
        stop_M, emit_MV = rule(token_K, p_MV, q_KV)
        m = _stop(stop_M, coins("stop", root))
        block = token_K[:m] + (pick(emit_MV[m], coins("emit", root + m + 1)),)
        kept, finish = _cut(prompt, out, block, eos, stop)
        accepted = min(m, len(kept))
        out += kept
        rounds.append((len(token_K), m))
        counts += [len(token_K), accepted, len(token_K) - m, m - accepted, 1]
        if finish:
            return Decoded(out, finish, *counts.tolist())
    return Decoded(out, "length", *counts.tolist())


def _cut(prompt, out, block, eos, stop):
    """The block up to the token that ends the output, and how it ends."""
    for i in range(1, len(block) + 1):
        if finish := _finish(prompt, out + block[:i], eos, stop):
            return block[:i], finish
    return block, None


def _draft(draft, committed, ask, root, coins, coupled):
    token_K, q_KV = (), []
    while len(token_K) < ask and (q := draft(committed, token_K)) is not None:
        node = len(token_K) + 1
        token_K += (pick(q, coins("noise", root + node) if coupled else coins("draft", root, node)),)
        q_KV.append(q)
    return token_K, q_KV


def _stop(stop_M, u) -> int:
    """The first node whose cumulative probability passes u; the last possible one if rounding leaves none."""
    return int(min(np.searchsorted(np.cumsum(stop_M), u, side="right"), np.flatnonzero(stop_M)[-1]))


def lookup(tokens, n_min, n_max) -> tuple[int, int, int]:
    """Where the last n tokens stood before: (start of what followed, tokens that follow, n).

    The longest n of n_max .. n_min (at least 1) with a match; of its matches the most recent. Without one:
    (len(tokens), 0, 0).
    """
    tokens = list(tokens)
    for n in range(min(n_max, len(tokens) - 1), n_min - 1, -1):
        for start in range(len(tokens) - n - 1, -1, -1):
            if tokens[start : start + n] == tokens[-n:]:
                return start + n, len(tokens) - start - n, n
    return len(tokens), 0, 0
