"""Looking after jobs that wait or run: those that would never begin, hang or cost too much are to end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sweep.core.attempts.attempt import Phase, StopKind
from sweep.core.attempts.waiting import held_hint
from sweep.core.decisions.admission import beyond_budget
from sweep.core.encoding.message import hours
from sweep.usecases.sightings import Sightings
from sweep.usecases.stops import never_began

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sweep.core.attempts.attempt import JobReport
    from sweep.core.attempts.history import AttemptState
    from sweep.usecases.session import Session
    from sweep.usecases.stops import Stops


class Watch:
    """Requests the end of jobs that are not over and should not go on.

    Args:
        session: The run.
        stops: Takes the requests.
    """

    def __init__(self, session: Session, stops: Stops) -> None:
        """Nothing has been seen yet."""
        self._session = session
        self._stops = stops
        self._outlived = Sightings()
        self._hopeless = Sightings()
        self._held = Sightings()
        self._stalled = Sightings()
        self._steps: dict[str, int] = {}

    def look_after(self, attempt: AttemptState, report: JobReport) -> None:
        """See what a job does now; one whose end was requested before is told again if it is time to."""
        if not report.is_at_work:
            self._stalled.forget(str(attempt.job_id))
        if report.phase not in (Phase.PENDING, Phase.RUNNING) or self._stops.insist(attempt, report):
            return
        now = self._session.clock.monotonic()
        if report.phase is Phase.PENDING:
            self._watch_waiting(attempt, report, now)
        else:
            self._watch_running(attempt, report, now)

    def _watch_waiting(self, attempt: AttemptState, report: JobReport, now: float) -> None:
        """A job that waits for what will never come, or longer than the user lets it, is ended with that reason."""
        job, policy = str(attempt.job_id), self._session.policy
        hint = held_hint(report)
        if hint and job not in self._held.since:
            self._held.lasting(job, now)
            self._session.reporter.note(f"job {job} waits: {report.reason}; {hint}")
        if not hint:
            self._held.forget(job)
        if not report.is_hopeless:
            self._hopeless.forget(job)
        elif self._hopeless.lasting(job, now) >= policy.hopeless_after_s:
            self._stops.request(attempt, StopKind.HOPELESS, f"it would have waited for ever: {report.reason}")
            return
        if policy.pending_limit_h is not None and self._waiting_h(attempt) >= policy.pending_limit_h:
            reason = f"it waited for more than policy.pending_limit_h={policy.pending_limit_h:g}: {report.reason}"
            self._stops.request(attempt, StopKind.HOPELESS, reason)

    def _waiting_h(self, attempt: AttemptState) -> float:
        """Hours since it was submitted, or since its run before a requeue ended (or, where that is unknown, began)."""
        launched = self._session.run_dir.attempt_file(attempt.key)
        since = attempt.reserved_at if launched is None else launched.ended_at or launched.started_at
        return (self._session.clock.now() - since) / 3600

    def _watch_running(self, attempt: AttemptState, report: JobReport, now: float) -> None:
        """A job whose result is there may take a moment to end; one that hangs is ended, and its result counts."""
        job = str(attempt.job_id)
        if not self._session.has_result(attempt.key):
            self._outlived.forget(job)
            self._watch_steps(attempt, report, now)
            return
        if self._outlived.lasting(job, now) >= self._session.cluster.hang_grace_s:
            self._stops.request(attempt, StopKind.OUTLIVED, "it goes on although its result is there")

    def _watch_steps(self, attempt: AttemptState, report: JobReport, now: float) -> None:
        """End a job that has made no step for too long, by the watchdog of the policy."""
        limit_s = self._session.policy.watchdog_s
        if not limit_s or not report.is_at_work:
            return
        job = str(attempt.job_id)
        progress = self._session.run_dir.progress(attempt.key)
        step = -1 if progress is None else progress.step
        if self._steps.get(job) != step:
            self._steps[job] = step
            self._stalled.forget(job)
        stalled_s = self._stalled.lasting(job, now)
        if stalled_s >= limit_s:
            reason = f"no step for {stalled_s:.0f} s (a hang; ended by the watchdog)"
            self._stops.request(attempt, StopKind.HANG, reason)

    def stop_beyond_budget(self, reports: Mapping[str, JobReport]) -> None:
        """End jobs that were requeued and whose next run might overdraw the budget, which is a hard cap."""
        cap = self._session.policy.budget_gpu_hours
        for attempt in beyond_budget(self._session.history, self._session.policy):
            report = reports.get(str(attempt.job_id))
            if report is not None and report.phase in (Phase.PENDING, Phase.RUNNING):
                reason = (
                    f"requeued after {hours(attempt.earlier_gpu_seconds / 3600)} GPU-hours; one more run of up to "
                    f"{hours(attempt.gpu_hours)} may not fit into the budget of {hours(cap)}"
                )
                self._stops.request(attempt, StopKind.OVER_BUDGET, reason)

    def take_back(self, reports: Mapping[str, JobReport], reason: str) -> None:
        """End jobs that have not begun, because the run is paused; those that have begun go on."""
        session = self._session
        waiting = [
            attempt
            for attempt in session.history.in_flight()
            if attempt.job_id is not None and attempt.stop is None and not attempt.is_cancel_requested
            if (report := reports.get(attempt.job_id)) is not None and report.phase is Phase.PENDING
            if never_began(attempt, report, session.run_dir)
        ]
        if not waiting:
            return
        session.reporter.note(f"{len(waiting)} jobs that have not begun are taken back: {reason}")
        for attempt in waiting:
            self._stops.request(attempt, StopKind.PAUSED, reason)
        self._stops.tell()
