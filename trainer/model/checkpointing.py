"""Activation checkpointing: what of a block is kept for the backward pass, and what is computed once more."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import CheckpointImpl, checkpoint_wrapper
from torch.utils.checkpoint import CheckpointPolicy, SelectiveCheckpointContext, create_selective_checkpoint_contexts

from sweep.core.cells.cell import Checkpointing

if TYPE_CHECKING:
    from collections.abc import Callable

    from trainer.model.decoder import Llama

_aten = torch.ops.aten
_collective = torch.ops._c10d_functional
_MATMULS = frozenset({_aten.mm.default, _aten.linear.default, _aten.addmm.default})
# What costs most to compute again for the bytes it takes: attention, and what came from other ranks.
_KEPT = frozenset(
    {
        _aten._scaled_dot_product_flash_attention.default,
        _aten._scaled_dot_product_flash_attention_for_cpu.default,
        _aten._scaled_dot_product_efficient_attention.default,
        _aten._scaled_dot_product_cudnn_attention.default,
        _collective.reduce_scatter_tensor.default,
        _collective.all_reduce.default,
        # What float8's scale for a whole tensor is made of: one number, for a pass over all of them.
        _aten.max.default,
    }
)


class EverySecondMatmul:
    """Keeps attention's results, reduced activations and every second matrix product of a block; the rest runs again.

    The balance that torchtitan publishes for its selective mode: half of the products cost half of the memory. Forward
    and recomputation are counted apart, since both must decide alike.
    """

    def __init__(self) -> None:
        self._n_matmuls = {False: 0, True: 0}

    def __call__(
        self, context: SelectiveCheckpointContext, op: torch._ops.OpOverload, *args: object, **kwargs: object
    ) -> CheckpointPolicy:
        """Whether to keep what this operation returns."""
        if op in _MATMULS:
            self._n_matmuls[context.is_recompute] += 1
            is_kept = self._n_matmuls[context.is_recompute] % 2 == 0
        else:
            is_kept = op in _KEPT
        return CheckpointPolicy.MUST_SAVE if is_kept else CheckpointPolicy.PREFER_RECOMPUTE


def checkpoint_blocks(model: Llama, mode: Checkpointing) -> None:
    """Wrap each block; with FULL only its input is kept."""
    if mode is Checkpointing.NONE:
        return
    selective: dict[str, Callable[[], object]] = {}
    if mode is Checkpointing.SELECTIVE:
        selective = {"context_fn": _selective_contexts}
    for name, block in model.blocks.items():
        # There is no dropout: saving and restoring the random state would synchronise for nothing.
        model.blocks[name] = checkpoint_wrapper(
            block, checkpoint_impl=CheckpointImpl.NO_REENTRANT, preserve_rng_state=False, **selective
        )


def _selective_contexts() -> object:
    return create_selective_checkpoint_contexts(EverySecondMatmul())  # type: ignore[no-untyped-call]  # torch does not
