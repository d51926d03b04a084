"""Tensor parallelism through DTensor: matrices split over the tp ranks by columns, then by rows.

With sequence parallelism norms and residuals are split over the sequence between them (Korthikanti et al.,
arXiv 2205.05198): the same bytes travel, and no activation is held twice. The logits stay split over the vocabulary,
and the loss is computed on the parts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from trainer.model.decoder import RMSNorm

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor.parallel import ParallelStyle

    from trainer.model.decoder import Llama


def apply_tensor_parallel(model: Llama, mesh: DeviceMesh, *, sequence_parallel: bool) -> None:
    """Split the matrices of a model, or of a pipeline stage, over the tp ranks."""
    # What flows between layers on each rank: a part of the sequence, or all of it.
    flowing = Shard(1) if sequence_parallel else Replicate()
    if isinstance(model.embedding, nn.Embedding):
        row = RowwiseParallel(input_layouts=Replicate(), output_layouts=flowing)
        parallelize_module(model.embedding, mesh, row)
    for block in model.blocks.values():
        parallelize_module(block, mesh, _block_plan(flowing, sequence_parallel=sequence_parallel))
    if isinstance(model.norm, RMSNorm):
        if sequence_parallel:
            parallelize_module(model.norm, mesh, SequenceParallel())
        head = ColwiseParallel(input_layouts=flowing, output_layouts=Shard(-1), use_local_output=False)
        parallelize_module(model.head, mesh, head)


def _block_plan(flowing: Replicate | Shard, *, sequence_parallel: bool) -> dict[str, ParallelStyle]:
    # Gathered once for all projections that read it; the gradients of these are summed before they are scattered back.
    gather = PrepareModuleInput(input_layouts=(flowing,), desired_input_layouts=(Replicate(),))
    gather_beside_rope = PrepareModuleInput(input_layouts=(flowing, None), desired_input_layouts=(Replicate(), None))
    plan: dict[str, ParallelStyle] = {
        "attention": gather_beside_rope,
        "attention.wq": ColwiseParallel(),
        "attention.wk": ColwiseParallel(),
        "attention.wv": ColwiseParallel(),
        "attention.wo": RowwiseParallel(output_layouts=flowing),
        "ffn": gather,
        "ffn.w_gate": ColwiseParallel(),
        "ffn.w_up": ColwiseParallel(),
        "ffn.w_down": RowwiseParallel(output_layouts=flowing),
    }
    norms: dict[str, ParallelStyle] = {"attention_norm": SequenceParallel(), "ffn_norm": SequenceParallel()}
    return {**plan, **norms} if sequence_parallel else plan
