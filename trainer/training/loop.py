"""The training loop: warm-up steps, then the watched and measured window. Nothing in a step waits for the device."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from sweep.core.cells.cell import Cell
from trainer.device import devices
from trainer.device.devices import StepClock
from trainer.device.telemetry import NvmlProbe, WindowTelemetry, open_probe
from trainer.failure.error_report import RankProgress
from trainer.parallel.parallelize import Parallelized
from trainer.training.optimizer import ShardedAdamW


@dataclass(frozen=True, kw_only=True, slots=True)
class Measurements:
    """Times, losses and norms of one rank."""

    step_times_s: list[float]
    """Seconds of each step on this rank."""
    losses: list[float] | None
    """Mean cross-entropy per token of each step; None on pipeline ranks without the last stage."""
    grad_norms: list[float]
    """Global gradient norm of each step."""
    window_time_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Trainee:
    """A model and its optimiser on one device."""

    model: Parallelized
    optimizer: ShardedAdamW
    device: torch.device

    def step(self, rows: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor]:
        """Take one optimiser step on tokens of shape (sequences, seq_len + 1).

        Returns:
            This rank's mean loss (None as in :class:`Measurements`), and the global gradient norm.
        """
        tokens = rows.to(self.device, non_blocking=True).long()
        return self.model.run(tokens), self.optimizer.step()


class DeviceMonitor:
    """Hooks that the training loop calls at each step and at the edges of the measured window."""

    def __init__(self, compute: devices.Compute, progress: RankProgress) -> None:
        self._compute = compute
        self._progress = progress
        self.clock = compute.clock()
        self.telemetry = WindowTelemetry()
        self._probe: NvmlProbe | None = None
        if isinstance(compute, devices.CudaCompute):
            self._probe = open_probe(compute.uuid())

    def synchronize(self) -> None:
        """Wait until the device has finished all queued work."""
        self._compute.synchronize()

    def step_begins(self, step: int) -> None:
        """Note the step for an error file; does not wait."""
        self._progress.step = step

    def window_opens(self) -> None:
        """The window begins, and the device is idle: read the counters."""
        if self._probe is not None:
            self._probe.window_opens()

    def window_closes(self) -> None:
        """The last step is queued, and the device is busy: read power and clock."""
        if self._probe is not None:
            self._probe.window_closes()

    def window_closed(self, window_time_s: float) -> None:
        """The window has ended after so many seconds, and the device is idle: read the counters again."""
        if self._probe is not None:
            self.telemetry = self._probe.window_closed(window_time_s)

    def driver_version(self) -> str | None:
        """Version of the GPU's driver; None on a CPU."""
        return None if self._probe is None else self._probe.driver_version()


def train(
    cell: Cell, trainee: Trainee, batches: Iterator[torch.Tensor], clock: StepClock, monitor: DeviceMonitor
) -> Measurements:
    """Run all steps of the cell; the measured window begins after its warm-up steps."""
    losses: list[torch.Tensor] = []
    norms: list[torch.Tensor] = []
    window_began = 0.0
    try:
        for step in range(cell.trainer.steps):
            if step == cell.trainer.warmup_steps:
                window_began = _open_window(monitor)
            rows = next(batches)
            monitor.step_begins(step)
            clock.begin()
            loss, norm = trainee.step(rows)
            clock.end()
            if loss is not None:
                losses.append(loss)
            norms.append(norm)
        monitor.window_closes()
        monitor.synchronize()
        window_time_s = time.perf_counter() - window_began
        monitor.window_closed(window_time_s)
    finally:
        gc.enable()
    return Measurements(
        step_times_s=clock.durations_s(),
        losses=_to_host(losses) if losses else None,
        grad_norms=_to_host(norms),
        window_time_s=window_time_s,
    )


def _open_window(monitor: DeviceMonitor) -> float:
    # Collect garbage now and not within the window: a full collection takes as long as a short step.
    gc.collect()
    gc.disable()
    monitor.synchronize()
    monitor.window_opens()
    return time.perf_counter()


def _to_host(values: list[torch.Tensor]) -> list[float]:
    return [float(value) for value in torch.stack(values).tolist()]
