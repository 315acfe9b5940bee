"""The reduced vocabulary of a draft: two tensors of its folder. The draft's token i is the target's i + d2t[i], and t2d marks those of the
target's tokens that the draft can say. They may be in any order there; here they ascend, and the columns of the head with them.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from specjax.models.config import ModelConfig

MAPS = ("d2t", "t2d")


def tensors(ids_U: np.ndarray | None, vocab: int) -> dict[str, np.ndarray]:
    """As they are stored; none where the draft can say all."""
    if ids_U is None:
        return {}
    ids_U = np.asarray(ids_U, np.int64)
    return {"d2t": ids_U - np.arange(len(ids_U)), "t2d": np.isin(np.arange(vocab), ids_U)}


def read(where: Mapping, size: int, target: ModelConfig) -> tuple[np.ndarray | None, np.ndarray]:
    """(ids_U, the columns of the head in their order); ids_U is None where the draft can say all that the target can."""
    real = target.real_vocab or target.vocab
    if "d2t" not in where:
        if size != target.vocab or "t2d" in where:
            raise ValueError(f"tensor d2t is missing, the map from the draft's {size} tokens to the target's {target.vocab}")
        return None, np.arange(real)
    ids_U = np.arange(size) + _whole(where, "d2t", size)
    _check_map(where, ids_U, target.vocab, real)
    columns = np.argsort(ids_U)
    ids_U = ids_U[columns].astype(np.int32)
    return (None if np.array_equal(ids_U, np.arange(real)) else ids_U), columns


def _check_map(where: Mapping, ids_U: np.ndarray, vocab: int, real: int) -> None:
    if (outside := np.flatnonzero((ids_U < 0) | (ids_U >= real))).size:
        raise ValueError(f"tensor d2t maps the draft's token {outside[0]} to {ids_U[outside[0]]}, the target has {real} tokens")
    said, count = np.unique(ids_U, return_counts=True)
    if (count > 1).any():
        raise ValueError(f"tensor d2t maps {count.max()} of the draft's tokens to the target's token {said[count.argmax()]}")
    if "t2d" in where:
        mask_V = np.isin(np.arange(vocab), ids_U)
        if (differ := np.flatnonzero(_whole(where, "t2d", vocab).astype(bool) != mask_V)).size:
            raise ValueError(f"tensors d2t and t2d disagree about the target's token {differ[0]}")


def _whole(where: Mapping, name: str, size: int) -> np.ndarray:
    """A tensor of whole numbers, or of true and false, of one axis."""
    tensor = where[name].get_slice(name)
    if tensor.get_dtype() not in ("I64", "I32", "BOOL", "U8"):
        raise ValueError(f"tensor {name} is stored as {tensor.get_dtype()}; supported: I64, I32, BOOL, U8")
    if tensor.get_shape() != [size]:
        raise ValueError(f"tensor {name} has shape {tensor.get_shape()}, should be {[size]}")
    return where[name].get_tensor(name).astype(np.int64)
