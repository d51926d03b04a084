"""Counts the communication of a step: every collective that torch dispatches, its group and its bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from sweep.core.records.preflight_record import Traffic
from trainer.parallel.mesh import Mesh
from trainer.torch_private import preflight as private

# Prefixes of torch's operations, and their names in the record; other operations are no traffic.
_OPS = (
    ("allgather", "all_gather"),
    ("all_gather", "all_gather"),
    ("reduce_scatter", "reduce_scatter"),
    ("allreduce", "all_reduce"),
    ("all_reduce", "all_reduce"),
    ("alltoall", "all_to_all"),
    ("all_to_all", "all_to_all"),
    ("shard_dim_alltoall", "all_to_all"),
    ("broadcast", "broadcast"),
    ("send", "send"),
    ("recv", "recv"),
    ("isend", "send"),
    ("irecv", "recv"),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupNames:
    """Names of groups of ranks, by the mesh dimensions that they span."""

    by_ranks: Mapping[tuple[int, ...], str]
    gpus_per_node: int

    @classmethod
    def of(cls, mesh: Mesh, *, dp_shard: int, cp: int, gpus_per_node: int) -> GroupNames:
        """Name the groups of a mesh; of two groups with the same ranks the narrower name counts."""
        shard = "cp" if dp_shard == 1 else "dp_shard" if cp == 1 else "dp_shard x cp"
        parts = [
            ("pp", mesh.pp),
            ("tp", mesh.tp),
            ("cp", mesh.cp),
            (shard, mesh.shard),
            ("dp_replicate", mesh.replicate),
        ]
        found = {_ranks(part.get_group()): name for name, part in reversed(parts) if part is not None}
        if mesh.model_group is not None:
            spanned = [("pp", mesh.pp), (shard, mesh.shard), ("tp", mesh.tp)]
            name = " x ".join(name for name, part in spanned if part is not None)
            found.setdefault(_ranks(mesh.model_group), name)
        found.setdefault(tuple(range(dist.get_world_size())), "world")
        return cls(by_ranks=found, gpus_per_node=gpus_per_node)

    def traffic(self, op: str, ranks: tuple[int, ...], count: int, n_bytes: int) -> Traffic:
        """Record of equal collectives."""
        return Traffic(
            op=op,
            group=self.by_ranks.get(ranks, "other"),
            ranks=len(ranks),
            nodes=len({rank // self.gpus_per_node for rank in ranks}),
            count=count,
            bytes=n_bytes,
        )


class TrafficCounter(private.TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch does not annotate it
    """Counts collectives while the context is entered.

    Args:
        on_buffers: Called with the tensors that collectives read and write in place (FSDP's, DDP's, the optimiser's).
    """

    def __init__(self, on_buffers: Callable[[Iterable[torch.Tensor]], None]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch does not annotate it
        self._on_buffers = on_buffers
        self._found: dict[tuple[str, tuple[int, ...]], tuple[int, int]] = {}

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Note a collective; an operation of a DTensor comes again with its local tensors."""
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented
        result = func(*args, **(kwargs or {}))
        if func.namespace in private.COLLECTIVES and (op := _op_of(func)) is not None:
            self._count(op, func.namespace, (*args, *(kwargs or {}).values()), result)
        return result

    def clear(self) -> None:
        """Forget all that was counted."""
        self._found.clear()

    def traffic(self, names: GroupNames) -> tuple[Traffic, ...]:
        """All counted collectives, the largest first."""
        made = [names.traffic(op, ranks, *sums) for (op, ranks), sums in self._found.items()]
        return tuple(sorted(made, key=lambda item: (-item.bytes, item.op, item.group)))

    def _count(self, op: str, namespace: str, args: Sequence[Any], result: Any) -> None:
        ranks = _ranks(private.group_of_collective(args))
        n_bytes = max(map(_n_bytes, (*args, result)), default=0)
        count, before = self._found.get((op, ranks), (0, 0))
        self._found[op, ranks] = (count + 1, before + n_bytes)
        if namespace == private.IN_PLACE_COLLECTIVES and op not in ("send", "recv"):
            self._on_buffers(_tensors(args))


def _op_of(func: Any) -> str | None:
    name = private.operation_name(func).lstrip("_")
    return next((op for start, op in _OPS if name.startswith(start)), None)


def _ranks(group: dist.ProcessGroup) -> tuple[int, ...]:
    return tuple(dist.get_process_group_ranks(group))


def _tensors(values: Any) -> list[torch.Tensor]:
    return [leaf for leaf in private.tree_leaves(values) if isinstance(leaf, torch.Tensor)]


def _n_bytes(value: Any) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in _tensors(value))
