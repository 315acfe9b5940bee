"""TPUs that are not here: the devices of a topology by its name, for which libtpu compiles on any machine, and what their chips can do.

The numbers of a chip are those of its page at cloud.google.com/tpu/docs (v4, v5e, v5p, v6e, tpu7x). Those pages count what links carry both
ways, here it is what a chip sends, half of that; links of v4 are of its paper (Jouppi et al., 2304.01433: six of 50 GB/s each way). A
device is a chip, or one of its two cores where JAX shows both (tpu7x), with half of all that the chip has.
"""

from __future__ import annotations

import importlib.util
import os
from typing import NamedTuple

from jax.experimental import topologies

ALONE = {  # libtpu would ask the machine what slice it is part of, complain that nobody answers, and let no second process compile
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_ACCELERATOR_TYPE": "v5litepod-8",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_MIN_LOG_LEVEL": "3",
    "TPU_STDERR_LOG_LEVEL": "3",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}
TOPOLOGIES = "v4:2x2x4, v5e:2x4, v5p:2x2x2, v6e:4x4 or tpu7x:2x2x1"


class Chip(NamedTuple):
    """Of one device: bytes of memory, and what it does in a second at most: bytes from memory, products and sums in bfloat16, bytes
    that it sends over its links to other chips, while it receives as many."""

    name: str
    memory: float
    bandwidth: float
    flops: float
    links: float


CHIPS = {  # by JAX's name for the kind of device
    "TPU v4": Chip("v4", 32 * 2**30, 1200e9, 275e12, 300e9),
    "TPU v5 lite": Chip("v5e", 16 * 2**30, 819e9, 197e12, 200e9),
    "TPU v5": Chip("v5p", 95 * 2**30, 2765e9, 459e12, 600e9),
    "TPU v6 lite": Chip("v6e", 32 * 2**30, 1638e9, 918e12, 400e9),
    "TPU7x": Chip("tpu7x", 192 * 2**30, 7380e9, 2307e12, 600e9),
}


def devices(name: str) -> tuple[list, Chip]:
    """(devices, what one of them can do) of a topology like 'v5e:2x4'.

    Raises:
      ValueError: there is no such topology, or no libtpu to compile for it.
    """
    if importlib.util.find_spec("libtpu") is None:
        raise ValueError(f"topology={name!r}: compiling for a TPU needs libtpu: pip install 'specjax[tpu]'")
    for key, value in ALONE.items():
        os.environ.setdefault(key, value)
    whole = {"chip_config_name": "megacore"} if name.startswith("v4:") else {}  # libtpu would plan with its cores, which JAX there does not
    try:
        found = topologies.get_topology_desc(platform="tpu", topology_name=name, **whole).devices
    except (RuntimeError, ValueError) as error:
        said = str(error).partition("\n")[0]
        raise ValueError(f"topology={name!r} should be like {TOPOLOGIES} ({said})") from error
    if found[0].device_kind not in CHIPS:
        raise ValueError(f"topology={name!r}: nothing is known here of a {found[0].device_kind}; {TOPOLOGIES}")
    cores = len(found) / len({tuple(device.coords) for device in found})
    chip = CHIPS[found[0].device_kind]
    return list(found), chip._replace(**{field: x / cores for field, x in chip._asdict().items() if field != "name"})
