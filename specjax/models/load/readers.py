"""What of a model's config follows from several keys of a config.json at once: readers that families share."""

from __future__ import annotations

from collections.abc import Callable

from specjax.models.load import rope
from specjax.models.load.fields import Fields

Reader = Callable[[Fields, dict], dict]  # (their fields, what of ours is known) -> more of ours
Slides = Callable[[Fields, int], bool]  # whether a layer slides
ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",  # three codes for one function
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
}


def heads(fields: Fields, known: dict) -> dict:
    kv_heads = fields.count("num_key_value_heads", known["heads"])
    return {"kv_heads": kv_heads, "head_size": fields.count("head_dim", known["width"] // known["heads"])}


def activation(key: str) -> Reader:
    def part(fields: Fields, known: dict) -> dict:
        if (name := fields.text(key)) not in ACTIVATIONS:
            raise ValueError(f"{fields.where}{key}={name!r} is not supported; supported: {', '.join(ACTIVATIONS)}")
        return {"activation": ACTIVATIONS[name]}

    return part


# ---------------------------------------------------------------- rotary positions


def rotary(theta: str = "rope_theta", base: float = 10_000.0, partial: str | None = None, aliases: dict | None = None) -> Reader:
    """Rotary positions as transformers 4 (`rope_scaling`) or 5 (`rope_parameters`) describe them.

    `theta` is the family's key of the base, `base` the base without it; `partial` the key of the share of a head that turns, where the
    family has one; `aliases` are other names for kinds of scaling.
    """

    def part(fields: Fields, known: dict) -> dict:
        place, given = _rope_place(fields)
        share = place.number("partial_rotary_factor", fields.number(partial or "partial_rotary_factor", 1))
        if share > 1 or (share < 1 and not partial):
            raise ValueError(f"{fields.where}partial_rotary_factor={share} is not supported; supported: 1")
        turned = int(known["head_size"] * share)
        given = {key: value for key, value in given.items() if key != "partial_rotary_factor"}
        place_theta = place.number("rope_theta", fields.number(theta, base))
        read = _stretched(fields, place, given, place_theta, turned, known["max_positions"], aliases or {})
        return read | ({"rotary": turned} if share < 1 else {})

    return part


def rotary_by_layer(fields: Fields, known: dict) -> dict:
    """Gemma 3: full layers turn at one base and may be stretched, sliding ones at another and may not."""
    place, given = _rope_place(fields)
    size, longest = known["head_size"], known["max_positions"]
    local = fields.number("rope_local_base_freq", 10_000.0)
    if place.where.endswith("rope_parameters."):  # of transformers 5: one object for each kind of layer
        if strange := given.keys() - {"full_attention", "sliding_attention"}:
            raise ValueError(f"{place.where}{min(strange)} should stand in full_attention or in sliding_attention")
        near, given_near = place.within("sliding_attention"), place.object("sliding_attention", {})
        local = near.number("rope_theta", local)
        _stretched(fields, near, given_near, local, size, longest, {}, kinds=("default",))
        place, given = place.within("full_attention"), place.object("full_attention", {})
    theta = place.number("rope_theta", fields.number("rope_theta", 1e6))
    return _stretched(fields, place, given, theta, size, longest, {}) | {"window_theta": local}


def _rope_place(fields: Fields) -> tuple[Fields, dict]:
    """The one object that describes the rotary positions: its fields, and all that is in it."""
    there = [name for name in ("rope_scaling", "rope_parameters") if fields.object(name, {})]
    if len(there) == 2:
        raise ValueError(f"{fields.where}rope_scaling and rope_parameters are both there, should be one of them")
    name = there[0] if there else "rope_scaling"
    return fields.within(name), fields.object(name, {})


def _stretched(fields, place: Fields, given: dict, theta: float, size: int, longest: int, aliases: dict, kinds=tuple(rope.KINDS)) -> dict:
    """What the object says, if all that it says is used."""
    kind = place.text("rope_type", place.text("type", "default"))
    kind = aliases.get(kind, kind)
    if kind not in kinds:
        raise ValueError(f"{place.where}rope_type={kind!r} is not supported; supported: {', '.join(kinds)}")
    keys = {"rope_type", "type", "rope_theta", "original_max_position_embeddings", *rope.KINDS[kind].keys}
    if strange := [key for key in sorted(given) if key not in keys and given[key] is not None]:
        raise ValueError(f"{place.where}{strange[0]}={given[strange[0]]!r} is not supported with rope_type {kind!r}")
    original = place.count("original_max_position_embeddings", longest)
    lengths = rope.Lengths(fields.count("original_max_position_embeddings", original), longest)
    return rope.stretched(kind, place, theta, size, lengths)


# ---------------------------------------------------------------- layers that differ


def sliding(slides: Slides, flagged: bool = False, typed: bool = True) -> Reader:
    """Which layers see a window only: those that `layer_types` names (`typed`), else those of which `slides` is true; none without
    `sliding_window`, and where a family has the flag none without `use_sliding_window` (`flagged`)."""

    def part(fields: Fields, known: dict) -> dict:
        window = fields.count("sliding_window", None)
        if flagged and not fields.flag("use_sliding_window", False):
            window = None
        types = _layer_types(fields, known["layers"]) if typed else None
        which = tuple(i for i in range(known["layers"]) if (types[i] == "sliding_attention" if types else slides(fields, i)))
        if window is None and types and which:
            raise ValueError(f"{fields.where}layer_types has sliding layers, but sliding_window is null or not used")
        return {"window": window, "sliding": which} if window and which else {}

    return part


def _layer_types(fields: Fields, layers: int) -> list[str] | None:
    types = fields.list("layer_types", None)
    if types is not None and (len(types) != layers or not all(t in ("full_attention", "sliding_attention") for t in types)):
        raise ValueError(f"{fields.where}layer_types should be {layers} times full_attention or sliding_attention")
    return types


def every(fields: Fields, layer: int) -> bool:
    return True


def every_other(fields: Fields, layer: int) -> bool:
    return layer % 2 == 0


def upper(fields: Fields, layer: int) -> bool:
    return layer >= fields.index("max_window_layers", 28)


def all_but_the_last_of_six(fields: Fields, layer: int) -> bool:
    return (layer + 1) % fields.count("sliding_window_pattern", 6) != 0


def some_experts(fields: Fields, known: dict) -> dict:
    """Layers with experts, unless the config keeps them dense."""
    step, dense = fields.count("decoder_sparse_step", 1), fields.list("mlp_only_layers", [])
    if strange := [i for i in dense if type(i) is not int or not 0 <= i < known["layers"]]:
        raise ValueError(f"{fields.where}mlp_only_layers names {strange[0]!r}, should be layers below {known['layers']}")
    experts = fields.count("num_local_experts", None) or fields.count("num_experts")  # as transformers 5 writes it, as before
    return {"experts": experts, "sparse": tuple(i for i in range(known["layers"]) if i not in dense and (i + 1) % step == 0)}


def all_experts(fields: Fields, known: dict) -> dict:
    return {"sparse": tuple(range(known["layers"]))}
