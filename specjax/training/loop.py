"""Training from the first step, or from the last checkpoint, to the draft's folder.

What a step does hangs on its number, the seed and what the step before left: a run that was killed goes on from its last checkpoint and
ends with the same weights, bit for bit on a CPU.
"""

from __future__ import annotations

import dataclasses
import datetime
import json
import time
from collections.abc import Callable
from pathlib import Path

import jax

from specjax import processes
from specjax.lm import place
from specjax.sharding import Layout, here
from specjax.training import feed, metrics, step, targets
from specjax.training.checkpoint import Checkpoints, data_kept
from specjax.training.export import export
from specjax.training.held_out import HeldOut
from specjax.training.metrics import Metrics
from specjax.training.mixing import Mixing
from specjax.training.prepare import Ready
from specjax.training.rows import Batch
from specjax.training.scores import Teacher
from specjax.training.step import Fixed, Program, State
from specjax.types import PyTree

OF_THE_CARD = ("draft.", "data.", "loss", "decay", "optimizer.", "on_policy", "seed")  # keys of a plan


class Run:
    """A run of a plan on its data. command: for the draft's card. say: takes a line of news. check: raises if the run is to end.

    Raises:
      ValueError: what the draft is to write itself does not fit into a row, or the run began on other data.
    """

    def __init__(self, ready: Ready, workdir: Path, command: str, say: Callable[[str], None], check: Callable[[], None]):
        self.plan, self.ready, self.workdir, self.command, self.say, self.check = ready.plan, ready, workdir, command, say, check
        self.mesh, vocab, self.since, self.reported = step.mesh(self.plan.mesh), ready.target.model.vocab, 0.0, 0.0
        processes.alike("set of data", ready.digest)
        if (where := data_kept(workdir)) and where.get("digest") != ready.digest:
            raise ValueError(f"{workdir} holds a run on other data or held-out prompts than are there now: name another folder")
        place_V = None if ready.id_U is None else targets.place_of(ready.id_U, vocab)
        self.program = Program(ready.kind, self.plan.loss, self.plan.decay, self.plan.optimizer, self.mesh)
        self.fixed = step.placed(self.program, Fixed(ready.kind.frozen(ready.target, ready.id_U), place_V))
        self.feed = feed.feed(ready.sources, self.plan.optimizer.batch, self.plan.seed)
        self.mixing = self._mixing()
        self.teacher = ready.teacher and self._over_the_mesh(ready.teacher)
        self.held_out = HeldOut(ready.held_out, self._reader(), self.plan.optimizer.rows)

    def _over_the_mesh(self, teacher: Teacher) -> Teacher:
        """The target split over the model axis; on one device it is the same arrays."""
        return teacher if self.mesh.size == 1 else dataclasses.replace(teacher, target=place(teacher.target, Layout(self.mesh)))

    def _reader(self) -> Teacher | None:
        """What held-out rows are to have besides their tokens. At temperature 0 the target's likeliest token is the text's own."""
        taps, by_law = self.ready.kind.taps, self.plan.evaluate.temperature > 0
        return Teacher(self.ready.target, taps, self.plan.data.top if by_law else 1) if taps or by_law else None

    def _mixing(self) -> Mixing | None:
        how, data, ready = self.plan.on_policy, self.plan.data, self.ready
        teacher = Teacher(ready.target, ready.kind.taps, data.top) if data.cache else None
        return how and Mixing(how, ready.target, ready.begun, data.length, self.plan.seed, teacher)

    def train(self) -> dict:
        """Train, and export the best draft. Returns its `path`, its `step`, its row of metrics `after`, and that of the draft `before`.

        Raises:
          FloatingPointError: the loss or its gradient is not finite; nothing of that is kept.
        """
        with Checkpoints(self.workdir) as kept:
            state = step.start(self.program, self.ready.kind.init(self.ready.target, self.ready.id_U, self.plan.seed))
            if kept.latest is not None:
                state, where = kept.restore(state)
                state = step.placed(self.program, state)
                self.feed.set_state(where["feed"])
                if self.mixing:
                    self.mixing.set_state(where["drawn"])
                self.reported = float(state.sums["tokens"])  # of steps that this process did not take
                self.say(f"goes on after step {int(state.step)}")
            with Metrics(self.workdir, -1 if kept.latest is None else int(state.step)) as said:
                if kept.latest is None:
                    self._keep(kept, said, state)
                self._steps(kept, said, state)
            best, params = kept.best, kept.restore_best(state)
        rows = {row["step"]: row for row in metrics.read(self.workdir) if row["kind"] == "evaluate"}
        return self._export(params, {"step": best, "before": rows[0], "after": rows[best]})

    def _steps(self, kept: Checkpoints, said: Metrics, state: State) -> None:
        steps, first = self.plan.optimizer.steps, int(state.step)
        began = self.since = time.perf_counter()
        for done in range(first + 1, steps + 1):
            state = step.train(self.program, self.fixed, state, self._batch(done, state.params))
            if done % self.plan.log_every == 0 or done == steps:
                left = (time.perf_counter() - began) / (done - first) * (steps - done)
                state = self._report(said, state, left)
            if done % self.plan.checkpoint_every == 0 or self._is_evaluated(done):
                self._keep(kept, said, state)
            self.check()

    def _batch(self, number: int, params: PyTree) -> Batch:
        """What step `number` learns from."""
        batch, ready = next(self.feed), self.ready
        if self.mixing:
            if self.mixing.due(number):
                own = here((params, self.fixed.frozen))
                drafter = ready.kind.drafter(*own, ready.id_U, ready.kind.places, ready.target)
                self.mixing.draw(number, drafter)
            batch = self.mixing.mixed(number, batch)
        batch = step.spread(self.mesh, batch)
        return batch if self.teacher is None else self.teacher(batch)

    def _report(self, said: Metrics, state: State, left: float) -> State:
        """Say and write what the steps since the last report did."""
        self._check_finite(state)
        sums, now, done = jax.device_get(state.sums), time.perf_counter(), int(state.step)
        row = {
            "loss": float(sums["loss"] / max(sums["weight"], 1e-9)),
            "learning_rate": float(step.schedule(self.plan.optimizer)(done - 1 - int(state.skipped))),
            "gradient_norm": float(sums["norm"] / max(sums["steps"], 1)),
            "tokens_per_second": (float(sums["tokens"]) - self.reported) / (now - self.since),
            "skipped": int(state.skipped),
        }
        if self.mixing:
            row["drafted_share"] = self.mixing.share
        said.write(done, "train", row)
        clock = datetime.timedelta(seconds=round(left))
        self.say(f"step {done}/{self.plan.optimizer.steps}: loss {row['loss']:.4f}, {row['tokens_per_second']:.0f} tokens/s, {clock} left")
        self.since, self.reported = now, 0.0
        return state._replace(sums=step.placed(self.program, step.no_sums()))

    def _is_evaluated(self, done: int) -> bool:
        return done % self.plan.evaluate.every == 0 or done == self.plan.optimizer.steps

    def _keep(self, kept: Checkpoints, said: Metrics, state: State) -> None:
        """A checkpoint, with its score where it is time for an evaluation."""
        self._check_finite(state)
        began, done, score = time.perf_counter(), int(state.step), None
        if self._is_evaluated(done):
            row = self.held_out.figures(self.program, self.fixed, state.params, self.plan.evaluate.temperature)
            said.write(done, "evaluate", row)
            score = row["tokens_per_pass"]
            overlap = " ".join(f"{one:.3f}" for one in row["overlap"])
            self.say(f"step {done}: {score:.3f} tokens a pass predicted on held-out prompts; overlap by place {overlap}")
        where = {"feed": self.feed.get_state(), "drawn": self.mixing.state if self.mixing else None, "digest": self.ready.digest}
        kept.save(state, where, score)
        self.since += time.perf_counter() - began  # the next rate is that of training alone

    def _export(self, params: PyTree, summary: dict) -> dict:
        figures, settings = ("tokens_per_pass", "overlap", "rate"), self.plan.resolved().items()
        card = {
            "Data": {name: ", ".join(f"{number} {what}" for what, number in counts.items()) for name, counts in self.ready.counts.items()},
            "Command": f"    {self.command}",
            "Settings": "\n".join(f"    {name}: {json.dumps(value)}" for name, value in settings if name.startswith(OF_THE_CARD)),
            "Held-out prompts": {f"{name} {when}": summary[when][name] for name in figures for when in ("before", "after")},
        }
        where = self.workdir / "draft", self.ready.kind, params, self.ready.id_U, self.ready.target
        return {**summary, "path": processes.first(lambda: str(export(*where, card=card)))}

    def _check_finite(self, state: State) -> None:
        if (failed := int(state.failed)) >= 0:
            said = f"step {failed + 1}: the loss or its gradient is not finite; a lower optimizer.learning_rate may help"
            raise processes.marked(FloatingPointError(said))  # all processes have this state
