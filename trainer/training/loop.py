"""The training loop: steps, warm-up, the measured window. Nothing in a step waits for the device."""

from __future__ import annotations

import gc
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sweep.core.cells.cell import Cell
    from trainer.device.clock import StepClock
    from trainer.parallel.parallelize import Parallelized
    from trainer.training.optimizer import ShardedAdamW


class LoopMonitor(Protocol):
    """What happens at the window's edges and after each step, besides training."""

    def synchronize(self) -> None:
        """Wait until the device has done all that it was given."""
        ...

    def window_opens(self) -> None:
        """The device is idle and the measured window begins."""
        ...

    def window_closes(self) -> None:
        """The last step was queued; the device still works on it."""
        ...

    def window_closed(self, window_time_s: float) -> None:
        """The window has ended after that many seconds and the device is idle again."""
        ...

    def step_begins(self, step: int) -> None:
        """A step begins; must not wait."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Measurements:
    """What one rank saw.

    Attributes:
        step_times_s: Seconds of each step on this rank.
        losses: Mean cross-entropy a token over this rank's tokens of each step; None on a rank that does not see it (of
            a pipeline's ranks, only that of the last stage does).
        grad_norms: Global gradient norm of each step.
        window_time_s: Seconds of the measured window, from edge to edge.
    """

    step_times_s: list[float]
    losses: list[float] | None
    grad_norms: list[float]
    window_time_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Trainee:
    """A model with its optimiser, on one device."""

    model: Parallelized
    optimizer: ShardedAdamW
    device: torch.device

    def step(self, rows: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor]:
        """One optimiser step on (sequences, seq_len + 1) tokens: the mean loss here and the global gradient norm."""
        tokens = rows.to(self.device, non_blocking=True).long()
        return self.model.run(tokens), self.optimizer.step()


def train(
    cell: Cell, trainee: Trainee, batches: Iterator[torch.Tensor], clock: StepClock, watched: LoopMonitor
) -> Measurements:
    """Run all steps of the cell; the window is what follows its warm-up steps."""
    losses: list[torch.Tensor] = []
    norms: list[torch.Tensor] = []
    window_began = 0.0
    try:
        for step in range(cell.trainer.steps):
            if step == cell.trainer.warmup_steps:
                window_began = _open_window(watched)
            rows = next(batches)
            watched.step_begins(step)
            clock.begin()
            loss, norm = trainee.step(rows)
            clock.end()
            if loss is not None:
                losses.append(loss)
            norms.append(norm)
        watched.window_closes()
        watched.synchronize()
        window_time_s = time.perf_counter() - window_began
        watched.window_closed(window_time_s)
    finally:
        gc.enable()
    return Measurements(
        step_times_s=clock.durations_s(),
        losses=_to_host(losses) if losses else None,
        grad_norms=_to_host(norms),
        window_time_s=window_time_s,
    )


def _open_window(watched: LoopMonitor) -> float:
    # Collected now and not within the window: a full collection takes as long as a short step.
    gc.collect()
    gc.disable()
    watched.synchronize()
    watched.window_opens()
    return time.perf_counter()


def _to_host(values: list[torch.Tensor]) -> list[float]:
    return [float(value) for value in torch.stack(values).tolist()]
