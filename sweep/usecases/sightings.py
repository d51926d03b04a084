"""Since when something has been so."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Sightings:
    """Since when (monotonic) something has been so without a break; forgotten once it is not."""

    since: dict[str, float] = field(default_factory=dict)

    def lasting(self, name: str, now: float) -> float:
        """Seconds for which it has been so; 0 where it is seen for the first time."""
        return now - self.since.setdefault(name, now)

    def forget(self, name: str) -> None:
        """It is not so any more."""
        self.since.pop(name, None)
