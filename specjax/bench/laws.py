"""Drafts at rule-neutral roots, judged by every rule: what `python -m specjax.replay` compares rules on.

A rule decides where its own rounds begin, so rounds of two rules are about different places. Here every m-th place of a plain arm's
output is a root for all rules alike: there the drafter drafts all it offers, and the target reads it in one pass. One plain output
serves every draft: the models read it once, and to go back to a place is to set the cursor.

Of each draft it is kept what every known rule expects, and the run's own lengths; of a sample, spread evenly, the whole laws p and q, on
which any other rule can be tried. The draws are the recording's own: their keys fold in a purpose that no round of the run has.
"""

from __future__ import annotations

import dataclasses
import math
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from specjax import decode, processes
from specjax.api import sample_id
from specjax.bench import line
from specjax.bench.alike import Group, groups
from specjax.bench.judged import Drafts, Seen, see
from specjax.bench.plan import Encoded, Experiment
from specjax.bench.records import Workdir
from specjax.lengths import EVERYTHING, Fixed
from specjax.sharding import fetch
from specjax.state import State
from specjax.types import View
from specjax.verify import cut_unknown, verify

FOLDER, INDEX = "laws", "laws.json"
PURPOSE = 4  # of the recording's keys; those of a round are 0 to 3, see specjax.sampling


class Job(NamedTuple):
    """The drafts of a group on the output to one prompt: what one file holds."""

    group: Group
    encoded: Encoded
    output: list[int]
    places: list[tuple[int, int]]  # of each draft: the token of the output that followed the root, and which of the drafts there
    whole: list[bool]  # whether its laws are kept

    @property
    def file(self) -> str:
        return f"{FOLDER}/{line.slug(self.group.name)}.{self.encoded.prompt.id:08x}.npz"


# ---------------------------------------------------------------- what is drafted


def check(experiment: Experiment) -> None:
    """ValueError if not even one draft of each group may be kept whole."""
    wanted = experiment.plan.record_laws
    if wanted and not _kept(experiment):
        least = math.ceil(sum(group.draft_bytes for group in groups(experiment)) / 1e6)
        raise ValueError(f"config.record_laws.megabytes={wanted.megabytes} does not hold one draft of each drafter: at least {least}")


def _kept(experiment: Experiment) -> int:
    """Drafts of each group whose laws are kept, at most."""
    return int(experiment.plan.record_laws.megabytes * 1e6 / sum(group.draft_bytes for group in groups(experiment)))


def jobs(experiment: Experiment, workdir: Workdir) -> list[Job]:
    """The roots of each group; those whose laws are kept are spread evenly over them."""
    said = {line.key(row): row["token_ids"] for row in workdir.records()}
    kept, wanted, found = _kept(experiment), experiment.plan.record_laws, []
    for group in groups(experiment):
        outputs = [said[group.baseline, str(e.prompt.question_id), 0, 0, 0] for e in experiment.prompts]
        drafts = [  # the first place is a matter of the prompt, so that no place of an output is left out in all of them
            (i, (place, sample))
            for i, e in enumerate(experiment.prompts)
            for place in range(e.prompt.id % wanted.every, len(outputs[i]), wanted.every)
            for sample in range(wanted.drafts)
        ]
        whole = {n * len(drafts) // kept for n in range(kept)} if kept < len(drafts) else set(range(len(drafts)))
        for i, encoded in enumerate(experiment.prompts):
            if own := [n for n, (prompt, _) in enumerate(drafts) if prompt == i]:
                found.append(Job(group, encoded, outputs[i], [drafts[n][1] for n in own], [n in whole for n in own]))
    return found


# ---------------------------------------------------------------- drafting


def record(experiment: Experiment, workdir: Workdir, say: Callable, progress: Callable = iter) -> None:
    """Draft at the roots that are not done yet, then write into laws.json what there is."""
    processes.first(lambda: (workdir.path / FOLDER).mkdir(exist_ok=True))
    everything = jobs(experiment, workdir)
    whole, size = sum(sum(job.whole) for job in everything), sum(sum(job.whole) * job.group.draft_bytes for job in everything)
    count = sum(len(job.places) for job in everything)
    say(f"recording {count} drafts, the laws of {whole} (at most {size / 1e6:.0f} MB): {workdir.path / FOLDER}")
    done = processes.first(lambda: {job.file for job in everything if zipfile.is_zipfile(workdir.path / job.file)})
    for job in progress([job for job in everything if job.file not in done]):
        save(workdir.path / job.file, *drafts(experiment, job))
    mine = {group.name: [job for job in everything if job.group.name == group.name] for group in groups(experiment)}
    processes.first(lambda: workdir.write(INDEX, {"groups": [_described(workdir, own) for own in mine.values() if own]}))


def _described(workdir: Workdir, own: list[Job]) -> dict:
    """A group for laws.json: what its drafts are, its files, and the ways of judging in the order of their arrays."""
    group, first = own[0].group, load_drafts(workdir.path / own[0].file)
    done = {arm.name: group.done(arm) for arm in group.arms}
    return {
        "name": group.name,
        "arms": [arm.name for arm in group.arms],
        "drawn": first.drawn,
        "branches": group.branches,
        "certain": first.q_NMV is None,
        "depth": group.most,
        "base": group.base,
        "files": {str(job.encoded.prompt.question_id): job.file for job in own},
        "ways": [
            {"rule": rule, "length": length, "exact": bool(way.rule.exact), "arms": [name for name in done if done[name] == (rule, length)]}
            for (rule, length), way in group.ways(first.drawn).items()
        ],
    }


def drafts(experiment: Experiment, job: Job) -> tuple[Seen, Drafts]:
    """Read the output once, then draft at each root and judge: what is seen of all drafts, and those that are kept whole."""
    setup, params, prompt = job.group.decoder.setup, experiment.target.params, job.encoded.prompt
    own_seed = jax.random.fold_in(setup.seed, PURPOSE)
    setup = dataclasses.replace(setup, seed=own_seed, length=Fixed(k=jnp.int32(EVERYTHING)))
    read = len(job.encoded.tokens)
    state = job.group.decoder.start([job.encoded.tokens + job.output], 0, [prompt.id], experiment.size)
    state = decode.prefill(setup, params, state._replace(prompt_B=jnp.asarray([read], jnp.int32)))
    seen, kept = [], []
    for (place, sample), whole in zip(job.places, job.whole, strict=True):
        where = jnp.asarray([read + place - 1], jnp.int32), jnp.asarray([sample_id(prompt.id, sample)], jnp.uint32)
        tree, arrays = fetch(draft_at(setup, params, state, *where))
        one = Drafts(tree.drawn, *arrays)
        seen.append(see(list(job.group.ways(one.drawn).values()), one))
        kept.append(one if whole else Drafts(one.drawn, *(x if x is None else x[:0] for x in one[1:])))
    stacked = [np.concatenate(x) if x[0] is not None else None for x in list(zip(*kept, strict=True))[1:]]
    return Seen(*(np.concatenate(x, axis=1) for x in zip(*seen, strict=True))), Drafts(kept[0].drawn, *stacked)


@jax.jit
def draft_at(setup, params, state: State, cursor_B, id_B):
    """One draft at an earlier place of the text that `state` has read, and the target's laws of it: (tree, the arrays of `Drafts`)."""
    own = setup.drafter.params
    view = View(params, state.cache, state.token_BS, cursor_B)
    drafter = setup.drafter.observe(own, state.drafter, view, None)
    state = state._replace(cursor_B=cursor_B, id_B=id_B, drafter=drafter)
    root_B = jnp.take_along_axis(state.token_BS, cursor_B[:, None], axis=1)[:, 0]
    ask_B = jnp.clip(setup.drafter.offer(drafter), 0, setup.drafter.most)
    draft, _, view = setup.drafter.propose(own, drafter, view, root_B, ask_B, decode.Draw(setup, state))
    asked_BM = draft.tree.valid_M & (draft.tree.depth_M <= ask_B[:, None])
    draft = draft._replace(tree=dataclasses.replace(draft.tree, valid_M=asked_BM.at[:, 0].set(True)))
    verified, _, _ = verify(setup, params, draft, state._replace(cache=view.cache))
    tree, token_BM, q_BMV = cut_unknown(draft, verified.usable_BM)
    token_BM, p_BMV = jnp.where(tree.valid_M, token_BM, 0), jnp.where(tree.valid_M[..., None], verified.p_BMV, 0)
    return tree, (tree.parent_M, tree.depth_M, tree.rank_M, tree.valid_M, token_BM, p_BMV, q_BMV)


# ---------------------------------------------------------------- files


@processes.of_first
def save(path: Path, seen: Seen, kept: Drafts) -> None:
    """Whole or not at all."""
    part = path.with_name(".part.npz")
    np.savez_compressed(part, **{name: x for name, x in (seen._asdict() | kept._asdict()).items() if x is not None})
    part.replace(path)


def load_seen(path: Path) -> Seen:
    """ValueError where the file is missing or damaged."""
    seen = _read(path, lambda file: Seen(*(file[name] for name in Seen._fields)))
    return seen if seen.reach_WNK.shape[:2] == seen.full_WN.shape == seen.drafted_WN.shape else _damaged(path)


def load_drafts(path: Path) -> Drafts:
    """Those kept whole. ValueError where the file is missing or damaged."""
    kept = _read(path, lambda file: Drafts(**{name: file[name] for name in file.files if name not in Seen._fields}))
    return kept._replace(drawn=str(kept.drawn)) if kept.p_NMV.shape[:2] == kept.token_NM.shape else _damaged(path)


def _read(path: Path, take: Callable):
    try:
        with np.load(path, allow_pickle=False) as file:
            return take(file)
    except (OSError, EOFError, KeyError, TypeError, ValueError, AttributeError, zipfile.BadZipFile, zlib.error):
        return _damaged(path)


def _damaged(path: Path):
    raise ValueError(f"{path} is missing or damaged: delete it, and the run's own command records it again")


def index(workdir: Workdir) -> list[dict]:
    """The groups of a finished recording, as laws.json describes them.

    Raises:
      ValueError: the run has none, or the file is damaged.
    """
    notes = workdir.read(INDEX)
    if notes is None:
        unfinished = (workdir.path / FOLDER).is_dir()
        why = "were not all recorded: the run's own command goes on" if unfinished else "were not recorded: set config.record_laws=True"
        raise ValueError(f"{workdir}: the laws of this run {why}")
    if not isinstance(notes.get("groups"), list):
        raise ValueError(f"{workdir.path / INDEX} is damaged: delete it, and the run's own command writes it again")
    return notes["groups"]
