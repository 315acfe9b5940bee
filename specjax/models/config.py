"""What a transformer is, in numbers: everything the code needs to know about a checkpoint, and nothing about where it came from."""

from __future__ import annotations

import dataclasses

ACTIVATIONS = ("silu", "gelu", "gelu_tanh")
NORMS = ("rms", "layer")


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """One decoder-only transformer. Letters as in `specjax.types`. Hashable: it is part of the compiled program.

    The defaults are Llama. What a config does not have is not in the program either: every option is an `if` while tracing.
    """

    vocab: int  # V, rows of the embedding and columns of the head
    width: int  # D
    layers: int  # L
    heads: int  # H
    kv_heads: int  # G
    head_size: int  # C
    ff: int  # F, of layers without experts
    tied: bool  # the head is the embedding's transpose
    max_positions: int
    norm_eps: float = 1e-5
    real_vocab: int | None = None  # ids at or past it are padding and never emitted; None: all are real
    head_vocab: int | None = None  # columns of the head of a draft that speaks fewer tokens than it reads; None: as many

    # positions
    rope_theta: float = 10_000.0
    rotary: int | None = None  # channels of a head that turn, the first ones; None: all
    rope_stretch: tuple[float, ...] = ()  # each turning pair's rate is divided by its own number; (): none is
    rope_gain: float = 1.0  # on cos and sin
    window_theta: float | None = None  # rope_theta of the sliding layers, which then have neither stretch nor gain; None: as the others
    learned_positions: bool = False  # an embedding of positions in place of rotary ones

    # attention
    window: int | None = None  # positions that a sliding layer sees, the token's own included
    sliding: tuple[int, ...] = ()  # the layers that slide
    attn_scale: float | None = None  # of the scores; None: C ** -0.5
    attn_cap: float | None = None  # scores become cap * tanh(score / cap)
    qkv_bias: bool = False
    out_bias: bool = False
    qk_norm: bool = False  # queries and keys are normed, each head by itself, before they turn

    # the rest of a block
    norm: str = "rms"  # or 'layer', which has a bias
    post_norms: bool = False  # attention and feed-forward are normed after, too
    parallel: bool = False  # both read the same hidden state: x + attention(norm(x)) + mlp(norm'(x))
    activation: str = "silu"  # or 'gelu', 'gelu_tanh'
    gated: bool = True  # down(activation(gate(x)) * up(x)); else down(activation(up(x)))
    mlp_bias: bool = False

    # mixture of experts
    experts: int = 0  # E
    experts_per_token: int = 0
    expert_ff: int = 0  # X
    sparse: tuple[int, ...] = ()  # the layers that have experts
    norm_topk: bool = False  # the chosen experts' probabilities are made to sum to one

    # at both ends
    embed_scale: float = 1.0
    logit_cap: float | None = None

    def __post_init__(self):
        if self.heads % self.kv_heads:
            raise ValueError(f"heads={self.heads} is not a multiple of kv_heads={self.kv_heads}")
        if not self.learned_positions:
            self._check_rotary()
        for name, allowed in [("activation", ACTIVATIONS), ("norm", NORMS)]:
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name}={getattr(self, name)!r} should be one of {', '.join(allowed)}")
        if bool(self.sliding) != (self.window is not None):
            raise ValueError(f"window={self.window} and sliding={self.sliding}: give both, or None and ()")
        if self.head_vocab is not None and (self.tied or not 1 <= self.head_vocab <= self.vocab):
            raise ValueError(f"head_vocab={self.head_vocab} must be from 1 to vocab={self.vocab}, of a head that is not tied")
        if self.sparse and not 1 <= self.experts_per_token <= self.experts:
            raise ValueError(f"experts_per_token={self.experts_per_token} should be from 1 to experts={self.experts}")

    def _check_rotary(self):
        turned, name = self.turned, "head_size" if self.rotary is None else "rotary"
        if turned % 2 or not 0 < turned <= self.head_size:
            raise ValueError(f"{name}={turned} must be even for rotary positions, and at most head_size={self.head_size}")
        if self.rope_stretch and len(self.rope_stretch) != turned // 2:
            raise ValueError(f"rope_stretch has {len(self.rope_stretch)} numbers, should have {turned // 2}, one a pair")

    @property
    def group(self) -> int:
        """R: query heads that share one key-value head."""
        return self.heads // self.kv_heads

    @property
    def turned(self) -> int:
        """Channels of a head that rotary positions turn."""
        return self.head_size if self.rotary is None else self.rotary
