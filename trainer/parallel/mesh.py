"""The device mesh: every parallel dimension, in one order."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from sweep.core.cells.parallelism import Parallelism
from trainer.torch_private.training import flattened_group, unflattened

# Outermost first. Neighbouring ranks differ in the last dimension: tp communicates most and must stay within a node; a
# pipeline communicates least and may cross nodes.
ORDER = ("pp", "dp_replicate", "dp_shard", "cp", "tp")


class MeshError(ValueError):
    """The degrees do not multiply to the number of ranks."""


def sizes(layout: Parallelism, world_size: int) -> dict[str, int]:
    """Degree of each mesh dimension, outermost first.

    Raises:
        MeshError: If they do not multiply to the world size; the message has the whole equation.
    """
    degrees = {name: int(getattr(layout, name)) for name in ORDER}
    product = math.prod(degrees.values())
    if product != world_size:
        shown = " x ".join(f"{name}={degree}" for name, degree in degrees.items())
        raise MeshError(f"{shown} = {product} ranks; there are {world_size}. Change a degree or the number of ranks.")
    return degrees


@dataclass(frozen=True, kw_only=True, slots=True)
class Mesh:
    """The mesh of all ranks and its submeshes; one of size 1 is None, since it needs no process group.

    Attributes:
        pp: Ranks of one pipeline.
        tp: Ranks that share each matrix multiplication.
        cp: Ranks that share each sequence.
        shard: Ranks that share the parameters: dp_shard x cp, as one dimension.
        replicate: Ranks with the same shard of the parameters and other sequences.
        data: replicate x shard, FSDP's mesh.
        model_group: Ranks that together hold one copy of the model (tp ranks share replicated parameters).
    """

    pp: DeviceMesh | None
    tp: DeviceMesh | None
    cp: DeviceMesh | None
    shard: DeviceMesh | None
    replicate: DeviceMesh | None
    data: DeviceMesh | None
    model_group: dist.ProcessGroup | None


def build_mesh(layout: Parallelism, world_size: int, device_type: str) -> Mesh | None:
    """Build the mesh of all ranks; None for a lone rank.

    Raises:
        MeshError: If the degrees do not multiply to the world size.
    """
    degrees = sizes(layout, world_size)
    if world_size == 1:
        return None
    # FSDP shards over dp_shard x cp as one dimension; cp's submesh is split off below.
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
        cp=_split_off_cp(shard, degrees["dp_shard"], degrees["cp"]),
        shard=shard,
        replicate=part("dp_replicate"),
        data=part("dp_replicate", "shard"),
        model_group=_group_of(part("pp", "shard", "tp")),
    )


def _split_off_cp(shard: DeviceMesh | None, dp_shard_degree: int, cp_degree: int) -> DeviceMesh | None:
    if shard is None or cp_degree == 1:
        return None
    if dp_shard_degree == 1:
        return shard
    return unflattened(shard, (dp_shard_degree, cp_degree), ("dp_shard", "cp"))["cp"]


def _group_of(mesh: DeviceMesh | None) -> dist.ProcessGroup | None:
    """One process group of all ranks of a mesh."""
    if mesh is None:
        return None
    return mesh.get_group() if mesh.ndim == 1 else flattened_group(mesh, "model_group")


def data_rank(layout: Parallelism, rank: int) -> int:
    """Index of a rank's share of the global batch: its (dp_replicate, dp_shard) coordinate."""
    inner = layout.cp * layout.tp
    return rank // inner % layout.data_ranks
