"""Checkpoints of a run (Orbax): the latest, from which it goes on, and the best by its score. Plain nested dicts, nothing of ours in them.

A checkpoint appears whole or not at all, so a run that is killed goes on from the one before. It holds whole arrays and no word of devices,
so it goes on over any mesh. Of several processes the first alone reads and writes.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

import jax
import numpy as np
import orbax.checkpoint as ocp
from orbax.checkpoint import checkpoint_managers as managers

from specjax import processes
from specjax.sharding import fetch
from specjax.training.step import State
from specjax.types import PyTree

FOLDER = "checkpoints"
ALONE = ocp.options.MultiprocessingOptions(active_processes={0})


class Checkpoints:
    """Those of a run, by its folder. To be closed: it is a context."""

    def __init__(self, workdir: Path):
        self._manager: ocp.CheckpointManager | None = None
        processes.first(lambda: self._open((workdir / FOLDER).absolute()))

    def _open(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        score = lambda metrics: metrics["score"]
        kept = managers.LatestN(1), managers.BestN(get_metric_fn=score, n=1, keep_checkpoints_without_metrics=False)
        options = ocp.CheckpointManagerOptions(
            preservation_policy=managers.AnyPreservationPolicy(list(kept)),
            best_fn=score,
            cleanup_tmp_directories=True,  # of a process that was killed
            enable_async_checkpointing=False,
            create=False,
            multiprocessing_options=ALONE,
        )
        self._manager = ocp.CheckpointManager(folder, options=options)

    def __enter__(self):
        return self

    def __exit__(self, *why):
        if self._manager:
            self._manager.close()

    @property
    def latest(self) -> int | None:
        """Steps that the newest one has behind it; None without any."""
        return processes.first(lambda: self._manager.latest_step())

    @property
    def best(self) -> int | None:
        """The same of the one with the highest score."""
        return processes.first(lambda: self._manager.best_step())

    def save(self, state: State, data: dict, score: float | None) -> None:
        """data: where the reading of the data stands, as JSON. score: of an evaluation at this step, if there was one."""
        parts = ocp.args.Composite(state=ocp.args.StandardSave(fetch(_plain(state))), data=ocp.args.JsonSave(data))
        metrics = None if score is None else {"score": score}
        processes.first(lambda: self._manager.save(int(state.step), args=parts, metrics=metrics))

    def restore(self, like: State) -> tuple[State, dict]:
        """The newest (state, data), in NumPy. like: a state of the same program, whose shapes and dtypes it has."""
        latest = self.latest
        data = ocp.args.Composite(data=ocp.args.JsonRestore())
        return _like(like, self._state(latest, like)), processes.first(lambda: self._manager.restore(latest, args=data).data)

    def restore_best(self, like: State) -> PyTree:
        """The parameters of the best one."""
        return self._state(self.best, like)["params"]

    def _state(self, steps: int, like: State) -> dict:
        like = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), _plain(like))  # a step may have overwritten it
        parts = ocp.args.Composite(state=ocp.args.StandardRestore(like))
        return processes.arrays_of_first(lambda: self._manager.restore(steps, args=parts).state, like)


@processes.of_first
def steps_kept(workdir: Path) -> int | None:
    """Of the newest checkpoint of a run; None without any."""
    with contextlib.suppress(OSError):
        return max((int(path.name) for path in (workdir / FOLDER).iterdir() if path.name.isdigit()), default=None)
    return None


@processes.of_first
def data_kept(workdir: Path) -> dict | None:
    """What `Checkpoints.save` was given as data for the newest checkpoint of a run; None without any."""
    if (steps := steps_kept(workdir)) is None:
        return None
    with ocp.Checkpointer(ocp.JsonCheckpointHandler(), multiprocessing_options=ALONE) as reader:
        return reader.restore((workdir / FOLDER / str(steps) / "data").absolute())


def _plain(state: State) -> dict:
    """A state as nested dicts; the optimizer's leaves go by their place in it."""
    named = {_name(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(state.optimizer)}
    return {"params": state.params, "optimizer": named, "step": state.step, "skipped": state.skipped, "sums": state.sums}


def _like(like: State, plain: dict) -> State:
    optimizer = jax.tree_util.tree_map_with_path(lambda path, _: plain["optimizer"][_name(path)], like.optimizer)
    return like._replace(**{**plain, "optimizer": optimizer})


def _name(path) -> str:
    return jax.tree_util.keystr(path, simple=True, separator=".")
