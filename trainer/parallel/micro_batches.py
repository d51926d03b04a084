"""One step's forward and backward passes over its micro-batches: one after the other, or through a pipeline."""

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
    """Which positions of its sequences a rank works on.

    Attributes:
        positions: Their numbers, on the device; None where it is all of them.
    """

    positions: torch.Tensor | None

    def split(self, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Inputs and targets out of sequences of seq_len + 1 tokens."""
        inputs, targets = tokens[:, :-1], tokens[:, 1:]
        if self.positions is None:
            return inputs, targets
        return inputs.index_select(1, self.positions), targets.index_select(1, self.positions)


@dataclass(frozen=True, kw_only=True, slots=True)
class ShareOfLoss:
    """A micro-batch's part of the mean loss over this rank's tokens of the whole step.

    Each micro-batch's summed loss is divided by the tokens of the whole step on this rank, and reduction averages over
    ranks of equal share: the gradient is that of the mean over the tokens of the global batch, however they are split.

    Attributes:
        n_tokens: Tokens of the step on this rank.
        piece: Values that the loss is computed from at once (:func:`trainer.model.loss.piece_on`).
        scale: What gradients are multiplied by; None where the format needs none.
    """

    n_tokens: int
    piece: int
    scale: LossScale | None = None

    def __call__(self, logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """The part, as a plain tensor."""
        total = token_loss_sum(logits, targets, piece=self.piece)
        # In this order: a pipeline's backward pass wants to cut the loss off its graph, which a view would refuse.
        loss = (total.to_local() if isinstance(total, DTensor) else total) / self.n_tokens
        return loss if self.scale is None else self.scale.scaled(loss)


@dataclass(frozen=True, kw_only=True, slots=True)
class GradientAccumulation:
    """Micro-batches one after the other.

    Attributes:
        module: The whole model.
        micro_batch: Sequences of a micro-batch.
        sequence_shard: This rank's positions.
        loss: A micro-batch's part of the loss.
        scope: Entered around each micro-batch.
        loss_scope: Entered around the whole step.
    """

    module: nn.Module
    micro_batch: int
    sequence_shard: SequenceShard
    loss: ShareOfLoss
    scope: MicroBatchScope
    loss_scope: LossScope

    def __call__(self, tokens: torch.Tensor) -> torch.Tensor:
        """Accumulate the gradients of one step; returns the mean loss over this rank's tokens."""
        inputs, targets = self.sequence_shard.split(tokens)
        parts = list(zip(torch.split(inputs, self.micro_batch), torch.split(targets, self.micro_batch), strict=True))
        total = torch.zeros((), device=tokens.device)
        with self.loss_scope():
            for index, part in enumerate(parts):
                with self.scope(index == len(parts) - 1):
                    total += self._forward_backward(*part)
        return total

    def _forward_backward(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        # A function of its own, so that its logits are gone before the next micro-batch makes new ones.
        loss = self.loss(self.module(inputs), targets)
        loss.backward()  # type: ignore[no-untyped-call]  # torch does not annotate it
        return loss.detach()


@dataclass(frozen=True, kw_only=True, slots=True)
class Pipelined:
    """Micro-batches through a pipeline; the rank of the last stage knows the loss.

    Attributes:
        schedule: Order of work; it splits the step into micro-batches.
        has_first: Whether this rank holds the first stage.
        has_last: Whether it holds the last stage.
        sequence_shard: This rank's positions.
        loss_scope: Entered around the whole step.
    """

    schedule: PipelineScheduleSingle | PipelineScheduleMulti
    has_first: bool
    has_last: bool
    sequence_shard: SequenceShard
    loss_scope: LossScope

    def __call__(self, tokens: torch.Tensor) -> torch.Tensor | None:
        """Accumulate the gradients of one step; returns the mean loss over this rank's tokens where it is known."""
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
