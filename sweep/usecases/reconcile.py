"""Reconciling: which attempts are over, by the run directory and by the scheduler's word."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from sweep.core.attempts.attempt import ABSENT, JobReport, Phase
from sweep.core.attempts.ledger import CancelRequested
from sweep.core.attempts.verdict import first_cause, is_consequence
from sweep.core.decisions.cancel import unfinished
from sweep.core.jobs.claim import shared_id
from sweep.ports import SchedulerError
from sweep.usecases.endings import Endings
from sweep.usecases.lookup import LookUp
from sweep.usecases.queue import names_of, reports_of
from sweep.usecases.requeues import Requeues
from sweep.usecases.sightings import Gone
from sweep.usecases.stops import Stops, never_began
from sweep.usecases.watch import Watch

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from sweep.core.attempts.history import AttemptState
    from sweep.usecases.session import Session


class Reconciler:
    """Brings the history up to what the run directory and the scheduler say.

    Args:
        session: The run.
    """

    def __init__(self, session: Session) -> None:
        """Nothing has been seen yet."""
        self._session = session
        self._stops = Stops(session)
        self._requeues = Requeues(session)
        self._watch = Watch(session, self._stops)
        self._endings = Endings(session, self._stops, self._requeues)
        self._gone = Gone(session)
        self._reports: dict[str, JobReport] = {}
        self._last_failure = ""
        self._look_up = LookUp(session, self._gone)

    @property
    def reports(self) -> Mapping[str, JobReport]:
        """The scheduler's latest word on each job in flight."""
        return self._reports

    def take_back(self, reason: str) -> None:
        """End jobs that have not begun, because the run is paused; those that have begun go on."""
        self._watch.take_back(self._reports, reason)

    @property
    def cancel_failure(self) -> str:
        """Why the scheduler did not hear the last cancel; empty where it did."""
        return self._stops.failure

    def settle(self) -> None:
        """Take up cancel requests, look for lost submissions, and end every attempt that is over."""
        self._take_up_cancel_requests()
        self._look_up.look()
        with_job = [attempt for attempt in self._session.history.in_flight() if attempt.job_id is not None]
        flying = self._end_those_replaced(with_job)
        if flying:
            self.settle_by(flying, self._poll(flying))
        else:
            self._reports = {}
        self._gone.write_down()

    def _end_those_replaced(self, flying: Sequence[AttemptState]) -> Sequence[AttemptState]:
        """End attempts whose job's id is a later submission's by now; gives the others.

        A controller that has lost its state gives ids anew, and has no job any more that had one before.
        """
        owners: dict[str, dict[str, None]] = {}
        for attempt in flying:
            owners.setdefault(shared_id(str(attempt.job_id)), {})[attempt.submission] = None
        if all(len(names) == 1 for names in owners.values()):
            return flying
        order = {name: number for number, name in enumerate(self._session.history.submissions)}
        latest = {job: max(names, key=order.__getitem__) for job, names in owners.items()}
        over, left = [], []
        for attempt in flying:
            owner = latest[shared_id(str(attempt.job_id))]
            if owner == attempt.submission:
                left.append(attempt)
            elif self._look_up.is_barred(attempt, ABSENT):
                over.append((attempt, replace(ABSENT, reason=f"{attempt.job_id} is now the id of {owner}")))
        self._endings.record(over)
        return left

    def settle_by(self, flying: Sequence[AttemptState], reports: Mapping[str, JobReport] | None) -> None:
        """End those attempts that are over by these reports of their jobs (None: the scheduler could not be asked)."""
        if reports is None:
            self._end_those_with_results(flying)
            return
        reports = {**reports, **self._disproved(flying, reports)}
        self._reports = reports
        self._requeues.notice(flying, reports)
        self._watch.stop_beyond_budget(reports)
        over = []
        for attempt in flying:
            # Not before the ones ahead of it were looked at: they may show that their array is another job.
            report = reports.get(attempt.job_id or "", ABSENT)
            if self._is_over(attempt, report):
                over.append((attempt, report))
        self._endings.record(over)
        self._stops.tell()

    def _disproved(self, flying: Sequence[AttemptState], reports: Mapping[str, JobReport]) -> dict[str, JobReport]:
        """Jobs that are said to have ended while they waited, and began: of them nothing is known yet."""
        return {
            attempt.job_id: ABSENT
            for attempt in flying
            if attempt.job_id is not None
            and (report := reports.get(attempt.job_id)) is not None
            and report.is_inferred
            and self._session.run_dir.attempt_file(attempt.key) is not None
        }

    def _poll(self, flying: Sequence[AttemptState]) -> Mapping[str, JobReport] | None:
        session = self._session
        try:
            reports = reports_of(flying, history=session.history, scheduler=session.scheduler, run_dir=session.run_dir)
        except SchedulerError as error:
            if str(error) != self._last_failure:
                self._session.reporter.note(f"the scheduler cannot be asked ({error}); nothing is decided until it can")
            self._last_failure = str(error)
            self._session.not_reached(error)
            return None
        self._last_failure = ""
        self._session.reached()
        return reports

    def _end_those_with_results(self, flying: Iterable[AttemptState]) -> None:
        """A finished measurement needs no scheduler; everything else waits for its word."""
        over = []
        for attempt in flying:
            launched = self._session.run_dir.attempt_file(attempt.key)
            has_ended = launched is not None and launched.ended_at is not None
            if has_ended and self._session.has_result(attempt.key):
                over.append((attempt, JobReport(state="", phase=Phase.ENDED)))
        self._endings.record(over)

    def _is_over(self, attempt: AttemptState, report: JobReport) -> bool:
        """Whether an attempt is to be ended now; looks after it where it is not."""
        self._watch.look_after(attempt, report)
        if report.phase is Phase.ENDED:
            if self._look_up.follow(attempt):
                return False
            ended_for_s = self._gone.lasting(attempt, Phase.ENDED, ended_at=report.ended_at)
            return self._is_settled(attempt, report, ended_for_s) and self._cannot_begin(attempt, report)
        if report.phase is Phase.ABSENT:
            return self._session.has_result(attempt.key) or (
                self._gone.lasting(attempt, Phase.ABSENT) >= self._session.cluster.lost_after_s
                and self._is_gone_for_good(attempt, report)
            )
        self._gone.is_back(attempt)
        return False

    def _cannot_begin(self, attempt: AttemptState, report: JobReport) -> bool:
        """Whether no job runs an attempt whose own has ended: one that never began may be in the queue twice."""
        session = self._session
        beside = session.history.submissions[attempt.submission]
        may_begin = (one for one in beside if one.in_flight and one is not attempt)
        if session.run_dir.attempt_file(attempt.key) is not None or any(
            self._reports.get(str(one.job_id), ABSENT).phase is not Phase.ENDED for one in may_begin
        ):
            return True
        return self._look_up.is_barred(attempt, report)

    def _is_gone_for_good(self, attempt: AttemptState, report: JobReport) -> bool:
        """Whether a job that is absent cannot begin any more; else it could run beside the next attempt's."""
        beside = self._session.history.submissions[attempt.submission]
        if any(self._reports.get(str(one.job_id), ABSENT).phase is not Phase.ABSENT for one in beside if one.in_flight):
            return True  # its array is known, and it is not in it
        return self._look_up.is_barred(attempt, report)

    def _is_settled(self, attempt: AttemptState, report: JobReport, ended_for_s: float) -> bool:
        """Whether an ended job's files say how it ended, or have had their time to appear."""
        if attempt.stop is not None and never_began(attempt, report, self._session.run_dir):
            return True
        cause = first_cause(self._session.run_dir.errors(attempt.key))
        if self._session.has_result(attempt.key) or (cause is not None and not is_consequence(cause)):
            return True
        return ended_for_s >= self._session.cluster.result_grace_s

    def _take_up_cancel_requests(self) -> None:
        for name, cells in self._session.run_dir.cancel_requests():
            self.cancel(cells)
            self._session.run_dir.drop_cancel_request(name)

    def cancel(self, cells: Iterable[str]) -> None:
        """Cancel cells: end their attempts that are in flight, and hold the others back; nobody else's are touched.

        A job that has ended already is not cancelled: how it ended is not hidden.
        """
        session, wanted = self._session, tuple(dict.fromkeys(cells))
        flying = self._not_over([attempt for attempt in session.history.in_flight() if attempt.key.cell_id in wanted])
        repeats = unfinished(session.history, wanted, session.repeats)
        if flying or repeats:
            keys = tuple(attempt.key for attempt in flying)
            session.record(CancelRequested(time=session.clock.now(), keys=keys, repeats=repeats))
            self._stops.cancel(names_of(flying))

    def _not_over(self, flying: Sequence[AttemptState]) -> list[AttemptState]:
        """Those whose jobs have not ended as far as is known; all of them where the scheduler cannot be asked."""
        with_job = [attempt for attempt in flying if attempt.job_id is not None]
        reports = (self._poll(with_job) if with_job else None) or {}
        reports = {**reports, **self._disproved(with_job, reports)}
        return [one for one in flying if reports.get(one.job_id or "", ABSENT).phase is not Phase.ENDED]
