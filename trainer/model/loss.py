"""The training loss: cross-entropy in float32 of logits in any format, computed in pieces.

The plain form holds the logits, their float32 copy, its log-softmax and two gradients of that size: with a vocabulary
of 32 000 or 128 000 more than the rest of a small model. Here the backward pass recomputes the softmax from the logits,
in pieces. Only the logits and their gradient stay in memory, and half as many bytes are moved.

N tokens, V vocabulary.
"""

from __future__ import annotations

from typing import Any, cast

import torch
import torch.nn.functional as F
from torch.distributed.tensor import DTensor

# Float32 values of a piece: on a GPU so many that kernels take longer than their launch; on a CPU so few that they fit
# into a core's cache (measured: 256 tokens of 32 000 in bf16 take 41 ms whole, 26 to 30 ms in such pieces).
_PIECE, _PIECE_ON_CPU = 1 << 25, 1 << 17


def piece_on(device: str) -> int:
    """Float32 values of a piece, for a device profile."""
    return _PIECE_ON_CPU if device == "cpu" else _PIECE


def token_loss_sum(logits_BSV: torch.Tensor, targets_BS: torch.Tensor, *, piece: int = _PIECE) -> torch.Tensor:
    """Sum the cross-entropy over tokens, in float32 for any format of the logits."""
    logits_NV, targets_N = logits_BSV.flatten(0, 1), targets_BS.flatten()
    if isinstance(logits_NV, DTensor):
        # Sharded over the vocabulary: torch's loss_parallel combines the shards.
        return F.cross_entropy(logits_NV.float(), targets_N, reduction="sum")
    loss = _CrossEntropy.apply(logits_NV, targets_N, max(1, piece // logits_NV.shape[-1]))  # type: ignore[no-untyped-call]  # torch does not annotate it
    return cast("torch.Tensor", loss)


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, logits_NV: torch.Tensor, targets_N: torch.Tensor, rows: int) -> torch.Tensor:
        context.save_for_backward(logits_NV, targets_N)
        context.rows = rows
        total = torch.zeros((), dtype=torch.float32, device=logits_NV.device)
        for logits, targets in zip(torch.split(logits_NV, rows), torch.split(targets_N, rows), strict=True):
            total += F.nll_loss(torch.log_softmax(logits, dim=-1, dtype=torch.float32), targets, reduction="sum")
        return total

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        # Not in place: a pipeline still holds the logits.
        parts = [*context.saved_tensors, torch.empty_like(context.saved_tensors[0])]
        for logits, targets, out in zip(*(torch.split(part, context.rows) for part in parts), strict=True):
            softmax = torch.softmax(logits, dim=-1, dtype=torch.float32)
            column = targets.unsqueeze(-1)
            softmax.scatter_add_(-1, column, softmax.new_full((), -1.0).expand_as(column))
            torch.mul(softmax, gradient, out=out)
        return parts[-1], None, None
