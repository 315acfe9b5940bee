"""What a transformer is, in numbers: everything the code needs to know about a checkpoint, and nothing about where it came from."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """One decoder-only transformer. Letters as in `specjax.types`. Hashable: it is part of the compiled program."""

    vocab: int  # V, rows of the embedding and columns of the head
    width: int  # D
    layers: int  # L
    heads: int  # H
    kv_heads: int  # G
    head_size: int  # C
    ff: int  # F
    tied: bool  # the head is the embedding's transpose
    max_positions: int
    norm_eps: float = 1e-5
    rope_theta: float = 10_000.0
    real_vocab: int | None = None  # ids at or past it are padding and never emitted; None: all are real

    def __post_init__(self):
        if self.heads % self.kv_heads:
            raise ValueError(f"heads={self.heads} is not a multiple of kv_heads={self.kv_heads}")
        if self.head_size % 2:
            raise ValueError(f"head_size={self.head_size} must be even for rotary positions")

    @property
    def group(self) -> int:
        """R: query heads that share one key-value head."""
        return self.heads // self.kv_heads
