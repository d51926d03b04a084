"""The one device mesh: every parallel dimension, built in one place and in one order."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch.distributed.device_mesh import init_device_mesh

from trainer.torch_private.training import flattened_group, unflattened

if TYPE_CHECKING:
    import torch.distributed as dist
    from torch.distributed.device_mesh import DeviceMesh

    from sweep.core.cells.parallelism import Parallelism

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


@dataclass(frozen=True, kw_only=True, slots=True)
class Mesh:
    """The mesh of all ranks, and its parts; a part of size 1 is None: it would cost a process group for nothing.

    Attributes:
        pp: Ranks that hold the stages of one pipeline.
        tp: Ranks that share each matrix multiplication.
        cp: Ranks that share each sequence.
        shard: Ranks that share the parameters: dp_shard x cp, as one dimension.
        replicate: Ranks that hold the same shard of the parameters and work on other sequences.
        data: replicate x shard, of those that there are: what FSDP is given.
        model_group: Ranks that hold the whole model once, each part of it once or, over tp, several times alike.
    """

    pp: DeviceMesh | None
    tp: DeviceMesh | None
    cp: DeviceMesh | None
    shard: DeviceMesh | None
    replicate: DeviceMesh | None
    data: DeviceMesh | None
    model_group: dist.ProcessGroup | None


def build_mesh(layout: Parallelism, world_size: int, device_type: str) -> Mesh:
    """The mesh of all ranks, of which there are several.

    Raises:
        MeshError: If the degrees do not multiply to the world size.
    """
    degrees = sizes(layout, world_size)
    # FSDP gathers over dp_shard and cp as one: they are one dimension here, out of which cp's part is cut below.
    merged = {
        "pp": degrees["pp"],
        "dp_replicate": degrees["dp_replicate"],
        "shard": degrees["dp_shard"] * degrees["cp"],
        "tp": degrees["tp"],
    }
    used = {name: degree for name, degree in merged.items() if degree > 1}
    root = init_device_mesh(device_type, tuple(used.values()), mesh_dim_names=tuple(used))

    def part(*names: str) -> DeviceMesh | None:
        found = tuple(name for name in names if name in used)
        return root[found] if found else None

    shard = part("shard")
    return Mesh(
        pp=part("pp"),
        tp=part("tp"),
        cp=_cut_cp(shard, degrees["dp_shard"], degrees["cp"]),
        shard=shard,
        replicate=part("dp_replicate"),
        data=part("dp_replicate", "shard"),
        model_group=_group_of(part("pp", "shard", "tp")),
    )


def _cut_cp(shard: DeviceMesh | None, dp_shard_degree: int, cp_degree: int) -> DeviceMesh | None:
    if shard is None or cp_degree == 1:
        return None
    if dp_shard_degree == 1:
        return shard
    return unflattened(shard, (dp_shard_degree, cp_degree), ("dp_shard", "cp"))["cp"]


def _group_of(mesh: DeviceMesh | None) -> dist.ProcessGroup | None:
    """One group of all ranks of a mesh."""
    if mesh is None:
        return None
    return mesh.get_group() if mesh.ndim == 1 else flattened_group(mesh, "model_group")


def data_rank(layout: Parallelism, rank: int) -> int:
    """Index of the share of the global batch that a rank works on: its (dp_replicate, dp_shard) coordinate."""
    inner = layout.cp * layout.tp
    return rank // inner % layout.data_ranks
