"""Applies parallelism and precision to the single-device model, in one stated order.

The order: float8 conversion, pipeline split, tensor parallelism, context parallelism, activation checkpointing,
compile, FSDP or replicas, initial weights. The outermost wrapper comes last.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol, cast

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor.parallel import loss_parallel

from sweep.core.cells.cell import Cell, Checkpointing
from trainer.model.blocks import checkpoint_blocks, compile_blocks
from trainer.model.decoder import CausalAttention, Llama, build_on_meta
from trainer.model.init import materialize
from trainer.model.loss import piece_on
from trainer.model.precision import COMPUTE_DTYPE, LossScale, convert, keeps_casts, with_float8_scales
from trainer.parallel import pipeline
from trainer.parallel.context_parallel import apply_context_parallel, capability_of, positions_of, repeats_heads
from trainer.parallel.data_parallel import micro_batch_scope, shard_or_replicate, with_ddp
from trainer.parallel.mesh import Mesh
from trainer.parallel.micro_batches import GradientAccumulation, Pipelined, SequenceShard, ShareOfLoss
from trainer.parallel.pipeline import StageSpec
from trainer.parallel.tensor_parallel import apply_tensor_parallel
from trainer.torch_private.training import enable_async_tp


class Materialize(Protocol):
    """Gives a parallelised model its memory (:func:`trainer.model.init.materialize`)."""

    def __call__(self, model: Llama, device: torch.device, positions: torch.Tensor | None, *, seed: int) -> None:
        """Allocate the memory, and fill it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Parallelized:
    """A model that is ready to be trained."""

    stages: tuple[nn.Module, ...]
    """The model, or this rank's pipeline stages."""
    n_params: int
    """Parameters of the whole model."""
    run: Callable[[torch.Tensor], torch.Tensor | None]
    """Forward and backward passes of one step's tokens; returns the mean loss over this rank's tokens, or None."""
    model_group: dist.ProcessGroup | None = None
    """Ranks that together hold one copy of the model; None if each rank holds all of it."""
    tp: DeviceMesh | None = None
    split: tuple[StageSpec, ...] = ()
    """All stages of the pipeline; empty without one."""
    loss_scale: LossScale | None = None
    context: dict[str, str] | None = None
    """Form of attention over cp ranks, for the result; None without them."""

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Parameters of this rank's stages, by their names with wrappers."""
        for stage in self.stages:
            yield from stage.named_parameters()

    def parameters(self) -> Iterator[nn.Parameter]:
        """Parameters of this rank's stages."""
        for stage in self.stages:
            yield from stage.parameters()


def parallelize(
    cell: Cell, mesh: Mesh | None, device: torch.device, *, materialize: Materialize = materialize
) -> Parallelized:
    """Build the cell's model on the device, parallelised over the mesh (None: a lone process).

    ``materialize`` gives the model, or each pipeline stage, its memory; in a preflight it is fake memory.
    """
    if mesh is not None and mesh.pp is not None:
        return _pipelined(cell, mesh, mesh.pp, device, materialize)
    model, scale = _converted(cell, mesh, device), LossScale.of(cell, device)
    context = _apply(model, cell, mesh, device, materialize)
    module = with_ddp(model, cell, mesh)
    run = GradientAccumulation(
        module=module,
        micro_batch=cell.micro_batch,
        sequence_shard=_sequence_shard(cell, mesh, device),
        loss=_share_of_loss(cell, scale),
        scope=micro_batch_scope(module, cell),
        loss_scope=_loss_scope(mesh),
    )
    return Parallelized(
        stages=(module,),
        n_params=cell.model.n_params,
        run=with_float8_scales(run, [module], cell),
        loss_scale=scale,
        model_group=None if mesh is None else mesh.model_group,
        tp=None if mesh is None else mesh.tp,
        context=context,
    )


def _pipelined(cell: Cell, mesh: Mesh, pp: DeviceMesh, device: torch.device, materialize: Materialize) -> Parallelized:
    layout = cell.parallelism
    split = pipeline.split_layers(cell.model, layout)
    parts = [split[index] for index in pipeline.stages_of_rank(layout, pp.get_local_rank())]
    stages: list[Llama] = []
    context = None
    for part in parts:
        model = _converted(cell, mesh, device)
        pipeline.keep_stage(model, part)
        context = _apply(model, cell, mesh, device, materialize)
        stages.append(model)
    scale = LossScale.of(cell, device)
    staged, dtype = list(zip(parts, stages, strict=True)), COMPUTE_DTYPE[cell.precision]
    run = Pipelined(
        schedule=pipeline.build_schedule(cell, staged, pp, dtype, device, _share_of_loss(cell, scale)),
        has_first=any(part.is_first for part in parts),
        has_last=any(part.is_last for part in parts),
        sequence_shard=_sequence_shard(cell, mesh, device),
        loss_scope=_loss_scope(mesh),
    )
    return Parallelized(
        stages=tuple(stages),
        n_params=cell.model.n_params,
        run=with_float8_scales(run, stages, cell),
        loss_scale=scale,
        model_group=mesh.model_group,
        tp=mesh.tp,
        split=tuple(split),
        context=context,
    )


def _converted(cell: Cell, mesh: Mesh | None, device: torch.device) -> Llama:
    model = build_on_meta(cell.model, cell.seq_len)
    is_sharded = mesh is not None and mesh.shard is not None
    convert(model, cell, is_sharded=is_sharded, is_emulated=device.type == "cpu")
    return model


def _apply(
    model: Llama, cell: Cell, mesh: Mesh | None, device: torch.device, materialize: Materialize
) -> dict[str, str] | None:
    """Apply all steps after the pipeline split to a model or a stage; return the form of attention over cp."""
    layout = cell.parallelism
    if mesh is not None and mesh.tp is not None:
        apply_tensor_parallel(model, mesh.tp, sequence_parallel=layout.sequence_parallel)
        if layout.async_tp:
            enable_async_tp(mesh.tp)
    context, dtype = None, COMPUTE_DTYPE[cell.precision]
    for block in model.blocks.values():
        whole = cast("CausalAttention", block.get_submodule("attention.inner"))
        whole.repeats_heads = repeats_heads(dtype, capability_of(device))
    if mesh is not None and mesh.cp is not None:
        context = apply_context_parallel(model, mesh.cp, device, dtype, rotate=cell.trainer.cp_rotate)
    _checkpoint_and_compile(model, cell)
    shard_or_replicate(model, cell, mesh)
    materialize(model, device, _sequence_shard(cell, mesh, device).positions, seed=cell.trainer.seed)
    return context


def _checkpoint_and_compile(model: Llama, cell: Cell) -> None:
    """Apply checkpointing, then compile around it, so that the compiler sees which results are kept.

    Full checkpointing with tensor parallelism goes around the compiled block instead and recomputes all of it: in the
    other order torch 2.13 compiles a block that saves the device mesh for the backward pass, and fails on it ("expected
    all tensors_saved_with_vc_check to be Tensors").
    """
    is_tensor_parallel = cell.parallelism.tp > 1
    is_around = is_tensor_parallel and cell.activation_checkpointing is Checkpointing.FULL
    if not is_around:
        checkpoint_blocks(model, cell.activation_checkpointing)
    if cell.compile:
        compile_blocks(model, is_tensor_parallel=is_tensor_parallel, keeps_casts=keeps_casts(cell))
    if is_around:
        checkpoint_blocks(model, cell.activation_checkpointing)


def _sequence_shard(cell: Cell, mesh: Mesh | None, device: torch.device) -> SequenceShard:
    if mesh is None or mesh.cp is None:
        return SequenceShard(positions=None)
    return SequenceShard(positions=positions_of(cell.seq_len, cell.parallelism.cp, mesh.cp.get_local_rank()).to(device))


def _share_of_loss(cell: Cell, scale: LossScale | None) -> ShareOfLoss:
    n_tokens = cell.tokens_per_step // (cell.parallelism.data_ranks * cell.parallelism.cp)
    return ShareOfLoss(n_tokens=n_tokens, piece=piece_on(cell.device), scale=scale)


def _loss_scope(mesh: Mesh | None) -> Callable[[], contextlib.AbstractContextManager[object]]:
    return contextlib.nullcontext if mesh is None or mesh.tp is None else loss_parallel
