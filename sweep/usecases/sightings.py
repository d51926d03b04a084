"""Since when something has been so: by what this process saw, or by what outlasts a process."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sweep.core.attempts.attempt import Phase
from sweep.core.attempts.ledger import Sighted

if TYPE_CHECKING:
    from sweep.core.attempts.attempt import AttemptKey
    from sweep.core.attempts.history import AttemptState
    from sweep.usecases.session import Session

MOST_SKEW_S = 300.0
"""No two hosts of a Slurm cluster differ by more: munge refuses what was signed more than five minutes off."""


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


class Gone:
    """Since when jobs have been over, or not known, of attempts that could not be ended yet.

    A process counts by its own clock. What came before it, as the ledger and the scheduler have it, counts as far as
    that is certain although hosts' clocks differ.

    Args:
        session: The run.
    """

    def __init__(self, session: Session) -> None:
        """Nothing has been seen by this process."""
        self._session = session
        self._seen: dict[AttemptKey, tuple[str | None, Phase, float]] = {}

    def lasting(self, attempt: AttemptState, phase: Phase, *, ended_at: float | None = None) -> float:
        """Seconds for which its job (or its submission, where no job is known) has been in this phase, at least.

        Args:
            attempt: The attempt.
            phase: Ended or absent.
            ended_at: When the job ended (Unix time), by the scheduler.
        """
        now, seen = self._session.clock.monotonic(), self._seen.get(attempt.key)
        if seen is None or seen[:2] != (attempt.job_id, phase):
            seen = attempt.job_id, phase, now - self._before(attempt, phase, ended_at)
            self._seen[attempt.key] = seen
        return now - seen[2]

    def _before(self, attempt: AttemptState, phase: Phase, ended_at: float | None) -> float:
        """Seconds for which it had been so for certain before this process saw it."""
        recorded = attempt.gone[1] if attempt.gone is not None and attempt.gone[0] is phase else None
        times = [time for time in (recorded, ended_at) if time is not None]
        return max(0.0, self._session.clock.now() - min(times) - MOST_SKEW_S) if times else 0.0

    def is_back(self, attempt: AttemptState) -> None:
        """Its job waits or runs."""
        if attempt.gone is not None or attempt.key in self._seen:
            self._seen[attempt.key] = attempt.job_id, Phase.RUNNING, self._session.clock.monotonic()

    def write_down(self) -> None:
        """Record for later processes what is new, of attempts that are still in flight."""
        session = self._session
        news: dict[Phase, list[AttemptKey]] = {}
        for key, (job_id, phase, _) in list(self._seen.items()):
            attempt = session.history.attempt(key)
            if attempt is None or not attempt.in_flight or attempt.job_id != job_id:
                del self._seen[key]
            elif phase is not (Phase.RUNNING if attempt.gone is None else attempt.gone[0]):
                news.setdefault(phase, []).append(key)
        for phase, keys in news.items():
            session.record(Sighted(time=session.clock.now(), keys=tuple(keys), phase=phase))
