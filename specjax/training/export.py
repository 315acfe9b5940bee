"""A trained draft as a folder: config.json, model.safetensors and a card, for `specjax.load_drafter` and `--config...drafter.path`.

An EAGLE-3 draft is written in its authors' layout (`midlayer.*`), not in that of vLLM's speculators: vLLM and SGLang both read the former.
A small transformer is written under our own names: it is nothing without its target's embedding, so that nobody else could use it. What a
draft shares with its target is not written; the object `specjax` of config.json names it, and says what the draft was trained for.
"""

from __future__ import annotations

import dataclasses
import json
import tempfile
from collections.abc import Mapping
from pathlib import Path

import jax
import numpy as np
from safetensors.numpy import save_file

from specjax.lm import LM
from specjax.models.config import ModelConfig
from specjax.models.eagle3 import Eagle3Config
from specjax.models.load import drafts, eagle3, fields, names_eagle3, reduced
from specjax.models.load.readers import ACTIVATIONS
from specjax.training.drafts import Kind

UNUSED = dict(real_vocab=None, embed_scale=1.0, logit_cap=None, window_theta=None)  # of a config, in an EAGLE-3 draft


def export(
    folder: str | Path, kind: Kind, params: dict, id_U: np.ndarray | None, target: LM, *, card: Mapping, dtype: str = "bfloat16"
) -> Path:
    """Write a draft; the folder appears whole or not at all, and replaces a draft that was exported there before.

    params, id_U: as `kind.init` takes and gives them. dtype: that they are stored in. card: sections of README.md, each a text, a list
    or a mapping of names to values.

    Raises:
      ValueError: the folder holds something else, or the draft has parts that its layout has no place for.
    """
    folder, eagle = Path(folder), isinstance(kind.model.config, Eagle3Config)
    check_free(folder)
    params = jax.tree.map(lambda x: np.asarray(x).astype(dtype), params)
    tensors = names_eagle3.published(kind.model.config, params) if eagle else _flat(params)
    tensors |= reduced.tensors(id_U, target.model.config.vocab)
    said = _published_config(kind.model.config, target) if eagle else {"model_type": "specjax_draft"}
    said |= {"torch_dtype": dtype, "specjax": _note(kind, id_U, target, dtype)}
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}.") as part:
        new = Path(part) / "new"
        new.mkdir()
        (new / "config.json").write_text(json.dumps(said, indent=2) + "\n")
        save_file({name: np.ascontiguousarray(x) for name, x in tensors.items()}, new / "model.safetensors", {"format": "pt"})
        (new / "README.md").write_text(_card(folder.name, kind, target, card))
        if folder.exists():
            folder.rename(Path(part) / "old")
        new.rename(folder)
    return folder


def check_free(folder: Path) -> None:
    """Nothing that is not an earlier export may be lost. ValueError says what is in the way."""
    config = folder / "config.json"
    if folder.exists() and any(folder.iterdir()) and not (config.exists() and "specjax" in fields.parse(config.read_bytes(), str(config))):
        raise ValueError(f"{folder} is there and holds no exported draft: name another folder")


def _note(kind: Kind, id_U: np.ndarray | None, target: LM, dtype: str) -> dict:
    settings = {f.name: getattr(kind, f.name) for f in dataclasses.fields(kind) if f.name != "model"}
    config, tokenizer = target.model.config, target.tokenizer
    note = {
        "kind": kind.name,
        "settings": settings,
        "dtype": dtype,
        "lent": sorted(kind.frozen(target, id_U)),
        "target": {"source": target.source, "sha256": target.sha256, "layers": config.layers, "width": config.width},
    }
    if tokenizer is not None:
        note["tokenizer"] = {"vocab_size": tokenizer.vocab_size, "sha256": drafts.fingerprint(tokenizer)}
    if isinstance(kind.model.config, ModelConfig):
        note["model"] = dataclasses.asdict(kind.model.config)
    return note


def _flat(params: dict) -> dict[str, np.ndarray]:
    return {".".join(key.key for key in path): x for path, x in jax.tree.flatten_with_path(params)[0]}


def _published_config(config: Eagle3Config, target: LM) -> dict:
    """The config.json of a published EAGLE-3 draft. ValueError names what it cannot say."""
    said = _said(config)
    found = eagle3.eagle3_config(eagle3.published_fields(said), target.model.config, tensors=1)
    given, read = (dataclasses.asdict(dataclasses.replace(c.base, **UNUSED)) for c in (config, found))
    if lost := [f"{name}={value!r}" for name, value in given.items() if read[name] != value]:
        raise ValueError(f"the published layout of EAGLE-3 has no place for {', '.join(lost)}")
    return said


def _said(config: Eagle3Config) -> dict:
    """vLLM names the layers before which it looks, SGLang (`eagle_config`) those after which. However rotary positions are stretched, they
    are written as longrope, which has a number for every pair."""
    base, name = config.base, "eagle_aux_hidden_state_layer_ids"
    longrope = {"rope_type": "longrope", "factor": 1.0, "original_max_position_embeddings": base.max_positions}
    longrope |= {"long_factor": list(base.rope_stretch), "short_factor": list(base.rope_stretch), "attention_factor": base.rope_gain}
    return {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "hidden_size": base.width,
        "intermediate_size": base.ff,
        "num_hidden_layers": 1,
        "num_attention_heads": base.heads,
        "num_key_value_heads": base.kv_heads,
        "head_dim": base.head_size,
        "hidden_act": next(theirs for theirs, ours in ACTIVATIONS.items() if ours == base.activation),
        "max_position_embeddings": base.max_positions,
        "rms_norm_eps": base.norm_eps,
        "rope_theta": base.rope_theta,
        "rope_scaling": longrope if base.rope_stretch else None,
        "attention_bias": base.qkv_bias and base.out_bias,
        "mlp_bias": base.mlp_bias,
        "tie_word_embeddings": False,
        "vocab_size": base.vocab,
        "draft_vocab_size": base.head_vocab or base.vocab,
        "target_hidden_size": config.target_width,
        "norm_before_residual": config.norm_before_residual,
        name: [tap + 1 for tap in config.taps],
        "eagle_config": {"use_aux_hidden_state": True, name: list(config.taps)},
    }


# ---------------------------------------------------------------- the card


def _card(name: str, kind: Kind, target: LM, card: Mapping) -> str:
    use = f'import specjax\n\ntarget = specjax.load("{target.source}")\ndrafter = specjax.load_drafter("{name}", target)'
    top = f"# {name}\n\nA draft of kind `{kind.name}` for `{target.source}`, trained with specjax.\n\n```python\n{use}\n```\n"
    return "\n".join([top, *(_section(title, content) for title, content in card.items())])


def _section(title: str, content) -> str:
    if isinstance(content, Mapping):
        content = "\n".join(["| | |", "|---|---|", *(f"| {key} | {value} |" for key, value in content.items())])
    elif not isinstance(content, str):
        content = "\n".join(f"- {one}" for one in content)
    return f"## {title}\n\n{content}\n"
