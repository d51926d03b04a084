"""How jobs are ended: the wish is in the ledger first, and the scheduler is told again until the job is gone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sweep.core.attempts.attempt import WHILE_PENDING, Outcome, Phase, StopKind
from sweep.core.attempts.ledger import StopRequested
from sweep.ports import SchedulerError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sweep.core.attempts.attempt import JobReport, Stop
    from sweep.core.attempts.history import AttemptState
    from sweep.ports import RunDirectory
    from sweep.usecases.session import Session

_CLOCKS_DIFFER_S = 5.0
"""Slurm's times are whole seconds, and a job may begin between its report and the stop."""
_AGAIN_S = 30.0
"""A cancel that was heard and did not end the job is repeated after so long; one that was not heard, at once."""


class Stops:
    """Ends jobs that the user or this tool wants ended. An attempt is over only once its job is.

    Args:
        session: The run.

    Attributes:
        failure: Why the scheduler did not hear the last cancel; empty where it did.
    """

    def __init__(self, session: Session) -> None:
        """Nothing has been told yet."""
        self._session = session
        self.failure = ""
        self._heard_at: dict[str, float] = {}
        self._requested: set[str] = set()
        self._lapsed: set[str] = set()
        self._due: dict[bool, dict[str, str]] = {True: {}, False: {}}

    def request(self, attempt: AttemptState, kind: StopKind, reason: str) -> None:
        """Write down that a job is to end; the scheduler is told by :meth:`tell`."""
        session = self._session
        session.record(StopRequested(time=session.clock.now(), key=attempt.key, kind=kind, reason=reason))
        if kind is not StopKind.PAUSED:  # then there are many, for one reason
            session.reporter.note(f"job {attempt.job_id} is ended: {reason}")
        self._requested.add(str(attempt.job_id))
        self._lapsed.discard(str(attempt.job_id))
        self._is_due(attempt)

    def insist(self, attempt: AttemptState, report: JobReport) -> bool:
        """Whether a job that is not over is to end; then the scheduler is told again, if it is time to."""
        job, stop = str(attempt.job_id), attempt.stop
        if stop is not None and stop.kind in WHILE_PENDING and report.phase is not Phase.PENDING:
            if job not in self._lapsed:
                self._session.reporter.note(f"job {job} began before it could be taken back; it goes on")
            self._lapsed.add(job)
            self._requested.discard(job)
        if not attempt.is_cancel_requested and self.standing(attempt, report) is None:
            return False
        self._is_due(attempt)
        return True

    def standing(self, attempt: AttemptState, report: JobReport) -> Stop | None:
        """This tool's own wish for a job's end, unless the job was only to be taken back, and began all the same."""
        stop, job = attempt.stop, attempt.job_id
        if stop is None or stop.kind not in WHILE_PENDING:
            return stop
        if job in self._lapsed:
            return None
        if report.outcome is Outcome.CANCELLED:
            return stop  # it was heard, be it just as the job began
        began = report.started_at
        if began is None and job not in self._requested:  # a process before this one may have seen it begin
            launched = self._session.run_dir.attempt_file(attempt.key)
            began = None if launched is None else launched.started_at
        # A run from before the stop is one after which the job was requeued.
        has_begun = began is not None and began >= stop.time - _CLOCKS_DIFFER_S
        return None if has_begun else stop

    def tell(self) -> None:
        """Tell the scheduler of all jobs that are due, in two calls at most."""
        for only_pending, jobs in self._due.items():
            if jobs:
                self.cancel(jobs, only_pending=only_pending)
                jobs.clear()

    def cancel(self, jobs: Mapping[str, str], *, only_pending: bool = False) -> None:
        """Tell the scheduler now; where it does not hear it :attr:`failure` says why, and :meth:`insist` repeats it.

        Args:
            jobs: Job ids with the names of their submissions.
            only_pending: Leave those alone that have begun.
        """
        session, before = self._session, self.failure
        self.failure = ""
        try:
            for left_alone in session.scheduler.cancel(jobs, only_pending=only_pending):
                session.reporter.note(left_alone)
        except SchedulerError as error:
            self.failure = str(error)
            if self.failure != before:
                session.reporter.note(f"the scheduler did not take the cancel of {', '.join(jobs)}: {error}")
            return
        self._heard_at.update(dict.fromkeys(jobs, session.clock.monotonic()))

    def _is_due(self, attempt: AttemptState) -> None:
        job, stop, now = str(attempt.job_id), attempt.stop, self._session.clock.monotonic()
        if now - self._heard_at.get(job, -_AGAIN_S) < _AGAIN_S:
            return
        only_pending = not attempt.is_cancel_requested and stop is not None and stop.kind in WHILE_PENDING
        self._due[only_pending][job] = attempt.submission


def never_began(attempt: AttemptState, report: JobReport, run_dir: RunDirectory) -> bool:
    """Whether neither the scheduler nor the run directory knows of a beginning of an attempt's job."""
    return report.started_at is None and run_dir.attempt_file(attempt.key) is None
