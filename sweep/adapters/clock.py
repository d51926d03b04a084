"""The machine's clock."""

from __future__ import annotations

import time


class SystemClock:
    """Implements :class:`sweep.ports.Clock`."""

    def now(self) -> float:
        """Unix time."""
        return time.time()

    def monotonic(self) -> float:
        """Seconds that never go back."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Wait."""
        time.sleep(seconds)
