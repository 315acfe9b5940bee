"""A folder that holds a draft: config.json and safetensors, of an EAGLE-3 draft as it is published, or of any draft that was trained here.

A draft trained here is written as a published one, or, where nobody else could read it, under our own names; the object `specjax` of its
config.json says what it was trained for.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np

from specjax.models import border
from specjax.models.config import ModelConfig
from specjax.models.eagle3 import Eagle3Config
from specjax.models.load import eagle3, fetch, hf, names, reduced
from specjax.models.load.fields import Fields, read_json

LENT = ("embed_VD", "head_DV", "position_PD")  # parameters that a draft may share with its target
WHERE = "config.json: "


class Trained(NamedTuple):
    """What a folder held. params: nested dict of C-contiguous arrays. lent: names of the parameters that are the target's.

    ids_U: the target's ids, ascending int32, of the tokens that the draft can say; None: all. note: what its trainer wrote, if any.
    """

    config: ModelConfig | Eagle3Config
    params: dict
    ids_U: np.ndarray | None
    lent: tuple[str, ...]
    note: Fields
    sha256: str  # of the weight files


def read(source: str | Path, target: ModelConfig, dtype) -> Trained:
    """Read a draft for a target; parameters as `dtype`. source: a folder or a hub id.

    Raises:
      ValueError: something is missing, left over, damaged, not supported, or made for another target; one line that begins with the source.
    """
    folder = fetch.resolve(str(source))
    try:
        if not folder.is_dir():
            raise ValueError("should be a folder with config.json and model.safetensors")
        raw, files = read_json(folder / "config.json"), hf.weight_files(folder)
        note = Fields(raw.get, WHERE).within("specjax")
        kind = note.text("kind", "eagle3")
        if kind not in KINDS:
            raise ValueError(f"{note.where}kind={kind!r} is not known here; known: {', '.join(KINDS)}")
        lent = note.list("lent", None)
        if odd := [name for name in lent or () if name not in LENT]:
            raise ValueError(f"{note.where}lent names {odd[0]!r}, should be of {', '.join(LENT)}")
        with contextlib.ExitStack() as stack:
            found = KINDS[kind](raw, hf.opened(files, stack), target, lent, np.dtype(dtype))
    except ValueError as error:
        raise ValueError(f"{source}: {error}") from error
    return Trained(*found, note, fetch.sha256(files))


def fingerprint(tokenizer) -> str:
    """Digest of the texts of all tokens in order: what a draft and its target must agree in."""
    texts = [tokenizer.token(i) for i in range(tokenizer.vocab_size)]
    return hashlib.sha256(json.dumps(texts).encode()).hexdigest()


# ---------------------------------------------------------------- the target's own family, under our names


def _small(raw: dict, where: Mapping, target: ModelConfig, lent: list[str] | None, dtype) -> tuple:
    """Names are the paths of `names`, with dots."""
    config, lent = model_config(Fields(raw.get, WHERE).within("specjax")), lent or []
    for name in ("vocab", "width"):
        if (said := getattr(config, name)) != (real := getattr(target, name)):
            raise ValueError(f"the draft was made for another target: {name} is {said}, the target's is {real}")
    shapes = jax.eval_shape(functools.partial(border.init, config))
    tree, structure = jax.tree.flatten_with_path({name: x for name, x in shapes.items() if name not in lent})
    wanted = {".".join(key.key for key in path): spec.shape for path, spec in tree}
    left_over = where.keys() - wanted.keys() - set(reduced.MAPS)
    for found, what in ((wanted.keys() - where.keys(), "missing"), (left_over, "not part of this draft")):
        if found:
            raise ValueError(f"tensors {what}: {', '.join(sorted(found)[:3])}")
    ids_U, _ = reduced.read(where, config.head_vocab or config.vocab, target)
    arrays = [_array(where, name, shape, dtype) for name, shape in wanted.items()]
    return config, jax.tree.unflatten(structure, arrays), ids_U, tuple(lent)


def _array(where: Mapping, name: str, shape: tuple[int, ...], dtype) -> np.ndarray:
    tensor = hf.read(where, name)
    if tensor.shape != shape:
        raise ValueError(f"tensor {name} has shape {list(tensor.shape)}, should be {list(shape)}")
    names.check_finite(name, tensor)
    return np.array(tensor, dtype=dtype, order="C")


def model_config(note: Fields) -> ModelConfig:
    """The config that was written as an object of its fields."""
    given, place = note.object("model"), note.within("model")
    fields = {field.name: field.type for field in dataclasses.fields(ModelConfig)}
    if strange := given.keys() - fields.keys():
        raise ValueError(f"{place.where}{min(strange)} is not a field of a model")
    for name, value in given.items():
        if not _fits(value, fields[name]):
            raise ValueError(f"{place.where}{name}={value!r} should be {fields[name]}")
    try:
        return ModelConfig(**{name: tuple(value) if isinstance(value, list) else value for name, value in given.items()})
    except TypeError as error:  # one is missing
        raise ValueError(f"{place.where[:-1]}: {error}") from None


def _fits(value, kind: str) -> bool:
    """Whether JSON's value is of a kind as ModelConfig spells it: int, float, bool, str, with | None, or a tuple of them."""
    if kind.startswith("tuple["):
        return type(value) is list and all(_fits(x, kind.removeprefix("tuple[").partition(",")[0]) for x in value)
    first, _, rest = kind.partition(" | ")
    of = {"int": (int,), "float": (int, float), "bool": (bool,), "str": (str,)}[first]
    return type(value) in of or (rest == "None" and value is None)


KINDS = {"eagle3": eagle3.read, "small": _small}
