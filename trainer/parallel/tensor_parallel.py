"""Tensor parallelism through DTensor: column-parallel, then row-parallel matrices.

With sequence parallelism norms and residuals are sharded over the sequence (Korthikanti et al., arXiv 2205.05198): it
communicates as many bytes, and no activation is held twice. Logits stay sharded over the vocabulary, and the loss is
computed on the shards.
"""

from __future__ import annotations

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from trainer.model.decoder import Llama, RMSNorm


def apply_tensor_parallel(model: Llama, mesh: DeviceMesh, *, sequence_parallel: bool) -> None:
    """Shard the matrices of a model, or of a pipeline stage, over the tp ranks."""
    # Activations between layers: sharded over the sequence, or replicated.
    activations = Shard(1) if sequence_parallel else Replicate()
    if isinstance(model.embedding, nn.Embedding):
        row = RowwiseParallel(input_layouts=Replicate(), output_layouts=activations)
        parallelize_module(model.embedding, mesh, row)
    for block in model.blocks.values():
        parallelize_module(block, mesh, _block_plan(activations, sequence_parallel=sequence_parallel))
    if isinstance(model.norm, RMSNorm):
        if sequence_parallel:
            parallelize_module(model.norm, mesh, SequenceParallel())
        head = ColwiseParallel(input_layouts=activations, output_layouts=Shard(-1), use_local_output=False)
        parallelize_module(model.head, mesh, head)


def _block_plan(activations: Replicate | Shard, *, sequence_parallel: bool) -> dict[str, ParallelStyle]:
    # One all-gather for all projections that read it; their gradients are summed before the reduce-scatter.
    gather = PrepareModuleInput(input_layouts=(activations,), desired_input_layouts=(Replicate(),))
    gather_beside_rope = PrepareModuleInput(
        input_layouts=(activations, None), desired_input_layouts=(Replicate(), None)
    )
    plan: dict[str, ParallelStyle] = {
        "attention": gather_beside_rope,
        "attention.wq": ColwiseParallel(),
        "attention.wk": ColwiseParallel(),
        "attention.wv": ColwiseParallel(),
        "attention.wo": RowwiseParallel(output_layouts=activations),
        "ffn": gather,
        "ffn.w_gate": ColwiseParallel(),
        "ffn.w_up": ColwiseParallel(),
        "ffn.w_down": RowwiseParallel(output_layouts=activations),
    }
    norms: dict[str, ParallelStyle] = {"attention_norm": SequenceParallel(), "ffn_norm": SequenceParallel()}
    return {**plan, **norms} if sequence_parallel else plan
