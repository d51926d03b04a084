"""Activation checkpointing: which results of a block are kept for the backward pass, and which are recomputed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.utils.checkpoint import CheckpointPolicy, SelectiveCheckpointContext, create_selective_checkpoint_contexts

from sweep.core.cells.cell import Checkpointing
from trainer.torch_private.training import ATTENTION_OPS, REDUCTION_OPS, CheckpointImpl, checkpoint_wrapper

if TYPE_CHECKING:
    from collections.abc import Callable

    from trainer.model.decoder import Llama

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
