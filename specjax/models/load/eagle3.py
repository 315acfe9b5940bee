"""A published EAGLE-3 draft (Li et al., 2503.01840), in the layout of its authors, of SpecForge and of SGLang (one flat config.json,
tensors `midlayer.*`), or in that of vLLM's speculators (`speculators_model_type`, `transformer_layer_config`, tensors `layers.0.*`).
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping

import numpy as np

from specjax.models.config import ModelConfig
from specjax.models.eagle3 import Eagle3Config
from specjax.models.load import families, hf, names, names_eagle3, reduced
from specjax.models.load.families import Family
from specjax.models.load.fields import Fields
from specjax.models.load.readers import activation, heads, rotary

WHERE = "config.json: "
ARCHITECTURES = ("LlamaForCausalLMEagle3", "Eagle3LlamaForCausalLM", "LlamaForCausalLM")
EAGLE3 = Family(
    names_eagle3.TABLE,
    families.LLAMA | families.ATTENTION_BIAS | {"mlp_bias": ("flag", "mlp_bias", False)},
    (heads, activation("hidden_act"), rotary()),
    defaults={  # of transformers' LlamaConfig, which leaves out what is as in it
        "hidden_act": "silu", "hidden_size": 4096, "intermediate_size": 11008, "max_position_embeddings": 2048, "num_attention_heads": 32,
        "num_hidden_layers": 32, "rms_norm_eps": 1e-6, "vocab_size": 32000,
    },
    plain={
        "model_type": (None, "llama"), "num_hidden_layers": (1,), "use_sliding_window": (None, False), "logit_scale": (None, 1.0),
        "norm_before_fc": (None, False), "fc_norm": (None, False), "norm_output": (None, False),  # EAGLE-3.1
    },
)  # fmt: skip


def read(raw: dict, where: Mapping, target: ModelConfig, lent: list[str] | None, dtype) -> tuple:
    """(config, params, ids_U, lent), as in `drafts.Trained`. lent: None where nobody said: then it is an embedding that is not there."""
    config = eagle3_config(published_fields(raw), target, len(where))
    base, table = config.base, names.as_stored(names_eagle3.TABLE, where)
    if lent is None:
        lent = [] if "embed_tokens.weight" in where else ["embed_VD"]
    if lent and base.width != target.width:
        raise ValueError(f"no tensor embed_tokens.weight, and the target's embedding is {target.width} wide, should be {base.width}")
    table = table._replace(entries=tuple(entry for entry in table.entries if entry.path not in lent))
    size = base.head_vocab or base.vocab
    ids_U, columns = reduced.read(where, size, target)
    joined = len(config.taps) * config.target_width
    params = names.build(base, table, where, functools.partial(hf.read, where), dtype, U=size, X=joined)
    if "head_DV" in params:
        params["head_DV"] = np.ascontiguousarray(params["head_DV"][:, columns])
    base = dataclasses.replace(base, head_vocab=None if len(columns) == base.vocab else len(columns))
    return dataclasses.replace(config, base=base), params, ids_U, tuple(lent)


def published_fields(raw: dict) -> Fields:
    """All that a published config.json says, whichever its layout."""
    given = Fields(raw.get, WHERE)
    if "speculators_model_type" in raw:
        if (kind := given.text("speculators_model_type")) != "eagle3":
            raise ValueError(f"{WHERE}speculators_model_type={kind!r} is not supported; supported: 'eagle3'")
        given.flag("norm_before_residual")  # its readers do not agree about what a missing one means
        raw = raw | {"model_type": None} | given.object("transformer_layer_config")
    else:
        architecture = next(iter(given.list("architectures", [])), None)
        if architecture not in ARCHITECTURES or (architecture == "LlamaForCausalLM" and "draft_vocab_size" not in raw):
            raise ValueError(
                f"{WHERE}architectures={architecture!r} and no draft_vocab_size: is no EAGLE-3 draft, {ARCHITECTURES[0]} would be"
            )
    return Fields((EAGLE3.defaults | raw).get, WHERE)


def eagle3_config(fields: Fields, target: ModelConfig, tensors: int) -> Eagle3Config:
    """What the fields say of a draft for this target."""
    base = families.config(EAGLE3, fields, tensors, tied=False)
    width = fields.count("target_hidden_size", base.width)
    for name, said, real in (("vocab_size", base.vocab, target.vocab), ("target_hidden_size", width, target.width)):
        if said != real:
            raise ValueError(f"{WHERE}{name} is {said}, the target's is {real}: the draft was made for another target")
    size = fields.count("draft_vocab_size", base.vocab)
    if size > base.vocab:
        raise ValueError(f"{WHERE}draft_vocab_size={size} should be at most vocab_size={base.vocab}")
    base = dataclasses.replace(base, head_vocab=None if size == base.vocab else size, real_vocab=target.real_vocab)
    return Eagle3Config(base, _taps(fields, target.layers), width, fields.flag("norm_before_residual", False))


def _taps(fields: Fields, layers: int) -> tuple[int, ...]:
    """The layers whose output is read. vLLM numbers the layer *before* which it looks, SGLang and SpecForge (`eagle_config`) the one after
    which; where neither is given, all of them look before layers 2, L / 2 and L - 3."""
    place = fields.within("eagle_config")
    if not place.flag("use_aux_hidden_state", True):
        raise ValueError(f"{place.where}use_aux_hidden_state=false is not supported; supported: true")
    name = "eagle_aux_hidden_state_layer_ids"
    before, after = fields.list(name, []), place.list(name, [])
    if odd := [i for i in (*before, *after) if type(i) is not int]:
        raise ValueError(f"{WHERE}{name} holds {odd[0]!r}, should be numbers of layers")
    if before and after and [i - 1 for i in before] != after:
        raise ValueError(f"{WHERE}{name}={before} looks before layers that eagle_config's {after} do not precede")
    taps = tuple(after or [i - 1 for i in before or (2, layers // 2, layers - 3)])
    if not all(0 <= tap < layers for tap in taps):
        raise ValueError(f"{WHERE}the draft reads the output of layers {list(taps)}, the target has {layers}, numbered from 0")
    return taps
