"""What the weights of an EAGLE-3 draft are called: the names of its authors and of SpecForge, which SGLang and vLLM read; vLLM's
speculators call its one layer `layers.0`. A table as in `names`, and the way back for what is exported.

`d2t` and `t2d` are the reduced vocabulary, see `reduced`. The embedding may be missing: then it is the target's. Tensors of the target
itself (`verifier_*`) are passed over.
"""

from __future__ import annotations

import numpy as np

from specjax.models.eagle3 import Eagle3Config
from specjax.models.load import names
from specjax.models.load.names import Rows

NO_WEIGHTS = r"d2t|t2d|verifier_.*|.*\.rotary_emb\.inv_freq"
LAYER = "midlayer."
Q, K, V = (f"{LAYER}self_attn.{part}_proj.weight" for part in "qkv")


def _rows() -> Rows:
    """A Llama layer with a norm more, and q, k and v of twice the width: the embedding's half, then the feature's. Letters that are no
    config's: U tokens that the draft can say, X the widths of all taps together."""
    rows = names.llama_rows(
        embed="embed_tokens", block=LAYER, attn_norm="input_layernorm", q="self_attn.q_proj", k="self_attn.k_proj", v="self_attn.v_proj",
        out_="self_attn.o_proj", q_norm="self_attn.q_norm", k_norm="self_attn.k_norm", mlp_norm="post_attention_layernorm",
        gate="mlp.gate_proj", up="mlp.up_proj", down="mlp.down_proj", norm="norm", head="lm_head",
    )  # fmt: skip
    rows = {path.replace("layers/{}/", "layer/"): row for path, row in rows.items()}
    return rows | {
        "fc_XD": ({"fc.weight": "D X"}, names.transpose),
        "layer/feature_norm_D": ({LAYER + "hidden_norm.weight": "D"}, names.keep),
        "layer/qkv_DGJC": ({Q: "HC D+D", K: "GC D+D", V: "GC D+D"}, names.qkv),
        "head_DV": ({"lm_head.weight": "U D"}, names.transpose),
    }


ROWS = _rows()
TABLE = names.table(ROWS, ignored=NO_WEIGHTS, renamed=((LAYER, "layers.0."),))


# ---------------------------------------------------------------- and back


def published(config: Eagle3Config, params: dict) -> dict[str, np.ndarray]:
    """Our parameters under their names, the inverse of the table: kernels are (out, in), and what is fused here is apart there."""
    flat = {**params, **{f"layer/{name}": x for name, x in params["layer"].items()}}
    found = {}
    for path, (theirs, _) in ROWS.items():
        if path in flat:
            parts = _apart(path.rpartition("/")[2], np.asarray(flat[path]), config)
            found |= zip(theirs, parts, strict=True)
    return found


def _apart(name: str, ours: np.ndarray, config: Eagle3Config) -> list[np.ndarray]:
    base = config.base
    match name:
        case "qkv_DGJC":
            q, k, v = np.split(ours, [base.group, base.group + 1], axis=2)
            return [x.reshape(len(x), -1).T for x in (q, k, v)]
        case "qkv_bias_GJC":
            return [x.reshape(-1) for x in np.split(ours, [base.group, base.group + 1], axis=1)]
        case "out_HCD":
            return [ours.reshape(-1, base.width).T]
        case "up_DUF":
            return [ours[:, u].T for u in range(ours.shape[1])]
        case "up_bias_UF":
            return list(ours)
    return [ours.T]
