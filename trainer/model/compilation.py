"""torch.compile of each block by itself: one compilation serves all of them, and FSDP's hooks stay outside."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import torch
from torch._inductor import config

if TYPE_CHECKING:
    from torch import nn
    from torch.distributed.device_mesh import DeviceMesh

    from trainer.model.decoder import Llama

# inductor, on a CPU too, where it needs a C++ compiler.
BACKEND = "inductor"


def compile_blocks(model: Llama, *, is_tensor_parallel: bool, keeps_casts: bool) -> None:
    """Replace each block by its compiled form (shapes never change, so nothing is compiled twice).

    ``keeps_casts``: what the code rounds to bf16 is rounded within fused kernels too, for the whole process.
    """
    if keeps_casts:  # or the user has asked for it
        config.emulate_precision_casts = True
    if is_tensor_parallel:
        # The embedding returns a collective that still runs, as a tensor of a class of its own, and the gradient of a
        # compiled block does not find back into it. A copy waits for it and is an ordinary tensor.
        model.embedding.register_forward_hook(lambda module, args, output: output.clone())
    for name, block in model.blocks.items():
        compiled = torch.compile(block, backend=BACKEND, fullgraph=True, dynamic=False)
        model.blocks[name] = cast("nn.Module", compiled)


def casts_are_kept() -> bool:
    """Whether fused kernels round as the code does, in this process."""
    return bool(config.emulate_precision_casts)


def overlap_tensor_parallel(mesh: DeviceMesh) -> None:
    """Async tensor parallelism: inductor splits a matrix product beside the collective that it waits for.

    Through torch's symmetric memory, between GPUs of one node. Not yet run on a GPU.
    """
    from torch.distributed._symmetric_memory import enable_symm_mem_for_group

    config._micro_pipeline_tp = True
    enable_symm_mem_for_group(mesh.get_group().group_name)
