"""What the target says at every place of packed rows: its features and its law of the next token, by one teacher-forced pass.

Made anew for each batch, or once and kept on disk (`keep`): then a shard is one .npy file of records, a row each, that is read in place:

    feature  bfloat16 as uint16 [taps, T, D]       p  float32 [T, m]      id  uint16 or int32 [T, m]      rest  float32 [T]

Features are kept as bfloat16 because the residual stream has channels that are thousands of times larger than the others: float16 ends
at 65504.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np

from specjax import LM, processes
from specjax.training import rows, shards, targets
from specjax.training.pack import Packed
from specjax.training.rows import Batch
from specjax.training.shards import Folder
from specjax.training.targets import TargetLaw

LOGITS_BYTES = 2**26  # of logits that are in memory at once
SHARD_BYTES = 2**28
BATCH = 8  # rows that are scored at once for the disk: what is kept does not hang on the batch of a training step


@dataclasses.dataclass(frozen=True)
class Teacher:
    """taps: layers whose output is a feature. top: likeliest tokens of the law that are named, None: all of them."""

    target: LM
    taps: tuple[int, ...] = ()
    top: int | None = None

    def __post_init__(self):
        layers, vocab = self.target.model.config.layers, self.target.model.vocab
        if wrong := [tap for tap in self.taps if not 0 <= tap < layers]:
            raise ValueError(f"taps={self.taps}: the target has no layer {wrong[0]}, it has 0 .. {layers - 1}")
        if self.top is not None and not 1 <= self.top <= vocab:
            raise ValueError(f"top={self.top} must be None or between 1 and {vocab}, the tokens of the target")

    def __call__(self, batch: Batch) -> Batch:
        """The batch with features and law, on the device."""
        features, law = score(self.target.model, self.taps, self.top, self.target.params, batch._replace(features=(), law=None))
        return batch._replace(features=features, law=law)


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def score(model, taps: tuple[int, ...], top: int | None, params, batch: Batch):
    """(features, law) of a batch, see `Batch`. Logits are made for a few places at a time, so that [B, T, V] is never in memory."""
    B, T = batch.token_BT.shape
    dtype = jax.tree.leaves(params)[0].dtype
    cursor_B = jnp.zeros(B, jnp.int32)
    hidden_BTD, features, _ = model.forward(
        params,
        jnp.asarray(batch.token_BT),
        model.init_cache(B, T, dtype),
        cursor_B,
        position_BT=jnp.asarray(batch.position_BT),
        mask=rows.visible(batch),
        taps=taps,
    )
    law = _in_pieces(lambda hidden_BTD: _law(model.head(params, hidden_BTD)[..., : model.vocab], top), hidden_BTD, 4 * B * model.vocab)
    return features, law


def _in_pieces(function, x_BTD, place_bytes: int):
    """function(x) [B, T, ...], taken over a few places of T at a time; the batch stays whole, as it may be split over devices."""
    B, T, D = x_BTD.shape
    places = min(T, max(1, LOGITS_BYTES // place_bytes))
    x_NBPD = jnp.pad(x_BTD, ((0, 0), (0, -T % places), (0, 0))).reshape(B, -1, places, D).swapaxes(0, 1)
    made = jax.lax.map(function, x_NBPD)
    return jax.tree.map(lambda x: x.swapaxes(0, 1).reshape(B, -1, *x.shape[3:])[:, :T], made)


def _law(logits_XV, top: int | None) -> TargetLaw:
    return targets.full(logits_XV) if top is None else targets.top(logits_XV, top)


class Rows:
    """Packed rows one by one, as `Batch` without its first axis. kept: features and laws by row, else there are none."""

    def __init__(self, packed: Packed, kept: Kept | None = None):
        self.packed, self.kept = packed, kept

    def __len__(self) -> int:
        return len(self.packed.token_NT)

    def __getitem__(self, n: int) -> Batch:
        features, law = ((), None) if self.kept is None else self.kept[n]
        return Batch(*(x_NT[n] for x_NT in self.packed), features, law)


class Kept:
    """Features and laws on disk, read in place."""

    def __init__(self, files: list[Path]):
        self.shards = [np.load(file, mmap_mode="r") for file in files]

    def __getitem__(self, n: int) -> tuple[tuple[np.ndarray, ...], TargetLaw]:
        shard, row = divmod(n, len(self.shards[0]))
        record = self.shards[shard][row]
        features = tuple(x_TD.view(ml_dtypes.bfloat16) for x_TD in record["feature"])
        return features, TargetLaw(np.asarray(record["p"]), record["id"].astype(np.int32), np.asarray(record["rest"]))


def keep(packed: Packed, teacher: Teacher, folder: str | Path, progress: Callable[[str], None]) -> Kept:
    """Make what is missing of the features and laws of these rows, and say a line a shard. Other rows, another target or other taps have a
    folder of their own within the folder.

    Raises:
      ValueError: no `top` says what a law is cut to.
      FloatingPointError: the target's features or laws are not finite.
    """
    if teacher.top is None:
        raise ValueError("cache=True needs top: the tokens of a law that are kept")
    kind = _record(teacher, packed.token_NT.shape[1])
    digest = hashlib.sha256(b"".join(np.ascontiguousarray(x_NT).tobytes() for x_NT in packed)).hexdigest()
    each = max(1, SHARD_BYTES // (kind.itemsize * BATCH)) * BATCH
    settings = {"rows": digest, "taps": teacher.taps, "top": teacher.top, "batch": BATCH, "each": each}
    made = shards.made_by("scores", settings, teacher.target)
    store = Folder(Path(folder) / Folder(folder, made).fingerprint[:16], made)
    count = -(-len(packed.token_NT) // each)
    processes.first(lambda: _make(packed, teacher, store, each, progress))
    return Kept([store.seen(count) / entry["name"] for entry in store.entries()])


def _make(packed: Packed, teacher: Teacher, store: Folder, each: int, progress: Callable[[str], None]) -> None:
    count, kind = -(-len(packed.token_NT) // each), _record(teacher, packed.token_NT.shape[1])
    with store.locked():
        entries = store.entries()
        for n in range(len(entries), count):
            part = Packed(*(x_NT[n * each : (n + 1) * each] for x_NT in packed))
            records = _score_all(part, teacher, kind)
            store.add(entries, ".npy", lambda file, records=records: np.save(file, records), rows=len(records))
            progress(f"scores {n + 1}/{count}: {len(records)} rows, {records.nbytes / 2**20:.0f} MB")


def _record(teacher: Teacher, length: int) -> np.dtype:
    config, top = teacher.target.model.config, teacher.top
    number = np.uint16 if teacher.target.model.vocab <= 2**16 else np.int32
    features = ("feature", np.uint16, (len(teacher.taps), length, config.width))
    return np.dtype([features, ("p", np.float32, (length, top)), ("id", number, (length, top)), ("rest", np.float32, (length,))])


def _score_all(packed: Packed, teacher: Teacher, kind: np.dtype) -> np.ndarray:
    count = len(packed.token_NT)
    records = np.zeros(count, kind)
    for begin in range(0, count, BATCH):
        chosen = np.arange(begin, begin + BATCH) % count  # the last batch is filled up, so that it compiles nothing
        scored = jax.device_get(teacher(Batch(*(x_NT[chosen] for x_NT in packed))))
        here = records[begin : begin + BATCH]
        values = {"feature": scored.features, "p": scored.law.p_XN, "id": scored.law.id_XN, "rest": scored.law.rest_X}
        if not all(np.all(np.isfinite(x)) for x in [*scored.features, scored.law.p_XN, scored.law.rest_X]):
            raise FloatingPointError(f"{teacher.target.source}: features or laws of rows {begin} .. {begin + len(here) - 1} are not finite")
        for tap, x_BTD in enumerate(values.pop("feature")):
            here["feature"][:, tap] = x_BTD[: len(here)].astype(ml_dtypes.bfloat16).view(np.uint16)
        for name, x in values.items():
            here[name] = x[: len(here)]
    return records
