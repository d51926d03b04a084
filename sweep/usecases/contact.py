"""Contact with the scheduler: since when it has not been reached."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sweep.ports import Clock, RunDirectory
    from sweep.usecases.session import Reporter


class Contact:
    """Knows whether the scheduler is reached, and says so to people and to ``status``.

    Args:
        run_dir: Where ``status`` finds it.
        reporter: Who is told.
        clock: Tells the time.

    Attributes:
        away_since: Unix time of the first question in a row that was not answered; None: the last one was.
        was_reached: True if it ever answered this process.
    """

    def __init__(self, run_dir: RunDirectory, reporter: Reporter, clock: Clock) -> None:
        """Nothing was asked yet."""
        self._run_dir, self._reporter, self._clock = run_dir, reporter, clock
        self.away_since: float | None = None
        self.was_reached = False
        self._message = ""

    def reached(self) -> None:
        """The scheduler answered."""
        since, is_news = self.away_since, not self.was_reached or self.away_since is not None
        self.away_since, self._message, self.was_reached = None, "", True
        if is_news:
            self._run_dir.publish_away(None, "")
        if since is not None:
            self._reporter.note(f"the scheduler answers again, after {self._clock.now() - since:.0f} s")

    def not_reached(self, message: str) -> None:
        """The scheduler did not answer."""
        if self.away_since is None:
            self.away_since, self._message = self._clock.now(), message
            self._run_dir.publish_away(self.away_since, message)

    def describe(self) -> str:
        """A sentence for people; empty while the scheduler is there."""
        return "" if self.away_since is None else away_text(self.away_since, self._message)


def away_text(since: float, message: str) -> str:
    """The sentence that live lines and ``status`` have for a scheduler that is away."""
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(since))
    return f"the scheduler has not been reached since {when} ({message})"
