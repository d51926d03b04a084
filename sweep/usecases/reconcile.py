"""Reconciling: result files, error files and the scheduler's word become outcomes."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import TYPE_CHECKING

from sweep.core.attempt import (
    ABSENT,
    WHILE_PENDING,
    AttemptKey,
    Evidence,
    JobReport,
    Outcome,
    Phase,
    StopKind,
    first_cause,
    is_consequence,
    judge,
)
from sweep.core.blame import Blame
from sweep.core.cancel import unfinished
from sweep.core.history import AttemptState
from sweep.core.ledger import CancelRequested, Ended, Withdrawn
from sweep.core.record import RecordError
from sweep.core.restraint import beyond_budget
from sweep.core.waiting import held_hint
from sweep.ports import SchedulerError
from sweep.usecases.lookup import LookUp
from sweep.usecases.queue import names_of, reports_of
from sweep.usecases.requeues import Requeues, waited_when_it_ended
from sweep.usecases.sightings import Sightings
from sweep.usecases.stops import Stops

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from sweep.core.attempt import RankError, Verdict
    from sweep.core.record import AttemptFile
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
        self._absent = Sightings()
        self._ended = Sightings()
        self._outlived = Sightings()
        self._hopeless = Sightings()
        self._held = Sightings()
        self._stalled = Sightings()
        self._steps: dict[str, int] = {}
        self._reports: dict[str, JobReport] = {}
        self._last_failure = ""
        self._look_up = LookUp(session)

    @property
    def reports(self) -> Mapping[str, JobReport]:
        """The scheduler's latest word on each job in flight."""
        return self._reports

    @property
    def cancel_failure(self) -> str:
        """Why the scheduler did not hear the last cancel; empty where it did."""
        return self._stops.failure

    def settle(self) -> None:
        """Take up cancel requests, look for lost submissions, and end every attempt that is over."""
        self._take_up_cancel_requests()
        self._look_up.look()
        flying = [attempt for attempt in self._session.history.in_flight() if attempt.job_id is not None]
        if not flying:
            self._reports = {}
            return
        self.settle_by(flying, self._poll(flying))

    def settle_by(self, flying: Sequence[AttemptState], reports: Mapping[str, JobReport] | None) -> None:
        """End those attempts that are over by these reports of their jobs (None: the scheduler could not be asked)."""
        if reports is None:
            self._end_those_with_results(flying)
            return
        reports = {**reports, **self._disproved(flying, reports)}
        self._reports = reports
        self._requeues.notice(flying, reports)
        self._stop_beyond_budget()
        over = []
        for attempt in flying:
            # Not before the ones ahead of it were looked at: they may show that their array is another job.
            report = reports.get(attempt.job_id or "", ABSENT)
            if self._is_over(attempt, report):
                over.append((attempt, report))
        self._end(over)
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
            if launched is not None and launched.ended_at is not None:
                result, _ = self._session.run_dir.result(attempt.key)
                if result is not None:
                    over.append((attempt, JobReport(state="", phase=Phase.ENDED)))
        self._end(over)

    def _is_over(self, attempt: AttemptState, report: JobReport) -> bool:
        """Whether an attempt is to be ended now; looks after it where it is not."""
        now, job = self._session.clock.monotonic(), str(attempt.job_id)
        if report.phase is not Phase.ABSENT:
            self._absent.forget(job)
        if report.phase is not Phase.ENDED:
            self._ended.forget(job)
        if not report.is_at_work:
            self._stalled.forget(job)
        if report.phase in (Phase.PENDING, Phase.RUNNING):
            if not self._stops.insist(attempt, report):
                self._watch(attempt, report, now)
        elif report.phase is Phase.ENDED:
            if not self._has_result(attempt) and self._look_up.follow(attempt):
                return False
            return self._is_settled(attempt, report, self._ended.lasting(job, now))
        else:
            return self._has_result(attempt) or (
                self._absent.lasting(job, now) >= self._session.cluster.lost_after_s
                and self._is_gone_for_good(attempt, report)
            )
        return False

    def _is_gone_for_good(self, attempt: AttemptState, report: JobReport) -> bool:
        """Whether a job that is absent cannot begin any more; else it could run beside the next attempt's."""
        beside = self._session.history.submissions[attempt.submission]
        if any(self._reports.get(str(one.job_id), ABSENT).phase is not Phase.ABSENT for one in beside if one.in_flight):
            return True  # its array is known, and it is not in it
        return self._look_up.is_barred(attempt, report)

    def _watch(self, attempt: AttemptState, report: JobReport, now: float) -> None:
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
        if not self._session.scheduler.is_hopeless(report):
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
        if not self._has_result(attempt):
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

    def _is_settled(self, attempt: AttemptState, report: JobReport, ended_for_s: float) -> bool:
        """Whether an ended job's files say how it ended, or have had their time to appear."""
        if attempt.stop is not None and self._never_began(attempt, report):
            return True
        cause = first_cause(self._session.run_dir.errors(attempt.key))
        if self._has_result(attempt) or (cause is not None and not is_consequence(cause)):
            return True
        return ended_for_s >= self._session.cluster.result_grace_s

    def _never_began(self, attempt: AttemptState, report: JobReport) -> bool:
        return report.started_at is None and self._session.run_dir.attempt_file(attempt.key) is None

    def _has_result(self, attempt: AttemptState) -> bool:
        result, _ = self._session.run_dir.result(attempt.key)
        return result is not None

    def _stop_beyond_budget(self) -> None:
        """End jobs that were requeued and whose next run might overdraw the budget, which is a hard cap."""
        cap = self._session.policy.budget_gpu_hours
        for attempt in beyond_budget(self._session.history, self._session.policy):
            report = self._reports.get(str(attempt.job_id))
            if report is not None and report.phase in (Phase.PENDING, Phase.RUNNING):
                reason = (
                    f"requeued after {attempt.earlier_gpu_seconds / 3600:,.2f} GPU-hours; one more run of up to "
                    f"{attempt.gpu_hours:,.2f} may not fit into the budget of {cap:,.2f}"
                )
                self._stops.request(attempt, StopKind.OVER_BUDGET, reason)

    def take_back(self, reason: str) -> None:
        """End jobs that have not begun, because the run is paused; those that have begun go on."""
        waiting = [
            attempt
            for attempt in self._session.history.in_flight()
            if attempt.job_id is not None and attempt.stop is None and not attempt.is_cancel_requested
            if (report := self._reports.get(attempt.job_id)) is not None and report.phase is Phase.PENDING
            if self._never_began(attempt, report)
        ]
        if not waiting:
            return
        self._session.reporter.note(f"{len(waiting)} jobs that have not begun are taken back: {reason}")
        for attempt in waiting:
            self._stops.request(attempt, StopKind.PAUSED, reason)
        self._stops.tell()

    def _end(self, over: Sequence[tuple[AttemptState, JobReport]]) -> None:
        earlier_s = self._requeues.settled_seconds(over)
        for attempt, report in over:
            self._end_one(attempt, report, earlier_s.get(str(attempt.job_id), 0.0))

    def _end_one(self, attempt: AttemptState, report: JobReport, earlier_s: float) -> None:
        """Record how an attempt ended; one that was taken back before it began did not happen."""
        session, stop = self._session, attempt.stop
        is_taken_back = stop is not None and stop.kind is StopKind.PAUSED and self._never_began(attempt, report)
        if stop is not None and is_taken_back and not attempt.is_cancel_requested:
            session.record(Withdrawn(time=session.clock.now(), key=attempt.key, reason=stop.reason))
            return
        result, problem = session.run_dir.result(attempt.key)
        launched = session.run_dir.attempt_file(attempt.key)
        errors = session.run_dir.errors(attempt.key)
        if result is None:
            report = self._with_last_words(attempt, report, launched)
            if launched is None:
                problem = problem or self._submission_problem(attempt)
        evidence = Evidence(
            has_result=result is not None,
            result_problem=problem,
            cancelled_by_user=attempt.is_cancel_requested,
            report=report,
            outcome_of_state=session.scheduler.outcome_of(report),
            stop=self._stops.standing(attempt, report),
            errors=errors,
            exit_codes={} if launched is None or launched.exit_code is None else {0: launched.exit_code},
        )
        verdict = judge(evidence)
        blamed = self._blamed(verdict, report, launched, errors)
        session.record(
            Ended(
                time=session.clock.now(),
                key=attempt.key,
                outcome=verdict.outcome,
                reason=verdict.reason,
                gpu_seconds=_gpu_seconds(attempt, report, launched, earlier_s),
                evidence={**_as_data(evidence, errors), "blamed": blamed},
            )
        )
        self._write_blame(attempt.key, verdict, blamed)
        session.reporter.ended(attempt.key, verdict)

    def _submission_problem(self, attempt: AttemptState) -> str:
        """Why a job that began could not know what to run; empty where that is no reason."""
        try:
            self._session.run_dir.submission(attempt.submission)
        except (OSError, RecordError) as error:
            return f"its submission's file is damaged: {error}"
        return ""

    def _with_last_words(self, attempt: AttemptState, report: JobReport, launched: AttemptFile | None) -> JobReport:
        """The report, or where it does not say why a job ended, what the scheduler wrote of that into the job's log."""
        scheduler = self._session.scheduler
        is_over = report.phase in (Phase.ENDED, Phase.ABSENT)
        if not is_over or report.state == "COMPLETED" or scheduler.outcome_of(report) is not None:
            return report
        since = 0.0 if launched is None else launched.started_at
        # The log has whole seconds.
        said = scheduler.last_words(
            self._session.run_dir.path, attempt.submission, str(attempt.job_id), since=since - 1.0
        )
        if said is None:
            return report
        return replace(
            report,
            state=said.state,
            reason=said.reason,
            nodes=report.nodes or (() if launched is None else launched.hosts),
            ended_at=report.ended_at or said.ended_at,
        )

    def _blamed(
        self, verdict: Verdict, report: JobReport, launched: AttemptFile | None, errors: Sequence[RankError]
    ) -> list[str]:
        """Nodes at fault: those that the scheduler has out of service, or the one whose device failed."""
        if verdict.outcome is Outcome.NODE_FAIL:
            out_of_service = sorted(self._session.scheduler.unhealthy(report.nodes))
            # Of several nodes that are all well again nobody can say which it was.
            return out_of_service or (list(report.nodes) if len(report.nodes) == 1 else [])
        cause = first_cause(errors)
        if verdict.outcome is Outcome.DEVICE_ERROR and cause is not None:
            hosts = report.nodes or (() if launched is None else launched.hosts)
            return list(hosts[cause.node_rank : cause.node_rank + 1])
        return []

    def _write_blame(self, key: AttemptKey, verdict: Verdict, nodes: Sequence[str]) -> None:
        now, run = self._session.clock.now(), self._session.run_name
        self._session.blame.add(
            Blame(
                node=node,
                time=now,
                cell_id=key.cell_id,
                run=run,
                outcome=verdict.outcome,
                reason=verdict.reason,
            )
            for node in nodes
        )

    def _take_up_cancel_requests(self) -> None:
        for name, cells in self._session.run_dir.cancel_requests():
            self.cancel(cells)
            self._session.run_dir.drop_cancel_request(name)

    def cancel(self, cells: Iterable[str]) -> None:
        """Cancel cells: end their attempts that are in flight, and hold the others back; nobody else's are touched."""
        session, wanted = self._session, tuple(dict.fromkeys(cells))
        flying = [attempt for attempt in session.history.in_flight() if attempt.key.cell_id in wanted]
        repeats = unfinished(session.history, wanted, session.repeats)
        if flying or repeats:
            keys = tuple(attempt.key for attempt in flying)
            session.record(CancelRequested(time=session.clock.now(), keys=keys, repeats=repeats))
            self._stops.cancel(names_of(flying))


def _gpu_seconds(
    attempt: AttemptState, report: JobReport, launched: AttemptFile | None, earlier_s: float
) -> float | None:
    """GPU-seconds that an attempt held, by the scheduler's times or else the launcher's; None where neither knows.

    These are of the job's last run; ``earlier_s`` are the seconds of those before it was requeued.
    """
    started, ended = report.started_at, report.ended_at
    if started is None and launched is None and (report.phase is Phase.ENDED or _was_taken_back(attempt)):
        return 0.0  # it ended before it began
    if waited_when_it_ended(report):
        return earlier_s * attempt.gpus
    if (started is None or ended is None) and launched is not None:
        started, ended = launched.started_at, launched.ended_at or ended
    if started is None or ended is None:
        return None
    return (earlier_s + max(0.0, ended - started)) * attempt.gpus


def _was_taken_back(attempt: AttemptState) -> bool:
    """Whether its job was to be ended only if it had not begun; what the scheduler has forgotten then never began."""
    return attempt.stop is not None and attempt.stop.kind in WHILE_PENDING


def _as_data(evidence: Evidence, errors: Sequence[RankError]) -> dict[str, object]:
    report = evidence.report
    return {
        "result": evidence.has_result,
        "result_problem": evidence.result_problem,
        "state": report.state,
        "state_reason": report.reason,
        "ended_by": report.ended_by,
        "nodes": list(report.nodes),
        "exit_code": report.exit_code,
        "stop": "" if evidence.stop is None else evidence.stop.kind,
        "launcher_exit_codes": {str(node): code for node, code in evidence.exit_codes.items()},
        "errors": [asdict(error) for error in errors[:8]],
    }
