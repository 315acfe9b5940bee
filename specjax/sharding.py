"""Over a mesh of devices: one table of logical axes, read off the names of arrays (GSPMD, Xu et al., 2105.04663).

An array's name says what its axes are (`specjax.types`), and the table says which axis of the mesh splits each. So rows of a batch are
split over `data`, heads, feed-forward and vocabulary over `model`, and nothing else is written down anywhere: no list of parameters, no
rule per family. An axis that the mesh does not divide is whole on every device, and `told` says so in a line.

Every draw hangs on keys that all devices have (`specjax.sampling.key`), so a row's tokens do not depend on the mesh.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import re
from collections.abc import Iterator
from pathlib import PurePosixPath

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import backend
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from specjax.models.config import ModelConfig
from specjax.types import Cache, PyTree

TABLE = {"B": "data", "G": "model", "H": "model", "F": "model", "X": "model", "V": "model"}
AXES = "data", "model"
WHAT = {"G": "key-value heads", "F": "feed-forward channels", "X": "channels of an expert", "V": "tokens"}


def shape_of(text: str) -> tuple[int, int]:
    """Devices along `data` and along `model` of 'data:2,model:4'; an axis that is left out has one.

    Raises:
      ValueError: it names another axis, or one twice.
    """
    named = re.findall(r"(data|model):([1-9]\d{0,5})", text)
    if ",".join(f"{name}:{count}" for name, count in named) != text or len(dict(named)) < len(named) or not named:
        raise ValueError(f"mesh={text!r} should be like 'data:2,model:4'")
    return tuple(int(dict(named).get(axis, 1)) for axis in AXES)


def mesh_of(text: str, devices=None) -> Mesh:
    """The mesh that such a text names, over all devices or those that are given.

    Raises:
      ValueError: it is not like that, or there are more or fewer devices.
    """
    devices, shape = np.asarray(jax.devices() if devices is None else devices), shape_of(text)
    if devices.size != math.prod(shape):
        raise ValueError(f"mesh={text!r} has {math.prod(shape)} devices, there are {devices.size}")
    return Mesh(devices.reshape(shape), AXES)


@dataclasses.dataclass(frozen=True)
class Layout:
    """Where a model lies. model_axis: whether its parameters and its cache are split over the model axis, or whole on each device of it."""

    mesh: Mesh
    model_axis: bool = True

    @property
    def planned(self) -> bool:
        """Whether its devices are only planned with (`specjax.topology`): whatever is put on them becomes a shape."""
        return _planned(self.mesh)

    @property
    def ways(self) -> int:
        """Devices that a parameter is split over."""
        return self.mesh.shape["model"] if self.model_axis else 1

    def repeats(self, config: ModelConfig) -> int:
        """How often each key-value head is stored, so that the model axis divides them: 1 where it does, or cannot."""
        more, rest = divmod(self.ways, config.kv_heads)
        return more if more > 1 and not rest and config.group % more == 0 else 1

    def config(self, config: ModelConfig) -> ModelConfig:
        """The config of the model as it is stored here."""
        return dataclasses.replace(config, kv_heads=config.kv_heads * self.repeats(config))

    def whole(self, config: ModelConfig) -> str:
        """Letters whose axes the model axis does not divide. Query heads go with their key-value heads."""
        return "".join(self._undivided(config)).replace("G", "GH")

    def _undivided(self, config: ModelConfig) -> dict[str, int]:
        """Letters whose axes the model axis does not divide, with the first size that it does not."""
        sizes = {"G": (config.kv_heads * self.repeats(config),), "F": (config.ff,), "X": (config.expert_ff,)}
        sizes["V"] = config.vocab, config.head_vocab or config.vocab
        rest = {letter: [size for size in all_ if size % self.ways] for letter, all_ in sizes.items()}
        return {letter: all_[0] for letter, all_ in rest.items() if all_}

    def told(self, config: ModelConfig) -> Iterator[str]:
        """A line about each thing that is stored more than once along the model axis."""
        ways, times = self.ways, self.repeats(config)
        if times > 1:
            yield f"model:{ways}: each of {config.kv_heads} key-value heads is stored {times} times"
        for letter, size in self._undivided(config).items():
            yield f"model:{ways} does not divide {size} {WHAT[letter]}: they are whole on every device"

    def sharding(self, *axes: str | None) -> NamedSharding:
        """Axes of the mesh that have one device split nothing and are not named, nor what is whole at the end: programs are told apart by
        how a sharding is written."""
        named = [axis if axis and self.mesh.shape[axis] > 1 else None for axis in axes]
        while named and named[-1] is None:
            named.pop()
        return NamedSharding(self.mesh, PartitionSpec(*named))

    def of_parameter(self, config: ModelConfig, name: str, shape: tuple[int, ...]) -> NamedSharding:
        """By the letters after the last '_' of its name."""
        letters, whole = name.rpartition("_")[2], self.whole(config)
        splits = lambda letter, size: self.model_axis and letter not in whole and size % self.ways == 0
        return self.sharding(*(TABLE.get(letter) if splits(letter, size) else None for letter, size in zip(letters, shape, strict=True)))

    def place(self, config: ModelConfig, params: PyTree) -> PyTree:
        """Parameters that are in memory, each to where it lies; those that are on the mesh already stay."""

        def put(path, x):
            if isinstance(x, jax.Array | jax.ShapeDtypeStruct) and _on(x, self.mesh):
                return x
            name = jax.tree_util.keystr(path, simple=True, separator="/")
            return self.put(config, name, x if isinstance(x, jax.ShapeDtypeStruct) or self.planned else np.asarray(x))

        return jax.tree_util.tree_map_with_path(put, params)

    def put(self, config: ModelConfig, path: str, array: np.ndarray | jax.ShapeDtypeStruct) -> jax.Array | jax.ShapeDtypeStruct:
        """A parameter of a model of this config, as it is in its file, to where it lies. Each process sends only what its devices hold.

        path: as in `specjax.models.load.names`, 'layers/0/qkv_DGJC'. Of a shape it says where its array will lie.
        """
        name = PurePosixPath(path).name
        repeat = functools.partial(_repeated, group=config.group, times=self.repeats(config) if "GJC" in name else 1)
        array = as_shape(array) if self.planned else array
        if isinstance(array, jax.ShapeDtypeStruct):
            array = jax.eval_shape(functools.partial(repeat, xp=jnp), array)
            return as_shape(array, self.of_parameter(config, name, array.shape))
        array = repeat(array)
        return jax.make_array_from_callback(array.shape, self.of_parameter(config, name, array.shape), lambda at: array[at])


def _planned(mesh: Mesh) -> bool:
    return mesh.devices.flat[0].client not in backend.backends().values()


def as_shape(x, sharding: NamedSharding | None = None) -> jax.ShapeDtypeStruct:
    """What stands for an array, and where it will lie."""
    return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)


def _repeated(qkv_XGJC, group: int, times: int, xp=np):
    """Each key-value head `times` times, each of them with its share of the queries. xp: numpy, or jax.numpy for shapes."""
    if times == 1:
        return qkv_XGJC
    *lead, heads, _, size = qkv_XGJC.shape
    query, key_value = xp.split(qkv_XGJC, [group], axis=-2)
    query = query.reshape(*lead, heads, times, group // times, size)
    key_value = xp.broadcast_to(key_value[..., None, :, :], (*lead, heads, times, 2, size))
    return xp.concatenate([query, key_value], axis=-2).reshape(*lead, heads * times, group // times + 2, size)


# ---------------------------------------------------------------- of the decode loop


def of_rows(layout: Layout, batch: int, tree: PyTree) -> PyTree:
    """Where arrays with rows lie: those whose first axis are `batch` rows are split over `data` where that divides them, and the key-value
    heads of caches over `model`. All else is whole on every device."""
    data, ways = layout.mesh.shape["data"], layout.ways
    rows = "data" if batch % data == 0 else None

    def heads(x) -> NamedSharding:  # [B, G, S, C], with B or G left out where it is 1: see `specjax.models.cache`
        lead = x.shape[:-2]
        count = lead[-1] if len(lead) == 2 or (batch == 1 and lead) else 1
        split = "model" if layout.model_axis and count % ways == 0 else None
        return layout.sharding(*([rows] if batch > 1 else []), split)

    def one(x):
        if isinstance(x, Cache):
            return jax.tree.map(heads, x)
        return layout.sharding(rows) if x.ndim and x.shape[0] == batch else layout.sharding()

    return jax.tree.map(one, tree, is_leaf=lambda x: isinstance(x, Cache))


def pin(layout: Layout | None, batch: int, tree: PyTree) -> PyTree:
    """Keep arrays with rows where they lie, inside a program: what comes out lies as what went in, and compiles nothing anew."""
    return tree if layout is None else jax.lax.with_sharding_constraint(tree, of_rows(layout, batch, tree))


def send(x, where: NamedSharding) -> jax.Array | jax.ShapeDtypeStruct:
    """An array to where it lies; of a shape, or where devices are only planned with, where it will lie. Over several processes each sends
    what its devices hold: `device_put` would compare all of it first."""
    if isinstance(x, jax.ShapeDtypeStruct) or _planned(where.mesh):
        return as_shape(x, where)
    if where.is_fully_addressable or (isinstance(x, jax.Array) and not x.is_fully_addressable):
        return jax.device_put(x, where)
    if jnp.issubdtype(jnp.result_type(x), jax.dtypes.prng_key):
        return jax.random.wrap_key_data(send(jax.random.key_data(x), where), impl=jax.random.key_impl(x))
    whole = np.asarray(x)
    places = where.addressable_devices_indices_map(whole.shape)
    parts = [jax.device_put(whole[at], device) for device, at in places.items()]
    return jax.make_array_from_single_device_arrays(whole.shape, where, parts)


def spread(layout: Layout | None, batch: int, tree: PyTree) -> PyTree:
    """The same outside of a program."""
    if layout is None:
        return tree
    return jax.tree.map(send, tree, of_rows(layout, batch, tree))


def everywhere(layout: Layout | None, tree: PyTree) -> PyTree:
    """Arrays that are not on the mesh yet, whole on every device of it; shapes of a plan stay."""

    def put(x):
        if isinstance(x, jax.ShapeDtypeStruct) or (isinstance(x, jax.Array) and (layout is None or _on(x, layout.mesh))):
            return x
        return jax.device_put(x) if layout is None else send(x, layout.sharding())

    return jax.tree.map(put, tree)


def _on(x: jax.Array | jax.ShapeDtypeStruct, mesh: Mesh) -> bool:
    return isinstance(x.sharding, NamedSharding) and x.sharding.mesh == mesh


def layout_of(mesh: Mesh, params: PyTree) -> Layout:
    """Where a draft lies: split over the model axis if its heads are. (Its embedding may be the target's, which is.)"""
    heads = [x for path, x in jax.tree.leaves_with_path(params) if "qkv" in jax.tree_util.keystr(path)]
    return Layout(mesh, any(isinstance(x, jax.Array | jax.ShapeDtypeStruct) and _on(x, mesh) and "model" in x.sharding.spec for x in heads))


def fetch(tree: PyTree) -> PyTree:
    """NumPy arrays of the whole, in every process: where others hold parts of them, all processes must ask."""
    far = [x for x in jax.tree.leaves(tree) if isinstance(x, jax.Array) and not (x.is_fully_addressable or x.is_fully_replicated)]
    whole = dict(zip(map(id, far), _gathered(far, NamedSharding(far[0].sharding.mesh, PartitionSpec())), strict=True)) if far else {}
    return jax.device_get(jax.tree.map(lambda x: whole.get(id(x), x), tree))


def here(tree: PyTree) -> PyTree:
    """Arrays that are whole on every device, on a device of this process alone."""
    return jax.tree.map(lambda x: x.addressable_data(0) if isinstance(x, jax.Array) else x, tree)


@functools.partial(jax.jit, static_argnames="where")
def _gathered(arrays: list[jax.Array], where: NamedSharding) -> list[jax.Array]:
    return jax.lax.with_sharding_constraint(arrays, where)
