"""Data parallelism: FSDP, HSDP and DDP. Which rank holds which parameters, and when gradients are reduced."""

from __future__ import annotations

import contextlib
import warnings
from typing import TYPE_CHECKING, Any, cast

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel

from trainer.model.precision import COMPUTE_DTYPE
from trainer.torch_private.training import replicate

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch.distributed.device_mesh import DeviceMesh

    from sweep.core.cells.cell import Cell
    from trainer.model.decoder import Llama
    from trainer.parallel.mesh import Mesh

    MicroBatchScope = Callable[[bool], contextlib.AbstractContextManager[object]]

# DDP reducers of this process. A reducer is the last holder of a closed process group, and while Python frees one it
# keeps the GIL and waits for the gloo threads of the group, one of which may wait for the GIL (pytorch#56297): then
# a finished run hangs for ever. This list keeps each reducer until the process ends, which frees nothing.
_never_freed: list[object] = []


def shard_or_replicate(model: Llama, cell: Cell, mesh: Mesh | None) -> None:
    """Apply FSDP or HSDP to a model, or a pipeline stage; DDP follows once the model has its weights."""
    if mesh is not None and mesh.data is not None and not _is_plain_ddp(cell):
        _wrap(model, cell, mesh, mesh.data)
    else:
        _compute_in(model, COMPUTE_DTYPE[cell.precision])


def with_ddp(model: Llama, cell: Cell, mesh: Mesh | None) -> nn.Module:
    """Wrap the model in DDP if the layout is nothing but replicas; it reduces fp32 gradients during the backward pass.

    Initial weights are equal by construction (:mod:`trainer.model.init`), so none are broadcast.
    """
    if mesh is None or mesh.replicate is None or not _is_plain_ddp(cell):
        return model
    with warnings.catch_warnings():
        # The new name of this argument is missing in the oldest torch that is supported.
        warnings.filterwarnings("ignore", message="`broadcast_buffers` is deprecated")
        wrapped = DistributedDataParallel(
            model,
            process_group=mesh.replicate.get_group(),
            broadcast_buffers=False,
            init_sync=False,
            gradient_as_bucket_view=True,
        )
    _never_freed.append(wrapped.reducer)
    return wrapped


def micro_batch_scope(module: nn.Module, cell: Cell) -> MicroBatchScope:
    """Return a context for each micro-batch; its argument is True for the last one, which reduces the gradients."""
    if isinstance(module, DistributedDataParallel):
        return lambda is_last: contextlib.nullcontext() if is_last else module.no_sync()
    if isinstance(module, FSDPModule) and cell.grad_accum > 1:
        return _fsdp_scope(module, keeps_parameters=not cell.reshard_after_forward)
    return lambda is_last: contextlib.nullcontext()


def _is_plain_ddp(cell: Cell) -> bool:
    # DDP supports neither DTensors nor the order of work in a pipeline; FSDP's form of replicas does.
    layout = cell.parallelism
    return layout.dp_replicate > 1 and layout.dp_replicate == layout.world_size


def _compute_in(model: Llama, dtype: torch.dtype) -> None:
    """Without FSDP: keep whole fp32 weights and cast them where they are used, as FSDP casts gathered ones.

    Layers compute in the format of their input (:mod:`trainer.model.decoder`), so casting the embedding's output is
    enough. Autocast would leave the residual stream in fp32, and the numbers would not compare with FSDP's.
    """
    if dtype is not torch.float32:
        model.embedding.register_forward_hook(lambda module, args, output: output.to(dtype))


def _wrap(model: Llama, cell: Cell, mesh: Mesh, data: DeviceMesh) -> None:
    """Apply FSDP2. FSDP units: the embedding; each block; final norm and head together. Prefetch is explicit.

    On a mesh of two dimensions (HSDP) gradients are reduce-scattered over shards, then all-reduced over replicas.
    """
    if mesh.tp is not None:
        # The embedding returns a view of its collective's output. Torch warns of in-place changes to it; here residuals
        # are new tensors, so a copy would cost memory and time for nothing.
        warnings.filterwarnings("ignore", message=r"FSDP2-wrapped module \(FSDPEmbedding\) returned a view tensor")
    policy = MixedPrecisionPolicy(param_dtype=COMPUTE_DTYPE[cell.precision], reduce_dtype=torch.float32)

    def wrap(module: nn.Module | list[nn.Module], *, reshard: bool) -> None:
        if mesh.shard is None:
            replicate(module, mesh=data, mp_policy=policy)
        else:
            fully_shard(module, mesh=data, mp_policy=policy, reshard_after_forward=reshard)

    units: list[nn.Module] = list(model.blocks.values())
    for block in units:
        wrap(block, reshard=cell.reshard_after_forward)
    if isinstance(model.embedding, nn.Embedding):
        wrap(model.embedding, reshard=cell.reshard_after_forward)
        units.insert(0, model.embedding)
    if not isinstance(model.head, nn.Identity):
        # The backward pass begins with this unit: if it were freed, it would be gathered again at once.
        wrap([model.norm, model.head], reshard=False)
        units.append(model.head)
    wrap(model, reshard=cell.reshard_after_forward)
    if mesh.shard is not None:
        if dist.get_backend(mesh.shard.get_group()) == "gloo":
            for unit in units:
                # Duck-typed: the class to inherit from is in a private module of torch.
                cast("Any", unit).set_custom_reduce_scatter(ExchangeReduceScatter())
        _prefetch(model, units, forward=cell.trainer.forward_prefetch, backward=cell.trainer.backward_prefetch)


def _prefetch(model: Llama, units: list[nn.Module], *, forward: int, backward: int) -> None:
    """Prefetch: all-gather the parameters of this many further FSDP units before a unit computes.

    0 leaves it to FSDP, which prefetches one unit in the backward pass, and gathers in the forward pass as soon as the
    host reaches the unit.
    """
    order = cast("list[FSDPModule]", units)
    for index, this in enumerate(order):
        if forward:
            this.set_modules_to_forward_prefetch(order[index + 1 : index + 1 + forward])
        if backward:
            # The backward pass ends with the first unit. Without a target it would, when accumulating, gather the last
            # unit of an earlier micro-batch again for nothing; the root has no parameters of its own to gather.
            earlier = order[max(0, index - backward) : index][::-1]
            this.set_modules_to_backward_prefetch(earlier or [cast("FSDPModule", model)])


def _fsdp_scope(module: FSDPModule, *, keeps_parameters: bool) -> MicroBatchScope:
    """Reduce once a step; without reshard, parameters stay gathered from the first to the last micro-batch."""

    def scope(is_last: bool) -> contextlib.AbstractContextManager[object]:
        module.set_is_last_backward(is_last)
        module.set_requires_gradient_sync(is_last)
        if keeps_parameters:
            module.set_reshard_after_backward(is_last)
        return contextlib.nullcontext()

    return scope


class ExchangeReduceScatter:
    """FSDP's reduce-scatter over gloo as an all-to-all: each rank receives its shard from every rank and averages.

    gloo's own (torch 2.13) all-reduces everything and keeps one shard: twice the bytes, and copies of all of it. The
    form is that which :meth:`torch.distributed.fsdp.FSDPModule.set_custom_reduce_scatter` takes.
    """

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """Allocate a new buffer for each call."""
        return torch.empty(size, dtype=dtype, device=device)

    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: dist.ProcessGroup,
        op: dist.ReduceOp.RedOpType,
        async_op: bool = False,
    ) -> None:
        """Fill the output with this rank's shard of the sum, or mean, over the ranks; synchronous."""
        received = torch.empty_like(input_tensor)
        dist.all_to_all_single(received, input_tensor, group=group)
        join = {dist.ReduceOp.AVG: torch.mean, dist.ReduceOp.SUM: torch.sum}[op]
        join(received.view(group.size(), -1), dim=0, out=output_tensor)
