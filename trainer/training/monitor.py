"""Watches the device during the run: step clock, telemetry of the measured window, the running step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainer.device import devices
from trainer.device.telemetry import NvmlProbe, WindowTelemetry, open_probe

if TYPE_CHECKING:
    from trainer.failure.error_report import RankProgress


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
