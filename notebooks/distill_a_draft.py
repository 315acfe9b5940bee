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
# # Distil a draft
#
# From a target to a draft of its own, and what that draft gains, measured. The target is a tiny random model of
# bytes, so that all of it takes a minute or two and nothing is downloaded; one value, `CONFIG` below, makes it the
# real thing. `docs/training.md` has the reference.

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
import runpy
import tempfile

import jax
from absl import logging
from rich.console import Console

import specjax
from specjax import build, build_training, command
from specjax.bench import sweep
from specjax.bench.records import Workdir
from specjax.report import table, trained
from specjax.report.figures import lines
from specjax.report.figures.live import picture
from specjax.training import metrics, prepare
from specjax.training.loop import Run

command.settle_jax()  # compiled programs are kept for the next time
logging.set_verbosity(logging.ERROR)  # of the checkpoints
SMALL = os.environ.get("SPECJAX_NOTEBOOKS") == "small"  # as in CI: fewer steps, fewer tokens
CONFIG = "configs/tiny_draft.py"  # or "configs/distill_smollm2.py": a chat model of 135M parameters; how long that takes is said there
print(f"specjax {specjax.__version__}, jax {jax.__version__} on {jax.devices()[0].device_kind}")

# %% [markdown]
# ## What a draft has to learn
#
# A drafted token is accepted with the probability that the laws of draft and target have in common (alpha, in
# `tutorial.ipynb`). So a draft should say what *this* target says, in its words, with its mistakes. That is why its
# training data are the target's own answers, and why its loss compares laws: at every token of a text both give a
# law, and the loss is how far the draft's is from the target's (here forward KL).
#
# The config names target, draft, data, loss and optimizer. The draft here is one of the target's own two layers, with
# its embedding, and a head of the 128 tokens that the target says most often.

# %%
config = runpy.run_path(CONFIG)["get_config"]()
if SMALL:
    with config.unlocked():
        config.optimizer.steps, config.optimizer.warmup = 40, 10
        config.evaluate.every, config.checkpoint_every, config.log_every = 20, 20, 10
        config.evaluate.new_tokens = 64
        config.data.sources = config.data.sources[1:]  # texts only: the target writes none
plan = build_training.plan(config)
print(plan.draft, plan.optimizer, sep="\n")

# %% [markdown]
# ## Train
#
# This is `python -m specjax.train --config=...` from Python. First it makes the data, in the decode loop: the target
# answers prompts, and what is too short, unfinished or repeats a prompt of the evaluation is dropped and counted.
# Some prompts are held out: the draft never trains on their answers.

# %%
workdir = Path(tempfile.mkdtemp(prefix="specjax-"))
target, kind = prepare.loaded(plan)
ready = prepare.ready(plan, target, kind, workdir, print)
summary = Run(ready, workdir, "notebooks/distill_a_draft.ipynb", print, lambda: None).train()

# %% [markdown]
# ## Did it learn?
#
# The loss falls, but a lower loss is no speed. What decides is how often the draft's tokens would be accepted on the
# held-out answers: at the first place that is the overlap of the two laws, at a later one the overlap where all
# places before it were accepted. Such places come together (where the text is easy, the next token is mostly easy,
# too), so later places have higher rates. The tokens per pass follow from the rates.

# %%
history = list(metrics.read(workdir))
learnt = [row for row in history if row["kind"] == "evaluate"]
rates = {f"place {i + 1}": [row["rate"][i] for row in learnt] for i in range(len(learnt[0]["rate"]))}
picture(lines.draw([row["step"] for row in learnt], rates, "step", "accepted, if reached", low=0))

# %%
trained.show(summary, Console(width=160))

# %% [markdown]
# ## What it gains
#
# The draft is a folder now, and loads by its path. A run measures it on prompts of the held-out category, with drafts
# of 1, 2 and 4 tokens, each beside plain decoding.

# %%
toy = plan.target.source == "toy://tiny"
DRAFT = {"name": "trained", "path": summary["path"], "most": 4}
sampling = {"temperature": plan.evaluate.temperature}
arms = [
    {"name": f"K={k}", "drafter": DRAFT, "length": {"name": "fixed", "k": k}, "ladder": (1, 2, 3, 5), "sampling": sampling}
    for k in (1, 2, 4)
]
measured = sweep.whole(
    build.load(
        build.plan(
            {
                "target": {"source": plan.target.source},
                "prompts": {"source": "own", "categories": ("chat",), "limit": 3 if SMALL else None, "chat": not toy},
                "arms": arms,
                "max_new_tokens": 32 if SMALL else 64,
            }
        )
    ),
    Workdir(tempfile.mkdtemp(prefix="specjax-")),
    ["notebooks/distill_a_draft.ipynb"],
)
table.show(measured, Console(width=200))

# %% [markdown]
# Read *tok/pass* beside the prediction for drafts of four above. The two ask different questions: there a draft
# begins at every place of the answers, here only where the round before it ended, which is often a hard place. And
# read *speedup* beside *c*. For the toy c is the catch: its target has two layers and its draft one, so that a
# drafted token costs a large part of a plain step, and more tokens per pass need not mean more speed. A real target
# has many layers, and c is small: .05 for the draft that ships with specjax (README, "A draft that ships").

# %%
rows = {row["name"]: row for row in measured["arms"]}
for k in (1, 2, 4):
    row = rows[f"K={k}"]
    print(f"K={k}: {row['tokens_per_pass']:.2f} tokens per pass, c = {row['c']:.2f}, speedup {row['speedup']['value']:.2f}")
drafter = specjax.load_drafter(summary["path"], target)
out = specjax.generate(target, ["The train to"], drafter=drafter, sampling=specjax.Sampling(temperature=1.0), max_new_tokens=32)
print({name: int(count[0]) for name, count in out.counts.items()})

# %% [markdown]
# ## Make it real
#
# Set `CONFIG` to `"configs/distill_smollm2.py"` and run from the top, or better, on a machine that you can leave
# alone:
#
#     python -m specjax.train --config=configs/distill_smollm2.py --workdir=distill
#
# A run may be killed at any moment; the same command goes on and ends with the same weights. The draft then lies in
# `distill/draft`, and in a config of `specjax.run` it is `drafter=dict(name="trained", path="distill/draft",
# most=4)`.
