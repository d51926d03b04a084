"""FSDP, HSDP and replicas: who holds which parameters, and when gradients are reduced."""

from __future__ import annotations

import contextlib
import warnings
from typing import TYPE_CHECKING, cast

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel

from trainer.model.precision import COMPUTE_DTYPE
from trainer.parallel.gloo_reduce_scatter import exchange_gradients
from trainer.torch_private.training import replicate

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch.distributed.device_mesh import DeviceMesh

    from sweep.core.cells.cell import Cell
    from trainer.model.decoder import Llama
    from trainer.parallel.mesh import Mesh

    MicroBatchScope = Callable[[bool], contextlib.AbstractContextManager[object]]


def shard_or_replicate(model: Llama, cell: Cell, mesh: Mesh | None) -> None:
    """Lay a model, or a stage of it, out over the data ranks; plain replicas (DDP) follow once it has its weights."""
    if mesh is not None and mesh.data is not None and not _is_plain_ddp(cell):
        _wrap(model, cell, mesh, mesh.data)
    else:
        _compute_in(model, COMPUTE_DTYPE[cell.precision])


def with_ddp(model: Llama, cell: Cell, mesh: Mesh | None) -> nn.Module:
    """Replicas that reduce fp32 gradients in buckets while the backward pass runs, where the cell is no more than that.

    The weights are alike by construction (:mod:`trainer.model.init`), so nothing is broadcast.
    """
    if mesh is None or mesh.replicate is None or not _is_plain_ddp(cell):
        return model
    with warnings.catch_warnings():
        # Its new name is not in the oldest torch that is supported, and means no other thing for buffers alike.
        warnings.filterwarnings("ignore", message="`broadcast_buffers` is deprecated")
        return DistributedDataParallel(
            model,
            process_group=mesh.replicate.get_group(),
            broadcast_buffers=False,
            init_sync=False,
            gradient_as_bucket_view=True,
        )


def micro_batch_scope(module: nn.Module, cell: Cell) -> MicroBatchScope:
    """What is entered around each micro-batch; its argument says whether it is the last, after which one reduces."""
    if isinstance(module, DistributedDataParallel):
        return lambda is_last: contextlib.nullcontext() if is_last else module.no_sync()
    if isinstance(module, FSDPModule) and cell.grad_accum > 1:
        return _fsdp_scope(module, keeps_parameters=not cell.reshard_after_forward)
    return lambda is_last: contextlib.nullcontext()


def _is_plain_ddp(cell: Cell) -> bool:
    # DDP knows neither DTensors nor the order in which a pipeline works; FSDP's form of replicas does.
    layout = cell.parallelism
    return layout.dp_replicate > 1 and layout.dp_replicate == layout.world_size


def _compute_in(model: Llama, dtype: torch.dtype) -> None:
    """Without FSDP: fp32 weights stay whole and are cast where they are used, as FSDP casts them when it gathers.

    Layers follow the format of their input (:mod:`trainer.model.decoder`), so it is enough to cast what the embedding
    returns. Autocast would leave the residual stream in fp32 and measure another model than FSDP does.
    """
    if dtype is not torch.float32:
        model.embedding.register_forward_hook(lambda module, args, output: output.to(dtype))


def _wrap(model: Llama, cell: Cell, mesh: Mesh, data: DeviceMesh) -> None:
    """FSDP2 in groups of one block; the embedding alone; final norm and head together; prefetch set explicitly.

    Over a mesh of two dimensions gradients are scattered over the shards, then summed over the replicas (HSDP).
    """
    if mesh.tp is not None:
        # The embedding returns a view of what its collective gives. The warning is for whoever changes that in place;
        # here residuals are sums of their own, and a copy would cost memory and time for nothing.
        warnings.filterwarnings("ignore", message=r"FSDP2-wrapped module \(FSDPEmbedding\) returned a view tensor")
    policy = MixedPrecisionPolicy(param_dtype=COMPUTE_DTYPE[cell.precision], reduce_dtype=torch.float32)

    def wrap(module: nn.Module | list[nn.Module], *, reshard: bool) -> None:
        if mesh.shard is None:
            replicate(module, mesh=data, mp_policy=policy)
        else:
            fully_shard(module, mesh=data, mp_policy=policy, reshard_after_forward=reshard)

    groups: list[nn.Module] = list(model.blocks.values())
    for block in groups:
        wrap(block, reshard=cell.reshard_after_forward)
    if isinstance(model.embedding, nn.Embedding):
        wrap(model.embedding, reshard=cell.reshard_after_forward)
        groups.insert(0, model.embedding)
    if not isinstance(model.head, nn.Identity):
        # The backward pass begins with these: freeing them would only mean to gather them again at once.
        wrap([model.norm, model.head], reshard=False)
        groups.append(model.head)
    wrap(model, reshard=cell.reshard_after_forward)
    if mesh.shard is not None:
        if dist.get_backend(mesh.shard.get_group()) == "gloo":
            exchange_gradients(groups)
        _prefetch(model, groups, forward=cell.trainer.forward_prefetch, backward=cell.trainer.backward_prefetch)


def _prefetch(model: Llama, groups: list[nn.Module], *, forward: int, backward: int) -> None:
    """Gather the next groups' parameters before this one computes: so many ahead in either direction.

    A depth of 0 leaves it to FSDP, which gathers one group ahead in the backward pass, and in the forward pass as soon
    as the host gets there.
    """
    order = cast("list[FSDPModule]", groups)
    for index, this in enumerate(order):
        if forward:
            this.set_modules_to_forward_prefetch(order[index + 1 : index + 1 + forward])
        if backward:
            # The backward pass ends with the first group. With no target of its own it would gather, in every
            # accumulated step, the last group of an earlier micro-batch once more for nothing; the root has no
            # parameters left to gather.
            earlier = order[max(0, index - backward) : index][::-1]
            this.set_modules_to_backward_prefetch(earlier or [cast("FSDPModule", model)])


def _fsdp_scope(module: FSDPModule, *, keeps_parameters: bool) -> MicroBatchScope:
    """Reduce once a step; without reshard, parameters stay gathered from the first micro-batch to the last."""

    def scope(is_last: bool) -> contextlib.AbstractContextManager[object]:
        module.set_is_last_backward(is_last)
        module.set_requires_gradient_sync(is_last)
        if keeps_parameters:
            module.set_reshard_after_backward(is_last)
        return contextlib.nullcontext()

    return scope
