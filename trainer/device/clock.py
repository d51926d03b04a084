"""Step clocks: CUDA events that are read at the end, or the host's monotonic clock. Neither waits within a step."""

from __future__ import annotations

import time

import torch


class HostClock:
    """Clock of a device on which a call returns when its work is done."""

    def __init__(self) -> None:
        self._begun: list[int] = []
        self._ended: list[int] = []

    def begin(self) -> None:
        """A step begins."""
        self._begun.append(time.perf_counter_ns())

    def end(self) -> None:
        """The step ends."""
        self._ended.append(time.perf_counter_ns())

    def n_ended(self) -> int:
        """Number of steps that have ended."""
        return len(self._ended)

    def durations_s(self) -> list[float]:
        """Seconds of each step."""
        return [(end - begin) * 1e-9 for begin, end in zip(self._begun, self._ended, strict=True)]


class CudaClock:
    """Clock of events in the device's queue: recording one neither waits for the device nor delays it."""

    def __init__(self) -> None:
        self._begun: list[torch.cuda.Event] = []
        self._ended: list[torch.cuda.Event] = []
        self._n_seen = 0

    def begin(self) -> None:
        """A step begins."""
        self._begun.append(_recorded())

    def end(self) -> None:
        """The step ends."""
        self._ended.append(_recorded())

    def n_ended(self) -> int:
        """Number of steps whose end the device has reached (``query`` does not wait)."""
        # A local counter: two threads call this, and neither may count a step twice.
        n_seen = self._n_seen
        while n_seen < len(self._ended) and self._ended[n_seen].query():  # type: ignore[no-untyped-call]  # torch does not annotate it
            n_seen += 1
        self._n_seen = n_seen
        return n_seen

    def durations_s(self) -> list[float]:
        """Seconds of each step; call it after the device was synchronised."""
        return [begin.elapsed_time(end) * 1e-3 for begin, end in zip(self._begun, self._ended, strict=True)]


def _recorded() -> torch.cuda.Event:
    event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]  # torch does not annotate it
    event.record()
    return event


StepClock = HostClock | CudaClock
