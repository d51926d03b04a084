"""The one device mesh: every parallel dimension, built in one place and in one order."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from torch.distributed.device_mesh import init_device_mesh

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

    from sweep.core.cell import Parallelism

# Outermost first. Neighbouring ranks differ in the last: tp talks most and must stay within a node; a pipeline sends
# least and may cross any link.
ORDER = ("pp", "dp_replicate", "dp_shard", "cp", "tp")


class MeshError(ValueError):
    """The degrees do not multiply to the number of ranks."""


def sizes(layout: Parallelism, world_size: int) -> dict[str, int]:
    """Degree of each mesh dimension, outermost first.

    Raises:
        MeshError: If they do not multiply to the world size; it shows the whole equation.
    """
    degrees = {name: int(getattr(layout, name)) for name in ORDER}
    product = math.prod(degrees.values())
    if product != world_size:
        shown = " x ".join(f"{name}={degree}" for name, degree in degrees.items())
        raise MeshError(f"{shown} = {product} ranks; there are {world_size}. Change a degree or the number of ranks.")
    return degrees


def build_mesh(layout: Parallelism, world_size: int, device_type: str) -> DeviceMesh:
    """The mesh of all dimensions that are larger than 1: one of size 1 would cost a process group for nothing.

    Raises:
        MeshError: If the degrees do not multiply to the world size.
    """
    degrees = sizes(layout, world_size)
    used = {name: degree for name, degree in degrees.items() if degree > 1}
    return init_device_mesh(device_type, tuple(used.values()), mesh_dim_names=tuple(used))


def data_rank(layout: Parallelism, rank: int) -> int:
    """Index of the share of the global batch that a rank works on: its (dp_replicate, dp_shard) coordinate."""
    inner = layout.cp * layout.tp
    return rank // inner % layout.data_ranks
