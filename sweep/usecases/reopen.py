"""Trying again what was given up, cancelled or explained, because the user asked for it (``retry=[...]``)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sweep.core.attempts.attempt import Outcome, Phase
from sweep.core.attempts.ledger import Reopened
from sweep.usecases.plan import to_reopen

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from sweep.core.attempts.attempt import AttemptKey, JobReport
    from sweep.core.attempts.history import AttemptState
    from sweep.core.decisions.plan import Action
    from sweep.usecases.session import Session


class Reopening:
    """Reopens repeats whose attempts ended so before they were asked for again, recorded or not.

    The end of an attempt may be settled later: its job had ended, or was cancelled, and nobody had watched. What ends
    so afterwards was not what the user meant, and stays as it ended.

    Args:
        session: The run.
    """

    def __init__(self, session: Session) -> None:
        """Nothing was asked for."""
        self._session = session
        self._outcomes: Collection[Outcome] = ()
        self._is_asked = False
        self._unsettled: set[AttemptKey] = set()

    def ask(self, outcomes: Collection[Outcome]) -> None:
        """Reopen what ended, or has ended, with one of these; done by :meth:`take_up`."""
        self._outcomes = frozenset(outcomes)
        self._is_asked = bool(self._outcomes)
        self._unsettled.clear()

    def take_up(self, decide: Callable[[], Sequence[Action]], reports: Mapping[str, JobReport]) -> None:
        """Reopen what is settled by now.

        Args:
            decide: What is to be done about every repeat.
            reports: The scheduler's latest word on each job in flight.
        """
        if not self._is_asked and not self._unsettled:
            return
        history = self._session.history
        chosen = [
            key
            for key in to_reopen(decide(), self._outcomes)
            if self._is_asked or self._was_unsettled(history.of(*key).last)
        ]
        if chosen:
            self._session.record(Reopened(time=self._session.clock.now(), repeats=tuple(chosen)))
        flying = list(history.in_flight())
        if self._is_asked:
            self._unsettled = {attempt.key for attempt in flying if _had_ended(attempt, reports)}
            # Before the scheduler has answered nobody knows which jobs are over.
            self._is_asked = bool(flying) and not self._session.contact.was_reached
        else:
            self._unsettled &= {attempt.key for attempt in flying}

    def _was_unsettled(self, last: AttemptState | None) -> bool:
        return last is not None and last.key in self._unsettled


def _had_ended(attempt: AttemptState, reports: Mapping[str, JobReport]) -> bool:
    report = reports.get(attempt.job_id or "")
    is_over = report is not None and report.phase in (Phase.ENDED, Phase.ABSENT)
    return attempt.is_cancel_requested or is_over
