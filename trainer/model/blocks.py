"""Wraps the blocks of a model: activation checkpointing, which recomputes results, and compilation, block by block."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import torch
from torch import nn
from torch.utils.checkpoint import CheckpointPolicy, SelectiveCheckpointContext, create_selective_checkpoint_contexts

from sweep.core.cells.cell import Checkpointing
from trainer.model.decoder import Llama
from trainer.torch_private.training import (
    ATTENTION_OPS,
    REDUCTION_OPS,
    CheckpointImpl,
    checkpoint_wrapper,
    keep_precision_casts,
)

# On a CPU inductor needs a C++ compiler.
BACKEND = "inductor"
_aten = torch.ops.aten
_MATMULS = frozenset({_aten.mm.default, _aten.linear.default, _aten.addmm.default})
# Results that are the most expensive to recompute for their bytes: attention, reductions over ranks, and the maximum of
# a whole tensor, from which float8 computes its scale.
_KEPT = ATTENTION_OPS | REDUCTION_OPS | {_aten.max.default}


class EverySecondMatmul:
    """Policy: keep attention's results, reduced activations and every second matrix product; recompute the rest.

    Torchtitan's selective mode strikes the same balance. Forward pass and recomputation have counters of their own,
    since both must decide the same.
    """

    def __init__(self) -> None:
        self._n_matmuls = {False: 0, True: 0}

    def __call__(
        self, context: SelectiveCheckpointContext, op: object, *args: object, **kwargs: object
    ) -> CheckpointPolicy:
        """Decide whether the result of this operation is kept."""
        if op in _MATMULS:
            self._n_matmuls[context.is_recompute] += 1
            is_kept = self._n_matmuls[context.is_recompute] % 2 == 0
        else:
            is_kept = op in _KEPT
        return CheckpointPolicy.MUST_SAVE if is_kept else CheckpointPolicy.PREFER_RECOMPUTE


def checkpoint_blocks(model: Llama, mode: Checkpointing) -> None:
    """Wrap each block; FULL keeps its input only."""
    if mode is Checkpointing.NONE:
        return
    selective: dict[str, Callable[[], object]] = {}
    if mode is Checkpointing.SELECTIVE:
        selective = {"context_fn": _selective_contexts}
    for name, block in model.blocks.items():
        # Without dropout there is no random state to restore; saving it would synchronise with the device.
        model.blocks[name] = checkpoint_wrapper(
            block, checkpoint_impl=CheckpointImpl.NO_REENTRANT, preserve_rng_state=False, **selective
        )


def _selective_contexts() -> object:
    return create_selective_checkpoint_contexts(EverySecondMatmul())  # type: ignore[no-untyped-call]  # torch does not


def compile_blocks(model: Llama, *, is_tensor_parallel: bool, keeps_casts: bool) -> None:
    """Replace each block by its compiled form: one compilation serves all blocks, and FSDP's hooks stay outside.

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
