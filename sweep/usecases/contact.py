"""Whether the scheduler is there: since when it has not been reached, and what waits to be handed over."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sweep.core.jobs.submission import Submission


@dataclass(slots=True)
class Contact:
    """What is known of the way to the scheduler.

    Attributes:
        away_since: Unix time of the first question in a row that was not heard; None: the last one was.
        words: What that one came to.
        was_reached: Whether it ever answered this process.
        waiting: Submissions that certainly were not taken (it was away, or full), by name: they are handed over again.
    """

    away_since: float | None = None
    words: str = ""
    was_reached: bool = False
    waiting: dict[str, Submission] = field(default_factory=dict)

    def describe(self) -> str:
        """In words for people; empty while the scheduler is there."""
        return "" if self.away_since is None else away_text(self.away_since, self.words)


def away_text(since: float, words: str) -> str:
    """The sentence that live lines and ``status`` have for a scheduler that is away."""
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(since))
    return f"the scheduler has not been reached since {when} ({words})"
