"""What a round costs beyond its bare parts: a pass of the same width (forward, head, argmax) and the n-gram lookup, jitted in a loop.

    pip install -e . && python benchmarks/overhead.py [--trees]

SmolLM2-135M-Instruct, float32, batch 1, K = 4 in every round, S = 384; interleaved, medians of ratios. --trees: 16 nodes instead, drafted
by the n-gram lookup (3 branches of 5 tokens), and by the target itself (2x2x2 and one node more), under rules for trees; there the share
of a round that is not spent in passes of the models is shown.
"""

from __future__ import annotations

import argparse
import statistics
import time

import jax
import jax.numpy as jnp

import specjax
from specjax import Sampling, rules, sampling, shapes
from specjax.models.load import fetch
from specjax.types import View, struct

PROMPT, ROUNDS, SIZE, K = 200, 24, 384, 4

KINDS = {
    "greedy": Sampling(),
    "p/q, t = .7": Sampling(temperature=0.7),
    "p/q, t = .7, top-p .9": Sampling(temperature=0.7, top_p=0.9),
    "p/q, t = 1, top-p .9": Sampling(temperature=1.0, top_p=0.9),
    "coupled, t = .7": Sampling(temperature=0.7, coupled=True),
    "coupled, t = .7, top-p .9": Sampling(temperature=0.7, coupled=True, top_p=0.9),
}


@struct
class Always(specjax.NGram):
    """An n-gram drafter that offers K tokens in every round, so that all rounds have one width."""

    def _look_up(self, view):
        match = specjax.NGram._look_up(self, view)
        return match._replace(offer_BJ=jnp.full_like(match.offer_BJ, self.most))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--trees", action="store_true")
    args = parser.parse_args()
    turns = args.turns
    target = specjax.load(fetch.SMOLLM2)
    prompt = target.tokenizer.encode("It was the best of times, it was the worst of times. " * 30)[:PROMPT]
    if args.trees:
        return trees(target, prompt, turns)
    bare = bare_parts(target, prompt)
    runs = {name: rounds(target, prompt, kind) for name, kind in KINDS.items()}
    ratios, parts = {name: [] for name in runs}, []
    for turn in range(turns + 1):
        for name, run in runs.items():
            part, whole = bare(), run()
            if turn:
                parts.append(part)
                ratios[name].append(whole / part)
    print(f"bare parts of a round at width {K + 1}: {statistics.median(parts) * 1e3:.2f} ms")
    for name, ratio in ratios.items():
        print(f"{name:28} {statistics.median(ratio):.3f} times the bare parts ({min(ratio):.3f} .. {max(ratio):.3f})")


STAR = shapes.parse([(rank, *(0,) * depth) for rank in range(3) for depth in range(5)])
BUSHY = shapes.parse([*shapes.parse("2x2x2").paths, (0, 0, 0, 0)])  # 16 nodes
WARM, HOT = Sampling(temperature=0.7, top_p=0.9), Sampling(temperature=1.0, top_p=0.9)


def trees(target, prompt, turns):
    """What of a round of 16 nodes is not passes."""
    star = lambda rule, kind: rounds(target, prompt, kind, Always(most=5, branches=3), rules.by_name(rule), 5)
    bushy = lambda rule, kind: rounds(
        target, prompt, kind, specjax.TreeDrafter(model=target.model, params=target.params, shape=BUSHY), rules.by_name(rule), 4
    )
    passes = {
        "n-gram": bare_passes(target, (STAR.nodes,)),
        "model": bare_passes(target, (1, 4, 4, 4, 4, BUSHY.nodes)),  # what was accepted last is read, then four levels of up to 4 nodes
    }
    runs = {
        f"{drafter}, {rule}, t = {kind.temperature}" + (f", top-p {kind.top_p}" if kind.top_p else ""): (drafter, make(rule, kind))
        for drafter, make in (("n-gram", star), ("model", bushy))
        for rule in ("recursive_rejection", "traversal")
        for kind in (Sampling(temperature=1.0), WARM, HOT)
    }
    shares = {name: [] for name in runs}
    for turn in range(turns + 1):
        for name, (drafter, run) in runs.items():
            part, whole = passes[drafter](), run()
            if turn:
                shares[name].append(1 - part / whole)
    for name, share in shares.items():
        print(f"{name:50} {statistics.median(share):6.1%} outside passes ({min(share):.1%} .. {max(share):.1%})")


def rounds(target, prompt, kind, drafter=None, rule=None, most=K):
    """Seconds a round of the whole loop."""
    drafter = drafter or Always(most=K)
    widest = getattr(drafter, "nodes", most + 1)
    decoder = specjax.Decoder(target, drafter=drafter, rule=rule, sampling=kind, ladder=tuple(sorted({1, 4, widest})), eos=())

    def run():
        state = jax.block_until_ready(decoder.prefill(decoder.start([prompt], ROUNDS * 3, size=SIZE)))
        begin = time.perf_counter()
        state = jax.block_until_ready(decoder.generate(state))
        seconds = time.perf_counter() - begin
        narrow = int((state.trace.drafted_BN[0, : int(state.turn)] < K).sum())
        if narrow > 4:  # the last rounds have less budget than K
            raise RuntimeError(f"{narrow} rounds drafted fewer than {K} tokens")
        return seconds / int(state.turn)

    return run


def bare_parts(target, prompt):
    """Seconds a turn of: lookup, pass over K + 1 tokens, argmax."""
    drafter = Always(most=K)

    def turn(params, carry):
        cache, token_BS, token_BT = carry
        match = drafter.observe(None, None, View(None, None, token_BS, jnp.full(1, PROMPT)), None)
        token_BT = token_BT.at[:, 0].set(match.start_BJ[:, 0] % 7)
        hidden, _, cache = target.model.forward(params, token_BT, cache, jnp.full(1, PROMPT))
        token_BT = sampling.first_argmax(target.model.head(params, hidden))
        return cache, token_BS.at[:, PROMPT].set(token_BT[:, 0]), token_BT

    def turns(params, carry):
        return jax.lax.fori_loop(0, ROUNDS, lambda _, carry: turn(params, carry), carry)

    loop = jax.jit(turns, donate_argnums=1)

    def run():
        token_BS = jnp.zeros((1, SIZE), jnp.int32).at[0, :PROMPT].set(jnp.asarray(prompt))
        carry = jax.block_until_ready((target.model.init_cache(1, SIZE), token_BS, jnp.ones((1, K + 1), jnp.int32)))
        begin = time.perf_counter()
        jax.block_until_ready(loop(target.params, carry))
        return (time.perf_counter() - begin) / ROUNDS

    return run


def bare_passes(target, widths):
    """Seconds of forward and head at these widths, one after the other, in a loop."""

    def turn(params, carry):
        cache, token_B1 = carry
        for width in widths:
            hidden, _, cache = target.model.forward(params, jnp.tile(token_B1, (1, width)), cache, jnp.full(1, PROMPT))
            token_B1 = (jnp.max(target.model.head(params, hidden), keepdims=True)[0] > 1e9).astype(jnp.int32)
        return cache, token_B1

    loop = jax.jit(lambda params, carry: jax.lax.fori_loop(0, ROUNDS, lambda _, c: turn(params, c), carry), donate_argnums=1)

    def run():
        carry = jax.block_until_ready((target.model.init_cache(1, SIZE), jnp.ones((1, 1), jnp.int32)))
        begin = time.perf_counter()
        jax.block_until_ready(loop(target.params, carry))
        return (time.perf_counter() - begin) / ROUNDS

    return run


if __name__ == "__main__":
    main()
