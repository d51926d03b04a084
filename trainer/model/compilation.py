"""Compiles each block by itself: one compilation serves all blocks, and FSDP's hooks stay outside."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import torch

from trainer.torch_private.training import keep_precision_casts

if TYPE_CHECKING:
    from torch import nn

    from trainer.model.decoder import Llama

# On a CPU inductor needs a C++ compiler.
BACKEND = "inductor"


def compile_blocks(model: Llama, *, is_tensor_parallel: bool, keeps_casts: bool) -> None:
    """Replace each block by its compiled form; shapes never change, so nothing is compiled twice.

    Args:
        model: The model, or a pipeline stage.
        is_tensor_parallel: True if the embedding returns a collective that still runs.
        keeps_casts: True if fused kernels must round to bf16 wherever the code does; it holds for the whole process.
    """
    if keeps_casts:  # else it stays as the user has set it
        keep_precision_casts()
    if is_tensor_parallel:
        # The embedding returns a running collective as a tensor of a special class, through which the gradient of a
        # compiled block does not flow back. A copy waits for the collective and is an ordinary tensor.
        model.embedding.register_forward_hook(lambda module, args, output: output.clone())
    for name, block in model.blocks.items():
        compiled = torch.compile(block, backend=BACKEND, fullgraph=True, dynamic=False)
        model.blocks[name] = cast("nn.Module", compiled)
