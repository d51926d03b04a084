"""Parallelism and precision, applied to the single-device model from outside, in one stated order.

The order: (float8 conversion, pipeline split, tensor parallelism, context parallelism have their place here, first),
activation checkpointing, (compile), FSDP or replicas, values for the parameters. What wraps outermost comes last.
"""

from __future__ import annotations

import contextlib
import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import torch
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    CheckpointImpl,
    checkpoint_wrapper,
)
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel

from sweep.core.cell import Checkpointing, Precision
from trainer.init import fill_parameters
from trainer.model import Llama, build_on_meta

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch.distributed as dist
    from torch import nn
    from torch.distributed.device_mesh import DeviceMesh

    from sweep.core.cell import Cell

COMPUTE_DTYPE = {Precision.FP32: torch.float32, Precision.BF16: torch.bfloat16}


@dataclass(frozen=True, kw_only=True, slots=True)
class Parallelized:
    """A model that is ready to be trained.

    Attributes:
        module: Call it with tokens; it returns logits.
        n_params: Parameters of the whole model, whatever share of them is here.
        micro_batch: Entered around forward and backward of each micro-batch; its argument says whether it is the
            last of the step, the one after which gradients are reduced.
        shard_group: Ranks over which one copy of the gradients is spread; None where each rank holds all of them.
    """

    module: nn.Module
    n_params: int
    micro_batch: Callable[[bool], contextlib.AbstractContextManager[object]]
    shard_group: dist.ProcessGroup | None


def parallelize(cell: Cell, mesh: DeviceMesh | None, device: torch.device) -> Parallelized:
    """Build the cell's model on the device, laid out over the mesh (None: one process alone)."""
    model = build_on_meta(cell.model, cell.seq_len)
    n_params = sum(parameter.numel() for parameter in model.parameters())
    if cell.activation_checkpointing is Checkpointing.FULL:
        _checkpoint_blocks(model)
    if mesh is not None and cell.parallelism.dp_shard > 1:
        _shard(model, cell, mesh["dp_shard"])
    else:
        _compute_in(model, COMPUTE_DTYPE[cell.precision])
    _materialise(model, cell, device)
    return _finish(model, n_params, cell, mesh)


def _materialise(model: Llama, cell: Cell, device: torch.device) -> None:
    model.to_empty(device=device)
    model.rebuild_buffers(device)
    fill_parameters(model, seed=cell.trainer.seed, n_layers=cell.model.n_layers)


def _finish(model: Llama, n_params: int, cell: Cell, mesh: DeviceMesh | None) -> Parallelized:
    if isinstance(model, FSDPModule):
        assert mesh is not None
        group = mesh["dp_shard"].get_group()
        keeps_parameters = not cell.reshard_after_forward
        scope = _fsdp_scope(model, accumulates=cell.grad_accum > 1, keeps_parameters=keeps_parameters)
        return Parallelized(module=model, n_params=n_params, micro_batch=scope, shard_group=group)
    if mesh is not None and cell.parallelism.dp_replicate > 1:
        replicas = _replicate(model, mesh["dp_replicate"])
        return Parallelized(module=replicas, n_params=n_params, micro_batch=_ddp_scope(replicas), shard_group=None)
    return Parallelized(
        module=model, n_params=n_params, micro_batch=lambda _: contextlib.nullcontext(), shard_group=None
    )


def _checkpoint_blocks(model: Llama) -> None:
    """Keep only the input of each block; recompute the rest in the backward pass."""
    for name, block in model.blocks.items():
        # There is no dropout: saving and restoring the random state would synchronise for nothing.
        wrapped = checkpoint_wrapper(block, checkpoint_impl=CheckpointImpl.NO_REENTRANT, preserve_rng_state=False)
        model.blocks[name] = wrapped


def _compute_in(model: Llama, dtype: torch.dtype) -> None:
    """Without FSDP: fp32 weights stay whole and are cast where they are used, as FSDP casts them when it gathers.

    Layers follow the format of their input (:mod:`trainer.model`), so it is enough to cast what the embedding
    returns. Autocast would leave the residual stream in fp32 and measure another model than FSDP does.
    """
    if dtype is not torch.float32:
        model.embedding.register_forward_hook(lambda module, args, output: output.to(dtype))


def _shard(model: Llama, cell: Cell, mesh: DeviceMesh) -> None:
    """FSDP2 in groups of one block; the embedding alone; final norm and head together; prefetch set explicitly."""
    dtype = COMPUTE_DTYPE[cell.precision]
    policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)
    reshard = cell.reshard_after_forward
    blocks = list(model.blocks.values())
    fully_shard(model.embedding, mesh=mesh, mp_policy=policy, reshard_after_forward=reshard)
    for block in blocks:
        fully_shard(block, mesh=mesh, mp_policy=policy, reshard_after_forward=reshard)
    # The backward pass begins with these: freeing them would only mean to gather them again at once.
    fully_shard([model.norm, model.head], mesh=mesh, mp_policy=policy, reshard_after_forward=False)
    fully_shard(model, mesh=mesh, mp_policy=policy, reshard_after_forward=reshard)
    _prefetch(model, blocks)


def _prefetch(model: Llama, blocks: list[nn.Module]) -> None:
    """Gather the next group's parameters before this one computes, in both directions, one group ahead."""
    order = cast("list[FSDPModule]", [model.embedding, *blocks, model.head])
    for this, following in itertools.pairwise(order):
        this.set_modules_to_forward_prefetch([following])
        following.set_modules_to_backward_prefetch([this])
    # The backward pass ends with the embedding. With no target of its own it would gather, in every accumulated
    # step, the head of an earlier micro-batch once more for nothing; the root has no parameters left to gather.
    order[0].set_modules_to_backward_prefetch([cast("FSDPModule", model)])


def _replicate(model: Llama, mesh: DeviceMesh) -> DistributedDataParallel:
    """Replicas that reduce fp32 gradients in buckets while the backward pass runs.

    The weights are alike by construction (:mod:`trainer.init`), so nothing is broadcast.
    """
    return DistributedDataParallel(
        model,
        process_group=mesh.get_group(),
        broadcast_buffers=False,
        init_sync=False,
        gradient_as_bucket_view=True,
    )


def _ddp_scope(
    module: DistributedDataParallel,
) -> Callable[[bool], contextlib.AbstractContextManager[object]]:
    def scope(is_last: bool) -> contextlib.AbstractContextManager[object]:
        return contextlib.nullcontext() if is_last else module.no_sync()

    return scope


def _fsdp_scope(
    module: FSDPModule, *, accumulates: bool, keeps_parameters: bool
) -> Callable[[bool], contextlib.AbstractContextManager[object]]:
    """Reduce once a step; without reshard, parameters stay gathered from the first micro-batch to the last."""

    def scope(is_last: bool) -> contextlib.AbstractContextManager[object]:
        if accumulates:
            module.set_is_last_backward(is_last)
            module.set_requires_gradient_sync(is_last)
            if keeps_parameters:
                module.set_reshard_after_backward(is_last)
        return contextlib.nullcontext()

    return scope
