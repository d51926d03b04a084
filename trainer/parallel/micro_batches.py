"""Forward and backward passes of one step: gradient accumulation over micro-batches, or a pipeline."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch.distributed.tensor import DTensor

from trainer.model.loss import token_loss_sum

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn
    from torch.distributed.pipelining.schedules import PipelineScheduleMulti, PipelineScheduleSingle

    from trainer.model.precision import LossScale
    from trainer.parallel.data_parallel import MicroBatchScope

    LossScope = Callable[[], contextlib.AbstractContextManager[object]]


@dataclass(frozen=True, kw_only=True, slots=True)
class SequenceShard:
    """The part of each sequence that a rank works on."""

    positions: torch.Tensor | None
    """Positions, on the device; None: all."""

    def split(self, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Split sequences of seq_len + 1 tokens into inputs and targets of this rank's positions."""
        inputs, targets = tokens[:, :-1], tokens[:, 1:]
        if self.positions is None:
            return inputs, targets
        return inputs.index_select(1, self.positions), targets.index_select(1, self.positions)


@dataclass(frozen=True, kw_only=True, slots=True)
class ShareOfLoss:
    """A micro-batch's share of the mean loss over this rank's tokens of the whole step.

    A micro-batch's summed loss is divided by this rank's tokens of the whole step, and the reduction averages over
    ranks with equal shares. So the gradient is that of the mean over the global batch, for every layout.
    """

    n_tokens: int
    """Tokens of the step on this rank."""
    piece: int
    """Values of a piece of the loss (:func:`trainer.model.loss.piece_on`)."""
    scale: LossScale | None = None

    def __call__(self, logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Compute the share, as a plain tensor."""
        total = token_loss_sum(logits, targets, piece=self.piece)
        # In this order: a pipeline detaches the loss in place, and torch refuses that for a view.
        loss = (total.to_local() if isinstance(total, DTensor) else total) / self.n_tokens
        return loss if self.scale is None else self.scale.scaled(loss)


@dataclass(frozen=True, kw_only=True, slots=True)
class GradientAccumulation:
    """Runs the micro-batches of a step one after the other."""

    module: nn.Module
    micro_batch: int
    """Sequences of a micro-batch."""
    sequence_shard: SequenceShard
    loss: ShareOfLoss
    scope: MicroBatchScope
    """Context of each micro-batch."""
    loss_scope: LossScope
    """Context of the whole step."""

    def __call__(self, tokens: torch.Tensor) -> torch.Tensor:
        """Accumulate the gradients of one step; return the mean loss over this rank's tokens."""
        inputs, targets = self.sequence_shard.split(tokens)
        parts = list(zip(torch.split(inputs, self.micro_batch), torch.split(targets, self.micro_batch), strict=True))
        total = torch.zeros((), device=tokens.device)
        with self.loss_scope():
            for index, part in enumerate(parts):
                with self.scope(index == len(parts) - 1):
                    total += self._forward_backward(*part)
        return total

    def _forward_backward(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        # A separate function, so that its logits are freed before the next micro-batch.
        loss = self.loss(self.module(inputs), targets)
        loss.backward()  # type: ignore[no-untyped-call]  # torch does not annotate it
        return loss.detach()


@dataclass(frozen=True, kw_only=True, slots=True)
class Pipelined:
    """Runs the micro-batches of a step through a pipeline; only ranks with the last stage have the loss."""

    schedule: PipelineScheduleSingle | PipelineScheduleMulti
    """It splits the step into micro-batches."""
    has_first: bool
    """True if this rank holds the first stage."""
    has_last: bool
    sequence_shard: SequenceShard
    loss_scope: LossScope
    """Context of the whole step."""

    def __call__(self, tokens: torch.Tensor) -> torch.Tensor | None:
        """Accumulate the gradients of one step; return the mean loss here, None without the last stage."""
        inputs, targets = self.sequence_shard.split(tokens)
        losses: list[torch.Tensor] = []
        with self.loss_scope():
            self.schedule.step(
                *([inputs] if self.has_first else []),
                target=targets if self.has_last else None,
                losses=losses if self.has_last else None,
                return_outputs=False,
            )
        return torch.stack([loss.detach() for loss in losses]).sum() if self.has_last else None
