"""Pipeline parallelism: the layers of each stage, the stages of each rank, and torch's schedules."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.distributed.pipelining import PipelineStage, schedules

from sweep.core.cells.parallelism import Parallelism, Schedule

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch.distributed.device_mesh import DeviceMesh

    from sweep.core.cells.cell import Cell
    from sweep.core.cells.model_shape import ModelShape
    from trainer.model.decoder import Llama

    LossFunction = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

_SINGLE_STAGE_SCHEDULES: Mapping[Schedule, type[schedules.PipelineScheduleSingle]] = {
    Schedule.GPIPE: schedules.ScheduleGPipe,
    Schedule.ONE_F_ONE_B: schedules.Schedule1F1B,
}
_MULTI_STAGE_SCHEDULES: Mapping[Schedule, type[schedules.PipelineScheduleMulti]] = {
    Schedule.INTERLEAVED_1F1B: schedules.ScheduleInterleaved1F1B,
    Schedule.INTERLEAVED_ZERO_BUBBLE: schedules.ScheduleInterleavedZeroBubble,
    Schedule.ZBV: schedules.ScheduleZBVZeroBubble,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class StageSpec:
    """The part of the model in one pipeline stage."""

    index: int
    layers: range
    is_first: bool
    """True if it holds the embedding."""
    is_last: bool
    """True if it holds the final norm and the head, and computes the loss."""
    n_params: int

    def __str__(self) -> str:
        """Describe the stage."""
        parts = [f"layers {self.layers.start}-{self.layers.stop - 1}"]
        parts = (["embedding"] if self.is_first else []) + parts + (["norm and head"] if self.is_last else [])
        return f"stage {self.index}: {', '.join(parts)} ({self.n_params / 1e6:.3g} M parameters)"


def split_layers(shape: ModelShape, layout: Parallelism) -> list[StageSpec]:
    """Distribute the layers so that the largest rank is as small as possible, and its stages as even as possible.

    The size of a rank or stage is its number of parameters, embedding, norm and head included: FLOPs, memory and
    reduced bytes all follow from it.
    """
    n_stages = layout.pp * layout.virtual_stages
    n_layers = [1] * n_stages
    ranks = [stages_of_rank(layout, rank) for rank in range(layout.pp)]

    def size(stage: int) -> int:
        return _size(shape, n_stages, stage, n_layers[stage])

    # Give each layer to the smallest rank; of two equal ones to the later, which has fewer micro-batches in flight.
    for _ in range(shape.n_layers - n_stages):
        smallest = min(reversed(ranks), key=lambda stages: sum(map(size, stages)))
        n_layers[min(sorted(smallest, reverse=True), key=size)] += 1
    ends = list(itertools.accumulate(n_layers))
    return [
        StageSpec(
            index=index,
            layers=range(first, last),
            is_first=index == 0,
            is_last=index == n_stages - 1,
            n_params=size(index),
        )
        for index, (first, last) in enumerate(itertools.pairwise([0, *ends]))
    ]


def _size(shape: ModelShape, n_stages: int, index: int, n_layers: int) -> int:
    embedding = shape.n_embedding_params if index == 0 else 0
    head = shape.n_embedding_params + shape.hidden if index == n_stages - 1 else 0
    return n_layers * shape.n_layer_params + embedding + head


def stages_of_rank(layout: Parallelism, pp_rank: int) -> list[int]:
    """Stages of a pipeline rank: every pp-th, or one from the front and its mirror image (ZBV)."""
    if layout.schedule is Schedule.ZBV:
        return [pp_rank, 2 * layout.pp - 1 - pp_rank]
    return [pp_rank + chunk * layout.pp for chunk in range(layout.virtual_stages)]


def keep_stage(model: Llama, part: StageSpec) -> None:
    """Remove from a whole model all modules that are not in the stage; the rest keep their names."""
    if not part.is_first:
        model.embedding = nn.Identity()
    for name in [name for name in model.blocks if int(name) not in part.layers]:
        del model.blocks[name]
    if not part.is_last:
        model.norm, model.head = nn.Identity(), nn.Identity()


def _examples(cell: Cell, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens of a micro-batch on this rank, and the activations that one stage sends to the next, without memory."""
    layout = cell.parallelism
    positions = cell.seq_len // layout.cp
    tokens = torch.empty(cell.micro_batch, positions, dtype=torch.long, device="meta")
    if layout.sequence_parallel:
        positions //= layout.tp
    shape = (cell.micro_batch, positions, cell.model.hidden)
    return tokens, torch.empty(shape, dtype=dtype, device="meta", requires_grad=True)


def build_schedule(
    cell: Cell,
    stages: Sequence[tuple[StageSpec, nn.Module]],
    mesh: DeviceMesh,
    dtype: torch.dtype,
    device: torch.device,
    loss_function: LossFunction,
) -> schedules.PipelineScheduleSingle | schedules.PipelineScheduleMulti:
    """Build the cell's schedule over this rank's stages; stated shapes save a step that would infer them."""
    layout = cell.parallelism
    tokens, activations = _examples(cell, dtype)
    assert layout.schedule is not None
    made = [
        PipelineStage(
            module,
            part.index,
            layout.pp * layout.virtual_stages,
            device,
            input_args=tokens if part.is_first else activations,
            # The last stage sends no output; any example will do.
            output_args=activations,
            group=mesh.get_group(),
        )
        for part, module in stages
    ]
    # Each loss is already a share of the mean over the step's tokens.
    settings: dict[str, Any] = {"loss_fn": loss_function, "scale_grads": False}
    n_micro_batches = int(cell.grad_accum)
    if layout.schedule in _SINGLE_STAGE_SCHEDULES:
        (stage,) = made
        return _SINGLE_STAGE_SCHEDULES[layout.schedule](stage, n_micro_batches, **settings)
    return _MULTI_STAGE_SCHEDULES[layout.schedule](list(made), n_micro_batches, **settings)
