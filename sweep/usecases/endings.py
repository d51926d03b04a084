"""Recording how attempts ended: the evidence is gathered and judged, the cost settled, nodes at fault are blamed."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import TYPE_CHECKING

from sweep.core.attempts.attempt import WHILE_PENDING, AttemptKey, JobReport, Outcome, Phase, StopKind
from sweep.core.attempts.blame import Blame
from sweep.core.attempts.ledger import Ended, Withdrawn
from sweep.core.attempts.verdict import Evidence, first_cause, judge
from sweep.core.encoding.record import RecordError
from sweep.usecases.requeues import waited_when_it_ended
from sweep.usecases.stops import never_began

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sweep.core.attempts.attempt import RankError
    from sweep.core.attempts.history import AttemptState
    from sweep.core.attempts.verdict import Verdict
    from sweep.core.records.attempt_file import AttemptFile
    from sweep.usecases.requeues import Requeues
    from sweep.usecases.session import Session
    from sweep.usecases.stops import Stops


class Endings:
    """Judges attempts that are over.

    Args:
        session: The run.
        stops: Knows which jobs this tool itself ended.
        requeues: Knows what jobs used before they were requeued.
    """

    def __init__(self, session: Session, stops: Stops, requeues: Requeues) -> None:
        """Nothing has ended yet."""
        self._session = session
        self._stops = stops
        self._requeues = requeues

    def record(self, over: Sequence[tuple[AttemptState, JobReport]]) -> None:
        """Record how these attempts ended, by the last reports of their jobs; they are over, that is not asked here."""
        earlier_s = self._requeues.settled_seconds(over)
        for attempt, report in over:
            self._end_one(attempt, report, earlier_s.get(str(attempt.job_id), 0.0))

    def _end_one(self, attempt: AttemptState, report: JobReport, earlier_s: float) -> None:
        """Record how an attempt ended; one that was taken back before it began did not happen."""
        session, stop = self._session, attempt.stop
        is_taken_back = (
            stop is not None and stop.kind is StopKind.PAUSED and never_began(attempt, report, session.run_dir)
        )
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
            outcome_of_state=report.outcome,
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
                gpu_seconds=self._gpu_seconds(attempt, report, launched, earlier_s),
                evidence={**_as_data(evidence, errors), "blamed": blamed},
            )
        )
        self._write_blame(attempt.key, verdict, blamed)
        session.reporter.ended(attempt.key, verdict)

    def _gpu_seconds(
        self, attempt: AttemptState, report: JobReport, launched: AttemptFile | None, earlier_s: float
    ) -> float | None:
        """GPU-seconds that an attempt held, runs before a requeue included; None where they are not known."""
        is_absent = report.phase is Phase.ABSENT
        if is_absent and launched is not None and self._requeues.is_counted(attempt, launched, report):
            return earlier_s * attempt.gpus  # it was forgotten before it began again
        return _gpu_seconds(attempt, report, launched, earlier_s)

    def _submission_problem(self, attempt: AttemptState) -> str:
        """Why a job that began could not know what to run; empty where that is no reason."""
        try:
            self._session.run_dir.submission(attempt.submission)
        except (OSError, RecordError) as error:
            return f"its submission's file is damaged: {error}"
        return ""

    def _with_last_words(self, attempt: AttemptState, report: JobReport, launched: AttemptFile | None) -> JobReport:
        """The report, or where it does not say why a job ended, what the scheduler wrote of that into the job's log."""
        diagnosis = self._session.view.diagnosis
        is_over = report.phase in (Phase.ENDED, Phase.ABSENT)
        if not is_over or report.state == "COMPLETED" or report.outcome is not None or diagnosis is None:
            return report
        since = 0.0 if launched is None else launched.started_at
        # The log has whole seconds.
        said = diagnosis.last_words(
            self._session.run_dir.path, attempt.submission, str(attempt.job_id), since=since - 1.0
        )
        if said is None:
            return report
        return replace(
            report,
            state=said.state,
            outcome=said.outcome,
            reason=said.reason,
            nodes=report.nodes or (() if launched is None else launched.hosts),
            at_fault=said.at_fault,
            ended_at=report.ended_at or said.ended_at,
        )

    def _blamed(
        self, verdict: Verdict, report: JobReport, launched: AttemptFile | None, errors: Sequence[RankError]
    ) -> list[str]:
        """Nodes at fault: those that the scheduler has out of service or names, or the one whose device failed."""
        if verdict.outcome is Outcome.NODE_FAIL:
            facts = self._session.view.facts
            out_of_service = [] if facts is None else sorted(facts.unhealthy(report.nodes))
            # Of several nodes that are all well again, and none of them named, nobody can say which it was.
            named = report.at_fault or (report.nodes if len(report.nodes) == 1 else ())
            return out_of_service or list(named)
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
